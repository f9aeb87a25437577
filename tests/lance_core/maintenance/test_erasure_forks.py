"""Erasures of rows in versions that branches were forked from, and the tags that keep these versions."""

import shutil

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import IncompatibleConflictError
from lance_core.verbs.refs.sweep import FORKED_KEY


@pytest.fixture
def table(tmp_path):
    return lance_core.write_dataset(pa.table({"id": [0, 1, 2, 3], "s": ["a", "b", "c", "d"]}), tmp_path / "t")


def ids(table, branch="main"):
    return sorted(table.checkout_version((branch, None)).to_table()["id"].to_pylist())


def test_what_a_released_branch_was_forked_from_is_no_obstacle_to_the_next_erasures(table):
    table.create_branch("b")
    first = table.erase_rows("id = 0", release_branches=True, delete_unverified=True)
    assert (first.proven, first.branches_released, first.tags_moved) == (True, ("b",), {})
    assert table.tags.list() == {}
    for number in (1, 2):
        planned = table.erase_rows(f"id = {number}", dry_run=True)
        report = table.erase_rows(f"id = {number}")
        assert (planned.obstacles, report.obstacles, report.remaining, report.proven) == ((), (), (), True)
        assert set(planned.versions_removed["main"]) <= set(report.versions_removed["main"])
    assert ids(table) == ids(table, "b") == [3]
    with pytest.raises(IncompatibleConflictError, match="forked"):
        table.branches.promote("b")


def test_the_tag_of_a_fork_that_an_earlier_release_moved_is_no_obstacle(table):
    table.create_branch("b")
    ((name, tag),) = table.tags.list().items()
    assert table.erase_rows("id = 0", release_branches=True).proven
    table.tags.create(name)
    table.tags.replace_metadata(name, tag["metadata"])
    assert table.erase_rows("id = 1", dry_run=True).obstacles == ()
    assert table.erase_rows("id = 1").proven
    assert table.tags.list() == {}


def test_a_branch_that_can_be_promoted_stops_the_erasure_and_keeps_its_tag(table):
    table.create_branch("b").insert(pa.table({"id": [9], "s": ["z"]}))
    tags = table.tags.list()
    for dry_run in (True, False):
        stopped = table.erase_rows("id = 0", dry_run=dry_run, delete_unverified=True, retag=True)
        assert [(one.kind, one.path) for one in stopped.obstacles] == [("branch", "b")]
    assert table.tags.list() == tags
    table.branches.promote("b")
    assert ids(lance_core.dataset(table.uri)) == [0, 1, 2, 3, 9]


def test_what_is_left_of_the_creation_of_a_branch_is_an_obstacle_with_a_remedy(table):
    name = "fork.b.01234567"
    table.tags.create(name)
    table.tags.replace_metadata(name, {FORKED_KEY: "b"})
    for dry_run in (True, False):
        stopped = table.erase_rows("id = 0", dry_run=dry_run, delete_unverified=True, retag=True)
        assert [(one.kind, one.path) for one in stopped.obstacles] == [("orphan branch", "b")]
        assert "branches.discard('b')" in stopped.obstacles[0].message
    table.branches.discard("b")
    assert table.erase_rows("id = 0").proven


def test_a_tag_of_a_user_that_is_named_like_one_of_a_fork_is_an_obstacle_like_any_other(table):
    table.tags.create("fork.mine")
    stopped = table.erase_rows("id = 0")
    assert [(one.kind, one.path) for one in stopped.obstacles] == [("tag", "fork.mine")]
    report = table.erase_rows("id = 0", retag=True)
    assert (report.proven, report.tags_moved) == (True, {"fork.mine": table.version})


def test_a_clone_that_was_never_finished_is_named_with_a_remedy(table, tmp_path):
    clone = str(tmp_path / "clone")
    table.shallow_clone(clone, 1)
    shutil.rmtree(clone)
    for number in (0, 99):  # an obstacle to the first erasure, and what the second one cannot read
        report = table.erase_rows(f"id = {number}", delete_unverified=True)
        (finding,) = report.obstacles or report.remaining
        assert (report.proven, finding.path) == (False, clone)
        assert f"clones.release({clone!r})" in finding.message
    table.clones.release(clone)
    assert table.erase_rows("id < 2", delete_unverified=True).proven


def test_a_branch_from_before_the_rows_can_be_promoted_after_the_erasure(table, tmp_path):
    table.create_branch("b").insert(pa.table({"id": [9], "s": ["z"]}))
    table.insert(pa.table({"id": [4], "s": ["bob@example.org"]}))
    table.delete("s = 'bob@example.org'")
    report = table.erase_rows("id = 4", delete_unverified=True)
    assert (report.proven, report.branches_released) == (True, ())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"bob@" in path.read_bytes()]
    table.branches.promote("b")
    latest = lance_core.dataset(table.uri)
    assert ids(latest) == [0, 1, 2, 3, 9]
    assert latest.erase_rows("id = 4", delete_unverified=True).proven
