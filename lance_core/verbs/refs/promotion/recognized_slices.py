"""Find the conditions of the slices that a branch filled, of which its commits record only digests.

The rows that the branch added or removed lie in its slices. A condition that such a row meets belongs to a slice if its
digest is recorded. The conditions that are tried: one or two columns have the values of the row, or one column lies in
the hour, day, week, month or year of its value. Slices over more columns, and other windows, are not found.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

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


@dataclass(frozen=True, slots=True)
class RecognizedSlices:
    """Slices whose conditions were found, grouped by the columns that they are over."""

    groups: tuple[Slices, ...]

    @property
    def columns(self) -> list[str]:
        """The columns of all slices."""
        return list(dict.fromkeys(name for one in self.groups for name in one.columns))

    def among(self, batch: pa.RecordBatch) -> list[str]:
        """Names of the slices that rows of a batch lie in.

        Raises:
            RetryableConflictError: The rows cannot be assigned to the slices.
        """
        found: dict[str, None] = {}
        for one in self.groups:
            try:
                places = one.assign(batch)
            except LanceError as error:
                raise RetryableConflictError(f"the slices of the branch cannot be compared: {error}") from error
            found |= dict.fromkeys(one.names[place] for place in set(places.tolist()) - {OUTSIDE})
        return list(found)


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
        for conditions in _candidates(source, fragments, left):
            one = Slice(name="", conditions=conditions)
            digest = Slices([one]).identities()[0]
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


def _candidates(
    source: Snapshot, fragments: Sequence[Fragment], left: Mapping[str, str]
) -> Iterator[dict[str, Condition]]:
    """Yield conditions that rows of some fragments meet, while there are slices left to recognize."""
    fields = [field for field in source.manifest.schema.fields if not field.children]
    plain = [field.name for field in fields if _can_partition(arrow_type_of(field))]
    for columns in [*((name,) for name in plain), *combinations(sorted(plain), 2)]:
        if not left or not fragments:
            return
        for row in _distinct(source, fragments, list(columns)):
            if len(columns) == 1:
                for condition in _conditions(row[0]):
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


def _distinct(source: Snapshot, fragments: Sequence[Fragment], columns: list[str]) -> list[tuple[Any, ...]]:
    """The distinct values of columns in fragments; empty if there are too many for slices."""
    found: dict[tuple[Any, ...], None] = {}
    for fragment in fragments:
        for batch, _ in live_rows(source, fragment, columns):
            table = pa.Table.from_batches([batch])
            if len(columns) == 1 and pa.types.is_timestamp(table.schema.field(0).type):
                hours = pc.floor_temporal(table.column(0), unit="hour")  # no slice is shorter
                table = pa.table({columns[0]: hours})
            distinct = table.group_by(columns).aggregate([])
            found |= dict.fromkeys(zip(*(distinct.column(name).to_pylist() for name in columns), strict=True))
            if len(found) > _MOST_VALUES:
                return []
    return list(found)


def _conditions(value: Any) -> Iterator[Condition]:
    yield Equals(value)
    if isinstance(value, dt.date):
        for start, end in _windows(value):
            yield Between(start, end)


def _windows(value: dt.date) -> Iterator[tuple[dt.date, dt.date]]:
    """Yield the hour, day, weeks, month and year of a date or time, ends excluded; a week may begin on any day."""
    day = value.replace(hour=0, minute=0, second=0, microsecond=0) if isinstance(value, dt.datetime) else value
    if isinstance(value, dt.datetime):
        hour = value.replace(minute=0, second=0, microsecond=0)
        yield hour, hour + dt.timedelta(hours=1)
    yield day, day + dt.timedelta(days=1)
    for back in range(7):
        start = day - dt.timedelta(days=back)
        yield start, start + dt.timedelta(days=7)
    month = day.replace(day=1)
    yield month, (month + dt.timedelta(days=31)).replace(day=1)
    year = month.replace(month=1)
    yield year, year.replace(year=year.year + 1)
