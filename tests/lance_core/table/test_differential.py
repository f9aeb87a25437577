"""Every manifest that pylance writes must come out of our operations too, given the one before and the transaction."""

from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core._proto import transaction_pb2
from lance_core.table.index import with_bitmap
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import ApplyContext
from lance_core.table.paths import TableFormat
from lance_core.table.transaction import Transaction


def numbers(start, stop, **extra):
    return pa.table({"a": list(range(start, stop)), "s": [str(i) for i in range(start, stop)], **extra})


def manifests(path):
    found = [Manifest.from_bytes(name.read_bytes()) for name in Path(path).glob("_versions/*.manifest")]
    return {manifest.version: manifest for manifest in found}


def wire(data):
    return transaction_pb2.Transaction.FromString(data)


def with_live_bitmaps(manifest):
    """Without the fragments that were deleted: ours keep those whose rows a compaction left out, pylance's do not."""
    live = BitMap(manifest.fragments.ids)
    return replace(manifest, indices=tuple(with_bitmap(index, live.__and__) for index in manifest.indices))


def check_history(path, skip=()):
    """Replay all versions; returns the names of the operations."""
    by_version, names = manifests(path), []
    for version in sorted(by_version):
        theirs = by_version[version]
        transaction = Transaction.from_bytes(theirs.transaction_bytes)
        assert wire(transaction.to_bytes()) == wire(theirs.transaction_bytes)
        names.append(transaction.operation.name)
        if transaction.operation.name in skip:
            continue
        source = by_version.get(getattr(transaction.operation, "version", None))
        context = ApplyContext(
            version=version,
            table_format=TableFormat(
                data_storage_version=theirs.data_storage_version, stable_row_ids=theirs.uses_stable_row_ids
            ),
            source=source,
        )
        ours = transaction.apply(by_version.get(version - 1), context, theirs.timestamp_ns)
        assert ours.writer_version.library == "lance_core"
        ours = replace(ours, writer_version=theirs.writer_version)
        assert list(ours.fragments) == list(theirs.fragments), (version, transaction)
        assert with_live_bitmaps(ours) == with_live_bitmaps(theirs), (version, transaction)
    return names


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("storage", ["2.0", "2.2"])
def test_rows_come_and_go(tmp_path, stable, storage):
    path = str(tmp_path / "t")
    ds = lance.write_dataset(
        numbers(0, 20), path, data_storage_version=storage, enable_stable_row_ids=stable, max_rows_per_file=10
    )
    ds = lance.write_dataset(
        numbers(20, 30), path, mode="append", transaction_properties={"run": "1"}, commit_message="m"
    )
    ds.delete("a < 3")
    ds.delete("a >= 10 and a < 20")
    ds.update({"s": "'x'"}, where="a = 7 or a = 25")
    merge = ds.merge_insert("a").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(numbers(28, 33))
    ds.delete("false")
    lance.write_dataset(numbers(50, 60), path, mode="overwrite")
    lance.write_dataset(numbers(60, 70), path, mode="append")
    ds = lance.dataset(path, version=4)
    ds.restore()
    lance.write_dataset(numbers(70, 80), path, mode="append")
    names = check_history(path)
    assert {"Overwrite", "Append", "Delete", "Update", "Restore"} <= set(names)


def test_columns_come_and_go(tmp_path):
    path = str(tmp_path / "t")
    ds = lance.write_dataset(numbers(0, 20), path, max_rows_per_file=10)
    ds.add_columns({"z": "a * 2"})
    ds.add_columns(pa.schema([pa.field("n", pa.int32())]))
    ds.alter_columns({"path": "z", "name": "zz"})
    ds.alter_columns({"path": "a", "data_type": pa.int32()})
    ds.drop_columns(["s"])
    lance.write_dataset(
        pa.table({"a": pa.array([1], pa.int32()), "zz": [1], "n": pa.array([1], pa.int32())}), path, mode="append"
    )
    ds = lance.dataset(path)
    ds.drop_columns(["a"])
    names = check_history(path)
    assert names.count("Merge") == 3
    assert names.count("Project") == 3


def test_configuration(tmp_path):
    path = str(tmp_path / "t")
    ds = lance.write_dataset(numbers(0, 5), path)
    ds.update_config({"k": "v", "l": "w"})
    ds.delete_config_keys(["k"])
    ds.update_metadata({"about": "text"})
    ds.update_schema_metadata({"x": "y"})
    ds.update_field_metadata({"a": {"p": "q"}})
    ds.replace_schema_metadata({"only": "this"})
    ds.replace_field_metadata("a", {"r": "s"})
    lance.write_dataset(numbers(5, 6), path, mode="append")
    assert check_history(path).count("UpdateConfig") == 7


@pytest.mark.parametrize("stable", [False, True])
def test_indices_and_compaction(tmp_path, stable):
    path = str(tmp_path / "t")
    ds = lance.write_dataset(numbers(0, 40), path, max_rows_per_file=10, enable_stable_row_ids=stable)
    ds.create_scalar_index("s", "BITMAP")
    ds.create_scalar_index("a", "BTREE")
    lance.write_dataset(numbers(40, 50), path, mode="append")
    ds = lance.dataset(path)
    ds.update({"s": "'x'"}, where="a = 7")
    ds.delete("a = 12")
    ds.optimize.compact_files()
    ds.update({"a": "100"}, where="a = 8")
    ds.optimize.optimize_indices()
    ds.drop_index("a_idx")
    ds.drop_columns(["s"])
    names = check_history(path)
    assert {"CreateIndex", "Rewrite", "ReserveFragments", "Update", "Project"} <= set(names)


def test_rewritten_columns(tmp_path):
    path = str(tmp_path / "t")
    ds = lance.write_dataset(numbers(0, 20), path, max_rows_per_file=10)
    ds.create_scalar_index("a", "BTREE")
    fragment = ds.get_fragment(1)
    updated, fields = fragment.update_columns(pa.table({"a": [12, 13], "s": ["x", "y"]}), left_on="a", right_on="a")
    operation = lance.LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
    lance.LanceDataset.commit(path, operation, read_version=ds.version)
    file = lance.fragment.write_fragments(pa.table({"s": ["n"] * 10}), path)[0].files[0]
    replaced = lance.fragment.DataFile(
        file.path, [1], [0], file.file_major_version, file.file_minor_version, file.file_size_bytes
    )
    operation = lance.LanceOperation.DataReplacement([lance.LanceOperation.DataReplacementGroup(0, replaced)])
    lance.LanceDataset.commit(path, operation, read_version=lance.dataset(path).version)
    assert {"Update", "DataReplacement"} <= set(check_history(path))


def test_base_paths_and_clones(tmp_path):
    path, clone, deep = (str(tmp_path / name) for name in ("t", "clone", "deep"))
    ds = lance.write_dataset(numbers(0, 20), path, max_rows_per_file=10)
    ds.delete("a = 3")
    ds.create_scalar_index("a", "BTREE")
    ds.shallow_clone(clone, ds.version)
    branch = ds.create_branch("feat/a")
    branch.delete("a = 5")
    lance.dataset(clone).shallow_clone(str(tmp_path / "clone2"), lance.dataset(clone).version)
    ds.deep_clone(deep, ds.version)
    for place in (clone, str(tmp_path / "clone2"), deep, f"{path}/tree/feat/a"):
        copy = min(manifests(place).values(), key=lambda manifest: manifest.version)
        transaction = Transaction.from_bytes(copy.transaction_bytes)
        assert transaction.operation.name == "Clone"
        source = manifests(transaction.operation.ref_path.removeprefix("file://"))[transaction.operation.ref_version]
        ours = transaction.apply(None, ApplyContext(version=source.version, source=source), 0)
        assert list(ours.fragments) == list(copy.fragments)
        assert replace(ours, writer_version=copy.writer_version, timestamp_ns=copy.timestamp_ns) == copy
        check_history(place, skip=("Clone",))


def test_names_of_2025_and_before(tmp_path):
    path = str(tmp_path / "t")
    lance.write_dataset(numbers(0, 5), path, data_storage_version="legacy", enable_v2_manifest_paths=False)
    lance.write_dataset(numbers(5, 6), path, mode="append")
    assert check_history(path) == ["Overwrite", "Append"]
