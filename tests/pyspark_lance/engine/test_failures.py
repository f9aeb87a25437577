"""Errors of tasks and data sources as the user sees them: our class and message, without a traceback of the worker."""

import pathlib

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core import Equals, Slice, Slices
from lance_core.errors import CorruptFileError, InvalidInputError
from pyspark_lance.engine.errors import plain_errors, unwrap_lance_error

ACCOUNT = """An error occurred while calling o53.withNewExecutionId.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
lance_core.errors.{}: data/a.lance: the file
has 2 bytes

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""


def test_the_error_of_a_task_is_found_in_sparks_report():
    found = unwrap_lance_error(RuntimeError(ACCOUNT.format("CorruptFileError")))
    assert type(found) is CorruptFileError
    assert str(found) == "data/a.lance: the file\nhas 2 bytes"
    for other in (RuntimeError(ACCOUNT.format("NoSuchError")), RuntimeError("else"), KeyboardInterrupt()):
        assert unwrap_lance_error(other) is other


def test_the_traceback_is_hidden_in_workers_only(monkeypatch, caplog):
    monkeypatch.setattr("os.environ", {})
    with pytest.raises(CorruptFileError), plain_errors():
        raise CorruptFileError("x")
    assert not caplog.records
    monkeypatch.setattr("os.environ", workers := {"PYTHON_WORKER_FACTORY_SECRET": "s"})
    with pytest.raises(CorruptFileError), plain_errors():
        raise CorruptFileError("x")
    assert workers["SPARK_HIDE_TRACEBACK"] == "1"
    (record,) = caplog.records
    assert record.exc_info[0] is CorruptFileError  # with its traceback, whatever format handlers have


def first_lines(error, count=3):
    return "\n".join(str(error.value).strip().splitlines()[:count])


def test_no_traceback_stands_before_the_error(spark, uri, tmp_path):
    pyspark_lance.write(spark.range(3), uri)
    frame = pyspark_lance.read(spark, uri)
    other = spark.read.format("lance").load(uri)
    for path in pathlib.Path(uri, "data").iterdir():
        path.write_bytes(b"xx")
    with pytest.raises(CorruptFileError, match=r"\Adata/.*the file has 2 bytes"):
        pyspark_lance.write(frame, str(tmp_path / "copy"))
    assert not list(tmp_path.glob("copy/data/*"))
    for broken in (frame, other):
        with pytest.raises(Exception, match="the file has 2 bytes") as caught:
            broken.collect()
        assert "lance_core.errors.CorruptFileError: data/" in first_lines(caught)
        assert "Traceback" not in first_lines(caught)


def test_no_traceback_stands_before_an_error_of_the_data_source(spark, uri):
    lance_core.write_dataset(pa.table({"id": [1]}), uri)
    texts = spark.sql("select 'a' as id")
    writes = spark.range(9).write.format("lance").mode("overwrite").option("replaceWhere", "id < 5")
    cases = {
        "DatasetNotFoundError": lambda: spark.read.format("lance").load(uri + "x").collect(),
        "SchemaError: column 'id'": lambda: texts.write.format("lance").mode("append").save(uri),
        "InvalidInputError: replaceWhere": lambda: writes.save(uri),
    }
    for text, call in cases.items():
        with pytest.raises(Exception, match=text) as caught:
            call()
        assert text in first_lines(caught, 1)
    assert lance_core.dataset(uri).version == 1


def test_rows_outside_of_slices_are_named_with_the_remedy(spark, uri):
    slices = Slices(Slice(name=f"n{number}", conditions={"id": Equals(number)}) for number in (1, 2))
    frame = spark.range(0, 9, 1, 1)
    with pytest.raises(InvalidInputError) as caught:
        pyspark_lance.write(frame, uri, slices=slices, cluster=False)
    assert str(caught.value) == (
        f"table {uri}: at least 7 rows lie in none of the 2 slices that are written ('n1', 'n2'): they have"
        " id = 0; id = 3; id = 4; id = 5; id = 6; ... Nothing was written."
        " Filter them out, or write them as well with out_of_partition='allow'."
    )


def test_errors_that_are_expected_leave_spark_its_loggers(monkeypatch):
    """A logger of another class makes Spark raise a TypeError in place of each later error."""
    import logging

    from pyspark.logger import PySparkLogger

    from pyspark_lance.engine.errors import without_error_log

    monkeypatch.delitem(logging.Logger.manager.loggerDict, "SQLQueryContextLogger", raising=False)
    with without_error_log():
        assert logging.getLogger("SQLQueryContextLogger").disabled
    found = logging.getLogger("SQLQueryContextLogger")
    assert isinstance(found, PySparkLogger)
    assert not found.disabled
