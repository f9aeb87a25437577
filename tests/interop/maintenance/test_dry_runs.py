"""A dry run has the numbers of the run that follows it: small tables at random, with expiry, deletions and indices."""

import datetime as dt
import random

import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance
from lance_core.maintenance import MaintenancePolicy

TODAY = dt.datetime.now(dt.UTC).date()
NUMBERS = ("rows_expired", "bytes_expired", "fragments_removed", "fragments_added", "indices_refreshed")


def days_ago(ages):
    return pa.array([TODAY - dt.timedelta(days=age) for age in ages], pa.date32())


def compare(uri, policy):
    """Compare a dry run with the run; bytes that are read are not, as the run can read files that it has written."""
    dry = maintenance.maintain(lance_core.dataset(uri), policy, dry_run=True)
    run = maintenance.maintain(lance_core.dataset(uri), policy)
    assert {name: dry.done.get(name, 0) for name in NUMBERS} == {name: run.done.get(name, 0) for name in NUMBERS}
    for name in ("fragments", "rows", "deleted_rows", "versions"):
        assert run.after is None or getattr(dry.after, name) == getattr(run.after, name), name
    return dry, run


@pytest.mark.variants(16)
@pytest.mark.parametrize("seed", range(400))
def test_a_table_at_random(seed):
    choice = random.Random(seed)
    uri, is_stable = f"memory://dry-run-{seed}.lance", choice.random() < 0.5
    for first in range(choice.randrange(2, 9)):
        count = choice.randrange(1, 7)
        rows = {"id": range(first * 10, first * 10 + count), "day": days_ago(choice.choices([0, 120, 500], k=count))}
        lance_core.write_dataset(pa.table(rows), uri, mode="append", enable_stable_row_ids=is_stable)
    table = lance_core.dataset(uri)
    if choice.random() < 0.5:
        table.delete(f"id % {choice.choice([2, 3, 5])} = 0")
    if choice.random() < 0.4:
        table.create_scalar_index("id", choice.choice(["BTREE", "BITMAP", "ZONEMAP"]))
        if choice.random() < 0.5:
            table.insert(pa.table({"id": range(100, 104), "day": days_ago([0, 500, 0, 120])}))
    expiry = {"expire_rows_older_than": "400d", "expire_by": "day"} if choice.random() < 0.7 else {}
    target, threshold = choice.choice([4, 8, 16]), choice.choice([0.1, 0.5])
    compare(
        uri, MaintenancePolicy(target_rows_per_fragment=target, materialize_deletions_threshold=threshold, **expiry)
    )


def test_fragments_that_lose_rows_are_planned_as_they_are_then():
    uri = "memory://dry-run-ages.lance"
    for ages in ([0, 0], [500, 120, 0], [0, 120], [0, 0], [0, 120, 500, 500, 0], [0, 120, 500, 120, 500, 0]):
        lance_core.write_dataset({"day": days_ago(ages)}, uri, mode="append")
    policy = MaintenancePolicy(
        target_rows_per_fragment=8, materialize_deletions_threshold=0.5, expire_rows_older_than="400d", expire_by="day"
    )
    dry, run = compare(uri, policy)
    assert (run.done["rows_expired"], run.done["fragments_added"]) == (5, 1)
    assert dry.done["bytes_read"] == run.done["bytes_read"]


def test_dictionaries_with_narrow_indices():
    """The values of fragments that lose rows are not read twice: they count as fitting together."""
    uri = "memory://dry-run-categories.lance"
    for first in range(0, 90, 30):
        words = pa.array([f"word {first + n % 60}" for n in range(100)]).dictionary_encode()
        days = days_ago([0 if n % 3 else 500 for n in range(100)])
        rows = pa.table({"word": words.cast(pa.dictionary(pa.int8(), pa.string())), "day": days})
        lance_core.write_dataset(rows, uri, mode="append")
    policy = MaintenancePolicy(target_rows_per_fragment=250, expire_rows_older_than="400d", expire_by="day")
    compare(uri, policy)


def test_budget():
    """What the run plans again after its expiry counts, too."""
    uri = "memory://lake-of-dry-runs/t.lance"
    for ages in ([0, 0], [500, 0, 0], [0, 0], [500, 0, 0]):
        lance_core.write_dataset({"day": days_ago(ages)}, uri, mode="append")
    policy = MaintenancePolicy(expire_rows_older_than="400d", expire_by="day")
    budget = maintenance.MaintenanceBudget(max_bytes_rewritten=600)
    lake = {"policy": policy, "budget": budget}
    (dry,) = maintenance.maintain_lake("memory://lake-of-dry-runs", dry_run=True, **lake)
    (run,) = maintenance.maintain_lake("memory://lake-of-dry-runs", **lake)
    assert (dry.deferred, dry.after.fragments) == (run.deferred, run.after.fragments)
    assert dry.deferred is not None
