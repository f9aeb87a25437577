"""Reads one data file.

    open      the tail of the file: footer, offset tables, column metadata and file descriptor, usually in one request
    read      per column the pages that hold wanted rows; the byte ranges of all columns together, in one request per
              round; pages are decoded in the pool, some megabytes per column ahead of the current batch

The file's own schema may be older than the dataset's: a schema with field ids defines what to read, and a mapping from
field ids to columns where it is stored; both come from the manifest.

A cache of the metadata of data files, whose content never changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.assemble import merge_columns
from lance_core.encoding.concatenate import concatenate
from lance_core.encoding.page import ByteRange, BytesLike, RowRuns
from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.file.column import FEW_POINTS, ColumnReadPlan, PageTask, RowStream, located, point_task
from lance_core.file.field_plan import FieldPlan
from lance_core.file.joined_columns import join_columns
from lance_core.file.legacy import LegacyFileReader
from lance_core.file.metadata import (
    FOOTER_SIZE,
    FileMetadata,
    FileVersion,
    Footer,
    check_column_table,
    descriptor_from_bytes,
    lazy_columns,
    read_version,
    table_from_bytes,
)
from lance_core.file.pool import submit
from lance_core.schema import Field, Schema, schema_to_arrow
from lance_core.schema.field import column_fields, is_column, leaf_paths, plain_columns
from lance_core.store import ObjectStore

METADATA_CACHE_BYTES: Final = 64 * 1024 * 1024


class _CacheKey(NamedTuple):
    root: str
    key: str
    size: int


@dataclass(slots=True)
class MetadataCache:
    """Metadata of files by store, key and size. Several threads may use it; a pickled cache is empty.

    Attributes:
        max_bytes: Approximate limit of the cached bytes; the least recently used metadata is evicted.
        num_bytes: Cached bytes, approximately.
    """

    max_bytes: int = METADATA_CACHE_BYTES
    num_bytes: int = 0
    _metadata: OrderedDict[_CacheKey, FileMetadata] = field(default_factory=OrderedDict)
    _sizes: dict[_CacheKey, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[type[MetadataCache], tuple[int]]:
        """Pickle an empty cache."""
        return MetadataCache, (self.max_bytes,)

    def get(self, root: str, key: str, size: int) -> FileMetadata | None:
        """The cached metadata of a file; None if it is not cached."""
        name = _CacheKey(root, key, size)
        with self._lock:
            metadata = self._metadata.get(name)
            if metadata is not None:
                self._metadata.move_to_end(name)
            return metadata

    def put(self, root: str, key: str, metadata: FileMetadata) -> None:
        """Cache the metadata of a file, unless it is larger than the whole cache."""
        name = _CacheKey(root, key, metadata.size_bytes)
        # About what it takes in memory: the bytes of the column descriptions, and the records.
        start, end = metadata.metadata_range
        size = 1024 + (end - start) + 512 * len(metadata.schema.fields)
        with self._lock:
            if name in self._metadata or size > self.max_bytes:
                return
            self._metadata[name] = metadata
            self._add(name, size)

    def grew(self, root: str, key: str, size: int, num_bytes: int) -> None:
        """Record that the cached metadata of a file has grown by about `num_bytes`."""
        name = _CacheKey(root, key, size)
        with self._lock:
            if name in self._metadata:
                self._add(name, num_bytes)

    def _add(self, name: _CacheKey, num_bytes: int) -> None:
        self._sizes[name] = self._sizes.get(name, 0) + num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes:
            evicted, _ = self._metadata.popitem(last=False)
            self.num_bytes -= self._sizes.pop(evicted)


_TAIL: Final = 64 * 1024
# Most bytes of pages that are read ahead, per column and of all columns.
_AHEAD_BYTES: Final = 8 * 1024 * 1024
_TOTAL_AHEAD_BYTES: Final = 256 * 1024 * 1024
_DEFAULT_BATCH_ROWS: Final = 8192
# Passing a page to another thread costs more than decoding this many bytes.
_INLINE_BYTES: Final = 256 * 1024
# Most pages of a column that is read as a dictionary.
_MOST_DICTIONARIES: Final = 16
# Fewer rows of a page than this are decoded in this thread: many small steps make threads wait for each other.
_FEW_ROWS: Final = 4096
# Runs of at most this many rows are read by `point_reads`.
_POINT_RUN: Final = 8192


class DataFileReader:
    """Reads one data file; created by `open`.

    Args:
        store: The store of the file.
        key: Its key.
        metadata: Its metadata.
        legacy: The reader of its pages, for a 0.1 file.
        whole: All bytes of a small file, if they were read with its metadata.
        cache: The cache of the metadata, if there is one.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        metadata: FileMetadata,
        legacy: LegacyFileReader | None = None,
        whole: memoryview | None = None,
        cache: MetadataCache | None = None,
    ) -> None:
        self._whole = whole
        self._cache = cache
        self._legacy = legacy
        self._store = store
        self.key = key
        self.metadata = metadata

    @classmethod
    def open(cls, store: ObjectStore, key: str, *, size: int | None = None, cache: MetadataCache | None = None) -> Self:
        """Read the metadata of a file.

        Args:
            store: The store of the file.
            key: Its key.
            size: Its size according to the manifest, which is checked; for 0.1 files a lower bound.
            cache: The cache of metadata. If the size and the metadata of a file are known, the file is not read here,
                unless it is so small that its pages are read with the metadata.

        Raises:
            ObjectNotFoundError: The file does not exist.
            CorruptFileError: The file is not a Lance file, is truncated, or contradicts itself.
            UnsupportedError: The version of the file is not known.
        """
        cached_metadata = cache.get(store.root, key, size) if cache is not None and size else None
        if cached_metadata is not None and cached_metadata.size_bytes > _TAIL:
            return cls(store, key, cached_metadata, cache=cache)
        tail, file_size = store.get_tail(key, _TAIL)
        if cached_metadata is not None and file_size == size:
            return cls(store, key, cached_metadata, None, memoryview(tail), cache)
        with located(key):
            metadata, legacy = _read_metadata(store, key, memoryview(tail), file_size, size)
        if cache is not None and legacy is None:
            cache.put(store.root, key, metadata)
        return cls(store, key, metadata, legacy, memoryview(tail) if len(tail) == file_size else None, cache)

    @property
    def version(self) -> FileVersion:
        """The format of the file."""
        return self.metadata.version

    @property
    def num_rows(self) -> int:
        """Rows in the file."""
        return self.metadata.num_rows

    @property
    def schema(self) -> Schema:
        """The schema as it was when the file was written."""
        return self.metadata.schema

    def read_global_buffer(self, index: int) -> BytesLike:
        """Bytes that belong to the file as a whole; 0 is the file descriptor.

        Raises:
            InvalidInputError: The file has no global buffer of that index.
        """
        buffers = self.metadata.global_buffers
        if not 0 <= index < len(buffers):
            raise InvalidInputError(
                f"{self.key}: there is no global buffer {index}, only {len(buffers)} of them, counted from 0"
            )
        return self._store.get_range(self.key, *buffers[index])

    def check(self) -> None:
        """Parse the metadata of all columns, which is otherwise parsed when they are read.

        Raises:
            CorruptFileError: The metadata of a column cannot be parsed.
            UnsupportedError: The description of a column is of an unknown kind.
        """
        for _ in self.metadata.columns:
            pass

    def dictionaries(self) -> dict[int, pa.Array]:
        """The values of the dictionary columns of a 0.1 file, by field id; none in other files."""
        if self._legacy is None:
            return {}
        with located(self.key):
            return self._legacy.read_dictionaries(self.fetch)

    def has_dictionary(self, index: int) -> bool:
        """Whether a column of a file from 2.1 on has few pages, all of them with a dictionary."""
        if self._legacy is not None or not self.version.has_levels:
            return False
        with located(self.key):
            pages = self.metadata.columns[index]
            encodings = [
                pages.page(number, 0, 0).encoding for number in range(min(len(pages.messages), _MOST_DICTIONARIES + 1))
            ]
        return 0 < len(encodings) <= _MOST_DICTIONARIES and all(
            isinstance(page, PageLayout) and page.mini_block_layout.num_dictionary_items for page in encodings
        )

    def column_indices(self) -> dict[int, int]:
        """Field ids of the file's own schema, and their columns."""
        if self.version.has_levels:
            fields = column_fields(self.schema)
        else:
            # A 0.1 file has field ids instead of columns: the numbers are positions among its fields.
            columns = plain_columns if self.version is not FileVersion.V0_1 else lambda top: (f for f, _ in top.walk())
            fields = [field for top in self.schema.fields for field in columns(top)]
        return {field.id: index for index, field in enumerate(fields)}

    def read(
        self,
        schema: Schema | None = None,
        columns: Mapping[int, int] | None = None,
        rows: range | npt.NDArray[np.integer[Any]] | None = None,
        *,
        batch_rows: int | None = _DEFAULT_BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Read rows.

        Args:
            schema: The columns to read, which the file must have; None for the file's own schema.
            columns: Field ids and their columns in this file; None for those of the file's own schema.
            rows: A range of rows, or ascending row numbers without repetition; None for all rows.
            batch_rows: Rows per batch; None for batches as large as the pages allow, which are not copied.

        Yields:
            Batches of the Arrow schema of `schema`.

        Raises:
            InvalidInputError: Rows are out of range or not ascending, or a column is not in the file.
            CorruptFileError: The file does not follow the format; the message names the file, the column and the page.
            UnsupportedError: An encoding is not known; the message names the file, the column and the page.
        """
        schema = self.schema if schema is None else schema
        columns = self.column_indices() if columns is None else columns
        runs = self._check_rows(rows)
        if batch_rows is not None and batch_rows < 1:
            raise InvalidInputError(f"{self.key}: a batch must have at least 1 row, not {batch_rows}")
        with located(self.key):
            arrow_schema = schema_to_arrow(schema)
            points = self._find_points(runs)
            tasks = [self._point_task(field, columns, points) for field in schema.fields]
            if all(tasks):
                fields = []
            else:
                pairs = zip(schema.fields, tasks, strict=True)
                plans: list[ColumnReadPlan] = []
                fields = [self._open_field(field, columns, runs, task, plans) for field, task in pairs]
                join_columns(plans, runs)
        if tasks and not fields:
            yield from self._yield_point_batches(arrow_schema, [task for task in tasks if task], runs.count, batch_rows)
        else:
            yield from self._yield_batches(arrow_schema, fields, runs.count, batch_rows)

    def _check_rows(self, rows: range | npt.NDArray[np.integer[Any]] | None) -> RowRuns:
        if rows is None:
            rows = range(self.num_rows)
        if isinstance(rows, range):
            if rows.step != 1 or rows.start < 0 or max(rows.stop, rows.start) > self.num_rows:
                raise InvalidInputError(f"{self.key}: {rows} is not a range of the {self.num_rows} rows")
            return RowRuns.of_range(rows.start, max(rows.stop, rows.start))
        numbers = np.asarray(rows, np.int64)
        is_ascending = bool((numbers[1:] > numbers[:-1]).all())
        if numbers.size and (numbers[0] < 0 or numbers[-1] >= self.num_rows or not is_ascending):
            raise InvalidInputError(
                f"{self.key}: row numbers must ascend without repetition from 0 on, below {self.num_rows}"
            )
        return RowRuns.of_rows(numbers)

    def _find_points(self, runs: RowRuns) -> Sequence[int]:
        """The numbers of the rows, if they are few enough to look up their values one by one; else empty."""
        count = runs.count
        if not 0 < count <= _POINT_RUN or (count > FEW_POINTS and runs.covers(self.num_rows)):
            return []
        if runs.is_one_run:
            return range(int(runs.starts[0]), int(runs.ends[0]))
        return runs.rows().tolist() if count <= FEW_POINTS else []

    def _point_task(self, field: Field, columns: Mapping[int, int], points: Sequence[int]) -> PageTask | None:
        """A task that looks up the values of `points` one by one; None if that is not possible for the field."""
        index = columns.get(field.id)
        if not points or self._legacy is not None or not self.version.has_levels or not is_column(field):
            return None
        if index is None or not 0 <= index < len(self.metadata.columns):
            return None  # `_open_field` raises the error
        return point_task(self.key, field, self.metadata.columns[index], points, self.num_rows, self._report_cached)

    def _yield_point_batches(
        self, schema: pa.Schema, tasks: Sequence[PageTask], count: int, batch_rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of all columns together; each round of ranges is one request for all columns."""
        active = [(task, ranges) for task in tasks if (ranges := task.advance(None)) is not None]
        while active:
            answers = iter(self.fetch([r for _, ranges in active for r in ranges]))
            steps = [(task, task.advance([next(answers) for _ in ranges])) for task, ranges in active]
            active = [(task, ranges) for task, ranges in steps if ranges is not None]
        batch = pa.RecordBatch.from_arrays([task.result() for task in tasks], schema=schema)
        step = batch_rows or count
        for start in range(0, count, step):
            yield batch if step >= count else batch.slice(start, step)

    def _open_field(
        self,
        field: Field,
        columns: Mapping[int, int],
        runs: RowRuns,
        point: PageTask | None,
        plans: list[ColumnReadPlan],
    ) -> _FieldReader:
        """The reader of a field; `point` is the task that looks up its values one by one, or None.

        The plan of a field with one column is added to `plans`.
        """
        if point is not None:
            return _FieldReader(field, [RowStream(iter([point]))])
        if self._legacy is not None:
            tasks = self._legacy.tasks(field, columns, runs)
            return _FieldReader(field, [RowStream(tasks)], is_whole=True)
        if not self.version.has_levels:
            plan = FieldPlan(self.key, field, self.metadata.columns, columns, self.num_rows)
            return _FieldReader(field, [RowStream(plan.tasks(runs))], is_whole=True)
        readers = []
        for path in leaf_paths(field):
            index = columns.get(path[-1].id)
            if index is None or not 0 <= index < len(self.metadata.columns):
                name = ".".join(f.name for f in path)
                raise InvalidInputError(f"{self.key}: column {name!r} (field {path[-1].id}) is not in the file")
            pages = self.metadata.columns[index]
            column = ColumnReadPlan(self.key, path, pages, self.num_rows)
            readers.append(RowStream(column.tasks(runs), column.expansion))
        if len(readers) == 1:
            plans.append(column)
        return _FieldReader(field, readers)

    def _yield_batches(
        self, schema: pa.Schema, fields: list[_FieldReader], num_rows: int, batch_rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        if not fields:
            yield from _yield_empty_batches(schema, num_rows, batch_rows)
            return
        readers = [reader for field in fields for reader in field.readers]
        budget = min(_AHEAD_BYTES, _TOTAL_AHEAD_BYTES // len(readers))
        left = num_rows
        while left:
            target = 1 if batch_rows is None else min(batch_rows, left)
            while True:
                wanting = [r for r in readers if r.bytes_ahead() < budget or r.rows_ready() < target]
                self._load_pages(
                    wanting, budget, is_first=left == num_rows and not any(r.rows_ready() for r in readers)
                )
                ready = min(reader.rows_ready() for reader in readers)
                if ready >= target:
                    break
            count = min(ready, left) if batch_rows is None else target
            if batch_rows is None:
                count = min(reader.rows_at_hand() for reader in readers)
            yield pa.RecordBatch.from_arrays([field.take(count) for field in fields], schema=schema)
            left -= count

    def _load_pages(self, readers: Sequence[RowStream], budget: int, *, is_first: bool) -> None:
        """Start to read the next pages of some columns; each round of ranges is one request for all columns.

        Args:
            readers: The columns.
            budget: Bytes to read ahead per column.
            is_first: Whether no rows are available yet; then the largest page is decoded in this thread.
        """
        tasks = [task for reader in readers for task in reader.next_tasks(budget)]
        active = [(task, ranges) for task in tasks if (ranges := task.advance(None)) is not None]
        whole_tasks = [task for task, _ in active if task.is_whole] if is_first else []
        own_task = max(whole_tasks, key=lambda task: task.num_bytes, default=None)
        while active:
            answers = iter(self.fetch([r for _, ranges in active for r in ranges]))
            is_inline = sum(end - start for _, ranges in active for start, end in ranges) < _INLINE_BYTES
            following: list[tuple[PageTask, Sequence[ByteRange]]] = []
            later: list[tuple[PageTask, list[BytesLike]]] = []
            last: list[BytesLike] | None = None
            for task, ranges in active:
                answer = [next(answers) for _ in ranges]
                if task is own_task:
                    last = answer
                elif task.is_whole:
                    (task.run if is_inline else task.finish)(answer, self.fetch)
                elif is_inline or task.num_rows < _FEW_ROWS:
                    following += _keep_unfinished(task, task.advance(answer))
                else:
                    later.append((task, answer))
            # The largest of the pending pages is decoded in this thread.
            running = [(task, submit(task.advance, answer)) for task, answer in later[1:]]
            if own_task is not None and last is not None:
                own_task.run(last, self.fetch)
            for task, answer in later[:1]:
                following += _keep_unfinished(task, task.advance(answer))
            for task, future in running:
                following += _keep_unfinished(task, future.result())
            active = following

    def _report_cached(self, num_bytes: int) -> None:
        """Report to the cache that the metadata has grown by about `num_bytes`."""
        if self._cache is not None:
            self._cache.grew(self._store.root, self.key, self.metadata.size_bytes, num_bytes)

    def fetch(self, ranges: Sequence[ByteRange]) -> Sequence[BytesLike]:
        """Read ranges of the file."""
        if self._whole is not None and all(0 <= start <= end <= len(self._whole) for start, end in ranges):
            return [self._whole[start:end] for start, end in ranges]
        return self._store.get_ranges(self.key, ranges) if ranges else []


class _FieldReader:
    """The columns of one top-level field."""

    __slots__ = ("_field", "_is_whole", "readers")

    def __init__(self, field: Field, readers: list[RowStream], *, is_whole: bool = False) -> None:
        self._field = field
        self._is_whole = is_whole
        self.readers = readers

    def take(self, count: int) -> pa.Array:
        """The next rows."""
        columns = [reader.take(count) for reader in self.readers]
        arrays = [concatenate(c) for c in columns]
        return arrays[0] if self._is_whole else merge_columns(self._field, arrays)


def _keep_unfinished(
    task: PageTask, ranges: Sequence[ByteRange] | None
) -> Iterator[tuple[PageTask, Sequence[ByteRange]]]:
    """The task with the ranges that it needs next, unless it is done."""
    if ranges is not None:
        yield task, ranges


def _yield_empty_batches(schema: pa.Schema, num_rows: int, batch_rows: int | None) -> Iterator[pa.RecordBatch]:
    """Batches without columns, which still have a number of rows."""
    step = batch_rows or max(num_rows, 1)
    for start in range(0, num_rows, step):
        length = min(step, num_rows - start)
        struct = pa.Array.from_buffers(pa.struct([]), length, [None])
        yield pa.RecordBatch.from_struct_array(struct).replace_schema_metadata(schema.metadata)


def _read_metadata(
    store: ObjectStore, key: str, tail: memoryview, size: int, expected_size: int | None
) -> tuple[FileMetadata, LegacyFileReader | None]:
    """Parse the metadata at the end of a file; more of the file is read if the tail is too short."""
    is_as_expected = expected_size is None or expected_size == size
    if expected_size is not None and expected_size > size:
        raise CorruptFileError(f"the file has {size} bytes, the manifest says {expected_size}")
    version = FileVersion.from_numbers(*read_version(bytes(tail[-8:])))
    # Releases of the reference library up to 4.0 record the size of a 0.1 file without the parts after its pages.
    if not is_as_expected and version is not FileVersion.V0_1:
        raise CorruptFileError(f"the file has {size} bytes, the manifest says {expected_size}")
    if version is FileVersion.V0_1:
        legacy = LegacyFileReader.open(store, key, tail, size)
        metadata = FileMetadata(
            version=version,
            schema=legacy.schema or Schema(fields=()),
            num_rows=legacy.num_rows,
            size_bytes=size,
            columns=(),
            global_buffers=(),
        )
        return metadata, legacy
    footer = Footer.from_bytes(bytes(tail[-FOOTER_SIZE:]))
    if not footer.column_metadata <= footer.column_table <= footer.buffer_table <= size - FOOTER_SIZE:
        raise CorruptFileError("the positions in the footer do not ascend")
    start = size - len(tail)
    if footer.column_metadata < start:
        more = store.get_range(key, footer.column_metadata, start)
        tail = memoryview(b"".join([more, tail]))
        start = footer.column_metadata
    buffers = table_from_bytes(tail[footer.buffer_table - start :], footer.num_buffers, size)
    table = table_from_bytes(tail[footer.column_table - start :], footer.num_columns, size)
    if not buffers:
        raise CorruptFileError("the file has no file descriptor")
    first, last = buffers[0]
    descriptor = tail[first - start : last - start] if first >= start else memoryview(store.get_range(key, first, last))
    schema, num_rows = descriptor_from_bytes(bytes(descriptor))
    if num_rows >= 2**62:
        raise CorruptFileError(f"the file claims {num_rows} rows")
    check_column_table(table, start, footer)
    metadata = FileMetadata(
        version=version,
        schema=schema,
        num_rows=num_rows,
        size_bytes=size,
        columns=lazy_columns(store, key, table, tail, start),
        global_buffers=tuple(buffers),
        metadata_range=(footer.column_metadata, footer.buffer_table),
    )
    return metadata, None
