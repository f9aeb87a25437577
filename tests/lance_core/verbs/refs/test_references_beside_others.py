"""Tags, branches and clones that are made while others clean up, delete branches, or lose the storage's answers."""

import os
import time
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, OutcomeUnknownError, StoreError, VersionNotFoundError
from lance_core.store.local import LocalStore
from lance_core.verbs.refs import branches

REFERENCES = {
    "tag": lambda table: table.tags.create("name"),
    "branch": lambda table: table.create_branch("name"),
    "ensured branch": lambda table: table.ensure_branch("name"),
    "clone": lambda table: table.shallow_clone(table.uri + "-clone", table.version),
    "reader": lambda table: table.readers.hold("name"),
}


def rows(*keys):
    return pa.table({"k": keys})


def table_of_versions(tmp_path, number=3):
    uri = str(tmp_path / "t")
    for key in range(number):
        lance_core.write_dataset(rows(key), uri, mode="overwrite")
    return lance_core.dataset(uri)


def before_putting(monkeypatch, part, action, *, name="put_if_absent"):
    """Let something happen once, before a file whose key has a part is put."""
    real, left = getattr(LocalStore, name), [action]

    def put(store, key, data, **kwargs):
        if part in key and left:
            left.pop()()
        return real(store, key, data, **kwargs)

    monkeypatch.setattr(LocalStore, name, partialmethod(put))


def references(uri):
    table = lance_core.dataset(uri)
    return list(table.tags.list()), list(table.branches.list())


@pytest.mark.parametrize("reference", REFERENCES)
def test_nothing_refers_to_a_version_that_was_cleaned_up(tmp_path, reference):
    table = table_of_versions(tmp_path)
    old = table.checkout_version(2)
    table.cleanup_old_versions(timedelta(0))
    with pytest.raises(VersionNotFoundError, match="version main:2 does not exist"):
        REFERENCES[reference](old)
    assert references(table.uri) == ([], [])


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_version_that_is_cleaned_up_before_its_tag_is_there(tmp_path, monkeypatch, reference):
    table = table_of_versions(tmp_path)
    before_putting(monkeypatch, "_refs/tags/", lambda: table.cleanup_old_versions(timedelta(0)))
    with pytest.raises(VersionNotFoundError, match="version main:2 does not exist"):
        REFERENCES[reference](table.checkout_version(2))
    assert references(table.uri) == ([], [])


def test_a_tag_stays_where_it_was_if_its_new_version_is_cleaned_up(tmp_path, monkeypatch):
    table = table_of_versions(tmp_path)
    table.tags.create("name", 3)
    before_putting(monkeypatch, "_refs/tags/", lambda: table.cleanup_old_versions(timedelta(0)), name="put")
    with pytest.raises(VersionNotFoundError, match="version main:2 does not exist"):
        table.tags.update("name", 2)
    assert table.tags.get_version("name") == 3


@pytest.mark.parametrize("moment", ["_refs/tags/", "_versions/", "_refs/branches/"])
def test_a_branch_of_a_branch_that_is_discarded_meanwhile(tmp_path, monkeypatch, moment):
    table = table_of_versions(tmp_path, 1)
    table.create_branch("a").insert(rows(5))
    before_putting(monkeypatch, moment, lambda: lance_core.dataset(table.uri).branches.discard("a"))
    with pytest.raises(VersionNotFoundError, match="Branch a does not exist"):
        table.create_branch("b", ("a", None))
    assert references(table.uri) == ([], [])


@pytest.mark.parametrize("made", ["branch", "tag"])
def test_a_branch_is_not_discarded_that_others_refer_to_meanwhile(tmp_path, monkeypatch, made):
    table = table_of_versions(tmp_path, 1)
    table.create_branch("a").insert(rows(5))
    real, left = branches._check_deletable, [None]

    def refer(store):
        if left:
            left.pop()
            branch = ("a", None)
            table.create_branch("b", branch) if made == "branch" else table.tags.create("b", branch)
        real(store)

    monkeypatch.setattr(branches, "_check_deletable", refer)
    with pytest.raises(InvalidInputError, match="is referenced by the"):
        table.branches.discard("a")
    reference = ("b", None) if made == "branch" else "b"
    assert table.checkout_version(reference).to_table()["k"].to_pylist() == [0, 5]
    assert "a" in table.branches.list()


def lose_answers(monkeypatch, *, arrives, times):
    """Lose the answers to puts of tags."""
    real, left = LocalStore.put_if_absent, [None] * times

    def put(store, key, data, **kwargs):
        if "_refs/" not in key or not left:
            return real(store, key, data, **kwargs)
        left.pop()
        if arrives:
            real(store, key, data, **kwargs)
        raise OutcomeUnknownError("injected: no answer")

    monkeypatch.setattr(LocalStore, "put_if_absent", partialmethod(put))


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_whose_answer_is_lost_is_found(tmp_path, monkeypatch, reference, arrives):
    table = table_of_versions(tmp_path)
    lose_answers(monkeypatch, arrives=arrives, times=1)
    REFERENCES[reference](table)
    tags, names = references(table.uri)
    assert len(tags) == 1
    assert names == (["name"] if "branch" in reference else [])


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_without_any_answer_leaves_nothing(tmp_path, monkeypatch, reference):
    table = table_of_versions(tmp_path)
    lose_answers(monkeypatch, arrives=False, times=100)
    with pytest.raises(OutcomeUnknownError):
        REFERENCES[reference](table)
    assert references(table.uri) == ([], [])


def test_a_branch_is_as_old_as_its_newest_file(tmp_path, monkeypatch):
    table = table_of_versions(tmp_path, 1)
    real = time.time_ns, time.time
    with monkeypatch.context() as behind:
        behind.setattr(time, "time_ns", lambda: real[0]() - 30 * 86_400 * 10**9)
        behind.setattr(time, "time", lambda: real[1]() - 30 * 86_400)
        branch = table.create_branch("backfill")
        branch.insert(rows(5))
    assert branch.timestamp < datetime.now(UTC) - timedelta(days=29)
    assert table.branches.sweep(timedelta(days=14)).stale == ()
    assert table.branches.last_commit("backfill") > datetime.now(UTC) - timedelta(minutes=5)
    for file in Path(table.uri, "tree", "backfill", "_versions").iterdir():
        os.utime(file, (time.time() - 20 * 86_400,) * 2)
    assert table.branches.sweep(timedelta(days=14)).stale == ("backfill",)


def test_a_branch_whose_parent_cannot_be_looked_up_may_exist(tmp_path, monkeypatch):
    """The reference was put, and the last look for the parent fails: the branch is there, and the error says so."""
    table = table_of_versions(tmp_path)
    parent = table.create_branch("parent")
    real = LocalStore.get

    def get(store, key, *arguments, **options):
        if key == "_refs/branches/parent.json" and Path(table.uri, "_refs/branches/child.json").exists():
            raise StoreError(f"{key}: no answer")
        return real(store, key, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "get", get)
        with pytest.raises(OutcomeUnknownError, match=r"branch child was created; whether its parent parent was"):
            parent.create_branch("child")
    assert table.branches.list()["child"]["parent_branch"] == "parent"
