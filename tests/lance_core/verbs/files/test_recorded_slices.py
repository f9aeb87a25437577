"""Commits record the conditions of the slices that they fill; older commits, which record digests, name the same slices."""

import datetime as dt
import json
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core import Between, Equals, Slice, Slices
from lance_core.errors import BranchConflictError, RetryableConflictError
from lance_core.table.filled_slices import SLICES_KEY, overlapping_slices, read_slices

# Digests that commits recorded before they recorded conditions.
DIGESTS = {
    "bce077ebe688531a25df": {"day": Equals("d1")},
    "010a4f4bd3482d2f36f5": {"when": Between(dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)), "k": Equals(None)},
    "5318de22ac6b75f3322d": {'é"': Equals(1.5)},
}


def fill(dataset, day):
    rows = pa.table({"day": [day], "n": [1]})
    fragments = lance_core.write_fragments(rows, dataset.uri, mode="append")
    slices = Slices([Slice(name=day, conditions={"day": Equals(day)})])
    lance_core.commit_fragments(dataset.uri, fragments, rows.schema, mode="replace", slices=slices)


@pytest.mark.parametrize("digest", DIGESTS)
def test_conditions_and_their_digest_name_one_slice(digest):
    slices = Slices([Slice(name="x", conditions=DIGESTS[digest])])
    recorded = slices.properties()
    assert list(read_slices(recorded)) == slices.identities() == [digest]
    assert read_slices({SLICES_KEY: json.dumps([digest])}).keys() == read_slices(recorded).keys()
    assert read_slices(recorded)[digest].name == "x"


def test_a_commit_says_what_it_filled(tmp_path):
    table = lance_core.write_dataset({"day": ["d0"], "n": [0]}, tmp_path / "t")
    fill(table, "d1")
    properties = lance_core.dataset(table.uri).read_transaction(2).transaction_properties
    assert json.loads(properties[SLICES_KEY]) == [[["day", "Equals", ["str", "'d1'"]]]]
    assert json.loads(properties["lance.slice_names"]) == ["d1"]


@pytest.mark.parametrize("older", ["branch", "main"])
@pytest.mark.parametrize("day", ["d1", "d2"])
def test_a_promotion_beside_commits_that_record_digests(tmp_path, monkeypatch, older, day):
    main = lance_core.write_dataset({"day": ["d0"], "n": [0]}, tmp_path / "t")
    branch = main.create_branch("draft")
    for who, dataset, filled in (("branch", branch, "d1"), ("main", main, day)):
        with monkeypatch.context() as patch:
            if who == older:
                patch.setattr(Slices, "properties", lambda self: {SLICES_KEY: json.dumps(self.identities())})
            fill(dataset, filled)
    main.checkout_latest()
    if day == "d1":
        with pytest.raises(BranchConflictError, match=r"filled '(d1|bce077ebe688531a25df)' as well"):
            main.branches.promote("draft")
    else:
        main.branches.promote("draft")
    assert lance_core.dataset(main.uri).count_rows("day = 'd1'") == 1


@pytest.mark.parametrize("recorded", ["", "{", "{}", "[]", "3"])
def test_what_is_no_list_of_slices_names_none(recorded):
    assert read_slices({SLICES_KEY: recorded}) == {}


def day(number, hour=0, zone=None):
    return dt.datetime(2024, 1, number, hour, tzinfo=zone)


OVERLAPS = [
    ({"d": Between(day(1), day(3))}, {"d": Between(day(2), day(5))}, True),
    ({"d": Between(day(1), day(3))}, {"d": Between(day(3), day(5))}, False),
    ({"d": Between(day(1), day(9))}, {"d": Between(day(3), day(5))}, True),
    ({"d": Between(day(1), day(3))}, {"d": Equals(day(2))}, True),
    ({"d": Between(day(1), day(3))}, {"d": Equals(day(3))}, False),
    ({"d": Between(dt.date(2024, 1, 1), dt.date(2024, 1, 3))}, {"d": Equals(dt.date(2024, 1, 1))}, True),
    ({"d": Equals(day(1, zone=dt.timezone(dt.timedelta(hours=1))))}, {"d": Equals(day(1, zone=dt.UTC))}, False),
    ({"d": Between(1, 5), "k": Equals("a")}, {"d": Between(2, 9), "k": Equals("a")}, True),
    ({"d": Between(1, 5), "k": Equals("a")}, {"d": Between(2, 9), "k": Equals("b")}, False),
    ({"d": Between(1, 5), "e": Between(1, 5)}, {"d": Between(2, 9), "e": Between(5, 9)}, False),
    ({"d": Between(1, 5), "e": Between(1, 5)}, {"d": Between(2, 9), "e": Between(4, 9)}, True),
    ({"k": Equals("a")}, {"k": Equals("a"), "d": Equals(1)}, True),
    ({"k": Equals("a")}, {"d": Equals(1)}, True),
    ({"k": Equals(1)}, {"k": Equals(1.0)}, True),
    ({"k": Equals(np.int64(1))}, {"k": Equals(1)}, True),
    ({"k": Equals(Decimal("1.0"))}, {"k": Equals(Decimal("1.00"))}, True),
    ({"k": Equals(Decimal("1.0"))}, {"k": Equals(Decimal("1.01"))}, False),
    ({"k": Equals(None)}, {"k": Between(1, 5)}, False),
    ({"k": Equals(None)}, {"k": Equals("None")}, False),
    ({"k": Equals(float("nan"))}, {"k": Equals(float("nan"))}, True),
    ({"k": Equals(dt.time(1))}, {"k": Equals(dt.time(2))}, False),
    ({"k": Between(1, 5)}, {"k": Between(day(1), day(2))}, True),  # they cannot be compared
]


def properties_of(*slices):
    return Slices(Slice(name=str(place), conditions=conditions) for place, conditions in enumerate(slices)).properties()


@pytest.mark.parametrize(("conditions", "other_conditions", "overlap"), OVERLAPS)
def test_slices_with_a_row_in_common_overlap(conditions, other_conditions, overlap):
    pair = properties_of(conditions), properties_of(other_conditions)
    assert [bool(overlapping_slices(*pair)), bool(overlapping_slices(*reversed(pair)))] == [overlap, overlap]


def test_many_slices_overlap_if_some_pair_does():
    seeded = random.Random(1)

    def draw():
        starts = sorted(seeded.sample(range(40), seeded.randrange(1, 6)))
        return [(start, start + seeded.randrange(1, 3), seeded.choice("ab")) for start in starts[::2]]

    for _ in range(500):
        mine, theirs = draw(), draw()
        expected = any(a < d and c < b and key == other for a, b, key in mine for c, d, other in theirs)
        sides = [
            properties_of(*({"d": Between(start, end), "k": Equals(key)} for start, end, key in side))
            for side in (mine, theirs)
        ]
        assert bool(overlapping_slices(*sides)) == expected, (mine, theirs)


def test_ten_thousand_ranges_are_compared_quickly():
    mine = properties_of(*({"d": Between(2 * n, 2 * n + 1)} for n in range(10_000)))
    theirs = properties_of(*({"d": Between(2 * n + 1, 2 * n + 2)} for n in range(10_000)))
    assert not overlapping_slices(mine, theirs)


@pytest.mark.parametrize("first", [Between(0, 10), Between(15, 20)])
def test_of_two_replacements_of_overlapping_empty_ranges_one_is_computed_again(tmp_path, first):
    table = lance_core.write_dataset({"d": [100], "n": [0]}, tmp_path / "t")

    def replace_range(bounds, value, n):
        rows = pa.table({"d": [value], "n": [n]})
        fragments = lance_core.write_fragments(rows, table.uri, mode="append")
        slices = Slices([Slice(name=str(bounds.start), conditions={"d": bounds})])
        arguments = {"mode": "replace", "slices": slices, "read_version": 1}
        return lance_core.commit_fragments(table.uri, fragments, rows.schema, **arguments)

    replace_range(first, first.start + 5 if first.start == 0 else 15, 1)
    if first.start == 0:
        with pytest.raises(RetryableConflictError):
            replace_range(Between(5, 15), 12, 2)
    else:
        replace_range(Between(5, 15), 12, 2)
    assert lance_core.dataset(table.uri).count_rows() == (2 if first.start == 0 else 3)


@pytest.mark.parametrize(
    ("condition", "recorded"),
    [
        (pc.field("day") == "d1", [["day", "Equals", ["str", "'d1'"]]]),
        ((pc.field("n") >= 1) & (pc.field("n") < 5), [["n", "Between", ["int", "1"], ["int", "5"]]]),
        ((pc.field("n") > 1) & (pc.field("n") <= 5), [["n", "Between", ["int", "2"], ["int", "6"]]]),
        (pc.field("n") < 5, [["n", "Between", ["float", "-inf"], ["int", "5"]]]),
        ((pc.field("n") == 1) & (pc.field("n") < 9) & (pc.field("s") != "x"), [["n", "Equals", ["int", "1"]]]),
        (pc.field("d") <= dt.date(2024, 1, 31), [["d", "Between", ["date", "0001-01-01"], ["date", "2024-02-01"]]]),
        ((pc.field("n") == 1) | (pc.field("n") == 2), []),
        (pc.scalar(True), []),
    ],
)
def test_the_rows_that_a_condition_replaces_are_recorded(condition, recorded):
    properties = lance_core.describe_replaced_rows(condition)
    assert json.loads(properties["lance.replaced_rows"]) == recorded
    assert overlapping_slices(properties, properties) == ["replaced rows"]
    assert not overlapping_slices(properties, {})
