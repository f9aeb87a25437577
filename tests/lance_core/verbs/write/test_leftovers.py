"""What a write that fails leaves behind, and what a handle says whose table was dropped."""

import shutil
import sqlite3
import stat
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.commit import handler, loop, proofs
from lance_core.errors import (
    DatasetNotFoundError,
    InvalidInputError,
    LanceError,
    OutcomeUnknownError,
    StoreError,
)
from lance_core.store import local
from lance_core.store.local import LocalStore

ROWS = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})


@pytest.fixture
def path(tmp_path):
    lance.write_dataset(ROWS, tmp_path / "t")
    return tmp_path / "t"


def files(path):
    return sorted(file.relative_to(path) for file in Path(path).rglob("*") if file.is_file())


def failing_put(monkeypatch, error):
    def fails(self, key, data, *, durable=True):
        raise error

    monkeypatch.setattr(LocalStore, "put_if_absent", fails)


WAYS = {
    "the put is rejected": lambda m: failing_put(m, StoreError("injected")),
    "the put never answers": lambda m: failing_put(m, lance.errors.RetryableConflictError("busy")),
    "the history is broken": lambda m: m.setattr(
        proofs, "load_transaction", lambda *_: (_ for _ in ()).throw(lance.errors.CorruptFileError("x"))
    ),
    "a conflict": lambda m: m.setattr(loop, "judge", lambda *_: loop.Verdict.INCOMPATIBLE),
    "always too late": lambda m: m.setattr(handler.VersionWriter, "put", lambda *_: None),
    "transaction file": lambda m: m.setattr(
        handler.VersionWriter, "_put_transaction_file", lambda *_: (_ for _ in ()).throw(StoreError("full"))
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_write_that_fails_leaves_no_file(path, monkeypatch, way, mode):
    handle = lance.dataset(path)
    monkeypatch.setattr(loop.time, "sleep", lambda _: None)
    if way in ("a conflict", "the history is broken"):
        lance.dataset(path).update_config({"x": "y"})
    with monkeypatch.context() as patched:
        WAYS[way](patched)
        before = files(path)
        with pytest.raises(LanceError):
            lance.write_dataset(ROWS, handle, mode=mode, max_rows_per_file=1)
        assert files(path) == before
    assert lance.dataset(path).to_table() == ROWS


def test_files_stay_while_the_outcome_is_not_known(path, monkeypatch):
    before = files(path)
    failing_put(monkeypatch, OutcomeUnknownError("no answer"))
    with pytest.raises(OutcomeUnknownError):
        lance.write_dataset(ROWS, path, mode="append")
    assert len([f for f in files(path) if f.parts[0] == "data"]) == len([f for f in before if f.parts[0] == "data"]) + 1


def test_the_files_of_a_manifest_that_may_not_be_on_disk_stay(path, monkeypatch):
    real = local.sync_directory

    def fails(folder):
        if folder.endswith("_versions"):
            raise OSError(5, "Input/output error")
        real(folder)

    monkeypatch.setattr(local, "sync_directory", fails)
    with pytest.raises(OutcomeUnknownError, match="may not be on disk"):
        lance.write_dataset(ROWS, path, mode="append")
    assert lance.dataset(path).to_table().num_rows == 6


def test_what_follows_a_commit_does_not_undo_it(path, monkeypatch, caplog):
    from lance_core.commit import loop

    def fails(*_):
        raise StoreError("listener")

    monkeypatch.setattr(loop, "LISTENERS", {"listener": fails})
    lance.dataset(path).update_config({"listener": "true"})
    lance.write_dataset(ROWS, path, mode="append")
    assert lance.dataset(path).count_rows() == 6
    assert "is committed" in caplog.text


VERBS = {
    "versions": lambda ds: ds.versions(),
    "tags": lambda ds: ds.tags.list(),
    "tags ordered": lambda ds: ds.tags.list_ordered(),
    "branches": lambda ds: ds.branches.list(),
    "branches ordered": lambda ds: ds.branches.list_ordered(),
    "cleanup": lambda ds: ds.cleanup_old_versions(retain_versions=1),
    "explain": lambda ds: ds.explain_cleanup_old_versions(),
    "compact": lambda ds: ds.optimize.compact_files(),
    "insert": lambda ds: ds.insert(ROWS),
    "latest": lambda ds: ds.latest_version,
    "checkout_latest": lambda ds: ds.checkout_latest(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_was_deleted_is_called_deleted(path, verb):
    handle = lance.dataset(path)
    shutil.rmtree(path)
    with pytest.raises(DatasetNotFoundError):
        VERBS[verb](handle)
    assert not path.exists()


BROKEN = {
    "no database": lambda p: p.write_bytes(b"something else, and longer than that" * 50),
    "other tables": lambda p: run(p, "CREATE TABLE batches (x INT)", "CREATE TABLE fragments (y INT)"),
    "no arrow": lambda p: run(p, *TABLES, "INSERT INTO batches VALUES (0, 0, x'00ff')"),
    "null": lambda p: run(p, *TABLES, "INSERT INTO batches VALUES (0, 0, NULL)"),
    "no json": lambda p: run(p, *TABLES, "INSERT INTO fragments VALUES (0, 'x')"),
    "other json": lambda p: run(p, *TABLES, "INSERT INTO fragments VALUES (0, '[1]')"),
    "empty json": lambda p: run(p, *TABLES, "INSERT INTO fragments VALUES (0, '{}')"),
    "other columns": lambda p: insert_batch(p, pa.record_batch({"d": [1, 2, 3]})),
    "other rows": lambda p: insert_batch(p, pa.record_batch({"c": [1]})),
}
TABLES = (
    "CREATE TABLE batches (fragment_id INT, batch_index INT, result BLOB, PRIMARY KEY (fragment_id, batch_index))",
    "CREATE TABLE fragments (fragment_id INT PRIMARY KEY, data TEXT)",
)


def run(path, *statements):
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def insert_batch(path, batch):
    from lance_core.verbs.columns.batch_udf import BatchUDFCheckpoint

    BatchUDFCheckpoint(path).insert_batch(0, 0, batch)


@pytest.mark.parametrize("content", BROKEN)
def test_a_checkpoint_with_something_else_in_it_is_named(path, tmp_path, content):
    place = tmp_path / "checkpoint"
    BROKEN[content](place)

    def add():
        udf = lance.batch_udf(pa.schema([("c", pa.int64())]), checkpoint_file=place)
        lance.dataset(path).add_columns(udf(lambda batch: pa.record_batch({"c": batch["a"]})))

    with pytest.raises(InvalidInputError, match=r"checkpoint.* cannot be used as a checkpoint"):
        add()
    assert lance.dataset(path).to_table() == ROWS


def test_a_checkpoint_is_its_owners_alone(tmp_path):
    lance.batch_udf(checkpoint_file=tmp_path / "checkpoint")(lambda batch: batch)
    assert stat.S_IMODE((tmp_path / "checkpoint").stat().st_mode) == 0o600
