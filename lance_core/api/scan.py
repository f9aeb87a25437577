"""Scans: which rows of which fragments, then batch by batch.

    plan      fragments, limit and offset -> rows of each fragment                          (pure)
    read      a fragment's rows -> batches, minus deleted rows, minus rows that the filter drops
    finish    computed columns, order of columns, extension types, size of batches

With an order, the columns that it needs are read and sorted first, then the others in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.api.fragment_scan import FragmentScan
from lance_core.api.joined_scan import joined
from lance_core.api.ordering import order_of
from lance_core.api.projection import Projection, with_types
from lance_core.api.read import live_count, live_counts
from lance_core.api.row_columns import ROW_ADDRESS, ROW_ID
from lance_core.api.scan_options import ScanOptions
from lance_core.api.source import Source
from lance_core.api.take import take_addresses
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Schema, resolve_extensions, schema_to_arrow
from lance_core.table.fragment import Fragment

__all__ = ["ROW_ADDRESS", "ROW_ID", "LanceScanner", "ScanOptions", "live_count", "with_types"]

STRICT_ROWS: Final = 8192
"""Rows per batch where they must be equal and no number is given."""


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
        return self._options.result_schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """All columns of the dataset."""
        return resolve_extensions(schema_to_arrow(self._source.manifest.schema))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in order of fragments and rows unless another was asked for.

        Memory is bounded by a few batches; with an order, by the result and the columns that it is ordered by.
        """
        return self._batches(self.projected_schema)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        projection = self._options.result
        if self._options.order_by:
            finished: Iterator[pa.RecordBatch] = self._ordered()
        else:
            finished = (projection.apply(batch, schema) for batch in self._stored())
        return self._sized(finished)

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow reader."""
        schema = self.projected_schema
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def to_table(self) -> pa.Table:
        """All rows as one table."""
        schema = self.projected_schema
        return pa.Table.from_batches(self._batches(schema), schema=schema)

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a pandas frame; options as `pyarrow.Table.to_pandas`."""
        return self.to_table().to_pandas(**options)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows; no more than those are read."""
        limit = num_rows if self._options.limit is None else min(num_rows, self._options.limit)
        return LanceScanner(self._source, self._fragments, replace(self._options, limit=limit)).to_table()

    def take(self, indices: Sequence[int]) -> pa.Table:
        """Rows of the result by position, in the order asked for.

        Raises:
            InvalidInputError: A position lies outside.
        """
        table = self.to_table()
        wanted = np.asarray(indices, dtype=np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < table.num_rows):
            raise InvalidInputError(f"a position lies outside the {table.num_rows} rows")
        return table.take(pa.array(wanted))

    def count_rows(self) -> int:
        """Number of rows; without a filter nothing but metadata is read."""
        options = self._options
        if options.filter is None:
            total = sum(
                map(self._count, self._fragments)
                if options.include_deleted_rows
                else live_counts(self._source, self._fragments)
            )
        else:
            narrow = replace(
                options, schema=Schema(fields=()), projection=None, order_by=(), limit=None, offset=0, batch_size=None
            )
            batches = LanceScanner(self._source, self._fragments, narrow)._stored()  # noqa: SLF001 - the same class
            total = sum(batch.num_rows for batch in batches)
        total = max(total - options.offset, 0)
        return total if options.limit is None else min(total, options.limit)

    def explain_plan(self, verbose: bool = False) -> NoReturn:
        """Plans of DataFusion: not offered.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(f"explain_plan(verbose={verbose}): scans here have no plans of DataFusion")

    def analyze_plan(self) -> NoReturn:
        """Measured plans of DataFusion: not offered.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("analyze_plan: scans here have no plans of DataFusion")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Serve the rows to whatever speaks Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _count(self, fragment: Fragment) -> int:
        """Rows of a fragment before any filter."""
        if not self._options.include_deleted_rows:
            return live_count(self._source, fragment)
        return FragmentScan(self._source, fragment, self._options).num_rows

    def _parts(self) -> Iterator[tuple[Fragment, range | None]]:
        """The fragments to read, and which of their live rows; None stands for all of them."""
        options = self._options
        if options.filter is not None or (options.limit is None and not options.offset):
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

    def _stored(self) -> Iterator[pa.RecordBatch]:
        """All batches as they were read, in order of fragments and rows."""
        options = self._options
        if options.limit is None and not options.offset:
            return self._read_ahead()
        if options.filter is not None:
            return self._limited()
        scans = ((FragmentScan(self._source, fragment, options), part) for fragment, part in self._parts())
        return (batch for scan, part in scans for batch in scan.batches(part))

    def _limited(self) -> Iterator[pa.RecordBatch]:
        """The batches of rows that match, as they were read, cut by limit and offset."""
        skip, left = self._options.offset, self._options.limit
        for fragment in self._fragments:
            if left == 0:
                return
            most = None if left is None else skip + left
            for batch in FragmentScan(self._source, fragment, self._options).batches(most=most):
                kept = batch.slice(min(skip, batch.num_rows))
                skip -= batch.num_rows - kept.num_rows
                if left is not None:
                    kept = kept.slice(0, left)
                    left -= kept.num_rows
                if kept.num_rows:
                    yield kept
                if left == 0:
                    return

    def _read_ahead(self) -> Iterator[pa.RecordBatch]:
        """All batches of all fragments; small fragments of a store that is far away are read side by side."""
        scans = joined(FragmentScan(self._source, fragment, self._options) for fragment in self._fragments)
        if self._options.fragment_readahead < 2 or len(self._fragments) < 2:
            for scan in scans:
                yield from scan.batches()
            return
        waiting: deque[FragmentScan | Future[list[pa.RecordBatch]]] = deque()
        pool = ThreadPoolExecutor(self._options.fragment_readahead, thread_name_prefix="lance-fragment")
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

    def _ordered(self) -> Iterator[pa.RecordBatch]:
        """The rows in order: sort by the columns of the order alone, then read the rest of the rows that are left."""
        options = self._options
        paths = [ordering.column_name for ordering in options.order_by]
        dataset = self._source.manifest.schema
        tops = Schema(fields=tuple(f for f in dataset.fields if f.name in {_top(dataset, path) for path in paths}))
        keys = Projection.of(tops, list(dict.fromkeys(paths)))
        narrow = ScanOptions(
            schema=keys.schema,
            projection=keys if keys.outputs is not None else None,
            filter=options.filter,
            with_row_address=True,
            late_materialization=options.late_materialization,
        )
        found = LanceScanner(self._source, self._fragments, narrow).to_table()
        stop = None if options.limit is None else options.offset + options.limit
        order = order_of([_storage(found.column(path)) for path in paths], options.order_by, stop)
        addresses = found.column(ROW_ADDRESS).to_numpy()[order[options.offset : stop]]
        plain = replace(options, filter=None, order_by=(), limit=None, offset=0)
        yield from take_addresses(self._source, self._fragments, addresses, plain).to_batches()

    def _sized(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches cut to size, or put together to exactly that size."""
        options = self._options
        if options.strict_batch_size:
            yield from _equal(batches, options.batch_size or STRICT_ROWS)
            return
        for batch in batches:
            size = options.batch_size or max(batch.num_rows, 1)
            if options.batch_size_bytes is not None and batch.nbytes:
                size = min(size, max(options.batch_size_bytes * batch.num_rows // batch.nbytes, 1))
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size) if batch.num_rows > size else batch


def _all_batches(scan: FragmentScan) -> list[pa.RecordBatch]:
    return list(scan.batches())


def _next_batches(scan: FragmentScan | Future[list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    yield from scan.batches() if isinstance(scan, FragmentScan) else scan.result()


def _equal(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Batches of exactly `size` rows; the last one of what is left."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + rest.num_rows >= size:
            waiting.append(rest.slice(0, size - count))
            rest = rest.slice(size - count)
            yield pa.concat_batches(waiting)
            waiting, count = [], 0
        if rest.num_rows:
            waiting.append(rest)
            count += rest.num_rows
    if waiting:
        yield pa.concat_batches(waiting)


def _top(schema: Schema, path: str) -> str:
    """The top-level column of a path."""
    return path if path in schema.names else schema.project([path]).fields[0].name


def _storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    return pc.cast(column, kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else column
