"""Builds of declared indices in parts, by the executors of a Spark session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lance_core.maintenance import IndexBuilder
from pyspark_lance.engine.executor_tasks import run_all_tasks
from pyspark_lance.engine.sessions import check_client, parallelism_of
from pyspark_lance.lazy import SparkSession


def executor_index_builder(spark: SparkSession) -> IndexBuilder:
    """A builder for `lance_core.maintenance.maintain` that builds indices in parts on Spark's executors.

    Executors need `lance-dagster[search]`; those without it are named before a build begins.

    Args:
        spark: The session, classic or Connect.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2], "body": ["one", "two"]}, "t.lance")
        >>> from lance_core.maintenance import MaintenancePolicy, maintain
        >>> policy = MaintenancePolicy(indices={"body": "FTS"})
        >>> maintain(table, policy, index_builder=pyspark_lance.executor_index_builder(spark)).done["indices_built"]
        1
    """
    check_client(spark)

    def run(task: Callable[[int], Any], count: int, timeout_s: float | None) -> list[Any]:
        return run_all_tasks(spark, task, count, timeout_s=timeout_s)

    return IndexBuilder(run=run, parallelism=parallelism_of(spark))
