"""A compaction decodes small pages of many files together: the rows are those of decoding them file by file."""

import shutil

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.file import copy
from lance_core.maintenance import compact

ROWS = 500
VALUES = np.random.default_rng(0)


def rows(first: int) -> pa.Table:
    ids = range(first, first + ROWS)
    return pa.table({
        "id": pa.array(ids),
        "number": pa.array(VALUES.integers(0, 1000, ROWS), mask=VALUES.random(ROWS) < 0.1),
        "double": pa.array(VALUES.random(ROWS)),
        "text": pa.array([None if i % 7 == 0 else f"text {i % 50}" * (i % 3) for i in ids]),
        "list": pa.array([None if i % 11 == 0 else list(range(i % 4)) for i in ids]),
        "struct": pa.array([None if i % 13 == 0 else {"a": i, "b": str(i)} for i in ids]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(VALUES.random(ROWS * 8, np.float32)), 8),
        "dictionary": pa.array([f"d{i % 5}" for i in ids]).dictionary_encode(),
        "large": pa.array(VALUES.random(ROWS * 32).reshape(ROWS, 32).tolist(), pa.list_(pa.float64(), 32)),
    })  # fmt: skip


@pytest.fixture(params=["2.1", "2.2"])
def table(tmp_path, request):
    """Twenty small fragments: some with deletions, some before a column is added, of both libraries."""
    uri = tmp_path / "t"
    lance_core.write_dataset(rows(0), uri, data_storage_version=request.param)
    for number in range(1, 20):
        library = lance if number % 4 == 0 else lance_core
        library.write_dataset(rows(number * ROWS), uri, mode="append")
        if number == 9:
            lance_core.dataset(uri).add_columns(pa.field("late", pa.int64()))
        if number == 12:
            lance_core.dataset(uri).add_columns({"computed": "id * 2"})
    lance_core.dataset(uri).delete("id % 500 in (3, 4, 499) and id > 3000 or id between 6000 and 6400")
    return uri


def test_rows_are_those_of_single_files(table, monkeypatch, tmp_path):
    lengths = []
    together = copy._read_together

    def counted(*args):
        array = together(*args)
        lengths.append(None if array is None else len(array))
        return array

    before = lance_core.dataset(table).to_table()
    shutil.copytree(table, tmp_path / "plain")
    monkeypatch.setattr(copy, "_read_together", counted)
    compact(lance_core.dataset(table), {"compaction_mode": "try_binary_copy"})
    assert any(length is not None and length > 4 * ROWS for length in lengths)
    monkeypatch.setattr(copy, "_read_together", lambda *_: None)
    compact(lance_core.dataset(tmp_path / "plain"), {"compaction_mode": "try_binary_copy"})
    for uri in (table, tmp_path / "plain"):
        assert lance_core.dataset(uri).version == lance_core.dataset(table).version
        dataset = lance_core.dataset(uri)
        assert len(dataset.get_fragments()) == 1
        for library in (lance_core, lance):
            assert library.dataset(uri).to_table().equals(before)


def map_rows(first: int, num_rows: int) -> pa.Table:
    ids = range(first, first + num_rows)
    numbers = [None if i % 5 == 0 else [(f"k{i % 7}", None if i % 3 == 0 else float(i)), ("z", 1.5)] for i in ids]
    nested = [None if i % 7 == 0 else [(i, {"list": [str(i)] * (i % 3), "map": [("x", i)][: i % 2]})] for i in ids]
    struct = pa.struct({"list": pa.list_(pa.string()), "map": pa.map_(pa.string(), pa.int64())})
    return pa.table({
        "id": pa.array(ids),
        "numbers": pa.array(numbers, pa.map_(pa.string(), pa.float64())),
        "nested": pa.array(nested, pa.map_(pa.int64(), struct)),
    })  # fmt: skip


@pytest.mark.parametrize("with_late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("num_rows", [500, 40_000], ids=["small", "large"])
def test_maps_are_decoded_column_by_column(tmp_path, num_rows, with_late):
    """Pages with deleted rows and small ones; some files lack a map."""
    uri = tmp_path / "t"
    lance_core.write_dataset(map_rows(0, num_rows), uri, data_storage_version="2.2")
    lance.write_dataset(map_rows(num_rows, num_rows), uri, mode="append")
    last = map_rows(2 * num_rows, num_rows)
    if with_late:
        lance_core.dataset(uri).add_columns(pa.field("late", pa.map_(pa.string(), pa.int64())))
        last = last.append_column("late", pa.array([[("a", 1)]] * num_rows, pa.map_(pa.string(), pa.int64())))
    lance_core.write_dataset(last, uri, mode="append")
    lance_core.dataset(uri).delete(f"id % {num_rows // 2} in (3, 4, 499)")
    before = lance_core.dataset(uri).to_table()
    compact(lance_core.dataset(uri))
    assert len(lance_core.dataset(uri).get_fragments()) == 1
    for library in (lance_core, lance):
        assert library.dataset(uri).to_table().equals(before)
