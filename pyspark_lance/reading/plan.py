"""The plan of a read: one version, some columns, some rows, split into tasks.

    fragments   0: 40k   1: 3,000k rows                      2: 700k           3: 60k
    tasks       |----------- 950k --|-- 950k --|-- 950k --|----------- 950k -------|

Small fragments share a task and large ones are split, so that all tasks take about the same time. There are as many
tasks as run at once, or a multiple of that, and no more than needed: Spark spends about 50 ms of processor time on
each. The plan names the version: however often Spark computes the DataFrame again, it sees the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core import LanceDataset, LanceFragment
from lance_core.errors import IncompatibleConflictError, InvalidInputError, SchemaError
from pyspark_lance.engine.errors import plain_errors
from pyspark_lance.engine.partitions import value_width
from pyspark_lance.engine.sessions import use_cores_of_task
from pyspark_lance.keys.collations import check_fits
from pyspark_lance.lazy import StructType
from pyspark_lance.types.arrow_types import to_arrow
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.column_names import names_of, respell_path
from pyspark_lance.types.spark_types import ROW_COLUMNS, spark_schema

AS_STORED: Final = "as_stored"
"""Blobs are read with their payloads, to be written back."""
_BLOB_HANDLINGS: Final = ("blobs_descriptions", "all_binary", "all_descriptions")
_TASK_ROWS: Final = 1 << 22
_TASK_BYTES: Final = 256 << 20
_LEAST_ROWS: Final = 1 << 16
_LEAST_BYTES: Final = 4 << 20
"""A task with fewer rows and fewer bytes than these is not worth its start."""
_FRAGMENT_ROWS: Final = 1 << 12
"""Reading a fragment of fewer rows takes as long as reading that many rows of a large one."""
_SLIVER: Final = 0.02
"""Part of a fragment that is too small for another task to read."""
_STRING_BYTES: Final = 20
"""Spark's own estimate of a string."""
_MANY_COLUMNS: Final = 256
_STEP_BYTES: Final = 64 << 20
"""Bytes that are read at a time if there are more than `_MANY_COLUMNS`: a page of each column would be too much."""
_FRAGMENTS_AHEAD: Final = 4
"""Small fragments of a remote store that a task reads in parallel: each may take 16 MiB."""
_SMALL_BATCH_ROWS: Final = 1 << 13
_SMALL_BATCH_BYTES: Final = 4 << 20
"""Batches with fewer rows and bytes than these are combined before they are sent."""
_BATCH_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentSize:
    """The size of a fragment: rows that are not deleted, and bytes of its files."""

    fragment_id: int
    num_rows: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRange:
    """Rows of a fragment: all of them, or those from `offset` on, counted without the deleted ones."""

    fragment_id: int
    offset: int = 0
    num_rows: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows of the fragment."""
        return self.offset == 0 and self.num_rows is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """A read of one version, which can be pickled.

    Attributes:
        uri: The table.
        version: The version that is read.
        identity: `LanceDataset.identity` of that version, which detects a table that was dropped and made again.
        columns: Names of the columns, in the order of `expected`.
        expected: Arrow schema of the batches that Spark expects.
        filter: Condition on the rows; None for all rows.
        storage_options: Credentials and options of the storage.
        blob_handling: How blobs are read.
        renamed: The names in `expected` of columns that have another name in the version, by that name.
    """

    uri: str
    version: int
    identity: str
    columns: tuple[str, ...]
    expected: pa.Schema
    filter: pc.Expression | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    blob_handling: str = AS_STORED
    renamed: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> LanceDataset:
        """The version that is read."""
        options = None if self.storage_options is None else tuple(sorted(self.storage_options.items()))
        return _dataset(self.uri, self.version, self.identity, options, self.blob_handling)

    def read(self, pieces: Iterable[FragmentRange], limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some pieces, at most `limit`, as batches of `expected`. Runs in a task."""
        use_cores_of_task()
        dataset = self.open()
        convert = BatchConverter(self.expected, exact=False)
        left = limit
        for scan in self._scans(dataset, pieces):
            if left is not None and left <= 0:
                return
            for batch in coalesce_batches(self._batches(dataset, scan, left)):
                for part in split_batch(batch):
                    yield convert(part)
                if left is not None:
                    left -= batch.num_rows

    def _scans(self, dataset: LanceDataset, pieces: Iterable[FragmentRange]) -> Iterator[tuple[FragmentRange, ...]]:
        """The pieces by scanner: consecutive whole fragments share a scanner, a part of a fragment has its own."""
        for whole, group in groupby(self._steps(dataset, pieces), lambda piece: piece.is_whole):
            scan_pieces = tuple(group)
            yield from [scan_pieces] if whole else zip(scan_pieces, strict=True)

    def _steps(self, dataset: LanceDataset, pieces: Iterable[FragmentRange]) -> Iterator[FragmentRange]:
        """The pieces, in steps that bound the memory of a worker where there are many columns."""
        if len(self.columns) <= _MANY_COLUMNS or self.filter is not None:  # rows are counted after the filter
            yield from pieces
            return
        rows = max(1, dataset.count_rows())
        most = max(1, _STEP_BYTES * rows // max(1, estimate_bytes(dataset, self.expected)))
        for piece in pieces:
            rows_of_fragment = _fragment(dataset, piece.fragment_id).metadata.num_rows
            if piece.is_whole and rows_of_fragment <= most:
                yield piece
                continue
            stop = piece.offset + (rows_of_fragment if piece.num_rows is None else piece.num_rows)
            for start in range(piece.offset, stop, most):
                yield replace(piece, offset=start, num_rows=min(most, stop - start))

    def _batches(
        self, dataset: LanceDataset, pieces: tuple[FragmentRange, ...], limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        scanner = dataset.scanner(
            columns=list(self.columns),
            filter=self.filter,
            fragments=[_fragment(dataset, piece.fragment_id) for piece in pieces],
            offset=pieces[0].offset or None,
            limit=min((n for n in (pieces[0].num_rows, limit) if n is not None), default=None),
            fragment_readahead=_FRAGMENTS_AHEAD,
        )
        for batch in scanner.to_batches():
            names = [self.renamed.get(name, name) for name in batch.schema.names]
            yield batch.rename_columns(names) if self.renamed else batch


def _fragment(dataset: LanceDataset, number: int) -> LanceFragment:
    fragment = dataset.get_fragment(number)
    assert fragment is not None, "the plan was made for this version"
    return fragment


def checked_blob_handling(blob_handling: str | None) -> str:
    """How blobs are read for a user: as descriptions unless the user gives another value.

    Raises:
        InvalidInputError: The value is not known; the message lists the values.
    """
    if blob_handling not in (None, *_BLOB_HANDLINGS):
        raise InvalidInputError(f"blob_handling must be one of {', '.join(_BLOB_HANDLINGS)}, not {blob_handling!r}")
    return blob_handling or _BLOB_HANDLINGS[0]


def check_read(dataset: LanceDataset, schema: StructType, filter: pc.Expression | None = None) -> pa.Schema:  # noqa: A002 - the name that scanners give it
    """The columns of a read, in Arrow's types.

    Raises:
        SchemaError: The table lacks a column, or the column cannot be converted to Spark's type.
        InvalidInputError: The filter does not fit the columns.
    """
    expected = to_arrow(schema)
    BatchConverter(expected, exact=False).plan(_project(dataset.schema, expected.names))
    if filter is not None:
        check_fits("filter", filter, dataset.schema)
    return expected


def plan_read(
    dataset: LanceDataset,
    schema: StructType,
    *,
    filter: pc.Expression | None = None,  # noqa: A002 - the name that scanners give it
    storage_options: Mapping[str, str] | None = None,
    blob_handling: str = AS_STORED,
) -> ReadPlan:
    """Decide how to read columns of a version.

    Args:
        dataset: The table at the version that is to be read.
        schema: The columns, in Spark's types.
        filter: Condition on the rows.
        storage_options: Credentials and options of the storage.
        blob_handling: How blobs are read; the same as in the schema of `dataset`.

    Raises:
        SchemaError: The table lacks a column, or the column cannot be converted to Spark's type.
        InvalidInputError: The filter does not fit the columns.
    """
    expected = check_read(dataset, schema, filter)
    return ReadPlan(
        uri=dataset.uri,
        version=dataset.version,
        identity=dataset.identity,
        columns=tuple(expected.names),
        expected=expected,
        filter=filter,
        storage_options=storage_options,
        blob_handling=blob_handling,
    )


def plan_tasks(dataset: LanceDataset, plan: ReadPlan, *, parallelism: int) -> tuple[tuple[FragmentRange, ...], ...]:
    """Divide the rows of the version among tasks, without fragments that indices rule out.

    Args:
        dataset: The version of the plan.
        plan: The plan.
        parallelism: Tasks that Spark runs at once.
    """
    possible = None if plan.filter is None else set(dataset.scanner(filter=plan.filter).fragment_ids())
    fragments = [
        fragment for fragment in dataset.get_fragments() if possible is None or fragment.fragment_id in possible
    ]
    return tuple(divide_fragments(fragments, plan, parallelism))


def divide_fragments(
    fragments: Iterable[LanceFragment], plan: ReadPlan, parallelism: int
) -> Iterator[tuple[FragmentRange, ...]]:
    """Divide some fragments among the tasks of a plan; yields the rows of each task."""
    sizes = [
        FragmentSize(fragment_id=metadata.id, num_rows=metadata.num_rows, num_bytes=metadata.num_bytes)
        for metadata in (fragment.metadata for fragment in fragments)
    ]
    return split_into_tasks(sizes, parallelism=parallelism, whole_fragments=plan.filter is not None)


def limit_tasks(
    dataset: LanceDataset, tasks: Iterable[tuple[FragmentRange, ...]], limit: int
) -> tuple[tuple[FragmentRange, ...], ...]:
    """The first tasks, shortened to a number of rows.

    Args:
        dataset: The version.
        tasks: The tasks, without a filter.
        limit: The largest number of rows.
    """
    rows = {fragment.fragment_id: fragment.metadata.num_rows for fragment in dataset.get_fragments()}
    first_tasks: list[tuple[FragmentRange, ...]] = []
    for task in tasks:
        pieces = []
        for piece in task:
            count = rows[piece.fragment_id] if piece.num_rows is None else piece.num_rows
            if limit > 0:
                pieces.append(piece if count <= limit else replace(piece, num_rows=limit))
            limit -= count
        first_tasks += [tuple(pieces)] if pieces else []
    return tuple(first_tasks)


def estimate_bytes(dataset: LanceDataset, expected: pa.Schema) -> int:
    """An estimate of the bytes that some columns of a version take in Spark, without regard to filters.

    Columns of a fixed width are counted exactly; the rest of the files is divided equally among the others.
    """
    metadata = [fragment.metadata for fragment in dataset.get_fragments()]
    rows = sum(fragment.num_rows for fragment in metadata)
    widths = {field.name: value_width(field.type) for field in dataset.schema}
    rest = sum(fragment.num_bytes for fragment in metadata) - rows * sum(width or 0 for width in widths.values())
    share = max(rest // max(1, list(widths.values()).count(None)), rows * _STRING_BYTES)
    return sum(share if (width := widths.get(name, 8)) is None else rows * width for name in expected.names)


def table_schema(dataset: LanceDataset, columns: Sequence[str] | None, *, case_sensitive: bool = False) -> StructType:
    """The Spark schema of a table, or of some columns of it, as the table spells them.

    Raises:
        SchemaError: The table lacks a column, or a name could stand for two columns.
        InvalidInputError: `columns` is empty, or a single string.
        UnsupportedError: Spark has no type for a column.
    """
    if columns is not None and (isinstance(columns, str) or not columns):
        raise InvalidInputError(f"columns must be a list of at least one name, not {columns!r}")
    if columns is None:
        return spark_schema(dataset.schema)
    columns = names_of("columns", columns)
    if not case_sensitive:
        columns = [path if path in ROW_COLUMNS else respell_path(dataset.schema, path) for path in columns]
    return spark_schema(_project(dataset.schema, columns))


def split_into_tasks(
    sizes: Sequence[FragmentSize], *, parallelism: int = 1, whole_fragments: bool = False
) -> Iterator[tuple[FragmentRange, ...]]:
    """Divide the fragments among tasks, in order.

    Args:
        sizes: The fragments.
        parallelism: Tasks that run at once.
        whole_fragments: Whether fragments must not be split, because rows are counted after a filter.

    Yields:
        The rows of each task, at least one.
    """
    # The end of each fragment, in units of the largest task.
    work = [max(size.num_rows, _FRAGMENT_ROWS) if size.num_rows else 0 for size in sizes]
    ends = np.cumsum(
        [max(rows / _TASK_ROWS, size.num_bytes / _TASK_BYTES) for rows, size in zip(work, sizes, strict=True)]
    )
    total_rows = sum(size.num_rows for size in sizes)
    if not total_rows:
        return
    rounds = max(1, math.ceil(ends[-1] / parallelism))
    worth = max(sum(work) / _LEAST_ROWS, sum(size.num_bytes for size in sizes) / _LEAST_BYTES)
    tasks = max(1, min(rounds * parallelism, math.ceil(worth), total_rows))
    share = float(ends[-1]) / tasks
    pending: list[FragmentRange] = []
    task, start = 0, 0.0
    for size, end in zip(sizes, ends.tolist(), strict=True):
        for number, first, last in _divide_fragment(start, end, share, tasks, whole_fragments=whole_fragments):
            if number != task and pending:
                yield tuple(pending)
                pending = []
            task = number
            offset, stop = (round(size.num_rows * part) for part in (first, last))
            if stop > offset:
                all_of_it = stop - offset == size.num_rows
                count = None if all_of_it else stop - offset
                pending.append(FragmentRange(fragment_id=size.fragment_id, offset=offset, num_rows=count))
        start = end
    if pending:
        yield tuple(pending)


def _divide_fragment(
    start: float, end: float, share: float, tasks: int, *, whole_fragments: bool
) -> Iterator[tuple[int, float, float]]:
    """The tasks that a fragment from `start` to `end` belongs to, each with the part of it, from 0 to 1."""
    if whole_fragments or end <= start:
        yield min(int((start + end) / 2 / share), tasks - 1), 0.0, 1.0
        return
    first = 0.0
    for number in range(min(int(start / share), tasks - 1), tasks):
        last = min(1.0, ((number + 1) * share - start) / (end - start))
        # A sliver at either end is not worth another read of the fragment.
        if last > 1 - _SLIVER or number == tasks - 1:
            last = 1.0
        if last > first + _SLIVER or last == 1.0:
            yield number, first, last
            first = last
        if last == 1.0:
            return


def _project(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    fields = {name: _field(schema, name) for name in columns}
    missing = [name for name, field in fields.items() if field is None]
    if missing:
        raise SchemaError(f"there are no columns {missing}; the table has {schema.names}")
    return pa.schema([field for name in columns if (field := fields[name]) is not None])


def _field(schema: pa.Schema, path: str) -> pa.Field | None:
    """A column, a row column, or a field of a struct under its full path as name."""
    if schema.get_field_index(path) >= 0:
        return schema.field(path)
    if path in ROW_COLUMNS:  # unsigned in Lance, and their values fit into Spark's bigint
        return pa.field(path, pa.int64())
    first, *rest = path.split(".")
    field = schema.field(first) if rest and schema.get_field_index(first) >= 0 else None
    for name in rest:
        if field is None or not pa.types.is_struct(field.type) or field.type.get_field_index(name) < 0:
            return None
        field = field.type.field(name)
    return None if field is None else field.with_name(path).with_nullable(True)


def coalesce_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, with small ones combined: each batch costs Spark and the worker as much as hundreds of rows."""
    pending: list[pa.RecordBatch] = []
    rows = num_bytes = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        num_bytes += batch.nbytes
        if rows >= _SMALL_BATCH_ROWS or num_bytes >= _SMALL_BATCH_BYTES:
            yield pending[0] if len(pending) == 1 else pa.concat_batches(pending)
            pending, rows, num_bytes = [], 0, 0
    if pending:
        yield pending[0] if len(pending) == 1 else pa.concat_batches(pending)


def split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts that are small enough for the JVM, which holds a whole part in memory."""
    per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // per_row))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class NumberedTasks:
    """The function of a frame that reads; its input holds the numbers of the tasks. `explain` shows its name.

    Args:
        name: The name.
        read: Reads the rows of a task.
        tasks: The tasks.
        step: Numbers for each task.
    """

    def __init__(
        self, name: str, read: Callable[[Any], Iterator[pa.RecordBatch]], tasks: Sequence[Any], step: int = 1
    ) -> None:
        self._read = read
        self._tasks = tasks
        self._step = step
        self.__name__ = name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        with plain_errors():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._read(self._tasks[number // self._step])


@lru_cache(maxsize=4)
def _dataset(
    uri: str, version: int, identity: str, options: tuple[tuple[str, str], ...] | None, blob_handling: str
) -> LanceDataset:
    """The version, opened once per worker and not once per task.

    Raises:
        IncompatibleConflictError: The table was dropped and made again since the plan.
    """
    dataset = lance_core.dataset(
        uri,
        version,
        storage_options=None if options is None else dict(options),
        default_scan_options={"blob_handling": blob_handling},
    )
    reject_another(uri, identity, dataset)  # its fragments have the same ids
    return dataset


def reject_another(uri: str, identity: str | None, dataset: LanceDataset) -> None:
    """Reject a version of a table that was dropped and made again since a version of that number was read.

    Args:
        uri: The table.
        identity: `LanceDataset.identity` of the version that was read; None if there is none yet.
        dataset: The version of the same number now.

    Raises:
        IncompatibleConflictError: The versions are not the same.
    """
    if identity not in (None, dataset.identity):
        raise IncompatibleConflictError(
            f"{uri} was dropped and made again after the read of version {dataset.version} was planned; read it again"
        )
