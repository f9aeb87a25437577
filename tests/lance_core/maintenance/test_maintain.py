"""The whole maintenance of a table and of a lake in one call, without Dagster."""

import dataclasses
import shutil
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lance as pylance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import ArgumentTypeError, DatasetNotFoundError, InvalidInputError, MaintenanceFailedError
from lance_core.maintenance import (
    LOG_SCHEMA,
    MaintenanceBudget,
    MaintenancePolicy,
    maintain,
    maintain_lake,
    pool_rewriter,
)
from lance_core.maintenance.routine import maintain as routine
from lance_core.store.local import LocalStore
from lance_dagster import LanceMaintenanceBudget, LanceMaintenancePolicy

NOW = MaintenancePolicy(cleanup_older_than=timedelta(microseconds=1))


def fill(uri, pieces=6, rows=100):
    for piece in range(pieces):
        table = pa.table({"n": range(piece * rows, (piece + 1) * rows)})
        lance_core.write_dataset(table, str(uri), mode="append")
    return lance_core.dataset(str(uri))


def outcomes(reports):
    return {report.plan.table: report.outcome for report in reports}


def break_table(uri):
    for manifest in Path(uri, "_versions").iterdir():
        manifest.write_bytes(b"nothing")


@pytest.fixture
def full_disk(monkeypatch):
    real = LocalStore.open_writer

    def open_writer(store, key, *arguments, **options):
        if key.startswith("data/"):
            raise OSError(28, "No space left on device")
        return real(store, key, *arguments, **options)

    def fill_up():
        monkeypatch.setattr(LocalStore, "open_writer", open_writer)

    return fill_up


class TestTable:
    def test_all_that_is_due_is_done_and_a_second_run_makes_no_version(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        table.create_scalar_index("n", "BTREE")
        fill(tmp_path / "t.lance", pieces=1)
        lance_core.dataset(table.uri).delete("n < 30")
        report = maintain(table, NOW, transaction_properties={"who": "cron"})
        assert (report.outcome, report.reason, report.error) == ("done", None, None)
        assert (report.plan.health.fragments, report.after.fragments, report.after.versions) == (7, 1, 1)
        assert {step.step for step in report.steps} >= {"commit", "clean_up"}
        assert report.done["files_removed"] > 7
        newest = lance_core.dataset(table.uri)
        assert (newest.version, newest.count_rows()) == (table.version, 640)
        assert newest.read_transaction(newest.version).transaction_properties["who"] == "cron"
        assert pylance.dataset(table.uri).count_rows("n = 50") == 2
        again = maintain(table, NOW)
        assert (again.outcome, again.done, lance_core.dataset(table.uri).version) == ("healthy", {}, newest.version)

    def test_a_dry_run_writes_nothing_and_gives_the_numbers_of_the_run(self, tmp_path, monkeypatch):
        clock = SimpleNamespace(**vars(time))
        clock.time_ns = lambda: time.time_ns() - 14 * 86_400 * 10**9
        monkeypatch.setattr("lance_core.commit.loop.time", clock)
        table = fill(tmp_path / "t.lance")
        monkeypatch.undo()
        before = sorted(path.name for path in (tmp_path / "t.lance").rglob("*"))
        policy = MaintenancePolicy(cleanup_older_than="1d", retain_versions=3)
        dry = maintain(table, policy, dry_run=True)
        assert sorted(path.name for path in (tmp_path / "t.lance").rglob("*")) == before
        wet = maintain(table, policy)
        known = {name: number for name, number in wet.done.items() if name != "bytes_written"}
        assert (dry.outcome, dry.done) == (wet.outcome, known)
        assert (dry.after.fragments, dry.after.versions) == (wet.after.fragments, wet.after.versions)

    def test_a_budget_puts_off(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        report = maintain(table, budget=MaintenanceBudget(max_bytes_rewritten=10))
        assert report.outcome == "put off"
        assert "max_bytes_rewritten: 1 of 1 rewrites" in report.reason
        assert len(lance_core.dataset(table.uri).get_fragments()) == 6

    @pytest.mark.parametrize("rewriter", [None, pool_rewriter(1), pool_rewriter(2)])
    def test_a_step_that_fails_is_raised_after_the_others_were_done(self, tmp_path, full_disk, rewriter, monkeypatch):
        table = fill(tmp_path / "t.lance", pieces=8)
        policy = dataclasses.replace(NOW, target_rows_per_fragment=400)
        if rewriter is None:
            full_disk()
        else:
            (tmp_path / "t.lance" / table.get_fragments()[0].metadata.files[0].path).parent.joinpath("data").mkdir(
                exist_ok=True
            )
            Path(next((tmp_path / "t.lance" / "data").iterdir())).write_bytes(b"nothing")
        with pytest.raises(MaintenanceFailedError, match="rewrite: ") as failure:
            maintain(table, policy, rewriter=rewriter)
        (report,) = failure.value.reports
        assert report.outcome == "failed"
        if rewriter is None:  # a full disk gets room; of a damaged table all versions stay, and the rest is rewritten
            assert report.after.versions == 1
        else:
            assert "all versions stay" in report.error
            assert report.done["fragments_removed"] == 4

    def test_a_table_that_is_dropped_meanwhile(self, tmp_path):
        table = fill(tmp_path / "t.lance")

        def drop(dataset, tasks):
            shutil.rmtree(tmp_path / "t.lance")
            return []

        with pytest.raises(DatasetNotFoundError):
            maintain(table, rewriter=drop)

    def test_a_pool_of_processes_does_the_rewrites(self, tmp_path):
        table = fill(tmp_path / "t.lance", pieces=8)
        report = maintain(table, MaintenancePolicy(target_rows_per_fragment=400, max_parallel_tasks=2))
        assert (report.plan.num_tasks, report.after.fragments, table.count_rows()) == (2, 2, 800)

    def test_expired_tags_of_readers_keep_nothing(self, tmp_path):
        table = fill(tmp_path / "t.lance")
        table.checkout_version(2).readers.hold("report")
        table.update_config({"lance-dagster.changes.days": "0"})
        assert maintain(table, NOW).after.versions == 1


class TestLake:
    def test_policies_apply_from_the_outside_in_and_globs_choose(self, tmp_path):
        for path in ("shop/orders", "shop/items", "scratch/x", "sea/ships", "_ops/r/out", "other"):
            fill(tmp_path / f"{path}.lance")
        policies = {
            "shop": {"cleanup_older_than": None},
            "shop/orders.lance": {"target_rows_per_fragment": 300},
            "scratch": False,
        }
        reports = maintain_lake(tmp_path, NOW, policies=policies, exclude=["oth*"])
        assert outcomes(reports) == {"sea/ships": "done", "shop/items": "done", "shop/orders": "done"}
        by_table = {report.plan.table: report.after for report in reports}
        assert [by_table[name].fragments for name in ("sea/ships", "shop/items", "shop/orders")] == [1, 1, 2]
        assert [by_table[name].versions for name in ("sea/ships", "shop/items")] == [1, 8]
        assert outcomes(maintain_lake(tmp_path, NOW, include="sea/*")) == {"sea/ships": "healthy"}

    def test_what_was_done_is_in_the_log_that_the_plugin_reads(self, tmp_path):
        from lance_dagster.health.log import find_last_maintenance, open_log

        fill(tmp_path / "a.lance")
        for _ in range(3):
            maintain_lake(tmp_path, NOW)
        log = lance_core.dataset(str(tmp_path / "_maintenance/log.lance"))
        assert log.schema == LOG_SCHEMA
        rows = log.to_table(filter="step = 'table'").sort_by("time").to_pylist()
        assert [(row["table"], row["job"], row["outcome"]) for row in rows] == [
            ("a", "maintain_lake", outcome) for outcome in ("done", "healthy", "healthy")
        ]
        assert len(log.versions()) <= 2
        assert find_last_maintenance(open_log(str(tmp_path), None), str(tmp_path / "a.lance")) == rows[-1]["time"]

    def test_a_dry_run_logs_nothing(self, tmp_path):
        fill(tmp_path / "a.lance")
        (report,) = maintain_lake(tmp_path, dry_run=True)
        assert (report.outcome, report.after.fragments) == ("done", 1)
        assert not (tmp_path / "_maintenance").exists()

    def test_a_broken_table_is_named_after_the_others_were_done(self, tmp_path):
        for name in ("a", "broken", "c"):
            fill(tmp_path / f"{name}.lance")
        break_table(tmp_path / "broken.lance")
        with pytest.raises(MaintenanceFailedError, match="1 of 3 tables failed: broken: plan: CorruptFile") as failure:
            maintain_lake(tmp_path)
        assert outcomes(failure.value.reports) == {"a": "done", "broken": "failed", "c": "done"}
        log = lance_core.dataset(str(tmp_path / "_maintenance/log.lance")).to_table(filter="outcome = 'failed'")
        assert log["table"].to_pylist() == ["broken"]

    def test_what_was_put_off_comes_first_next_time(self, tmp_path):
        fill(tmp_path / "large.lance", rows=100_000)
        fill(tmp_path / "small.lance")
        limit = MaintenanceBudget(max_tables=1)
        assert outcomes(maintain_lake(tmp_path, budget=limit)) == {"small": "done", "large": "put off"}
        fill(tmp_path / "better.lance")
        assert outcomes(maintain_lake(tmp_path, budget=limit))["large"] == "done"

    def test_a_table_that_is_dropped_after_the_listing_is_absent(self, tmp_path, monkeypatch):
        for name in ("a", "doomed"):
            fill(tmp_path / f"{name}.lance")
        real = routine.find_chosen_tables

        def find_and_drop(*arguments):
            tables = real(*arguments)
            shutil.rmtree(tmp_path / "doomed.lance")
            return tables

        monkeypatch.setattr(routine, "find_chosen_tables", find_and_drop)
        assert outcomes(maintain_lake(tmp_path)) == {"a": "done", "doomed": "absent"}
        assert set(lance_core.dataset(str(tmp_path / "_maintenance/log.lance")).to_table()["table"].to_pylist()) == {
            "a"
        }

    def test_a_dry_run_that_fails_names_its_table_and_leaves_the_others(self, tmp_path, monkeypatch):
        for name in ("a", "b"):
            fill(tmp_path / f"{name}.lance")
        real = routine.foresee

        def fail(dataset, report):
            if report.plan.table == "a":
                raise OSError("no answer")
            return real(dataset, report)

        monkeypatch.setattr(routine, "foresee", fail)
        with pytest.raises(MaintenanceFailedError, match="a: dry_run: OSError: no answer") as failure:
            maintain_lake(tmp_path, dry_run=True)
        assert outcomes(failure.value.reports) == {"a": "failed", "b": "done"}

    def test_a_log_that_cannot_be_written_is_named_with_the_reports(self, tmp_path):
        fill(tmp_path / "a.lance")
        (tmp_path / "_maintenance").write_text("in the way")
        with pytest.raises(MaintenanceFailedError, match="the log of maintenance: append: ") as failure:
            maintain_lake(tmp_path)
        assert outcomes(failure.value.reports) == {"a": "done"}

    def test_a_link_is_no_second_table(self, tmp_path):
        fill(tmp_path / "a.lance")
        (tmp_path / "b.lance").symlink_to(tmp_path / "a.lance")
        assert outcomes(maintain_lake(tmp_path)) == {"a": "done"}

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"retain": 1},
                r"policies\['shop'\]: 'retain' is not a field of a MaintenancePolicy.*is 'retain_versions' meant",
            ),
            ({"retain_versions": 0}, r"policies\['shop'\]: retain_versions must be a positive number or None, not 0"),
            ("7d", "must be fields of a policy, True or False"),
        ],
    )
    def test_a_wrong_policy_is_rejected_before_anything_is_done(self, tmp_path, changes, message):
        fill(tmp_path / "shop/orders.lance")
        with pytest.raises(InvalidInputError, match=message):
            maintain_lake(tmp_path, policies={"shop": changes})
        assert len(lance_core.dataset(str(tmp_path / "shop/orders.lance")).get_fragments()) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": {"retain_versions": 1}}, "policy"),
        ({"policy": LanceMaintenancePolicy()}, "policy"),
        ({"budget": 3}, "budget"),
        ({"dry_run": "yes"}, "dry_run"),
    ],
)
def test_an_argument_of_another_type_is_named(tmp_path, arguments, message):
    table = fill(tmp_path / "t.lance", pieces=2)
    for call in (partial(maintain, table), partial(maintain_lake, tmp_path)):
        with pytest.raises(ArgumentTypeError, match=message):
            call(**arguments)
    assert len(lance_core.dataset(table.uri).get_fragments()) == 2


class TestNamesOfThePlugin:
    """A code location loads without the core, so that the plugin has records of its own with the same fields."""

    @pytest.mark.parametrize(
        ("plugin", "core"),
        [(LanceMaintenancePolicy, MaintenancePolicy), (LanceMaintenanceBudget, MaintenanceBudget)],
    )
    def test_fields_and_defaults_are_the_same(self, plugin, core):
        assert [(each.name, each.default, each.type) for each in dataclasses.fields(plugin)] == [
            (each.name, each.default, each.type) for each in dataclasses.fields(core)
        ]
        assert plugin().to_core() == core()

    @pytest.mark.parametrize(
        "wrong",
        [
            {"target_rows_per_fragment": 0}, {"materialize_deletions_threshold": 1.5}, {"cleanup_older_than": "soon"},
            {"cleanup_older_than": timedelta(0)}, {"retain_versions": True}, {"refresh_indices": "yes"},
            {"max_versions": None}, {"receipts_older_than": 7}, {"max_small_fragments": 0},
        ],
    )  # fmt: skip
    def test_what_the_one_rejects_the_other_rejects(self, wrong):
        with pytest.raises(ValueError):
            LanceMaintenancePolicy(**wrong)
        with pytest.raises(InvalidInputError):
            MaintenancePolicy(**wrong)
