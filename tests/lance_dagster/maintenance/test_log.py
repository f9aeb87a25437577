"""The log of maintenance: what each run did, for the command, the checks and the trends."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import dagster as dg
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
from lance_core.maintenance import LOG_SCHEMA
from lance_core.maintenance.routine.log import find_tables_put_off
from lance_dagster import LanceMaintenancePolicy, build_lance_overdue_checks, build_maintenance_job
from lance_dagster.cli.app import cli
from lance_dagster.cli.maintenance import maintenance_command
from lance_dagster.health.log import render_trends
from tests.lance_dagster.lake import QUIET
from tests.lance_dagster.maintenance.test_lake import fill_foreign
from tests.lance_dagster.maintenance.test_maintenance import NOW, failures, fill, flights, observations, run

assert maintenance_command.name == "maintenance"


def log_of(lake):
    """The log, as pylance reads it."""
    return lance.dataset(f"{lake.root}/_maintenance/log.lance")


def rows(lake):
    return log_of(lake).to_table().to_pylist()


def command(*arguments):
    done = CliRunner().invoke(cli, ["maintenance", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_each_step_and_each_table_has_a_row_that_adds_up(lake):
    table = fill(lake, "nyc/flights")
    table.create_scalar_index("n", "BTREE")
    fill_foreign(lake, "nyc/flights", pieces=2)
    lance_core.write_dataset(pa.table({"n": [1]}), lake.uri("nyc/fine"))
    sizes = {path.name: path.stat().st_size for path in Path(lake.uri("nyc/flights"), "data").iterdir()}
    before = lake.table("nyc/flights").version
    result = run(lake, build_maintenance_job(root=True, policy=LanceMaintenancePolicy(cleanup_older_than=NOW)))
    assert result.success, failures(result)
    assert log_of(lake).schema == LOG_SCHEMA
    assert len(log_of(lake).versions()) == 1
    found = rows(lake)
    assert {row["run_id"] for row in found} == {result.run_id}
    assert {row["job"] for row in found} == {"lance_maintenance"}
    by_step = {row["step"]: row for row in found if row["table"] == "nyc/flights"}
    assert set(by_step) == {"commit", "clean_up", "table"}
    whole, commit, cleaned = by_step["table"], by_step["commit"], by_step["clean_up"]
    after = lake.table("nyc/flights")
    assert (whole["version_before"], whole["version_after"]) == (before, after.version)
    assert (commit["version_before"], commit["version_after"]) == (before, after.version)
    assert (whole["outcome"], whole["reason"], commit["outcome"]) == ("done", None, None)
    assert commit["bytes_read"] == sum(sizes.values())
    assert commit["bytes_written"] == sum(
        path.stat().st_size for path in Path(lake.uri("nyc/flights"), "data").iterdir()
    )
    assert cleaned["files_removed"] > len(sizes)
    assert cleaned["bytes_removed"] > sum(sizes.values())
    for name in ("bytes_read", "bytes_written", "files_removed", "bytes_removed"):
        assert whole[name] == sum(row[name] for step, row in by_step.items() if step != "table")
    assert (whole["fragments"], whole["rows"], whole["deleted_rows"]) == (1, after.count_rows(), 0)
    assert (whole["versions"], whole["unindexed"]) == (1, 0.0)
    (fine,) = [row for row in found if row["table"] == "nyc/fine"]
    assert (fine["step"], fine["outcome"], fine["version_before"], fine["fragments"]) == ("table", "healthy", 1, 1)
    shown = observations(result)["nyc/flights"]
    assert shown["lance/bytes_read"] == whole["bytes_read"]
    assert all(
        isinstance(shown[f"lance/{name}"], int) for name in ("bytes_written", "files_removed", "fragments_after")
    )


def test_indices_that_were_extended_count(lake):
    table = fill(lake, "nyc/flights", fragments=1)
    table.create_scalar_index("n", "BTREE")
    fill_foreign(lake, "nyc/flights", pieces=1)
    assert run(lake, build_maintenance_job([flights], LanceMaintenancePolicy(target_rows_per_fragment=2))).success
    (step,) = [row for row in rows(lake) if row["step"] == "refresh_indices"]
    assert step["version_after"] > step["version_before"]
    assert step["bytes_read"] == 0  # of data files, and an index is not a data file
    assert step["bytes_written"] > 0


def test_a_failed_table_is_recorded_with_its_reason(lake):
    fill(lake, "nyc/flights")
    fill(lake, "nyc/broken")
    for file in Path(lake.uri("nyc/broken"), "_versions").iterdir():
        file.write_bytes(b"nothing")
    assert not run(lake, build_maintenance_job(root=True)).success
    found = {row["table"]: row for row in rows(lake) if row["step"] == "table"}
    assert found["nyc/flights"]["outcome"] == "done"
    assert found["nyc/broken"]["outcome"] == "failed"
    assert "CorruptFileError" in found["nyc/broken"]["reason"]


def test_a_dry_run_records_nothing_and_the_log_is_no_table_of_the_lake(lake):
    fill(lake, "nyc/flights")
    job = build_maintenance_job(root=True)
    assert run(lake, job, {"ops": {"plan": {"config": {"dry_run": True}}}}).success
    assert not Path(lake.root, "_maintenance").exists()
    for _ in range(2):
        result = run(lake, job)
    assert result.output_for_node("summarize")["healthy"] == ["nyc/flights"]
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="holds the log of maintenance"):
        lake.manager().table_root.locate("_maintenance/log")


def test_the_log_stays_small(lake):
    lance_core.write_dataset(pa.table({"n": [1]}), lake.uri("nyc/flights"))
    job = build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=NOW))
    for _ in range(12):
        assert run(lake, job).success
    log = log_of(lake)
    assert log.count_rows() == 12
    assert len(log.get_fragments()) <= 5
    assert len(log.versions()) <= 2


def record(number, age, **given):
    """A row of the log that sums up a table."""
    row = dict.fromkeys(LOG_SCHEMA.names) | {"run_id": uuid4().hex, "job": "j", "time": datetime.now(UTC) - age}
    place = {"table": f"nyc/t{number}", "uri": f"/a/long/way/to/the/root/of/the/lake/nyc/t{number}.lance"}
    return row | place | {"step": "table", "outcome": "healthy"} | given


def write_log(lake, records):
    return lance_core.write_dataset(
        pa.Table.from_pylist(records, schema=LOG_SCHEMA), f"{lake.root}/_maintenance/log.lance"
    )


def test_old_rows_are_deleted_and_younger_ones_stay(lake):
    write_log(lake, [record(number, timedelta(days=days)) for number, days in enumerate((800, 400, 300))])
    fill(lake, "nyc/flights", fragments=1)
    assert run(lake, build_maintenance_job([flights])).success
    assert [row["table"] for row in rows(lake)] == ["nyc/t2", "nyc/flights"]
    assert run(lake, build_maintenance_job([flights], LanceMaintenancePolicy(receipts_older_than="never"))).success
    assert log_of(lake).count_rows() == 3
    config = {"ops": {"plan": {"config": {"policy": {"receipts_older_than": "7d"}}}}}
    assert run(lake, build_maintenance_job([flights]), config).success
    assert {row["table"] for row in rows(lake)} == {"nyc/flights"}


def test_few_old_rows_wait_for_more(lake):
    write_log(lake, [record(number, timedelta(days=800 if number < 2 else 1)) for number in range(100)])
    fill(lake, "nyc/flights", fragments=1)
    assert run(lake, build_maintenance_job([flights])).success
    assert log_of(lake).count_rows() == 101


def test_a_long_log_is_read_in_four_columns(lake):
    day = timedelta(days=1)
    written = [record(number % 1000, day * (100 - number // 1000), reason="was put off") for number in range(99_000)]
    written += [record(number, timedelta(0), reason="put off" if number % 2 else None) for number in range(1000)]
    written[-1]["outcome"] = "failed"
    log = write_log(lake, written)
    read = lance_core.bytes_read_counter()
    assert find_tables_put_off(log) == {record(number, day)["uri"] for number in range(1, 998, 2)}
    assert lance_core.bytes_read_counter() - read < log.total_bytes / 2


def test_a_log_that_cannot_be_written_fails_the_run_and_not_the_tables(lake):
    fill(lake, "nyc/flights")
    Path(lake.root, "_maintenance").write_text("in the way")
    result = run(lake, build_maintenance_job([flights]))
    assert "the log of maintenance: append:" in failures(result)["summarize"]
    assert len(lake.table("nyc/flights").get_fragments()) == 1


class TestCommand:
    def test_it_shows_runs_and_tables(self, lake):
        fill(lake, "nyc/flights")
        fill(lake, "sea/ships", fragments=1)
        job = build_maintenance_job(root=True)
        first, second = (run(lake, job).run_id for _ in range(2))
        runs = json.loads(command(lake.root, "--json"))
        assert [one["run_id"] for one in runs] == [second, first]
        assert (runs[1]["done"], runs[1]["healthy"], runs[0]["healthy"]) == (1, 1, 2)
        assert runs[1]["bytes_read"] > runs[1]["bytes_written"] > 0
        tables = json.loads(command(lake.root, "--json", "--tables", "--include", "nyc/*"))
        assert [(one["table"], one["outcome"], one["fragments"]) for one in tables] == [("nyc/flights", "healthy", 1)]
        assert first[:8] in command(lake.root)
        assert "sea/ships" in command(lake.root, "--tables")
        page = command(lake.root, "--trends", "--exclude", "sea/*")
        assert "| nyc/flights | ▁▁ 1 |" in page
        assert "sea" not in page

    @pytest.mark.parametrize("arguments", [(), ("--tables",)])
    def test_narrow_lines_have_fewer_columns(self, lake, arguments):
        log = [record(1, timedelta(0), outcome="done", bytes_read=10**9, files_removed=12_345, seconds=7200.0)]
        reason = "max_bytes_rewritten: 1 of 2 rewrites, 25,000,000 bytes, do not fit"
        log.append(log[0] | record(2, timedelta(0), outcome="partly done", reason=reason, run_id=log[0]["run_id"]))
        write_log(lake, log)
        done = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["maintenance", lake.root, *arguments])
        assert done.exit_code == 0, done.output
        assert max(map(len, done.output.splitlines())) <= 80
        words = (
            {"nyc/t1", "nyc/t2", "partly", "done", "fragments"} if arguments else {log[0]["run_id"][:8], "1", "done,"}
        )
        assert words <= set(done.output.split())

    def test_without_a_log_it_says_so(self, lake):
        done = CliRunner().invoke(cli, ["maintenance", lake.root, "--json"])
        assert done.exit_code == 1
        assert "no run of a maintenance job has finished there" in json.loads(done.output)["error"]["message"]

    def test_the_console_script_knows_it(self):
        from tests import processes

        done = processes.run([sys.executable, "-m", "lance_dagster.cli", "maintenance", "--help"])
        assert "--trends" in done.stdout


def test_trends_are_sparklines():
    row = {"table": "t", "uri": "/t.lance", "rows": 10, "bytes": 100, "deleted_rows": 0, "unindexed": None}
    page = render_trends([{**row, "fragments": number, "deleted_rows": number} for number in (1, 8, 4)])
    assert page.splitlines()[-1] == "| t | ▁█▄ 4 | ▁▁▁ 10 | ▁█▅ 0.2857 | ▁▁▁ 0 |"


class TestOverdue:
    def check(self, lake, *arguments, **options):
        defs = dg.Definitions(
            assets=[flights],
            asset_checks=build_lance_overdue_checks([flights], *arguments, **options),
            jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
            resources={"io_manager": lake.manager()},
        )
        result = defs.resolve_job_def("check").execute_in_process(instance=lake.instance, run_config=QUIET)
        (found,) = result.get_asset_check_evaluations()
        return found.passed, found.description

    def test_it_stands_on_the_log(self, lake):
        fill(lake, "nyc/flights")
        assert self.check(lake) == (False, "there is no log of maintenance")
        run(lake, build_maintenance_job(["nyc/planes", "nyc/boats"]))
        fill(lake, "nyc/boats")
        run(lake, build_maintenance_job(["nyc/boats"]))
        assert self.check(lake) == (False, "no run in the log has finished this table")
        run(lake, build_maintenance_job([flights]))
        passed, said = self.check(lake)
        assert passed
        assert re.fullmatch(r"maintained 0:\d\d:\d\d ago, the limit is 2 days, 0:00:00", said)
        assert self.check(lake, timedelta(microseconds=1))[0] is False
        assert self.check(lake, root=lake.root)[0]
        assert not self.check(lake, root=f"{lake.root}/other")[0]

    def test_a_record_of_a_time_to_come_says_nothing(self, lake):
        fill(lake, "nyc/flights")
        run(lake, build_maintenance_job([flights]))
        log = lance_core.dataset(f"{lake.root}/_maintenance/log.lance")
        log.update({"time": "time + interval '30 days'"})
        assert self.check(lake) == (False, "no run in the log has finished this table")

    def test_a_log_that_cannot_be_read_is_named(self, lake):
        fill(lake, "nyc/flights")
        manifest = Path(lake.root, "_maintenance/log.lance/_versions/1.manifest")
        manifest.parent.mkdir(parents=True)
        manifest.write_bytes(b"nothing")
        passed, said = self.check(lake)
        assert not passed
        assert said.startswith("the log of maintenance cannot be read: ")

    def test_a_failed_run_does_not_count(self, lake):
        fill(lake, "nyc/flights")
        for file in Path(lake.uri("nyc/flights"), "_versions").iterdir():
            file.write_bytes(b"nothing")
        run(lake, build_maintenance_job([flights]))
        assert self.check(lake) == (False, "no run in the log has finished this table")

    def test_an_asset_that_is_left_alone_passes(self, lake):
        fill(lake, "nyc/flights")
        left = dg.AssetSpec(flights.key, metadata={"lance/maintenance": False})
        defs = dg.Definitions(
            assets=[left],
            asset_checks=build_lance_overdue_checks([left]),
            jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
            resources={"io_manager": lake.manager()},
        )
        result = defs.resolve_job_def("check").execute_in_process(instance=lake.instance, run_config=QUIET)
        (found,) = result.get_asset_check_evaluations()
        assert (found.passed, found.description) == (
            True,
            "not maintained: the asset's metadata lance/maintenance is False",
        )

    def test_it_rejects_what_is_no_time(self):
        with pytest.raises(ValueError, match='max_age must be a positive length of time such as "1d"'):
            build_lance_overdue_checks(["t"], "never")
