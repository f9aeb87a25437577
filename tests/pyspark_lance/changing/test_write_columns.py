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


@pytest.mark.variants(2)
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
    with pytest.raises(DatasetNotFoundError, match="write_columns needs a table with rows"):
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


def blob_table(uri):
    limits = {"inline_size_threshold": 10, "dedicated_size_threshold": 1000}
    schema = pa.schema([pa.field("id", pa.int64()), lance_core.blob_field("b", **limits)])
    payloads = [b"small", b"m" * 500, b"l" * 5000, None]
    lance_core.write_dataset(pa.table([range(4), lance_core.blob_array(payloads)], schema=schema), uri)
    return dict(enumerate(payloads))


def blobs_of(lance, uri, name="b"):
    rows = lance.dataset(uri).to_table(["id", name], blob_handling="all_binary").to_pylist()
    return {row["id"]: row[name] for row in rows}


@pytest.mark.parametrize("missing", ["keep", "null"])
@pytest.mark.parametrize("on", ["id", "_rowaddr"])
def test_blobs_from_bytes(spark, lance, uri, missing, on):
    """As by `lance_core`'s `write_columns`: payloads are placed by their size, other rows keep theirs."""
    before = blob_table(uri)
    new = {0: b"n" * 5000, 3: b"x"}
    rows = [(i, bytearray(b)) for i, b in new.items()]
    frame = spark.createDataFrame(rows, f"{on} long, b binary")
    done = pyspark_lance.write_columns(frame, uri, on=on, missing=missing)
    assert done.rows_updated == (2 if missing == "keep" else 4)
    assert blobs_of(lance, uri) == {i: new.get(i, before[i] if missing == "keep" else None) for i in before}
    kinds = [row["b"] and row["b"]["kind"] for row in lance.dataset(uri).to_table().to_pylist()]
    assert kinds == ([2, 1, 2, 0] if missing == "keep" else [2, None, None, 0])


def test_blobs_by_uri(spark, lance, uri, tmp_path):
    before = blob_table(uri)
    photo = tmp_path / "photo.bin"
    photo.write_bytes(b"0123456789")
    frame = spark.createDataFrame([(1, photo.as_uri()), (2, None)], "id long, b string")
    files = sorted((Path(uri) / "data").rglob("*"))
    with pytest.raises(InvalidInputError, match="outside of the dataset's base paths"):
        pyspark_lance.write_columns(frame, uri, on="id", missing="keep")
    assert lance_core.dataset(uri).version == 1
    assert sorted((Path(uri) / "data").rglob("*")) == files
    allowed = {"on": "id", "missing": "keep", "allow_external_blob_outside_bases": True}
    pyspark_lance.write_columns(frame, uri, **allowed)
    assert blobs_of(lance, uri) == {**before, 1: b"0123456789", 2: None}
    assert lance.dataset(uri).to_table().to_pylist()[1]["b"]["kind"] == 3
    # What is kept is not asked again, and a base path needs no permission.
    lance_core.dataset(uri).add_bases([lance_core.DatasetBasePath(str(tmp_path), "photos")])
    pyspark_lance.write_columns(
        spark.createDataFrame([(3, photo.as_uri())], "id long, b string"), uri, on="id", missing="keep"
    )
    assert blobs_of(lance, uri) == {**before, 1: b"0123456789", 2: None, 3: b"0123456789"}


def test_a_new_column_of_blobs(spark, lance, uri):
    blob_table(uri)
    marked = {"lance-encoding:blob": "true"}
    frame = spark.createDataFrame([(1, bytearray(b"n" * 70_000))], "id long, c binary").withMetadata("c", marked)
    pyspark_lance.write_columns(frame, uri, on="id")
    assert blobs_of(lance, uri, "c") == {0: None, 1: b"n" * 70_000, 2: None, 3: None}
    (found,) = lance.dataset(uri).take_blobs("c", indices=[1])
    assert found.read() == b"n" * 70_000
