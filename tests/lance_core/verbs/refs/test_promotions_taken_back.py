"""A promotion that an undo or a restore took back: it is not reported as done again."""

from datetime import timedelta

import pytest
from click.testing import CliRunner

import lance_core as lance
from lance_core.cli.app import cli
from lance_core.errors import BranchConflictError
from lance_core.table.operations import Append, Restore
from lance_core.table.transaction import Transaction
from lance_core.verbs.refs.promotion.record import find_version_that_took_back


@pytest.fixture
def main(tmp_path):
    """A table with a row, at version 2 with that of the branch `x`, which was promoted."""
    table = lance.write_dataset({"id": [1]}, tmp_path / "t.lance")
    table.create_branch("x").insert({"id": [2]})
    table.branches.promote("x")
    return lance.dataset(table.uri)


def restore(main, version):
    lance.dataset(main.uri, version=version).restore()


def undo(main, version):
    properties = {"lance.takes_back": str(version)}
    lance.write_dataset({"id": [7]}, main.uri, mode="append", transaction_properties=properties)


TAKEN_BACK = {
    "restore": lambda main: restore(main, 1),
    "undo": lambda main: undo(main, 2),
    "restored to a version after the undo": lambda main: (undo(main, 2), restore(main, 2), restore(main, 3)),
    "undo of another version": lambda main: (undo(main, 2), undo(main, 9)),
}


@pytest.mark.parametrize("is_cleaned", [False, True])
@pytest.mark.parametrize("case", TAKEN_BACK)
def test_promotion_again_names_the_version(main, case, is_cleaned):
    TAKEN_BACK[case](main)
    for _ in range(3 if is_cleaned else 0):
        lance.dataset(main.uri).insert({"id": [8]})
        lance.dataset(main.uri).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    rows = lance.dataset(main.uri).to_table().to_pylist()
    for dry_run in (True, False):
        with pytest.raises(BranchConflictError, match=r"version 2 of .*taken back by version 3"):
            lance.dataset(main.uri).branches.promote("x", dry_run=dry_run)
    result = CliRunner().invoke(cli, ["promote", main.uri, "x", "--discard"])
    assert result.exit_code != 0
    assert list(main.branches.list()) == ["x"]
    assert lance.dataset(main.uri).to_table().to_pylist() == rows
    with pytest.raises(BranchConflictError, match="version 3"):
        lance.dataset(main.uri).branches.check_promotion("x", 2)


NOT_TAKEN_BACK = {
    "overwrite": lambda main: lance.write_dataset({"id": [1]}, main.uri, mode="overwrite"),
    "append": lambda main: lance.dataset(main.uri).insert({"id": [3]}),
    "restore of the promotion": lambda main: (restore(main, 1), restore(main, 2)),
    "undo of the undo": lambda main: (undo(main, 2), undo(main, 3)),
    "undo of another version": lambda main: undo(main, 1),
    "compaction": lambda main: lance.dataset(main.uri).optimize.compact_files(),
}


@pytest.mark.parametrize("case", NOT_TAKEN_BACK)
def test_promotion_that_nobody_took_back(main, case):
    NOT_TAKEN_BACK[case](main)
    done = lance.dataset(main.uri).branches.promote("x")
    assert (done.deduplicated, done.version) == (True, 2)
    lance.dataset(main.uri).branches.check_promotion("x", 2)


def test_a_new_run_begins_the_branch_again(main):
    restore(main, 1)
    latest = lance.dataset(main.uri)
    latest.ensure_branch("x", renew_promoted=True).insert({"id": [2]})
    assert not latest.branches.promote("x").deduplicated
    assert sorted(lance.dataset(main.uri).to_table()["id"].to_pylist()) == [1, 2]


def test_restore_of_a_version_whose_commit_is_not_known():
    """A cleanup has removed version 4, which followed an undo; the promotion was restored, and then version 4."""
    commits = {
        3: Transaction(read_version=2, operation=Append(fragments=()), properties={"lance.takes_back": "2"}),
        5: Transaction(read_version=4, operation=Restore(version=2)),
        6: Transaction(read_version=5, operation=Restore(version=4)),
    }
    assert find_version_that_took_back(2, commits) == 3
    assert find_version_that_took_back(2, {number: commits[number] for number in (3, 5)}) is None
