"""Scans: which rows of which fragments, then batch by batch.

    plan      fragments, limit and offset -> physical rows of each fragment       (pure)
    read      a fragment's rows -> batches, minus deleted rows, minus rows that the filter drops
    finish    order of columns, extension types, size of batches

A filter that keeps few rows of a fragment is read in two steps: its own columns first, then the other columns of only
the rows that match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.api.filter import check_filter, columns_of, matching
from lance_core.api.read import Rows, physical_rows, read_fragment
from lance_core.api.source import Source
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Schema, resolve_extensions, schema_to_arrow
from lance_core.table.deletion import DeletionVector
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array, decode_row_ids

__all__ = ["ROW_ADDRESS", "ROW_ID", "LanceScanner", "ScanOptions", "live_count", "with_types"]

ROW_ID: Final = "_rowid"
ROW_ADDRESS: Final = "_rowaddr"

TWO_STEP_SHARE: Final = 1 / 16
"""A filter that keeps less than this of a fragment's rows has the other columns read for those rows alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What to read.

    Attributes:
        schema: Columns, in order.
        filter: Keep the rows for which this is true.
        limit: Most rows to return; None for all.
        offset: Rows to leave out first.
        batch_size: Most rows of a batch; None leaves it to the files.
        with_row_id: Add a column `_rowid`: the stable row id where the dataset has them, else the row address.
        with_row_address: Add a column `_rowaddr`: fragment id << 32 | row offset.
    """

    schema: Schema
    filter: pc.Expression | None = None
    limit: int | None = None
    offset: int = 0
    batch_size: int | None = None
    with_row_id: bool = False
    with_row_address: bool = False

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Sequence[str] | None = None,
        filter_: str | pc.Expression | None = None,
        limit: int | None = None,
        offset: int | None = None,
        batch_size: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> Self:
        """Options from the arguments of the public verbs.

        Raises:
            SchemaError: A column does not exist.
            UnsupportedError: Columns or filter are of a kind that is not offered.
        """
        if isinstance(columns, Mapping):
            raise UnsupportedError("columns as expressions are not offered; pass a list of names")
        return cls(
            schema=schema if columns is None else schema.project(list(columns)),
            filter=check_filter(filter_, schema),
            limit=limit,
            offset=offset or 0,
            batch_size=batch_size,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
        )

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("limit", "offset", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < (1 if name == "batch_size" else 0):
                raise InvalidInputError(f"{name} must not be {value}")


class LanceScanner:
    """A prepared scan; every call of a `to_` method runs it.

    Args:
        source: The version to read.
        fragments: Its fragments to read, in this order.
        options: What to read of them.
    """

    def __init__(self, source: Source, fragments: Sequence[Fragment], options: ScanOptions) -> None:
        self._source = source
        self._fragments = fragments
        self._options = options

    @property
    def projected_schema(self) -> pa.Schema:
        """Schema of the batches."""
        fields = list(resolve_extensions(schema_to_arrow(self._options.schema)))
        if self._options.with_row_id:
            fields.append(pa.field(ROW_ID, pa.uint64()))
        if self._options.with_row_address:
            fields.append(pa.field(ROW_ADDRESS, pa.uint64()))
        return pa.schema(fields, metadata=schema_to_arrow(self._options.schema).metadata)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in order of fragments and rows; memory is bounded by a few batches."""
        schema = self.projected_schema
        for batch in self._limited():
            finished = with_types(batch, schema)
            size = self._options.batch_size or max(finished.num_rows, 1)
            for start in range(0, finished.num_rows, size):
                yield finished.slice(start, size) if finished.num_rows > size else finished

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow reader."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows as one table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.projected_schema)

    def count_rows(self) -> int:
        """Number of rows; without a filter nothing but metadata is read."""
        if self._options.filter is None:
            total = sum(live_count(self._source, fragment) for fragment in self._fragments)
            total = max(total - self._options.offset, 0)
            return total if self._options.limit is None else min(total, self._options.limit)
        narrow = replace(self._options, schema=Schema(fields=()), with_row_address=True, with_row_id=False)
        return sum(batch.num_rows for batch in LanceScanner(self._source, self._fragments, narrow).to_batches())

    def _limited(self) -> Iterator[pa.RecordBatch]:
        """All batches of all fragments, cut by limit and offset."""
        options = self._options
        skip, left = options.offset, options.limit
        for fragment in self._fragments:
            if left == 0:
                return
            part = None
            if options.filter is None and (skip or left is not None):
                count = live_count(self._source, fragment)
                part = range(min(skip, count), count if left is None else min(skip + left, count))
                skip -= part.start
                if not part:
                    continue
            for batch in _FragmentScan(self._source, fragment, options, part).batches():
                kept = batch
                if options.filter is not None:
                    kept = batch.slice(min(skip, batch.num_rows))
                    skip -= batch.num_rows - kept.num_rows
                if left is not None:
                    kept = kept.slice(0, left)
                    left -= kept.num_rows
                if kept.num_rows:
                    yield kept
                if left == 0:
                    return


@dataclass(frozen=True, slots=True)
class _FragmentScan:
    """A scan of one fragment.

    Attributes:
        source: The version.
        fragment: The fragment.
        options: What to read.
        part: Which of the live rows to read, counted among the live ones; None for all.
    """

    source: Source
    fragment: Fragment
    options: ScanOptions
    part: range | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are alive and match, with the columns of the options and the row columns."""
        deletions = self.source.deletions(self.fragment)
        num_rows = physical_rows(self.source, self.fragment)
        live = deletions.live_rows(num_rows) if deletions is not None else None
        rows: Rows = range(num_rows)
        if self.part is not None:
            rows = self.part if live is None else _physical_range(live, self.part)
        expression = self.options.filter
        if expression is None:
            yield from self._read(self.options.schema, rows, live)
            return
        own = self._filter_schema(expression)
        if {f.name for f in self.options.schema.fields} <= set(own.names):
            for batch in self._read(own, rows, live):
                yield self._select(batch.filter(matching(batch, expression)))
            return
        yield from self._two_steps(own, expression, rows, live)

    def _two_steps(
        self, own: Schema, expression: pc.Expression, rows: Rows, live: npt.NDArray[np.bool_] | None
    ) -> Iterator[pa.RecordBatch]:
        """Find the matching rows by the filter's own columns, then read the wanted columns of those."""
        keep = np.zeros(len(live) if live is not None else rows[-1] + 1 if len(rows) else 0, dtype=np.bool_)
        narrow = replace(self, options=replace(self.options, with_row_address=True, with_row_id=False))
        for batch in narrow._read(own, rows, live):  # noqa: SLF001 - the same class
            offsets = batch.column(ROW_ADDRESS).to_numpy() & 0xFFFF_FFFF
            keep[offsets[matching(batch, expression).to_numpy(zero_copy_only=False)]] = True
        matched = np.flatnonzero(keep)
        if len(matched) == 0:
            return
        if len(matched) < TWO_STEP_SHARE * len(keep):
            yield from self._read(self.options.schema, matched, None)
        else:
            yield from self._read(self.options.schema, range(int(matched[0]), int(matched[-1]) + 1), keep)

    def _read(self, schema: Schema, rows: Rows, live: npt.NDArray[np.bool_] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are alive, with the row columns that the options ask for."""
        position = 0
        stable = self.fragment.row_ids if self.options.with_row_id else None
        ids = decode_row_ids(stable) if stable is not None else None
        for batch in read_fragment(self.source, self.fragment, schema, rows, batch_rows=self.options.batch_size):
            offsets = rows[position : position + batch.num_rows]
            position += batch.num_rows
            complete = self._with_row_columns(batch, offsets, ids)
            if live is not None:
                mask = live[offsets.start : offsets.stop] if isinstance(offsets, range) else live[offsets]
                if not mask.all():
                    complete = complete.filter(pa.array(mask))
            if complete.num_rows:
                yield complete

    def _with_row_columns(self, batch: pa.RecordBatch, offsets: Rows, ids: U64Array | None) -> pa.RecordBatch:
        if not (self.options.with_row_id or self.options.with_row_address):
            return batch
        columns, fields = list(batch.columns), list(batch.schema)
        where = np.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else offsets
        addresses = (np.uint64(self.fragment.id) << np.uint64(32)) | where.astype(np.uint64)
        if self.options.with_row_id:
            columns.append(pa.array(addresses if ids is None else ids[where], pa.uint64()))
            fields.append(pa.field(ROW_ID, pa.uint64()))
        if self.options.with_row_address:
            columns.append(pa.array(addresses, pa.uint64()))
            fields.append(pa.field(ROW_ADDRESS, pa.uint64()))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))

    def _filter_schema(self, expression: pc.Expression) -> Schema:
        """The columns that the filter needs, whole; a constant filter needs none."""
        by_name = {field.name: field for field in self.source.manifest.schema.fields}
        names = columns_of(expression)
        for name in names:
            if name not in by_name:
                raise InvalidInputError(f"filter {expression}: no column {name!r}; the columns are {list(by_name)}")
        return Schema(fields=tuple(by_name[name] for name in names))

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cut the filter's columns down to the wanted ones."""
        wanted = schema_to_arrow(self.options.schema)
        extra = [f for f in batch.schema if f.name in (ROW_ID, ROW_ADDRESS)]
        columns = [_narrow(batch.column(f.name), f.type) for f in [*wanted, *extra]]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*wanted, *extra], metadata=wanted.metadata))


def live_count(source: Source, fragment: Fragment) -> int:
    """Rows of a fragment that are not deleted."""
    if fragment.deletion_file is not None and not fragment.deletion_file.num_deleted_rows:
        deletions: DeletionVector | None = source.deletions(fragment)
        return physical_rows(source, fragment) - (0 if deletions is None else len(deletions))
    return physical_rows(source, fragment) - fragment.num_deleted_rows


def _physical_range(live: npt.NDArray[np.bool_], part: range) -> range:
    """The physical rows from the first to the last of these live rows; dead ones in between are dropped later."""
    offsets = np.flatnonzero(live)[part.start : part.stop]
    return range(int(offsets[0]), int(offsets[-1]) + 1) if len(offsets) else range(0)


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Drop the children of a struct that were not asked for."""
    if array.type == kind or not pa.types.is_struct(kind):
        return array
    mask = pc.is_null(array) if array.null_count else None
    children = [_narrow(array.field(f.name), f.type) for f in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def with_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give the columns their extension types."""
    if batch.schema.equals(schema):
        return batch
    columns: list[Any] = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
