"""Attempts on a branch that was promoted: a later attempt finds their rows on the branch's parent."""

from datetime import timedelta

import lance
import pytest

import lance_core
from lance_core.errors import EarlierAttemptError
from tests.support.write_attempts import attempt, latest, rows, values, write

OTHER = ("t", "other")


@pytest.fixture(params=[False, True], ids=["addresses", "row ids"])
def table(request, tmp_path):
    return lance_core.write_dataset(rows(100, 101), tmp_path / "t", enable_stable_row_ids=request.param)


def append(dataset, data, write_attempt):
    return write(dataset.uri, data, write_attempt, base=dataset).dataset


def newest(branch):
    return branch.checkout_version((branch.branch, None))


def promoted(table, *, meanwhile=()):
    """The table with the rows of two writes on a branch, of which the first had two attempts."""
    branch = table.ensure_branch("b")
    first = append(branch, rows(1, 2), attempt(0))
    second = append(first, rows(30), attempt(0, token=OTHER))
    append(second, rows(3, 4, 5), attempt(1, first.version))
    if meanwhile:
        lance.write_dataset(rows(*meanwhile), table.uri, mode="append")
    table.branches.promote("b")
    return latest(table)


@pytest.mark.parametrize("meanwhile", [(), (60, 61)])
@pytest.mark.parametrize("where", ["main", "branch"])
def test_its_rows_are_replaced_and_those_of_other_writes_stay(table, where, meanwhile):
    table = promoted(table, meanwhile=meanwhile)
    assert values(table.uri) == sorted([3, 4, 5, 30, 100, 101, *meanwhile])
    (known,) = table.committed_attempts(("app.token", "x"))
    assert known.version == table.version
    target = table if where == "main" else table.ensure_branch("b", renew_promoted=True)
    done = append(target, rows(7), attempt(2, known.version))
    assert sorted(done.to_table()["v"].to_pylist()) == sorted([7, 30, 100, 101, *meanwhile])
    if where == "branch":
        lance_core.dataset(table.uri).branches.promote("b")
    assert values(table.uri) == sorted([7, 30, 100, 101, *meanwhile])
    (known,) = latest(table).committed_attempts(("app.token", "x"))
    append(latest(table), rows(8), attempt(3, known.version))
    assert values(table.uri) == sorted([8, 30, 100, 101, *meanwhile])


def test_after_a_cleanup(table):
    table = promoted(table)
    (known,) = table.committed_attempts(("app.token", "x"))
    lance.write_dataset(rows(60), table.uri, mode="append")
    table.branches.discard("b")
    lance.dataset(table.uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    append(latest(table), rows(7), attempt(2, known.version))
    assert values(table.uri) == [7, 30, 60, 100, 101]


@pytest.mark.parametrize("cleaned", [False, True])
def test_after_a_compaction(table, cleaned):
    table = promoted(table)
    (known,) = table.committed_attempts(("app.token", "x"))
    table.optimize.compact_files()
    if cleaned:
        table.branches.discard("b")
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    if cleaned and not table.has_stable_row_ids:
        with pytest.raises(EarlierAttemptError):
            append(latest(table), rows(7), attempt(2, known.version))
        return
    append(latest(table), rows(7), attempt(2, known.version))
    assert values(table.uri) == [7, 30, 100, 101]


def test_after_a_compaction_of_the_branch(table):
    """Without row ids nobody knows which rows they are; nothing is deleted by guess."""
    branch = table.ensure_branch("b")
    first = append(branch, rows(1, 2), attempt(0))
    append(first, rows(30), attempt(0, token=OTHER)).optimize.compact_files()
    table.branches.promote("b")
    (known,) = latest(table).committed_attempts(("app.token", "x"))
    with pytest.raises(EarlierAttemptError):
        append(latest(table), rows(7), attempt(2, known.version))
    assert values(table.uri) == [1, 2, 30, 100, 101]
