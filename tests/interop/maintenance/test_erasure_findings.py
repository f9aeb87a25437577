"""Erasures of tables with dictionaries without values, files that no table has, predicates and free text."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
def test_nothing_is_done_where_nothing_is_erased_from_a_dictionary_without_values(tmp_path, library, version):
    uri = str(tmp_path / "t.lance")
    schema = pa.schema([("id", pa.int64()), ("word", pa.dictionary(pa.int32(), pa.string()))])
    for ids, words in (([1], [None]), ([2, 3], ["x", None])):
        rows = pa.table([pa.array(ids), pa.array(words, pa.string()).dictionary_encode()], schema=schema)
        library.write_dataset(rows, uri, mode="append", data_storage_version=version)
    report = lance_core.dataset(uri).erase_rows("id = 999")
    assert (report.proven, report.fragments_rewritten, dict(report.versions_removed)) == (True, 0, {})
    assert lance_core.dataset(uri).version == 2
    report = lance_core.dataset(uri).erase_rows("id = 2", delete_unverified=True)
    assert report.proven
    assert lance.dataset(uri).to_table().to_pylist() == [{"id": 1, "word": None}, {"id": 3, "word": None}]


@pytest.mark.parametrize("path", ["data/old.bin", "_refs/old.parquet"])
def test_a_file_that_no_table_has_is_named_as_such(tmp_path, path):
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset({"id": [1, 2]}, uri).tags.create("now")
    Path(uri, path).write_text("x")
    report = lance_core.dataset(uri).erase_rows("id = 1", retag=True, delete_unverified=True)
    assert [(one.kind, one.path) for one in report.remaining] == [("unknown", path)]


def files_with(uri, mark):
    return [path for path in Path(uri).rglob("*") if path.is_file() and mark in path.read_bytes()]


@pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
def test_a_predicate_goes_where_the_version_with_its_rows_was_removed(tmp_path, library):
    uri = str(tmp_path / "t.lance")
    library.write_dataset(pa.table({"id": [1], "email": ["ann@example.org"]}), uri)
    library.write_dataset(pa.table({"id": [2], "email": ["eve@example.org"]}), uri, mode="append")
    library.dataset(uri).delete("id = 1 AND email = 'ann@example.org'")  # all rows of a fragment: no file has them
    lance_core.dataset(uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    table = lance_core.dataset(uri)
    assert files_with(uri, b"ann@")
    planned = table.erase_rows("id = 1", dry_run=True)
    assert planned.versions_removed == {"main": (table.version,)}
    assert [one.reasons for one in planned.holding] == [("record",)]
    assert table.erase_rows("id = 1").proven
    assert not files_with(uri, b"ann@")
    number = table.version
    assert table.erase_rows("id = 1").proven
    assert table.version == number
    assert lance.dataset(uri).to_table()["id"].to_pylist() == [2]


def test_versions_of_other_deletes_stay(tmp_path):
    uri = str(tmp_path / "t.lance")
    table = lance_core.write_dataset({"id": [1, 2]}, uri)
    table.delete("id = 2")
    table.insert({"id": [3]})
    report = table.erase_rows("id = 3")
    assert (report.proven, dict(report.versions_removed)) == (True, {"main": (3,)})
    assert 2 in [one["version"] for one in table.versions()]


def test_a_transaction_of_nobody_with_a_predicate_is_named(tmp_path):
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"id": [1, 2, 3]}), uri)
    lance.dataset(uri).delete("id = 3")
    (predicate,) = [path for path in Path(uri, "_transactions").iterdir() if b"id = 3" in path.read_bytes()]
    left = {f"_transactions/1-{name}.txn" for name in ("lost", "torn")}
    Path(uri, "_transactions", "1-lost.txn").write_bytes(predicate.read_bytes())
    Path(uri, "_transactions", "1-torn.txn").write_bytes(b"\xff\xff")
    report = lance_core.dataset(uri).erase_rows("id = 3")
    assert not report.proven
    assert {(one.kind, one.path) for one in report.remaining} == {("record", path) for path in left}
    assert lance_core.dataset(uri).erase_rows("id = 3", delete_unverified=True).proven
    assert not list(Path(uri).rglob("1-*.txn"))


def test_free_text_is_the_affair_of_its_author(tmp_path):
    uri = str(tmp_path / "t.lance")
    mark = "bob@example.org"
    table = lance_core.write_dataset({"id": [1, 2], "email": ["eve@example.org", mark]}, uri)
    table.update_config({"owner": mark})
    table.update_field_metadata({"email": {"of": mark}})
    report = table.erase_rows(f"email = '{mark}'", transaction_properties={"request": mark})
    assert (report.proven, report.remaining) == (True, ())
    assert table.config()["owner"] == mark
    assert all(path.parent.name in {"_versions", "_transactions", "data"} for path in files_with(uri, mark.encode()))


def test_records_of_computations_are_no_finding(tmp_path):
    table = lance_core.write_dataset({"id": [1, 2], "n": [3, 4]}, tmp_path / "t.lance", enable_stable_row_ids=True)
    column = pa.schema([("twice", pa.int64())])
    table.compute_columns(lambda batch: batch["n"], inputs=["n"], columns=column, name="twice", code_version="1")
    assert list(Path(table.uri, "_refs", "computations").iterdir())
    report = table.erase_rows("id = 2", delete_unverified=True)
    assert (report.proven, report.remaining) == (True, ())
