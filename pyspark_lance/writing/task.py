"""The tasks of a write: they write the batches of a partition to data files, and report to the calling process.

    batch -> BatchConverter -> Slices.assign -> one FragmentWriter per slice -> files  <job>-<partition>-<attempt>-...
                                |
                                +-> report: fragments, rows of each slice     or: the error in the data

Batches are written as they arrive, so that a large partition needs no more memory than a small one. A large batch is
written in copied parts: rows that wait for their page would otherwise keep the memory of the whole batch.
Data that cannot be written is reported, not raised: another attempt would fail as well, and the caller gets the error
itself instead of Spark's report of a failed stage. Files of such an attempt are deleted at once.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import FileOptions, FragmentMetadata, FragmentWriter, Slices, SliceWriter
from lance_core.errors import InvalidInputError, LanceError, SchemaError, UnsupportedError
from pyspark_lance.engine.sessions import use_cores_of_task
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.writing.row_checks import PartitionValues, RowRules, hashes_of_keys

BUFFERED_BYTES: Final = 64 << 20
"""Most bytes of rows that wait for their page; an executor runs several tasks at once."""
PART_BYTES: Final = 4 << 20
"""The approximate size of parts in which a batch of more than twice this size is written."""

DATA_ERRORS: Final = (InvalidInputError, SchemaError, UnsupportedError)
"""Errors in the data, which a task reports: another attempt would raise them again."""
_BY_CODE: Final[dict[str, type[LanceError]]] = {kind.code: kind for kind in DATA_ERRORS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a task reports, or the error in its data.

    Attributes:
        error: Code and message of an error of the data; then the task has written nothing.
    """

    error: tuple[str, str] | None = None

    @classmethod
    def of_error(cls, error: LanceError) -> Self:
        """The report of an error in the data."""
        return cls(error=(error.code, str(error)))

    def to_bytes(self) -> bytes:
        """The report, pickled."""
        return pickle.dumps(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The report that `to_bytes` wrote."""
        report: Self = pickle.loads(data)  # noqa: S301 - from our own workers
        return report

    def reject(self) -> None:
        """Raise the error of the data with its class."""
        if self.error is not None:
            raise _BY_CODE.get(self.error[0], LanceError)(self.error[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport(Report):
    """The report of a task that writes files.

    Attributes:
        fragments: The new fragments.
        keys: Hashes of keys (`lance_core.key_hashes`): in a write those of all rows, in a change those of new rows;
            None if keys are not checked, or are too many.
    """

    fragments: tuple[FragmentMetadata, ...] = ()
    keys: npt.NDArray[np.uint64] | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The report that `to_bytes` wrote.

        Raises:
            LanceError: The report has an error of the data, which is raised with its class.
        """
        report = super(TaskReport, cls).from_bytes(data)
        report.reject()
        return report


class TaskOutput(Protocol):
    """The files of one attempt of a task."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""

    def finish(self) -> TaskReport:
        """Close all files."""

    def discard(self) -> None:
        """Delete all files that this attempt wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTask(ABC):
    """A function that writes the rows of a partition; it is pickled.

    Attributes:
        uri: The table.
        job: Start of the names of all files of the job.
        stored: Schema of the fragments; without columns if no rows are written.
        files: How data files are made.
        storage_options: Credentials and options of the storage.
        dataset_schema: The table's schema with its field ids, as bytes, if fragments are added to the table.
        external_places: Prefixes of the URIs by which blobs may be given; None for rows of the table.
    """

    uri: str
    job: str
    stored: pa.Schema
    files: FileOptions = field(default_factory=FileOptions)
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    dataset_schema: bytes | None = None
    external_places: tuple[str, ...] | None = None

    @abstractmethod
    def output(self, prefix: str) -> TaskOutput:
        """The output of one attempt, the names of whose files begin with a prefix."""

    def writer(self, prefix: str) -> FragmentWriter:
        """A writer of new fragments."""
        return self.files.writer(
            self.uri,
            self.stored,
            storage_options=self.storage_options,
            dataset_schema=self.dataset_schema,
            external_places=("",) if self.files.allow_external_blob_outside_bases else self.external_places,
            file_prefix=prefix,
            max_buffered_bytes=BUFFERED_BYTES,
        )

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the batches of a partition; returns the report as bytes."""
        return self.run(partition, attempt, batches).to_bytes()

    def run(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the batches of a partition.

        Raises:
            LanceError: The storage failed. What was written so far is deleted.
        """
        use_cores_of_task()
        output = self.output(f"{self.job}-{partition}-{attempt}-")
        try:
            for part in split_large_batches(batches):
                output.write(part)
            return output.finish()
        except DATA_ERRORS as error:
            output.discard()
            return TaskReport.of_error(error)
        except BaseException:
            output.discard()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport(TaskReport):
    """The report of a task of a write.

    Attributes:
        slice_rows: Rows written by position of their slice, -1 for rows outside of all slices; empty without slices.
        rows: Rows written.
        values: Values of the columns that the table is partitioned by, by position; None without such columns.
    """

    slice_rows: Mapping[int, int] = field(default_factory=dict)
    rows: int = 0
    values: pa.Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask(PartitionTask):
    """The task of a write.

    Attributes:
        slices: The slices; a fragment holds rows of one slice only.
        allow_out_of_partition: Whether rows outside of all slices are written, too.
        rules: Further rules for the rows.
        max_open: Most slices that are written to at once; the least recently used one is finished first. None: no
            limit.
    """

    slices: Slices | None = None
    allow_out_of_partition: bool = False
    rules: RowRules | None = None
    max_open: int | None = None

    def assign(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """The position of the slice of each row.

        Raises:
            InvalidInputError: A row lies in none of the slices, and such rows are not allowed.
        """
        assert self.slices is not None
        return self.slices.assign(batch) if self.allow_out_of_partition else self.slices.assign_all(batch, self.uri)

    def output(self, prefix: str) -> TaskOutput:
        """The output of one attempt."""
        return _WriteOutput(self, prefix)


class _WriteOutput:
    """The output of a task of a write."""

    def __init__(self, task: WriteTask, prefix: str) -> None:
        self._convert = BatchConverter(task.stored)
        self._rules = task.rules or RowRules()
        self._values = None if self._rules.partition_by is None else PartitionValues(self._rules.partition_by)
        self._keys: list[pa.RecordBatch] = []
        assign = task.assign if self._values is None else self._values.assign
        self._has_slices = task.slices is not None or self._values is not None
        self._writer = SliceWriter(
            lambda: task.writer(prefix), assign if self._has_slices else None, max_open=task.max_open
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Write each row to the writer of its slice."""
        batch = self._convert(batch)
        self._rules.check(batch)
        if self._rules.keys is not None:
            self._keys.append(copy_batch(batch.select(list(self._rules.keys))))
        self._writer.write(batch)

    def finish(self) -> WriteReport:
        """Close all files."""
        keys = hashes_of_keys(pa.Table.from_batches(self._keys)) if self._keys else None
        return WriteReport(
            fragments=tuple(self._writer.finish()),
            slice_rows=self._writer.rows if self._has_slices else {},
            rows=self._writer.num_rows,
            values=None if self._values is None else self._values.table(),
            keys=keys,
        )

    def discard(self) -> None:
        """Delete all files that this attempt wrote."""
        self._writer.discard()


def split_large_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, large ones as copies of some rows at a time, which do not keep the large batch in memory."""
    for batch in map(complete_offsets, batches):
        size = batch.nbytes
        if size <= 2 * PART_BYTES:
            yield batch
            continue
        rows = max(1, PART_BYTES * batch.num_rows // size)
        for start in range(0, batch.num_rows, rows):
            columns = [_copy_column(column.slice(start, rows)) for column in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)
            del columns
        pa.default_memory_pool().release_unused()  # otherwise the allocator keeps the memory of the copies


def complete_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with offsets of lists without items, which Spark leaves out below lists without items."""
    received = batch.columns
    columns = [_complete_offsets(column) for column in received]
    if all(new is old for new, old in zip(columns, received, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _complete_offsets(array: pa.Array) -> pa.Array:
    kind = array.type
    if array.offset:
        return array  # a slice is not from Spark
    if pa.types.is_struct(kind):
        children = [array.field(number) for number in range(kind.num_fields)]
        own_buffers = 1
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        children, own_buffers = [array.values], 2
        item_type = array.values.type
        if not len(array.values) and item_type.num_fields:
            width = 8 if pa.types.is_large_list(kind) else 4
            offsets = pa.py_buffer(bytes((len(array) + 1) * width))
            empty = pa.array([], item_type)
            return pa.Array.from_buffers(kind, len(array), [array.buffers()[0], offsets], children=[empty])
    else:
        return array
    complete = [_complete_offsets(child) for child in children]
    if all(new is old for new, old in zip(complete, children, strict=True)):
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:own_buffers], children=complete)


def copy_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of a batch: columns that are kept must not keep the memory of Spark's whole message."""
    columns = [_copy_column(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch


def _copy_column(column: pa.Array) -> pa.Array:
    """A copy of a column."""
    return pa.concat_arrays([column.slice(0, 0), column])
