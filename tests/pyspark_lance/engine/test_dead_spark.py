"""A JVM that dies in mid-write: an error of ours with its cause, an unchanged table, and no files left behind."""

import os
import sys
from pathlib import Path

import pytest

import lance_core
from lance_core.errors import InvalidInputError
from pyspark_lance.engine.errors import SparkLostError, find_lost_spark_error
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
