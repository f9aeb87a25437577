"""`pyspark_lance.write_columns`: columns of rows that a table has, written by executors."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import DatasetNotFoundError, InvalidInputError, SchemaError

WIDTH = 64


def table_of(uri, fragments=4, rows=100, **options):
    ids = np.arange(fragments * rows)
    table = pa.table(
        {
            "id": ids,
            "day": pa.array(["mon" if i % rows < rows // 2 else "tue" for i in ids]),
            "blob": pa.array([b"x" * 4000] * len(ids), pa.large_binary()),
        }
    )
    return lance_core.write_dataset(table, uri, max_rows_per_file=rows, **options)


def vectors_of(spark, uri, columns=("id",), where=None):
    from pyspark.sql import functions

    frame = pyspark_lance.read(spark, uri, columns=["id", *[c for c in columns if c != "id"]], filter=where)
    vector = functions.array(*[functions.col("id") + functions.lit(float(k)) for k in range(WIDTH)])
    return frame.withColumn("vector", vector.cast("array<float>"))


def expected(i):
    return [float(i + k) for k in range(WIDTH)]


@pytest.mark.parametrize("on", ["id", "_rowaddr", "_rowid"])
@pytest.mark.parametrize("stable", [False, True])
def test_cells_of_a_scope_in_one_commit(spark, lance, uri, on, stable):
    before = table_of(uri, enable_stable_row_ids=stable)
    frame = vectors_of(spark, uri, (on,), "day = 'mon'").orderBy("vector")
    if on != "id":
        frame = frame.drop("id")
    done = pyspark_lance.write_columns(
        frame, uri, on=on, where="day = 'mon'", vector_columns={"vector": WIDTH}, commit_message="hello"
    )
    assert (done.version, done.rows_updated, done.files, done.columns_added) == (2, 200, 4, ("vector",))
    column = 400 * WIDTH * 4
    assert done.bytes_written == pytest.approx(column, rel=0.1)
    written = lance_core.dataset(uri).total_bytes - before.total_bytes
    assert written == pytest.approx(column, rel=0.1)
    read = lance.dataset(uri).to_table(columns=["id", "day", "vector"]).to_pylist()
    assert all(row["vector"] == (expected(row["id"]) if row["day"] == "mon" else None) for row in read)
    assert len(read) == 400
    assert lance_core.dataset(uri).schema.field("vector").type == pa.list_(pa.float32(), WIDTH)


@pytest.mark.parametrize("missing", ["null", "keep", "error"])
def test_rows_that_the_frame_lacks(spark, uri, missing):
    table_of(uri, fragments=3, rows=10)
    pyspark_lance.write_columns(spark.range(30).selectExpr("id", "id * 2 as n"), uri, on="id")
    few = spark.range(5, 8).selectExpr("id", "-id as n")
    if missing == "error":
        with pytest.raises(InvalidInputError, match="lacks 7 of 10 rows"):
            pyspark_lance.write_columns(few, uri, on="id", missing=missing)
        assert lance_core.dataset(uri).version == 2
    else:
        pyspark_lance.write_columns(few, uri, on="id", missing=missing)
        other = {"keep": lambda i: i * 2, "null": lambda _: None}[missing]
        rows = lance_core.dataset(uri).to_table(["id", "n"]).to_pylist()
        assert all(row["n"] == (-row["id"] if 5 <= row["id"] < 8 else other(row["id"])) for row in rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 1), (999, 2)], "the key id = 999 names no row of the scope"),
        ([(1, 1), (None, 2)], "the key id = None names no row"),
        ([(1, 1), (6, 2)], "the key id = 6 names no row of the scope"),
        ([(1, 1), (2, 2), (1, 3)], "the key id = 1 comes twice"),
    ],
)
def test_what_changes_nothing(spark, uri, rows, message):
    table = table_of(uri, fragments=3, rows=10)
    files = table.total_bytes
    with pytest.raises(InvalidInputError, match=message):
        pyspark_lance.write_columns(spark.createDataFrame(rows, "id long, n long"), uri, on="id", where="day = 'mon'")
    assert lance_core.dataset(uri).version == 1
    assert len(list((Path(uri) / "data").iterdir())) == 3
    assert lance_core.dataset(uri).total_bytes == files


def test_a_key_that_the_table_has_twice(spark, uri):
    lance_core.write_dataset(pa.table({"id": [1, 1, 2]}), uri)
    with pytest.raises(InvalidInputError, match="the key id = 1 names several rows"):
        pyspark_lance.write_columns(spark.createDataFrame([(1, 2)], "id long, n long"), uri, on="id")
    done = pyspark_lance.write_columns(spark.createDataFrame([(2, 2)], "id long, n long"), uri, on="id")
    assert done.rows_updated == 1


def test_what_does_not_fit(spark, uri):
    frame = spark.createDataFrame([(1, 2)], "id long, n long")
    with pytest.raises(DatasetNotFoundError, match="columns are set of rows"):
        pyspark_lance.write_columns(frame, uri, on="id")
    table_of(uri, fragments=1, rows=10)
    with pytest.raises(SchemaError, match="no column 'key'"):
        pyspark_lance.write_columns(frame, uri, on="key")
    with pytest.raises(SchemaError, match="the DataFrame has no column 'day'"):
        pyspark_lance.write_columns(frame, uri, on=["id", "day"])
    with pytest.raises(InvalidInputError, match="nothing to write"):
        pyspark_lance.write_columns(frame.select("id"), uri, on="id")
    with pytest.raises(InvalidInputError, match="names rows by itself"):
        pyspark_lance.write_columns(frame, uri, on=["id", "_rowid"])
    with pytest.raises(InvalidInputError, match="missing is one of"):
        pyspark_lance.write_columns(frame, uri, on="id", missing="drop")
    pyspark_lance.write_columns(frame, uri, on="id")
    with pytest.raises(SchemaError, match="column 'n'"):
        pyspark_lance.write_columns(frame.selectExpr("id", "cast(n as string) n"), uri, on="id")
    far = spark.createDataFrame([(1 << 40, 2)], "_rowaddr long, n long")
    with pytest.raises(InvalidInputError, match="names no row of the scope"):
        pyspark_lance.write_columns(far, uri, on="_rowaddr")


def test_an_append_meanwhile_stays(spark, uri):
    table_of(uri, fragments=2, rows=10)
    version = lance_core.dataset(uri).version
    lance_core.write_dataset(lance_core.dataset(uri).to_table().slice(0, 3), uri, mode="append")
    frame = spark.range(20).selectExpr("id", "id as n")
    done = pyspark_lance.write_columns(frame, uri, on="id", read_version=version)
    rows = lance_core.dataset(uri).to_table(["id", "n"]).to_pylist()
    assert done.version == version + 2
    assert [row["n"] for row in rows] == [*range(20), None, None, None]
