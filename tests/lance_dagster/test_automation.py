"""Conditions of declarative automation: runs on branches wake nothing, and changed rows are counted by the table."""

import os
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace import CreateNamespaceRequest

import lance_core
import lance_core.maintenance
from lance_dagster import LanceIOManager, lance_changed_rows, lance_eager, stamp_lance_metadata
from tests.processes import running

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
DAYS = dg.StaticPartitionsDefinition(["a", "b", "c"])


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [0, 1]})


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def sales(context) -> pa.Table:
    return pa.table({"day": [context.partition_key] * 2, "n": [1, 2]})


def many(n):
    return dg.AutomationCondition.any_deps_match(lance_changed_rows(at_least=n))


class Automation:
    """Ticks of a sensor over some assets, one after the other."""

    def __init__(self, lake, *assets):
        self.instance, self.cursor = lake.instance, None
        self.definitions = stamp_lance_metadata(dg.Definitions(assets, resources={"io_manager": lake.manager()}))

    def tick(self, **options):
        result = dg.evaluate_automation_conditions(
            self.definitions, instance=self.instance, cursor=self.cursor, **options
        )
        self.cursor = result.cursor
        return result


class TestEager:
    @pytest.mark.parametrize(("tags", "requested"), [({"lance/branch": "dagster/run/1"}, 0), ({}, 1)])
    def test_runs_on_branches_wake_nothing(self, lake, tags, requested):
        @dg.asset(deps=[flights], automation_condition=lance_eager())
        def late() -> None: ...

        defs = dg.Definitions(assets=[flights, late], resources={"io_manager": lake.manager()})
        lake.run(flights, late)
        first = dg.evaluate_automation_conditions(defs, instance=lake.instance)
        # A condition on the tags of runs wants runs that have an event of the planned asset: those of a job.
        job = defs.resolve_implicit_global_asset_job_def()
        job.execute_in_process(instance=lake.instance, asset_selection=[flights.key], tags=tags)
        second = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=first.cursor)
        assert second.total_requested == requested


class TestChangedRows:
    @pytest.fixture
    def tick(self, lake):
        @dg.asset(deps=[flights], automation_condition=many(5))
        def late() -> None: ...

        automation = Automation(lake, flights, late)
        return lambda: automation.tick().total_requested

    def test_rows_are_counted_from_the_first_tick_on(self, lake, tick):
        lake.run(flights)
        assert tick() == 0
        table = lake.table("nyc/flights")
        table.insert(pa.table({"n": [2, 3, 4]}))  # three
        table.optimize.compact_files()
        assert tick() == 0
        table.update({"n": "9"}, "n = 2")  # and one
        assert tick() == 0
        table.delete("n = 3")  # and one
        assert tick() == 1
        assert tick() == 0
        lake.run(flights)  # four rows are replaced by two
        assert tick() == 0
        table.checkout_latest()
        table.delete("n = 0")
        assert tick() == 1

    def test_a_table_that_begins_later(self, lake, tick):
        assert tick() == 0
        lance_core.write_dataset(pa.table({"n": range(5)}), lake.uri("nyc/flights"))
        assert tick() == 1
        assert tick() == 0
        lance_core.LanceDataset.drop(lake.uri("nyc/flights"))
        assert tick() == 0
        lance_core.write_dataset(pa.table({"n": range(5)}), lake.uri("nyc/flights"))
        assert tick() == 1

    def test_commits_that_were_cleaned_up_count_as_enough(self, lake, tick):
        lake.run(flights)
        tick()
        table = lake.table("nyc/flights")
        table.insert(pa.table({"n": [2]}))
        table.delete("n = 2")
        table.cleanup_old_versions(timedelta(0))
        assert tick() == 1
        assert tick() == 0

    def test_counted_commits_may_be_cleaned_up(self, lake, tick):
        """Each tick reads the new commits alone."""
        lake.run(flights)
        tick()
        table = lake.table("nyc/flights")
        for requested in (0, 0, 1, 0):
            table.insert(pa.table({"n": [2, 3]}))
            assert tick() == requested
            table.cleanup_old_versions(timedelta(0))

    @pytest.mark.parametrize("ticks_between", [False, True])
    def test_partitions_that_commits_name(self, lake, ticks_between):
        @dg.asset(deps=[sales], partitions_def=DAYS, automation_condition=many(4))
        def totals() -> None: ...

        automation = Automation(lake, sales, totals)

        def requested():
            return sorted(automation.tick().get_requested_partitions(totals.key))

        assert requested() == []
        lake.run(sales, partition="a")
        if ticks_between:
            assert requested() == []
        lake.run(sales, partition="c")
        assert requested() == ["a", "c"]
        assert requested() == []
        lake.table("public/sales").insert(pa.table({"day": ["a", "b"], "n": [1, 2]}))
        if ticks_between:
            assert requested() == []
        lake.run(sales, partition="a")
        assert requested() == ["a", "b", "c"]

    def test_two_tables_are_counted_by_themselves(self, lake):
        @dg.asset(key_prefix="nyc")
        def boats() -> pa.Table:
            return pa.table({"n": [1]})

        both = dg.AutomationCondition.all_deps_match(lance_changed_rows(at_least=3))

        @dg.asset(deps=[flights, boats], automation_condition=both)
        def late() -> None: ...

        automation = Automation(lake, flights, boats, late)
        lake.run(flights, boats)
        assert automation.tick().total_requested == 0
        lake.table("nyc/flights").insert(pa.table({"n": range(3)}))
        lake.table("nyc/boats").insert(pa.table({"n": range(2)}))
        assert automation.tick().total_requested == 0

    def test_a_table_of_a_directory_namespace(self, lake, tick):
        Path(lake.root).mkdir(parents=True)
        DirectoryNamespace(root=lake.root).create_namespace(CreateNamespaceRequest(id=["nyc"]))
        assert tick() == 0
        lake.run(flights)
        (table,) = lance_core.maintenance.find_tables(lake.root)
        assert not Path(lake.uri("nyc/flights")).exists()
        lance_core.dataset(table.uri).insert(pa.table({"n": range(5)}))
        assert tick() == 1
        assert tick() == 0

    def test_options_of_the_io_manager(self, s3):
        bucket = f"s3://{s3.new_bucket()}"
        manager = LanceIOManager(root_uri=bucket, storage_options=s3.storage_options)
        lance_core.write_dataset(
            pa.table({"n": [1]}), f"{bucket}/nyc/flights.lance", storage_options=s3.storage_options
        )

        @dg.asset(deps=[flights], automation_condition=many(5))
        def late() -> None: ...

        definitions = stamp_lance_metadata(dg.Definitions([flights, late], resources={"io_manager": manager}))
        with dg.DagsterInstance.ephemeral() as instance:
            assert dg.evaluate_automation_conditions(definitions, instance=instance).total_requested == 0
        specs = str(definitions.resolve_all_asset_specs())
        assert all(option not in specs for option in s3.storage_options.values())

    def test_a_table_that_is_not_named(self, lake):
        @dg.asset(deps=[flights], automation_condition=many(5))
        def late() -> None: ...

        defs = dg.Definitions([flights, late], resources={"io_manager": lake.manager()})
        with pytest.raises(Exception, match="conditions for late") as raised:
            dg.evaluate_automation_conditions(defs, instance=lake.instance)
        assert "nyc/flights names no table: pass the definitions" in str(raised.value.__cause__)

    @pytest.mark.parametrize("number", [0, -1, "5", 2.5, True])
    def test_numbers_of_rows(self, number):
        with pytest.raises(ValueError, match="at_least is a number of rows from 1 on"):
            lance_changed_rows(at_least=number)

    @pytest.mark.slow
    def test_the_daemon_ticks_it(self, tmp_path):
        lake, home, project = tmp_path / "lake", tmp_path / "home", tmp_path / "project.py"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        project.write_text(PROJECT.format(lake=str(lake)))
        table = lance_core.write_dataset(pa.table({"n": [1]}), str(lake / "flights.lance"))
        program = Path(sys.executable).with_name("dagster-daemon")
        environment = {**os.environ, "DAGSTER_HOME": str(home)}
        with running([program, "run", "-f", project], env=environment, cwd=tmp_path, log=tmp_path / "log"):
            end = time.monotonic() + 120
            while not (lake / "late").exists() and time.monotonic() < end:
                time.sleep(2)
                table.insert(pa.table({"n": range(5)}))
        assert (lake / "late").exists()


PROJECT = textwrap.dedent("""
    from pathlib import Path

    import dagster as dg

    import lance_dagster

    lake = {lake!r}
    many = dg.AutomationCondition.any_deps_match(lance_dagster.lance_changed_rows(at_least=5))
    flights = dg.AssetSpec("flights", metadata={{"lance/uri": f"{{lake}}/flights.lance"}})

    @dg.asset(deps=[flights], automation_condition=many.since_last_handled())
    def late() -> None:
        Path(lake, "late").touch()

    sensor = dg.AutomationConditionSensorDefinition(
        "automation", target="*", use_user_code_server=True, minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    defs = dg.Definitions([flights, late], sensors=[sensor])
""")
