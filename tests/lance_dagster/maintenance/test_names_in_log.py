"""The log knows a table by its URI: jobs can have different names for it."""

import json
from datetime import timedelta

import dagster as dg
import pyarrow as pa

from lance_core.maintenance.routine.log import find_tables_put_off
from lance_dagster import build_lance_overdue_checks, build_maintenance_job
from lance_dagster.health.log import open_log, render_trends
from tests.lance_dagster.lake import QUIET
from tests.lance_dagster.maintenance.test_lake import fill_foreign
from tests.lance_dagster.maintenance.test_log import command, record, rows
from tests.lance_dagster.maintenance.test_maintenance import run


@dg.asset
def orders() -> pa.Table:
    return pa.table({"id": [1, 2]})


@dg.asset(
    key_prefix="x", deps=[orders], metadata={"lance/write_mode": "columns", "lance/table": "orders", "lance/key": "id"}
)
def labels() -> pa.Table:
    return pa.table({"id": [1, 2], "label": ["a", "b"]})


def checked(lake, assets):
    defs = dg.Definitions(
        assets=assets,
        asset_checks=build_lance_overdue_checks(assets),
        jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
        resources={"io_manager": lake.manager()},
    )
    result = defs.resolve_job_def("check").execute_in_process(instance=lake.instance, run_config=QUIET)
    return {one.asset_key.to_user_string(): one.passed for one in result.get_asset_check_evaluations()}


def test_an_asset_that_owns_columns_is_maintained_with_its_table(lake):
    lake.run(orders)
    lake.run(orders, labels, select=[labels])
    assert checked(lake, [orders, labels]) == {"orders": False, "x/labels": False}
    assert run(lake, build_maintenance_job([orders, labels]), assets=[orders, labels]).success
    assert {row["table"] for row in rows(lake)} == {"orders"}
    assert checked(lake, [orders, labels]) == {"orders": True, "x/labels": True}


def test_a_job_of_another_code_location_names_a_table_by_its_path(lake):
    lake.run(orders)
    assert run(lake, build_maintenance_job(root=True)).success
    assert [row["table"] for row in rows(lake)] == ["public/orders"]
    assert checked(lake, [orders]) == {"orders": True}


def test_an_asset_with_the_name_of_another_table_is_not_that_table(lake):
    """The job knows the asset sea/ships, whose table is another one; the path sea/ships is not an asset there."""
    fill_foreign(lake, "sea/ships")
    fill_foreign(lake, "nyc/flights")
    placed = dg.AssetSpec(["sea", "ships"], metadata={"schema": "nyc", "table": "flights"})
    assert run(lake, build_maintenance_job([placed]), assets=[placed]).success
    assert {row["table"] for row in rows(lake)} == {"sea/ships"}
    assert checked(lake, [placed]) == {"sea/ships": True}
    assert checked(lake, [dg.AssetSpec(["sea", "ships"])]) == {"sea/ships": False}


def test_a_table_that_was_put_off_comes_first_under_another_name(lake):
    lake.run(orders)
    for _ in range(5):
        fill = pa.table({"id": [1]})
        lake.table("orders").insert(fill)
    fill_foreign(lake, "a/one", pieces=12)
    limits = {"ops": {"plan": {"config": {"budget": {"max_tables": 1}}}}}
    first = run(lake, build_maintenance_job(root=True), limits).output_for_node("summarize")
    assert (first["done"], list(first["put_off"])) == (["a/one"], ["public/orders"])
    assert find_tables_put_off(open_log(lake.root, None)) == {lake.uri("orders")}
    fill_foreign(lake, "a/one", pieces=12)
    second = run(lake, build_maintenance_job([orders], root=True), limits, assets=[orders])
    assert second.output_for_node("summarize")["done"] == ["orders"]


def test_a_table_of_two_names_is_one_table_of_command_and_trends(lake):
    lake.run(orders)
    assert run(lake, build_maintenance_job(root=True)).success
    assert run(lake, build_maintenance_job([orders]), assets=[orders]).success
    assert [row["table"] for row in json.loads(command(lake.root, "--tables", "--json"))] == ["orders"]
    numbers = {"fragments": 1, "rows": 1, "bytes": 1, "deleted_rows": 0}
    page = render_trends(
        [record(1, timedelta(days=2 - day), **numbers, table=name) for day, name in enumerate(("p/t", "t"))]
    )
    assert page.splitlines()[-1].startswith("| t | ▁▁ 1")
