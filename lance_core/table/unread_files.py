"""Finds new data files with fields that the schema of a version lacks: readers of that version skip their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lance_core.schema import UNASSIGNED
from lance_core.table.fragment import TOMBSTONE, DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, Merge, Operation, Update
from lance_core.table.operations.base import data_files

__all__ = ["live_field_ids", "unread_files"]

_NO_FIELD: Final = frozenset((UNASSIGNED, TOMBSTONE))


def unread_files(operation: Operation, latest: Manifest) -> list[DataFile]:
    """The data files of new fragments that have a field without a column.

    Args:
        operation: The change.
        latest: The version that it would follow.
    """
    live = live_field_ids(operation, latest)
    return [file for file in data_files(_new_fragments(operation, latest)) if not live.issuperset(file.fields)]


def live_field_ids(operation: Operation, latest: Manifest) -> frozenset[int]:
    """The field ids that data files may have after a change, including those that stand for no field."""
    schema = operation.schema if isinstance(operation, Merge) else latest.schema
    return _NO_FIELD.union(field.id for field, _ in schema.walk())


def _new_fragments(operation: Operation, latest: Manifest) -> Iterable[Fragment]:
    match operation:
        case Append():
            return operation.fragments
        case Update():
            return operation.new_fragments
        case Merge():
            latest_ids = set(latest.fragments.ids)
            return [fragment for fragment in operation.fragments if fragment.id not in latest_ids]
        case _:
            return ()
