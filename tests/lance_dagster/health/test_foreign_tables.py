"""Tables that others write are maintained and promoted only where their definition says so."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import (
    LanceMaintenancePolicy,
    build_branch_jobs,
    build_branch_sensor,
    build_lance_observation_sensor,
    build_maintenance_job,
    build_maintenance_schedule,
    build_maintenance_sensor,
    observable_lance_asset,
)
from lance_dagster.components import LanceLakehouseComponent
from tests.lance_dagster.lake import QUIET
from tests.lance_dagster.maintenance.test_maintenance import fill

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

POLICY = LanceMaintenancePolicy(retain_versions=1, cleanup_older_than=None)
PARTNER = "partner/prices"


def external(**metadata):
    return dg.AssetSpec(["partner", "prices"], metadata=metadata)


def defined_external(**metadata):
    @dg.multi_observable_source_asset(specs=[external(**metadata)])
    def look(): ...

    return look


def observable(lake, **metadata):
    return observable_lance_asset(["partner", "prices"], lake.uri(PARTNER), metadata=metadata)


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [0, 1]})


def state(lake, name=PARTNER):
    table = lake.table(name)
    return len(table.versions()), len(table.get_fragments())


def run_job(lake, asset, named, **config):
    job = build_maintenance_job(named, POLICY)
    defs = dg.Definitions(assets=[asset, flights], jobs=[job], resources={"io_manager": lake.manager()})
    ops = {"ops": {"plan": {"config": config}}} if config else {}
    resolved = defs.resolve_job_def("lance_maintenance")
    return resolved.execute_in_process(instance=lake.instance, run_config=QUIET | ops)


class TestMaintenance:
    @pytest.mark.parametrize("kind", ["spec", "observable", "multi observable"])
    def test_it_is_left_alone(self, lake, kind):
        fill(lake, PARTNER, fragments=6)
        fill(lake, "nyc/flights", fragments=6)
        before = state(lake)
        asset = {"spec": external(), "observable": observable(lake), "multi observable": defined_external()}[kind]
        result = run_job(lake, asset, [asset, flights])
        assert result.success
        summary = result.output_for_node("summarize")
        assert (summary["left_alone"], summary["absent"], summary["done"]) == ([PARTNER], [], ["nyc/flights"])
        assert state(lake) == before
        assert state(lake, "nyc/flights") == (1, 1)

    @pytest.mark.parametrize(
        ("kind", "said"), [("spec", True), ("spec", POLICY), ("observable", {"max_small_fragments": 2})]
    )
    def test_it_is_maintained_where_it_says_so(self, lake, kind, said):
        fill(lake, PARTNER, fragments=6)
        metadata = {"lance/maintenance": said}
        asset = external(**metadata) if kind == "spec" else observable(lake, **metadata)
        assert run_job(lake, asset, [asset]).success
        assert state(lake) == (1, 1)

    def test_schedules_and_sensors_do_not_ask_for_it(self, lake):
        fill(lake, PARTNER, fragments=6)
        asset = external()
        job = build_maintenance_job([PARTNER, flights], POLICY)
        sensor = build_maintenance_sensor(job, [PARTNER, flights], POLICY)
        defs = dg.Definitions(assets=[asset, flights], jobs=[job], sensors=[sensor])
        with dg.build_sensor_context(
            instance=lake.instance, definitions=defs, resources={"io_manager": lake.manager()}
        ) as context:
            assert isinstance(sensor(context), dg.SkipReason)
        seen = observable(lake)
        job = build_maintenance_job([seen, flights], POLICY)
        assert job.metadata["lance/tables"].value == ["nyc/flights"]
        build_maintenance_sensor(job, [seen, flights], POLICY)
        assert build_maintenance_schedule(job).description == "Maintenance of 1 Lance tables."


class TestPromotion:
    def test_branches_of_others_are_neither_promoted_nor_discarded(self, lake):
        fill(lake, PARTNER, fragments=1)
        for name in ("theirs", "dagster/run/0"):
            lake.table(PARTNER).create_branch(name).insert(pa.table({"n": [9]}))
        asset = external()
        promote, discard = jobs = build_branch_jobs([asset, flights])
        sensor = build_branch_sensor([PARTNER, flights], jobs)
        defs = dg.Definitions(
            assets=[asset, flights], jobs=list(jobs), sensors=[sensor], resources={"io_manager": lake.manager()}
        )
        lake.run(flights)
        for job in (promote, discard):
            defs.resolve_job_def(job.name).execute_in_process(
                instance=lake.instance, run_config=QUIET, tags={"lance/branch": "theirs"}, raise_on_error=False
            )
        with dg.build_sensor_context(
            instance=lake.instance, definitions=defs, resources={"io_manager": lake.manager()}
        ) as context:
            result = sensor(context)
        assert not (result.run_requests or [] if isinstance(result, dg.SensorResult) else [])
        assert set(lake.table(PARTNER).branches.list()) == {"theirs", "dagster/run/0"}
        assert lake.table(PARTNER).version == 1


class TestComponents:
    LAKE = """
root_uri: {root}
default_load_type: pyarrow
maintenance: {{cron_schedule: "0 3 * * *", sensor: true, retain_versions: 1, cleanup_older_than: never}}
branching: {{mode: per_backfill}}
tables:
  - key: partner/prices
    external: true
    {said}
  - key: nyc/flights
    {own}
"""

    def maintain(self, lake, said="", own="checks: [health]"):
        for name in (PARTNER, "nyc/flights"):
            fill(lake, name, fragments=6)
        text = self.LAKE.format(root=lake.root, said=said, own=own)
        made = LanceLakehouseComponent.resolve_from_yaml(text).build_defs(None)
        defs = dg.Definitions.merge(made, dg.Definitions(assets=[flights]))
        job = defs.resolve_job_def("lance_maintenance")
        assert job.execute_in_process(instance=lake.instance, run_config=QUIET).success
        return defs

    @pytest.mark.parametrize("said", ["", "maintenance: false"])
    def test_external_tables_are_left_alone(self, lake, said):
        defs = self.maintain(lake, said)
        assert state(lake) == (6, 6)
        assert state(lake, "nyc/flights") == (1, 1)
        assert all(job.metadata["lance/tables"].value == ["nyc/flights"] for job in defs.jobs)

    @pytest.mark.parametrize("said", ["maintenance: true", "maintenance: {}"])
    def test_unless_they_say_otherwise(self, lake, said):
        self.maintain(lake, said)
        assert state(lake) == (1, 1)

    def test_a_table_of_ones_own_can_be_left_alone(self, lake):
        self.maintain(lake, own="maintenance: false")
        assert state(lake, "nyc/flights") == (6, 6)


class TestOwnBranch:
    @pytest.fixture
    def asset(self, tmp_path):
        uri = str(tmp_path / "elsewhere.lance")
        table = lance_core.write_dataset(pa.table({"n": [1]}), uri)
        table.create_branch("draft").insert(pa.table({"n": [2, 3]}))
        return observable_lance_asset("prices", uri, branch="draft")

    @pytest.mark.parametrize("tags", [{}, {"lance/branch": "mine"}], ids=["main", "a run on a branch"])
    def test_downstream_loads_the_branch(self, lake, asset, tags):
        seen = []

        @dg.asset
        def reader(prices: pa.Table) -> None:
            seen.append(sorted(prices.column("n").to_pylist()))

        lake.run(asset, reader, tags=tags)
        assert seen == [[1, 2, 3]]

    @pytest.mark.parametrize(("pin", "rows"), [({"lance/version": 1}, 1), ({"lance/tag": "first"}, 1)])
    def test_pins_are_those_of_the_branch(self, lake, asset, pin, rows):
        lance_core.dataset(asset.metadata["lance/uri"].value).tags.create("first", 1)
        seen = []

        @dg.asset(ins={"prices": dg.AssetIn(metadata=pin)})
        def reader(prices: pa.Table) -> None:
            seen.append(prices.num_rows)

        lake.run(asset, reader)
        assert seen == [rows]

    def test_a_missing_branch_is_an_error(self, lake, asset):
        other = observable_lance_asset("prices", asset.metadata["lance/uri"].value, branch="missing_branch")

        @dg.asset
        def reader(prices: pa.Table) -> None: ...

        assert "missing_branch" in str(lake.run(other, reader, fails=True).all_events[-3:])

    def test_sensors_follow_it(self, lake, asset):
        sensor = build_lance_observation_sensor([asset])

        def tick(cursor):
            with dg.build_sensor_context(
                instance=lake.instance, cursor=cursor, resources={"io_manager": lake.manager()}
            ) as context:
                return sensor(context)

        first = tick(None)
        assert [event.metadata["dagster/row_count"].value for event in first.asset_events][-1] == 3
        uri = asset.metadata["lance/uri"].value
        lance_core.dataset(uri).insert(pa.table({"n": [7]}))  # main is not a concern of this asset
        assert not tick(first.cursor).asset_events
        lance_core.dataset(uri, version=("draft", None)).insert(pa.table({"n": [4]}))
        assert [event.metadata["dagster/row_count"].value for event in tick(first.cursor).asset_events] == [4]


def test_loading_and_sensors_use_its_own_storage_options(lake, tmp_path, monkeypatch):
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset(pa.table({"n": [1, 2]}), uri)
    monkeypatch.setenv("PARTNER_SECRET", "hush")
    asset = observable_lance_asset(
        "prices", uri, storage_options={"aws_secret_access_key": dg.EnvVar("PARTNER_SECRET")}
    )
    assert "hush" not in repr(asset.metadata)
    used, opened = [], lance_core.dataset

    def spy(where, *args, **kwargs):
        if where == uri:
            used.append(kwargs.get("storage_options"))
        return opened(where, *args, **kwargs)

    monkeypatch.setattr(lance_core, "dataset", spy)

    @dg.asset
    def reader(prices: pa.Table) -> None: ...

    lake.run(asset, reader)
    sensor = build_lance_observation_sensor([asset])
    with dg.build_sensor_context(instance=lake.instance, resources={"io_manager": lake.manager()}) as context:
        sensor(context)
    assert len(used) >= 2
    assert all(options == {"aws_secret_access_key": "hush"} for options in used)
