"""`LanceSparkResource` on a standalone cluster: master and worker in processes of their own."""

import importlib.util
import re
import sys
import time
from pathlib import Path

import pytest

import lance_core
from tests import processes

PROGRAM = """
import sys
import dagster as dg
from pyspark.sql import DataFrame
from lance_dagster import LanceIOManager, LanceSparkResource

master, root, other = sys.argv[1:]
config = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
          "spark.executor.memory": "512m", "spark.cores.max": "1"}
spark = LanceSparkResource(master=master, config=config)


def python(batches):
    import sys, pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"executable": [sys.executable], "n": [1]})


@dg.asset
def numbers(spark: LanceSparkResource) -> DataFrame:
    return spark.session.range(1).mapInArrow(python, "executable string, n bigint")


@dg.asset
def again(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("executable", "n + 1 as n")


result = dg.materialize([numbers, again], resources={
    "spark": spark, "io_manager": LanceIOManager(root_uri=root, spark=spark)})
assert result.success
assert LanceSparkResource().session.sparkContext.master == master
try:
    LanceSparkResource(master=other).session
except dg.DagsterInvariantViolationError as error:
    assert "one Spark only" in str(error), error
else:
    raise AssertionError("a second Spark")
spark.session.stop()
"""


def said(log, pattern, process):
    """What a process says about itself in its log."""
    for _ in range(600):
        found = re.search(pattern, log.read_text()) if log.exists() else None
        if found is not None:
            return found
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(f"{pattern} is not in {log.read_text()}")


@pytest.mark.slow
def test_executors_of_a_cluster_run_this_python_and_one_commit_is_made(tmp_path, connect):
    if connect:
        pytest.skip("a process of its own, once is enough")
    spark_class = Path(importlib.util.find_spec("pyspark").origin).parent / "bin" / "spark-class"
    log, worker_log = tmp_path / "master.log", tmp_path / "worker.log"
    own = ["--host", "127.0.0.1", "--webui-port", "0"]
    with processes.held_port() as port:
        command = [spark_class, "org.apache.spark.deploy.master.Master", *own, "--port", port]
        with processes.running(command, log=log) as master:
            url = said(log, r"Starting Spark master at (spark://\S+)", master)[1]
            command = [spark_class, "org.apache.spark.deploy.worker.Worker", *own, "--cores", "1", "--memory", "1g"]
            command += ["--work-dir", tmp_path / "work", url]
            with processes.running(command, log=worker_log) as worker:
                said(worker_log, "Successfully registered with master", worker)
                program = [sys.executable, "-c", PROGRAM, url, tmp_path / "lake", "local[1]"]
                processes.run(program, check=True)
    table = lance_core.dataset(str(tmp_path / "lake" / "public" / "again.lance"))
    assert table.version == 1
    assert table.to_table().to_pylist() == [{"executable": sys.executable, "n": 2}]
