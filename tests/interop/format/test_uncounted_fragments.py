"""Manifests of early releases: those that count neither rows nor deletions, and those that call files of 2.0 "0.3".

Pylance up to 0.7 counted neither, and later releases that wrote to such tables left the counts out.
"""

import dataclasses
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.cli.app import cli
from lance_core.commit.versions import load_latest
from lance_core.maintenance.verify.files import verify
from lance_core.store import open_store
from lance_core.table.fragment_list import FragmentList
from lance_dagster.lineage.row_changes import live_rows
from pyspark_lance.datasource.source import DefaultSource


def rewrite_manifest(uri, change, **changes):
    """Replace the newest manifest by one with other fragments."""
    manifest = load_latest(open_store(uri))
    fragments = FragmentList.of(change(fragment) for fragment in manifest.fragments)
    changes["fragments"] = FragmentList(fragments.raw)
    Path(uri, manifest.location.key).write_bytes(dataclasses.replace(manifest, **changes).to_bytes())
    return lance_core.dataset(uri)


def uncounted(fragment):
    deleted = fragment.deletion_file
    deleted = deleted and dataclasses.replace(deleted, num_deleted_rows=0)
    return dataclasses.replace(fragment, physical_rows=0, deletion_file=deleted)


@pytest.fixture(params=["no writer", "a later writer"])
def table(request, tmp_path):
    """28 of 30 rows in three fragments."""
    uri = str(tmp_path / "t.lance")
    for piece in range(3):
        rows = pa.table({"id": range(piece * 10, piece * 10 + 10), "v": ["x"] * 10})
        lance.write_dataset(rows, uri, mode="append", data_storage_version="2.0")
    lance.dataset(uri).delete("id in (3, 13)")
    return rewrite_manifest(uri, uncounted, **({"writer_version": None} if request.param == "no writer" else {}))


def test_counts(table):
    assert (table.count_rows(), table.count_deleted_rows()) == (28, 2)
    assert table.stats.dataset_stats()["num_deleted_rows"] == 2
    assert table.stats.dataset_stats(10)["num_small_files"] == 0
    found = [(one.metadata.num_rows, one.metadata.physical_rows, one.num_deletions) for one in table.get_fragments()]
    assert found == [(9, 10, 1), (9, 10, 1), (10, 10, 0)]
    assert sum(live_rows(table).values()) == 28


@pytest.mark.parametrize("command", ["info", "fragments"])
def test_commands(table, command):
    done = CliRunner().invoke(cli, [command, table.uri, "--json"])
    assert done.exit_code == 0, done.output
    assert '"rows": 28' in done.output if command == "info" else done.output.count('"rows": 9') == 2


def test_spark_reads_all_rows(table):
    source = DefaultSource({"path": table.uri})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(rows) == 28


def test_verbs(table):
    table.write_columns({"id": [1, 2], "w": ["a", "b"]}, on="id")
    assert table.to_table(columns=["w"], filter="id < 3")["w"].to_pylist() == [None, "a", "b"]
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        pa.table({"id": [1, 100], "v": ["y", "y"], "w": ["c", "c"]})
    )
    table.update({"v": "'z'"}, where="id = 2")
    assert table.count_rows() == lance.dataset(table.uri).count_rows() == 29
    table.create_scalar_index("id", "ZONEMAP")
    table.optimize.compact_files()
    assert table.to_table(filter="id = 25")["v"].to_pylist() == ["x"]
    assert table.count_rows() == 29


def test_files_that_are_numbered_as_of_0_3(tmp_path):
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"id": [1, 2]}), uri, data_storage_version="2.0")

    def numbered(fragment, minor=3):
        files = [dataclasses.replace(file, file_major_version=0, file_minor_version=minor) for file in fragment.files]
        return dataclasses.replace(fragment, files=tuple(files))

    table = rewrite_manifest(uri, numbered)
    assert verify(table) == []
    assert table.to_table().num_rows == lance.dataset(uri).count_rows() == 2
    table.insert(pa.table({"id": [3]}))
    table.optimize.compact_files()
    assert table.count_rows() == 3
    (problem,) = verify(rewrite_manifest(uri, lambda fragment: numbered(fragment, 2)))
    assert "is of version 2.0" in problem.message
