"""A dry run gives all numbers of the run that follows: each kind of work beside each kind of cleanup."""

import time
from pathlib import Path
from types import SimpleNamespace

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance.routine import survey
from lance_dagster import LanceMaintenanceBudget, LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.maintenance.test_maintenance import failures, observations, run

FORTNIGHT_NS = 14 * 86_400 * 10**9
NOW_KEYS = {  # the table at the time of the observation, which the dry run leaves as it is
    "lance/version",
    "lance/fragments",
    "lance/small_fragments",
    "lance/deleted_fraction",
    "lance/versions_total",
    "lance/index_unindexed_fraction",
}
UNKNOWN = {"lance/seconds", "lance/bytes_written", "lance/bytes_after"}


@pytest.fixture
def long_ago(monkeypatch):
    """Versions are committed a fortnight ago, until it is called."""
    clock = SimpleNamespace(**vars(time))
    clock.time_ns = lambda: time.time_ns() - FORTNIGHT_NS
    monkeypatch.setattr("lance_core.commit.loop.time", clock)
    return monkeypatch.undo


def rows(first, count=100):
    return pa.table({"n": range(first, first + count), "k": [i % 7 for i in range(count)], "s": ["a b"] * count})


def grown(pieces=6, **options):
    def fill(uri):
        for piece in range(pieces):
            lance_core.write_dataset(rows(piece * 100), uri, mode="append", **options)

    return fill


def rewrites(uri):
    grown()(uri)


def rewrites_of_rows_with_ids(uri):
    grown(enable_stable_row_ids=True)(uri)
    lance_core.dataset(uri).create_scalar_index("n", "BTREE")
    grown(2)(uri)


def rewrites_of_indexed_rows(uri):
    grown()(uri)
    table = lance_core.dataset(uri)
    table.create_scalar_index("n", "BTREE")
    table.create_scalar_index("k", "BITMAP")
    table.create_scalar_index("n", "ZONEMAP", name="zones")


def rewrites_and_refreshed_indices(uri):
    rewrites_of_indexed_rows(uri)
    grown(3)(uri)


def refreshed_indices(uri):
    lance_core.write_dataset(rows(0, 1000), uri)
    table = lance_core.dataset(uri)
    table.create_scalar_index("n", "BTREE")
    table.create_scalar_index("k", "BITMAP")
    lance_core.write_dataset(rows(1000, 10), uri, mode="append")
    lance_core.dataset(uri).update_config({"lance.compaction.target_rows_per_fragment": "1"})


def indices_of_several_segments(uri):
    refreshed_indices(uri)
    table = lance_core.dataset(uri)
    table.optimize.optimize_indices(num_indices_to_merge=0)
    lance_core.write_dataset(rows(2000, 10), uri, mode="append")


def search_indices(uri):
    grown()(uri)
    lance.dataset(uri).create_scalar_index("s", "INVERTED")
    grown(3)(uri)


def deletions(uri):
    lance_core.write_dataset(rows(0, 1000), uri, max_rows_per_file=500)
    lance_core.dataset(uri).update_config({"lance.compaction.target_rows_per_fragment": "400"})
    lance_core.dataset(uri).delete("n % 3 = 0 and n < 500")


def deletions_of_all_rows(uri):
    grown()(uri)
    lance_core.dataset(uri).delete("n >= 0")


def deletions_in_indexed_rows(uri):
    deletions(uri)
    lance_core.dataset(uri).create_scalar_index("n", "BTREE")


def many_small_files(uri):
    grown()(uri)
    lance_core.dataset(uri).update_config({"lance.compaction.target_rows_per_fragment": "250"})


def nothing(uri):
    lance_core.write_dataset(rows(0), uri)


def nothing_but_old_versions(uri):
    for _ in range(5):
        lance_core.write_dataset(rows(0), uri, mode="overwrite")


def tags(uri):
    grown()(uri)
    table = lance_core.dataset(uri)
    table.update_config({"lance-dagster.changes.days": "0"})
    table.tags.create("release", 2)
    table.checkout_version(3).readers.hold("reader")


KINDS = (
    rewrites,
    rewrites_of_rows_with_ids,
    rewrites_of_indexed_rows,
    rewrites_and_refreshed_indices,
    refreshed_indices,
    indices_of_several_segments,
    search_indices,
    deletions,
    deletions_of_all_rows,
    deletions_in_indexed_rows,
    many_small_files,
    nothing,
    nothing_but_old_versions,
    tags,
)
CLEANUPS = {
    "none": {"cleanup_older_than": None},
    "age": {"cleanup_older_than": "1d"},
    "one": {"cleanup_older_than": None, "retain_versions": 1},
    "three": {"cleanup_older_than": None, "retain_versions": 3},
    "five": {"cleanup_older_than": None, "retain_versions": 5},
    "both": {"cleanup_older_than": "1d", "retain_versions": 4},
}


def numbers(result, table):
    """The numbers of a table in a run, but those of the moment and those that cannot be foreseen."""
    found = observations(result).get(table, {})
    counted = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {name: value for name, value in counted.items() if name not in NOW_KEYS | UNKNOWN}


def dry_and_real(lake, job):
    before = contents(lake)
    dry = run(lake, job, {"ops": {"plan": {"config": {"dry_run": True}}}})
    assert dry.success, failures(dry)
    assert contents(lake) == before
    wet = run(lake, job)
    assert wet.success, failures(wet)
    return dry, wet


def contents(lake):
    return {kind.__name__: lance_core.dataset(f"{lake.root}/{kind.__name__}.lance").version for kind in there(lake)}


def there(lake):
    return [kind for kind in KINDS if Path(lake.root, f"{kind.__name__}.lance").exists()]


@pytest.mark.variants(2)
@pytest.mark.parametrize("cleanup", CLEANUPS)
def test_all_numbers_are_those_of_the_run_that_follows(lake, long_ago, cleanup):
    for kind in KINDS:
        kind(f"{lake.root}/{kind.__name__}.lance")
    long_ago()
    job = build_maintenance_job(root=True, policy=LanceMaintenancePolicy(**CLEANUPS[cleanup]))
    dry, wet = dry_and_real(lake, job)
    worked = [kind.__name__ for kind in KINDS if kind.__name__ in observations(wet)]
    assert len(worked) >= len(KINDS) - 3
    assert {table: numbers(dry, table) for table in worked} == {table: numbers(wet, table) for table in worked}
    for table in worked:  # nothing but what is not known is left out
        assert set(observations(wet)[table]) - set(observations(dry)[table]) <= UNKNOWN
    assert sorted(set(observations(dry)) - set(worked)) == []


@pytest.mark.parametrize("limits", [{"max_tables": 2}, {"max_bytes_rewritten": 20_000}])
def test_numbers_of_a_part_that_fits_into_the_budget(lake, long_ago, limits):
    for kind in (rewrites, many_small_files, deletions, rewrites_and_refreshed_indices):
        kind(f"{lake.root}/{kind.__name__}.lance")
    long_ago()
    policy = LanceMaintenancePolicy(cleanup_older_than="1d", retain_versions=3)
    budget = LanceMaintenanceBudget(**limits)
    dry, wet = dry_and_real(lake, build_maintenance_job(root=True, policy=policy, budget=budget))
    assert dry.output_for_node("summarize")["put_off"] == wet.output_for_node("summarize")["put_off"]
    worked = list(observations(wet))
    assert worked
    assert {table: numbers(dry, table) for table in worked} == {table: numbers(wet, table) for table in worked}


def test_a_dry_run_that_fails_names_its_table_and_leaves_the_others(lake, monkeypatch):
    for kind in (rewrites, deletions):
        kind(f"{lake.root}/{kind.__name__}.lance")
    real = survey.cleanup_selectors

    def fail(plan, in_use):
        if plan.table == "rewrites":
            raise OSError("no answer")
        return real(plan, in_use)

    monkeypatch.setattr("lance_core.maintenance.routine.dry_run.cleanup_selectors", fail)
    found = run(lake, build_maintenance_job(root=True), {"ops": {"plan": {"config": {"dry_run": True}}}})
    assert not found.success
    assert any("rewrites: dry_run: OSError: no answer" in message for message in failures(found).values())
    assert "deletions" in observations(found)
