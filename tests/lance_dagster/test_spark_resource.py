"""`LanceSparkResource`: one session per process, whoever started it."""

import sys
import threading

import dagster as dg
import pytest
from pyspark.sql import DataFrame  # noqa: TID253 -- Dagster resolves the annotations of assets

from lance_core.errors import UnsupportedError
from lance_dagster import LanceSparkResource
from pyspark_lance import releases
from tests import processes


@dg.asset
def numbers(spark: LanceSparkResource) -> DataFrame:
    return spark.get_session().range(3)


@dg.asset
def doubled(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("id * 2 as id")


def test_in_one_line(lake, spark):
    lake.run(numbers, doubled, resources={"spark": LanceSparkResource()})
    assert lake.rows("doubled") == [(0,), (2,), (4,)]


def test_it_takes_the_session_that_is_there(spark):
    resource = LanceSparkResource()
    assert resource.session is spark
    assert resource.spark_session is spark
    assert resource.get_session() is spark


def test_in_another_thread_too(spark):
    found = []
    thread = threading.Thread(target=lambda: found.append(LanceSparkResource().session.range(2).count()))
    thread.start()
    thread.join()
    assert found == [2]


def test_it_never_exchanges_one_session_for_another(spark, connect):
    with pytest.raises(dg.DagsterInvariantViolationError, match=r"only one kind|only one master"):
        LanceSparkResource(master="spark://elsewhere:7077").get_session()
    with pytest.raises(dg.DagsterInvariantViolationError, match="only one kind"):
        (LanceSparkResource(master="local[2]") if connect else LanceSparkResource(connect=True)).get_session()
    if connect:
        with pytest.raises(dg.DagsterInvariantViolationError, match="elsewhere:1 is asked for"):
            LanceSparkResource(master="sc://elsewhere:1").get_session()


def test_settings_that_would_have_no_effect_are_rejected():
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="python has no effect"):
        LanceSparkResource(master="sc://host:1", python="/usr/bin/python3").get_session()
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="connect starts a server on this machine"):
        LanceSparkResource(master="spark://host:1", connect=True).get_session()


def test_a_client_of_an_early_spark_is_rejected_at_once(monkeypatch):
    monkeypatch.setattr(releases, "installed_spark", lambda: "3.5.9")
    with pytest.raises(UnsupportedError, match=r"^a session of Spark Connect needs Spark 4\.0"):
        LanceSparkResource(master="sc://host:1").get_session()


def test_settings_are_in_no_repr():
    assert "hush" not in repr(LanceSparkResource(config={"spark.secret": "hush"}))


FRESH = """
import os, sys
from lance_core.errors import UnsupportedError
from lance_dagster import LanceSparkResource
from pyspark_lance import releases
assert "pyspark" not in sys.modules
os.environ.pop("PYSPARK_PYTHON", None)
resource = LanceSparkResource(master="local[1]", config={"spark.ui.enabled": "false"})
spark = resource.session
def python(batches):
    import sys, pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"exe": [sys.executable]})
found = spark.range(0, 1, 1, 1).mapInArrow(python, "exe string").collect()[0].exe
assert found == sys.executable, found
assert resource.session is LanceSparkResource().session
spark.stop()
"""


@pytest.mark.slow
def test_it_starts_a_session_whose_executors_run_this_python(connect):
    if connect:
        pytest.skip("a process of its own, once is enough")
    done = processes.run([sys.executable, "-c", FRESH])
    assert done.returncode == 0, done.stderr[-3000:]


def test_its_configuration_reaches_a_session_that_is_there(spark, caplog):
    key, before = "spark.sql.shuffle.partitions", spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert LanceSparkResource(config={key: "7", "spark.executor.memory": "secret"}).session is spark
        assert spark.conf.get(key) == "7"
    finally:
        spark.conf.set(key, before)
    found = [one for one in caplog.messages if "cannot be set any more" in one]
    assert len(found) == 1
    assert "LanceSparkResource: spark.executor.memory cannot" in found[0]
    assert "secret" not in found[0]
