"""Slices: named, disjoint parts of a table, defined by the values of a few columns.

A slice is a set of rows that is written as a whole, such as a partition of an orchestrator, or the rows of a
`replaceWhere` in other table formats. Conditions are typed values, which are compared by the rules of the column's
type. They become strings only in messages and in what a commit records.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import checked_methods
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.file.write_plan import check_utf8
from lance_core.index.query.conditions import All, Compare, parse_condition
from lance_core.table.filled_slices import REPLACED_ROWS_KEY, FilledSlice, slice_digest, slice_properties

_Codes = npt.NDArray[np.int64]

OUTSIDE: Final = -1
"""The position that `Slices.assign` gives to a row in no slice."""

_NAMED: Final = 5
"""Most slices and values that a message names."""
_LOOKED_AT: Final = 1000
"""Most rows that are searched for values to name."""


@dataclass(frozen=True, slots=True)
class Equals:
    """The column has this value; with None it is null."""

    value: Any


@dataclass(frozen=True, slots=True)
class Between:
    """The column lies in `start` .. `end`, end excluded. For integers, floats, dates (date32) and timestamps."""

    start: Any
    end: Any


Condition = Equals | Between


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A named part of a table.

    Attributes:
        name: Its name in results and messages.
        conditions: A condition for each column; all must hold.
    """

    name: str
    conditions: Mapping[str, Condition]


def _format_value(value: object) -> str:
    """A value for messages: dates and times as such."""
    return str(value) if isinstance(value, dt.date) else repr(value)


@dataclass(frozen=True, slots=True)
@checked_methods
class Slices:
    """Disjoint slices over the same columns.

    Args:
        slices: The slices.
        owner: The owner of the slices, which messages about rows outside of them name before the table.
        outside: Part of these messages: what is wrong with such rows; `{count}` stands for the number of slices.
        remedy: Part of these messages: how to write such rows nevertheless.

    Raises:
        InvalidInputError: There are no slices, or they are not over the same columns.

    Examples:
        >>> slices = Slices([Slice(name=x, conditions={"k": Equals(i)}) for i, x in enumerate("ab", 1)])
        >>> slices.assign(pa.table({"k": [2, 7, 1]})).tolist()
        [1, -1, 0]
    """

    slices: tuple[Slice, ...]
    owner: str | None = field(compare=False)
    outside: str = field(compare=False)
    remedy: str = field(compare=False)
    _lookup: tuple[pa.Schema, _Codes, _Steps] | None = field(compare=False, repr=False)
    """What `assign` has built for the last schema, since many batches have the same one."""

    def __init__(
        self,
        slices: Iterable[Slice],
        *,
        owner: str | None = None,
        outside: str = "lie in none of the {count} slices that are written",
        remedy: str = "write them as well with out_of_partition='allow'",
    ) -> None:
        object.__setattr__(self, "slices", tuple(slices))
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "outside", outside)
        object.__setattr__(self, "remedy", remedy)
        object.__setattr__(self, "_lookup", None)
        if not self.slices:
            raise InvalidInputError("no slice was given")
        for part in self.slices:
            if tuple(part.conditions) != self.columns:
                raise InvalidInputError(
                    f"slice {part.name!r} is over {list(part.conditions)}, not {list(self.columns)}"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the slices are defined by."""
        return tuple(self.slices[0].conditions)

    @property
    def names(self) -> list[str]:
        """Names of the slices, in order."""
        return [part.name for part in self.slices]

    def counted(self, rows: Mapping[int, int]) -> dict[str, int]:
        """The number of rows by name of the slice, given the numbers by position; 0 for slices without rows."""
        return {part.name: rows.get(position, 0) for position, part in enumerate(self.slices)}

    def identities(self) -> list[str]:
        """A digest of each slice's conditions, equal for equal slices in any process."""
        return [slice_digest(_describe_conditions(part)) for part in self.slices]

    def properties(self) -> dict[str, str]:
        """The transaction properties by which a commit records the slices."""
        return slice_properties(FilledSlice(part.name, _describe_conditions(part)) for part in self.slices)

    def check(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be assigned to the slices exactly.

        Raises:
            SchemaError: A column is missing, or of a type that cannot hold the values exactly.
            InvalidInputError: Slices overlap.
        """
        self._build_lookup(schema)

    def assign(self, batch: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int32]:
        """The position of the slice that each row lies in, `OUTSIDE` (-1) for none.

        Nulls lie only in slices of `Equals(None)`.

        Raises:
            SchemaError: A column is missing, or of a type that cannot hold the values exactly.
            InvalidInputError: Slices overlap.
        """
        lookup = self._lookup
        if lookup is None or not lookup[0].equals(batch.schema):
            lookup = (batch.schema, *self._build_lookup(batch.schema))
            object.__setattr__(self, "_lookup", lookup)
        _, codes, steps = lookup
        code = np.zeros(batch.num_rows, dtype=np.int64)
        outside = np.zeros(batch.num_rows, dtype=bool)
        for conditions, known_pairs in steps:
            places = conditions.find(batch.column(conditions.name))
            pair = code * conditions.count + places
            code = np.minimum(np.searchsorted(known_pairs, pair), len(known_pairs) - 1)
            outside |= (places < 0) | (known_pairs[code] != pair)
        return np.where(outside, OUTSIDE, np.argsort(codes)[code]).astype(np.int32)

    def assign_all(self, batch: pa.RecordBatch | pa.Table, uri: str) -> npt.NDArray[np.int32]:
        """The position of the slice that each row lies in, as `assign` returns it; all rows must lie in slices.

        Args:
            batch: The rows.
            uri: The table that they are written to.

        Raises:
            SchemaError: A column is missing, or of a type that cannot hold the values exactly, or has a string that is
                not UTF-8.
            InvalidInputError: A row lies in no slice; the message names some of the values, and the remedy.
        """
        positions = self.assign(batch)
        outside = np.flatnonzero(positions < 0)
        if not len(outside):
            return positions
        check_utf8(batch.select(self.columns))
        names, shown_names = self.names, self._shown_names
        columns = [batch.column(name).take(pa.array(outside[:_LOOKED_AT])) for name in self.columns]
        rows = dict.fromkeys(
            " and ".join(f"{name} = {_format_value(value)}" for name, value in zip(self.columns, row, strict=True))
            for row in zip(*(column.to_pylist() for column in columns), strict=True)
        )
        examples = "; ".join(list(rows)[:_NAMED]) + ("; .." if len(rows) > _NAMED else "")
        where = f"table {uri}" if self.owner is None else f"{self.owner}, table {uri}"
        raise InvalidInputError(
            f"{where}: at least {len(outside)} rows {self.outside.format(count=len(names))} ({shown_names}): they have "
            f"{examples}. Nothing was written. Filter them out, or {self.remedy}."
        )

    def reject_match(self, key: str, row: Mapping[str, object], uri: str) -> NoReturn:
        """Reject a merge that would update or delete a row outside of the slices.

        Args:
            key: The key of the row, for the message.
            row: The values of the row by column, at least those of the columns of the slices.
            uri: The table.

        Raises:
            InvalidInputError: The row lies in none of the slices, as the caller has found out before the call.
        """
        values = " and ".join(f"{name} = {_format_value(row[name])}" for name in self.columns)
        where = f"table {uri}" if self.owner is None else f"{self.owner}, table {uri}"
        columns = ", ".join(map(repr, self.columns))
        raise InvalidInputError(
            f"{where}: the key {key} is in the table in a row with {values}. Rows like that "
            f"{self.outside.format(count=len(self.slices))} ({self._shown_names}), and a merge replaces or deletes the "
            f"rows that it matches. Nothing was written. Add {columns} to the key, so that each partition has keys of "
            f"its own; leave that key out; or {self.remedy}."
        )

    @property
    def _shown_names(self) -> str:
        names = self.names
        return ", ".join(map(repr, names)) if len(names) <= _NAMED else f"{names[0]!r} .. {names[-1]!r}"

    def expression(self, schema: pa.Schema) -> pc.Expression:
        """The condition that is true for the rows of all slices, over data of this schema.

        Raises:
            SchemaError: A column is missing, or of a type that cannot hold the values exactly.
            InvalidInputError: Slices overlap.
        """
        self.check(schema)
        rows = [tuple(part.conditions[name] for name in self.columns) for part in self.slices]
        return _expression([schema.field(name) for name in self.columns], rows)

    def _build_lookup(self, schema: pa.Schema) -> tuple[_Codes, _Steps]:
        """A code for each slice, and for each column its conditions and the pairs that occur among the slices.

        The code of a slice for its first columns and the position of its condition on the next column (the digit) make
        a pair. The rank of the pair among those that occur is the next code: codes stay below the number of slices.
        """
        codes: _Codes = np.zeros(len(self.slices), dtype=np.int64)
        steps = []
        for name in self.columns:
            conditions = _column_conditions(schema, name, [s.conditions[name] for s in self.slices])
            pairs, codes = np.unique(codes * conditions.count + conditions.digits, return_inverse=True)
            steps.append((conditions, pairs))
        counts = np.bincount(codes)
        if len(counts) < len(codes):
            clash = np.flatnonzero(codes == np.argmax(counts))[:2]
            names = [self.slices[i].name for i in clash]
            raise InvalidInputError(f"slices {names[0]!r} and {names[1]!r} hold the same rows; leave one of them out")
        return codes, steps


@dataclass(frozen=True, slots=True)
class _Equal:
    """Equality conditions of one column: the distinct values, and the position of each slice's value."""

    name: str
    values: pa.Array
    digits: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.values)

    def find(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
        """The position of each row's value among the conditions, -1 if it is not among them."""
        positions = pc.index_in(_of_equal_floats(column), value_set=self.values)
        return _as_numpy(pc.fill_null(positions, -1)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Range conditions of one column, disjoint and ascending; dates and timestamps are the integers that store them."""

    name: str
    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    digits: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.starts)

    def find(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
        """The position of the range that each row lies in, -1 for none."""
        values = _as_numpy(pc.fill_null(_as_physical(column), 0))
        valid = _as_numpy(pc.is_valid(column))
        place = np.searchsorted(self.starts, values, side="right") - 1
        inside = valid & (place >= 0) & (values < self.ends[np.maximum(place, 0)])
        return np.where(inside, place, OUTSIDE)


_Steps = list[tuple[_Equal | _Ranges, _Codes]]


def _column_conditions(schema: pa.Schema, name: str, conditions: list[Condition]) -> _Equal | _Ranges:
    kind = _column_type(schema, name)
    if all(isinstance(c, Equals) for c in conditions):
        equal_values = [c.value for c in conditions if isinstance(c, Equals)]
        values = pa.array([v if v is None else _check_exact(v, kind, name) for v in equal_values], type=kind)
        encoded = _of_equal_floats(values).dictionary_encode("encode")
        return _Equal(name, encoded.dictionary, _as_numpy(encoded.indices).astype(np.int64))
    if not all(isinstance(c, Between) for c in conditions):
        raise InvalidInputError(f"column {name!r}: some slices give a value and others a range")
    return _build_ranges(name, kind, [c for c in conditions if isinstance(c, Between)])


def _build_ranges(name: str, kind: pa.DataType, conditions: list[Between]) -> _Ranges:
    types = pa.types
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_date32(kind) or types.is_timestamp(kind)):
        raise SchemaError(f"column {name!r} of type {kind} cannot be divided into ranges")
    bounds = [(_check_exact(c.start, kind, name), _check_exact(c.end, kind, name)) for c in conditions]
    starts = _as_numpy(_as_physical(pa.array([start for start, _ in bounds], type=kind)))
    ends = _as_numpy(_as_physical(pa.array([end for _, end in bounds], type=kind)))
    if (starts >= ends).any():
        raise InvalidInputError(f"column {name!r}: range {conditions[int(np.argmax(starts >= ends))]} is empty")
    unique, digits = np.unique(np.stack([starts, ends]), axis=1, return_inverse=True)
    if (unique[0, 1:] < unique[1, :-1]).any():
        raise InvalidInputError(f"column {name!r}: ranges overlap")
    return _Ranges(name, unique[0], unique[1], digits.astype(np.int64).reshape(-1))


def _column_type(schema: pa.Schema, name: str) -> pa.DataType:
    position = schema.get_field_index(name)
    if position < 0:
        raise SchemaError(f"no column {name!r}, which the slices name; the columns are {schema.names}")
    kind = schema.field(position).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _check_exact(value: object, kind: pa.DataType, name: str) -> object:
    """The value, after a check that the column's type represents it without loss."""
    if value is None:
        raise InvalidInputError(f"column {name!r}: null is not a bound of a range")
    if pa.types.is_timestamp(kind):
        aware = isinstance(value, dt.datetime) and value.tzinfo is not None
        if not isinstance(value, dt.datetime) or aware != (kind.tz is not None):
            requirement = "a time with a zone" if kind.tz is not None else "a time without a zone"
            raise SchemaError(f"column {name!r} of type {kind} needs {requirement}, not {value!r}")
    elif pa.types.is_date(kind) and isinstance(value, dt.datetime):
        raise SchemaError(f"column {name!r} of type {kind} needs a date, not the time {value!r}")
    try:
        stored = pa.scalar(value, type=kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as error:
        raise SchemaError(f"column {name!r} of type {kind} cannot hold {value!r}") from error
    if stored != value and not (_is_nan(stored) and _is_nan(value)):
        raise SchemaError(f"column {name!r} of type {kind} holds {value!r} only as {stored!r}")
    return value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _of_equal_floats(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Floats with 0.0 for -0.0, and one NaN for all: these count as equal."""
    if not pa.types.is_floating(values.type):
        return values
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())  # Arrow has no kernels for half floats
    return pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), pc.add(values, pa.scalar(0.0, values.type)))


def _as_physical(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Dates and timestamps as the integers that store them."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _as_physical(pc.cast(values, kind.value_type))
    if pa.types.is_date32(kind):
        return pc.cast(values, pa.int32())
    return pc.cast(values, pa.int64()) if pa.types.is_timestamp(kind) else values


def _as_numpy(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    if isinstance(values, pa.ChunkedArray):
        return np.asarray(values.to_numpy())
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _expression(fields: list[pa.Field], rows: list[tuple[Condition, ...]]) -> pc.Expression:
    """The condition that at least one row of conditions is met, factored by the first column so that it stays small."""
    by_first: dict[Condition, list[tuple[Condition, ...]]] = {}
    for first, *rest in rows:
        by_first.setdefault(first, []).append(tuple(rest))
    by_rest: dict[frozenset[tuple[Condition, ...]], list[Condition]] = {}
    for first, rests in by_first.items():
        by_rest.setdefault(frozenset(rests), []).append(first)
    terms = []
    for rests_key, firsts in by_rest.items():
        term = _any_of(fields[0], firsts)
        if len(fields) > 1:
            ordered = [row for row in by_first[firsts[0]] if row in rests_key]
            term = and_(term, _expression(fields[1:], ordered))
        terms.append(term)
    return reduce(or_, terms)


def _any_of(field: pa.Field, conditions: list[Condition]) -> pc.Expression:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    column = pc.field(field.name)
    equal_values = [c.value for c in conditions if isinstance(c, Equals)]
    if equal_values:
        values = [value for value in equal_values if value is not None]
        terms = [column.isin(pa.array(values, type=kind))] if values else []
        return reduce(or_, [*terms, *([column.is_null()] if len(values) < len(equal_values) else [])])
    merged: list[tuple[Any, Any]] = []
    for start, end in sorted((c.start, c.end) for c in conditions if isinstance(c, Between)):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    ranges = ((column >= pa.scalar(start, type=kind)) & (column < pa.scalar(end, type=kind)) for start, end in merged)
    return reduce(or_, ranges)


def describe_replaced_rows(condition: pc.Expression) -> dict[str, str]:
    r"""The transaction properties by which a commit records that it replaces the rows that meet a condition.

    Another commit that replaced rows meanwhile, or filled slices, conflicts with it unless a column is compared with
    constants in both so that no value meets both. Parts of the condition besides comparisons joined by AND are ignored.

    Examples:
        >>> lance.describe_replaced_rows(pc.field("day") == "d1")
        {'lance.replaced_rows': '[["day", "Equals", ["str", "\'d1\'"]]]'}
    """
    parsed = parse_condition(condition)
    conditions: dict[str, Condition] = {}
    for test in parsed.parts if isinstance(parsed, All) else (parsed,):
        if isinstance(test, Compare) and len(test.path) == 1:
            name, bounds = str(test.path[0]), _bounds(test)
            earlier = conditions.get(name)
            if isinstance(bounds, Between) and isinstance(earlier, Between):
                bounds = Between(max(earlier.start, bounds.start), min(earlier.end, bounds.end))
            if bounds is not None and not isinstance(earlier, Equals):
                conditions[name] = bounds
    return {REPLACED_ROWS_KEY: json.dumps(_describe_conditions(Slice(name="", conditions=conditions)))}


_LIMITS: Final[Mapping[type, tuple[Any, Any]]] = {
    **dict.fromkeys((int, float), (-math.inf, math.inf)),
    dt.date: (dt.date.min, dt.date.max),
    dt.datetime: (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)),  # noqa: DTZ001 - a zone is left out
}
"""Bounds below and above all values of a type."""


def _bounds(test: Compare) -> Condition | None:
    """The values for which a comparison is true, or some more; None for those that are not a range."""
    try:
        value = test.value.as_py()
    except ValueError:
        return None  # nanoseconds, which Python's times do not have
    if test.operator == "equal":
        return Equals(value)
    if type(value) not in _LIMITS or value != value or test.operator == "not_equal":  # noqa: PLR0124 - detects NaN
        return None
    value = value.astimezone(dt.UTC).replace(tzinfo=None) if isinstance(value, dt.datetime) and value.tzinfo else value
    lowest, highest = _LIMITS[type(value)]
    bound = _next_value(value) if test.operator in ("greater", "less_equal") else value
    return Between(bound, highest) if test.operator.startswith("greater") else Between(lowest, bound)


def _next_value(value: Any) -> Any:
    """The next value of the type."""
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    if isinstance(value, int):
        return value + 1
    step = dt.timedelta(microseconds=1) if isinstance(value, dt.datetime) else dt.timedelta(days=1)
    return value if value == type(value).max else value + step


def _describe_conditions(item: Slice) -> list[Any]:
    """A slice's conditions as strings, with the Python types of their values; times with a zone are taken in UTC."""
    parts = []
    for name, condition in sorted(item.conditions.items()):
        bounds = [condition.value] if isinstance(condition, Equals) else [condition.start, condition.end]
        bounds = [bound.item() if isinstance(bound, np.generic) else bound for bound in bounds]
        parts.append([name, type(condition).__name__, *([type(b).__name__, _format_condition(b)] for b in bounds)])
    return parts


def _format_condition(value: object) -> str:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, float):
        return repr(value + 0.0)
    return value.isoformat() if isinstance(value, dt.date | dt.datetime) else repr(value)
