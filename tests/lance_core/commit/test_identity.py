"""A handle that outlives its table never writes into the one that came after it."""

import errno
import os
import shutil
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.commit.versions import identity_of
from lance_core.errors import (
    CommitConflictError,
    DatasetNotFoundError,
    IncompatibleConflictError,
    InvalidInputError,
    ObjectNotFoundError,
)
from lance_core.store import local, open_store

OLD = pa.table({"a": [1, 2, 3], "b": [10, 20, 30]})
NEW = pa.table({"b": ["x", "y", "z"], "a": ["p", "q", "r"], "c": [1.0, 2.0, 3.0]})

VERBS = {
    "insert": lambda ds: ds.insert(OLD),
    "overwrite": lambda ds: lance.write_dataset(OLD, ds, mode="overwrite"),
    "delete": lambda ds: ds.delete("a = 1"),
    "update": lambda ds: ds.update({"a": "5"}),
    "merge": lambda ds: ds.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(OLD),
    "add": lambda ds: ds.add_columns({"d": "a + 1"}),
    "drop": lambda ds: ds.drop_columns(["b"]),
    "alter": lambda ds: ds.alter_columns({"path": "b", "name": "bb"}),
    "config": lambda ds: ds.update_config({"k": "v"}),
    "restore": lambda ds: ds.restore(),
    "truncate": lambda ds: ds.truncate_table(),
    "cleanup": lambda ds: ds.cleanup_old_versions(timedelta(0), delete_unverified=True),
    "compact": lambda ds: ds.optimize.compact_files(),
    "commit": lambda ds: lance.LanceDataset.commit(
        ds, lance.LanceOperation.Delete([], [0], "true"), read_version=ds.version
    ),
    "create_branch": lambda ds: ds.create_branch("b"),
    "ensure_branch": lambda ds: ds.ensure_branch("b"),
    "restore-op": lambda ds: lance.LanceDataset.commit(ds, lance.LanceOperation.Restore(1)),
}


@pytest.fixture(params=["disk", "memory"])
def uri(request, tmp_path):
    return str(tmp_path / "t") if request.param == "disk" else f"memory://identity/{tmp_path.name}/t"


def make(uri, rows, versions=1):
    dataset = lance.write_dataset(rows, uri, max_rows_per_file=2)
    for _ in range(versions - 1):
        dataset.insert(rows)
    return dataset


def drop(uri):
    lance.LanceDataset.drop(uri)


def state(uri):
    dataset = lance.dataset(uri)
    return dataset.version, dataset.to_table(), len(list(dataset.all_files().read_all()))


HISTORIES = [(verb, old, new) for verb in VERBS for old, new in ((1, 1), (2, 1), (1, 3))]
# One verb of a kind is enough for long ones.
HISTORIES += [(verb, 2, 30) for verb in ("insert", "delete", "cleanup")]


@pytest.mark.variants(35)
@pytest.mark.parametrize(("verb", "old", "new"), HISTORIES)
def test_a_handle_of_a_table_that_was_made_again_changes_nothing(uri, verb, old, new):
    handle = make(uri, OLD, old)
    drop(uri)
    make(uri, NEW, new)
    before = state(uri)
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        VERBS[verb](handle)
    version, rows, files = state(uri)
    assert (version, rows) == before[:2]
    assert files == before[2]


@pytest.mark.parametrize("verb", VERBS)
def test_a_handle_of_a_dropped_table_says_so(uri, verb):
    handle = make(uri, OLD, 2)
    drop(uri)
    with pytest.raises(DatasetNotFoundError, match="dropped"):
        VERBS[verb](handle)


LOOKS = {
    "add by a function": lambda ds: ds.add_columns(lambda batch: pa.record_batch({"d": batch["a"]}), ["a"]),
    "all_files": lambda ds: ds.all_files(),
    "branches.delete": lambda ds: ds.branches.delete("there"),
    "branches.diff": lambda ds: ds.branches.diff("there"),
    "checkout_version": lambda ds: ds.checkout_version(7),
    "checkout a branch": lambda ds: ds.checkout_version(("there", None)),
    "checkout a tag": lambda ds: ds.checkout_version("there"),
    "get_transactions": lambda ds: ds.get_transactions(),
    "migrate": lambda ds: ds.migrate_manifest_paths_v2(),
    "optimize_indices": lambda ds: ds.optimize.optimize_indices(),
    "read_transaction": lambda ds: ds.read_transaction(1),
    "shallow_clone": lambda ds: ds.shallow_clone(f"{ds.uri}-clone", ds.version),
    "tags.create": lambda ds: ds.tags.create("t"),
    "tags.delete": lambda ds: ds.tags.delete("there"),
    "tags.update": lambda ds: ds.tags.update("there", 1),
    "tracked_files": lambda ds: ds.tracked_files(),
    "versions": lambda ds: ds.versions(),
}


@pytest.mark.parametrize("verb", LOOKS)
def test_whatever_looks_for_something_of_a_dropped_table_says_so(uri, verb):
    handle = make(uri, OLD)
    handle.tags.create("there")
    handle.create_branch("there")
    drop(uri)
    with pytest.raises(DatasetNotFoundError, match="dropped"):
        LOOKS[verb](handle)


def test_names_of_manifests_are_left_alone_in_a_table_that_was_made_again(uri):
    handle = make(uri, OLD)
    drop(uri)
    make(uri, NEW)
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        handle.migrate_manifest_paths_v2()


@pytest.mark.parametrize("verb", ["insert", "merge", "drop"])
@pytest.mark.parametrize("made_again", [True, False])
def test_on_object_storage_as_well(s3, verb, made_again):
    uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    handle = lance.write_dataset(OLD, uri, storage_options=options)
    lance.LanceDataset.drop(uri, storage_options=options)
    if made_again:
        lance.write_dataset(NEW, uri, storage_options=options)
    before = list(open_store(uri, options).list(""))
    with pytest.raises(IncompatibleConflictError if made_again else DatasetNotFoundError):
        VERBS[verb](handle)
    assert list(open_store(uri, options).list("")) == before
    if made_again:
        assert lance.dataset(uri, storage_options=options).to_table() == NEW


NAMING = {
    "tag": lambda ds, _: ds.tags.create("t"),
    "tag by number": lambda ds, _: ds.tags.create("t", ds.version),
    "move a tag": lambda ds, _: ds.tags.update("there", (None, ds.version)),
    "branch by number": lambda ds, _: ds.create_branch("b", ds.version),
    "branch by tag": lambda ds, _: ds.create_branch("b", "there"),
    "shallow clone": lambda ds, root: ds.shallow_clone(root, ds.version),
    "deep clone": lambda ds, root: ds.deep_clone(root, ds.version),
}


@pytest.mark.parametrize("verb", NAMING)
def test_what_names_the_version_of_a_handle_does_not_take_another_for_it(uri, verb):
    handle = make(uri, OLD)
    drop(uri)
    again = make(uri, NEW, 2)
    again.tags.create("there", 1)
    before = state(uri), again.tags.list(), again.branches.list()
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        NAMING[verb](handle, f"{uri}-clone")
    assert (state(uri), again.tags.list(), again.branches.list()) == before
    with pytest.raises(DatasetNotFoundError):
        lance.dataset(f"{uri}-clone")


def test_a_table_that_was_made_again_gets_no_branch_of_the_old_one(s3):
    uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    handle = lance.write_dataset(OLD, uri, storage_options=options)
    lance.LanceDataset.drop(uri, storage_options=options)
    again = lance.write_dataset(OLD, uri, storage_options=options)
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        handle.create_branch("b")
    assert again.branches.list() == again.tags.list() == {}
    assert lance.dataset(uri, storage_options=options).to_table() == OLD


def test_a_folder_that_was_removed_and_filled_again(tmp_path):
    uri = tmp_path / "t"
    handle = make(uri, OLD)
    shutil.rmtree(uri)
    make(uri, NEW)
    with pytest.raises(CommitConflictError, match="dropped and made again"):
        handle.insert(OLD)
    assert lance.dataset(uri).to_table() == NEW


def test_the_handle_finds_the_new_table_when_it_looks(uri):
    handle = make(uri, OLD)
    drop(uri)
    make(uri, NEW)
    handle.checkout_latest()
    handle.insert(NEW)
    assert lance.dataset(uri).count_rows() == 6


def test_a_table_that_was_put_back_from_a_copy_is_the_same(tmp_path):
    uri = tmp_path / "t"
    handle = make(uri, OLD, 3)
    shutil.copytree(uri, tmp_path / "copy")
    shutil.rmtree(uri)
    shutil.copytree(tmp_path / "copy", uri, copy_function=shutil.copyfile)
    handle.insert(OLD)
    assert lance.dataset(uri).count_rows() == 12


def test_names_of_manifests_may_change_under_a_handle(tmp_path):
    uri = tmp_path / "t"
    handle = lance.write_dataset(OLD, uri, enable_v2_manifest_paths=False)
    lance.dataset(uri).insert(OLD)
    lance.dataset(uri).migrate_manifest_paths_v2()
    handle.insert(OLD)
    assert lance.dataset(uri).count_rows() == 9


def test_a_version_that_was_cleaned_up_can_be_followed(uri):
    handle = make(uri, OLD)
    other = lance.dataset(uri)
    for _ in range(3):
        other.insert(OLD)
    lance.dataset(uri).cleanup_old_versions(retain_versions=1, delete_unverified=False)
    other.insert(OLD)
    with pytest.raises(CommitConflictError, match="missing from the history"):
        handle.insert(OLD)
    assert lance.dataset(uri).count_rows() == 15


def test_without_tags_the_manifests_are_compared(uri):
    handle = make(uri, OLD)
    other = lance.dataset(uri)
    other.insert(OLD)
    for known in (handle, other):
        manifest = known.snapshot.manifest
        known.move_to(replace(manifest, location=replace(manifest.location, e_tag=None)))
        known.insert(OLD)
    assert lance.dataset(uri).count_rows() == 12


def test_without_a_transaction_file_the_transactions_are_compared(uri):
    manifest = replace(make(uri, OLD).snapshot.manifest, transaction_file="")
    others = [replace(manifest, transaction_bytes=made_by) for made_by in (b"one", b"other", None)]
    assert len({identity_of(other) for other in (manifest, *others)}) == 4


def test_a_branch_that_was_made_again_is_another(tmp_path):
    dataset = make(tmp_path / "t", OLD)
    branch = dataset.create_branch("b")
    dataset.branches.delete("b")
    dataset.insert(OLD)
    again = dataset.create_branch("b")
    with pytest.raises(CommitConflictError):
        branch.insert(OLD)
    assert again.count_rows() == 6
    dataset.checkout_version(("b", None)).insert(OLD)


def test_a_detached_commit_on_a_table_that_was_made_again(uri):
    handle = make(uri, OLD)
    drop(uri)
    make(uri, NEW)
    operation = lance.LanceOperation.Delete([], [0], "true")
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        lance.LanceDataset.commit(handle, operation, read_version=1, detached=True)


@pytest.mark.parametrize("again", [1, 3])
@pytest.mark.parametrize("mode", ["append", "overwrite", "replace"])
def test_fragments_for_a_table_that_was_made_again_stay_out(uri, mode, again):
    handle = make(uri, OLD)
    slices = lance.Slices([lance.Slice(name="x", conditions={"a": lance.Equals(1)})]) if mode == "replace" else None
    drop(uri)
    make(uri, OLD, again)
    fragments = lance.write_fragments(OLD, uri)
    before = lance.dataset(uri).version
    options = {"mode": mode, "slices": slices}
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        lance.commit_fragments(uri, fragments, OLD.schema, read_version=1, identity=handle.identity, **options)
    assert lance.dataset(uri).version == before
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        lance.commit_fragments(handle, fragments, OLD.schema, **options)
    assert lance.dataset(uri).version == before


def test_an_identity_stays_with_its_version(uri):
    handle = make(uri, OLD)
    first = handle.identity
    assert lance.dataset(uri).identity == first
    for number in range(2):
        fragments = lance.write_fragments(OLD, uri)
        done = lance.commit_fragments(uri, fragments, OLD.schema, read_version=1, identity=first)
        assert done.version == number + 2
        assert done.dataset.identity == lance.dataset(uri).identity != first
    with pytest.raises(InvalidInputError, match="read_version"):
        lance.commit_fragments(uri, [], OLD.schema, identity=first)


READS = {
    "table": lambda ds: ds.to_table(),
    "filter": lambda ds: ds.to_table(filter="a > 1"),
    "count": lambda ds: ds.count_rows("a > 1"),
    "take": lambda ds: ds.take([2]),
    "fragment": lambda ds: ds.get_fragments()[1].to_table(),
    "update": lambda ds: ds.update({"a": "5"}, where="a = 1"),
}


@pytest.mark.parametrize("made_again", [True, False])
@pytest.mark.parametrize("read", READS)
def test_a_reader_whose_files_are_deleted_says_why(tmp_path, read, made_again):
    handle = make(str(tmp_path / "t"), OLD)
    handle = lance.dataset(handle.uri)  # no file is open
    drop(handle.uri)
    make(handle.uri, NEW) if made_again else None
    with pytest.raises(IncompatibleConflictError if made_again else DatasetNotFoundError, match="dropped"):
        READS[read](handle)


def test_a_file_that_another_deleted_is_named(tmp_path):
    handle = make(str(tmp_path / "t"), OLD)
    lost = min((tmp_path / "t" / "data").iterdir())
    lost.unlink()
    with pytest.raises(ObjectNotFoundError, match=lost.name):
        lance.dataset(handle.uri).to_table()


def test_a_scan_is_overtaken(tmp_path):
    rows = pa.table({"a": pa.array(np.random.default_rng(1).integers(0, 1 << 60, 2_000_000))})
    dataset = lance.write_dataset(rows, str(tmp_path / "t"), max_rows_per_file=50_000)
    batches = lance.dataset(dataset.uri).to_batches(batch_size=1000, batch_readahead=1, fragment_readahead=1)
    next(batches)
    drop(dataset.uri)
    make(dataset.uri, NEW)
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        list(batches)


@pytest.mark.parametrize("made_again", [True, False])
@pytest.mark.parametrize(("verb", "folder"), [("insert", "_versions"), ("restore", "t"), ("cleanup", "t")])
def test_a_table_is_dropped_while_a_file_is_on_its_way_to_the_disk(tmp_path, monkeypatch, verb, folder, made_again):
    handle = make(str(tmp_path / "t"), OLD)
    handle.insert(OLD)
    real, meanwhile = local.sync_directory, [True]

    def sync_directory(path):
        if meanwhile and path.endswith(f"/{folder}"):
            meanwhile.pop()
            shutil.rmtree(handle.uri)
            make(handle.uri, NEW) if made_again else None
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        real(path)

    monkeypatch.setattr(local, "sync_directory", sync_directory)
    with pytest.raises((CommitConflictError, DatasetNotFoundError), match="dropped"):
        VERBS[verb](handle)
    assert not meanwhile
    if made_again:
        assert lance.dataset(handle.uri).to_table() == NEW


WRITES = {
    "append": lambda rows, uri: lance.write_dataset(rows, uri, mode="append"),
    "overwrite": lambda rows, uri: lance.write_dataset(rows, uri, mode="overwrite"),
    "fragment": lance.write_fragments,
    "fragments": lambda rows, uri: lance.write_fragments(rows, uri, max_rows_per_file=500_004),
}


@pytest.mark.parametrize("made_again", [True, False])
@pytest.mark.parametrize("write", WRITES)
def test_a_table_is_dropped_in_the_middle_of_a_file(tmp_path, write, made_again):
    uri = str(tmp_path / "t")
    make(uri, OLD)

    def batches():
        yield OLD.to_batches()[0]
        yield pa.record_batch({"a": range(500_000), "b": range(500_000)})
        shutil.rmtree(uri)
        make(uri, NEW) if made_again else None
        yield OLD.to_batches()[0]

    rows = pa.RecordBatchReader.from_batches(OLD.schema, batches())
    with pytest.raises(IncompatibleConflictError if made_again else DatasetNotFoundError, match="dropped"):
        WRITES[write](rows, uri)
    if made_again:
        assert lance.dataset(uri).to_table() == NEW
    else:
        assert not list(tmp_path.rglob("*.manifest"))


def test_files_that_were_written_before_a_table_was_made_again_are_not_committed(s3, tmp_path):
    for root, options in ((str(tmp_path), None), (f"s3://{s3.new_bucket()}", s3.storage_options)):
        uri = f"{root}/t"
        lance.write_dataset(OLD, uri, storage_options=options)
        append = lance.LanceOperation.Append(lance.write_fragments(OLD, uri, storage_options=options))
        lance.LanceDataset.drop(uri, storage_options=options)
        lance.write_dataset(OLD, uri, storage_options=options)
        with pytest.raises(ObjectNotFoundError, match="written for the commit, but does not exist"):
            lance.LanceDataset.commit(uri, append, read_version=1, storage_options=options)
        assert lance.dataset(uri, storage_options=options).to_table() == OLD
