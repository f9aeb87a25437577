"""Events that are logged in another order than the commits that they report."""

import shutil

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import LanceIOManager
from lance_dagster.events.reporting import read_recorded_states
from lance_dagster.loading.recorded_versions import recorded_versions
from tests.lance_dagster.lake import errors

PARTS = dg.StaticPartitionsDefinition(["a", "b"])


class LogsLate(LanceIOManager):
    """Commits the output of a run with the tag `late`, and then calls what a test gives it before the event is logged."""

    def create_io_manager(self, context):
        manager = super().create_io_manager(context)
        handle = manager.handle_output

        def handle_late(context, obj):
            handle(context, obj)
            if "late" in context.step_context.run_tags:
                BETWEEN.pop()()

        manager.handle_output = handle_late
        return manager


BETWEEN = []


def events_of(partitioned):
    options = {"partitions_def": PARTS, "metadata": {"partition_expr": "p"}} if partitioned else {}

    @dg.asset(name="events", **options)
    def events(context) -> pa.Table:
        return pa.table({"p": [context.partition_key if partitioned else "x"], "n": [int(context.run.tags["n"])]})

    return events


@pytest.fixture
def out_of_order(lake):
    """Two runs of an asset whose events are in another order than their commits."""

    def run(asset, first, second):
        manager = LogsLate(root_uri=lake.root)

        def between():
            lake.run(asset, partition=second, tags={"n": "2"})

        BETWEEN.append(between)
        lake.run(asset, partition=first, tags={"n": "1", "late": ""}, resources={"io_manager": manager})
        events = lake.instance.fetch_materializations(asset.key, limit=2).records
        assert [one.asset_materialization.metadata["lance/version"].value for one in events] == [1, 2]

    return run


def test_an_input_loads_the_newest_recorded_version(lake, out_of_order):
    events, read = events_of(partitioned=True), []

    @dg.asset
    def reader(events: pa.Table) -> None:
        read.extend(events["n"].to_pylist())

    out_of_order(events, "a", "b")
    mapped = dg.AssetSpec("events", partitions_def=PARTS, metadata={"partition_expr": "p"})
    lake.run(mapped, reader, select=[reader], read="materialized")
    assert sorted(read) == [1, 2]


def test_maintenance_and_reports_know_the_newest_recorded_version(lake, out_of_order):
    events = events_of(partitioned=False)
    out_of_order(events, None, None)
    assert recorded_versions(lake.instance, events.key) == {"Dagster's last materialization": 2}
    (state,) = read_recorded_states(lake.instance, events.key, [], lake.table("events")).values()
    assert (state.version, state.data_version.rpartition(":")[2]) == (2, "2")


def test_events_of_a_table_that_was_dropped_do_not_count(lake):
    events = events_of(partitioned=False)
    for n in range(3):
        lake.run(events, tags={"n": str(n)})
    lake.table("events").drop(lake.uri("events"))
    lake.run(events, tags={"n": "7"})
    read = []

    @dg.asset
    def reader(events: pa.Table) -> None:
        read.extend(events["n"].to_pylist())

    lake.run(events, reader, select=[reader], read="materialized")
    assert read == [7]


class TestReportsByHand:
    """Events that name no version: the UI's "Report materialization", or a call of the REST interface."""

    @pytest.mark.parametrize("partition", [None, "a"])
    def test_the_newest_event_that_names_a_version_counts(self, lake, partition):
        events, read = events_of(partitioned=partition is not None), []

        @dg.asset
        def reader(events: pa.Table) -> None:
            read.extend(events["n"].to_pylist())

        lake.run(events, partition=partition, tags={"n": "1"})
        lake.instance.report_runless_asset_event(dg.AssetMaterialization("events", partition=partition))
        lake.table("events").insert(pa.table({"p": ["a"], "n": [666]}))
        assert set(recorded_versions(lake.instance, events.key).values()) == {1}
        lake.run(events, reader, select=[reader], read="materialized")
        assert read == [1]

    def test_they_say_nothing_of_a_table_that_was_made_again(self, lake):
        events = events_of(partitioned=False)

        @dg.asset
        def reader(events: pa.Table) -> None: ...

        lake.run(events, tags={"n": "1"})
        shutil.rmtree(lake.uri("events"))
        lance_core.write_dataset(pa.table({"p": ["a"], "n": [666]}), lake.uri("events"))
        lake.instance.report_runless_asset_event(dg.AssetMaterialization("events"))
        message = errors(lake.run(events, reader, select=[reader], fails=True, read="materialized"))
        assert "is not in the table" in message
