"""What releases of pylance before 5.0 wrote in another way than today's: sizes of legacy files, names in indices."""

import dataclasses

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core._proto import file_pb2, table_pb2
from lance_core.errors import CorruptFileError
from lance_core.index.kinds import btree
from lance_core.maintenance.verify.files import verify

ROWS = pa.table({"id": pa.array(range(500)), "s": pa.array([f"text {i % 7}" for i in range(500)])})


def table(path, change, version="legacy"):
    """A table of one file whose recorded size is `change` bytes off."""
    fragments = lance_core.write_fragments(ROWS, path, data_storage_version=version)
    for fragment in fragments:
        (file,) = fragment.files
        fragment.files[0] = dataclasses.replace(file, file_size_bytes=file.file_size_bytes + change)
    operation = lance_core.LanceOperation.Overwrite(ROWS.schema, fragments)
    return lance_core.LanceDataset.commit(path, operation)


@pytest.mark.parametrize("change", [-1, -100, -400])
def test_every_verb_works_on_them(tmp_path, change):
    path = str(tmp_path / "t")
    dataset = table(path, change)
    assert lance.dataset(path).to_table() == ROWS
    assert dataset.to_table() == ROWS
    assert dataset.take([3, 499]) == ROWS.take([3, 499])
    assert dataset.count_rows(filter="id > 400") == 99
    assert verify(dataset) == []
    dataset.validate()
    dataset.insert(ROWS)
    dataset.delete("id < 10")
    dataset.update({"s": "'new'"}, where="id = 10")
    dataset.merge_insert("id").when_matched_update_all().execute(ROWS.slice(20, 1))
    dataset.create_scalar_index("id", "BTREE")
    dataset.add_columns({"twice": "id * 2"})
    dataset.optimize.compact_files()
    assert dataset.count_rows() == 980
    assert lance.dataset(path).to_table() == dataset.to_table()


def test_a_file_that_was_cut_is_still_found(tmp_path):
    dataset = table(str(tmp_path / "t"), +1)
    with pytest.raises(CorruptFileError, match="the manifest says"):
        dataset.to_table()
    assert len(verify(dataset)) == 1


def test_other_versions_record_the_very_size(tmp_path):
    dataset = table(str(tmp_path / "t"), -1, "2.2")
    with pytest.raises(CorruptFileError, match="the manifest says"):
        dataset.to_table()


def test_a_btree_whose_ids_have_their_old_name(tmp_path, monkeypatch):
    """As releases up to 0.30 wrote them."""
    dataset = lance_core.write_dataset(ROWS, tmp_path / "t")
    with monkeypatch.context() as patch:
        patch.setattr(btree, "IDS", btree.OLD_IDS)
        dataset.create_scalar_index("id", "BTREE")
    dataset = lance_core.dataset(tmp_path / "t")
    assert dataset.count_rows(filter="id = 77") == 1
    assert verify(dataset) == []
    dataset.insert(ROWS.slice(0, 5))
    dataset.optimize.optimize_indices()
    assert dataset.count_rows(filter="id = 3") == lance.dataset(tmp_path / "t").count_rows(filter="id = 3") == 2


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
def test_dictionaries_are_described_as_by_pylance(tmp_path, version):
    """Releases up to 0.30 look for the dictionary of each such field, in manifests and in data files."""
    words = pa.array(["a", "b"]).dictionary_encode()
    table = pa.table({"i": [1, 2], "d": words, "st": pa.StructArray.from_arrays([words], ["x"])})
    if version == "legacy":
        table = table.select(["i", "d"])
    found = []
    for library in (lance_core, lance):
        path = tmp_path / library.__name__
        library.write_dataset(table, path, data_storage_version=version)
        lance_core.write_dataset(table, path, mode="append")
        (manifest,) = [bytes(p.read_bytes()) for p in (path / "_versions").glob("*.manifest") if is_latest(p)]
        found.append([(field.name, field.HasField("dictionary")) for field in manifest_fields(manifest)])
        if version != "legacy":
            for file in (path / "data").iterdir():
                data = file.read_bytes()
                start = int.from_bytes(data[-24:-16], "little")
                first, size = (int.from_bytes(data[start + i : start + i + 8], "little") for i in (0, 8))
                descriptor = file_pb2.FileDescriptor.FromString(data[first : first + size])
                found.append([(field.name, field.HasField("dictionary")) for field in descriptor.schema.fields])
        assert lance.dataset(path).to_table() == lance_core.dataset(path).to_table()
    assert all(one == found[0] for one in found)
    assert ("d", True) in found[0]


def is_latest(path):
    return int(path.stem) == 2**64 - 1 - 2


def manifest_fields(data):
    position = int.from_bytes(data[-16:-8], "little")
    size = int.from_bytes(data[position : position + 4], "little")
    return table_pb2.Manifest.FromString(data[position + 4 : position + 4 + size]).fields
