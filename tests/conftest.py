"""Fixtures that several packages of tests share."""

import pytest

from tests.ceph_server import PACKAGES, ceph_server, missing_programs
from tests.s3_server import s3_server


@pytest.fixture(scope="session")
def s3():
    """An S3 server; ask it for `storage_options` and `new_bucket()`."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def ceph():
    """Ceph's S3 gateway; the same can be asked of it."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"Ceph is not installed ({', '.join(missing)}); on Debian: apt-get install {PACKAGES}")
    with ceph_server() as server:
        yield server
