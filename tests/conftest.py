"""Fixtures that several packages of tests share."""

import pytest

from tests.s3_server import s3_server


@pytest.fixture(scope="session")
def s3():
    """An S3 server; ask it for `storage_options` and `new_bucket()`."""
    with s3_server() as server:
        yield server
