"""Records that contradict themselves: each is rejected where it is read, before memory is taken for what it claims."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Schema
from tests.hostile.tables import forge, forge_fragments, table


def with_field(manifest, **changes):
    first, *rest = manifest.schema.fields
    return replace(manifest, schema=Schema(fields=(replace(first, **changes), *rest)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: replace(m, timestamp_ns=2**62 * 10**9), "a time of"),
        (lambda m: with_field(m, id=-1), "has no id"),
        (lambda m: with_field(m, children=(replace(m.schema.fields[0], id=7),)), "has children"),
    ],
    ids=["time", "id", "children"],
)
def test_a_manifest(tmp_path, change, said):
    table(tmp_path / "t")
    forge(tmp_path / "t", change)
    for look in (lambda: lance.dataset(tmp_path / "t"), lambda: lance.dataset(tmp_path / "t", version=1)):
        with pytest.raises(CorruptFileError, match=said):
            look()


def test_versions_of_other_times_are_named_where_they_are_listed(tmp_path, caplog):
    dataset = table(tmp_path / "t")
    forge(tmp_path / "t", lambda manifest: replace(manifest, timestamp_ns=2**62 * 10**9))
    dataset.versions()
    assert "version 1 of" in caplog.text
    assert "a time of" in caplog.text
    with pytest.raises(CorruptFileError, match="a time of"):
        dataset.explain_cleanup_old_versions(retain_versions=1)


def test_widths_that_no_value_has(tmp_path):
    table(tmp_path / "t")
    forge(tmp_path / "t", lambda manifest: with_field(manifest, logical_type="fixed_size_binary:999999999"))
    with pytest.raises(CorruptFileError, match="999999999 bytes"):
        lance.dataset(tmp_path / "t").to_table()


def test_rows_that_no_file_has(tmp_path):
    table(tmp_path / "t").delete("a = 1")
    forge_fragments(tmp_path / "t", lambda fragment: replace(fragment, physical_rows=2**31))
    dataset = lance.dataset(tmp_path / "t")
    for act in (dataset.to_table, lambda: dataset.head(2), lambda: dataset.update({"b": "'x'"}, where="a = 2")):
        with pytest.raises(CorruptFileError, match="2147483648"):
            act()


def test_more_rows_deleted_than_there_are(tmp_path):
    table(tmp_path / "t").delete("a = 1")

    def changed(fragment):
        return replace(fragment, deletion_file=replace(fragment.deletion_file, num_deleted_rows=2**64 - 1))

    forge_fragments(tmp_path / "t", changed)
    with pytest.raises(CorruptFileError, match="live rows, which is impossible"):
        lance.dataset(tmp_path / "t").take([0])


def test_an_index_of_another_time(tmp_path):
    table(tmp_path / "t", pa.table({"a": range(6)})).create_scalar_index("a", "BTREE")

    def changed(manifest):
        return replace(manifest, indices=tuple(replace(index, created_at_ms=2**62) for index in manifest.indices))

    forge(tmp_path / "t", changed)
    with pytest.raises(CorruptFileError, match="a_idx"):
        lance.dataset(tmp_path / "t").list_indices()


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP"])
def test_an_index_on_a_field_that_has_none(tmp_path, kind):
    table(tmp_path / "t", pa.table({"a": range(6), "c": [[1]] * 6})).create_scalar_index("a", kind)

    def changed(manifest):
        list_id = manifest.schema.fields[1].id
        return replace(manifest, indices=tuple(replace(index, fields=(list_id,)) for index in manifest.indices))

    forge(tmp_path / "t", changed)
    dataset = lance.dataset(tmp_path / "t")
    dataset.insert(pa.table({"a": [9], "c": [[2]]}))
    dataset.optimize.optimize_indices()
    with pytest.raises(UnsupportedError, match=r"the index 'a_idx' .* on list"):
        dataset.optimize.optimize_indices(index_names=["a_idx"])
    assert dataset.to_table(filter="a = 9")["c"].to_pylist() == [[2]]


def test_a_tag_of_another_time(tmp_path):
    dataset = table(tmp_path / "t")
    dataset.tags.create("first", 1)
    path = tmp_path / "t" / "_refs" / "tags" / "first.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "createdAt": "2026-99-01T00:00:00Z"}))
    with pytest.raises(CorruptFileError, match="createdAt"):
        dataset.tags.list()
