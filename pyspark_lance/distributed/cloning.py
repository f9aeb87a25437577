"""Deep clones of tables, whose files the executors of a Spark session copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import lance_core
from lance_core import FileCopy, LanceDataset
from pyspark_lance.engine.executor_tasks import TASKS_PER_CORE, Progress, run_all_tasks
from pyspark_lance.engine.sessions import parallelism_of, reject_memory
from pyspark_lance.lazy import SparkSession


def deep_clone(
    spark: SparkSession,
    uri: str | PathLike[str],
    target: str | PathLike[str],
    *,
    version: Any = None,
    storage_options: Mapping[str, str] | None = None,
    target_storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> LanceDataset:
    """Copy a version of a table with all its files, on Spark's executors.

    Within one object store, the store itself copies. If a file cannot be copied, no table is created at the target; the
    next attempt copies all files again.

    Args:
        spark: The session, classic or Connect.
        uri: The table.
        target: The URI of the copy; executors must reach both URIs.
        version: A number, a tag, or (branch, number); the latest version by default.
        storage_options: Credentials and options of the storage. They are sent to the executors.
        target_storage_options: Options of the target's storage; by default the same.
        progress: Called with the numbers of finished and of all tasks, from another thread while they run.

    Returns:
        The copy.

    Raises:
        DatasetExistsError: The target holds a table.
        VersionNotFoundError: The table has no such version.
        LanceError: A file could not be copied; nothing is committed.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> pyspark_lance.deep_clone(spark, "t.lance", "copy.lance").count_rows()
        3
    """
    reject_memory(uri)
    reject_memory(target)
    dataset = lance_core.dataset(uri, storage_options=storage_options)

    def copy(copies: Sequence[FileCopy]) -> None:
        if not copies:
            return
        most = TASKS_PER_CORE * parallelism_of(spark)
        groups = tuple(tuple(copies[start::most]) for start in range(min(most, len(copies))))
        run_all_tasks(spark, partial(_copy_group, groups), len(groups), progress)

    reference = dataset.version if version is None else version
    return dataset.deep_clone(target, reference, target_storage_options or storage_options, copier=copy)


def _copy_group(groups: Sequence[Sequence[FileCopy]], number: int) -> None:
    """Runs on an executor, to which the groups are sent together with the options of the stores."""
    for copy in groups[number]:
        copy.run()
