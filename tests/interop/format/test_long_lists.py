"""Long lists: fragments whose records are read when they are asked for, and versions that share most fragments."""

import pickle
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with several fragments, one of them with deletions, and a column that came later."""
    dataset = lance.write_dataset(pa.table({"x": range(40)}), tmp_path / "t", max_rows_per_file=10)
    dataset.delete("x in (3, 4, 25)")
    dataset.add_columns({"y": "x * 2"})
    dataset = lance.write_dataset(pa.table({"x": [50], "y": [100]}), tmp_path / "t", mode="append")
    dataset.delete("x >= 10 and x < 20")
    return tmp_path / "t"


def test_fragments_are_those_of_pylance(table: Path) -> None:
    ours, theirs = lance_core.dataset(table).get_fragments(), lance.dataset(table).get_fragments()
    assert [one.fragment_id for one in ours] == [one.fragment_id for one in theirs] == [0, 2, 3, 4]
    assert [one.metadata.to_json() for one in ours] == [one.metadata.to_json() for one in theirs]
    assert [one.to_table().to_pydict() for one in ours] == [one.to_table().to_pydict() for one in theirs]
    assert [one.count_rows() for one in reversed(ours)] == [1, 10, 9, 8]


def test_fragments_travel(table: Path) -> None:
    ours = lance_core.dataset(table).get_fragments()
    again = pickle.loads(pickle.dumps(ours))
    assert [one.to_table() for one in again] == [one.to_table() for one in ours]


def test_a_listed_fragment_is_that_of_its_id(table: Path) -> None:
    dataset = lance_core.dataset(table)
    for listed in dataset.get_fragments():
        found = dataset.get_fragment(listed.fragment_id)
        assert found is not None
        assert found.record == listed.record


def test_versions_are_those_of_pylance(table: Path) -> None:
    lance_core.dataset(table).delete("x = 1")
    lance_core.dataset(table).optimize.compact_files()
    ours, theirs = lance_core.dataset(table), lance.dataset(table)
    assert ours.versions() == theirs.versions()
    assert ours.get_version() == ours.versions()[-1]


def test_a_manifest_that_holds_another_version_is_rejected_or_named(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = sorted((table / "_versions").glob("*.manifest"))
    names[0].write_bytes(names[1].read_bytes())
    with pytest.raises(lance_core.errors.CorruptFileError, match="holds version"):
        lance_core.dataset(table)
    versions = lance_core.dataset(table, version=1).versions()
    assert [entry["version"] for entry in versions if "error" in entry["metadata"]] == [5]
    assert "holds version 4" in caplog.text
