"""Fixtures that several packages of tests share."""

import collections
import gc
import os
import random
import signal
import time
import uuid

import pytest
from hypothesis import settings

from tests.azure_server import PROGRAM as AZURITE
from tests.azure_server import azure_server
from tests.ceph_server import PACKAGES, ceph_server, missing_programs
from tests.gcs_server import gcs_server
from tests.s3_server import s3_server
from tests.spark_classes import submit_options

# A shell's `&` and `nohup` leave SIGINT ignored, and Dagster gives SIGTERM what SIGINT has: its children could not be
# ended.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("SPARK_SUBMIT_OPTS", submit_options())

# Commands fill the lines that these variables ask for; a test that is about a narrow terminal sets them itself.
for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(variable, None)

# Each run draws the same examples, so that a failure comes from the change; `make test-slow` draws new ones. In the
# profile `few`, tests/support/hypothesis_settings.py draws fewer.
settings.register_profile("few", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("few")


LONG = ("tests/pyspark_lance/", "tests/lance_dagster/", "tests/example_project/", "tests/test_documentation.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Files that take a minute begin first, so that two workers end at the same time.

    Of a test that is marked `variants(n)`, all but n variants are slow: the first one, and others in equal steps.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    variants = collections.defaultdict(list)
    for item in items:
        variants[item.nodeid.partition("[")[0]].append(item)
    for same_test in variants.values():
        mark = same_test[0].get_closest_marker("variants")
        if mark is not None and len(same_test) > mark.args[0]:
            fast = {place * len(same_test) // mark.args[0] for place in range(mark.args[0])}
            for place, item in enumerate(same_test):
                if place not in fast:
                    item.add_marker("slow")


def pytest_collection_finish():
    """Leave the modules and the tests, some 900,000 objects, out of later garbage collections."""
    gc.collect()
    gc.freeze()


class TimeBox:
    """Ends a run after some minutes; it passes if the tests that ran passed.

    The run takes one variant of each test before a second one, and the seed gives the order of modules. Tests of a class
    stay together, as one may continue what another began.
    """

    def __init__(self, minutes, seed):
        self.end = time.monotonic() + 60 * minutes
        self.seed = seed
        self.over = False

    def pytest_report_header(self):
        return f"order of tests: --seed {self.seed}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        modules = sorted({item.path for item in items})
        random.Random(self.seed).shuffle(modules)
        variants = collections.Counter()

        def place(item):
            name = item.nodeid.partition("[")[0]
            variant = variants[name]
            variants[name] += item.cls is None
            return variant, modules.index(item.path)

        items.sort(key=place)

    def pytest_runtest_logfinish(self, nodeid):
        self.over = time.monotonic() > self.end

    def pytest_runtest_protocol(self, item):
        if self.over and not item.session.shouldstop:
            item.session.shouldstop = f"the minutes are over; the first test left out is {item.nodeid}"
            return True
        return None

    def pytest_sessionfinish(self, session):
        if self.over and not session.testsfailed:
            session.exitstatus = pytest.ExitCode.OK


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, help="begin no further test after this many minutes")
    parser.addoption("--seed", type=int, help="with --minutes: the order of modules; else any")
    parser.addoption("--ceph", action="store_true", help="the S3 server of all tests is Ceph's gateway")


def pytest_configure(config):
    minutes = config.getoption("--minutes")
    if minutes is not None:
        any_seed = os.environ.setdefault("TEST_ORDER_SEED", str(random.randrange(1000)))  # for xdist's workers too
        seed = config.getoption("--seed")
        config.pluginmanager.register(TimeBox(minutes, int(any_seed) if seed is None else seed))


@pytest.fixture(scope="session")
def s3(request):
    """An S3 server, with `storage_options` and `new_bucket()`: Ceph's gateway with `--ceph`."""
    if request.config.getoption("--ceph"):
        yield request.getfixturevalue("ceph")
        return
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure():
    """A server of Azure Blob Storage, with `storage_options` and `new_place()`."""
    if not AZURITE.exists():
        pytest.skip("Azurite is not installed: make azurite, which needs npm")
    with azure_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs():
    """A server of Google Cloud Storage, with `storage_options` and `new_place()`."""
    with gcs_server() as server:
        yield server


@pytest.fixture
def dynamodb_table(s3):
    """A client of DynamoDB at the S3 server, and the name of a new table of manifests."""
    import boto3

    client = boto3.client(
        "dynamodb", endpoint_url=s3.endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    name = f"T{uuid.uuid4().hex[:8]}"
    keys = [("base_uri", "HASH", "S"), ("version", "RANGE", "N")]
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind, _ in keys],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, _, kind in keys],
        BillingMode="PAY_PER_REQUEST",
    )
    yield client, name
    client.close()


@pytest.fixture
def local_children(monkeypatch):
    """Maintenance does the jobs of children without limits in the process of the test, which saves their start."""
    from lance_core.maintenance.search.child import ChildProcess
    from tests.support.local_child import LocalChild, use_children

    def start(memory=None, timeout_s=None):
        is_limited = memory is not None or (timeout_s is not None and timeout_s < 3600)
        return (ChildProcess if is_limited else LocalChild)(memory, timeout_s)

    use_children(monkeypatch, start)


@pytest.fixture(scope="session")
def ceph():
    """Ceph's S3 gateway, with `storage_options` and `new_bucket()`."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"Ceph is not installed ({', '.join(missing)}); on Debian: apt-get install {PACKAGES}")
    with ceph_server() as server:
        yield server
