"""The code location of `deployment`: its policy, and what fails in it, are variables of the environment."""

import json
import os

import dagster as dg
import pyarrow as pa

from lance_dagster import BranchPolicy, LanceIOManager, build_branch_jobs

KEYS = dg.StaticPartitionsDefinition(["x", "y", "z"])
OPTIONS = {"partitions_def": KEYS, "metadata": {"partition_expr": "key"}}


def settings() -> dict:
    """The root, the policy, the value that is written, and the steps that fail, by "asset" or "asset:partition"."""
    return json.loads(os.environ["LANCE_TEST_DEPLOYMENT"])


def fails(name: str, context) -> bool:
    return bool({name, f"{name}:{context.run.tags.get('dagster/partition')}"} & set(settings()["failing"]))


@dg.asset(**OPTIONS)
def first(context: dg.AssetExecutionContext) -> pa.Table:
    if fails("first", context):
        raise RuntimeError("first fails")
    return pa.table({"key": list(context.partition_keys), "n": [settings()["value"]] * len(context.partition_keys)})


@dg.asset(**OPTIONS)
def second(context: dg.AssetExecutionContext, first: pa.Table) -> pa.Table:
    if fails("second", context):
        raise RuntimeError("second fails")
    return pa.table({"key": first["key"], "n": [10 * n for n in first["n"].to_pylist()]})


@dg.asset_check(asset=first)
def positive(context, first: pa.Table) -> dg.AssetCheckResult:
    if fails("positive", context):
        raise RuntimeError("positive crashes")
    return dg.AssetCheckResult(passed=min(first["n"].to_pylist(), default=0) >= 0)


policy = settings()["policy"]
branch_jobs = build_branch_jobs([first, second])
defs = dg.Definitions(
    assets=[first, second],
    asset_checks=[positive],
    jobs=[dg.define_asset_job("both", selection="*", executor_def=dg.in_process_executor), *branch_jobs],
    executor=dg.in_process_executor,
    resources={
        "io_manager": LanceIOManager(
            root_uri=settings()["root"],
            namespace=settings()["namespace"],
            branching=BranchPolicy(kind=policy[0], name=policy[1] if len(policy) > 1 else None),
            default_load_type="pyarrow",
        )
    },
)
