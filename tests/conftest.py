"""Fixtures that several packages of tests share."""

import signal

import pytest
from hypothesis import settings

from tests.ceph_server import PACKAGES, ceph_server, missing_programs
from tests.s3_server import s3_server

# A shell's `&` and `nohup` leave SIGINT ignored, and Dagster gives SIGTERM what SIGINT has: its children could not be
# ended.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is drawn is the same in each run, so that a run tells of its change; `make test-slow` draws anew.
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("anew", deadline=None, print_blob=True)
settings.load_profile("same")


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
