"""Old versions that are kept for somebody are no work: such a table is healthy, and leaves the budget to others."""

import time
from datetime import timedelta
from types import SimpleNamespace

import dagster as dg
import lance as pylance
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance.routine import budget, indices
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job, build_maintenance_sensor
from tests.lance_dagster.lake import QUIET
from tests.lance_dagster.maintenance.test_budget import summary
from tests.lance_dagster.maintenance.test_lake import fill_foreign
from tests.lance_dagster.maintenance.test_log import rows
from tests.lance_dagster.maintenance.test_maintenance import run
from tests.lance_dagster.maintenance.test_search_indices import without_pylance

KEEP_NEWEST = LanceMaintenancePolicy(retain_versions=1, cleanup_older_than=None)


def event(lake, name):
    """An asset whose last event names the version that its table has now."""

    @dg.asset(key_prefix=name.split("/")[0], name=name.split("/")[1])
    def made() -> pa.Table:
        return pa.table({"n": [1, 2]})

    lake.run(made)
    return made


def maintain(lake, assets=(), policy=KEEP_NEWEST, **options):
    job = build_maintenance_job(list(assets), policy, root=True, **options)
    manager = lake.manager(read="materialized")
    defs = dg.Definitions(assets=list(assets), jobs=[job], resources={"io_manager": manager})
    result = defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET)
    return summary(result)


def change_settings(lake, name):
    """A commit after the version of the event that adds no fragment."""
    lake.table(name).update_config({"a": str(lake.table(name).version)})


def test_a_version_that_an_event_names_is_no_work(lake):
    first = event(lake, "nyc/flights")
    change_settings(lake, "nyc/flights")
    for _ in range(2):
        found = maintain(lake, [first])
        assert (found["done"], found["healthy"]) == ([], ["nyc/flights"])
    assert [one["version"] for one in lake.table("nyc/flights").versions()] == [1, 2]
    assert {row["outcome"] for row in rows(lake) if row["step"] == "table"} == {"healthy"}
    change_settings(lake, "nyc/flights")
    assert maintain(lake, [first])["done"] == ["nyc/flights"]
    assert maintain(lake, [first])["healthy"] == ["nyc/flights"]
    assert [one["version"] for one in lake.table("nyc/flights").versions()] == [1, 3]


@pytest.mark.parametrize("kept_for", ["tag", "reader", "branch", "branch of pylance"])
def test_versions_of_tags_readers_and_branches_are_no_work(lake, kept_for):
    fill_foreign(lake, "nyc/flights", pieces=1)
    table = lake.table("nyc/flights")
    if kept_for == "tag":
        table.tags.create("july", 1)
    elif kept_for == "reader":
        table.readers.hold("report")
    elif kept_for == "branch":
        table.create_branch("work")
    else:
        pylance.dataset(lake.uri("nyc/flights")).create_branch("work")
    change_settings(lake, "nyc/flights")
    for _ in range(2):
        found = maintain(lake)
        assert (found["done"], found["healthy"]) == ([], ["nyc/flights"])


def test_a_version_of_an_age_that_is_kept_hides_no_later_one(lake):
    fill_foreign(lake, "nyc/flights", pieces=1)
    lake.table("nyc/flights").tags.create("july", 1)
    change_settings(lake, "nyc/flights")
    change_settings(lake, "nyc/flights")
    week = LanceMaintenancePolicy(cleanup_older_than="7d")
    assert maintain(lake, policy=week)["healthy"] == ["nyc/flights"]
    now = LanceMaintenancePolicy(cleanup_older_than=timedelta(microseconds=1))
    assert maintain(lake, policy=now)["done"] == ["nyc/flights"]
    assert [one["version"] for one in lake.table("nyc/flights").versions()] == [1, 3]
    assert maintain(lake, policy=now)["healthy"] == ["nyc/flights"]


def test_a_tag_of_a_reader_that_is_too_old_keeps_nothing(lake):
    fill_foreign(lake, "nyc/flights", pieces=1)
    lake.table("nyc/flights").readers.hold("report")
    lake.table("nyc/flights").update_config({"lance-dagster.changes.days": "0"})
    assert maintain(lake)["done"] == ["nyc/flights"]
    assert maintain(lake)["healthy"] == ["nyc/flights"]


def test_other_tables_get_the_budget(lake):
    kept = [event(lake, f"nyc/kept{number}") for number in range(3)]
    for asset in kept:
        change_settings(lake, asset.key.to_user_string())
    fill_foreign(lake, "sea/ships", pieces=6)
    found = maintain(lake, kept, budget={"max_tables": 1})
    assert found["done"] == ["sea/ships"]
    assert found["put_off"] == {}
    assert found["healthy"] == ["nyc/kept0", "nyc/kept1", "nyc/kept2"]


@pytest.mark.parametrize("kept_for", ["reader", "branch of pylance"])
def test_the_budget_is_not_used_for_versions_that_a_plan_keeps(lake, kept_for):
    fill_foreign(lake, "nyc/flights", pieces=1)
    table = lake.table("nyc/flights")
    if kept_for == "reader":
        table.readers.hold("report")
        change_settings(lake, "nyc/flights")  # a version that the reader has not consumed
    else:
        pylance.dataset(table.uri).create_branch("work")
    change_settings(lake, "nyc/flights")
    fill_foreign(lake, "sea/ships", pieces=6)
    found = maintain(lake, budget={"max_tables": 1})
    assert (found["done"], found["put_off"], found["healthy"]) == (["sea/ships"], {}, ["nyc/flights"])


def expired_bytes(monkeypatch):
    """The bytes that cleanup would remove, of each table that is ranked from now on."""
    seen, real = [], budget._rank

    def rank(report):
        seen.append(report.plan.expired_bytes)
        return real(report)

    monkeypatch.setattr(budget, "_rank", rank)
    return seen


def test_bytes_of_a_version_that_stays_do_not_count_as_a_benefit(lake, monkeypatch):
    fill_foreign(lake, "nyc/flights", pieces=1)
    lake.table("nyc/flights").tags.create("july", 1)
    pylance.write_dataset(pa.table({"n": [5]}), lake.uri("nyc/flights"), mode="overwrite")
    change_settings(lake, "nyc/flights")
    seen = expired_bytes(monkeypatch)
    maintain(lake, budget={"max_tables": 1})
    assert seen == [0]


def test_bytes_of_columns_that_were_written_again_count_as_a_benefit(lake, monkeypatch):
    fill_foreign(lake, "nyc/flights", pieces=1)
    table = lake.table("nyc/flights")
    old = table.get_fragments()[0].metadata.files
    table.alter_columns(*({"path": name, "data_type": pa.int32()} for name in table.schema.names))
    seen = expired_bytes(monkeypatch)
    maintain(lake, budget={"max_tables": 1})
    assert seen == [sum(file.file_size_bytes for file in old)]


def test_the_sensor_takes_healthy_for_finished(lake):
    first = event(lake, "nyc/flights")
    for _ in range(3):
        change_settings(lake, "nyc/flights")
    policy = LanceMaintenancePolicy(retain_versions=100, cleanup_older_than=None, max_versions=2)
    job = build_maintenance_job([first], policy)
    sensor = build_maintenance_sensor(job, [first], policy, minimum_interval_seconds=0)

    def tick(cursor):
        resources = {"io_manager": lake.manager()}
        with dg.build_sensor_context(instance=lake.instance, cursor=cursor, resources=resources) as context:
            return sensor(context)

    asked = tick(None)
    (request,) = asked.run_requests
    result = run(lake, job, dict(request.run_config), tags=request.tags)
    assert summary(result)["healthy"] == ["nyc/flights"]
    again = tick(asked.cursor)
    assert not getattr(again, "run_requests", None)


@pytest.mark.parametrize("kind", ["IVF_PQ", "BTREE"])
def test_an_index_that_nothing_here_extends_is_no_work(lake, monkeypatch, kind):
    vectors = pa.array([[float(i + k) for k in range(8)] for i in range(300)], pa.list_(pa.float32(), 8))
    found = pa.table({"n": list(range(300)), "v": vectors})
    made = pylance.write_dataset(found, lake.uri("nyc/docs"))
    if kind == "BTREE":
        made.create_scalar_index("n", kind)
    else:
        made.create_index("v", kind, num_partitions=1, num_sub_vectors=1)
    pylance.write_dataset(found, lake.uri("nyc/docs"), mode="append")
    without_pylance(monkeypatch)
    monkeypatch.setattr(indices, "find_pylance", lambda: None)
    policy = LanceMaintenancePolicy(max_small_fragments=10, target_rows_per_fragment=10)
    outcomes = [maintain(lake, policy=policy) for _ in range(2)]
    expected = ["healthy", "healthy"] if kind == "IVF_PQ" else ["done", "healthy"]
    assert [next(kind for kind in ("done", "healthy") if one[kind]) for one in outcomes] == expected


def test_an_age_counts_from_when_a_version_was_replaced(lake, monkeypatch):
    """The only good version of a table that is written once a month stays when a bad write and a run follow."""
    clock = SimpleNamespace(**vars(time))
    clock.time_ns = lambda: time.time_ns() - 40 * 86_400 * 10**9
    monkeypatch.setattr("lance_core.commit.loop.time", clock)
    for number in range(3):
        lance_core.write_dataset({"n": [number]}, lake.uri("nyc/flights"), mode="append")
    monkeypatch.undo()
    good = lake.table("nyc/flights").version
    lake.table("nyc/flights").delete("true")
    week = LanceMaintenancePolicy(cleanup_older_than="7d")
    assert maintain(lake, policy=week)["done"] == ["nyc/flights"]
    assert min(one["version"] for one in lake.table("nyc/flights").versions()) == good
    assert lake.table("nyc/flights").checkout_version(good).count_rows()
    assert maintain(lake, policy=week)["healthy"] == ["nyc/flights"]
