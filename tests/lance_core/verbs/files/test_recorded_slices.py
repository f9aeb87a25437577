"""Commits record the conditions of the slices that they fill; older commits, which record digests, name the same slices."""

import datetime as dt
import json

import pyarrow as pa
import pytest

import lance_core
from lance_core import Between, Equals, Slice, Slices
from lance_core.errors import BranchConflictError
from lance_core.table.filled_slices import SLICES_KEY, read_slices

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
