"""Assets that return the result of SQL over other assets' tables, in real runs."""

import json

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame  # noqa: TID253 -- Dagster resolves the annotations of assets

import lance_core
import pyspark_lance
from lance_dagster import BranchPolicy, LanceIOManager, LanceSparkResource, LanceTableResource
from lance_dagster.branches.check_results import check_branch
from tests.interop.namespaces import Namespace, rest_service


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"id": [1, 2, 3], "delay": [5, 70, 90]})


@dg.asset
def boats() -> pa.Table:
    return pa.table({"id": [2, 3]})


@dg.asset(key_prefix="nyc", metadata={"schema": "sea", "table": "ships"})
def ferries() -> pa.Table:
    return pa.table({"id": [3]})


@pytest.fixture
def late(lake, spark):
    pyspark_lance.register_catalog(spark, "lake", lake.root)

    @dg.asset(key_prefix="nyc", deps=[flights, boats])
    def late(spark: LanceSparkResource) -> DataFrame:
        return pyspark_lance.sql(
            spark.session,
            """WITH boats AS (SELECT * FROM lake.public.boats)
            SELECT f.id, f.delay FROM lake.nyc.flights f WHERE delay > :least AND id IN (SELECT id FROM boats)""",
            least=60,
        )

    return late


def inputs(lake, name):
    found = lake.properties(name)[-1].items()
    return {
        key.removeprefix("dagster.input."): json.loads(value)
        for key, value in found
        if key.startswith("dagster.input.")
    }


def test_the_result_is_stored_with_the_versions_of_its_inputs(lake, late):
    resources = {"spark": LanceSparkResource()}
    lake.run(flights, boats)
    lake.run(flights, boats)

    @dg.asset(metadata={"lance/write_mode": "columns", "lance/table": "nyc/flights", "lance/key": "id"})
    def a_column_of_flights() -> pa.Table:
        return pa.table({"id": [1], "is_late": [False]})

    lake.run(a_column_of_flights, flights, boats, late, select="nyc/late", resources=resources)
    assert lake.rows("nyc/late") == [(2, 70), (3, 90)]
    assert inputs(lake, "nyc/late") == {
        name: {"uri": lake.uri(name), "version": 2, "table_id": lake.table(name).recorded_table_id()}
        for name in ("nyc/flights", "boats")
    }


def test_an_asset_whose_table_has_another_name(lake, spark):
    pyspark_lance.register_catalog(spark, "lake", lake.root)

    @dg.asset(deps=[ferries])
    def seen(spark: LanceSparkResource) -> DataFrame:
        return pyspark_lance.sql(spark.session, "SELECT max(id) AS id FROM lake.sea.ships")

    lake.run(ferries, seen, resources={"spark": LanceSparkResource()})
    uri = f"{lake.root}/sea/ships.lance"
    table_id = lance_core.dataset(uri).recorded_table_id()
    assert inputs(lake, "seen") == {"nyc/ferries": {"uri": uri, "version": 1, "table_id": table_id}}


def test_branches_versions_and_tables_of_no_asset(lake, spark, tmp_path):
    pyspark_lance.register_catalog(spark, "lake", lake.root)
    elsewhere = str(tmp_path / "elsewhere.lance")
    lance_core.write_dataset(pa.table({"id": [9]}), elsewhere)
    lance_core.write_dataset(pa.table({"id": [8]}), f"{lake.root}/raw/others.lance")
    lake.run(flights)
    lake.table("nyc/flights").create_branch("trial")

    @dg.asset
    def mixed(spark: LanceSparkResource) -> DataFrame:
        return pyspark_lance.sql(
            spark.session,
            f"""SELECT id FROM lake.nyc.flights@trial UNION ALL SELECT id FROM lake.raw.others
            UNION ALL SELECT id FROM lance.`{elsewhere}`""",
        )

    lake.run(mixed, resources={"spark": LanceSparkResource()})
    assert lake.rows("mixed") == [(1,), (2,), (3,), (8,), (9,)]
    found = inputs(lake, "mixed")
    assert set(found) == {"nyc/flights", "raw/others", elsewhere}
    assert found[elsewhere] == {"uri": elsewhere, "version": 1}
    assert found["nyc/flights"]["branch"] == "trial"


def test_tables_of_a_namespace_without_a_root(lake, spark, tmp_path):
    spaces = Namespace(str(tmp_path / "theirs"))
    spaces.call("create_namespace", "nyc")
    spaces.create("nyc.others", 7)

    @dg.asset
    def mixed(spark: LanceSparkResource) -> DataFrame:
        return pyspark_lance.sql(spark.session, "SELECT f.id, o.a FROM far.nyc.flights f JOIN far.nyc.others o")

    with rest_service(spaces.root) as service:
        pyspark_lance.register_catalog(spark, "far", namespace=service)
        resources = {"spark": LanceSparkResource(), "io_manager": LanceIOManager(namespace=service)}
        dg.materialize([flights], resources=resources, instance=lake.instance)
        result = dg.materialize([flights, mixed], selection=[mixed], resources=resources, instance=lake.instance)
    (event,) = result.asset_materializations_for_node("mixed")
    read = {entry["asset"]: entry["uri"] for entry in event.metadata["lance/inputs"].value}
    names = ("nyc.flights", "nyc.others")
    ours, theirs = (spaces.call("describe_table", name).location.removeprefix("file://") for name in names)
    assert read == {"nyc/flights": ours, theirs: theirs}


def test_statements_outside_of_a_step_are_no_inputs(lake, late, spark):
    lake.run(flights, boats)
    pyspark_lance.sql(spark, "SELECT * FROM lake.nyc.flights")

    @dg.asset
    def plain() -> pa.Table:
        return pa.table({"id": [1]})

    lake.run(plain)
    assert inputs(lake, "plain") == {}


@pytest.mark.parametrize(("table", "counts"), [("lake.nyc.flights@`{branch}`", True), ("lake.nyc.flights", False)])
def test_a_check_that_reads_the_branch_counts_for_its_promotion(lake, spark, table, counts):
    pyspark_lance.register_catalog(spark, "lake", lake.root)

    @dg.asset_check(asset=flights, blocking=True)
    def some(context, spark: LanceSparkResource, tables: LanceTableResource) -> dg.AssetCheckResult:
        name = table.format(branch=f"dagster/run/{context.run.run_id}")
        return dg.AssetCheckResult(passed=pyspark_lance.sql(spark.session, f"SELECT * FROM {name}").count() >= 0)

    policy = BranchPolicy.per_run()
    resources = {"spark": LanceSparkResource(), "tables": LanceTableResource(root_uri=lake.root, branching=policy)}
    lake.run(flights)
    run = lake.run(flights, some, resources=resources, branching=policy)
    branch = f"dagster/run/{run.run_id}"
    checks = check_branch(lake.instance, lake.table("nyc/flights"), branch, [flights.key], lambda _: {"some"})
    said = " ".join(checks.sentences("here"))
    assert said == "" if counts else f"name the branch in pyspark_lance.sql, as lake.nyc.flights@`{branch}`" in said
