"""Interruptions and errors once the manifest has its name: the version stays, and so do its files, whatever the verb."""

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.store import local

ROWS = pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})
NEW = pa.table({"id": [1], "s": ["q"]})


def commit_columns(dataset):
    plan = dataset.plan_columns(pa.schema([("s", pa.string())]))
    address = pa.array([0], pa.uint64())
    dataset.commit_columns(plan, [one.write(dataset, {"_rowaddr": address, "s": ["q"]}) for one in plan.tasks])


def compact(dataset):
    dataset.delete("id = 2")
    dataset.optimize.compact_files(materialize_deletions_threshold=0.0)


def add_by_fragments(dataset):
    written = lance_core.write_fragments(NEW, dataset.uri, mode="append")
    lance_core.commit_fragments(dataset.uri, written, dataset.schema, mode="append")


VERBS = {
    "write_columns": lambda dataset: dataset.write_columns(NEW, on="id", missing="keep"),
    "write a new column": lambda dataset: dataset.write_columns(pa.table({"id": [1], "z": [1]}), on="id"),
    "commit_columns": commit_columns,
    "update": lambda dataset: dataset.update({"s": "'q'"}, "id = 1"),
    "update by columns": lambda dataset: dataset.update({"s": "'q'"}, "id = 1", write_mode="fewest_bytes"),
    "delete": lambda dataset: dataset.delete("id = 1"),
    "merge": lambda dataset: dataset.merge_insert("id").when_matched_update_all().execute(NEW),
    "insert": lambda dataset: dataset.insert(NEW),
    "overwrite": lambda dataset: lance_core.write_dataset(NEW, dataset.uri, mode="overwrite"),
    "commit_fragments": add_by_fragments,
    "add_columns": lambda dataset: dataset.add_columns({"q": "id + 1"}),
    "alter_columns": lambda dataset: dataset.alter_columns({"path": "id", "data_type": pa.int32()}),
    "compact": compact,
    "index": lambda dataset: dataset.create_scalar_index("id", "BTREE"),
}


@pytest.fixture(params=list(VERBS))
def verb(request):
    return VERBS[request.param]


def state(uri):
    """The rows by both libraries, with and without indices, and the version."""
    own = lance_core.dataset(uri)
    rows = own.to_table().sort_by("id").to_pylist()
    assert lance.dataset(uri).to_table().sort_by("id").to_pylist() == rows
    for library in (lance_core, lance):
        assert library.dataset(uri).to_table(filter="id = 3").num_rows == own.count_rows("id + 0 = 3")
    return own.version, rows


def made_by(verb, uri):
    """The state after the verb in a table of its own."""
    lance_core.write_dataset(ROWS, uri)
    verb(lance_core.dataset(uri))
    return state(uri)


def test_an_interruption_leaves_the_files_of_the_version(tmp_path, monkeypatch, verb):
    expected = made_by(verb, str(tmp_path / "expected.lance"))
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset(ROWS, uri)
    sync = local.sync_directory

    def interrupted(folder):
        sync(folder)
        if len(list(Path(folder).glob("*.manifest"))) == expected[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(local, "sync_directory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verb(lance_core.dataset(uri))
    monkeypatch.undo()
    assert state(uri) == expected


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), OSError(5, "Input/output error")])
def test_a_staging_file_that_cannot_be_removed_is_left_to_cleanup(tmp_path, monkeypatch, caplog, verb, error):
    expected = made_by(verb, str(tmp_path / "expected.lance"))
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset(ROWS, uri)
    unlink = os.unlink

    def rejects(path, **options):
        if "_versions/" in str(path) and "#" in str(path):
            raise error
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", rejects)
    verb(lance_core.dataset(uri))
    monkeypatch.undo()
    assert state(uri) == expected
    assert "was left behind" in caplog.text
