"""Erasures of tables with dictionaries without values, and with files that no table has."""

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


def test_a_file_that_no_table_has_is_named_as_such(tmp_path):
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset({"id": [1, 2]}, uri)
    Path(uri, "data", "old.bin").write_text("x")
    report = lance_core.dataset(uri).erase_rows("id = 1", delete_unverified=True)
    assert [(one.kind, one.path) for one in report.remaining] == [("unknown", "data/old.bin")]
