"""ZONEMAP: the smallest and the largest value of each run of rows.

zonemap.lance, one row per zone, in no particular order:

    min, max        the field's type; null if the zone has no value or the type has no order; max is NaN if a value is
    null_count, nan_count   uint32
    fragment_id     uint64
    zone_start      uint64, offset of the zone's first row in its fragment, deleted rows counted
    zone_length     uint64, offset of its last row - that of its first + 1

pylance 0.34 and 0.35 wrote `zone_size`, the rows of a zone, instead of `zone_length`, and no other release reads it:
without the deleted rows the end of a zone is unknown.

The schema's metadata has `rows_per_zone` as a decimal, and `null_bitmap` with the number of a global buffer where the
file has one; the buffer is not used here. Zones of one fragment may overlap, because zones of replaced files are kept.
A row can match if one of its zones can, or if it has no zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import CorruptFileError
from lance_core.index.kinds.zones import Zones, divide
from lance_core.index.query.conditions import Compare, IsIn, IsNan, IsNull, StartsWith, Test
from lance_core.index.query.evaluate import evaluate_test
from lance_core.index.query.rows import ALL, NONE, Bools, Candidates, IndexedRows, Ints, View
from lance_core.index.query.values import combine_to_array, comparable, compute_next_prefix, is_ordered

FILE: Final = "zonemap.lance"
DEFAULT_ROWS_PER_ZONE: Final = 8192
ROWS_PER_ZONE_KEY: Final = "rows_per_zone"
_FEW_VALUES: Final = 16

_COUNTS: Final = ("null_count", "nan_count", "fragment_id", "zone_start", "zone_length")
_DRAFT: Final = (
    "a zone map of pylance 0.34 or 0.35, which records rows of zones instead of lengths; optimize_indices, or "
    "create_scalar_index with replace=True, rebuilds it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneMap(Zones):
    """The zones of a segment.

    Attributes:
        lows: Smallest values.
        highs: Largest values.
        nulls: Nulls of each zone.
        nans: NaNs of each zone.
        rows_per_zone: Live rows of a zone, as requested.
    """

    lows: pa.Array
    highs: pa.Array
    nulls: Ints
    nans: Ints
    rows_per_zone: int = DEFAULT_ROWS_PER_ZONE

    @property
    def nbytes(self) -> int:
        """Approximate memory size."""
        return int(self.lows.nbytes + self.highs.nbytes + 40 * len(self))

    @classmethod
    def from_table(cls, table: pa.Table, metadata: dict[str, str]) -> ZoneMap:
        """Read the rows of a file.

        Raises:
            CorruptFileError: The rows are not zones.
        """
        missing = {"min", "max", *_COUNTS} - set(table.schema.names)
        if missing == {"zone_length"} and "zone_size" in table.schema.names:
            raise CorruptFileError(_DRAFT)
        if missing:
            raise CorruptFileError(f"a zone map without the columns {sorted(missing)}")
        counts = {name: table.column(name).to_numpy().astype(np.int64) for name in _COUNTS}
        if any((values < 0).any() for values in counts.values()):
            raise CorruptFileError("a zone map with a number beyond 2^63")
        if (counts["null_count"] + counts["nan_count"] > counts["zone_length"]).any():
            raise CorruptFileError("a zone map with more nulls than rows")
        lows, highs = (combine_to_array(table.column(name)) for name in ("min", "max"))
        if lows.type != highs.type:
            raise CorruptFileError(f"a zone map with min of type {lows.type} and max of type {highs.type}")
        if is_ordered(lows.type) and _to_truths(pc.greater(lows, highs)).any():
            raise CorruptFileError("a zone map with a smallest value above the largest")
        string = metadata.get(ROWS_PER_ZONE_KEY, str(DEFAULT_ROWS_PER_ZONE))
        if not string.isdecimal() or int(string) < 1:
            raise CorruptFileError(f"a zone map with {string} rows per zone")
        return cls(
            lows=lows,
            highs=highs,
            nulls=counts["null_count"],
            nans=counts["nan_count"],
            fragment_ids=counts["fragment_id"],
            starts=counts["zone_start"],
            lengths=counts["zone_length"],
            rows_per_zone=int(string),
        )

    def fits(self, kind: pa.DataType) -> bool:
        """Whether the zones are of values of that type."""
        return bool(self.lows.type == kind)

    def statistics(self) -> dict[str, object]:
        """Counters, under pylance's names."""
        return {"num_zones": len(self), "rows_per_zone": self.rows_per_zone}

    def to_table(self) -> pa.Table:
        """The rows of a file."""
        schema = pa.schema(
            [
                pa.field("min", self.lows.type),
                pa.field("max", self.highs.type),
                pa.field("null_count", pa.uint32(), nullable=False),
                pa.field("nan_count", pa.uint32(), nullable=False),
                *(pa.field(name, pa.uint64(), nullable=False) for name in _COUNTS[2:]),
            ],
            metadata={ROWS_PER_ZONE_KEY: str(self.rows_per_zone)},
        )
        counts = (self.nulls, self.nans, self.fragment_ids, self.starts, self.lengths)
        columns = [pa.array(values, field.type) for values, field in zip(counts, list(schema)[2:], strict=True)]
        return pa.Table.from_arrays([self.lows, self.highs, *columns], schema=schema)

    def parameters(self) -> dict[str, int]:
        """Its build parameters."""
        return {"rows_per_zone": self.rows_per_zone}

    def answer(self, test: Test, truth: bool, view: View, covered: Bools) -> Candidates | None:
        """The rows for which a test can be true, or false.

        Args:
            test: A test of this field.
            truth: The result of the test.
            view: The fragments.
            covered: The fragments that the zones are trusted for; all rows of others can match.

        Returns:
            The rows; None if zones cannot answer.

        Raises:
            CorruptFileError: The zones contradict the fragments.
        """
        zones = self.find_possible_zones(test, truth=truth)
        return None if zones is None else self.spread(zones, view, covered)

    def certain(self, test: Test, truth: bool, view: View, covered: Bools) -> Candidates | None:
        """The fragments in which a test is true, or false, for every row.

        A zone shows that if it has no nulls, and holds a single value, or values on one side of the test's value.

        Raises:
            CorruptFileError: The zones contradict the fragments.
        """
        if pa.types.is_floating(self.lows.type) or not len(self):
            return None
        chosen = evaluate_test(test, truth, self.lows)
        if chosen is None or isinstance(test, IsNull):
            return None
        has_side = isinstance(test, Compare) and test.operator not in ("equal", "not_equal")
        at_highs = evaluate_test(test, truth, self.highs) if has_side else None
        same = _to_truths(pc.equal(self.lows, self.highs)) if at_highs is None else at_highs
        same = same & (self.nulls == 0) & (self.nans == 0)
        where, order, is_whole = self.layout(view, covered)
        count = len(view.ids)
        failing_zones = np.bincount(where, weights=~(same & chosen)[order], minlength=count)
        certain_fragments = covered & is_whole & (failing_zones == 0)
        return Candidates(np.where(certain_fragments, ALL, NONE).astype(np.uint8))

    def find_possible_zones(self, test: Test, *, truth: bool) -> Bools | None:
        """For each zone, whether the test can be true, or false, for one of its rows."""
        if isinstance(test, IsNull):
            return self.nulls > 0 if truth else self.nulls < self.lengths
        if isinstance(test, IsNan):
            return (self._unsure | (self.nulls < 0)) if truth else None
        unordered = _to_truths(pc.is_null(self.lows))
        # A zone without a smallest value has only nulls and NaN, or its type has no order.
        empty = unordered & (self.nulls + self.nans == self.lengths)
        ordered_zones = self._compare_zones(test, truth=truth)
        if ordered_zones is None:
            return None
        return np.where(unordered, ~empty, ordered_zones) | self._unsure

    @property
    def _unsure(self) -> Bools:
        """Zones with NaN, which libraries order differently."""
        if not pa.types.is_floating(self.highs.type):
            return np.zeros(len(self), np.bool_)
        return (self.nans > 0) | _to_truths(pc.is_nan(self.highs))

    def _compare_zones(self, test: Test, *, truth: bool) -> Bools | None:
        """The zones that `find_possible_zones` returns, for comparisons; undefined for zones without bounds."""
        if isinstance(test, Compare):
            if pa.types.is_floating(test.value.type) and bool(pc.is_nan(_widen(test.value)).as_py()):
                return np.ones(len(self), np.bool_)  # NaN: no comparison is the negation of another one
            operator = test.operator if truth else _OPPOSITE[test.operator]
            return self._compare_bounds(operator, test.value) if comparable(self.lows.type, test.value.type) else None
        if isinstance(test, IsIn):
            return self._find_any_of(test.values) if truth and comparable(self.lows.type, test.values.type) else None
        if isinstance(test, StartsWith) and truth and comparable(self.lows.type, pa.string()):
            kind, after = self.lows.type, compute_next_prefix(test.prefix)
            reaches = _to_truths(pc.greater_equal(self.highs, pa.scalar(test.prefix, kind)))
            return reaches if after is None else reaches & _to_truths(pc.less(self.lows, pa.scalar(after, kind)))
        return None

    def _compare_bounds(self, operator: str, value: pa.Scalar) -> Bools:
        strict = not pa.types.is_floating(self.lows.type) and not pa.types.is_floating(value.type)
        if operator == "not_equal":
            # Libraries treat -0.0 and 0.0 as one value or as two.
            same = pc.and_(pc.equal(self.lows, value), pc.equal(self.highs, value))
            return ~_to_truths(same) if strict else np.ones(len(self), np.bool_)
        tests: list[pa.Array] = []
        if operator in ("equal", "less", "less_equal"):
            below: Callable[..., Any] = pc.less if strict and operator == "less" else pc.less_equal
            tests.append(below(self.lows, value))
        if operator in ("equal", "greater", "greater_equal"):
            above: Callable[..., Any] = pc.greater if strict and operator == "greater" else pc.greater_equal
            tests.append(above(self.highs, value))
        return _to_truths(tests[0]) if len(tests) == 1 else _to_truths(tests[0]) & _to_truths(tests[1])

    def _find_any_of(self, values: pa.Array) -> Bools:
        """Zones that can hold one of some values."""
        possible_zones = np.zeros(len(self), np.bool_)
        if not len(values):
            return possible_zones
        if len(values) <= _FEW_VALUES:
            for value in values:
                possible_zones |= self._compare_bounds("equal", value)
            return possible_zones
        if values.type == self.lows.type and not pa.types.is_floating(values.type):
            constant = _to_truths(pc.equal(self.lows, self.highs))
            possible_zones |= constant & _to_truths(pc.is_in(self.lows, values))
        else:
            constant = possible_zones
        ends = pc.min_max(values)
        if not ends["min"].is_valid:
            return np.ones(len(self), np.bool_)
        between = self._compare_bounds("less_equal", ends["max"]) & self._compare_bounds("greater_equal", ends["min"])
        return possible_zones | (~constant & between)


_OPPOSITE: Final = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}


class ZoneBuilder:
    """Builds a ZONEMAP segment from rows: each zone spans `rows_per_zone` offsets of a fragment.

    Args:
        kind: Type of the values.
        rows_per_zone: Offsets of a zone.
    """

    def __init__(self, kind: pa.DataType, rows_per_zone: int) -> None:
        self._kind = kind
        self._rows_per_zone = rows_per_zone
        self._bounds: list[tuple[Any, Any]] = []
        self._counts: list[tuple[int, int, int, int, int]] = []

    def add(self, fragment_id: int, num_rows: int, parts: Iterable[IndexedRows]) -> None:
        """Add the zones of a fragment: its id, its number of physical rows, and its live rows."""
        for start, length, zone_values in divide(parts, num_rows, self._rows_per_zone):
            values = pa.chunked_array(zone_values, self._kind)
            low, high, nans = _measure_bounds(values)
            self._bounds.append((low, high))
            self._counts.append((values.null_count, nans, fragment_id, start, length))

    def finish(self) -> ZoneMap:
        """The zones."""
        numbers = np.array(self._counts, np.int64).reshape(-1, 5).T
        lows, highs = ([bounds[i] for bounds in self._bounds] for i in (0, 1))
        return ZoneMap(
            lows=pa.array(lows, self._kind),
            highs=pa.array(highs, self._kind),
            nulls=numbers[0],
            nans=numbers[1],
            fragment_ids=numbers[2],
            starts=numbers[3],
            lengths=numbers[4],
            rows_per_zone=self._rows_per_zone,
        )


def _widen(value: pa.Scalar) -> pa.Scalar:
    return value.cast(pa.float32()) if pa.types.is_float16(value.type) else value


def _measure_bounds(values: pa.ChunkedArray) -> tuple[Any, Any, int]:
    """Smallest and largest value as scalars, and the number of NaNs; the largest is NaN if there is a NaN."""
    kind = values.type
    if pa.types.is_duration(kind):
        ends = pc.min_max(values.cast(pa.int64()))
        return ends["min"].cast(kind), ends["max"].cast(kind), 0
    if not pa.types.is_floating(kind):
        ends = pc.min_max(values)
        return ends["min"], ends["max"], 0
    nan = pc.is_nan(values)
    nans = pc.sum(nan).as_py() or 0
    ends = pc.min_max(values.filter(pc.invert(nan)))
    low, high = ends["min"].as_py(), ends["max"].as_py()
    # A bound of zero is widened to -0.0 or 0.0, because -0.0 is less than 0.0 for some libraries.
    low = -0.0 if low == 0 else low
    high = float("nan") if nans else 0.0 if high == 0 else high
    return low, high, nans


def _to_truths(values: Any) -> Bools:
    """Truth values as an array; null is false."""
    truths: Bools = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return truths.astype(np.bool_, copy=False)
