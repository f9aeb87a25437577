"""Computed columns whose function is called by the executors of a Spark session.

driver      the lease, and the rows that are due, in tasks of about as many rows each
executors   one task each: inputs -> calls of the function -> staged files
driver      one commit of the columns of whole fragments
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import pyarrow as pa

import lance_core
from lance_core import ComputedTask, ComputePlan, ComputeResult, ComputeTask
from lance_core.errors import InvalidInputError, LanceError
from pyspark_lance.engine.errors import SparkLostError
from pyspark_lance.engine.executor_tasks import TASKS_PER_CORE, Progress, run_tasks
from pyspark_lance.engine.sessions import check_client, parallelism_of, reject_memory
from pyspark_lance.lazy import SparkSession


def compute_columns(
    spark: SparkSession,
    uri: str | PathLike[str],
    function: Callable[..., Any],
    *,
    inputs: Sequence[str] | str,
    columns: pa.Schema,
    name: str,
    code_version: str,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> ComputeResult:
    """Compute columns of the rows that are due, each row once, on Spark's executors.

    It computes the same cells as `LanceDataset.compute_columns`, under the same lease: a later run, in this process or
    by Spark, continues from what the tasks have staged. Executors read the inputs, and need `lance_core` alone.

    Args:
        spark: The session, classic or Connect.
        uri: The table, at a URI that executors reach.
        function: Takes a record batch, or a frame, and the object of `setup`; it is pickled.
        inputs: The columns that the function reads.
        columns: The columns that it returns, all of which may be null.
        name: The name of the computation, by which later calls continue it.
        code_version: The version of the function.
        branch: The branch whose columns are computed; None for main.
        storage_options: Credentials and options of the storage. They are sent to the executors.
        **options: Further arguments of `LanceDataset.compute_columns`, except `processes` and `executor`: Spark decides
            how many calls run at a time. `setup` is called once in each of Spark's Python workers, with `timeout` in a
            process of it; `commit_every` is the most rows of a task.

    Returns:
        What was due, and what was done.

    Raises:
        LanceError: A task failed, such as when the function returned other columns, or Spark ended the job; what was
            computed is staged.
        FailedRowsError: The function failed on more rows than allowed; the others are committed.
        InvalidInputError: The table is in memory, the function cannot be pickled, or a column exists that the
            computation does not own.
        SchemaError: An input is missing.
        UnsupportedError: The table has no stable row ids.
        RetryableConflictError: Another run computes these columns.

    Examples:
        >>> table = lance.write_dataset({"text": ["a", "bc"]}, "t.lance", enable_stable_row_ids=True)
        >>> length = {"inputs": ["text"], "columns": pa.schema([("size", pa.int32())]), "name": "length"}
        >>> def measure(batch):
        ...     return pc.utf8_length(batch["text"])
        >>> pyspark_lance.compute_columns(spark, "t.lance", measure, **length, code_version="1").rows_computed
        2
    """
    reject_memory(uri)
    if "executor" in options:
        raise InvalidInputError("executor=: Spark's executors call the function; leave it out")
    dataset = lance_core.dataset(uri, storage_options=storage_options)
    if branch is not None:
        dataset = dataset.checkout_version((branch, None))
    return dataset.compute_columns(
        function, inputs=inputs, columns=columns, name=name, code_version=code_version,
        executor=executor_of_calls(spark), **options,
    )  # fmt: skip


def executor_of_calls(spark: SparkSession) -> Callable[[ComputePlan], Iterator[ComputedTask]]:
    """The `executor` of `LanceDataset.compute_columns` that calls the function on Spark's executors.

    Args:
        spark: The session, classic or Connect.

    Examples:
        >>> table = lance.write_dataset({"text": ["a", "bc"]}, "t.lance", enable_stable_row_ids=True)
        >>> length = {"inputs": "text", "columns": pa.schema([("size", pa.int32())]), "name": "length"}
        >>> def measure(batch):
        ...     return pc.utf8_length(batch["text"])
        >>> executor = pyspark_lance.executor_of_calls(spark)
        >>> table.compute_columns(measure, **length, code_version="1", executor=executor).rows_computed
        2
    """
    check_client(spark)

    def execute(plan: ComputePlan) -> Iterator[ComputedTask]:
        at_once = TASKS_PER_CORE * parallelism_of(spark)
        tasks = plan.divide(at_once)
        size = at_once if plan.is_visible_early else len(tasks)  # the results of a job come at its end
        for start in range(0, len(tasks), size):
            chosen = tasks[start : start + size]
            num_rows = sum(task.num_rows for task in chosen)

            def report(done: int, count: int, num_rows: int = num_rows) -> None:
                if done < count:  # the results of the last ones come next
                    plan.report(done * num_rows // count)

            results, failures = _run_tasks(spark, chosen, report)
            yield from results
            if failures:
                first = next(iter(failures.values()))
                raise LanceError(f"{len(failures)} of {len(chosen)} tasks failed; the first: {first}")

    return execute


def _run_tasks(
    spark: SparkSession, tasks: Sequence[ComputeTask], report: Progress
) -> tuple[list[ComputedTask], dict[int, str]]:
    """Run tasks on the executors.

    Raises:
        InvalidInputError: The function cannot be sent.
        SparkLostError: A worker ended, or all of Spark.
        LanceError: Spark ended the job.
    """
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(tasks[0].settings.calls)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidInputError(
            f"the function cannot be pickled for Spark ({error}): make what it refers to, such as a client, by setup="
        ) from error
    try:
        return run_tasks(spark, partial(_run_task, tasks), len(tasks), report)
    except SparkLostError as error:
        raise type(error)(
            f"{error}. A smaller batch_size needs less memory, and timeout= makes failed rows of calls that end or "
            "block their worker. What was staged is kept for the next run"
        ) from error
    except LanceError:
        raise
    except Exception as error:
        raise LanceError(
            f"Spark ended the job that called the function ({type(error).__name__}, the cause of this error): workers "
            "need the modules of the function. What was staged is kept for the next run"
        ) from error


def _run_task(tasks: Sequence[ComputeTask], number: int) -> ComputedTask:
    """Runs on an executor, to which the tasks are sent together with the options of the store."""
    return tasks[number].run()
