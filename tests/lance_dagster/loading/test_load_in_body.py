"""Assets that the body of an asset, op or check loads itself: Dagster gives the IO manager no step for them."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import dagster as dg
import pyarrow as pa
import pytest

from lance_core.errors import DatasetNotFoundError
from lance_dagster import BranchPolicy, LanceTableResource, build_audited_job, build_branch_jobs
from tests.lance_dagster.lake import QUIET, errors

BY_TAG = {"branching": BranchPolicy.from_tag("lance/branch")}
ON_BRANCH = {"lance/branch": "b"}
DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])


@dg.asset
def prices(context) -> pa.Table:
    return pa.table({"n": [int(context.run.tags["n"])]})


def by_context(context, **arguments):
    context = getattr(context, "op_execution_context", context)
    return context.load_asset_value(dg.AssetKey("prices"), python_type=pa.Table, **arguments)


def in_thread(context):
    with ThreadPoolExecutor() as pool:
        return pool.submit(by_context, context).result()


def by_hand(context):
    built = dg.build_input_context(asset_key=dg.AssetKey("prices"), instance=context.instance)
    return context.resources.io_manager.load_input(built)


def by_hand_in_thread(context):
    with ThreadPoolExecutor() as pool:
        return pool.submit(by_hand, context).result()


def by_hand_in_copied_context(context):
    with ThreadPoolExecutor() as pool:
        return pool.submit(copy_context().run, by_hand, context).result()


def recorded_inputs(dataset):
    properties = dataset.read_transaction(dataset.version).transaction_properties
    return {key: json.loads(value) for key, value in properties.items() if key.startswith("dagster.input.")}


@pytest.mark.variants(3)
@pytest.mark.parametrize("load", [by_context, in_thread, by_hand, by_hand_in_copied_context, by_hand_in_thread])
def test_the_body_of_a_run_on_a_branch_reads_the_branch(lake, load):
    @dg.asset(deps=[prices], required_resource_keys={"io_manager"})
    def total(context: dg.AssetExecutionContext) -> pa.Table:
        return load(context)

    settings = {"default_load_type": "pyarrow", **BY_TAG}
    lake.run(prices, total, tags={"n": "1"}, **settings)
    if load is by_hand_in_thread:
        result = lake.run(prices, total, tags={"n": "2", **ON_BRANCH}, fails=True, **settings)
        assert "asset prices is loaded in a run on branch b, and Dagster does not name the step" in errors(result)
        return
    lake.run(prices, total, tags={"n": "2", **ON_BRANCH}, **settings)
    lake.run(prices, total, select="total", tags=ON_BRANCH, **settings)  # a run that does not write the input itself
    assert (lake.rows("prices"), lake.rows("total")) == ([(1,)], [(1,)])
    branch = lake.table("total").checkout_version(("b", None))
    assert branch.to_table()["n"].to_pylist() == [2]
    ((name, read),) = recorded_inputs(branch).items()
    assert (name, read["branch"]) == ("dagster.input.prices", "b")
    event = lake.instance.get_latest_materialization_event(total.key).asset_materialization
    assert [one["asset"] for one in event.metadata["lance/inputs"].value] == ["prices"]


def test_an_audited_job_publishes_rows_of_its_own_inputs(lake):
    @dg.asset(deps=[prices])
    def total(context: dg.AssetExecutionContext) -> pa.Table:
        return by_context(context)

    @dg.asset_check(asset=prices, blocking=True)
    def positive(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=by_context(context)["n"][0].as_py() > 0)

    job = build_audited_job([prices, total, positive], name="audited", allow_unaudited=True)
    defs = dg.Definitions(
        [prices, total], asset_checks=[positive], jobs=[job], resources={"io_manager": lake.manager()}
    )
    for n in ("1", "2", "-3"):
        result = defs.resolve_job_def("audited").execute_in_process(
            instance=lake.instance, tags={"n": n}, run_config=QUIET, raise_on_error=False
        )
        assert result.success is (n != "-3"), errors(result)
    assert (lake.rows("prices"), lake.rows("total")) == ([(2,)], [(2,)])
    assert recorded_inputs(lake.table("total"))["dagster.input.prices"]["version"] == lake.table("prices").version


def test_what_a_check_loads_in_its_body_counts_for_the_promotion(lake):
    @dg.asset_check(asset=prices, blocking=True)
    def positive(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=by_context(context)["n"][0].as_py() > 0)

    lake.run(prices, tags={"n": "1"})
    lake.run(prices, positive, tags={"n": "2", **ON_BRANCH}, **BY_TAG)
    promote, discard = build_branch_jobs([prices])
    resources = {"io_manager": lake.manager(**BY_TAG)}
    defs = dg.Definitions([prices], asset_checks=[positive], jobs=[promote, discard], resources=resources)
    job = defs.resolve_job_def(promote.name)
    assert job.execute_in_process(instance=lake.instance, tags=ON_BRANCH, run_config=QUIET).success
    assert lake.rows("prices") == [(2,)]


def test_outside_of_a_run_main_is_loaded(lake):
    lake.run(prices, tags={"n": "1"}, **BY_TAG)
    lake.run(prices, tags={"n": "2", **ON_BRANCH}, **BY_TAG)
    defs = dg.Definitions([prices], resources={"io_manager": lake.manager(**BY_TAG)})
    key = prices.key
    assert defs.load_asset_value(key, python_type=pa.Table, instance=lake.instance)["n"].to_pylist() == [1]
    with defs.get_asset_value_loader(instance=lake.instance) as loader:
        assert loader.load_asset_value(key, python_type=pa.Table)["n"].to_pylist() == [1]

    @dg.asset(deps=[prices])
    def total(context: dg.AssetExecutionContext) -> pa.Table:
        return defs.load_asset_value(key, python_type=pa.Table, instance=context.instance)

    lake.run(prices, total, select="total", tags=ON_BRANCH, **BY_TAG)  # by the definitions, but in a run
    assert lake.table("total").checkout_version(("b", None)).to_table()["n"].to_pylist() == [2]


def test_partitions_that_a_body_loads_one_by_one_are_all_recorded(lake):
    @dg.asset(name="prices", partitions_def=DAYS, metadata={"partition_expr": "day"})
    def daily(context) -> pa.Table:
        return pa.table({"day": [context.partition_key], "n": [1]})

    doubled_metadata = {"lance/write_mode": "columns", "lance/table": "prices", "lance/key": "day"}

    @dg.asset(deps=[daily], partitions_def=None, metadata=doubled_metadata)
    def doubled(context: dg.AssetExecutionContext) -> pa.Table:
        loaded = [by_context(context, partition_key=day) for day in ("mon", "tue")]
        if context.run.tags.get("drops_one"):
            loaded = loaded[1:]
        return pa.table({"day": [table["day"][0].as_py() for table in loaded], "m": [2] * len(loaded)})

    for day in ("mon", "tue"):
        lake.run(daily, partition=day)
    lake.run(daily, doubled, select="doubled")
    assert lake.rows("prices") == [("mon", 1, 2), ("tue", 1, 2)]
    lake.run(daily, doubled, select="doubled", tags={"drops_one": "true"})
    assert lake.rows("prices") == [("mon", 1, None), ("tue", 1, 2)]  # the step has loaded the first one, too


def test_a_body_stores_nothing_by_hand_in_a_run_on_a_branch(lake):
    @dg.asset
    def other() -> None: ...

    @dg.asset(deps=[prices], required_resource_keys={"io_manager"})
    def total(context: dg.AssetExecutionContext) -> None:
        built = dg.build_output_context(asset_key=other.key, resources={}, name="result")
        context.resources.io_manager.handle_output(built, pa.table({"n": [1]}))

    result = lake.run(prices, total, select="total", tags=ON_BRANCH, fails=True, **BY_TAG)
    message = errors(result)
    assert "asset other is stored in a run on branch b, and Dagster does not name the step" in message
    assert "return the value from the body" in message
    with pytest.raises(DatasetNotFoundError):
        lake.table("other")


def test_a_thread_opens_tables_of_the_branch_in_the_context_of_the_body(lake):
    def in_pool(function, *arguments):
        with ThreadPoolExecutor() as pool:
            return pool.submit(function, *arguments).result()

    @dg.asset(deps=[prices])
    def total(tables: LanceTableResource) -> pa.Table:
        return in_pool(copy_context().run, tables.open, prices.key).to_table()

    @dg.asset(deps=[prices])
    def opens(tables: LanceTableResource) -> pa.Table:
        return in_pool(tables.open, prices.key).to_table()

    @dg.asset(deps=[prices])
    def asks(tables: LanceTableResource) -> pa.Table:
        return pa.table({"uri": [in_pool(tables.uri, prices.key)]})

    resources = {"tables": LanceTableResource(root_uri=lake.root)}
    lake.run(prices, opens, asks, tags={"n": "1"}, resources=resources, **BY_TAG)
    assert (lake.rows("opens"), lake.rows("asks")) == ([(1,)], [(lake.uri("prices"),)])
    lake.run(prices, total, tags={"n": "2", **ON_BRANCH}, resources=resources, **BY_TAG)
    assert lake.table("total").checkout_version(("b", None)).to_table()["n"].to_pylist() == [2]
    for asset in (opens, asks):
        result = lake.run(
            prices, asset, select=asset.key.path[-1], tags=ON_BRANCH, resources=resources, fails=True, **BY_TAG
        )
        assert "contextvars.copy_context().run" in errors(result)
