"""A branch remembers what its commits have changed after cleanup has removed their versions."""

import json

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import BranchConflictError
from lance_core.maintenance import removed_commits


def fill(table, part, number):
    rows = pa.table({"part": [part], "n": [number]})
    fragments = lance_core.write_fragments(rows, table.uri, mode="append")
    slices = lance_core.Slices([lance_core.Slice(name=part, conditions={"part": lance_core.Equals(part)})])
    properties = {"list": json.dumps([part])}
    return lance_core.commit_fragments(
        table.uri, fragments, rows.schema, mode="replace", slices=slices, transaction_properties=properties
    )


def clean(table, branch):
    removed = table.checkout_version((branch, None)).cleanup_old_versions(
        retain_versions=1, error_if_tagged_old_versions=False
    )
    assert removed.old_versions


@pytest.fixture
def main(tmp_path):
    rows = pa.table({"part": ["z"], "n": [0]})
    return lance_core.write_dataset(rows, tmp_path / "t")


def test_a_promotion_has_the_properties_of_removed_commits(main):
    branch = main.create_branch("draft")
    for part in "abc":
        fill(branch, part, 1)
        clean(main, "draft")
    assert main.branches.diff("draft").partitions == ("a", "b", "c")
    done = main.branches.promote("draft")
    main.checkout_latest()
    properties = main.read_transaction(done.version).transaction_properties
    assert json.loads(properties["list"]) == json.loads(properties["lance.slice_names"]) == ["a", "b", "c"]


def test_a_slice_that_both_filled_is_a_conflict_after_a_cleanup_of_the_branch(main):
    branch = main.create_branch("draft")
    fill(branch, "a", 1)
    fill(branch, "b", 1)
    clean(main, "draft")
    fill(main, "a", 2)
    with pytest.raises(BranchConflictError):
        main.branches.promote("draft")


def test_it_is_not_known_which_slices_versions_filled_that_another_library_removed(main):
    branch = main.create_branch("draft")
    for part in "abc":
        fill(branch, part, 1)
    lance.dataset(main.uri).checkout_version(("draft", None)).cleanup_old_versions(retain_versions=1)
    fill(main, "a", 2)
    with pytest.raises(
        BranchConflictError, match="version 2 of the branch was removed, and may have filled what version 2"
    ):
        main.branches.promote("draft")


def test_the_record_names_versions_operations_and_properties(main):
    branch = main.create_branch("draft")
    fill(branch, "a", 1)
    branch.checkout_latest()
    branch.update_config({"x": "y"})
    fill(branch, "b", 1)
    assert removed_commits(main.branches.list()["draft"]["metadata"]).commits == ()
    clean(main, "draft")
    record = removed_commits(main.branches.list()["draft"]["metadata"])
    assert [(commit.version, commit.operation, commit.properties["list"]) for commit in record.commits] == [
        (2, "Update", '["a"]')
    ]
    assert [record.covers(version) for version in range(1, 5)] == [False, True, True, False]


def test_a_branch_that_was_promoted_records_nothing_more(main):
    branch = main.create_branch("draft")
    fill(branch, "a", 1)
    main.branches.promote("draft")
    before = main.branches.list()["draft"]["metadata"]
    fill(branch, "b", 1)
    clean(main, "draft")
    assert main.branches.list()["draft"]["metadata"] == before


def test_the_oldest_commits_of_a_long_record_are_forgotten(main, monkeypatch):
    monkeypatch.setattr("lance_core.verbs.refs.removed_commits.MOST_BYTES", 700)
    branch = main.create_branch("draft")
    for part in "abcdefgh":
        fill(branch, part, 1)
        clean(main, "draft")
    record = removed_commits(main.branches.list()["draft"]["metadata"])
    versions = [commit.version for commit in record.commits]
    assert versions
    assert versions[0] > 2
    assert [record.covers(version) for version in range(2, 9)] == [version in versions for version in range(2, 9)]
