"""The gate of branches whose rows lie outside of the partitions that Dagster knows, or that a run names."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import BranchPolicy, LanceIOManager, LanceTableResource, build_audited_job, build_branch_jobs
from tests.lance_dagster.lake import errors

FIX = {"lance/branch": "fix"}


class Shop:
    """Orders by region with a blocking check, on main and on branches."""

    def __init__(self, lake, partitions, *, by_partition=False, opens=False, **metadata):
        self.lake = lake
        metadata = {"partition_expr": "region", **metadata}

        @dg.asset(partitions_def=partitions, metadata=metadata)
        def orders(context) -> pa.Table:
            rows = [row.split("=") for row in context.run.tags["rows"].split()]
            return pa.table({"region": [row[0] for row in rows], "n": [int(row[1]) for row in rows]})

        if opens:

            @dg.asset_check(asset=orders, blocking=True)
            def positive(tables: LanceTableResource) -> dg.AssetCheckResult:
                return dg.AssetCheckResult(passed=not tables.open("orders").count_rows("n < 0"))

        else:

            @dg.asset_check(asset=orders, blocking=True, partitions_def=partitions if by_partition else None)
            def positive(orders: pa.Table) -> dg.AssetCheckResult:
                return dg.AssetCheckResult(passed=min(orders["n"].to_pylist(), default=1) > 0)

        branching = BranchPolicy.from_tag("lance/branch")
        settings = {"root_uri": lake.root, "branching": branching}
        self.defs = dg.Definitions(
            assets=[orders],
            asset_checks=[positive],
            jobs=[
                *build_branch_jobs([orders]),
                *([] if opens else [build_audited_job([orders, positive], name="audited")]),
                dg.define_asset_job("write", [orders]),
                dg.define_asset_job("check", dg.AssetSelection.checks(positive)),
            ],
            resources={"io_manager": LanceIOManager(**settings), "tables": LanceTableResource(**settings)},
        )

    def run(self, job, rows="", key=None, **tags):
        return self.defs.resolve_job_def(job).execute_in_process(
            instance=self.lake.instance, partition_key=key, tags={"rows": rows, **tags}, raise_on_error=False
        )

    def rows(self):
        return sorted((row["region"], row["n"]) for row in self.lake.table("orders").to_table().to_pylist())


def test_rows_of_a_partition_that_was_removed_need_a_result(lake):
    shop = Shop(lake, dg.DynamicPartitionsDefinition(name="regions"))
    lake.instance.add_dynamic_partitions("regions", ["eu", "us"])
    assert shop.run("write", "eu=1", "eu").success
    assert not shop.run("write", "eu=-7", "eu", **FIX).success
    lake.instance.delete_dynamic_partition("regions", "eu")
    assert shop.run("write", "us=5", "us", **FIX).success
    rejected = shop.run("lance_promote", **FIX)
    assert "did not pass on" in errors(rejected)
    assert shop.rows() == [("eu", 1)]
    lake.instance.add_dynamic_partitions("regions", ["eu"])
    assert shop.run("write", "eu=7", "eu", **FIX).success
    assert shop.run("lance_promote", **FIX).success
    assert shop.rows() == [("eu", 7), ("us", 5)]


@pytest.mark.variants(4)
@pytest.mark.filterwarnings("ignore:Specifying a partitions_def on an AssetCheckSpec")
@pytest.mark.parametrize("by_partition", [False, True])
@pytest.mark.parametrize("mode", ["overwrite", "append", "merge"])
def test_rows_that_a_check_has_not_read_are_not_published(lake, mode, by_partition):
    merge = {"lance/merge_on": "n"} if mode == "merge" else {}
    metadata = {"lance/out_of_partition": "allow", "lance/write_mode": mode, **merge}
    shop = Shop(lake, dg.StaticPartitionsDefinition(["eu", "us"]), by_partition=by_partition, **metadata)
    assert shop.run("write", "eu=1", "eu").success
    assert shop.run("write", "eu=1 elsewhere=-9", "eu", **FIX).success
    rejected = shop.run("lance_promote", **FIX)
    assert "LanceTableResource.open" in errors(rejected)
    assert not shop.run("audited", "us=1 elsewhere=-8", "us").success
    assert shop.rows() == [("eu", 1)]


def test_a_check_that_opens_the_table_reads_all_rows(lake):
    metadata = {"lance/out_of_partition": "allow"}
    shop = Shop(lake, dg.StaticPartitionsDefinition(["eu", "us"]), opens=True, **metadata)
    assert shop.run("write", "eu=1 elsewhere=9", "eu", **FIX).success
    assert "has not passed" in errors(shop.run("lance_promote", **FIX))  # the run was one of a partition
    assert shop.run("check", **FIX).success
    assert shop.run("lance_promote", **FIX).success
    assert shop.rows() == [("elsewhere", 9), ("eu", 1)]
