"""Change feeds: the rows that were inserted, updated and deleted between two versions, read by Spark's tasks.

    columns of the table ... | _change_type | _commit_version | _commit_timestamp

`lance_core` plans the feed from the table's metadata; its tasks are pickled, and read on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from os import PathLike
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core import ChangeTask, LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.engine.sessions import check_client, parallelism_of, reject_memory, use_cores_of_task
from pyspark_lance.keys.collations import session_filter
from pyspark_lance.lazy import DataFrame, SparkSession, StructType, functions
from pyspark_lance.reading.plan import NumberedTasks, checked_blob_handling, split_batch
from pyspark_lance.types.arrow_types import to_arrow
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.column_names import case_sensitive, names_of, quoted, respell_path
from pyspark_lance.types.spark_types import spark_schema

ROW_ID: Final = "_rowid"
FEED_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")
_OTHER: Final = "__lance_other_"
_BY_SPLIT: Final = (
    "leave it out, give split_updates=True, and put the condition on the DataFrame, by .where(...), which compares as"
    " Spark does"
)
_TASK_ROWS: Final = 1 << 20
"""Rows of a fragment that one task reads, if there are many."""
_LEAST_ROWS: Final = 1 << 16
"""A task with fewer rows than these is not worth its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFeed:
    """A change feed, which can be pickled.

    Attributes:
        uri: The table.
        version: The later version.
        schema: Arrow schema of the feed as the table has it.
        expected: Arrow schema of the batches that Spark expects.
        tasks: The parts of the feed, grouped by the Spark task that reads them.
        storage_options: Credentials and options of the storage.
    """

    uri: str
    version: int
    schema: pa.Schema
    expected: pa.Schema
    tasks: tuple[tuple[ChangeTask, ...], ...]
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def of_kinds(self, *kinds: str) -> ChangeFeed:
        """The rows of some kinds of change."""
        left = [tuple(task for task in some if task.change_type in kinds) for some in self.tasks]
        return replace(self, tasks=tuple(some for some in left if some))

    def with_columns_of(self, version: int, columns: Sequence[str]) -> ChangeFeed:
        """The feed with the columns of another version; a column that a row's version lacks is null."""
        names, with_row_id = tuple(name for name in columns if name != ROW_ID), ROW_ID in columns

        def changed(task: ChangeTask) -> ChangeTask:
            return replace(
                task, feed_version=version, columns=replace(task.columns, names=names, with_row_id=with_row_id)
            )

        return replace(self, tasks=tuple(tuple(map(changed, some)) for some in self.tasks))

    def read(self, tasks: Iterable[ChangeTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts, as batches of `expected`. Runs in a task."""
        use_cores_of_task()
        dataset = lance_core.dataset(self.uri, self.version, storage_options=self.storage_options)
        convert = BatchConverter(self.expected, exact=False)
        for task in tasks:
            for batch in task.to_batches(dataset):
                for part in split_batch(batch):
                    yield convert(part)


def read_changes(  # noqa: PLR0913 - each is a choice of its own, all but three have a default
    spark: SparkSession,
    uri: str | PathLike[str],
    *,
    begin_version: int,
    end_version: int | None = None,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | str | None = None,  # noqa: A002 - the name that scanners give it
    key: str | Sequence[str] = (),
    split_updates: bool = False,
    updates_of: str | Sequence[str] | None = None,
    preimages: bool = False,
    each_version: bool = False,
    storage_options: Mapping[str, str] | None = None,
    blob_handling: str | None = None,
) -> DataFrame:
    """A lazy DataFrame over the changes between two versions, as `LanceDataset.delta(...).get_changes` returns them.

    The versions are fixed now. The table's metadata shows which rows changed, and Spark's tasks read only these rows.
    Versions that are read must not be cleaned up before Spark has computed the frame.

    Args:
        spark: The session.
        uri: The table: a path or a URI.
        begin_version: The earlier version, whose own changes are left out; 0 stands for an empty table.
        end_version: The later version, whose changes are included; None for the latest.
        columns: Names of columns of the later version; None for all columns. `_rowid` is the id of the row.
        filter: SQL, or an Arrow expression: the changes of the rows that meet it. An updated row counts
            as deleted if only its old values meet it, and as inserted if only its new values do.
        key: Columns whose update counts as a delete of the old row and an insert of the new one.
        split_updates: Give each update as a delete of the old row and an insert of the new one, whatever its columns.
        updates_of: Give updated rows only where one of these columns may have been written; None for all columns.
        preimages: Give an updated row twice: as it was ("update_preimage") and as it is ("update_postimage").
        each_version: Give the changes of each version. Otherwise changes are net: a row occurs once, and not at all if
            it was inserted and deleted between the versions.
        storage_options: Credentials and options of the storage, by object_store's names. They are sent to the
            executors.
        blob_handling: How columns of blobs are read, as in `read`.

    Returns:
        The columns, `_change_type` ("delete", "update_preimage", "update_postimage" or "insert"), `_commit_version` and
        `_commit_timestamp`.

    Raises:
        DatasetNotFoundError: The URI holds no table.
        VersionNotFoundError: A version that is needed was cleaned up; the message names the oldest remaining version.
        UnsupportedError: The table has no stable row ids, and rows were updated; or Spark has no type for a column; or
            the filter compares a column that has a collation.
        SchemaError: The table lacks a column, or has one with the name of a column of the feed.
        InvalidInputError: A filter, a key or `split_updates` is given together with `preimages` or `each_version`; or
            the filter does not fit the columns.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> deleted = table.delete("id = 2")
        >>> changes = pyspark_lance.read_changes(spark, "t.lance", begin_version=1)
        >>> changes.select("id", "_change_type").collect()
        [Row(id=2, _change_type='delete')]
    """
    check_client(spark)
    reject_memory(uri)
    if (filter is not None or key or split_updates) and (preimages or each_version):
        raise InvalidInputError(
            "filter, key and split_updates need net changes without preimages; DataFrame.where filters other changes"
        )
    dataset = lance_core.dataset(uri, end_version, storage_options=storage_options)
    exact = case_sensitive(spark)
    names = feed_columns(dataset, columns, case_sensitive=exact)
    key = _respell_names(dataset, names_of("key", key), exact=exact)
    updates_of = (
        None if updates_of is None else _respell_names(dataset, names_of("updates_of", updates_of), exact=exact)
    )
    condition = session_filter("filter", filter, dataset, spark, _BY_SPLIT)
    feed_names = [*names, *FEED_COLUMNS]
    pairs = (condition is not None or bool(key)) and not split_updates
    if pairs:  # columns of the key are read as well
        names = list(dict.fromkeys([*names, *key, ROW_ID]))
    feed = plan_feed(
        dataset,
        begin_version,
        columns=names,
        updates_of=updates_of,
        filter=condition,
        preimages=preimages or pairs or split_updates,
        each_version=each_version,
        storage_options=storage_options,
        blob_handling=blob_handling,
        parallelism=parallelism_of(spark),
    )
    if split_updates:
        return _split(read_feed(spark, feed)).select(*map(quoted, feed_names))
    if not pairs:
        return read_feed(spark, feed)
    has_updates = any(task.change_type == "update_postimage" for some in feed.tasks for task in some)
    frame = _pair_updates(spark, feed, key) if has_updates else read_feed(spark, feed)
    return frame.select(*map(quoted, feed_names))


def _split(frame: DataFrame) -> DataFrame:
    """The feed with each preimage as a delete, and each postimage as an insert."""
    kind = functions.col(FEED_COLUMNS[0])
    split = functions.when(kind == "update_preimage", "delete").when(kind == "update_postimage", "insert")
    return frame.withColumn(FEED_COLUMNS[0], split.otherwise(kind))


def _pair_updates(spark: SparkSession, feed: ChangeFeed, key: Sequence[str]) -> DataFrame:
    """Pair the images of updated rows: two images with the same key are an update, others a delete and an insert."""
    columns = [name for name in feed.schema.names if name != ROW_ID]
    unpaired_feed, after = feed.of_kinds("insert", "delete"), feed.of_kinds("update_postimage")
    old, new = read_feed(spark, feed.of_kinds("update_preimage")), read_feed(spark, after)

    def pair_rows(rows: DataFrame, with_rows: DataFrame, moved: str, same: str | None) -> DataFrame:
        other_columns = [functions.col(quoted(name)).alias(f"{_OTHER}{i}") for i, name in enumerate((ROW_ID, *key))]
        both = rows.join(with_rows.select(*other_columns), functions.col(ROW_ID) == functions.col(f"{_OTHER}0"), "left")
        equal = functions.col(f"{_OTHER}0").isNotNull()
        for i, name in enumerate(key, 1):
            equal = equal & functions.col(quoted(name)).eqNullSafe(functions.col(f"{_OTHER}{i}"))
        kind = functions.when(~equal, functions.lit(moved)).when(equal, functions.lit(same))
        return (
            both.withColumn(FEED_COLUMNS[0], kind).where(f"{FEED_COLUMNS[0]} is not null").select(*map(quoted, columns))
        )

    frames = [read_feed(spark, unpaired_feed).select(*map(quoted, columns))] if unpaired_feed.tasks else []
    frames += [pair_rows(old, new, "delete", None), pair_rows(new, old, "insert", "update_postimage")]
    return reduce(lambda frame, other: frame.unionByName(other), frames)


def feed_columns(dataset: LanceDataset, columns: Sequence[str] | None, *, case_sensitive: bool = False) -> list[str]:
    """The table's columns of a feed, as the table spells them, without the columns that every feed adds.

    Raises:
        InvalidInputError: `columns` is empty, or a single string.
        SchemaError: A column is neither one of the table nor `_rowid`.
    """
    if columns is not None and (isinstance(columns, str) or not columns):
        raise InvalidInputError(f"columns must be a list of at least one name, not {columns!r}")
    table_columns = dataset.schema.names
    names = table_columns if columns is None else names_of("columns", columns)
    names = _respell_names(dataset, names, exact=case_sensitive)
    # The plan rejects the table's own column with such a name: the values of the feed would take the place of its own.
    names = [name for name in names if name not in FEED_COLUMNS or name in table_columns]
    odd = [name for name in names if name not in (*table_columns, ROW_ID)]
    if odd:
        raise SchemaError(
            f"{dataset.uri} has no columns {odd}; it has {table_columns}, and its change feed has {ROW_ID}"
        )
    return names


def _respell_names(dataset: LanceDataset, names: Iterable[str], *, exact: bool) -> list[str]:
    """Names in the table's spelling, unless case matters; unknown names stay as they are."""
    return [name if exact or name == ROW_ID else respell_path(dataset.schema, name) for name in names]


def feed_schema(dataset: LanceDataset, columns: Sequence[str] | None, blob_handling: str | None) -> StructType:
    """The Spark schema of the feed of a version."""
    names = feed_columns(dataset, columns)
    plan = dataset.delta(dataset.version).plan(**_plan_columns(names), blob_handling=blob_handling)
    return spark_schema(plan.schema)


def _plan_columns(names: Sequence[str]) -> dict[str, Any]:
    return {"columns": [name for name in names if name != ROW_ID], "with_row_id": ROW_ID in names}


def plan_feed(
    dataset: LanceDataset,
    begin_version: int,
    *,
    columns: Sequence[str],
    storage_options: Mapping[str, str] | None,
    blob_handling: str | None,
    parallelism: int,
    **changes: Any,
) -> ChangeFeed:
    """Find the changes of a feed, and divide them among tasks. No data file is read.

    Args:
        dataset: The later version.
        begin_version: The earlier version.
        columns: Names of columns as the table spells them, or `_rowid`.
        storage_options: As in `read_changes`.
        blob_handling: As in `read_changes`.
        parallelism: Tasks that Spark runs at once.
        **changes: `updates_of`, `filter`, `preimages` and `each_version`, as in `read_changes`.
    """
    blobs = checked_blob_handling(blob_handling)
    plan = dataset.delta(begin_version=begin_version, end_version=dataset.version).plan(
        **_plan_columns(columns), **changes, blob_handling=blobs, max_rows_per_task=_TASK_ROWS
    )
    return ChangeFeed(
        uri=dataset.uri,
        version=dataset.version,
        schema=plan.schema,
        expected=to_arrow(spark_schema(plan.schema)),
        tasks=group_tasks(plan.tasks, parallelism),
        storage_options=storage_options,
    )


def group_tasks(tasks: Sequence[ChangeTask], parallelism: int) -> tuple[tuple[ChangeTask, ...], ...]:
    """Parts of a feed grouped by Spark task, in order; there are fewer tasks than run at once if the rows are few."""
    rows = sum(task.num_rows for task in tasks)
    share = max(-(-rows // parallelism), _LEAST_ROWS) if rows <= parallelism * _TASK_ROWS else _TASK_ROWS
    task_groups: list[list[ChangeTask]] = []
    left = 0
    for task in tasks:
        if left <= 0:
            task_groups.append([])
            left = share
        task_groups[-1].append(task)
        left -= task.num_rows
    return tuple(map(tuple, task_groups))


def read_feed(spark: SparkSession, feed: ChangeFeed) -> DataFrame:
    """The frame of a feed."""
    schema = spark_schema(feed.schema)
    if not feed.tasks:
        return spark.createDataFrame([], schema)
    count, name = len(feed.tasks), f"lance {feed.uri} changes up to version {feed.version}"
    tasks = NumberedTasks(name, replace(feed, tasks=()).read, feed.tasks)
    return spark.range(0, count, 1, count).mapInArrow(tasks, schema)
