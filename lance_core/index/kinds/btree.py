"""BTREE: all rows in order of their values, in pages.

    page_data.lance     values      the field's type: nulls first, then ascending, NaN last
                        ids         uint64: addresses; of version 0, stable row ids where the dataset has them
    page_lookup.lance   min, max    of each page: its first and last value, so that min is null if it begins with nulls
                        null_count  uint32
                        page_idx    uint32

Page k is the rows from k * batch_size on; batch_size is in the metadata of page_lookup's schema, 4096 by default.

`verify` checks that the values are in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.errors import CorruptFileError
from lance_core.file.pool import in_order, num_threads
from lance_core.index.kinds.row_sets import RowCollector, RowSet, build_row_set, locate_rows
from lance_core.index.kinds.zonemap import ZoneMap
from lance_core.index.query.conditions import Compare, IsIn, IsNan, IsNull, StartsWith, Test
from lance_core.index.query.evaluate import evaluate_test
from lance_core.index.query.rows import Bools, Candidates, Ints, U64s, View
from lance_core.index.query.values import combine_to_array
from lance_core.row_addresses import fragment_ids_of

IDS: Final = "ids"
OLD_IDS: Final = "row_ids"
"""Names of the column of ids, in newer and in older files of pages."""
DATA_FILE: Final = "page_data.lance"
LOOKUP_FILE: Final = "page_lookup.lance"
DEFAULT_PAGE_ROWS: Final = 4096
PAGE_ROWS_KEY: Final = "batch_size"
_FEW_PAGES: Final = 64
_CHECKED_ROWS: Final = 65_536
_SHARE: Final = 1 / 8


@dataclass(kw_only=True)
class BTree:
    """The pages of a segment.

    Attributes:
        pages: Bounds of the pages.
        page_rows: Rows of each page but the last.
        num_rows: All rows.
        load: (ascending rows) -> their values and ids.
        by_id: Whether the ids are stable row ids rather than row addresses.
    """

    pages: ZoneMap
    page_rows: int
    num_rows: int
    load: Callable[[Ints], tuple[pa.Array, U64s]]
    by_id: bool
    _entries: RowSet | None = None

    @property
    def nbytes(self) -> int:
        """Approximate memory size."""
        return self.pages.nbytes

    def fits(self, kind: pa.DataType) -> bool:
        """Whether the values are of that type."""
        return self.pages.fits(kind)

    def statistics(self) -> dict[str, object]:
        """Counters, under pylance's names."""
        lows, highs = self.pages.lows, self.pages.highs
        ends = (lows[0], highs[len(highs) - 1]) if len(highs) else (pa.scalar(None), pa.scalar(None))
        low, high = ("NULL" if not end.is_valid else str(end) for end in ends)
        return {"min": low, "max": high, "num_pages": len(self.pages)}

    def parameters(self) -> dict[str, int]:
        """Its build parameters."""
        return {"zone_size": self.page_rows}

    def fragments(self) -> BitMap | None:
        """The fragments that have entries; None if the entries are by row id."""
        if self.by_id:
            return None
        _, ids = self.read_all()
        return BitMap(np.unique(fragment_ids_of(ids)).tolist())

    def read_all(self) -> tuple[pa.Array, U64s]:
        """All values and ids, in order."""
        return self.load(np.arange(self.num_rows))

    def answer(self, test: Test, truth: bool, view: View, covered: Bools) -> Candidates | None:
        """The rows for which a test is true, or false; see `kinds.Content`."""
        possible = self._find_possible_pages(test, truth=truth)
        if possible is None:
            return None
        self._check_entries(view, covered)
        count = int(possible.sum())
        if count > _FEW_PAGES and count > len(self.pages) * _SHARE:
            return None  # reading the rows themselves is cheaper
        pages = np.flatnonzero(possible)
        rows = (pages[:, np.newaxis] * self.page_rows + np.arange(self.page_rows)).ravel()
        rows = rows[rows < self.num_rows]
        numbers = np.zeros(0, np.uint64)
        if len(rows):
            values, ids = self.load(rows)
            places = pa.array(pages)
            check_page_rows(values, self.pages.lows.take(places), self.pages.highs.take(places), self.page_rows)
            chosen = evaluate_test(test, truth, values)
            assert chosen is not None  # only tests that pages can answer get here
            numbers = np.sort(ids[chosen])
            if (numbers[1:] == numbers[:-1]).any():
                raise CorruptFileError("a BTREE has a row twice")
        return locate_rows(build_row_set(numbers), view, covered, by_id=self.by_id and view.has_row_ids)

    def _check_entries(self, view: View, covered: Bools) -> None:
        """Make sure that the segment can have an entry for each row; in a small segment, for each row of each fragment.

        Raises:
            CorruptFileError: The segment has fewer entries than live rows.
        """
        view.check_entries(covered, self.num_rows)
        if self.num_rows > _CHECKED_ROWS:
            return
        if self._entries is None:
            _, ids = self.read_all()
            self._entries = build_row_set(np.sort(ids))
        entries = locate_rows(self._entries, view, covered, by_id=self.by_id and view.has_row_ids)
        view.check_each(covered, {place: len(rows) for place, rows in entries.rows.items()})

    def _find_possible_pages(self, test: Test, *, truth: bool) -> Bools | None:
        """The pages that can hold a value of which the test is true, or false."""
        if isinstance(test, IsNan) or not isinstance(test, Compare | IsIn | IsNull | StartsWith):
            return None
        return self.pages.find_possible_zones(test, truth=truth)

    def of_fragments(self, view: View, chosen: Bools) -> BTree:
        """The part about some fragments.

        Raises:
            CorruptFileError: The entries are not in order, or contradict the fragments.
        """
        values, ids = self.read_all()
        check_page_rows(values, self.pages.lows, self.pages.highs, self.page_rows)
        self._check_entries(view, chosen)
        if self.by_id and view.has_row_ids:
            row_ids = [view.ids_of(place) for place in np.flatnonzero(chosen).tolist()]
            in_fragments = np.isin(ids, np.concatenate(row_ids)) if row_ids else np.zeros(len(ids), np.bool_)
        else:
            places = view.places(fragment_ids_of(ids))
            in_fragments = (places >= 0) & chosen[places]
        return BTree.of(values.filter(pa.array(in_fragments)), ids[in_fragments], self.page_rows, by_id=self.by_id)

    @classmethod
    def concat(cls, parts: Sequence[BTree], page_rows: int) -> BTree:
        """The union of several indices."""
        everything = [part.read_all() for part in parts]
        values, ids = pa.concat_arrays([v for v, _ in everything]), np.concatenate([i for _, i in everything])
        return cls.of(*_sort_rows(values, ids), page_rows, by_id=parts[0].by_id)

    @classmethod
    def of(cls, values: pa.Array, ids: U64s, page_rows: int, *, by_id: bool = False) -> BTree:
        """An index over values in memory, in order."""

        def load(rows: Ints) -> tuple[pa.Array, U64s]:
            return (values, ids) if len(rows) == len(ids) else (values.take(pa.array(rows)), ids[rows])

        starts = np.arange(0, len(ids), page_rows)
        stops = np.minimum(starts + page_rows, len(ids))
        nulls = np.clip(values.null_count - starts, 0, stops - starts)
        lows, highs = values.take(pa.array(starts)), values.take(pa.array(stops - 1))
        pages = _collect_page_bounds(lows, highs, nulls, stops - starts)
        return cls(pages=pages, page_rows=page_rows, num_rows=len(ids), load=load, by_id=by_id)

    def lookup_table(self) -> pa.Table:
        """The rows of page_lookup.lance."""
        schema = pa.schema(
            [
                pa.field("min", self.pages.lows.type),
                pa.field("max", self.pages.lows.type),
                pa.field("null_count", pa.uint32(), nullable=False),
                pa.field("page_idx", pa.uint32(), nullable=False),
            ],
            metadata={PAGE_ROWS_KEY: str(self.page_rows), "range_partitioned": "false"},
        )
        counts = pa.array(self.pages.nulls, pa.uint32())
        numbers = pa.array(range(len(self.pages)), pa.uint32())
        return pa.Table.from_arrays([self.pages.lows, self.pages.highs, counts, numbers], schema=schema)

    def data_table(self) -> pa.Table:
        """The rows of page_data.lance."""
        values, ids = self.read_all()
        schema = pa.schema([pa.field("values", values.type), pa.field(IDS, pa.uint64(), nullable=False)])
        return pa.Table.from_arrays([values, pa.array(ids)], schema=schema)


def from_lookup(
    table: pa.Table,
    metadata: dict[str, str],
    num_rows: int,
    load: Callable[[Ints], tuple[pa.Array, U64s]],
    *,
    by_id: bool,
) -> BTree:
    """The index, from the content of its files.

    Raises:
        CorruptFileError: The files contradict each other.
    """
    missing = {"min", "max", "null_count", "page_idx"} - set(table.schema.names)
    string = metadata.get(PAGE_ROWS_KEY, str(DEFAULT_PAGE_ROWS))
    if missing or not string.isdecimal() or int(string) < 1:
        raise CorruptFileError(f"a BTREE without {sorted(missing) or 'a number of rows per page'}")
    size = int(string)
    if metadata.get("range_partitioned", "false") != "false":
        raise CorruptFileError("a range-partitioned BTREE, which is not supported")
    table = table.combine_chunks()
    order = table.column("page_idx").to_numpy().astype(np.int64)
    starts = np.arange(len(order)) * size
    if (order != np.arange(len(order))).any() or len(order) != -(-num_rows // size):
        raise CorruptFileError(f"a BTREE with {len(order)} pages of {size} for {num_rows} rows")
    lows, highs = (combine_to_array(table.column(name)) for name in ("min", "max"))
    nulls = table.column("null_count").to_numpy().astype(np.int64)
    lengths = np.minimum(starts + size, num_rows) - starts
    check_bounds(lows, highs, nulls, lengths)
    pages = _collect_page_bounds(lows, highs, nulls, lengths)
    return BTree(pages=pages, page_rows=size, num_rows=num_rows, load=load, by_id=by_id)


# The least number of values that a thread sorts, the most at a time, and how many are looked at to divide them.
_LEAST_SORTED: Final = 65_536
_MOST_SORTED: Final = 1_000_000
_MOST_SPANS: Final = 32
_SAMPLE: Final = 4096


class BTreeBuilder(RowCollector):
    """Builds a BTREE segment from rows.

    Args:
        kind: Type of the values.
        page_rows: Rows of a page.
    """

    def __init__(self, kind: pa.DataType, page_rows: int) -> None:
        super().__init__(kind)
        self._page_rows = page_rows

    def finish(self) -> BTree:
        """The rows in order."""
        return BTree.of(*_sort_rows(*self.collect()), self._page_rows)


def _sort_rows(values: pa.Array, ids: U64s) -> tuple[pa.Array, U64s]:
    """Rows in order of values, nulls first; equal values in order of ids."""
    if len(ids) and (ids[1:] < ids[:-1]).any():
        first = np.argsort(ids, kind="stable")
        values, ids = values.take(pa.array(first)), ids[first]
    if pa.types.is_floating(values.type):
        order = _sort_floats(values)
    elif pa.types.is_integer(values.type) and not values.null_count:
        order = _sort_integers(values.to_numpy())
    else:
        order = pc.array_sort_indices(values, null_placement="at_start").to_numpy()
    return values.take(pa.array(order)), ids[order]


def _sort_floats(values: pa.Array) -> Any:
    """Nulls, then numbers with -0.0 before 0.0, then NaN."""
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    bits = numbers.view(f"i{numbers.itemsize}")
    limits = np.iinfo(bits.dtype)
    keys = bits ^ ((bits >> (limits.bits - 1)) & limits.max)  # as integers, negative numbers are in reverse order
    is_nan = np.isnan(numbers)
    keys[is_nan] = limits.max - np.signbit(numbers[is_nan])
    keys[pc.is_null(values).to_numpy(zero_copy_only=False)] = limits.min
    return _sort_integers(keys)


def _sort_integers(keys: Any) -> Any:
    """The order of integers, equal ones as they come; each thread sorts those between two bounds at a time."""
    if bool((keys[1:] >= keys[:-1]).all()):
        return np.arange(len(keys))
    spans = max(min(num_threads(), len(keys) // _LEAST_SORTED), min(len(keys) // _MOST_SORTED, _MOST_SPANS), 1)
    sample = np.sort(keys[:: max(len(keys) // _SAMPLE, 1)])
    bounds = np.unique(sample[len(sample) * np.arange(1, spans) // spans]).tolist()

    def sort(span: tuple[int | None, int | None]) -> Any:
        low, high = span
        is_inside = np.ones(len(keys), np.bool_) if low is None else keys >= low
        if high is not None:
            is_inside &= keys < high
        places = np.flatnonzero(is_inside)
        return places[_sort_span(keys[places])]

    return np.concatenate(list(in_order(sort, pairwise([None, *bounds, None])))) if bounds else _sort_span(keys)


def _sort_span(keys: Any) -> Any:
    """The order of integers, equal ones as they come: numpy's stable sort takes twice as long."""
    order = np.argsort(keys)
    ordered = keys[order]
    run = np.zeros(len(keys), np.int64)
    np.cumsum(ordered[1:] != ordered[:-1], out=run[1:])
    run *= len(keys)
    order += run
    order.sort()
    order -= run
    return order


def _collect_page_bounds(lows: pa.Array, highs: pa.Array, nulls: Ints, lengths: Ints) -> ZoneMap:
    zeros = np.zeros(len(lengths), np.int64)
    return ZoneMap(lows=lows, highs=highs, nulls=nulls, nans=zeros, fragment_ids=zeros, starts=zeros, lengths=lengths)


def check_bounds(lows: pa.Array, highs: pa.Array, nulls: Ints, lengths: Ints) -> None:
    """Make sure that the pages of a BTREE are in order, by the bounds of each page.

    Args:
        lows: The first value of each page.
        highs: The last value of each page.
        nulls: Nulls of each page.
        lengths: Rows of each page.

    Raises:
        CorruptFileError: The bounds of two pages are out of order.
    """
    is_low = np.asarray(pc.is_null(lows)) == (nulls > 0)
    is_high = np.asarray(pc.is_null(highs)) == ((nulls == lengths) & (lengths > 0))
    if not bool(is_low.all() and is_high.all()) or not _is_ascending(_interleave(lows, highs)):
        raise CorruptFileError("the pages of a BTREE are not in the order of their bounds")


def check_page_rows(values: pa.Array, lows: pa.Array, highs: pa.Array, page_rows: int) -> None:
    """Make sure that the rows of some pages are in order, and within the bounds of their pages.

    Args:
        values: The values, page after page; all pages but the last have `page_rows`.
        lows: The first value of each page.
        highs: The last value of each page.
        page_rows: Rows of a page.

    Raises:
        CorruptFileError: A value is out of order, or outside the bounds of its page.
    """
    starts = np.arange(0, len(values), page_rows)
    stops = np.minimum(starts + page_rows, len(values))
    ends = _interleave(values.take(pa.array(starts)), values.take(pa.array(stops - 1)))
    if not _is_ascending(values) or not _replace_nan(ends).equals(_replace_nan(_interleave(lows, highs))):
        raise CorruptFileError("the rows of a BTREE are not in order, or not within the bounds of their page")


def _interleave(lows: pa.Array, highs: pa.Array) -> pa.Array:
    """The bounds of all pages in one array: low and high of the first page, then of the second page, and so on."""
    places = np.arange(2 * len(lows)).reshape(2, -1).T.ravel()
    return pa.concat_arrays([lows, highs]).take(pa.array(places))


def _replace_nan(values: pa.Array) -> pa.Array:
    """The values with infinity instead of NaN, which equals no value."""
    if not pa.types.is_floating(values.type) or pa.types.is_float16(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(float("inf"), values.type), values)


def _is_ascending(values: pa.Array) -> bool:
    """Whether nulls come first, and no value is less than the one before it."""
    kind = values.type
    if pa.types.is_float16(kind):
        return True  # Arrow cannot compare these values
    rest = _replace_nan(values.slice(values.null_count))
    if rest.null_count:
        return False
    if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        numbers: Any = rest.to_numpy()
        return bool((numbers[1:] >= numbers[:-1]).all())
    return bool(pc.all(pc.less_equal(rest.slice(0, max(len(rest) - 1, 0)), rest.slice(1)), min_count=0).as_py())
