"""A scan of one fragment: its rows, minus those that are deleted, minus those that a filter drops.

A filter that keeps few rows is read in two steps: its own columns first, then the other columns of only the rows that
match. What is not read at all is never decoded: a page without a match costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.api.filter import columns_of, matching
from lance_core.api.projection import rows_without_columns
from lance_core.api.read import Rows, physical_rows, read_fragment
from lance_core.api.row_columns import ROW_ADDRESS, ROW_COLUMNS, ROW_ID, ROW_OFFSET, RowColumns, row_field
from lance_core.api.scan_options import ScanOptions
from lance_core.api.source import Source
from lance_core.errors import SchemaError
from lance_core.schema import Schema, schema_to_arrow
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array

__all__ = ["FragmentScan", "live_count"]

TWO_STEP_SHARE: Final = 1 / 16
"""A filter that keeps less than this of a fragment's rows has the other columns read for those rows alone."""

_Mask = npt.NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class FragmentScan:
    """A scan of one fragment.

    Attributes:
        source: The version.
        fragment: The fragment.
        options: What to read.
    """

    source: Source
    fragment: Fragment
    options: ScanOptions

    @property
    def num_rows(self) -> int:
        """Physical rows, deleted ones included."""
        return physical_rows(self.source, self.fragment)

    def batches(self, part: range | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are alive and match, with the columns of the options and the row columns.

        Args:
            part: Which of the rows to read, counted among those that are alive; None for all.
        """
        num_rows, live = self._rows()
        keep = None if self.options.include_deleted_rows else live
        rows: Rows = range(num_rows)
        if part is not None:
            rows = part if keep is None else _physical_range(keep, part)
        expression = self.options.filter
        if expression is None:
            for batch, _ in self._read(self.options.schema, rows, keep, live):
                yield batch
            return
        names, row_names = self._filter_columns(expression)
        wanted = {f.name for f in self.options.schema.fields}
        if wanted <= set(names) or self.options.late_materialization is False:
            together = self._of_dataset({*names, *wanted})
            for batch, _ in self._needing(row_names)._read(together, rows, keep, live):  # noqa: SLF001 - the same class
                mask = matching(batch, expression)
                if mask.true_count:
                    yield _chosen(self._select(batch), mask, all_true=mask.true_count == len(mask))
        else:
            yield from self._two_steps(self._of_dataset(set(names)), row_names, rows, keep, live)

    def rows(self, offsets: Rows) -> Iterator[pa.RecordBatch]:
        """Yield these physical rows, whether they are alive or not."""
        for batch, _ in self._read(self.options.schema, offsets, None, None):
            yield batch

    def _rows(self) -> tuple[int, _Mask]:
        """Number of physical rows, and which of them are alive."""
        deletions = self.source.deletions(self.fragment)
        num_rows = physical_rows(self.source, self.fragment)
        return num_rows, deletions.live_rows(num_rows) if deletions is not None else None

    def _two_steps(
        self, own: Schema, row_names: Sequence[str], rows: Rows, keep: _Mask, live: _Mask
    ) -> Iterator[pa.RecordBatch]:
        """Find the matching rows by the filter's own columns, then read the wanted columns of those."""
        expression = self.options.filter
        assert expression is not None
        matched = []
        for batch, where in self._needing(row_names)._read(own, rows, keep, live):  # noqa: SLF001 - the same class
            found = np.flatnonzero(matching(batch, expression).to_numpy(zero_copy_only=False))
            matched.append(where.start + found if isinstance(where, range) else where[found])
        offsets = np.concatenate(matched) if matched else np.zeros(0, np.int64)
        if len(offsets) == 0:
            return
        if len(offsets) < TWO_STEP_SHARE * len(rows):
            chosen: Rows = offsets
            keep = None
        else:
            chosen = range(int(offsets[0]), int(offsets[-1]) + 1)
            keep = np.zeros(chosen.stop, np.bool_)
            keep[offsets] = True
        for batch, _ in self._read(self.options.schema, chosen, keep, live):
            yield batch

    def _needing(self, row_names: Sequence[str]) -> FragmentScan:
        """The same scan with more columns about rows."""
        more = (*self.options.more_row_columns, *row_names)
        return replace(self, options=replace(self.options, more_row_columns=more))

    def _of_dataset(self, names: set[str]) -> Schema:
        return Schema(fields=tuple(f for f in self.source.manifest.schema.fields if f.name in names))

    def _read(self, schema: Schema, rows: Rows, keep: _Mask, live: _Mask) -> Iterator[tuple[pa.RecordBatch, Rows]]:
        """Yield rows with the row columns that the options ask for, and where in the fragment they are.

        Args:
            schema: What to read.
            rows: Physical rows.
            keep: Which of all physical rows to yield; None for all.
            live: Which of all physical rows are alive; None for all.
        """
        position = 0
        columns = self._row_columns(live).values()
        hidden = live if self.options.include_deleted_rows else None
        # With a filter batches are cut to size after it; before it, larger ones cost less.
        batch_rows = self.options.batch_size if self.options.filter is None else None
        for batch in read_fragment(self.source, self.fragment, schema, rows, batch_rows=batch_rows):
            where = rows[position : position + batch.num_rows]
            position += batch.num_rows
            complete = _with_columns(batch, columns, where, hidden)
            if keep is not None:
                mask = _at(keep, where)
                if not mask.all():
                    complete = _chosen(complete, pa.array(mask))
                    where = np.flatnonzero(mask) + where.start if isinstance(where, range) else where[mask]
            if complete.num_rows:
                yield complete, where

    def _row_columns(self, live: _Mask) -> RowColumns:
        names = self.options.row_columns
        before = 0
        if ROW_OFFSET in names:
            for fragment in self.source.manifest.fragments:
                if fragment.id == self.fragment.id:
                    break
                before += live_count(self.source, fragment)
            if live is None:
                live = self._rows()[1]
        return RowColumns(
            fragment=self.fragment,
            names=names,
            num_rows=physical_rows(self.source, self.fragment) if ROW_OFFSET in names else 0,
            live=live,
            rows_before=before,
        )

    def _filter_columns(self, expression: pc.Expression) -> tuple[list[str], list[str]]:
        """The columns that the filter needs, whole, and those about rows; a constant filter needs none."""
        known = self.source.manifest.schema.names
        names = columns_of(expression)
        for name in names:
            if name not in known and name not in ROW_COLUMNS:
                raise SchemaError(f"filter {expression}: no column {name!r}; the columns are {known}")
        return [n for n in names if n in known], [n for n in names if n not in known]

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cut the columns down to the wanted ones."""
        wanted = schema_to_arrow(self.options.schema)
        extra = [row_field(name) for name in self.options.row_columns]
        columns = [_narrow(batch.column(f.name), f.type) for f in [*wanted, *extra]]
        if not columns:
            return rows_without_columns(batch.num_rows)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*wanted, *extra], metadata=wanted.metadata))


def live_count(source: Source, fragment: Fragment) -> int:
    """Rows of a fragment that are not deleted."""
    if fragment.deletion_file is not None and not fragment.deletion_file.num_deleted_rows:
        deletions = source.deletions(fragment)
        return physical_rows(source, fragment) - (0 if deletions is None else len(deletions))
    return physical_rows(source, fragment) - fragment.num_deleted_rows


def _with_columns(
    batch: pa.RecordBatch, added: Sequence[tuple[str, Callable[[Rows], U64Array]]], where: Rows, live: _Mask
) -> pa.RecordBatch:
    """The batch with columns about rows; the id and the address of a dead row are null if `live` is given."""
    if not added:
        return batch
    columns, fields = list(batch.columns), list(batch.schema)
    for name, values in added:
        dead = ~_at(live, where) if live is not None and name in (ROW_ID, ROW_ADDRESS) else None
        columns.append(pa.array(values(where), pa.uint64(), mask=dead))
        fields.append(row_field(name))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))


def _chosen(batch: pa.RecordBatch, mask: pa.Array, *, all_true: bool = False) -> pa.RecordBatch:
    """The rows of a batch for which the mask is true; a batch without columns keeps its number of rows."""
    if all_true:
        return batch
    if batch.num_columns:
        return batch.filter(mask)
    return rows_without_columns(mask.true_count)


def _at(mask: npt.NDArray[np.bool_], where: Rows) -> npt.NDArray[np.bool_]:
    return mask[where.start : where.stop] if isinstance(where, range) else mask[where]


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
