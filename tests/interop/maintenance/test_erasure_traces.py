"""Erasures of rows whose values stand in the metadata that data files store."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core

MARK = "bob.canary@example.org"
WHERE = f"email = '{MARK}'"


def files_with(uri):
    return [path for path in Path(uri).rglob("*") if path.is_file() and MARK.encode() in path.read_bytes()]


def mention(dataset, value):
    dataset.update_field_metadata({"email": {"ex": value}})
    dataset.update_schema_metadata({"k": value})


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
@pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
def test_files_that_keep_former_metadata_are_written_again(tmp_path, library, version):
    uri = str(tmp_path / "t.lance")
    rows = pa.table({"id": [1, 2], "email": ["ann@x.org", MARK]})
    library.write_dataset(rows, uri, data_storage_version=version)
    mention(lance_core.dataset(uri), MARK)
    library.write_dataset(pa.table({"id": [3], "email": ["q"]}), uri, mode="append")
    mention(lance_core.dataset(uri), None)
    planned = lance_core.dataset(uri).erase_rows(WHERE, dry_run=True)
    report = lance_core.dataset(uri).erase_rows(WHERE)
    assert (report.proven, report.fragments_rewritten, planned.fragments_rewritten) == (True, 2, 2)
    assert not files_with(uri)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 3]
    number = lance_core.dataset(uri).version
    assert lance_core.dataset(uri).erase_rows(WHERE).proven
    assert lance_core.dataset(uri).version == number


def test_files_with_the_present_metadata_are_named_until_it_changes(tmp_path):
    uri = str(tmp_path / "t.lance")
    dataset = lance_core.write_dataset({"id": [1, 2], "email": ["ann@x.org", MARK]}, uri)
    mention(dataset, MARK)
    report = dataset.erase_rows(WHERE, delete_unverified=True)
    kept = {path.relative_to(uri).as_posix() for path in files_with(uri)}
    assert not report.proven
    assert kept == {one.path for one in report.remaining if one.kind == "record"}
    assert any(path.startswith("data/") for path in kept)
    mention(dataset, None)
    assert dataset.erase_rows(WHERE, delete_unverified=True).proven
    assert not files_with(uri)


def test_a_file_of_nobody_with_former_metadata_is_named(tmp_path):
    uri = str(tmp_path / "t.lance")
    dataset = lance_core.write_dataset({"id": [1, 2], "email": ["ann@x.org", MARK]}, uri)
    mention(dataset, MARK)
    lance_core.write_fragments(pa.table({"id": [3], "email": ["q"]}), dataset)
    mention(dataset, None)
    report = dataset.erase_rows(WHERE)
    assert [(one.kind, one.path) for one in report.remaining] == [
        ("data", path.relative_to(uri).as_posix()) for path in files_with(uri)
    ]
    assert len(report.remaining) == 1


@pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
@pytest.mark.parametrize("word", ["kind", "blob_id", "true", "lance-encoding:blob"])
def test_the_words_of_the_format_in_files_with_blobs_are_no_trace(tmp_path, library, word):
    uri = str(tmp_path / "t.lance")
    schema = pa.schema([pa.field("name", pa.string()), library.blob_field("photo")])
    rows = pa.table([pa.array(["x", word]), library.blob_array([b"1", b"2"])], schema=schema)
    library.write_dataset(rows, uri, data_storage_version="2.2")
    assert lance_core.dataset(uri).erase_rows(f"name = '{word}'").proven
