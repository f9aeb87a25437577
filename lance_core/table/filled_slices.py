"""The slices, such as partitions, that a commit fills, as its transaction properties record them.

    lance.slices         [[["day", "Equals", ["str", "'d1'"]]], ...]    for each slice its columns, each with the kind
                                                                      of condition, and the type and text of its values
    lance.slice_names    ["d1", ...]                                  for people, in the same order
    lance.replaced_rows  [["day", "Equals", ["str", "'d1'"]]]         the conditions of rows that a commit replaced
                                                                      otherwise; [] if they are no such conditions

Two slices are the same if their conditions are. They are compared by digest: older commits record a digest, a string,
in place of the conditions.

Slices and replaced rows overlap unless a column has conditions in both that no value meets: different values, ranges
without a common value, or a value outside of a range. So those over different columns overlap. A slice of which only
the digest is recorded overlaps only the same slice.
"""

from __future__ import annotations

import ast
import datetime as dt
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import product
from typing import Any, Final, NamedTuple

SLICES_KEY: Final = "lance.slices"
SLICE_NAMES_KEY: Final = "lance.slice_names"
REPLACED_ROWS_KEY: Final = "lance.replaced_rows"


class FilledSlice(NamedTuple):
    """A slice that a commit filled: its name, and its conditions, or their digest, as recorded."""

    name: str
    conditions: Any


def slice_digest(conditions: Any) -> str:
    """Return the digest of the conditions of a slice; a digest stays as it is."""
    if isinstance(conditions, str):
        return conditions
    return hashlib.blake2b(json.dumps(conditions).encode(), digest_size=10).hexdigest()


def read_slices(properties: Mapping[str, str]) -> Mapping[str, FilledSlice]:
    """Return the slices that a commit filled, by digest; the digest is the name of one without a name."""
    return _read(properties.get(SLICES_KEY), properties.get(SLICE_NAMES_KEY))


@lru_cache(maxsize=64)  # a pending commit is compared with many others
def _read(slices: str | None, slice_names: str | None) -> Mapping[str, FilledSlice]:
    recorded, names = _read_list(slices), _read_list(slice_names)
    digests = [slice_digest(conditions) for conditions in recorded]
    pairs = zip(digests, recorded, names if len(names) == len(recorded) else digests, strict=True)
    return {digest: FilledSlice(str(name), conditions) for digest, conditions, name in pairs}


def overlapping_slices(properties: Mapping[str, str], other_properties: Mapping[str, str]) -> list[str]:
    """Return names of slices of a commit that overlap slices of another commit: the same ones, or else one of others.

    Rows that a commit replaced otherwise count as a slice, whose name is "replaced rows".
    """
    slices, other_slices = read_slices(properties), read_slices(other_properties)
    same = [slices[digest].name for digest in slices.keys() & other_slices.keys()]
    if same:
        return same
    pairs = product(_boxes(properties).items(), _boxes(other_properties).items())
    for (columns, boxes), (other_columns, other_boxes) in pairs:
        name = _find_overlap(boxes, other_boxes, [column for column in columns if column in other_columns])
        if name is not None:
            return [name]
    return []


class _Interval(NamedTuple):
    """The values that meet a condition: `start` .. `end`, end excluded; `start` alone if there is no end."""

    start: Any
    end: Any = None

    def reaches(self, value: Any) -> bool:
        """Whether a value that is not below the start is in the interval."""
        return bool(value == self.start if self.end is None else value < self.end)

    def overlaps(self, other: _Interval) -> bool:
        """Whether a value meets both conditions."""
        return other.reaches(self.start) if self.start >= other.start else self.reaches(other.start)


class _Box(NamedTuple):
    """A slice, as the values of each of its columns."""

    name: str
    intervals: Mapping[str, _Interval]


def _boxes(properties: Mapping[str, str]) -> Mapping[tuple[str, ...], list[_Box]]:
    """The slices and replaced rows of a commit whose conditions are recorded, by their columns."""
    return _read_boxes(*(properties.get(key) for key in (SLICES_KEY, SLICE_NAMES_KEY, REPLACED_ROWS_KEY)))


@lru_cache(maxsize=64)
def _read_boxes(slices: str | None, names: str | None, replaced_rows: str | None) -> dict[tuple[str, ...], list[_Box]]:
    parts = list(_read(slices, names).values())
    if replaced_rows is not None:
        parts.append(FilledSlice("replaced rows", _read_list(replaced_rows)))
    boxes: dict[tuple[str, ...], list[_Box]] = defaultdict(list)
    for name, conditions in parts:
        try:
            intervals = {column: _Interval(*map(_read_value, values)) for column, _, *values in conditions}
        except (TypeError, ValueError, ArithmeticError, SyntaxError):
            continue  # a digest, or conditions that this library has not written
        boxes[tuple(intervals)].append(_Box(name, intervals))
    return boxes


def _find_overlap(boxes: Sequence[_Box], other_boxes: Sequence[_Box], columns: Sequence[str]) -> str | None:
    """The name of a slice that overlaps another one, compared by some columns; None if there is none."""
    ranges = [name for name in columns if any(box.intervals[name].end is not None for box in (*boxes, *other_boxes))]
    groups: dict[Hashable, list[tuple[int, _Box]]] = defaultdict(list)
    for side, members in enumerate((boxes, other_boxes)):
        for box in members:
            starts = ((name in ranges, box.intervals[name].start) for name in columns)
            groups[tuple(start is None if is_range else start for is_range, start in starts)].append((side, box))
    for group in groups.values():
        if len({side for side, _ in group}) == 2 and (not ranges or _sweep(group, ranges)):
            return group[0][1].name
    return None


def _sweep(group: list[tuple[int, _Box]], columns: Sequence[str]) -> bool:
    """Whether boxes of both sides overlap in some columns: sorted by their starts, each is compared with open ones."""
    first = columns[0]
    try:
        group.sort(key=lambda member: member[1].intervals[first].start)
        open_boxes: tuple[list[_Box], list[_Box]] = ([], [])
        for side, box in group:
            others = open_boxes[1 - side]
            others[:] = [other for other in others if other.intervals[first].reaches(box.intervals[first].start)]
            if any(all(box.intervals[name].overlaps(other.intervals[name]) for name in columns) for other in others):
                return True
            open_boxes[side].append(box)
    except TypeError:
        return True  # values that cannot be compared may be equal
    return False


def _read_time(string: str) -> dt.datetime:
    """A date, or a time without its zone: the times of a column either have none, or were recorded in UTC."""
    return dt.datetime.fromisoformat(string).replace(tzinfo=None)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("str", "bytes"), ast.literal_eval),
    **dict.fromkeys(("date", "datetime", "Timestamp"), _read_time),
    "bool": lambda string: string == "True",
    "int": int,
    "float": lambda string: string if string == "nan" else float(string),
    "Decimal": lambda string: Decimal(ast.literal_eval(string.removeprefix("Decimal"))),
    "NoneType": lambda _: None,
}


def _read_value(recorded: Sequence[str]) -> Any:
    """A value of a condition, by its type and text; both of them if the type has no reader."""
    kind, string = recorded
    return _READERS[kind](string) if kind in _READERS else (kind, string)


def slice_properties(slices: Iterable[FilledSlice]) -> dict[str, str]:
    """Return the transaction properties that record slices; none without slices."""
    parts = list(slices)
    if not parts:
        return {}
    return {
        SLICES_KEY: json.dumps([part.conditions for part in parts]),
        SLICE_NAMES_KEY: json.dumps([part.name for part in parts]),
    }


def _read_list(value: str | None) -> list[Any]:
    """The items of a JSON list; an empty list for any other JSON."""
    try:
        content = json.loads(value) if value else []
    except ValueError:
        return []
    return content if isinstance(content, list) else []
