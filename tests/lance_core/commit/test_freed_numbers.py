"""Numbers of versions that cleanup has freed: a slow writer that takes one does not take that for its commit."""

import contextlib
import errno
import os
import shutil
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit import handler
from lance_core.commit.relation import holds_change
from lance_core.commit.versions import list_versions
from lance_core.errors import (
    CommitConflictError,
    DatasetExistsError,
    DatasetNotFoundError,
    IncompatibleConflictError,
    OutcomeUnknownError,
)
from lance_core.maintenance.verify.files import verify
from lance_core.store import local, open_store
from lance_core.store.local import LocalStore
from lance_core.store.memory import MemoryStore
from lance_core.store.s3 import S3Store

STORES = (LocalStore, MemoryStore, S3Store)


def rows(*values):
    return pa.table({"k": pa.array(values, pa.int64()), "v": pa.array([0] * len(values), pa.int64())})


@pytest.fixture(params=["local", "memory", "s3", "sqlite"])
def place(request, tmp_path):
    """URI and options of a table of two versions."""
    uri, options = str(tmp_path / "t"), {}
    if request.param == "memory":
        uri = f"memory://freed/{tmp_path.name}"
    if request.param == "sqlite":
        options = {"manifest_store": f"sqlite:///{tmp_path / 'rows.db'}"}
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    kept = lance_core.write_dataset(rows(1, 2, 3), uri, storage_options=options)
    kept.insert(rows(4))
    yield uri, options
    del kept  # what is in memory lives as long as its handles


@pytest.fixture
def stall(monkeypatch):
    """Do something between a writer's look at the latest version and its put."""
    meanwhile = []

    def stalling(kind):
        real = kind.put_if_absent

        def put_if_absent(self, key, data, *, durable=True):
            if key.startswith("_versions/") and meanwhile:
                meanwhile.pop()()
            return real(self, key, data, durable=durable)

        monkeypatch.setattr(kind, "put_if_absent", put_if_absent)

    for kind in STORES:
        stalling(kind)
    return meanwhile.append


@pytest.fixture
def late(monkeypatch):
    """Let every look at the latest version be more than a minute old at once."""
    monkeypatch.setattr(handler, "LOOK_AGAIN_AFTER", timedelta(0))


def others(uri, options, versions, *, force=False):
    """Other writers commit some versions, and all but the last one are cleaned up."""

    def change():
        dataset = lance_core.dataset(uri, storage_options=options)
        dataset.delete("k = 2")
        for number in range(versions - 1):
            dataset.insert(rows(100 + number))
        dataset.cleanup_old_versions(timedelta(0), retain_versions=1, delete_unverified=force)

    return change


VERBS = {
    "append": (lambda ds: ds.insert(rows(50)), {50}, set()),
    "delete": (lambda ds: ds.delete("k = 3"), set(), {3}),
    "update": (lambda ds: ds.update({"v": "9"}, "k = 1"), set(), set()),
    "merge": (
        lambda ds: ds.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(rows(1, 60)),
        {60},
        set(),
    ),
    "add columns": (lambda ds: ds.add_columns({"w": "v + 1"}), set(), set()),
    "config": (lambda ds: ds.update_config({"a": "b"}), set(), set()),
    "restore": (lambda ds: ds.checkout_version(1).restore(), None, None),
    "overwrite": (
        lambda ds: lance_core.write_dataset(rows(70), ds, mode="overwrite"),
        None,
        None,
    ),
}


@pytest.mark.variants(17)
@pytest.mark.parametrize("versions", [2, 5])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", ["local", "memory", "sqlite"], indirect=True)
def test_a_version_under_a_freed_number_is_no_commit(place, stall, verb, versions):
    uri, options = place
    change, added, deleted = VERBS[verb]
    dataset = lance_core.dataset(uri, storage_options=options)
    stall(others(uri, options, versions))
    try:
        change(dataset)
    except CommitConflictError:
        committed = False
    else:
        committed = True
    found = lance_core.dataset(uri, storage_options=options)
    assert found.version == list_versions(open_store(uri, options))[-1]
    below = set(range(1, 2 + versions)) & set(list_versions(open_store(uri, options)))
    assert below <= ({1} if verb == "restore" else set()), "what was put below the latest is deleted"  # 1 is restored
    keys = found.to_table()["k"].to_pylist()
    if added is not None:
        expected = {1, 3, 4, *range(100, 99 + versions)}
        assert sorted(keys) == sorted((expected | added) - deleted if committed else expected)
    elif committed:
        assert sorted(keys) == {"restore": [1, 2, 3], "overwrite": [70]}[verb]
    if verb == "config":
        assert (found.config().get("a") == "b") == committed
    found.insert(rows(200))
    if "://" not in uri and not options:
        lance.dataset(uri).validate()


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_listing_that_leaves_out_what_stands_above_is_not_believed(place, stall, monkeypatch):
    """As one may do while the latest version is removed and the next one is added."""
    uri, options = place
    dataset = lance_core.dataset(uri, storage_options=options)
    real, incomplete = handler.VersionListing.of, []

    def of(store):
        found = real(store)
        if incomplete and len(found.seen) > 1:
            incomplete.clear()
            own = min(found.seen)
            return handler.VersionListing((own, found.seen[own]), {own: found.seen[own]})
        return found

    def change():
        others(uri, options, 3)()
        incomplete.append(True)

    monkeypatch.setattr(handler.VersionListing, "of", of)
    stall(change)
    expected = [1, 3, 4, 100, 101]
    try:
        dataset.insert(rows(50))
    except CommitConflictError:
        pass
    else:
        expected.append(50)
    assert not incomplete
    assert sorted(lance_core.dataset(uri).to_table()["k"].to_pylist()) == sorted(expected)
    assert min(list_versions(open_store(uri))) >= 5, "what was put below the latest is deleted"


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_on_object_storage_young_versions_stay(place, stall, caplog):
    uri, options = place
    dataset = lance_core.dataset(uri, storage_options=options)
    stall(others(uri, options, 3))
    dataset.insert(rows(50))
    assert list_versions(open_store(uri, options)) == [1, 2, 3, 4, 5, 6]
    assert sorted(dataset.to_table()["k"].to_pylist()) == [1, 3, 4, 50, 100, 101]
    explained = dataset.explain_cleanup_old_versions(retain_versions=1)
    assert explained.stats.old_versions == 0
    assert any("1 to 5" in warning and "delete_unverified=True" in warning for warning in explained.warnings)
    assert dataset.cleanup_old_versions(timedelta(0)).old_versions == 0
    assert caplog.records[-1].levelname == "WARNING"
    assert [caplog.records[-1].getMessage()] == [f"cleanup of {uri}: {warning}" for warning in explained.warnings]
    assert dataset.cleanup_old_versions(timedelta(0), delete_unverified=True).old_versions == 5


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_on_object_storage_a_late_writer_looks_again(place, stall, late):
    uri, options = place
    dataset = lance_core.dataset(uri, storage_options=options)
    stall(others(uri, options, 3, force=True))
    with pytest.raises((CommitConflictError, OutcomeUnknownError)) as rejected:
        dataset.insert(rows(50))
    # Where both were put within one second of the storage's clock it is not known, and the version stays.
    unknown = isinstance(rejected.value, OutcomeUnknownError)
    assert list_versions(open_store(uri, options)) == ([3, 5] if unknown else [5])
    assert sorted(lance_core.dataset(uri, storage_options=options).to_table()["k"].to_pylist()) == [1, 3, 4, 100, 101]


def test_two_that_begin_a_table(tmp_path, stall):
    uri = str(tmp_path / "t")

    def first():
        lance_core.write_dataset(rows(1), uri).insert(rows(2))
        lance_core.dataset(uri).cleanup_old_versions(retain_versions=1)

    stall(first)
    with pytest.raises(DatasetExistsError):
        lance_core.write_dataset(rows(50), uri)
    assert list_versions(open_store(uri)) == [2]
    assert lance_core.dataset(uri).to_table()["k"].to_pylist() == [1, 2]


def test_a_table_that_is_dropped_and_made_again_meanwhile(tmp_path, stall):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(rows(1), uri)
    dataset.insert(rows(2))

    def again():
        lance_core.LanceDataset.drop(uri)
        lance_core.write_dataset(rows(7), uri)

    stall(again)
    with pytest.raises(IncompatibleConflictError, match="made again"):
        dataset.insert(rows(3))
    assert list_versions(open_store(uri)) == [1]
    assert lance_core.dataset(uri).to_table()["k"].to_pylist() == [7]


@pytest.mark.parametrize("is_made_again", [True, False])
@pytest.mark.parametrize("verb", ["append", "update", "merge", "add columns"])
def test_a_file_that_went_with_its_table_is_missed_on_its_way_to_the_disk(
    tmp_path, monkeypatch, stall, verb, is_made_again
):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(rows(1), uri)
    dataset.insert(rows(3))
    real, meanwhile, was_dropped = local.sync_directory, [True], threading.Event()

    def sync_directory(path):
        if meanwhile and path.endswith("/data"):
            meanwhile.pop()
            assert was_dropped.wait(30)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        real(path)

    def drop():
        lance_core.LanceDataset.drop(uri)
        if is_made_again:
            lance_core.write_dataset(rows(7), uri)
        was_dropped.set()

    monkeypatch.setattr(local, "sync_directory", sync_directory)
    stall(drop)
    expected = (IncompatibleConflictError, "made again") if is_made_again else (DatasetNotFoundError, "was dropped")
    with pytest.raises(expected[0], match=expected[1]):
        VERBS[verb][0](dataset)
    assert not meanwhile
    if is_made_again:
        assert lance_core.dataset(uri).to_table()["k"].to_pylist() == [7]


def test_a_commit_that_others_follow_at_once_is_acknowledged(tmp_path, monkeypatch):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(rows(1), uri)
    real, after = LocalStore.put_if_absent, [True]

    def followed(self, key, data, *, durable=True):
        result = real(self, key, data, durable=durable)
        if key.startswith("_versions/") and after:
            after.pop()
            others(uri, {}, 4)()
        return result

    monkeypatch.setattr(LocalStore, "put_if_absent", followed)
    dataset.insert(rows(50))
    assert sorted(lance_core.dataset(uri).to_table()["k"].to_pylist()) == [1, 50, 100, 101, 102]


@pytest.mark.variants(8)
@pytest.mark.parametrize("last", ["add columns", "add nulls", "nulls", "config"])
@pytest.mark.parametrize("verb", ["config", "add columns", "delete", "append", "add nulls", "nulls"])
@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_version_under_a_freed_number_below_other_columns_is_no_commit(place, stall, verb, last):
    uri, options = place

    def change():
        dataset = lance_core.dataset(uri, storage_options=options)
        dataset.delete("k = 2")
        LAST[last](dataset)
        dataset.cleanup_old_versions(timedelta(0), retain_versions=1)

    dataset = lance_core.dataset(uri, storage_options=options)
    stall(change)
    with contextlib.suppress(CommitConflictError, OutcomeUnknownError):
        FOLLOWED[verb](dataset)
        assert has_effect(lance_core.dataset(uri, storage_options=options), verb)
    assert lance_core.dataset(uri, storage_options=options).version >= 4
    assert 2 not in lance_core.dataset(uri, storage_options=options).to_table()["k"].to_pylist()


LAST = {
    "add columns": lambda ds: ds.add_columns({"other": "v + 2"}),
    "add nulls": lambda ds: ds.add_columns(pa.field("nulls", pa.int64())),
    "nulls": lambda ds: ds.alter_columns({"path": "k", "nullable": False}),
    "config": lambda ds: ds.update_config({"other": "b"}),
}


def has_effect(dataset, verb):
    """Whether a verb of `FOLLOWED` was done."""
    keys, schema = dataset.to_table()["k"].to_pylist(), dataset.schema
    return {
        "config": dataset.config().get("a") == "b",
        "add columns": "w" in schema.names,
        "delete": 3 not in keys,
        "append": 50 in keys,
        "add nulls": "n" in schema.names,
        "nulls": not schema.field("v").nullable,
    }[verb]


SCHEMA_VERBS = {
    "add nulls": lambda ds: ds.add_columns(pa.field("n", pa.int64())),
    "drop": lambda ds: ds.drop_columns(["x"]),
    "rename": lambda ds: ds.alter_columns({"path": "y", "name": "z"}),
    "cast": lambda ds: ds.alter_columns({"path": "z" if "z" in ds.schema.names else "y", "data_type": pa.int32()}),
    "nulls": lambda ds: ds.alter_columns({"path": "v", "nullable": False}),
    "metadata": lambda ds: ds.replace_field_metadata("k", {"a": "b"}),
    "index": lambda ds: ds.create_scalar_index("k", "BTREE"),
    "compaction": lambda ds: ds.optimize.compact_files(),
}
FOLLOWED = {verb: change for verb, (change, _, _) in VERBS.items() if verb != "overwrite"} | SCHEMA_VERBS


def wide_rows(*values):
    return (
        rows(*values).append_column("x", pa.array(values, pa.int64())).append_column("y", pa.array(values, pa.int64()))
    )


@pytest.fixture
def followers(monkeypatch):
    """Changes in memory by others: the last of the list is made at once after the next put of a manifest."""
    real, changes = MemoryStore.put_if_absent, []

    def followed(self, key, data, *, durable=True):
        result = real(self, key, data, durable=durable)
        if key.startswith("_versions/") and changes:
            changes.pop()()
        return result

    monkeypatch.setattr(MemoryStore, "put_if_absent", followed)
    return changes


@pytest.mark.parametrize("verb", FOLLOWED)
def test_a_commit_that_another_verb_follows_at_once_is_acknowledged(followers, verb):
    for follower in ("config", "add columns", "add nulls", "drop", "rename", "cast", "nulls"):
        change = FOLLOWED[follower]
        if follower == verb and verb in ("add columns", "add nulls", "drop", "rename"):
            continue  # it cannot be done twice
        uri = f"memory://followed/{verb}/{follower}"
        dataset = lance_core.write_dataset(wide_rows(1, 2, 3), uri)
        dataset.insert(wide_rows(4))
        dataset = lance_core.dataset(uri)
        followers.append(lambda uri=uri, change=change: change(lance_core.dataset(uri)))
        try:
            FOLLOWED[verb](dataset)
        except CommitConflictError:
            assert verb == "compaction"  # its ids are reserved first
        assert not followers, follower
        assert verify(lance_core.dataset(uri)) == [], follower


@pytest.mark.parametrize("is_clone", [True, False])
def test_a_restore_whose_base_is_cleaned_up_at_once_is_acknowledged(followers, is_clone):
    uri = f"memory://restored/{is_clone}"
    dataset = lance_core.write_dataset(rows(1, 2), uri)
    if is_clone:
        dataset = dataset.shallow_clone(f"{uri}/clone", 1)
        uri = dataset.uri
    dataset.tags.create("first", 1)
    dataset.add_columns({"w": "k + 1"})
    if not is_clone:  # no file of the first version is left, though its fragment is
        dataset.drop_columns(["k", "v"])
    followers.append(lambda: lance_core.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True))
    restored = lance_core.dataset(uri).checkout_version(1)
    restored.restore()
    assert not followers
    opened = lance_core.dataset(uri)
    assert opened.version == dataset.version + 1
    assert opened.to_table().equals(rows(1, 2))


@pytest.mark.parametrize(
    ("verb", "column"),
    [("cast", "y"), ("rename", "z"), ("add nulls", "n"), ("add columns", "w"), ("index", "k"), ("metadata", "k")],
)
def test_a_commit_whose_column_is_dropped_at_once_is_acknowledged(followers, verb, column):
    uri = f"memory://dropped/{verb}"
    dataset = lance_core.write_dataset(wide_rows(1, 2, 3), uri)
    followers.append(lambda: lance_core.dataset(uri).drop_columns([column]))
    FOLLOWED[verb](dataset)
    assert not followers
    opened = lance_core.dataset(uri)
    assert column not in opened.schema.names
    assert verify(opened) == []


def test_a_delete_of_no_rows_that_another_verb_follows_at_once_is_acknowledged(followers):
    uri = "memory://deleted/nothing"
    dataset = lance_core.write_dataset(wide_rows(1, 2, 3), uri)
    followers.append(lambda: lance_core.dataset(uri).add_columns({"other": "v + 2"}))
    dataset.delete("k = 9")
    assert lance_core.dataset(uri).schema.names == ["k", "v", "x", "y", "other"]


def test_a_dropped_column_whose_id_another_gets_at_once_is_acknowledged(followers):
    uri = "memory://dropped/nulls"
    dataset = lance_core.write_dataset(wide_rows(1, 2, 3), uri)
    dataset.add_columns(pa.field("n", pa.int64()))
    followers.append(lambda: lance_core.dataset(uri).add_columns({"other": "v + 2"}))
    lance_core.dataset(uri).drop_columns(["n"])
    assert lance_core.dataset(uri).schema.names == ["k", "v", "x", "y", "other"]


def test_a_version_that_changes_nothing_and_leaves_a_proof_is_looked_for():
    base = lance_core.write_dataset(wide_rows(1), "memory://proof").snapshot.manifest
    later = replace(base, version=3)
    assert holds_change(later, replace(base, version=2), base)
    with_proof = replace(base, version=2, config={**base.config, "lance-dagster.idempotency.key": "{}"})
    assert not holds_change(later, with_proof, base)
    assert holds_change(replace(with_proof, version=3), with_proof, base)


def put_aside(uri, tmp_path):
    """The manifest of version 3 of a twin of the table, in which another writer made that version."""
    twin = tmp_path / "twin"
    shutil.copytree(uri, twin)
    lance.dataset(str(twin)).insert(rows(50))
    return max(Path(twin, "_versions").glob("*.manifest"), key=lambda path: path.stat().st_mtime_ns)


def test_histories_with_such_a_version_are_not_judged_by(tmp_path):
    uri = str(tmp_path / "t")
    table = lance_core.write_dataset(rows(1, 2, 3), uri)
    table.insert(rows(4))
    stale = {verb: lance_core.dataset(uri) for verb in VERBS}
    aside = put_aside(uri, tmp_path)
    table.delete("k = 2")
    table.insert(rows(5))
    table.cleanup_old_versions(retain_versions=1)
    target = Path(uri, "_versions", aside.name)
    assert not target.exists()
    target.write_bytes(aside.read_bytes())
    with pytest.raises(CommitConflictError, match="was not made from version 3"):
        stale["append"].insert(rows(6))
    stale["delete"].delete("k = 3")
    stale["update"].update({"v": "9"}, "k = 1")
    found = lance_core.dataset(uri)
    assert sorted(found.to_table()["k"].to_pylist()) == [1, 4, 5]
    problems = verify(found)
    assert [problem.version for problem in problems] == [3]
    assert "cleanup" in problems[0].message
    found.cleanup_old_versions(versions=[3])
    assert verify(found) == []
    lance.dataset(uri).validate()
