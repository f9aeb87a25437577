"""Lakes of random tables: a dry run gives the numbers of the run that follows, and a run leaves nothing to a second one.

`LAKE_SEEDS=0:300 pytest -m slow` of this file draws 300 lakes.
"""

import os
import random
import shutil

import pytest

import lance_core
from lance_core import maintenance
from lance_dagster import LanceMaintenanceBudget, LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.maintenance.random_tables import build
from tests.lance_dagster.maintenance.test_dry_run import long_ago, numbers
from tests.lance_dagster.maintenance.test_maintenance import failures, observations, run
from tests.support.local_child import LocalChild, use_children

__all__ = ["long_ago"]

POLICIES = (
    {},
    {"retain_versions": 1},
    {"cleanup_older_than": None},
    {"cleanup_older_than": None, "retain_versions": 1},
    {"cleanup_older_than": None, "retain_versions": 3},
    {"cleanup_older_than": "1d", "retain_versions": 2},
    {"target_rows_per_fragment": 100},
    {"materialize_deletions_threshold": 0.0, "cleanup_older_than": None, "retain_versions": 2},
    {"refresh_indices": False},
)
LIMITS = ({}, {}, {"max_tables": 1}, {"max_tables": 2}, {"max_bytes_rewritten": 20_000}, {"max_bytes_rewritten": 5_000})
FIRST, END = map(int, os.environ.get("LAKE_SEEDS", "0:40").split(":"))


def build_tables(lake, draw):
    return {
        f"t{place}": build(draw.randrange(2**32), f"{lake.root}/t{place}.lance") for place in range(draw.randint(1, 4))
    }


def versions(lake, tables):
    return {name: lance_core.dataset(f"{lake.root}/{name}.lance").version for name in tables}


def counts(lake, tables):
    return {name: lance_core.dataset(f"{lake.root}/{name}.lance").count_rows() for name in tables}


def vectors(lake, tables):
    """The segments of the indices of vectors of each table."""
    found = {name: lance_core.dataset(f"{lake.root}/{name}.lance").describe_indices() for name in tables}
    return {
        name: {str(one.uuid) for index in indices if "IVF" in index.index_type for one in index.segments}
        for name, indices in found.items()
    }


def outcomes(result):
    """The summary of a run without what a dry run lists beside it."""
    assert result.success, failures(result)
    found = result.output_for_node("summarize")
    return {kind: found[kind] for kind in ("put_off", "partly_done", "failed", "absent", "left_alone")}


def differences(dry, wet, joined=()):
    """The numbers in which a dry run and the run after it differ, by table, but where pylance joined segments."""
    found = {name: (numbers(dry, name), numbers(wet, name)) for name in observations(wet) if name not in joined}
    return {
        f"{name} {key}": (one.get(key), other.get(key))
        for name, (one, other) in found.items()
        for key in {**one, **other}
        if one.get(key) != other.get(key)
    }


def check_lake(lake, undo, seed):
    draw = random.Random(seed)
    policy, limits = draw.choice(POLICIES), draw.choice(LIMITS)
    tables = build_tables(lake, draw)
    undo()
    lake_of = f"seed {seed}, policy {policy}, limits {limits}, tables {tables}"
    job = build_maintenance_job(
        root=True, policy=LanceMaintenancePolicy(**policy), budget=LanceMaintenanceBudget(**limits)
    )
    rows = counts(lake, tables)
    for _ in range(6):
        before = versions(lake, tables)
        dry = run(lake, job, {"ops": {"plan": {"config": {"dry_run": True}}}})
        assert dry.success, lake_of
        assert versions(lake, tables) == before, lake_of
        segments = vectors(lake, tables)
        wet = run(lake, job)
        joined = {name for name, now in vectors(lake, tables).items() if not segments[name] <= now}
        worked = observations(wet)
        assert outcomes(dry) == outcomes(wet), lake_of
        assert differences(dry, wet, joined) == {}, lake_of
        assert set(observations(dry)) == set(worked), lake_of
        assert counts(lake, tables) == rows, lake_of
        left = outcomes(wet)
        if not left["put_off"] and not left["partly_done"]:
            break
    if limits and (left["put_off"] or left["partly_done"]):
        return  # rewrites that are larger than the whole budget
    assert (left["put_off"], left["partly_done"]) == ({}, {}), lake_of
    if policy == {"refresh_indices": False}:
        run(lake, job)  # indices of several kinds may only allow a second run to merge what the first one has made
    before = versions(lake, tables)
    again = run(lake, job)
    assert sorted(again.output_for_node("summarize")["healthy"]) == sorted(tables), lake_of
    assert versions(lake, tables) == before, lake_of


@pytest.mark.variants(2)
@pytest.mark.parametrize("seed", [12, 18, 24, 25, 26])  # each had a fault once
def test_a_dry_run_foretells_the_run_and_a_second_run_does_nothing(lake, long_ago, seed):
    check_lake(lake, long_ago, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, END))
def test_many_lakes(lake, long_ago, seed):
    check_lake(lake, long_ago, seed)


APART = 3
"""The most segments that stay apart, as each has more than twice the rows of the later ones: 21 rows beside 63, 189 ..."""


@pytest.mark.parametrize("seed", [1, 3, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(FIRST, END))])
def test_covered_rows_are_merged_as_those_of_a_table_without_indices(tmp_path, monkeypatch, seed):
    use_children(monkeypatch, LocalChild)
    build(seed, str(tmp_path / "t.lance"))
    table = lance_core.dataset(str(tmp_path / "t.lance"))
    for _ in range(8):  # as promotions do
        table.insert(table.to_table(limit=7))
        maintenance.cover_rows(table)
    shutil.copytree(tmp_path / "t.lance", tmp_path / "twin.lance")
    twin = lance_core.dataset(str(tmp_path / "twin.lance"))
    for name in {index.name for index in twin.describe_indices() if not index.name.startswith("__lance_")}:
        twin.drop_index(name)
    policy = maintenance.MaintenancePolicy(cleanup_older_than=None)
    for each in (table, twin):
        maintenance.maintain(each, policy)
    assert len(table.get_fragments()) <= len(twin.get_fragments()) + APART
    if seed == 26:  # indices of two kinds, whose segments the rewrites have changed
        maintenance.maintain(table, policy)
    assert maintenance.maintain(table, policy).outcome == "healthy"
