"""Small pages of several columns are decoded together: the same rows, and errors that name the column."""

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CorruptFileError
from lance_core.file import joined_columns, pool
from lance_core.file.reader import DataFileReader
from lance_core.store import open_store

COLUMNS = 12


def wide_table(seed, num_rows):
    """Columns of one type each time, whose pages differ in nulls, widths and dictionaries."""
    rng = np.random.default_rng(seed)

    def masked(values, kind=None):
        return pa.array(values, kind, mask=rng.random(num_rows) < rng.choice([0, 0.3, 1], p=[0.6, 0.3, 0.1]))

    def words(number):
        return [f"w{value}" * int(rng.integers(0, 4)) for value in rng.integers(0, number, num_rows)]

    columns = {}
    for number in range(COLUMNS):
        columns |= {
            f"i{number}": masked(rng.integers(0, 10 ** int(rng.integers(1, 5)), num_rows)),
            f"f{number}": masked(rng.random(num_rows).round(2)),
            f"s{number}": masked(words(int(rng.choice([5, 500]))), pa.string()),
            f"b{number}": masked(rng.random(num_rows) < 0.5),
            f"t{number}": masked(rng.integers(0, 10**6, num_rows), pa.timestamp("us")),
            f"l{number}": pa.array([list(range(int(n))) for n in rng.integers(0, 4, num_rows)], pa.list_(pa.int32())),
            f"v{number}": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(num_rows * 2, np.float32)), 2),
            f"x{number}": pa.array([{"a": int(n), "b": str(n)} for n in rng.integers(0, 9, num_rows)]),
        }
    return pa.table(columns)


@pytest.fixture
def joins(monkeypatch):
    """The numbers of columns that were decoded together."""
    sizes = []
    begin = joined_columns._JoinedColumns.__init__

    def count(self, plans, runs):
        sizes.append(len(plans))
        begin(self, plans, runs)

    monkeypatch.setattr(joined_columns._JoinedColumns, "__init__", count)
    return sizes


@pytest.mark.variants(3)
@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("writer", [lance_core, lance], ids=["ours", "theirs"])
@pytest.mark.parametrize("num_rows", [1, 500])
def test_the_same_rows(tmp_path, monkeypatch, joins, writer, version, num_rows):
    rows = wide_table(num_rows, num_rows)
    writer.write_dataset(rows, tmp_path / "t", data_storage_version=version)
    for _ in range(5):
        writer.write_dataset(rows, tmp_path / "t", mode="append", data_storage_version=version)
    table = lance_core.dataset(tmp_path / "t")
    (first, *_) = table.get_fragments()
    expected = lance.dataset(tmp_path / "t").to_table().slice(0, num_rows)
    assert first.to_table() == expected
    assert table.to_table().slice(5 * num_rows) == expected
    assert num_rows == 1 or sum(joins) > COLUMNS
    some = ["s3", "i7", "l1", "f2"]
    assert first.to_table(columns=some) == expected.select(some)
    assert table.to_table(filter="i3 > 5").num_rows == lance.dataset(tmp_path / "t").count_rows("i3 > 5")
    for threads in ("1", "16"):
        monkeypatch.setenv("LANCE_CPU_THREADS", threads)
        monkeypatch.setattr(pool, "_pools", {})
        assert first.to_table() == expected
        for opened in pool._pools.values():
            opened.shutdown()


@pytest.mark.parametrize("name", ["i0", "i5", "i11"])
def test_an_error_names_its_column(tmp_path, joins, name):
    rows = pa.table({f"i{number}": np.random.default_rng(number).permutation(500) for number in range(COLUMNS)})
    fragment = lance_core.write_dataset(rows, tmp_path / "t").get_fragments()[0]
    key = f"data/{fragment.metadata.files[0].path}"
    reader = DataFileReader.open(open_store(str(tmp_path / "t")), key)
    start, _ = reader.metadata.columns[int(name[1:])].page(0, 0, 500).buffers[0]
    path = tmp_path / "t" / key
    data = bytearray(path.read_bytes())
    data[start : start + 2] = b"\xff\xff"
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=f"column '{name}'"):
        lance_core.dataset(tmp_path / "t").to_table()
    assert joins == [COLUMNS]
    others = [f"i{number}" for number in range(COLUMNS) if f"i{number}" != name]
    assert lance_core.dataset(tmp_path / "t").to_table(columns=others) == rows.select(others)
