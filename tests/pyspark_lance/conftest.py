"""One Spark session for all tests of a process: classic, or Spark Connect where LANCE_TEST_CONNECT says so.

A process cannot have both kinds: `test_connect.py` runs some files a second time, in a process of its own.
"""

import os
import warnings

import pytest

from pyspark_lance import local_session
from pyspark_lance.releases import is_at_least
from pyspark_lance.writing import orphan_files
from tests.spark_classes import workers_python_path
from tests.spark_workers.late_files import PLACE, impatient, new_place
from tests.support.early_spark import add_methods, lacks


@pytest.fixture(scope="session")
def connect():
    """Whether the session is a Spark Connect one."""
    return os.environ.get("LANCE_TEST_CONNECT") == "1"


@pytest.fixture(scope="session")
def spark(connect, tmp_path_factory):
    config = {
        "spark.ui.enabled": "false",
        # Not UTC: what is stored must not depend on it.
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.timeType.enabled": "true",
        "spark.default.parallelism": "2",
    }
    if not is_at_least((4, 0)):
        add_methods()
    # Two attempts for each task; a local session has one by default.
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", workers_python_path())
        patch.setenv(PLACE, str(new_place()))
        warnings.simplefilter("ignore")  # pylance warns of every fork once it is loaded; Java is started by one
        session = local_session("local[2]" if connect else "local[2,2]", config=config, connect=connect)
    if not connect:
        session.sparkContext.setLogLevel("OFF")  # failures of tasks are part of the tests
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orphan_files, "time", impatient(new_place()))
        yield session
    session.stop()


@pytest.fixture
def late_files():
    """Cleanups wait for files that come late as long as they do for users: tests/spark_workers/late_files.py."""
    place = new_place()
    place.touch()
    yield
    place.unlink()


@pytest.fixture(scope="session")
def lance(spark):
    """pylance, loaded after the session has started: it warns of every fork, and the start of Java is one."""
    import lance

    return lance


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table.lance")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """Tests of what an earlier Spark lacks are skipped there, after it has said so."""
    if call.excinfo is not None and lacks(call.excinfo.value):
        skipped = pytest.skip.Exception(f"not in this Spark: {call.excinfo.exconly()[:99]}")
        call.excinfo = pytest.ExceptionInfo.from_exception(skipped.with_traceback(call.excinfo.tb))
    return (yield)
