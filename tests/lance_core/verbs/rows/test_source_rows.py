"""Sources of merges that are streams: their rows lie in a file once they are many, and the result is the same."""

import mmap
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.verbs.rows import source_rows
from lance_core.verbs.rows.source_rows import SourceRows

MB = 1 << 20


def rows(ids, seed=1):
    rng = np.random.default_rng(seed)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(len(ids) * 64, dtype=np.float32)), 64)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": [f"k{i % 3}" for i in ids],
            "v": vectors,
            "s": [None if i % 5 == 0 else f"text {i}" for i in ids],
            "d": pa.array([f"{i % 7}" for i in ids]).dictionary_encode(),
            "st": [{"a": i, "b": [str(i)] * (i % 3)} for i in ids],
        }
    )


def stream(table, size=70):
    batches = table.to_batches(max_chunksize=size)
    return pa.RecordBatchReader.from_batches(table.schema, iter(batches))


MERGES = {
    "upsert": lambda m: m.when_matched_update_all().when_not_matched_insert_all(),
    "update": lambda m: m.when_matched_update_all(),
    "update where": lambda m: m.when_matched_update_all("source.id % 2 = 0 AND target.id > 100"),
    "insert": lambda m: m.when_not_matched_insert_all(),
    "replace": lambda m: (
        m.when_matched_update_all().when_not_matched_insert_all().when_not_matched_by_source_delete("id < 900")
    ),
    "delete": lambda m: m.when_matched_delete(),
}


@pytest.fixture
def small_limits(monkeypatch, tmp_path):
    """Streams of a few kilobytes lie in files of this folder, and are taken in small steps."""
    monkeypatch.setattr(source_rows, "SPOOLED_BYTES", 30_000)
    monkeypatch.setattr(source_rows, "STEP_BYTES", 20_000)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    spooled = []
    mapped = source_rows._map_to_disk
    monkeypatch.setattr(source_rows, "_map_to_disk", lambda tables: spooled.append(1) or mapped(tables))
    yield spooled
    assert not list(folder.iterdir())


@pytest.mark.variants(12)
@pytest.mark.parametrize("columns", [None, ["id", "kind", "s", "st"]])
@pytest.mark.parametrize("keys", [["id"], ["id", "kind"]])
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("stable", [False, True])
def test_a_stream_is_merged_as_a_table(tmp_path, small_limits, merge, keys, columns, stable):
    if columns is not None and merge == "replace":
        keys = ["id"]
    source = rows(np.random.default_rng(2).permutation(np.arange(500, 1500)), seed=3)
    source = source.select(columns) if columns is not None else source
    found = []
    for name, given in (("table", source), ("stream", stream(source))):
        made = lance_core.write_dataset(
            rows(range(1000)), tmp_path / name, max_rows_per_file=300, enable_stable_row_ids=stable
        )
        if merge == "update where" and columns is not None:
            made.create_scalar_index("id", "BTREE")
        stats = MERGES[merge](made.merge_insert(keys)).execute(given)
        found.append((stats, made.to_table().sort_by("id").to_pylist(), made.to_table(with_row_id=True).num_rows))
    assert found[0] == found[1]
    assert small_limits == [1]


def test_rows_of_a_merge_do_not_fill_memory(tmp_path, monkeypatch):
    """Of 150 MB no more is in memory than a few steps: the rest is in the file, or in a page that waits."""
    monkeypatch.setattr(source_rows, "SPOOLED_BYTES", 8 * MB)
    ids = np.random.default_rng(4).permutation(60_000)
    seen = []

    def batches():
        for start in range(0, len(ids), 1000):
            items = pa.array(np.random.default_rng(start).random(1000 * 640, dtype=np.float32))
            seen.append(pa.total_allocated_bytes())
            yield pa.record_batch(
                {"id": pa.array(ids[start : start + 1000]), "v": pa.FixedSizeListArray.from_arrays(items, 640)}
            )

    schema = next(batches()).schema
    dataset = lance_core.write_dataset(schema.empty_table(), tmp_path / "t")
    seen.clear()
    write = lance_core.verbs.rows.removal.MovedRows.write

    def noted(*args):
        seen.append(pa.total_allocated_bytes())
        return write(*args)

    monkeypatch.setattr(lance_core.verbs.rows.removal.MovedRows, "write", noted)
    dataset.merge_insert("id").when_not_matched_insert_all().execute(
        pa.RecordBatchReader.from_batches(schema, batches())
    )
    assert dataset.count_rows() == len(ids)
    assert max(seen) - seen[0] < 72 * MB


def test_of_rows_in_a_file_no_arrays_are_kept(small_limits):
    """A thousand columns in many parts would be more arrays than rows are in memory."""
    columns = {f"c{i}": pa.array(np.arange(600)) for i in range(100)}
    table = pa.table(columns)
    found = SourceRows.of(table.schema, table.to_batches(max_chunksize=10), is_stream=True)
    assert small_limits == [1]
    assert isinstance(found._batches, source_rows._Parts)
    assert len(found._batches) > 20
    before = pa.total_allocated_bytes()
    assert found.select(["c7", "c2"]).to_pylist() == table.select(["c7", "c2"]).to_pylist()
    wanted = np.random.default_rng(5).permutation(600)
    assert found.take(wanted).equals(table.take(pa.array(wanted)))
    assert found.take(np.arange(100, 300)).equals(table.slice(100, 200))
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("change", ["order and metadata", "a view"])
def test_rows_in_a_file_are_converted(small_limits, change):
    table = rows(range(400))
    found = SourceRows.of(table.schema, table.to_batches(max_chunksize=50), is_stream=True)
    if change == "a view":
        wanted = table.schema.set(3, pa.field("s", pa.string_view()))
    else:
        wanted = pa.schema([table.schema.field(name).with_metadata({"a": "b"}) for name in ("v", "s", "id", "d")])
    expected = table.select(wanted.names).cast(wanted)
    made = found.converted(wanted, lambda part: part.select(wanted.names).cast(wanted))
    assert made.schema.equals(wanted, check_metadata=True)
    assert made.take(np.arange(400)).equals(expected)
    assert made.select(["s", "id"]).equals(expected.select(["s", "id"]))
    assert found.take(np.arange(400)).equals(table), "the rows themselves are as they were"
    assert small_limits == ([1, 1] if change == "a view" else [1])


def test_many_small_batches_are_put_together():
    table = pa.concat_tables([pa.table({"a": [i]}) for i in range(1000)])
    wanted = np.array([999, 0, 500, 0])
    assert SourceRows(table).take(wanted)["a"].to_pylist() == wanted.tolist()
    assert len(SourceRows(table)._batches) == 1
    assert SourceRows(table.slice(0, 0)).take(wanted[:0]).num_rows == 0
    assert list(SourceRows(table).steps(wanted[:0])) == []


def test_what_cannot_be_merged_shows_before_a_stream_is_read(tmp_path):
    dataset = lance_core.write_dataset(pa.table({"id": [1]}), tmp_path / "t")

    def batches():
        pytest.fail("the stream is read")
        yield

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.string())]), batches())
    with pytest.raises(ValueError, match="should have type"):
        dataset.merge_insert("id").when_matched_update_all().execute(reader)


def test_a_system_whose_files_take_no_advice(small_limits, tmp_path, monkeypatch):
    """Windows has neither `madvise` nor its options."""

    class Mapped(mmap.mmap):
        @property
        def madvise(self):
            raise AttributeError("madvise")

    monkeypatch.setattr(source_rows, "mmap", SimpleNamespace(mmap=Mapped, ACCESS_READ=mmap.ACCESS_READ))
    table = lance_core.write_dataset(rows(range(100)), tmp_path / "t")
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    assert merge.execute(stream(rows(range(50, 400), 2)))["num_inserted_rows"] == 300
