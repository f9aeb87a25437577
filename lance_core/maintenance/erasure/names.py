"""Finds the columns of an erasure's condition in versions where they have other names.

A renamed column keeps its field id. So the column that the condition names in one version can have another name in a
later version, and that version can have a new column with the old name. The erasure searches both columns.

    v1  email (id 1)                      v1 to v3 have a common history. `email` is field 1 in v1 and field 2 in v3:
    v2  email_raw (id 1)                  the condition is evaluated on field 1 and on field 2 in every version that
    v3  email_raw (id 1), email (id 2)    has the field

An overwrite begins a new history, and a restore continues the history of the restored version: both can assign field
ids again that other columns had before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from lance_core.schema import Schema
from lance_core.table.operations import Overwrite, Restore
from lance_core.table.paths import is_detached
from lance_core.table.transaction import Transaction

__all__ = ["Columns", "FieldNames", "Node", "continued_version", "field_names", "is_within", "related", "renamed"]

FieldNames: TypeAlias = frozenset[tuple[int, str]]
"""Ids and names of the fields of columns."""

Columns: TypeAlias = dict[FieldNames, Schema]
"""The columns of a condition, by the ids and names that their fields have in versions."""

Node: TypeAlias = tuple[str, int]
"""A version: the name of its branch, and its number."""


def field_names(columns: Schema) -> FieldNames:
    """The field ids and names of columns, with all fields below these columns."""
    return frozenset((field.id, field.name) for field, _ in columns.walk())


def continued_version(number: int, made_by: Transaction | None) -> int | None:
    """The version that a version continues; None if it begins a new history.

    Args:
        number: The version.
        made_by: Its transaction; None if that was deleted.
    """
    if made_by is None:
        return number - 1
    if isinstance(made_by.operation, Overwrite):
        return None
    if isinstance(made_by.operation, Restore):
        return made_by.operation.version
    return made_by.read_version if is_detached(number) else number - 1


def related(before: Mapping[Node, Node | None], version_columns: Mapping[Node, Columns]) -> dict[Node, Columns]:
    """For each version, the columns of the condition in it, in the versions before it, and in those made from it.

    Args:
        before: Each version with the version that it continues, in an order in which continued versions come first.
        version_columns: The columns in the version itself; none where the condition cannot be evaluated.
    """
    earlier: dict[Node, Columns] = {}
    later = {node: dict(version_columns[node]) for node in before}
    for node, origin in before.items():
        earlier[node] = version_columns[node] | (earlier[origin] if origin is not None else {})
    for node, origin in reversed(list(before.items())):
        if origin is not None:
            later[origin] |= later[node]
    return {node: earlier[node] | later[node] for node in before}


def is_within(columns: Schema, schema: Schema) -> bool:
    """Whether a version has all fields of columns, by id and type, whatever their names."""
    fields = schema.by_id()
    return all(
        field.id in fields and fields[field.id].logical_type == field.logical_type for field, _ in columns.walk()
    )


def renamed(columns: Schema, schema: Schema) -> str:
    """The columns that have another name in a version, and that name."""
    fields = schema.by_id()
    changed = [
        (field.name, fields[field.id].name) for field, _ in columns.walk() if fields[field.id].name != field.name
    ]
    return ", ".join(f"{old!r} (now {new!r})" for old, new in changed)
