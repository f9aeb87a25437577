"""Find the conditions of the slices that a branch filled, of which its commits record only digests.

The rows that the branch added or removed lie in its slices. A condition that such a row meets belongs to a slice if its
digest is recorded. The conditions that are tried: one or two columns have the values of the row (one timestamp alone:
the beginning of its hour), or one column lies in the hour, day, week, month or year of its value. Slices over more
columns, and other windows, are not found.
"""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import LanceError, RetryableConflictError
from lance_core.schema import arrow_type_of
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.files.slices import OUTSIDE, Between, Condition, Equals, Slice, Slices
from lance_core.verbs.refs.changes import Branch, BranchChanges
from lance_core.verbs.rows.removal import live_rows

__all__ = ["RecognizedSlices", "recognize_slices"]

_MOST_VALUES = 10_000
_DAY: Final = 86_400
_FIRST_SECOND: Final = -719_162 * _DAY
_END_SECOND: Final = 2_932_897 * _DAY
"""Where the year 1 begins, and the year 9999 ends, in seconds since 1970."""
_PER_SECOND: Final[Mapping[str, int | Fraction]] = {
    "s": 1,
    "ms": 1000,
    "us": 10**6,
    "date64[ms]": 1000,
    "date32[day]": Fraction(1, _DAY),
}
"""Units of dates and times that go beyond these years, per second; nanoseconds do not."""


@dataclass(frozen=True, slots=True)
class RecognizedSlices:
    """Slices whose conditions were found, grouped by the columns that they are over."""

    groups: tuple[Slices, ...]

    @property
    def columns(self) -> list[str]:
        """The columns of all slices."""
        return list(dict.fromkeys(name for group in self.groups for name in group.columns))

    def among(self, batch: pa.RecordBatch) -> list[str]:
        """Names of the slices that rows of a batch lie in.

        Raises:
            RetryableConflictError: The rows cannot be assigned to the slices.
        """
        names: dict[str, None] = {}
        for group in self.groups:
            try:
                places = group.assign(batch)
            except LanceError as error:
                raise RetryableConflictError(f"the slices of the branch cannot be compared: {error}") from error
            names |= dict.fromkeys(group.names[place] for place in set(places.tolist()) - {OUTSIDE})
        return list(names)


def recognize_slices(branch: Branch, changes: BranchChanges, names: Mapping[str, str]) -> RecognizedSlices:
    """Find the slices of a branch by their digests.

    Args:
        branch: The branch.
        changes: Its changes, whose rows lie in the slices.
        names: The names of the slices by their digests.

    Raises:
        RetryableConflictError: The condition of a slice is not found.
    """
    left = dict(names)
    groups: dict[tuple[object, ...], list[Slice]] = {}
    ends = [(branch.head, changes.added), (branch.parent, changes.removed)]
    ends += [(branch.parent, tuple(before for before, _ in changes.updated))]
    for source, fragments in ends:
        for conditions in _guess_conditions(source, fragments, left):
            candidate = Slice(name="", conditions=conditions)
            digest = Slices([candidate]).identities()[0]
            if digest in left:
                kinds = tuple(type(condition).__name__ for condition in conditions.values())
                key = (*conditions, *kinds)
                groups.setdefault(key, []).append(Slice(name=left.pop(digest), conditions=conditions))
    if left:
        raise RetryableConflictError(
            "versions since the fork were deleted, so it is not known whether others filled "
            f"{', '.join(map(repr, sorted(left.values())))} as well"
        )
    return RecognizedSlices(tuple(Slices(group) for group in groups.values()))


def _guess_conditions(
    source: Snapshot, fragments: Sequence[Fragment], left: Mapping[str, str]
) -> Iterator[dict[str, Condition]]:
    """Yield conditions that rows of some fragments meet, while there are slices left to recognize."""
    fields = [field for field in source.manifest.schema.fields if not field.children]
    plain = [field.name for field in fields if _can_partition(arrow_type_of(field))]
    for columns in [*((name,) for name in plain), *combinations(sorted(plain), 2)]:
        if not left or not fragments:
            return
        for row in _distinct_values(source, fragments, list(columns)):
            if len(columns) == 1:
                for condition in _conditions_of_value(row[0]):
                    yield {columns[0]: condition}
            else:
                yield {name: Equals(value) for name, value in zip(columns, row, strict=True)}


def _can_partition(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


def _distinct_values(source: Snapshot, fragments: Sequence[Fragment], columns: list[str]) -> list[tuple[Any, ...]]:
    """The distinct values of columns in fragments; empty if there are too many for slices."""
    values: dict[tuple[Any, ...], None] = {}
    for fragment in fragments:
        for batch, _ in live_rows(source, fragment, columns):
            table = _of_python(pa.Table.from_batches([batch]))
            if len(columns) == 1 and pa.types.is_timestamp(table.schema.field(0).type):
                hours = pc.floor_temporal(table.column(0), unit="hour")  # the shortest window that is looked for
                table = pa.table({columns[0]: hours})
            distinct = table.group_by(columns).aggregate([])
            values |= dict.fromkeys(zip(*(distinct.column(name).to_pylist() for name in columns), strict=True))
            if len(values) > _MOST_VALUES:
                return []
    return list(values)


def _of_python(table: pa.Table) -> pa.Table:
    """The rows whose dates and times Python has, from the year 1 to 9999: slices have no others."""
    for name in table.column_names:
        column = table.column(name)
        second = _PER_SECOND.get(str(getattr(column.type, "unit", column.type)))
        if second is None or not pa.types.is_temporal(column.type):
            continue
        margin = 0 if getattr(column.type, "tz", None) is None else _DAY  # the zone moves a time by less than a day
        numbers = (
            column.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(column.type) else column.cast(pa.int64())
        )
        first, end = (int(limit * second) for limit in (_FIRST_SECOND + margin, _END_SECOND - margin))
        inside = pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, end))
        table = table.filter(pc.or_kleene(inside, pc.is_null(numbers)))
    return table


def _conditions_of_value(value: Any) -> Iterator[Condition]:
    yield Equals(value)
    if isinstance(value, dt.date):
        for start, end in _windows(value):
            yield Between(start, end)


def _windows(value: dt.date) -> Iterator[tuple[dt.date, dt.date]]:
    """Yield the hour, day, weeks, month and year of a date or time, ends excluded; a week may begin on any day."""
    day, days = value, dt.timedelta(days=1)
    if isinstance(value, dt.datetime):
        hour = value.replace(minute=0, second=0, microsecond=0)
        day = hour.replace(hour=0)
        yield from _window(hour, dt.timedelta(hours=1))
    yield from _window(day, days)
    for back in range(7):
        yield from _window(day, 7 * days, back * days)
    yield from _window(day.replace(day=1), calendar.monthrange(day.year, day.month)[1] * days)
    yield from _window(day.replace(month=1, day=1), (365 + calendar.isleap(day.year)) * days)


def _window(
    value: dt.date, length: dt.timedelta, back: dt.timedelta = dt.timedelta(0)
) -> Iterator[tuple[dt.date, dt.date]]:
    """Yield one window, which begins before a value; none if an end is before the year 1 or after 9999.

    Python has no such date, so that no slice has such an end.
    """
    try:
        start = value - back
        end = start + length
    except OverflowError:
        return
    yield start, end
