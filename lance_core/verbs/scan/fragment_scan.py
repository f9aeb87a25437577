"""Scan one fragment: yield its rows that are not deleted and match the filter.

With a filter the scan has two steps, unless it reads no other columns: it reads the columns of the filter first, then
the other columns. If few rows match, the other columns are read only for these rows, and a page without a match is
neither read nor decoded. Otherwise all rows from the first match to the last are read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import SchemaError
from lance_core.file.pool import in_order, num_threads
from lance_core.index.selection.claims import Claim
from lance_core.row_addresses import offsets_of
from lance_core.schema import Schema, schema_to_arrow
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.expressions.arrow import columns_of, matching_all, true_places
from lance_core.verbs.expressions.printed import format_expr
from lance_core.verbs.scan.filter_stages import (
    BufferedRows,
    Found,
    Stages,
    matching_entries,
    rows_in_mask,
    stages_of,
    with_dictionaries,
    zipped_columns,
)
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.projection import (
    ROW_COLUMNS,
    ROW_OFFSET,
    RowColumns,
    row_field,
    rows_at,
    rows_without_columns,
    with_row_columns,
)
from lance_core.verbs.scan.read_fragment import OpenFiles, Rows, count_file_rows, count_live, read_fragment

TWO_STEP_SHARE: Final = 1 / 16
"""If a filter keeps less than this share of the rows, the other columns are read only for these rows."""

STAGED_ROWS: Final = 65_536
"""From this many rows on, conditions on columns of fixed width are evaluated before other columns are read."""

ENTRY_ROWS: Final = 8_192
"""The least number of rows for which strings that are stored as dictionaries are compared once per entry."""

FIRST_WINDOW_ROWS: Final = 16_384
"""With a limit, a filter is evaluated first on this many rows, then on more and more, as the first may suffice."""

KEPT_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of the filter's columns that are kept for the result; larger columns are read again."""

SMALL_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of the files of a fragment that is read ahead, in parallel with others, from a remote store."""

SPAN_SHARE: Final = 4
"""All rows from the first to the last possible match are read if at least one in this many can match."""

FEW_ROWS: Final = 4096
"""If indices leave at most this many possible matches, all columns are read at once."""

LEAST_PART: Final = 128 * 1024, 4 * 1024 * 1024
"""The rows of a fragment that a thread reads at least, or the bytes of fewer wide rows: smaller parts cost more."""

_NEAR: Final = ("/", "file:", "memory:")
_Mask = npt.NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of a fragment that were read already.

    Attributes:
        schema: Their columns.
        rows: Which physical rows they are.
        batch: The rows, as they are stored.
        matches: For each physical row of the fragment, whether it matches the filter; None if that is not known.
    """

    schema: Schema
    rows: Rows
    batch: pa.RecordBatch
    matches: pa.Array | None = None

    def are(self, schema: Schema, rows: Rows) -> bool:
        """Whether exactly these rows and columns were read."""
        is_same = rows is self.rows or (isinstance(rows, range) and isinstance(self.rows, range) and rows == self.rows)
        return is_same and schema == self.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterReads:
    """The columns that a scan with a filter reads.

    Attributes:
        early: Columns that are read for all rows that can match: the top-level columns of the filter, or all columns.
        row_names: Row columns, such as `_rowid`, that the filter needs.
        late: Columns that are read only for rows that match; None if all columns are in `early`.
    """

    early: Schema
    row_names: tuple[str, ...]
    late: Schema | None


def filter_reads(dataset: Schema, options: ScanOptions, expression: pc.Expression) -> FilterReads:
    """The columns that a scan with this filter reads; a constant filter needs none.

    Raises:
        SchemaError: The filter refers to a column that does not exist.
    """
    names = columns_of(expression)
    for name in names:
        if name not in dataset.names and name not in ROW_COLUMNS:
            raise SchemaError(f"filter {format_expr(expression)}: no column {name!r}; the columns are {dataset.names}")
    early_names, late = {name for name in names if name in dataset.names}, None
    schema = options.schema
    if early_names.issuperset(schema.names) or options.late_materialization is False:
        early_names.update(schema.names)
    else:
        late = Schema(fields=tuple(f for f in schema.fields if f.name not in early_names), metadata=schema.metadata)
    return FilterReads(
        early=Schema(fields=tuple(f for f in dataset.fields if f.name in early_names)),
        row_names=tuple(name for name in names if name not in dataset.names),
        late=late,
    )


@dataclass(frozen=True, slots=True)
class FragmentScan:
    """A scan of one fragment.

    Attributes:
        snapshot: The version.
        fragment: The fragment.
        options: What to read.
        opened: Files that are already open.
        read_rows: Rows that are already read.
        possible: Offsets of the rows that can match the filter; None for all.
        claims: What indices claim about the possible rows that are not deleted; the scan checks it.
        window: The physical rows to read; None for all.
    """

    snapshot: Snapshot
    fragment: Fragment
    options: ScanOptions
    opened: OpenFiles = field(default_factory=dict, repr=False, compare=False)
    read_rows: ReadRows | None = field(default=None, repr=False, compare=False)
    possible: BitMap | None = field(default=None, repr=False, compare=False)
    claims: tuple[Claim, ...] = field(default=(), repr=False, compare=False)
    window: range | None = None

    @property
    def is_near(self) -> bool:
        """Whether the store is a local disk or memory, whose reads cost little compared with decoding."""
        return self.snapshot.store.root.startswith(_NEAR)

    @property
    def is_small(self) -> bool:
        """Whether the whole fragment may be kept in memory."""
        sizes = [file.file_size_bytes for file in self.fragment.files]
        return all(sizes) and sum(sizes) <= SMALL_BYTES

    @property
    def num_rows(self) -> int:
        """Physical rows, deleted ones included."""
        return count_file_rows(self.snapshot, self.fragment)

    @property
    def num_possible(self) -> int:
        """The number of physical rows that can match; 0 if the manifest does not say it."""
        return self.fragment.physical_rows if self.possible is None else len(self.possible)

    @property
    def has_late_columns(self) -> bool:
        """Whether some columns are read only for the rows that match the filter."""
        expression = self.options.filter
        return expression is not None and filter_reads(self.columns, self.options, expression).late is not None

    def rows_of_a_part(self, total: int) -> int:
        """How many rows a thread reads at a time if scans like this one read `total` rows."""
        share = len(self.first_columns.fields) / max(len(self.snapshot.manifest.schema.fields), 1)
        num_bytes = share * sum(file.file_size_bytes for file in self.fragment.files)
        row_bytes = max(num_bytes / max(self.fragment.physical_rows, 1), 1)
        least = min(LEAST_PART[0], int(LEAST_PART[1] / row_bytes) + 1)
        return least if total <= least else max(-(-total // num_threads()), least)

    def parts(self, num_rows: int) -> Iterator[FragmentScan]:
        """Divide the scan into scans of about `num_rows` rows, unless it has fewer."""
        if self.read_rows is not None or self.num_possible <= num_rows:
            yield self
        else:
            windows = _divide(range(self.fragment.physical_rows), -(-self.num_possible // num_rows))
            yield from (replace(self, window=window) for window in windows)

    @property
    def columns(self) -> Schema:
        """All columns of the dataset, in the types that the filter uses."""
        return self.options.dataset or self.snapshot.manifest.schema

    @property
    def first_columns(self) -> Schema:
        """The columns that are read for all rows; other columns are read only for rows that match.

        Raises:
            SchemaError: The filter names a column that does not exist.
        """
        expression = self.options.filter
        if expression is None:
            return self.options.schema
        return filter_reads(self.columns, self.options, expression).early

    def batches(self, part: range | None = None, *, most: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are alive and match, with the columns of the options and the row columns.

        Args:
            part: Which of the rows to read, counted among those that are alive, or among all physical rows if the
                options include deleted ones; None for all.
            most: The number of matching rows after which the scan may end; None for all.
        """
        num_rows, live = self._rows()
        keep = None if self.options.include_deleted_rows else live
        rows = range(num_rows) if self.window is None else self.window
        if part is not None:
            rows = part if keep is None else _physical_range(keep, part)
        expression = self.options.filter
        if expression is None:
            for batch, _ in self._read(self.options.schema, rows, keep, live):
                yield batch
            return
        for window in [rows] if most is None else _split_windows(rows):
            for possible in self._find_indexed(window, keep):
                yield from self._filter_rows(expression, possible, keep, live, most)

    def offsets(self) -> Iterator[Rows]:
        """Yield the offsets of the rows that are alive and match the filter."""
        expression = self.options.filter
        assert expression is not None, "without a filter all rows match"
        num_rows, live = self._rows()
        if self.read_rows is not None and self.read_rows.matches is not None and not self.claims:
            places = true_places(self.read_rows.matches)
            yield places if live is None else places[live[places]]
            return
        for possible in self._find_indexed(self.window or range(num_rows), live):
            reads = filter_reads(self.columns, self.options, expression)
            for _, where, mask in self._find_rows(expression, reads, possible, live, live)[0]:
                if mask.true_count:
                    yield _take_true(where, mask)

    def _find_indexed(self, rows: range, keep: _Mask) -> list[Rows]:
        """The rows that can match according to indices: offsets if they are few or sparse, otherwise one range."""
        if self.possible is None or self.read_rows is not None:
            return [rows]
        offsets = offsets_of(self.possible & BitMap(rows))
        if keep is not None:
            offsets = offsets[keep[offsets]]
        if not len(offsets):
            return []
        span = range(int(offsets[0]), int(offsets[-1]) + 1)
        return [offsets if len(offsets) <= FEW_ROWS or len(span) > len(offsets) * SPAN_SHARE else span]

    def rows(self, offsets: Rows) -> Iterator[pa.RecordBatch]:
        """Yield the physical rows at some offsets, deleted ones included."""
        for batch, _ in self._read(self.options.schema, offsets, None, None):
            yield batch

    def _rows(self) -> tuple[int, _Mask]:
        """Number of physical rows, and which of them are alive."""
        deletions = self.snapshot.deletions(self.fragment)
        num_rows = count_file_rows(self.snapshot, self.fragment)
        return num_rows, deletions.live_rows(num_rows) if deletions is not None else None

    def _filter_rows(
        self, expression: pc.Expression, rows: Rows, keep: _Mask, live: _Mask, most: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that match; the scan may end once `most` of them are found."""
        options = self.options
        if not isinstance(rows, range) and len(rows) <= FEW_ROWS:
            options = replace(options, late_materialization=False)  # most possible rows match
        reads = filter_reads(self.columns, options, expression)
        if reads.late is None or most is not None or not isinstance(rows, range):
            batches, is_bare = self._find_rows(expression, reads, rows, keep, live)
        else:
            batches, is_bare = self._find_in_parts(expression, reads, rows, keep, live), False
        if reads.late is not None:
            out_of = int(rows[-1]) - int(rows[0]) + 1 if len(rows) else 0
            yield from self._filter_in_two_steps(reads.early.names, reads.late, batches, out_of, live, most)
            return
        columns = self._row_columns(live).values() if is_bare else ()
        hidden = live if self.options.include_deleted_rows else None
        output_names = {*self.options.schema.names, *self.options.row_columns}
        for batch, where, mask in batches:
            if mask.true_count:
                rest = rows_in_mask(batch.select([name for name in batch.schema.names if name in output_names]), mask)
                if columns:
                    rest = with_row_columns(rest, columns, _take_true(where, mask), hidden)
                yield self._select(rest, self.options.schema)

    def _find_rows(
        self, expression: pc.Expression, reads: FilterReads, rows: Rows, keep: _Mask, live: _Mask
    ) -> tuple[Iterable[Found], bool]:
        """Batches with a mask of the rows that match, and whether they still lack the requested row columns."""
        more = (*self.options.more_row_columns, *reads.row_names)
        scan = replace(self, options=replace(self.options, more_row_columns=more))
        stages = self._choose_stages(reads, rows)
        early, entries = reads.early, set[str]()
        if self.read_rows is None and len(rows) >= ENTRY_ROWS and not self.claims:
            early, entries = with_dictionaries(self.snapshot, self.fragment, reads.early, self.opened)
        # Row columns need no read, so they are computed only for the rows that match.
        is_bare = bool(early.fields) and not reads.row_names and stages is None and reads.late is None
        if stages is not None:
            batches: Iterable[Found] = self._filter_in_stages(stages, early, rows, keep, live, entries)
        else:
            read = scan._read(early, rows, keep, live, is_bare=is_bare)  # noqa: SLF001 - the same class
            batches = ((batch, where, self._match_rows(expression, batch, where, entries)) for batch, where in read)
        return self._check_claims(batches) if self.claims else batches, is_bare

    def _find_in_parts(
        self, expression: pc.Expression, reads: FilterReads, rows: range, keep: _Mask, live: _Mask
    ) -> Iterable[Found]:
        """The rows that match, found in parts of a range in several threads."""
        num_parts = -(-len(rows) // self.rows_of_a_part(len(rows)))
        if num_parts < 2 or self.read_rows is not None or self.claims or not self.is_near:
            return self._find_rows(expression, reads, rows, keep, live)[0]

        def find(part: range) -> list[Found]:
            batches, _ = self._find_rows(expression, reads, part, keep, live)
            matches = ((batch, where, mask) for batch, where, mask in batches if mask.true_count)
            return [(rows_in_mask(b, mask), _take_true(where, mask), mask.filter(mask)) for b, where, mask in matches]

        return chain.from_iterable(in_order(find, _divide(rows, num_parts)))

    def _check_claims(self, batches: Iterable[Found]) -> Iterator[Found]:
        """Check what indices claim about the rows of each batch, and yield the batch."""
        for batch, where, mask in batches:
            if mask.true_count < len(mask):
                self.check_claims(batch, where, pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
            yield batch, where, mask

    def check_claims(self, rows: pa.RecordBatch, offsets: Rows, matches: npt.NDArray[np.bool_]) -> None:
        """Check that rows have the values that indices claim.

        Args:
            rows: The rows.
            offsets: The offsets of the rows in the fragment.
            matches: For each row, whether it matches the filter.

        Raises:
            ContradictionError: A row has another value than an index claims.
        """
        places = np.asarray(offsets, np.uint32)
        for claim in self.claims:
            offenders = places[claim.contradictions(rows, matches)].tobytes()
            wrong = BitMap(array("I", offenders)) & (self.possible or BitMap())
            if wrong:
                claim.reject(self.fragment.id, wrong[0])

    def _match_rows(self, expression: pc.Expression, batch: pa.RecordBatch, where: Rows, entries: set[str]) -> pa.Array:
        """For each row of a batch, whether it matches; `entries` names the columns that were read as dictionaries."""
        matches = self.read_rows.matches if self.read_rows is not None else None
        conditions = self.options.conjuncts or (expression,)
        if matches is None:
            return matching_entries(batch, conditions, entries) if entries else matching_all(batch, conditions)
        return matches.slice(where.start, len(where)) if isinstance(where, range) else matches.take(pa.array(where))

    def _choose_stages(self, reads: FilterReads, rows: Rows) -> Stages | None:
        """The stages in which conditions are evaluated and columns read; None to evaluate all conditions at once."""
        if self.read_rows is not None or self.claims:
            return None
        is_plain = not reads.row_names and self.options.late_materialization is None
        if len(self.options.conjuncts) < 2 or not is_plain or not self.is_near:
            return None
        if not isinstance(rows, range) or len(rows) < STAGED_ROWS:
            return None
        stages = stages_of(reads.early, self.options.conjuncts)
        return stages if stages is not None and len(rows) * stages.row_bytes <= KEPT_BYTES else None

    def _filter_in_stages(
        self, stages: Stages, columns: Schema, rows: Rows, keep: _Mask, live: _Mask, entries: set[str]
    ) -> Iterator[Found]:
        """Evaluate the first conditions, then the others: on the remaining rows if they are few, else on all rows."""
        first = [
            (batch, where, matching_all(batch, stages.first))
            for batch, where in self._read(stages.schema, rows, keep, live)
        ]
        count = sum(mask.true_count for _, _, mask in first)
        rest = Schema(fields=tuple(f for f in columns.fields if f.name not in stages.schema.names))
        complete = self._select_schema(columns)
        if count >= len(rows) * TWO_STEP_SHARE:
            for batch, where, mask in zipped_columns(first, self._read(rest, rows, keep, live), complete):
                if mask.true_count:
                    yield batch, where, matching_entries(batch, stages.then, entries, mask)
        elif count:
            buffer, matched = BufferedRows(self._select_schema(stages.schema)), []
            for batch, where, mask in first:
                places = true_places(mask)
                matched.append(where.start + places if isinstance(where, range) else where[places])
                buffer.add(rows_in_mask(self._select(batch, stages.schema), mask))
            kept_rows = combine_chunks(buffer.table())
            for other_columns, where in self._read(rest, np.concatenate(matched), None, live):
                batch = buffer.put_back(kept_rows, other_columns, complete)
                yield batch, where, matching_entries(batch, stages.then, entries)

    def _filter_in_two_steps(
        self, names: Sequence[str], late: Schema, batches: Iterable[Found], out_of: int, live: _Mask, most: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Find the matching rows by the columns of the filter, then read the other columns of these rows."""
        again = Schema(fields=tuple(f for f in self.options.schema.fields if f.name in names))
        buffer: BufferedRows | None = BufferedRows(self._select_schema(again)) if again.fields else None
        matched, count = [], 0
        for batch, where, mask in batches:
            positions = true_places(mask)
            matched.append(where.start + positions if isinstance(where, range) else where[positions])
            count += len(positions)
            if buffer is not None and len(positions):
                buffer.add(self._select(rows_in_mask(batch, mask), again))
                buffer = buffer if buffer.num_bytes <= KEPT_BYTES else None
            if most is not None and count >= most:
                break
        offsets = np.concatenate(matched)[:most] if count else np.zeros(0, np.int64)
        if len(offsets) == 0:
            return
        if buffer is None:
            yield from self._read_offsets(self.options.schema, offsets, out_of, live)
            return
        kept_rows = combine_chunks(buffer.table())
        for batch in self._read_offsets(late, offsets, out_of, live):
            yield buffer.put_back(kept_rows, batch, self._select_schema(self.options.schema))

    def _read_offsets(
        self, schema: Schema, offsets: npt.NDArray[np.int64], out_of: int, live: _Mask
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows at ascending offsets: sparse rows by offset, others as a range that is then filtered."""
        is_dense = int(offsets[-1]) - int(offsets[0]) < 4 * len(offsets)
        if not is_dense and len(offsets) < out_of * TWO_STEP_SHARE:
            for batch, _ in self._read(schema, offsets, None, live):
                yield batch
            return
        span = range(int(offsets[0]), int(offsets[-1]) + 1)
        keep = np.zeros(span.stop, np.bool_)
        keep[offsets] = True
        for batch, _ in self._read(schema, span, keep, live):
            yield batch

    def _read(
        self, schema: Schema, rows: Rows, keep: _Mask, live: _Mask, *, is_bare: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, Rows]]:
        """Yield rows with the row columns that the options ask for, and their offsets in the fragment.

        Args:
            schema: The columns to read.
            rows: Offsets of the physical rows to read.
            keep: Which of all physical rows to yield; None for all.
            live: Which of all physical rows are alive; None for all.
            is_bare: Whether to omit the row columns.
        """
        position = 0
        columns = () if is_bare else self._row_columns(live).values()
        hidden = live if self.options.include_deleted_rows else None
        # A scan with a filter slices its batches after the filter, before which larger batches cost less.
        batch_rows = self.options.batch_size if self.options.filter is None else None
        for batch in self._physical_rows(schema, rows, batch_rows):
            where = rows[position : position + batch.num_rows]
            position += batch.num_rows
            complete = with_row_columns(batch, columns, where, hidden)
            if keep is not None:
                mask = rows_at(keep, where)
                if not mask.any():
                    continue
                if not mask.all():
                    complete = rows_in_mask(complete, pa.array(mask))
                    where = np.flatnonzero(mask) + where.start if isinstance(where, range) else where[mask]
            if complete.num_rows:
                yield complete, where

    def _physical_rows(self, schema: Schema, rows: Rows, batch_rows: int | None) -> Iterator[pa.RecordBatch]:
        """Yield physical rows, deleted ones included, as they are stored."""
        if self.read_rows is not None and self.read_rows.are(schema, rows):
            return _slices(self.read_rows.batch, batch_rows)
        return read_fragment(self.snapshot, self.fragment, schema, rows, batch_rows=batch_rows, opened=self.opened)

    def _row_columns(self, live: _Mask) -> RowColumns:
        names = self.options.row_columns
        before = 0
        if ROW_OFFSET in names:
            for fragment in self.snapshot.manifest.fragments:
                if fragment.id == self.fragment.id:
                    break
                before += count_live(self.snapshot, fragment)
            if live is None:
                live = self._rows()[1]
        return RowColumns(
            fragment=self.fragment,
            names=names,
            num_rows=count_file_rows(self.snapshot, self.fragment) if ROW_OFFSET in names else 0,
            live=live,
            rows_before=before,
        )

    def _select_schema(self, schema: Schema) -> pa.Schema:
        """Arrow schema of these columns and the row columns of the options."""
        arrow = schema_to_arrow(schema)
        return pa.schema([*arrow, *map(row_field, self.options.row_columns)], metadata=arrow.metadata)

    def _select(self, batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
        """The batch with only these columns and the row columns of the options."""
        arrow = self._select_schema(schema)
        if not arrow.names:
            return rows_without_columns(batch.num_rows)
        columns = [_narrow(batch.column(f.name), f.type) for f in arrow]
        return pa.RecordBatch.from_arrays(columns, schema=arrow)


def _slices(batch: pa.RecordBatch, num_rows: int | None) -> Iterator[pa.RecordBatch]:
    """Slice the rows into batches of at most `num_rows` rows; None for one batch."""
    step = num_rows or max(batch.num_rows, 1)
    for start in range(0, batch.num_rows, step):
        yield batch if step >= batch.num_rows else batch.slice(start, step)


def _take_true(where: Rows, mask: pa.Array) -> Rows:
    """The offsets, out of `where`, of the rows for which the mask is true."""
    if mask.true_count == len(mask):
        return where
    places = true_places(mask)
    return where.start + places if isinstance(where, range) else where[places]


def _divide(rows: range, num_parts: int) -> Iterator[range]:
    """Divide rows into parts of about the same length."""
    bounds = (rows.start + len(rows) * part // num_parts for part in range(num_parts + 1))
    return (range(*bound) for bound in pairwise(bounds))


def _split_windows(rows: range) -> Iterator[range]:
    """Split the rows into parts, each four times as long as the previous part."""
    start, length = rows.start, FIRST_WINDOW_ROWS
    while start < rows.stop:
        yield range(start, min(start + length, rows.stop))
        start, length = start + length, length * 4


def _physical_range(live: npt.NDArray[np.bool_], part: range) -> range:
    """The physical rows from the first to the last of some live rows; the caller drops the deleted rows in between."""
    offsets = np.flatnonzero(live)[part.start : part.stop]
    return range(int(offsets[0]), int(offsets[-1]) + 1) if len(offsets) else range(0)


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Drop the children of a struct that `kind` lacks; decode a column that was read as a dictionary."""
    if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(kind):
        return array.dictionary_decode()
    if array.type == kind or not pa.types.is_struct(kind):
        return array
    mask = pc.is_null(array) if array.null_count else None
    children = [_narrow(array.field(f.name), f.type) for f in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
