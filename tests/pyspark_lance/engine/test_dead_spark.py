"""A JVM or a worker that dies in mid-write: an error of ours, an unchanged table, and no files left behind."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError
from pyspark_lance.engine.errors import SparkLostError, find_lost_spark_error, unwrap_lance_error
from tests import processes

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
import pyspark_lance
from pyspark_lance.engine.errors import SparkLostError

uri = sys.argv[1]
spark = pyspark_lance.local_session("local[2]", config={"spark.ui.enabled": "false"})
java = spark.sparkContext._gateway.proc.pid  # the script has become Java
pyspark_lance.write(spark.range(10), uri)
started = Path(uri + "-started")

def slow(batches):
    started.touch()
    time.sleep(600)
    yield from batches

def kill():
    while not started.exists():
        time.sleep(0.05)
    os.kill(java, signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
try:
    pyspark_lance.write(spark.range(10).mapInArrow(slow, "id long"), uri)
except SparkLostError as error:
    assert error.__cause__ is not None
    print("GONE", error, flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_java_dies_during_a_write(tmp_path):
    uri = str(tmp_path / "t.lance")
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = processes.run([sys.executable, "-c", PROGRAM, uri], env=env)
    assert "GONE Spark went away while its job ran" in done.stdout, done.stdout + done.stderr[-3000:]
    assert lance_core.dataset(uri).version == 1
    used = {file.path for fragment in lance_core.dataset(uri).get_fragments() for file in fragment.metadata.files}
    assert {path.name for path in Path(uri, "data").iterdir()} == used


def test_errors_that_report_that_spark_went_away():
    class Py4JNetworkError(Exception):
        pass

    class Py4JError(Exception):
        pass

    lost = Py4JNetworkError("x"), ConnectionRefusedError(111, "Connection refused"), Py4JError("Answer from Java side is empty")  # fmt: skip
    for error in lost:
        found = find_lost_spark_error(error, object())
        assert isinstance(found, SparkLostError)
        assert str(error).splitlines()[0] in str(found)
    for error in (RuntimeError("a user's function: Connection refused"), InvalidInputError("option UNAVAILABLE")):
        assert find_lost_spark_error(error, object()) is None


@contextlib.contextmanager
def killed_workers(spark):
    """Kill each Python worker of a session as soon as it starts."""
    over = threading.Event()

    def children(process):
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                yield from map(int, (thread / "children").read_text().split())

    def kill():
        java = spark.sparkContext._gateway.proc.pid
        while not over.wait(0.002):
            for worker in [worker for daemon in children(java) for worker in children(daemon)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def identity(batches):
    yield from batches


ROWS = pa.table({"id": pa.array(range(100)), "x": pa.array([0] * 100)})


def calls(spark, rows, uri):
    """A call of each entrance."""
    return {
        "write": lambda: pyspark_lance.write(rows, uri),
        "overwrite": lambda: pyspark_lance.write(rows, uri, mode="overwrite"),
        "merge": lambda: pyspark_lance.merge(rows, uri, on="id"),
        "merge_delete": lambda: pyspark_lance.merge(rows, uri, on="id", when_not_matched_by_source="delete"),
        "update": lambda: pyspark_lance.update(uri, {"x": "x + 1"}, "id < 5", spark=spark),
        "delete": lambda: pyspark_lance.delete(uri, "id < 5", spark=spark),
        "delete_keys": lambda: pyspark_lance.delete(uri, rows, on="id"),
        "compact": lambda: pyspark_lance.compact(spark, uri),
        "clone": lambda: pyspark_lance.deep_clone(spark, uri, uri + "-clone"),
        "index": lambda: pyspark_lance.create_scalar_index(spark, uri, "id", "BTREE"),
        "sql": lambda: pyspark_lance.sql(spark, f"UPDATE lance.`{uri}` SET x = 2 WHERE id < 5"),
    }


@pytest.mark.variants(3)
@pytest.mark.parametrize("entrance", calls(None, None, ""))
def test_workers_that_are_killed(entrance, spark, uri):
    for part in (ROWS.slice(0, 50), ROWS.slice(50)):
        lance_core.write_dataset(part, uri, mode="append")
    rows = spark.range(3).selectExpr("id", "7L as x").mapInArrow(identity, "id long, x long")
    with (
        killed_workers(spark),
        pytest.raises(
            SparkLostError, match="a Python worker of Spark ended while its job ran: it was killed"
        ) as caught,
    ):
        calls(spark, rows, uri)[entrance]()
    assert "\tat " not in str(caught.value)
    table = lance_core.dataset(uri)
    assert table.to_table().equals(ROWS)
    used = {file.path for fragment in table.get_fragments() for file in fragment.metadata.files}
    assert {path.name for path in Path(uri, "data").iterdir()} == used
    calls(spark, rows, uri)[entrance]()


REPORT = "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 failed 1 times, most recent failure: "
TASK = "Lost task 1.0 in stage 2.0 (TID 5) (192.0.2.2 executor driver): "
BROKEN = "java.net.SocketException: Connection reset\n\tat java.base/sun.nio.ch.NioSocketImpl.implRead(NioSocketImpl.java:328)\n\tat {}\n"
PYTHON = "org.apache.spark.sql.execution.python.PythonArrowOutput$$anon$1.read(PythonArrowOutput.scala:105)"


def test_reports_of_what_was_lost():
    # Spark can destroy the worker of a task that was killed after the next task has got it (SPARK-54217).
    closed = "java.net.SocketException: Socket is closed\n\tat java.base/java.net.Socket.getInputStream(Socket.java:927)\n\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:209)\n"
    executor = "Lost task 0.3 in stage 1.0 (TID 7) (host executor 4): ExecutorLostFailure (executor 4 exited)"
    lost = {TASK + BROKEN.format(PYTHON): "a Python worker", TASK + closed: "a Python worker", executor: "an executor"}
    for report, what in lost.items():
        found = unwrap_lance_error(RuntimeError(REPORT + report))
        assert type(found) is SparkLostError
        assert str(found).startswith(f"{what} of Spark ended")
    raised = "org.apache.spark.api.python.PythonException: Traceback\nValueError: SparkException: Python worker exited unexpectedly"
    for report in (TASK + BROKEN.format("org.apache.hadoop.fs.s3a.S3AInputStream.read(S3A.java:1)"), TASK + raised):
        other = RuntimeError(REPORT + report)
        assert unwrap_lance_error(other) is other
