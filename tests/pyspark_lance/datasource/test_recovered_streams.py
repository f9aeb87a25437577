"""Streams of Spark's own that lose the note of a batch, their source, or its columns; every row is there once."""

import pathlib
from datetime import timedelta

import pyarrow as pa
import pytest

import lance_core

pytestmark = pytest.mark.slow


def run(stream, uri, checkpoint, name=None, **options):
    writer = stream.writeStream.format("lance").option("checkpointLocation", str(checkpoint)).options(**options)
    writer = writer if name is None else writer.queryName(name)
    query = writer.trigger(availableNow=True).start(uri)
    assert query.awaitTermination(1000)


def forget(checkpoint):
    """Spark was killed between our commit and its note of it."""
    notes = sorted((pathlib.Path(checkpoint) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    notes[-1].unlink()
    for path in (pathlib.Path(checkpoint) / "commits").glob(f".{notes[-1].name}.crc"):
        path.unlink()


def append(lance, uri, *ids, **columns):
    lance.write_dataset(pa.table({"id": pa.array(ids, pa.int64()), **columns}), uri, mode="append")


def ids(lance, uri):
    return sorted(lance.dataset(uri).to_table().column("id").to_pylist())


def tidy(lance, uri):
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)


def test_repeated_batches_of_two_named_queries_into_one_sink(spark, uri, tmp_path, lance):
    first, second = str(tmp_path / "first.lance"), str(tmp_path / "second.lance")
    for number in range(3):
        append(lance, first, number)
        append(lance, second, 10 + number)
        for name, source in (("one", first), ("two", second)):
            check = tmp_path / name
            run(spark.readStream.format("lance").load(source), uri, check, name)
            forget(check)
            append(lance, uri, 100 + number)
            tidy(lance, uri)
            run(spark.readStream.format("lance").load(source), uri, check, name)
    rows = ids(lance, uri)
    assert [one for one in rows if one < 100] == [0, 1, 2, 10, 11, 12]
    assert len(rows) == 12


def test_a_source_that_was_made_again_and_one_that_gets_a_column(spark, uri, tmp_path, lance):
    copy, check = f"{uri}-copy", tmp_path / "check"
    append(lance, uri, 1)
    load = spark.readStream.format("lance")
    run(load.load(uri), copy, check)
    frame = load.load(uri)
    append(lance, uri, 2)
    lance.dataset(uri).add_columns({"b": "id * 10"})
    append(lance, uri, 3, b=pa.array([31], pa.int64()))
    with pytest.raises(Exception, match="added b"):
        run(frame, copy, check)
    assert ids(lance, copy) == [1]
    for _ in range(2):  # Spark 4.1 ends once it has repeated the batch that failed
        run(load.load(uri), copy, check, mergeSchema="true")
    assert lance.dataset(copy).to_table().sort_by("id").to_pylist() == [
        {"id": 1, "b": None},
        {"id": 2, "b": 20},
        {"id": 3, "b": 31},
    ]
    lance_core.LanceDataset.drop(uri)
    for number in range(9):
        append(lance, uri, 50 + number, b=pa.array([number], pa.int64()))
    with pytest.raises(Exception, match=r"dropped and made again.*option checkpointLocation"):
        run(load.load(uri), copy, check)
    assert ids(lance, copy) == [1, 2, 3]
    run(load.load(uri), copy, tmp_path / "again")
    assert ids(lance, copy) == [1, 2, 3, *range(50, 59)]
