"""Promotions on Ceph's S3 gateway, which copies by itself and decides conditional puts atomically: `make test-ceph`."""

import pytest

from tests.faults.test_promotion_faults import (
    test_one_that_dies_anywhere_is_run_again_and_is_committed_once,  # noqa: F401 - run here once more
    test_processes_that_promote_at_the_same_time,  # noqa: F401 - the same
)
from tests.interop.refs.test_promotion import TestOnS3  # noqa: F401 - the same
from tests.interop.refs.test_random_promotions import test_promotions_on_object_storage  # noqa: F401 - the same

pytestmark = pytest.mark.ceph


@pytest.fixture
def s3(ceph):
    """The server that the tests which are shared with the default ones ask for."""
    return ceph


@pytest.fixture
def place(s3):
    return f"s3://{s3.new_bucket()}", s3.storage_options
