"""Rows by their age: the condition for "older than", the rows that expire, and the files that move.

date         older than the day, in UTC, of the limit
timestamp    before the limit; without a time zone it is a time in UTC
null         of no age: it never expires
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.errors import SchemaError
from lance_core.maintenance.moves import find_base, lies_elsewhere
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.table.fragment import Fragment
from lance_core.times import ago
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.rows.removal import each_matching
from lance_core.verbs.scan.conditions import to_condition
from lance_core.verbs.scan.projection import described_columns
from lance_core.verbs.scan.read_fragment import count_live

_NOTHING: Final = pc.scalar(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The rows that expire.

    Attributes:
        before: The limit.
        rows: The fragments with such rows, each with the offsets of these rows.
        num_bytes: The share that these rows have in the bytes of the data files.
        divided_ids: The fragments that keep some of their rows.
    """

    before: datetime
    rows: Sequence[tuple[Fragment, BitMap]]
    num_bytes: int
    divided_ids: frozenset[int]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(len(rows) for _, rows in self.rows)

    @property
    def whole(self) -> list[tuple[Fragment, BitMap]]:
        """The fragments that lose all their rows."""
        return [(fragment, rows) for fragment, rows in self.rows if fragment.id not in self.divided_ids]


def find_expiry(dataset: Handle, policy: MaintenancePolicy, before: datetime | None = None) -> Expiry | None:
    """The rows that expire by a policy; None if none can, as on a branch.

    Fragments of which a zone map knows the times are not opened.

    Args:
        dataset: The table.
        policy: The policy.
        before: The limit; None for the age of the policy before now.

    Raises:
        SchemaError: The column does not exist, or is not of dates or timestamps.
    """
    age = policy.age_of_rows
    if age is None or policy.expire_by is None or dataset.branch is not None:
        return None
    before, snapshot = find_limit(age) if before is None else before, dataset.snapshot
    columns = described_columns(snapshot.manifest)
    condition = to_condition(
        is_older(dataset, policy.expire_by, before, "expire_by"), columns or snapshot.manifest.schema
    )
    rows, num_bytes, divided_ids = list(each_matching(snapshot, condition, columns)), 0, set()
    for fragment, expired in rows:
        size = sum(file.file_size_bytes or 0 for file in fragment.files)
        if len(expired) < count_live(snapshot, fragment):
            divided_ids.add(fragment.id)
            size = size * len(expired) // max(1, fragment.physical_rows)
        num_bytes += size
    return Expiry(before=before, rows=rows, num_bytes=num_bytes, divided_ids=frozenset(divided_ids))


def find_old_fragments(dataset: Handle, policy: MaintenancePolicy, before: datetime | None) -> list[Fragment]:
    """The fragments that a policy moves: outside of the base path, with rows before the limit, and with none after it.

    Fragments of which a zone map knows the times are not opened.

    Args:
        dataset: The table.
        policy: The policy.
        before: The limit; None if nothing moves.

    Raises:
        SchemaError: The column does not exist, or is not of dates or timestamps.
        InvalidInputError: The table has no such base path.
    """
    if before is None or policy.move_by is None or policy.move_to is None:
        return []
    snapshot, base = dataset.snapshot, find_base(dataset.snapshot, policy.move_to)
    columns = described_columns(snapshot.manifest)
    is_old = is_older(dataset, policy.move_by, before, "move_by")
    fragments = [fragment for fragment in snapshot.manifest.fragments if lies_elsewhere(fragment, base)]

    def with_rows(condition: pc.Expression) -> set[int]:
        checked = to_condition(condition, columns or snapshot.manifest.schema)
        return {fragment.id for fragment, _ in each_matching(snapshot, checked, columns, fragments)}

    young = with_rows(~is_old)
    fragments = [fragment for fragment in fragments if fragment.id not in young]
    old = with_rows(is_old) if fragments else set()
    return [fragment for fragment in fragments if fragment.id in old]


def find_limit(age: timedelta) -> datetime:
    """The time before which a row is older than `age`, in whole seconds, which all units of timestamps can express."""
    return ago(age).replace(microsecond=0)


def is_older(dataset: Handle, column: str, before: datetime, field: str) -> pc.Expression:
    """The condition that a row is older than a limit.

    Args:
        dataset: The table.
        column: The column of times.
        before: The limit, in UTC.
        field: The field of the policy that names the column, for messages.

    Raises:
        SchemaError: The column does not exist, or is not of dates or timestamps.
    """
    columns = {each.name: each.type for each in dataset.schema}
    kind = columns.get(column)
    if kind is None or not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        what = "no column of the table" if kind is None else f"a column of type {kind}, which has no order of time"
        times = [name for name, each in columns.items() if pa.types.is_date(each) or pa.types.is_timestamp(each)]
        raise SchemaError(
            f"{dataset.uri}: {field} {column!r} is {what}; name a column of dates or timestamps, of which the table "
            f"has {', '.join(map(repr, times)) or 'none'}"
        )
    if pa.types.is_date(kind):
        return pc.field(column) < pa.scalar(before.date(), kind)
    zone = None if kind.tz is None else "UTC"
    limit = pa.scalar(before.astimezone(UTC).replace(tzinfo=None), pa.timestamp("s", zone))
    try:
        return pc.field(column) < limit.cast(kind)
    except pa.ArrowInvalid:  # before all times that the type can express
        return _NOTHING
