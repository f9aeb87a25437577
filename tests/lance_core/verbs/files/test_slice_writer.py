"""Fragments that do not mix slices, from rows in any order."""

import itertools
import os
import stat

import pyarrow as pa
import pytest

import lance_core
from lance_core import Equals, FragmentWriter, Slice, Slices, SliceWriter
from lance_core.errors import SchemaError, StoreError

SLICES = Slices([Slice(name=name, conditions={"k": Equals(name)}) for name in "abc"])
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def rows(text):
    return pa.table({"k": list(text), "v": range(len(text))}, schema=SCHEMA)


def writer(uri, **options):
    return SliceWriter(lambda: FragmentWriter(uri, SCHEMA), SLICES.assign, **options)


def committed(uri, fragments):
    dataset = lance_core.commit_fragments(uri, fragments, SCHEMA).dataset
    return [fragment.to_table() for fragment in dataset.get_fragments()]


@pytest.mark.parametrize("max_open", [None, 1, 2])
def test_no_fragment_mixes_slices_and_rows_keep_their_order(tmp_path, max_open):
    work = writer(tmp_path / "t", max_open=max_open)
    for batch in [rows("abaxbb"), *rows("aab").to_batches(), rows("")]:
        work.write(batch)
    assert SLICES.counted(work.rows) == {"a": 4, "b": 4, "c": 0}
    assert (work.rows[-1], work.num_rows) == (1, 9)
    tables = committed(tmp_path / "t", work.finish())
    assert all(len(set(table["k"].to_pylist())) == 1 for table in tables)
    if max_open is None:
        assert [table.to_pydict() for table in tables] == [
            {"k": ["x"], "v": [3]},
            {"k": ["a"] * 4, "v": [0, 2, 0, 1]},
            {"k": ["b"] * 4, "v": [1, 4, 5, 2]},
        ]


def test_without_slices_rows_go_into_one_fragment(tmp_path):
    work = SliceWriter(lambda: FragmentWriter(tmp_path / "t", SCHEMA))
    work.write(rows("ab"))
    work.write(rows("ca"))
    assert [table.num_rows for table in committed(tmp_path / "t", work.finish())] == [4]
    assert work.rows == {0: 4}


def test_rows_that_are_grouped_are_not_copied(tmp_path):
    seen = []

    class Watching(FragmentWriter):
        def write(self, batch):
            seen.append(batch.column("v").buffers()[1].address)
            super().write(batch)

    given = rows("aabbcc").combine_chunks().to_batches()[0]
    work = SliceWriter(lambda: Watching(tmp_path / "t", SCHEMA), SLICES.assign)
    work.write(given)
    assert set(seen) == {given.column("v").buffers()[1].address}
    work.discard()


def test_nothing_is_left_of_what_is_discarded(tmp_path):
    work = writer(tmp_path / "t", max_open=1)
    work.write(rows("ab"))
    with pytest.raises(SchemaError):
        work.write(pa.table({"k": ["c"]}))
    work.discard()
    assert [path for path in (tmp_path / "t").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("which", [0, 3])
def test_a_file_that_does_not_reach_the_disk_is_an_error(tmp_path, monkeypatch, which):
    real, numbers = os.fsync, itertools.count()

    def broken(fd):
        if stat.S_ISREG(os.fstat(fd).st_mode) and next(numbers) == which:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", broken)
    work = writer(tmp_path / "t", max_open=1)
    with pytest.raises(StoreError, match="Input/output"):  # noqa: PT012 - whichever waits for it
        for text in ("abcab", "b"):
            work.write(rows(text))
        work.finish()
    work.discard()
    assert [path for path in (tmp_path / "t").rglob("*") if path.is_file()] == []


def test_what_the_schema_means_is_worked_out_once(tmp_path, monkeypatch):
    made = []
    new = FragmentWriter.__init__
    monkeypatch.setattr(FragmentWriter, "__init__", lambda self, *a, **k: made.append(1) or new(self, *a, **k))
    work = writer(tmp_path / "t")
    work.write(rows("abcabc"))
    assert len(work.finish()) == 3
    assert made == [1]
