"""Tags, branches, clones and readers through a handle of a table that was dropped and made again: rejected."""

from datetime import timedelta
from pathlib import Path

import pytest

import lance_core as lance
from lance_core.errors import DatasetNotFoundError, IncompatibleConflictError

VERBS = {
    "branches.delete": lambda old, _: old.branches.delete("b"),
    "branches.discard": lambda old, _: old.branches.discard("b"),
    "branches.discard of none": lambda old, _: old.branches.discard("none"),
    "branches.promote": lambda old, _: old.branches.promote("b"),
    "branches.replace_metadata": lambda old, _: old.branches.replace_metadata("b", {"a": "b"}),
    "branches.sweep": lambda old, _: old.branches.sweep(timedelta(0)),
    "clones.release": lambda old, path: old.clones.release(f"{path}/clone.lance"),
    "create_branch": lambda old, _: old.create_branch("c", 2),
    "create_branch at a tag": lambda old, _: old.create_branch("c", "keep"),
    "deep_clone": lambda old, path: old.deep_clone(f"{path}/new.lance", 1),
    "ensure_branch": lambda old, _: old.ensure_branch("b"),
    "readers.hold": lambda old, _: old.readers.hold("new"),
    "readers.release": lambda old, _: old.readers.release("report"),
    "shallow_clone": lambda old, path: old.shallow_clone(f"{path}/new.lance", 1),
    "tags.create": lambda old, _: old.tags.create("july", 2),
    "tags.delete": lambda old, _: old.tags.delete("keep"),
    "tags.replace_metadata": lambda old, _: old.tags.replace_metadata("keep", {"a": "b"}),
    "tags.update": lambda old, _: old.tags.update("keep", 2),
}


def make_table(uri, first):
    for number in range(3):
        lance.write_dataset({"id": [first + number]}, uri, mode="append" if number else "create")
    table = lance.dataset(uri)
    table.create_branch("b").insert({"id": [first + 99]})
    table.tags.create("keep", 1)
    return table


def files(path):
    return {name: name.read_bytes() for name in Path(path).rglob("*") if name.is_file()}


@pytest.mark.parametrize("verb", VERBS)
def test_references_of_the_next_table_stay(tmp_path, verb):
    uri = f"{tmp_path}/t.lance"
    old = make_table(uri, 0)
    lance.LanceDataset.drop(uri)
    new = make_table(uri, 100)
    new.readers.hold("report")
    new.shallow_clone(f"{tmp_path}/clone.lance", 2)
    before = files(tmp_path)
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        VERBS[verb](old, tmp_path)
    assert files(tmp_path) == before


def test_handle_of_a_branch(tmp_path):
    uri = f"{tmp_path}/t.lance"
    branch = make_table(uri, 0).checkout_version(("b", None))
    lance.LanceDataset.drop(uri)
    with pytest.raises(DatasetNotFoundError):
        branch.tags.delete("keep")
    make_table(uri, 100)
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        branch.branches.discard("b")


@pytest.mark.parametrize("verb", ["branches.discard", "tags.delete", "create_branch", "tags.update"])
def test_handle_of_a_version_that_was_cleaned_up(tmp_path, verb):
    old = make_table(f"{tmp_path}/t.lance", 0)
    lance.dataset(old.uri).insert({"id": [7]})
    old.branches.discard("b")
    table = lance.dataset(old.uri)
    table.tags.create("keep2", table.version)
    table.create_branch("b", table.version)
    table.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    if verb in ("create_branch", "tags.update"):
        table.tags.create("at", table.version)
        reference = "at"
        act = old.create_branch if verb == "create_branch" else old.tags.update
        act("c" if verb == "create_branch" else "keep", reference)
    else:
        VERBS[verb](old, tmp_path)


def test_discard_through_the_branch_itself(tmp_path):
    branch = make_table(f"{tmp_path}/t.lance", 0).checkout_version(("b", None))
    assert (branch.branches.discard("b"), branch.branches.discard("b")) == (True, False)


def test_an_older_version_is_not_looked_for_in_the_next_table(tmp_path):
    """Its rows would be restored, changed or deleted there."""
    uri = f"{tmp_path}/t.lance"
    old = make_table(uri, 0)
    lance.LanceDataset.drop(uri)
    make_table(uri, 100)
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        old.checkout_version(1)
