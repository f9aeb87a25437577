"""Attempts that replace rows: the table remembers the newest of each write, so that an older one does not follow it."""

from dataclasses import replace
from datetime import timedelta

import lance
import pytest

import lance_core
from lance_core import Equals, Slice, Slices
from lance_core.errors import HistoryGapError, SupersededError
from lance_core.table import idempotency
from tests.support.write_attempts import attempt, compact, latest, rows, values, write

MOST_FILLS = idempotency._MOST | {"fills": 1}


@pytest.fixture
def table(tmp_path):
    return lance_core.write_dataset(rows(100, 101), tmp_path / "t")


@pytest.fixture(params=["overwrite", "replace"])
def fill(request, table):
    """Write one value over the table, or over the slice "a" of it, on top of the newest version."""
    slices = Slices([Slice(name="a", conditions={"p": Equals("a")})]) if request.param == "replace" else None

    def fill(value, write_attempt, **options):
        options = {"mode": request.param, "slices": slices, "base": latest(table), **options}
        return write(table.uri, rows(value), write_attempt, **options)

    return fill


def clean(uri):
    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)


@pytest.mark.parametrize("between", ["nothing", "cleanup", "others", "compaction", "column", "overwrite"])
def test_an_attempt_that_was_given_up_does_not_follow_a_later_one(table, fill, between):
    fill(2, attempt(1))
    if between in ("cleanup", "others"):
        lance.write_dataset(rows(50), table.uri, mode="append")
    if between == "compaction":
        compact(lance.dataset(table.uri))
    if between == "column":
        lance.dataset(table.uri).add_columns({"w": "v + 1"})
        lance.dataset(table.uri).drop_columns(["w"])
    if between == "overwrite":
        lance.write_dataset(rows(60), table.uri, mode="overwrite")
    if between != "nothing":
        clean(table.uri)
    before = values(table.uri)
    with pytest.raises(SupersededError, match=r"version 2 was committed by a later attempt of the same write"):
        fill(1, attempt(0))
    assert values(table.uri) == before
    fill(3, attempt(1))
    fill(4, attempt(2))
    assert 4 in values(table.uri)


def test_in_any_mode(table, fill):
    """The attempts of one write can have other modes, such as after a change of its settings."""
    fill(2, attempt(1))
    with pytest.raises(SupersededError):
        write(table.uri, rows(1), attempt(0), base=latest(table))
    with pytest.raises(SupersededError):
        latest(table).merge_insert("v").when_not_matched_insert_all().write_attempt(attempt(0)).execute(rows(9))
    assert values(table.uri) == [2]


@pytest.mark.parametrize("cleaned", [False, True])
def test_of_two_writes_that_overlap_the_later_one_wins(table, fill, cleaned):
    first, second = attempt(4, begun=1), attempt(5, token=("t", "other"), begun=1)
    earlier, later = (replace(one, conflict_policy="later_wins") for one in (first, second))
    fill(2, later)
    if cleaned:
        lance.write_dataset(rows(50, part="b"), table.uri, mode="append")
        clean(table.uri)
    before = values(table.uri)
    with pytest.raises(SupersededError, match=r"version 2 was committed by a later write of the same rows"):
        fill(1, earlier)
    assert values(table.uri) == before
    third = fill(3, replace(later, token=("t", "third"), number=(6,)))
    assert third.overruled_versions == (2,)
    assert 3 in values(table.uri)
    fill(1, replace(earlier, begun=latest(table).version))
    assert 1 in values(table.uri), "it began after the other's commit"


def test_without_a_begin_the_version_that_it_was_made_from_counts(table, fill):
    fill(2, attempt(5, token=("t", "other"), conflict_policy="later_wins"))
    fill(1, attempt(4, conflict_policy="later_wins"))
    assert values(table.uri) == [1]


def test_other_slices_do_not_overlap_and_the_whole_table_does(table):
    slices = {part: Slices([Slice(name=part, conditions={"p": Equals(part)})]) for part in "ab"}

    def fill(part, number):
        overlapping = attempt(number, token=("t", str(number)), begun=1, conflict_policy="later_wins")
        options = {"mode": "overwrite"} if part is None else {"mode": "replace", "slices": slices[part]}
        write(table.uri, rows(number, part=part or "a"), overlapping, base=latest(table), **options)

    fill("a", 5)
    fill("b", 4)
    assert values(table.uri) == [4, 5]
    with pytest.raises(SupersededError):
        fill(None, 3)
    fill(None, 6)
    with pytest.raises(SupersededError):
        fill("b", 2)
    assert values(table.uri) == [6]


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("what", ["slices", "fills"])
def test_what_is_not_recorded_is_read_or_the_write_is_rejected(table, monkeypatch, what, cleaned):
    monkeypatch.setattr(idempotency, *(("_MOST_SLICES", 0) if what == "slices" else ("_MOST", MOST_FILLS)))
    slices = {part: Slices([Slice(name=part, conditions={"p": Equals(part)})]) for part in "abcd"}

    def fill(part, number):
        overlapping = attempt(number, token=("t", str(number)), begun=1, conflict_policy="later_wins")
        options = {"mode": "replace", "slices": slices[part], "base": latest(table)}
        write(table.uri, rows(number, part=part), overlapping, **options)

    fill("a", 9)
    fill("b", 8)
    if cleaned:
        clean(table.uri)
    if cleaned and what == "fills":
        with pytest.raises(HistoryGapError, match="version 2 was cleaned up"):
            fill("c", 7)
        with pytest.raises(HistoryGapError):
            fill("a", 7)
    elif cleaned:
        with pytest.raises(HistoryGapError):
            fill("a", 7)
        return
    else:
        fill("c", 7)
        with pytest.raises(SupersededError):
            fill("a", 6)
    assert 9 in values(table.uri)


def test_the_first_write_of_a_table(tmp_path):
    uri = str(tmp_path / "new")
    overlapping = {"begun": 0, "conflict_policy": "later_wins"}
    write(uri, rows(2), attempt(5, token=("t", "other"), **overlapping), mode="overwrite")
    with pytest.raises(SupersededError, match="later write of the same rows"):
        write(uri, rows(1), attempt(4, **overlapping), mode="overwrite", base=lance_core.dataset(uri))
    assert values(uri) == [2]


def test_the_record_is_bounded(table, monkeypatch):
    monkeypatch.setattr(idempotency, "_MOST", MOST_FILLS)
    for number in range(5):
        write(table.uri, rows(number), attempt(0, token=("t", str(number))), mode="overwrite", base=latest(table))
        write(table.uri, rows(number), attempt(1, token=("t", str(number))), mode="overwrite", base=latest(table))
    assert [one.version for one in latest(table).committed_fills()] == [11]
    assert latest(table).known_after("fills") == 9


def test_a_promotion_brings_the_fills_of_the_branch(table, fill):
    branch = table.branches.create("b") if hasattr(table.branches, "create") else table.create_branch("b")
    write(branch, rows(2), attempt(1), mode="overwrite", base=branch)
    table.branches.promote("b")
    before = values(table.uri)
    with pytest.raises(SupersededError):
        fill(1, attempt(0))
    assert values(table.uri) == before
