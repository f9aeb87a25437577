"""What others commit is reported once, and what only maintenance does moves no data version."""

import asyncio
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.loader import LoadingContextForTest

import lance_core
from lance_dagster import build_lance_observation_sensor, observable_lance_asset, observation
from tests.lance_dagster.maintenance.test_maintenance import fill

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [0, 1]})


class TestObservableAsset:
    def observe(self, lake, asset):
        job = dg.define_asset_job("looking", selection=dg.AssetSelection.assets(asset.key))
        defs = dg.Definitions(assets=[asset], jobs=[job])
        result = defs.resolve_job_def("looking").execute_in_process(instance=lake.instance)
        (event,) = result.get_asset_observation_events()
        event = event.asset_observation_data.asset_observation
        return event.tags["dagster/data_version"], {key: entry.value for key, entry in event.metadata.items()}

    def test_it_reports_rows_and_the_newest_change(self, lake, tmp_path):
        uri = str(tmp_path / "elsewhere.lance")
        lance_core.write_dataset(pa.table({"n": [1, 2]}), uri, commit_message="first")
        table = lance_core.write_dataset(pa.table({"n": [3]}), uri, mode="append", commit_message="second")
        version, found = self.observe(lake, observable_lance_asset(["ext", "things"], uri))
        assert (found["dagster/row_count"], found["lance/version"]) == (3, 2)
        assert (found["lance/operation"], found["lance/commit_message"], found["lance/rows_added"]) == (
            "Append",
            "second",
            1,
        )
        assert found["dagster/last_updated_timestamp"] == pytest.approx(table.timestamp.timestamp())
        assert version.endswith(":main:2")

    def test_a_change_that_was_cleaned_up_is_not_taken_for_an_older_one(self, lake, tmp_path):
        uri = str(tmp_path / "t.lance")
        lance_core.write_dataset(pa.table({"n": [1]}), uri, commit_message="first").tags.create("first", 1)
        table = lance_core.write_dataset(pa.table({"n": [2]}), uri, mode="append")
        table.update_config({"a": "b"})
        table.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        version, found = self.observe(lake, observable_lance_asset("things", uri))
        assert version.endswith(":main:2")
        assert {"lance/operation", "lance/commit_message", "dagster/last_updated_timestamp"}.isdisjoint(found)

    def test_maintenance_does_not_move_its_data_version(self, lake, tmp_path):
        uri = str(tmp_path / "t.lance")
        for i in range(4):
            table = lance_core.write_dataset(pa.table({"n": [i]}), uri, mode="append" if i else "create")
        asset = observable_lance_asset("things", uri)
        before, _ = self.observe(lake, asset)
        table.optimize.compact_files()
        table.update_config({"a": "b"})
        after, found = self.observe(lake, asset)
        assert before == after
        assert found["lance/fragments"] == 1
        table.delete("n = 0")
        assert self.observe(lake, asset)[0] != before

    def test_a_branch(self, lake, tmp_path):
        uri = str(tmp_path / "t.lance")
        table = lance_core.write_dataset(pa.table({"n": [1]}), uri)
        table.create_branch("trial").insert(pa.table({"n": [2, 3]}))
        version, found = self.observe(lake, observable_lance_asset("things", uri, branch="trial"))
        assert found["dagster/row_count"] == 3
        assert ":trial:" in version

    def test_the_io_manager_loads_it_from_where_it_is(self, lake, tmp_path):
        uri = str(tmp_path / "t.lance")
        lance_core.write_dataset(pa.table({"n": [1, 2]}), uri)
        seen = []

        @dg.asset
        def reader(things: pa.Table) -> None:
            seen.append(things.num_rows)

        lake.run(observable_lance_asset("things", uri), reader)
        assert seen == [2]


def ticks(lake, sensor):
    """A function that evaluates the sensor once more, and returns the events."""
    state = {"cursor": None}

    def evaluate():
        with dg.build_sensor_context(
            instance=lake.instance, cursor=state["cursor"], resources={"io_manager": lake.manager()}
        ) as context:
            result = sensor(context)
        state["cursor"] = result.cursor
        return result.asset_events

    return evaluate


class TestSensor:
    @pytest.fixture
    def tick(self, lake):
        evaluate = ticks(lake, build_lance_observation_sensor([flights, "nyc/boats"]))
        return lambda: [
            (event.asset_key.to_user_string(), {key: entry.value for key, entry in event.metadata.items()})
            for event in evaluate()
        ]

    def test_each_version_of_others_once(self, lake, tick):
        assert tick() == []
        lance_core.write_dataset(pa.table({"n": [1, 2]}), lake.uri("nyc/boats"), commit_message="first")
        lake.table("nyc/boats").delete("n = 1")
        found = tick()
        assert [(key, m["lance/version"], m["lance/operation"]) for key, m in found] == [
            ("nyc/boats", 1, "Overwrite"),
            ("nyc/boats", 2, "Delete"),
        ]
        first, second = (entries for _, entries in found)
        assert (first["lance/rows_added"], first["lance/commit_message"]) == (2, "first")
        assert (second["lance/rows_added"], second["lance/rows_removed"]) == (0, 1)
        assert second["dagster/last_updated_timestamp"] == pytest.approx(lake.table("nyc/boats").timestamp.timestamp())
        assert tick() == []
        lake.table("nyc/boats").insert(pa.table({"n": [9]}))
        assert [entries["lance/version"] for _, entries in tick()] == [3]

    def test_neither_dagsters_own_versions_nor_maintenance(self, lake, tick):
        lake.run(flights)
        lake.run(flights, write_mode="append")
        lake.table("nyc/flights").optimize.compact_files()
        assert tick() == []
        lake.table("nyc/flights").insert(pa.table({"n": [9]}))
        assert len(tick()) == 1

    @pytest.mark.parametrize("by_run", [False, True])
    def test_a_change_that_was_cleaned_up_before_a_tick(self, lake, tick, by_run):
        lake.run(flights)
        tick()
        table = lake.table("nyc/flights")
        table.tags.create("first", table.version)
        if by_run:
            lake.run(flights, write_mode="append")
        else:
            table.insert(pa.table({"n": [9]}))
        changed = lake.table("nyc/flights").version
        lake.table("nyc/flights").optimize.compact_files()
        lake.table("nyc/flights").cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        versions = [ref["version"] for ref in lake.table("nyc/flights").versions()]
        assert changed not in versions
        seen = [(entries["lance/version"], entries["dagster/row_count"]) for _, entries in tick()]
        assert seen == ([] if by_run else [(versions[-1], lake.table("nyc/flights").count_rows())])
        assert tick() == []

    def test_more_than_a_tick_takes_are_reported_by_the_next_ones(self, lake, tick, monkeypatch):
        monkeypatch.setattr(observation, "_MOST_PER_TICK", 4)
        fill(lake, "nyc/boats", fragments=6)
        assert [entries["lance/version"] for _, entries in tick()] == [3, 4, 5, 6]  # seen for the first time
        for n in range(6):
            lake.table("nyc/boats").insert(pa.table({"n": [n]}))
        assert [entries["lance/version"] for _, entries in tick()] == [7, 8, 9, 10]
        assert [entries["lance/version"] for _, entries in tick()] == [11, 12]
        assert tick() == []

    def test_a_table_made_again_is_reported_again(self, lake, tick):
        fill(lake, "nyc/boats", fragments=3)
        assert len(tick()) == 3
        lance_core.LanceDataset.drop(lake.uri("nyc/boats"))
        fill(lake, "nyc/boats", fragments=1)
        assert len(tick()) == 1


class TestMaterializations:
    """A sensor that reports changes by others as materializations."""

    @pytest.fixture
    def tick(self, lake):
        evaluate = ticks(lake, build_lance_observation_sensor(["nyc/boats"], report="materializations"))

        def report():
            for event in (events := evaluate()):
                lake.instance.report_runless_asset_event(event)
            return [(type(event).__name__, event.metadata["lance/version"].value) for event in events]

        return report

    def test_versions_that_changed_rows_alone_after_the_first_tick(self, lake, tick):
        fill(lake, "nyc/boats", fragments=2)
        assert tick() == []
        assert tick() == []
        table = lake.table("nyc/boats")
        table.insert(pa.table({"n": [9]}))
        table.update_config({"a": "b"})
        table.optimize.compact_files()
        table.delete("n = 9")
        first, *others = tick()
        assert (first, others[0][0], others[-1][0]) == (
            ("AssetMaterialization", 3),
            "AssetObservation",
            "AssetMaterialization",
        )
        assert len(others) == 2
        event = lake.instance.get_latest_materialization_event(dg.AssetKey(["nyc", "boats"]))
        tags = event.asset_materialization.tags
        assert tags["dagster/data_version"].endswith(f":main:{others[-1][1]}")
        assert tick() == []

    def test_a_write_of_no_rows_is_no_materialization(self, lake, tick):
        fill(lake, "nyc/boats", fragments=1)
        tick()
        lake.table("nyc/boats").insert(pa.table({"n": pa.array([], pa.int64())}))
        assert [kind for kind, _ in tick()] == ["AssetObservation"]

    def test_a_table_that_begins_after_the_first_tick(self, lake, tick):
        assert tick() == []
        fill(lake, "nyc/boats", fragments=2)
        assert tick() == [("AssetMaterialization", 1), ("AssetMaterialization", 2)]
        lance_core.LanceDataset.drop(lake.uri("nyc/boats"))
        fill(lake, "nyc/boats", fragments=1)
        assert tick() == [("AssetMaterialization", 1)]

    def test_a_change_that_was_cleaned_up(self, lake, tick):
        fill(lake, "nyc/boats", fragments=2)
        tick()
        table = lake.table("nyc/boats")
        table.insert(pa.table({"n": [9]}))
        table.optimize.compact_files()
        lake.table("nyc/boats").cleanup_old_versions(timedelta(0))
        assert tick() == [("AssetMaterialization", lake.table("nyc/boats").version)]

    def test_the_evaluator_of_freshness_policies_reads_them(self, lake, tick):
        policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
        boats = dg.AssetSpec(["nyc", "boats"], freshness_policy=policy)
        fill(lake, "nyc/boats", fragments=1)
        tick()

        node = dg.Definitions(assets=[boats]).resolve_asset_graph().get(boats.key)

        def state():
            context = LoadingContextForTest(lake.instance)
            return asyncio.run(TimeWindowFreshnessPolicyEvaluator().evaluate_freshness(context, node)).value

        assert state() == "UNKNOWN"
        lake.table("nyc/boats").insert(pa.table({"n": [9]}))
        tick()
        assert state() == "PASS"

    def test_another_report_is_rejected(self):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="report is one of"):
            build_lance_observation_sensor(["nyc/boats"], report="events")
