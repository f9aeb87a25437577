"""A table that is dropped and made again counts its versions from 1: what was recorded of the old one is not about it."""

import json
from datetime import timedelta

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import (
    BranchPolicy,
    build_lance_integrity_checks,
    build_lance_observation_sensor,
    observable_lance_asset,
)
from lance_dagster.events.reporting import read_recorded_states
from lance_dagster.lineage.history import compute_data_version, format_data_version
from tests.lance_dagster.lake import errors

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


def asset_of(rows: int, **metadata):
    @dg.asset(metadata=metadata)
    def orders() -> pa.Table:
        return pa.table({"n": list(range(rows))})

    return orders


def tag(result) -> str:
    return result.asset_materializations_for_node("orders")[0].tags["dagster/data_version"]


def made_by_others(uri: str, rows: int, appends: int = 0) -> None:
    lance_core.LanceDataset.drop(uri, ignore_not_found=True)
    lance.write_dataset(pa.table({"n": list(range(rows))}), uri)
    for _ in range(appends):
        lance.write_dataset(pa.table({"n": [7]}), uri, mode="append")


class TestDataVersion:
    def test_of_a_table_that_is_made_again_is_another(self, lake):
        first = tag(lake.run(asset_of(1)))
        lance_core.LanceDataset.drop(lake.uri("orders"))
        again = tag(lake.run(asset_of(2)))
        assert first != again
        assert first.endswith(":main:1")
        assert again.endswith(":main:1")

    @pytest.mark.parametrize("by", ["pylance", "lance_core", "restore", "branch", "cleanup"])
    def test_the_table_keeps_its_id(self, lake, by):
        lake.run(asset_of(1))
        lake.run(asset_of(2))
        table = lake.table("orders")
        table_id = table.recorded_table_id()
        if by == "pylance":
            lance.write_dataset(pa.table({"x": ["a"]}), table.uri, mode="overwrite")
            lance.dataset(table.uri).optimize.compact_files()
        elif by == "lance_core":
            lance_core.write_dataset(pa.table({"x": ["a"]}), table.uri, mode="overwrite")
        elif by == "restore":
            table.checkout_version(1).restore()
        elif by == "branch":
            lake.run(asset_of(3), branching=BranchPolicy.from_tag(), tags={"lance/branch": "b"})
            assert table.checkout_version(("b", None)).recorded_table_id() == table_id
            table.branches.promote("b")
        else:
            table.insert(pa.table({"n": [1]}))
            table.optimize.compact_files()
            before = compute_data_version(lake.table("orders"))
            table.cleanup_old_versions(timedelta(0), delete_unverified=True)
            assert compute_data_version(lake.table("orders")) == before
        assert table_id is not None
        assert lake.table("orders").recorded_table_id() == table_id

    def test_of_a_table_without_an_id_stays_as_it_was(self, lake):
        made_by_others(lake.uri("orders"), 3)
        table = lake.table("orders")
        assert compute_data_version(table) == format_data_version(table.uri, 1)
        result = lake.run(asset_of(0, **{"lance/empty_output": "skip"}))
        assert tag(result) == format_data_version(table.uri, 1)
        assert tag(lake.run(asset_of(1))) == format_data_version(
            table.uri, 2, table_id=lake.table("orders").recorded_table_id()
        )

    def test_a_skipped_write_does_not_repeat_that_of_a_dropped_table(self, lake):
        first = tag(lake.run(asset_of(1)))
        made_by_others(lake.uri("orders"), 3)
        assert tag(lake.run(asset_of(0, **{"lance/empty_output": "skip"}))) != first

    def test_inputs_are_recorded_with_the_table_that_was_read(self, lake):
        @dg.asset
        def copy(orders: pa.Table) -> pa.Table:
            return orders

        lake.run(asset_of(1), copy)
        read = json.loads(lake.properties("copy")[-1]["dagster.input.orders"])
        assert read["table_id"] == lake.table("orders").recorded_table_id()


class TestObservedTable:
    @pytest.fixture
    def observe(self, lake):
        asset = observable_lance_asset("orders", lake.uri("orders"))
        job = dg.define_asset_job("looking", selection=dg.AssetSelection.assets(asset.key))
        defs = dg.Definitions(assets=[asset], jobs=[job])

        def observe() -> str:
            result = defs.resolve_job_def("looking").execute_in_process(instance=lake.instance)
            (event,) = result.get_asset_observation_events()
            return event.asset_observation_data.asset_observation.tags["dagster/data_version"]

        return observe

    @pytest.fixture
    def tick(self, lake):
        sensor = build_lance_observation_sensor([observable_lance_asset("orders", lake.uri("orders"))])
        state = {"cursor": None}

        def tick(cursor=None):
            state["cursor"] = cursor or state["cursor"]
            with dg.build_sensor_context(
                instance=lake.instance, cursor=state["cursor"], resources={"io_manager": lake.manager()}
            ) as context:
                result = sensor(context)
            state["cursor"] = result.cursor
            for event in result.asset_events:
                lake.instance.report_runless_asset_event(event)
            return [(e.metadata["lance/version"].value, e.tags["dagster/data_version"]) for e in result.asset_events]

        return tick

    def test_its_data_version_changes_once_it_is_made_again(self, lake, observe):
        made_by_others(lake.uri("orders"), 1)
        first = observe()
        assert observe() == first == format_data_version(lake.uri("orders"), 1)
        made_by_others(lake.uri("orders"), 5)
        again = observe()
        assert again != first
        assert observe() == again
        lance.write_dataset(pa.table({"n": [1]}), lake.uri("orders"), mode="append")
        assert observe().partition(":")[0] == again.partition(":")[0]

    @pytest.mark.parametrize("appends", [0, 1, 3])
    def test_a_tick_reports_it_from_its_first_version(self, lake, tick, observe, appends):
        made_by_others(lake.uri("orders"), 1, 1)
        first = dict(tick())
        made_by_others(lake.uri("orders"), 9, appends)
        again = dict(tick())
        assert list(again) == list(range(1, appends + 2))
        assert not set(first.values()) & set(again.values())
        assert tick() == []
        assert observe() == again[appends + 1]

    def test_a_cursor_without_identities_goes_on(self, lake, tick):
        made_by_others(lake.uri("orders"), 1, 2)
        assert [version for version, _ in tick('{"orders": 2}')] == [3]
        assert tick('{"orders": 3}') == []


class TestReadMaterialized:
    @pytest.fixture
    def read(self, lake):
        def read(orders, *, fails=False):
            seen = []

            @dg.asset
            def copy(orders: pa.Table) -> None:
                seen.extend(orders["n"].to_pylist())

            result = lake.run(orders, copy, select=[copy], read="materialized", fails=fails)
            return errors(result) if fails else seen

        return read

    @pytest.mark.parametrize(("writes", "appends"), [(1, 0), (1, 3), (3, 0), (3, 2)])
    def test_rows_of_another_table_are_not_read(self, lake, read, writes, appends):
        for _ in range(writes):
            lake.run(asset_of(1))
        made_by_others(lake.uri("orders"), 5, appends)
        assert "others have dropped the table and made it again" in read(asset_of(1), fails=True)
        lake.run(asset_of(2))
        assert read(asset_of(2)) == [0, 1]

    @pytest.mark.parametrize("writes", [0, 1])
    def test_the_version_of_a_table_that_lost_its_id_is_read(self, lake, read, writes):
        lance.write_dataset(pa.table({"n": [5]}), lake.uri("orders"))
        lake.run(asset_of(2))
        lance.dataset(lake.uri("orders"), version=1).restore()
        assert lake.table("orders").recorded_table_id() is None
        for _ in range(writes):
            lake.table("orders").insert(pa.table({"n": [6]}))
        assert read(asset_of(2)) == [0, 1]

    def test_the_version_of_a_table_that_dagster_made_again_is_read(self, lake, read):
        for _ in range(3):
            lake.run(asset_of(3))
        lance_core.LanceDataset.drop(lake.uri("orders"))
        lake.run(asset_of(2))
        lance.write_dataset(pa.table({"n": [666]}), lake.uri("orders"), mode="append")
        assert read(asset_of(2)) == [0, 1]


def test_known_versions_are_those_of_the_table(lake):
    orders = asset_of(1)
    for _ in range(3):
        lake.run(orders)
    made_by_others(lake.uri("orders"), 1, 4)
    assert read_recorded_states(lake.instance, orders.key, [], lake.table("orders"))[None].version is None
    lake.run(orders)
    assert read_recorded_states(lake.instance, orders.key, [], lake.table("orders"))[None].version == 6


def test_the_integrity_check_names_a_table_that_was_made_again(lake):
    orders = asset_of(1)
    lake.run(orders)
    made_by_others(lake.uri("orders"), 1)
    result = lake.run(orders, *build_lance_integrity_checks([orders]), select=dg.AssetSelection.all_asset_checks())
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert "the table was dropped and made again" in evaluation.description
