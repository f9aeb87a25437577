"""Rewrites on the executors of a Spark session."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import RewriteResult

__all__ = ["spark_rewriter"]

SparkRewriter = Callable[["lance_core.LanceDataset", Sequence[Any]], "list[RewriteResult]"]


def spark_rewriter(manager: Any, options: dict[str, str] | None, at_a_time: int | None) -> SparkRewriter:
    """A rewriter that runs tasks on Spark's executors, at most `at_a_time` at once, or all at once for None."""

    def run(dataset: "lance_core.LanceDataset", tasks: Sequence[Any]) -> list[Any]:
        import pyspark_lance  # noqa: PLC0415 - optional
        from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use

        if not hasattr(manager, "spark_session"):
            raise dg.DagsterInvalidDefinitionError(
                f'a {type(manager).__name__} has no Spark session; use engine="process"'
            )
        results: list[Any] = []
        for start in range(0, len(tasks), at_a_time or len(tasks) or 1):
            wave = tasks[start : start + (at_a_time or len(tasks))]
            done, failures = pyspark_lance.execute_tasks(
                manager.spark_session(), dataset.uri, wave, storage_options=options
            )
            if failures:
                raise LanceError(f"{len(failures)} of {len(wave)} tasks failed; the first error: {failures[0].error}")
            results += done
        return results

    return run
