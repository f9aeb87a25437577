"""What compaction and cleanup must not get wrong by one batch, one file or one moment."""

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
import lance_core.maintenance.compaction.plan as facts_module
from lance_core.commit.versions import load_manifest
from lance_core.errors import CorruptFileError, ObjectNotFoundError
from lance_core.file import DataFileWriter
from lance_core.maintenance.cleanup.plan import Selectors
from lance_core.maintenance.compaction.compaction import plan_of
from lance_core.store import open_store
from lance_core.verbs.scan.read_fragment import read_fragment


@pytest.mark.parametrize("batch_size", [100, 8192, None])
def test_deleted_rows_are_left_out_of_each_batch(tmp_path, batch_size):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"id": np.arange(30_000)}), uri, max_rows_per_file=15_000)
    dataset = lance_core.dataset(uri)
    dataset.delete("id % 7 = 3 OR id BETWEEN 400 AND 950 OR id >= 29990")
    expected = [i for i in range(30_000) if not (i % 7 == 3 or 400 <= i <= 950 or i >= 29_990)]
    dataset.optimize.compact_files(batch_size=batch_size, compaction_mode="reencode")
    assert len(dataset.get_fragments()) == 1
    assert dataset.to_table()["id"].to_pylist() == expected
    assert lance.dataset(uri).to_table()["id"].to_pylist() == expected


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(pa.table({"id": range(6)}), uri, max_rows_per_file=2)
    before = sorted(tmp_path.rglob("*"))

    def complete(self):
        raise OSError("no space left on device")

    monkeypatch.setattr(DataFileWriter, "complete", complete)
    for target in (4, 100):
        with pytest.raises(OSError, match="no space left"):
            dataset.optimize.compact_files(target_rows_per_fragment=target, compaction_mode="reencode")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_version_of_exactly_the_time_that_is_named_stays(tmp_path):
    uri = str(tmp_path / "t")
    for i in range(3):
        lance_core.write_dataset(pa.table({"id": [i]}), uri, mode="overwrite")
    store = open_store(uri)
    manifests = [load_manifest(store, version) for version in (1, 2, 3)]
    selectors = Selectors(before=manifests[1].timestamp)
    assert [selectors.takes(manifest, ()) for manifest in manifests] == [True, False, False]


def test_partitions_of_full_fragments_at_the_ends_are_not_read(tmp_path, monkeypatch):
    uri = str(tmp_path / "t")
    for rows in (10, 3, 10, 3, 3, 10):
        lance_core.write_dataset(pa.table({"day": [1] * rows}), uri, mode="append")
    dataset, read = lance_core.dataset(uri), []

    def noting(source, fragment, *arguments):
        read.append(fragment.id)
        return read_fragment(source, fragment, *arguments)

    monkeypatch.setattr(facts_module, "read_fragment", noting)
    options = {"partition_by": ["day"], "target_rows_per_fragment": 10}
    tasks = plan_of(dataset.snapshot, options).tasks
    assert [task.fragment_ids for task in tasks] == [[3, 4]], "a full fragment separates those before and after it"
    assert sorted(read) == [1, 2, 3, 4]
    read.clear()
    assert not plan_of(dataset.snapshot, options | {"target_rows_per_fragment": 2}).tasks
    assert not read


@pytest.mark.parametrize("damage", ["missing", "truncated"])
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"target_rows_per_fragment": 20}, 5),  # the group of the damaged fragment stays
        ({"target_rows_per_fragment": 20, "partition_by": ("p",)}, 4),
        ({"target_rows_per_fragment": 20, "repair_pages": True}, 5),
        ({"target_rows_per_fragment": 2, "repair_pages": True}, 8),
    ],
)
def test_a_damaged_file_stops_the_compaction_of_no_other_group(tmp_path, options, left, damage):
    for number in range(8):
        rows = pa.table({"p": [number // 4] * 10, "s": [{"n": number}] * 10, "d": pa.array(["a"] * 10)})
        lance_core.write_dataset(rows, tmp_path / "t", mode="append" if number else "create")
    table = lance_core.dataset(tmp_path / "t")
    file = tmp_path / "t" / "data" / table.get_fragments()[1].metadata.files[0].path
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises((CorruptFileError, ObjectNotFoundError), match=file.name) as failure:
        table.optimize.compact_files(**options)
    assert any("were not compacted; the others were committed" in note for note in failure.value.__notes__)
    table.checkout_latest()
    assert len(table.get_fragments()) == left


def test_a_damaged_dictionary_stops_the_compaction_of_no_other_group(tmp_path):
    kind = pa.dictionary(pa.int8(), pa.string())
    for number in range(8):
        rows = pa.table({"d": pa.array(["a", "b"] * 50).cast(kind)})
        lance_core.write_dataset(rows, tmp_path / "t", mode="append" if number else "create")
    table = lance_core.dataset(tmp_path / "t")
    file = tmp_path / "t" / "data" / table.get_fragments()[1].metadata.files[0].path
    file.write_bytes(b"nothing")
    with pytest.raises(CorruptFileError, match=file.name):
        table.optimize.compact_files(target_rows_per_fragment=300)
    table.checkout_latest()
    assert len(table.get_fragments()) < 8
