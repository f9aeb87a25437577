"""A table and the columns of it that another asset owns are maintained as one table."""

import dagster as dg
import pytest

import lance_core
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job, build_maintenance_sensor
from tests.lance_dagster.maintenance.test_lake import fragments
from tests.lance_dagster.maintenance.test_log import rows
from tests.lance_dagster.maintenance.test_maintenance import NOW, failures, observations, run
from tests.support.column_assets import embeddings_asset, images_asset

DAYS = ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04")


def fill(lake):
    images, embeddings = images_asset(), embeddings_asset()
    for day in DAYS:
        lake.run(images, partition=day)
        lake.run(images, embeddings, partition=day, select=["embeddings"])
    return images, embeddings


@pytest.mark.variants(2)
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("root", [None, True])
def test_a_table_is_maintained_once_for_all_its_assets(lake, is_reversed, root):
    assets = list(fill(lake))
    if is_reversed:
        assets.reverse()
    before = lake.table("images").to_table().sort_by("id")
    policy = LanceMaintenancePolicy(target_rows_per_fragment=1000, max_small_fragments=1, cleanup_older_than=NOW)
    result = run(lake, build_maintenance_job(assets, policy, root=root), assets=assets)
    assert result.success, failures(result)
    assert result.output_for_node("summarize")["done"] == ["images"]
    assert set(observations(result)) == {"images"}
    assert {row["table"] for row in rows(lake)} == {rows(lake)[0]["table"]}
    assert fragments(lake, "public/images") == 1
    assert lake.table("images").to_table().sort_by("id") == before


def test_versions_that_inputs_of_either_asset_are_read_at_are_kept(lake):
    images, embeddings = fill(lake)
    used = lake.table("images").version
    lance_core.write_dataset(lake.table("images").to_table(), lake.table("images").uri, mode="overwrite")
    policy = LanceMaintenancePolicy(cleanup_older_than=NOW)
    job = build_maintenance_job([images, embeddings], policy)
    readers = {"io_manager": lake.manager(read="materialized")}
    result = run(lake, job, assets=[images, embeddings], resources=readers)
    assert result.success, failures(result)
    assert used in [one["version"] for one in lake.table("images").versions()]


def test_the_sensor_asks_for_a_table_once(lake):
    assets = fill(lake)
    policy = LanceMaintenancePolicy(target_rows_per_fragment=1000, max_small_fragments=1)
    sensor = build_maintenance_sensor(build_maintenance_job(assets, policy), assets, policy)
    resources = {"io_manager": lake.manager()}
    with dg.build_sensor_context(instance=lake.instance, resources=resources) as context:
        (request,) = sensor(context).run_requests
    assert request.run_config == {"ops": {"plan": {"config": {"tables": ["images"]}}}}
