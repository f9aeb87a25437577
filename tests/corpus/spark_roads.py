"""The roads through Spark: its `format("lance")` in both directions, and its changes of tables that pylance wrote.

The oracle is Spark with Parquet: a file that it does not read from Parquet is not written by it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

import lance_core
import pyspark_lance
from lance_core.errors import LanceError
from tests.corpus.roads import filters
from tests.corpus.sample import KEY, Sample, with_key
from tests.corpus.values import different_rows, different_values, named_error, plain_rows
from tests.machines.spark.session import machine_session

__all__ = ["SPARK_ROADS", "parquet_of", "session"]

MOST_CONDITIONS = 2


def session() -> Any:
    """The session of this process; a new one if there is none."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or machine_session()


def parquet_of(sample: Sample, rows: pa.Table, folder: Path) -> Path | None:
    """The file as a Parquet file; None if Parquet has no such types."""
    folder.mkdir(parents=True)
    if sample.form == "parquet":
        return sample.write(folder)
    try:
        pq.write_table(rows, folder / "file.parquet")
    except (pa.ArrowException, ValueError):
        return None
    return folder / "file.parquet"


def _frame(source: Path | None) -> tuple[Any, pa.Table] | None:
    """A Parquet file as Spark reads it, and its rows; None if Spark does not read it."""
    if source is None:
        return None
    try:
        frame = session().read.parquet(str(source))
        return frame, frame.toArrow()
    except Exception:  # noqa: BLE001 - the oracle has no answer
        return None


def _rejection(error: Exception, folder: Path, rows: pa.Table) -> str | None:
    """What is wrong with an error of a write: it is of another tree, leaves files, or this library writes these rows."""
    if named_error(error) is None:
        return f"an error of another library: {type(error).__name__}: {str(error)[:300]}"
    if any(path.is_file() for path in folder.rglob("data/*")):
        return f"files are left after {str(error)[:300]}"
    try:
        lance_core.write_dataset(rows, folder / "plain")
    except LanceError:
        return None
    return f"lance_core can, but: {str(error)[:300]}"


def spark_write(sample: Sample, rows: pa.Table, folder: Path) -> str | None:
    """Write a Parquet file that Spark reads to Lance; Spark and pylance read the same."""
    answer = _frame(parquet_of(sample, rows, folder / "source"))
    if answer is None or not answer[1].num_columns:
        return None
    frame, expected = answer
    uri = folder / "table"
    try:
        frame.write.format("lance").mode("append").save(str(uri))
    except Exception as error:  # noqa: BLE001 - judged
        return _rejection(error, folder, expected)
    what = different_values(lance.dataset(str(uri)).to_table(), expected)
    if what is not None:
        return f"pylance reads: {what}"
    stored = session().read.format("lance").load(str(uri))
    kinds = [[field.dataType.simpleString() for field in one.schema] for one in (stored, frame)]
    if kinds[0] != kinds[1]:
        return f"Spark's types are {kinds[0]}, not {kinds[1]}"
    what = different_values(stored.toArrow(), expected)
    return None if what is None else f"Spark reads: {what}"


def _table(sample: Sample, rows: pa.Table, folder: Path) -> tuple[Path, str, pa.Table] | None:
    """A table of pylance with the rows, its key, and its rows; None if pylance does not write it."""
    if sample.form == "lance":
        folder.mkdir(parents=True)
        return sample.write(folder), "id", rows
    try:
        return Path(lance.write_dataset(with_key(rows), str(folder / "table")).uri), KEY, with_key(rows)
    except BaseException:  # noqa: BLE001 - it panics with errors that are no Exception
        return None


def spark_read(sample: Sample, rows: pa.Table, folder: Path) -> str | None:
    """Read what pylance wrote, all of it and by conditions, as Spark reads it from Parquet."""
    table = _table(sample, rows, folder / "lance")
    if table is None:
        return None
    uri, _, expected = table
    parquet = Sample(name=sample.name, write=sample.write, read=sample.read)
    oracle = _frame(parquet_of(parquet, expected, folder / "source"))
    try:
        frame = session().read.format("lance").load(str(uri))
        stored = frame.toArrow()
    except Exception as error:  # noqa: BLE001 - judged
        name = named_error(error)
        if name is None and oracle is not None:
            return f"an error of another library: {type(error).__name__}: {str(error)[:300]}"
        return None if oracle is None else f"Spark reads it from Parquet, but: {str(error)[:300]}"
    what = different_values(stored, expected if oracle is None else oracle[1])
    if what is not None or oracle is None:
        return what
    for condition in list(filters(expected, key=table[1]))[:MOST_CONDITIONS]:
        try:
            count = oracle[0].where(condition).count()
        except Exception:  # noqa: BLE001 - Spark has no such comparison
            continue
        if frame.where(condition).count() != count:
            return f"{condition}: {frame.where(condition).count()} rows, {count} of Parquet"
    return None


def spark_change(sample: Sample, rows: pa.Table, folder: Path) -> str | None:
    """Delete, update and merge rows of what pylance wrote."""
    table = _table(sample, rows, folder / "lance")
    if table is None:
        return None
    uri, key, stored = str(table[0]), table[1], table[2]
    spark = session()
    try:
        pyspark_lance.read(spark, uri).toArrow()
    except Exception:  # noqa: BLE001 - the road `Spark, read` judges it
        return None
    at = stored.column_names.index(key)
    others = [row[:at] + row[at + 1 :] for row in plain_rows(stored)]
    expected = [(number, rest) for number, rest in zip(stored[key].to_pylist(), others, strict=True) if number != 1]
    expected = [(number + 1000 if number % 2 == 0 else number, rest) for number, rest in expected]
    expected += [(number + 5000, rest) for number, rest in expected if number % 2]
    try:
        pyspark_lance.delete(uri, f"{key} = 1", spark=spark)
        pyspark_lance.update(uri, {key: f"{key} + 1000"}, f"{key} % 2 = 0", spark=spark)
        frame = pyspark_lance.read(spark, uri)
        pyspark_lance.merge(frame.withColumn(key, frame[key] + (frame[key] % 2) * 5000), uri, on=key)
    except Exception as error:  # noqa: BLE001 - judged
        return f"Spark reads it, but: {type(error).__name__}: {str(error)[:300]}"
    changed = lance.dataset(uri).to_table()
    rest = plain_rows(changed.drop_columns([key]))
    return different_rows(list(zip(changed[key].to_pylist(), rest, strict=True)), expected)


SPARK_ROADS: dict[str, Callable[[Sample, pa.Table, Path], str | None]] = {
    "Spark, write": spark_write,
    "Spark, read": spark_read,
    "Spark, change": spark_change,
}
