"""Budgets of runs: the best work first, what is put off is named and comes first next time, a dry run is exact."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CommitConflictError
from lance_core.maintenance.routine import steps
from lance_dagster import LanceMaintenanceBudget, LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.maintenance.test_lake import fragments
from tests.lance_dagster.maintenance.test_log import rows
from tests.lance_dagster.maintenance.test_maintenance import NOW, failures, observations, run


def fill_wide(lake, path, rows_each, pieces=6):
    for piece in range(pieces):
        table = pa.table({"n": [hash((piece, i)) for i in range(rows_each)]})
        lance.write_dataset(table, f"{lake.root}/{path}.lance", mode="append")
    return sum(file.stat().st_size for file in Path(lake.root, f"{path}.lance", "data").iterdir())


def with_budget(**limits):
    return build_maintenance_job(root=True, budget=LanceMaintenanceBudget(**limits))


def summary(result):
    assert result.success, failures(result)
    return result.output_for_node("summarize")


def test_a_mapping_is_a_budget_and_anything_else_is_rejected(lake):
    for path in ("a/one", "b/two"):
        fill_wide(lake, path, 10)
    found = summary(run(lake, build_maintenance_job(root=True, budget={"max_tables": 1})))
    assert (len(found["done"]), len(found["put_off"])) == (1, 1)
    for wrong in ({"max_table": 1}, {"max_tables": 0}, 3):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="budget"):
            build_maintenance_job(root=True, budget=wrong)


def test_max_tables_takes_the_best_ones_and_the_others_come_first_next_time(lake):
    fill_wide(lake, "a/large", 200_000)
    fill_wide(lake, "b/small", 10)
    job = with_budget(max_tables=1)
    first = summary(run(lake, job))
    assert first["done"] == ["b/small"]
    assert first["put_off"] == {"a/large": "max_tables: 1 tables come first"}
    (record,) = [row for row in rows(lake) if row["table"] == "a/large"]
    assert (record["outcome"], record["reason"], record["fragments"]) == ("put off", first["put_off"]["a/large"], 6)
    fill_wide(lake, "c/better", 10)
    second = summary(run(lake, job))
    assert (second["done"], list(second["put_off"])) == (["a/large"], ["c/better"])
    assert summary(run(lake, job))["done"] == ["c/better"]
    assert summary(run(lake, job))["put_off"] == {}


def test_bytes_are_spent_and_never_exceeded(lake):
    small, large = fill_wide(lake, "b/small", 10), fill_wide(lake, "a/large", 50_000)
    found = run(lake, with_budget(max_bytes_rewritten=small))
    assert summary(found)["done"] == ["b/small"]
    reason = f"max_bytes_rewritten: 1 of 1 rewrites, {large:,} bytes, do not fit into the 0 that are left of {small:,}"
    assert summary(found)["put_off"] == {"a/large": reason}
    assert observations(found)["b/small"]["lance/bytes_read"] == small
    assert fragments(lake, "a/large") == 6
    found = run(lake, with_budget(), {"ops": {"plan": {"config": {"budget": {"max_bytes_rewritten": large}}}}})
    assert summary(found)["done"] == ["a/large"]


def test_a_part_of_a_table_that_fits_is_done_and_the_rest_later(lake):
    for piece in range(8):
        table = pa.table({"n": list(range(piece * 100, piece * 100 + 100))})
        lance.write_dataset(table, f"{lake.root}/a/t.lance", mode="append")
    size = sum(file.stat().st_size for file in Path(lake.root, "a/t.lance/data").iterdir())
    policy = LanceMaintenancePolicy(target_rows_per_fragment=400)
    job = build_maintenance_job(root=True, policy=policy, budget=LanceMaintenanceBudget(max_bytes_rewritten=size // 2))
    found = run(lake, job)
    assert summary(found)["done"] == []
    assert "1 of 2 rewrites" in summary(found)["partly_done"]["a/t"]
    assert fragments(lake, "a/t") == 5
    assert observations(found)["a/t"]["lance/bytes_read"] == size // 2
    assert summary(run(lake, job))["done"] == ["a/t"]
    assert fragments(lake, "a/t") == 2
    assert sorted(lance.dataset(f"{lake.root}/a/t.lance").to_table()["n"].to_pylist()) == list(range(800))


def test_what_is_not_begun_in_time_is_put_off(lake, monkeypatch):
    fill_wide(lake, "a/t", 10)
    job = with_budget(max_duration="1h")
    monkeypatch.setattr(steps, "time_is_up", lambda deadline: deadline is not None)
    found = summary(run(lake, job))
    assert found["put_off"] == {"a/t": "max_duration: the time was up before 1 rewrites began"}
    assert fragments(lake, "a/t") == 6
    monkeypatch.undo()
    assert summary(run(lake, job))["put_off"] == {}
    assert fragments(lake, "a/t") == 1


@pytest.mark.parametrize("limits", [{}, {"max_tables": 2}, {"max_bytes_rewritten": 30_000}])
def test_a_dry_run_gives_the_numbers_of_the_run_that_follows(lake, limits):
    for number, path in enumerate(("a/one", "a/two", "b/three", "b/four")):
        fill_wide(lake, path, 100 * 5**number)
    lance_core.dataset(f"{lake.root}/a/two.lance").delete("n % 2 = 0")
    policy = LanceMaintenancePolicy(cleanup_older_than=NOW)
    # Versions that the run itself makes are no work that was due; they are too young for an age that began before it.
    policy = LanceMaintenancePolicy(cleanup_older_than=timedelta(days=1)) if not limits else policy
    job = build_maintenance_job(root=True, policy=policy, budget=LanceMaintenanceBudget(**limits))
    dry = run(lake, job, {"ops": {"plan": {"config": {"dry_run": True}}}})
    assert {fragments(lake, path) for path in ("a/one", "b/four")} == {6}
    wet = run(lake, job)
    assert summary(dry)["put_off"] == summary(wet)["put_off"]
    assert summary(dry)["partly_done"] == summary(wet)["partly_done"]
    names = ("lance/bytes_read", "lance/fragments_removed", "lance/tasks")
    real = {table: {name: seen.get(name) for name in names} for table, seen in observations(wet).items()}
    reported = {table: {name: seen.get(name) for name in names} for table, seen in observations(dry).items()}
    assert real
    assert {table: reported[table] for table in real} == real


def test_expired_versions_are_reported_by_a_dry_run(lake):
    lance_core.write_dataset(pa.table({"n": [1]}), f"{lake.root}/a/t.lance")
    for _ in range(3):
        lance_core.write_dataset(pa.table({"n": [1]}), f"{lake.root}/a/t.lance", mode="overwrite")
    job = build_maintenance_job(root=True, policy=LanceMaintenancePolicy(cleanup_older_than=NOW))
    dry = run(lake, job, {"ops": {"plan": {"config": {"dry_run": True}}}})
    names = [f"lance/{name}" for name in ("versions_removed", "data_files_removed", "files_removed", "bytes_removed")]
    assert dry.success, failures(dry)
    assert "a/t" in observations(dry), dry.output_for_node("summarize")
    reported = [observations(dry)["a/t"][name] for name in names]
    assert reported[0] == 3
    wet = run(lake, job)
    assert wet.success, failures(wet)
    assert [observations(wet)["a/t"][name] for name in names] == reported


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_tables": 0}, "max_tables must be a positive number or None, not 0"),
        ({"max_bytes_rewritten": 1.5}, "max_bytes_rewritten must be a positive number or None, not 1.5"),
        ({"max_duration": "never"}, "max_duration must be a positive duration or None, not 'never'"),
        ({"max_duration": timedelta(0)}, "max_duration must be a positive duration"),
    ],
)
def test_limits_that_mean_nothing_are_rejected(limits, message):
    with pytest.raises(ValueError, match=message):
        LanceMaintenanceBudget(**limits)


def losing(monkeypatch, races, before=lambda: None):
    """Maintenance loses that many races; `before` is what the other writer does."""
    real, seen = steps.commit_what_fits, []

    def lose(*arguments, **options):
        seen.append(1)
        if len(seen) <= races:
            before()
            raise CommitConflictError("lost")
        return real(*arguments, **options)

    monkeypatch.setattr(steps, "commit_what_fits", lose)


@pytest.mark.parametrize(("share", "read"), [(1, 1), (2, 2), (3, 3), (2.5, 2)])
def test_further_attempts_after_lost_races_fit_into_the_budget(lake, monkeypatch, share, read):
    size = fill_wide(lake, "a/t", 1000)
    losing(monkeypatch, 2)
    budget = int(size * share)
    found = run(lake, with_budget(max_bytes_rewritten=budget))
    put_off = summary(found)["put_off"]
    assert observations(found)["a/t"]["lance/bytes_read"] == size * read
    if read == 3:
        assert (put_off, fragments(lake, "a/t")) == ({}, 1)
    else:
        left = budget - size * read
        reason = f"max_bytes_rewritten: 1 of 1 rewrites, {size:,} bytes, do not fit into the {left:,} that are left"
        assert put_off == {"a/t": f"{reason} for further attempts"}
        assert fragments(lake, "a/t") == 6


def test_tables_share_what_is_left_for_further_attempts(lake, monkeypatch):
    sizes = {path: fill_wide(lake, path, rows) for path, rows in (("a/small", 1000), ("b/large", 20_000))}
    limit = 2 * sum(sizes.values())
    losing(monkeypatch, 100)
    found = run(lake, with_budget(max_bytes_rewritten=limit))
    read = {table: seen["lance/bytes_read"] for table, seen in observations(found).items()}
    assert read == {path: 2 * size for path, size in sizes.items()}


def test_no_further_attempt_begins_after_the_time(lake, monkeypatch):
    size = fill_wide(lake, "a/t", 1000)
    over = []
    losing(monkeypatch, 2, lambda: over.append(1))
    monkeypatch.setattr(steps, "time_is_up", lambda deadline: deadline is not None and bool(over))
    found = run(lake, with_budget(max_duration="1h"))
    assert summary(found)["put_off"] == {"a/t": "max_duration: the time was up before 1 rewrites began again"}
    assert observations(found)["a/t"]["lance/bytes_read"] == size


def test_deletions_of_others_during_the_run_are_materialized_within_the_budget(lake, monkeypatch):
    small = fill_wide(lake, "a/t", 100)
    lance.write_dataset(pa.table({"n": range(2_000_000)}), f"{lake.root}/a/t.lance", mode="append")
    real = steps.commit

    def delete_meanwhile(dataset, *arguments, **options):
        done = real(dataset, *arguments, **options)
        lance.dataset(dataset.uri).delete("n >= 0 and n < 1000000")
        return done

    monkeypatch.setattr(steps, "commit", delete_meanwhile)
    found = run(lake, with_budget(max_bytes_rewritten=2 * small))
    assert observations(found)["a/t"]["lance/bytes_read"] == small
    assert "left for further attempts" in summary(found)["partly_done"]["a/t"]
    monkeypatch.undo()
    assert summary(run(lake, with_budget()))["put_off"] == {}
    assert lance.dataset(f"{lake.root}/a/t.lance").stats.dataset_stats()["num_deleted_rows"] == 0
