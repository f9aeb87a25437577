"""How updated rows are stored: moved as a whole, or by new files of the columns that change.

rewrite_rows        bytes = rows that change x bytes of a whole row
rewrite_columns     bytes = all rows of the fragments with such rows x bytes of the columns in a row
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from lance_core.encoding.structural.blob import is_any_blob
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Schema
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.inspect.statistics import field_sizes
from lance_core.verbs.scan.read_fragment import physical_rows

__all__ = ["WriteMode", "can_replace_columns", "check_columns_can_be_replaced", "writes_less_by_columns"]


class WriteMode(Enum):
    """How updated rows are stored."""

    AUTO = "auto"
    REWRITE_ROWS = "rewrite_rows"
    REWRITE_COLUMNS = "rewrite_columns"
    FEWEST_BYTES = "fewest_bytes"

    @classmethod
    def parse(cls, mode: str) -> WriteMode:
        """The mode of a name.

        Raises:
            InvalidInputError: There is no such mode.
        """
        try:
            return cls(mode)
        except ValueError as error:
            names = ", ".join(repr(each.value) for each in cls)
            raise InvalidInputError(f"Invalid write_mode: {mode}. Expected one of {names}") from error


def can_replace_columns(manifest: Manifest, fragments: Iterable[Fragment], columns: Schema) -> bool:
    """Whether files with these columns can replace them in fragments.

    Not if a file of version 0.1 lost its first column: pylance takes its pages for those of other columns then.
    """
    if manifest.data_storage_version not in ("0.1", "legacy"):
        return True
    ids = {node.id for node, _ in columns.walk()}
    files = (file for fragment in fragments for file in fragment.files)
    return not any(file.fields[0] in ids and not ids.issuperset(file.fields) for file in files if file.fields)


def check_columns_can_be_replaced(manifest: Manifest, fragments: Iterable[Fragment], columns: Schema) -> None:
    """Reject columns in place of rows where they cannot be.

    Raises:
        UnsupportedError: A file of version 0.1 would lose its first column.
    """
    if not can_replace_columns(manifest, fragments, columns):
        raise UnsupportedError(
            "write_mode='rewrite_columns' of the first column of files of version 0.1, which pylance could not read "
            "afterwards; use 'rewrite_rows', or rewrite the table as 2.x first"
        )


def writes_less_by_columns(source: Snapshot, changes: Iterable[tuple[Fragment, int]], columns: Schema) -> bool:
    """Whether new files of the columns have fewer bytes than the rows that would move, by the sizes of what is stored.

    The metadata of the fragments' data files is read. Never for blobs, and in 0.1, whose files do not tell such sizes.

    Args:
        source: The version.
        changes: Fragments, and how many rows of each change.
        columns: The columns that change.
    """
    if source.manifest.data_storage_version in ("0.1", "legacy") or any(map(is_any_blob, columns.fields)):
        return False
    ids = {node.id for node, _ in columns.walk()}
    by_rows = by_columns = 0.0
    for fragment, changed in changes:
        sizes = field_sizes(source, fragment)
        by_rows += sizes.total * changed / max(1, physical_rows(source, fragment))
        by_columns += sum(size for field_id, size in sizes.by_field.items() if field_id in ids)
    return by_columns < by_rows
