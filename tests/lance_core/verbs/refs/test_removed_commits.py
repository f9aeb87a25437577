"""A branch remembers what its commits have changed after cleanup has removed their versions."""

import json
from datetime import timedelta

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
        table.uri,
        fragments,
        rows.schema,
        mode="replace",
        slices=slices,
        commit=lance_core.Commit(properties=properties),
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
    with pytest.raises(BranchConflictError, match="nothing records what branch 'draft' changed in version 2, 3"):
        main.branches.promote("draft")


def test_the_commits_of_removed_versions_are_known(main):
    branch = main.create_branch("draft")
    fill(branch, "a", 1)
    branch.checkout_latest()
    branch.update_config({"x": "y"})
    fill(branch, "b", 1)
    assert removed_commits(branch) == {}
    clean(main, "draft")
    removed = removed_commits(branch)
    assert {version: (commit.operation, commit.changes_rows) for version, commit in removed.items()} == {
        2: ("Update", True),
        3: ("UpdateConfig", False),
    }
    assert removed[2].properties["list"] == '["a"]'


def test_nothing_is_stored_of_a_branch_that_was_promoted(main):
    branch = main.create_branch("draft")
    fill(branch, "a", 1)
    main.branches.promote("draft")
    fill(branch, "b", 1)
    clean(main, "draft")
    assert removed_commits(branch) == {}


def test_a_branch_that_another_library_cleaned_up_is_promoted_where_nobody_changed_rows(main):
    branch = main.create_branch("draft")
    for part in "abc":
        fill(branch, part, 1)
    lance.dataset(main.uri).checkout_version(("draft", None)).cleanup_old_versions(retain_versions=1)
    main.update_config({"x": "y"})
    main.branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows() == 4


def test_a_promoted_branch_that_was_maintained_and_cleaned_up_begins_again(tmp_path):
    main = lance_core.write_dataset({"id": [0]}, tmp_path / "t.lance")
    branch = main.create_branch("x")
    for number in (1, 2):
        branch.insert({"id": [number]})
    main.branches.promote("x")
    head = lance_core.dataset(main.uri).checkout_version(("x", None))
    head.optimize.compact_files()
    lance_core.dataset(main.uri).checkout_version(("x", None)).cleanup_old_versions(timedelta(0))
    again = lance_core.dataset(main.uri).ensure_branch("x", renew_promoted=True)
    again.insert({"id": [3]})
    assert lance_core.dataset(main.uri).branches.promote("x").rows_added == 1
    assert sorted(lance_core.dataset(main.uri).to_table()["id"].to_pylist()) == [0, 1, 2, 3]
