"""The length of strings that a frame reads: what is sampled, and what batches are made of it."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from pyspark_lance.engine import partitions, row_samples
from pyspark_lance.engine.partitions import rows_of_size
from pyspark_lance.engine.row_samples import string_bytes_read

LONG = 300_000


@pytest.fixture(scope="module")
def files(spark, tmp_path_factory):
    """Rows with long strings, and others with short ones, in parquet."""
    folder = tmp_path_factory.mktemp("rows")
    long = f"concat(id, repeat('x', {LONG})) as body"
    spark.range(0, 200, 1, 4).selectExpr("id", long, "'short' as name").write.parquet(f"{folder}/long")
    spark.range(0, 200, 1, 4).selectExpr("id", "'abc' as note").write.parquet(f"{folder}/short")
    return folder


def test_the_longest_strings_of_all_relations_count(spark, files):
    long, short = spark.read.parquet(f"{files}/long"), spark.read.parquet(f"{files}/short")
    assert string_bytes_read(long) > LONG
    assert string_bytes_read(long.join(short, "id").where("id % 3 = 0").groupBy("note").agg({"body": "max"})) > LONG
    assert string_bytes_read(long.select("id", "name")) < 100  # the long column is not read
    assert string_bytes_read(short) < 100
    assert string_bytes_read(spark.range(5)) is None
    kept = long.where("id < 100").persist()
    try:
        assert string_bytes_read(kept) is None  # its first rows may need all that comes before
        kept.count()
        assert string_bytes_read(kept) > LONG
    finally:
        kept.unpersist()


def test_a_few_long_rows_at_the_beginning_do_not_make_batches_small(spark, tmp_path):
    skewed = f"if(id < 5, repeat('x', {LONG}), 'short') as body"
    spark.range(0, 5_000, 1, 1).selectExpr("id", skewed).write.parquet(f"{tmp_path}/skewed")
    found = string_bytes_read(spark.read.parquet(f"{tmp_path}/skewed"))
    assert (found > 5, rows_of_size(2_048, found)) == (True, 2_048)


@pytest.mark.parametrize(("rows_at_once", "jobs"), [(4096, 2), (16, 3)])
def test_what_a_reader_decodes_at_once_is_sampled_at_once(spark, tmp_path, monkeypatch, rows_at_once, jobs):
    skewed = f"if(id < 10, repeat('x', {LONG}), 'short') as body"
    spark.range(0, 5_000, 1, 1).selectExpr("id", skewed).write.parquet(f"{tmp_path}/skewed")
    taken = []
    run_job = row_samples.run_job
    monkeypatch.setattr(row_samples, "run_job", lambda session, take: taken.append(take) or run_job(session, take))
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", str(rows_at_once))
    try:
        found = string_bytes_read(spark.read.parquet(f"{tmp_path}/skewed"))
    finally:
        spark.conf.unset("spark.sql.parquet.columnarReaderBatchSize")
    assert (len(taken), found < 16_000) == (jobs, True)


def test_a_relation_without_rows_counts_nothing(spark, files, tmp_path):
    spark.read.parquet(f"{files}/long").limit(0).write.parquet(f"{tmp_path}/none")
    assert not string_bytes_read(spark.read.parquet(f"{tmp_path}/none"))


@pytest.mark.parametrize(
    ("rows", "row_bytes", "expected"),
    [(2048, None, 2048), (2048, 0, 2048), (2048, 32 << 10, 2048), (2048, 1 << 20, 16), (2048, 1 << 30, 1)],
)
def test_long_rows_make_batches_of_few_rows(rows, row_bytes, expected):
    assert rows_of_size(rows, row_bytes) == expected


def test_long_strings_are_written_in_short_batches(spark, files, tmp_path, monkeypatch):
    taken = []
    of = partitions.ArrowRdd.of
    monkeypatch.setattr(partitions.ArrowRdd, "of", lambda frame, rows: taken.append(rows) or of(frame, rows))
    frame = spark.read.parquet(f"{files}/long")
    pyspark_lance.write(frame, tmp_path / "t.lance")
    (rows,) = taken
    assert 1 <= rows <= (16 << 20) // LONG
    found = lance_core.dataset(tmp_path / "t.lance").to_table().sort_by("id")
    assert found.column("id").to_pylist() == list(range(200))
    assert found.column("body").to_pylist() == [f"{i}{'x' * LONG}" for i in range(200)]
    assert found.schema.field("name").type == pa.string()
