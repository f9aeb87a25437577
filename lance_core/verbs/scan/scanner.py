"""Run a scan: choose the rows of fragments, then read and finish them batch by batch.

    plan      fragments, limit and offset -> rows of each fragment
    read      a fragment's rows -> batches, minus deleted rows, minus rows that the filter drops
    finish    computed columns, order of columns, extension types, size of batches

With `order_by`, the columns to order by are read and sorted first, then the other columns are read in that order.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from lance_core.arguments import checked_methods
from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import InvalidInputError
from lance_core.file.pool import num_threads
from lance_core.index.selection.claims import ContradictionError
from lance_core.schema import Schema, typed_schema, unwrapped
from lance_core.table.fragment import Fragment
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.explain import FragmentPart, PlanStep, order_steps, scan_steps
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import STRICT_ROWS, ScanOptions, check_num_rows, order_of
from lance_core.verbs.scan.plan import ScanPlan, until_consistent
from lance_core.verbs.scan.projection import (
    ROW_ADDRESS,
    Projection,
    has_descriptions,
    is_description,
    rows_without_columns,
)
from lance_core.verbs.scan.read_counter import ReadCounter, counted
from lance_core.verbs.scan.read_fragment import count_live, count_live_each
from lance_core.verbs.scan.small_fragments import FEWEST, coalesced, worked_on
from lance_core.verbs.scan.take import in_order, take_addresses, whole_numbers
from lance_core.verbs.scan.take_blobs import BlobFile, payloads_at_addresses

# The threads that a reader of pages occupies by itself; for more of them fragments are divided.
_READS_AHEAD: Final = 4
_BLOB_MODES: Final = ("lazy", "bytes", "descriptions")


@checked_methods
class LanceScanner:
    """A prepared scan; each call of a `to_` method runs it.

    Args:
        snapshot: The version to read.
        fragments: Its fragments to read, in this order.
        options: What to read from them.
    """

    def __init__(self, snapshot: Snapshot, fragments: Sequence[Fragment], options: ScanOptions) -> None:
        self._snapshot = snapshot
        self._fragments = fragments
        self._options = options

    @property
    def projected_schema(self) -> pa.Schema:
        """Schema of the batches."""
        return self._options.result_schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """All columns of the dataset."""
        return typed_schema(self._snapshot.manifest.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in the order of fragments and rows or in that of `order_by`.

        Memory is bounded by a few batches; with `order_by`, by the result and the columns to order by.
        """
        return self._scan_restarting(self.projected_schema)

    def _scan_restarting(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches; the scan restarts if an index is found to be wrong before the first batch."""
        return self._scan_again(self._batches(schema), schema)

    def _scan_again(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        is_first = True
        while True:
            try:
                for batch in batches:
                    is_first = False
                    yield batch
            except ContradictionError:
                if not is_first:
                    raise
                batches = self._batches(schema)
            else:
                return

    def _batches(self, schema: pa.Schema, *, at_once: bool = False) -> Iterator[pa.RecordBatch]:
        projection = self._options.result
        if self._options.order_by:
            finished: Iterator[pa.RecordBatch] = self._read_ordered()
        else:
            finished = (projection.apply(batch, schema) for batch in self._read_stored(at_once=at_once))
        return self._resize_batches(finished)

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow reader."""
        schema = self.projected_schema
        return pa.RecordBatchReader.from_batches(schema, self._scan_restarting(schema))

    def to_table(self) -> pa.Table:
        """All rows as one table."""
        schema = self.projected_schema
        return until_consistent(lambda: pa.Table.from_batches(self._batches(schema, at_once=True), schema=schema))

    def to_pandas(self, *, blob_mode: str = "lazy", **options: Any) -> Any:
        """All rows as a pandas frame.

        Args:
            blob_mode: What blob columns contain: `BlobFile` objects ("lazy"), "bytes", or "descriptions", for which no
                payloads are read.
            **options: Arguments of `pyarrow.Table.to_pandas`.

        Raises:
            InvalidInputError: The mode is unknown.
        """
        if blob_mode not in _BLOB_MODES:
            raise InvalidInputError(f"blob_mode must be one of {', '.join(_BLOB_MODES)}, not {blob_mode!r}")
        sources = self._options.described_blobs if blob_mode != "descriptions" else {}
        if not sources:
            return self.to_table().to_pandas(**options)
        scanner = copy.copy(self)
        scanner._options = replace(self._options, with_row_address=True)  # noqa: SLF001 - the same class
        table = scanner.to_table()
        names = list(dict.fromkeys(sources.values()))
        payloads = payloads_at_addresses(self._snapshot, names, table.column(ROW_ADDRESS))
        for name, source in sources.items():
            table = table.set_column(table.schema.get_field_index(name), name, payloads.column(source))
        frame = table.select(self.projected_schema.names).to_pandas(**options)
        for name, source in sources.items() if blob_mode == "lazy" else ():
            field = self.projected_schema.field(name)
            frame[name] = [_as_files(value, field) for value in payloads.column(source).to_pylist()]
        return frame

    def head(self, num_rows: int) -> pa.Table:
        """The first rows; the scan stops after them."""
        check_num_rows(num_rows)
        limit = num_rows if self._options.limit is None else min(num_rows, self._options.limit)
        return LanceScanner(self._snapshot, self._fragments, replace(self._options, limit=limit)).to_table()

    def take(self, indices: Sequence[int]) -> pa.Table:
        """Rows of the result by position, in the given order.

        Raises:
            InvalidInputError: A position is out of range.
        """
        table = self.to_table()
        positions = whole_numbers("indices", indices)
        if len(positions) and not (positions.min() >= 0 and positions.max() < table.num_rows):
            raise InvalidInputError(f"a position is outside the {table.num_rows} rows of the scan")
        return in_order(table, positions)

    def count_rows(self) -> int:
        """Number of rows; without a filter only metadata is read."""
        options = self._options
        if options.filter is None:
            total = sum(
                map(self._count, self._fragments)
                if options.include_deleted_rows
                else count_live_each(self._snapshot, self._fragments)
            )
        else:
            total = until_consistent(self._for_count()._count_matching)  # noqa: SLF001 - the same class
        total = max(total - options.offset, 0)
        return total if options.limit is None else min(total, options.limit)

    def fragment_ids(self) -> list[int]:
        """Ids of the fragments that the scan reads, except those that indices exclude. Not in pylance."""
        if self._options.filter is None:
            return [fragment.id for fragment, _ in self._parts()]
        return [fragment.id for fragment, _ in self._scan_plan().parts]

    def explain_plan(self, verbose: bool = False) -> str:
        """The plan of the scan, the last step first; pylance prints plans of DataFusion, which differ.

        Args:
            verbose: Whether to list the fragments; the statistics of 0.1 files are then read for the filter.
        """
        return "\n".join(self._plan(verbose=verbose).lines())

    def analyze_plan(self, count_rows: bool = False) -> str:
        """Run the scan, and report its rows, reads and time above its plan.

        Args:
            count_rows: Whether to run `count_rows` instead.
        """
        counter = ReadCounter()
        scanner = LanceScanner(counted(self._snapshot, counter), self._fragments, self._options)
        started = time.perf_counter()
        if count_rows:
            facts = [f"result={scanner.count_rows()}"]
        else:
            sizes = [(batch.num_rows, batch.nbytes) for batch in scanner.to_batches()]
            rows, num_bytes = (sum(size[i] for size in sizes) for i in (0, 1))
            facts = [f"rows={rows}", f"batches={len(sizes)}", f"bytes in memory={num_bytes}"]
        facts += [f"seconds={time.perf_counter() - started:.6f}", *counter.facts()]
        step = self._count_plan() if count_rows else self._plan(ran=(rows, counter))
        return "\n".join(PlanStep(name="Ran", facts=tuple(facts), inputs=(step,)).lines())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _plan(self, *, verbose: bool = False, ran: tuple[int, ReadCounter] | None = None) -> PlanStep:
        """The steps of the scan; `ran` is the number of rows that a run returned, and the counter of its reads."""
        options = self._options
        if options.order_by:
            keys = self._for_order()._plan(verbose=verbose, ran=ran)  # noqa: SLF001 - the same class
            return order_steps(self._snapshot, options, keys)
        plan = self._scan_plan() if options.filter is not None else None
        candidates: Iterable[tuple[Fragment, Sized | None]] = self._parts() if plan is None else plan.parts
        parts = [
            FragmentPart(
                fragment=fragment,
                num_rows=self._count(fragment),
                rows=rows if isinstance(rows, range) else None,
                num_possible=None if rows is None else len(rows),
            )
            for fragment, rows in candidates
        ]
        selection = plan.selection if plan is not None else None
        metrics = ran[1].metrics(ran[0], sum(part.num_looked_at for part in parts)) if ran is not None else None
        return scan_steps(
            self._snapshot,
            options,
            parts,
            read_ahead=self._is_whole,
            verbose=verbose,
            selection=selection,
            metrics=metrics,
        )

    def _count_matching(self) -> int:
        """The number of rows that match; fragments that indices can count are not opened."""
        total, left = self._scan_plan().counted()
        return total + sum(int(batch.num_rows) for batch in self._read_ahead(left, at_once=True))

    def _scan_plan(self) -> ScanPlan:
        """The fragments that can match the filter."""
        return ScanPlan.of(self._snapshot, self._fragments, self._options)

    def _count_plan(self) -> PlanStep:
        if self._options.filter is None:
            return PlanStep(name="Count", facts=("from=metadata",))
        return PlanStep(name="Count", inputs=(self._for_count()._plan(),))  # noqa: SLF001 - the same class

    @property
    def _is_whole(self) -> bool:
        """Whether the scan returns all rows, or all rows that match."""
        return self._options.limit is None and not self._options.offset

    def _for_count(self) -> LanceScanner:
        """The scan of the rows that match, without columns, to count them."""
        nothing = Schema(fields=())
        narrow = replace(
            self._options, schema=nothing, projection=None, order_by=(), limit=None, offset=0, batch_size=None
        )
        return LanceScanner(self._snapshot, self._fragments, narrow)

    def _for_order(self) -> LanceScanner:
        """The scan of the columns to order by, with the addresses of the rows."""
        options = self._options
        dataset = options.dataset or self._snapshot.manifest.schema
        paths = list(dict.fromkeys(ordering.column_name for ordering in options.order_by))
        tops = {path if path in dataset.names else dataset.project([path]).fields[0].name for path in paths}
        keys = Projection.of(Schema(fields=tuple(f for f in dataset.fields if f.name in tops)), paths)
        narrow = replace(
            options,
            schema=keys.schema,
            projection=keys if keys.outputs is not None else None,
            with_row_id=False,
            with_row_address=True,
            order_by=(),
            limit=None,
            offset=0,
            batch_size=None,
            batch_size_bytes=None,
            strict_batch_size=False,
        )
        return LanceScanner(self._snapshot, self._fragments, narrow)

    def _count(self, fragment: Fragment) -> int:
        """The number of rows of a fragment before any filter."""
        if not self._options.include_deleted_rows:
            return count_live(self._snapshot, fragment)
        return FragmentScan(self._snapshot, fragment, self._options).num_rows

    def _parts(self) -> Iterator[tuple[Fragment, range | None]]:
        """The fragments to read, each with the range of its live rows to read; None for all."""
        options = self._options
        if options.filter is not None or self._is_whole:
            yield from ((fragment, None) for fragment in self._fragments)
            return
        skip, left = options.offset, options.limit
        for fragment in self._fragments:
            if left == 0:
                return
            count = self._count(fragment)
            part = range(min(skip, count), count if left is None else min(skip + left, count))
            skip -= part.start
            left = None if left is None else left - len(part)
            if part:
                yield fragment, part

    def _read_stored(self, *, at_once: bool) -> Iterator[pa.RecordBatch]:
        """The batches as they are read, in order of fragments and rows; `at_once` if no memory is saved by a few."""
        options = self._options
        if self._is_whole:
            return self._read_ahead(self._scan_plan(), at_once=at_once)
        if options.filter is not None:
            return self._read_limited()
        scans = ((FragmentScan(self._snapshot, fragment, options), part) for fragment, part in self._parts())
        return (batch for scan, part in scans for batch in scan.batches(part))

    def _read_limited(self) -> Iterator[pa.RecordBatch]:
        """The batches of rows that match, as they are read, sliced by limit and offset."""
        skip, left = self._options.offset, self._options.limit
        for scan in self._scan_plan().scans():
            if left == 0:
                return
            most = None if left is None else skip + left
            for batch in scan.batches(most=most):
                part = batch.slice(min(skip, batch.num_rows))
                skip -= batch.num_rows - part.num_rows
                if left is not None:
                    part = part.slice(0, left)
                    left -= part.num_rows
                if part.num_rows:
                    yield part
                if left == 0:
                    return

    def _read_ahead(self, plan: ScanPlan, *, at_once: bool) -> Iterator[pa.RecordBatch]:
        """All batches of fragments; small fragments of a remote store are read in parallel, and others if `at_once`."""
        first = next(plan.scans(), None) if at_once else None
        total = sum(fragment.physical_rows if rows is None else len(rows) for fragment, rows in plan.parts)
        is_large = first is not None and first.is_near and total > first.rows_of_a_part(total)
        if is_large and (self._options.filter is not None or num_threads() > _READS_AHEAD):
            yield from chain.from_iterable(batches for _, batches in worked_on(plan.scans(), _all_batches))
            return
        scans = plan.scans() if len(plan.parts) < FEWEST else coalesced(plan.scans())
        if self._options.fragment_readahead < 2 or len(plan.parts) < 2:
            for scan in scans:
                yield from scan.batches()
            return
        waiting: deque[FragmentScan | Future[list[pa.RecordBatch]]] = deque()
        pool = ThreadPool(self._options.fragment_readahead, thread_name_prefix="lance-fragment")
        try:
            for scan in scans:
                is_ahead = scan.is_small and not scan.is_near
                waiting.append(pool.submit(_all_batches, scan) if is_ahead else scan)
                if len(waiting) >= self._options.fragment_readahead or not is_ahead:
                    yield from _next_batches(waiting.popleft())
            while waiting:
                yield from _next_batches(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _read_ordered(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order: sort only the columns to order by, then read all columns within the limit."""
        options = self._options
        keys = self._for_order().to_table()
        paths = [ordering.column_name for ordering in options.order_by]
        stop = None if options.limit is None else options.offset + options.limit
        order = order_of([unwrapped(keys.column(path)) for path in paths], options.order_by, stop)
        addresses = keys.column(ROW_ADDRESS).to_numpy()[order[options.offset : stop]]
        plain = replace(options, filter=None, order_by=(), limit=None, offset=0)
        yield from take_addresses(self._snapshot, self._fragments, addresses, plain).to_batches()

    def _resize_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches sliced to at most the batch size, or combined to exactly that size."""
        options = self._options
        if options.strict_batch_size:
            yield from _equalize_batches(batches, options.batch_size or STRICT_ROWS)
            return
        for batch in batches:
            yield from cut_batch(batch, options.batch_size, options.batch_size_bytes)


def cut_batch(batch: pa.RecordBatch, rows: int | None, num_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """Yield parts of a batch, of at most `rows` rows and about `num_bytes` bytes each; None is no limit."""
    size = rows or max(batch.num_rows, 1)
    if num_bytes is not None and batch.nbytes:
        size = min(size, max(num_bytes * batch.num_rows // batch.nbytes, 1))
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size) if batch.num_rows > size else batch


def _all_batches(scan: FragmentScan) -> list[pa.RecordBatch]:
    return list(scan.batches())


def _next_batches(scan: FragmentScan | Future[list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    yield from scan.batches() if isinstance(scan, FragmentScan) else scan.result()


def _equalize_batches(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of exactly `size` rows; the last one has the rows that are left."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + rest.num_rows >= size:
            waiting.append(rest.slice(0, size - count))
            rest = rest.slice(size - count)
            yield _combine_batches(waiting)
            waiting, count = [], 0
        if rest.num_rows:
            waiting.append(rest)
            count += rest.num_rows
    if waiting:
        yield _combine_batches(waiting)


def _combine_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of several batches as one; dictionaries that do not fit together are an error that names the column."""
    rows = pa.Table.from_batches(batches)
    return combine_chunks(rows).to_batches()[0] if rows.num_columns else rows_without_columns(rows.num_rows)


def _as_files(value: Any, field: pa.Field) -> Any:
    """A value with files in place of the payloads of blobs, which its described field names."""
    if value is None or not has_descriptions(field):
        return value
    if is_description(field):
        return BlobFile(value)
    return {child.name: _as_files(value[child.name], child) for child in field.type}
