"""Scalar indices that the executors of a Spark session build.

driver      groups of fragments of one version
executors   one segment per group, `_indices/<uuid>/`, to which no version refers yet
driver      one merged segment, and one commit
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final

import lance_core
from lance_core import Index, LanceDataset
from pyspark_lance.engine.executor_tasks import TASKS_PER_CORE, Progress, run_all_tasks
from pyspark_lance.engine.sessions import check_client, parallelism_of, reject_memory
from pyspark_lance.lazy import SparkSession
from pyspark_lance.types.column_names import case_sensitive, respell_path
from pyspark_lance.writing.orphan_files import cleaning_up, delete_orphan_files

_JOB_CHARACTERS: Final = len("01234567-0123-0123-")


def create_scalar_index(
    spark: SparkSession,
    uri: str | PathLike[str],
    column: str,
    index_type: Any,
    name: str | None = None,
    *,
    replace: bool = True,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **arguments: Any,
) -> LanceDataset:
    """Build a scalar index on Spark's executors, one segment for each group of fragments, and commit it.

    Args:
        spark: The session, classic or Connect.
        uri: The table, at a URI that executors reach; its latest version is indexed.
        column: The column, or the dotted path to a field of a struct.
        index_type: "ZONEMAP", "BITMAP", "BTREE", "BLOOMFILTER" or "LABEL_LIST", or an `IndexConfig`.
        name: Name of the index; `<column>_idx` by default.
        replace: Whether an index of that name on that column is replaced.
        storage_options: Credentials and options of the storage. They are sent to the executors.
        progress: Called with the numbers of finished and of all tasks, from another thread while they run.
        **arguments: Parameters of the kind, as in `LanceDataset.create_scalar_index`.

    Returns:
        The table at the version that has the index.

    Raises:
        SchemaError: The table lacks the column, or the type of the index does not fit it.
        InvalidInputError: The type of the index or a parameter is not known, or the name is in use.
        UnsupportedError: Indices of that type cannot be built by this package.
        LanceError: A task failed; nothing is committed.
        RetryableConflictError: A concurrent commit moved rows of the fragments.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> index = pyspark_lance.create_scalar_index(spark, "t.lance", "id", "BTREE")
        >>> [index["name"] for index in lance.dataset("t.lance").list_indices()]
        ['id_idx']
    """
    check_client(spark)
    reject_memory(uri)
    dataset = lance_core.dataset(uri, storage_options=storage_options)
    if isinstance(column, str) and not case_sensitive(spark):
        column = respell_path(dataset.schema, column)
    job = str(uuid.uuid4())[:_JOB_CHARACTERS]
    build = _Build(
        job=job,
        uri=dataset.uri,
        version=dataset.version,
        arguments={"column": column, "index_type": index_type, "name": name, "replace": replace, **arguments},
        storage_options=dict(storage_options or {}),
        groups=_group_fragments(dataset, TASKS_PER_CORE * parallelism_of(spark)),
    )
    failed = True
    try:
        # A segment without fragments is built first, so that wrong arguments are found before a job runs.
        parts = [build.segment(dataset, ())]
        if build.groups:
            parts += run_all_tasks(spark, build, len(build.groups), progress)
        failed = False
        merged = dataset.merge_existing_index_segments(parts)
    finally:
        delete_orphan_files(dataset.uri, job, (), storage_options, failed=failed, index_segments=True)
    with cleaning_up(lambda: delete_orphan_files(dataset.uri, merged.uuid, (), storage_options, index_segments=True)):
        return dataset.commit_existing_index_segments(merged.name, column, [merged])


def _group_fragments(dataset: LanceDataset, most: int) -> tuple[tuple[int, ...], ...]:
    """The ids of the fragments, in groups with similar numbers of rows."""
    fragments = dataset.get_fragments()
    rows = sum(fragment.physical_rows for fragment in fragments)
    groups: dict[int, list[int]] = {}
    before = 0
    for fragment in fragments:
        groups.setdefault(before * most // max(rows, 1), []).append(fragment.fragment_id)
        before += fragment.physical_rows
    return tuple(map(tuple, groups.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """The segments, built by number; pickled. The UUIDs of all segments begin with `job`."""

    job: str
    uri: str
    version: int
    arguments: Mapping[str, Any]
    storage_options: Mapping[str, str] = field(repr=False)
    groups: Sequence[Sequence[int]]

    def __call__(self, number: int) -> Index:
        """Build a segment on an executor."""
        dataset = lance_core.dataset(self.uri, self.version, storage_options=self.storage_options or None)
        return self.segment(dataset, self.groups[number])

    def segment(self, dataset: LanceDataset, fragment_ids: Sequence[int]) -> Index:
        """Build the segment of some fragments."""
        index_uuid = self.job + str(uuid.uuid4())[_JOB_CHARACTERS:]
        return dataset.create_index_uncommitted(**self.arguments, fragment_ids=fragment_ids, index_uuid=index_uuid)
