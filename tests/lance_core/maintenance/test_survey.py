"""The survey of a table costs few requests; the steps after it, one by one."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import MaintenancePlan, MaintenancePolicy, MaintenanceReport
from lance_core.maintenance.routine import steps
from lance_core.maintenance.routine import survey as surveys


@pytest.fixture
def requests(monkeypatch):
    """The requests to stores in memory, but for heads: a listing asks for them, and S3 returns them along with keys."""
    from lance_core.store.memory import MemoryStore

    asked = []
    for verb in ("get", "get_range", "get_tail", "get_ranges", "list"):
        real = getattr(MemoryStore, verb)
        monkeypatch.setattr(
            MemoryStore,
            verb,
            lambda self, *a, _real=real, _verb=verb, **o: asked.append((_verb, a)) or _real(self, *a, **o),
        )
    return asked


def test_a_healthy_table_costs_four_requests(requests):
    for i in range(3):
        table = pa.table({"n": [i]})
        lance_core.write_dataset(table, "memory://counted/t.lance", mode="overwrite" if i else "create")
    requests.clear()
    dataset = lance_core.dataset("memory://counted/t.lance")
    found = surveys.survey_table(dataset, MaintenancePolicy())
    assert not found.plan.is_due
    assert found.tasks == []
    assert len(requests) <= 4, requests


def test_ten_thousand_fragments_are_planned_from_the_manifest_alone(requests):
    uri = "memory://counted/wide.lance"
    table = lance_core.write_dataset(pa.table({"n": [1, 2, 3]}), uri)
    (fragment,) = (one.metadata for one in table.get_fragments())
    operation = lance_core.LanceOperation.Append([fragment] * 10_000)
    lance_core.LanceDataset.commit(uri, operation, read_version=1)
    requests.clear()
    found = surveys.survey_table(lance_core.dataset(uri), MaintenancePolicy(target_rows_per_fragment=30))
    assert found.plan.health.fragments == 10_001
    assert len(found.tasks) == pytest.approx(1_000, abs=2)
    assert len(requests) <= 4, requests


def test_what_somebody_else_cleans_up_meanwhile_is_not_due(tmp_path, monkeypatch):
    uri, real = str(tmp_path / "t.lance"), surveys.measure
    for i in range(3):
        lance_core.write_dataset(pa.table({"n": [i]}), uri, mode="overwrite" if i else "create")
    policy = MaintenancePolicy(cleanup_older_than=timedelta(microseconds=1))
    assert surveys.survey_table(lance_core.dataset(uri), policy).plan.cleanup_due

    def measure_and_wait(dataset, policy, **given):
        found = real(dataset, policy, **given)
        lance_core.dataset(uri).cleanup_old_versions(older_than=timedelta(0))
        return found

    monkeypatch.setattr(surveys, "measure", measure_and_wait)
    assert not surveys.survey_table(lance_core.dataset(uri), policy).plan.cleanup_due


def test_rewrites_of_a_further_attempt_without_a_result_are_lost(tmp_path):
    """A writer makes the first result void, and nothing is left of the version that is planned then."""
    uri = str(tmp_path / "t.lance")
    for number in range(3):
        lance_core.write_dataset({"id": [number]}, uri, mode="append" if number else "create")
    dataset = lance_core.dataset(uri)
    report = surveys.survey_table(dataset, MaintenancePolicy())
    results = list(steps.run_here(dataset, report.tasks))
    lance_core.dataset(uri).update({"id": "7"}, where="id = 1")
    report = replace(report, tasks=(), results=results)
    done = steps.commit(dataset, report, steps.StepContext(rewriter=lambda *_: []))
    assert (len(results), done.lost) == (1, 1)
    assert sorted(lance_core.dataset(uri).to_table()["id"].to_pylist()) == [0, 2, 7]


def test_a_run_that_finds_the_work_done_is_healthy():
    assert MaintenanceReport(plan=MaintenancePlan(table="a", uri="u")).outcome == "healthy"
    assert MaintenanceReport(plan=MaintenancePlan(table="a", uri="u"), done={"files_removed": 1}).outcome == "done"
