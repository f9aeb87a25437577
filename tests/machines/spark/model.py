"""What the table has to hold, as plain rows, and what its change feed makes of an earlier version."""

from __future__ import annotations

import copy
import datetime as dt
import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

__all__ = ["LOOSE", "WORDS", "Finding", "Model", "Rows", "apply_changes", "printed"]

Rows = dict[int, dict[str, Any]]
"""Rows by their `id`."""

WORDS = ["a\\b", "a\\b", "a\bx", "it's", "tab\tx", "C:\\new", "", "plain", None]
"""Strings of the column `s`."""
TIMES = [
    *[dt.datetime(2026, 3, 8, hour, minute, tzinfo=dt.UTC) for hour, minute in ((6, 59), (7, 0), (7, 30))],
    *[dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)],
    None,
]
"""Times of the column `t`, where New York's clocks are changed."""
LOOSE = ("s", "v", "w", "x")
"""Columns of strings that come and go."""

SPARK = {"long": "long", "string": "string", "timestamp": "timestamp"}
ARROW = {"long": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", "UTC")}


class Finding(AssertionError):  # noqa: N818 - what a machine finds
    """The table is not what the model says."""


@dataclass
class Model:
    """The columns with their types, in order, the fields of the struct `st`, and the rows.

    Attributes:
        columns: Types by name.
        fields: Types of the fields of `st`.
        rows: The rows.
        versions: The rows of each version that is left, with the columns of today.
        followed: The rows of the stream's replica, with the columns of today.
    """

    columns: dict[str, str]
    fields: dict[str, str]
    rows: Rows = field(default_factory=dict)
    versions: dict[int, Rows] = field(default_factory=dict)
    followed: Rows = field(default_factory=dict)

    def draw_row(self, draw: random.Random, key: int) -> dict[str, Any]:
        values = {
            "long": lambda: draw.randrange(3),
            "string": lambda: draw.choice(["x", "y", None]),
            "timestamp": lambda: draw.choice(TIMES),
        }
        row = {name: values[kind]() for name, kind in self.columns.items() if kind != "struct"}
        struct = {name: values[kind]() for name, kind in self.fields.items()}
        row |= {"id": key, "st": struct if draw.random() < 0.9 else None}
        if "s" in row:
            row["s"] = draw.choice(WORDS)
        return {name: row[name] for name in self.columns}

    def ddl(self) -> str:
        """The schema, as Spark writes it."""
        struct = ", ".join(f"{name}: {SPARK[kind]}" for name, kind in self.fields.items())
        return ", ".join(f"{name} {SPARK.get(kind, f'struct<{struct}>')}" for name, kind in self.columns.items())

    def arrow(self, rows: list[dict[str, Any]]) -> pa.Table:
        struct = pa.struct([(name, ARROW[kind]) for name, kind in self.fields.items()])
        schema = pa.schema([(name, ARROW.get(kind, struct)) for name, kind in self.columns.items()])
        return pa.Table.from_pylist(rows, schema=schema)

    def keep(self, rows: list[dict[str, Any]]) -> None:
        self.rows |= {row["id"]: row for row in rows}

    def everywhere(self) -> list[dict[str, Any]]:
        """The rows of the model and of all replicas, which follow a change of columns as the table does."""
        self.rows, self.followed, self.versions = map(copy.deepcopy, (self.rows, self.followed, self.versions))
        tables = [self.rows, self.followed, *self.versions.values()]
        return [row for rows in tables for row in rows.values()]

    # Changes of columns.

    def drop(self, name: str) -> None:
        del self.columns[name]
        for row in self.everywhere():
            row.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        self.columns = {new if name == old else name: kind for name, kind in self.columns.items()}
        for row in self.everywhere():
            row[new] = row.pop(old, None)

    def add(self, name: str) -> None:
        self.columns[name] = "string"
        for row in self.everywhere():
            row[name] = None

    def structs(self) -> list[dict[str, Any]]:
        """The structs of all rows that have one."""
        return [row["st"] for row in self.everywhere() if row["st"] is not None]

    def drop_field(self, name: str) -> None:
        del self.fields[name]
        for struct in self.structs():
            struct.pop(name, None)

    def rename_field(self, old: str, new: str) -> None:
        self.fields = {new if name == old else name: kind for name, kind in self.fields.items()}
        for struct in self.structs():
            struct[new] = struct.pop(old, None)

    def add_field(self, name: str, kind: str) -> None:
        self.fields[name] = kind
        for struct in self.structs():
            struct[name] = None


def plain(value: Any) -> Any:
    """A value in one form, whatever the order of fields, and whoever made a time."""
    if isinstance(value, dict):
        return sorted((name, plain(item)) for name, item in value.items())
    if isinstance(value, dt.datetime):  # Spark gives times of this machine's zone
        return value.astimezone(dt.UTC).isoformat()
    return value


def printed(rows: Any) -> list[str]:
    """Rows in an order, whatever the order of their columns."""
    return sorted(repr(plain(row)) for row in rows)


def apply_changes(replica: Rows, changes: list[dict[str, Any]], *, exact: bool) -> None:
    """Apply rows of a change feed to a replica.

    Args:
        replica: Rows by id.
        changes: The rows of the feed.
        exact: Whether the changes are net ones, whose old values are those of the replica.

    Raises:
        Finding: An old row of the feed is not the replica's.
    """

    def is_new(row: dict[str, Any]) -> bool:
        return row["_change_type"] in ("insert", "update_postimage")

    for change in sorted(changes, key=lambda row: (0 if exact else row["_commit_version"], is_new(row))):
        values = {name: value for name, value in change.items() if name[0] != "_"}
        if is_new(change):
            replica[change["id"]] = values
            continue
        old = replica.pop(change["id"], None)
        if exact and (old is None or plain(old) != plain(values)):
            raise Finding(f"the feed's old row ({change['_change_type']}) is {values}, the replica's {old}")
