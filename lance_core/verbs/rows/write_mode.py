"""Choose how updated rows are stored: whole rows move, or new files replace the columns that change.

rewrite_rows        bytes = rows that change x bytes of a whole row, plus their blob payloads in separate files
rewrite_columns     bytes = all rows of the fragments with such rows x bytes of the changed columns in a row
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.structural.blob import BlobKind
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Schema
from lance_core.schema.field import is_any_blob
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.inspect.statistics import field_sizes
from lance_core.verbs.scan.read_fragment import count_file_rows, read_descriptors

_BESIDE: Final = (BlobKind.PACKED, BlobKind.DEDICATED)


class WriteMode(Enum):
    """How updated rows are stored."""

    AUTO = "auto"
    REWRITE_ROWS = "rewrite_rows"
    REWRITE_COLUMNS = "rewrite_columns"
    FEWEST_BYTES = "fewest_bytes"

    @classmethod
    def parse(cls, mode: str) -> WriteMode:
        """The mode with a name.

        Raises:
            InvalidInputError: There is no such mode.
        """
        try:
            return cls(mode)
        except ValueError as error:
            names = ", ".join(repr(each.value) for each in cls)
            raise InvalidInputError(f"Invalid write_mode: {mode}. Expected one of {names}") from error


def can_replace_columns(manifest: Manifest, fragments: Iterable[Fragment], columns: Schema) -> bool:
    """Whether new files with these columns can replace the columns in fragments.

    They cannot if a file of version 0.1 would lose its first column: pylance would then read wrong pages.
    """
    if manifest.data_storage_version not in ("0.1", "legacy"):
        return True
    ids = {node.id for node, _ in columns.walk()}
    files = (file for fragment in fragments for file in fragment.files)
    return not any(file.fields[0] in ids and not ids.issuperset(file.fields) for file in files if file.fields)


def check_columns_can_be_replaced(manifest: Manifest, fragments: Iterable[Fragment], columns: Schema) -> None:
    """Reject a rewrite of columns that is not possible by `can_replace_columns`.

    Raises:
        UnsupportedError: A file of version 0.1 would lose its first column.
    """
    if not can_replace_columns(manifest, fragments, columns):
        raise UnsupportedError(
            "write_mode='rewrite_columns' cannot replace the first column of files of version 0.1, which pylance could "
            "not read afterwards; use 'rewrite_rows', or rewrite the table as 2.x first"
        )


def writes_less_by_columns(
    snapshot: Snapshot, changes: Sequence[tuple[Fragment, npt.NDArray[np.int64]]], columns: Schema
) -> bool:
    """Whether new files of the columns have fewer bytes than the rows that would move, by the sizes in the data files.

    The metadata of the fragments' data files is read and, if it does not suffice, the descriptors of the blobs that
    would move. The result is False if a blob column changes, and for files of 0.1, which do not record sizes.

    Args:
        snapshot: The version.
        changes: Fragments, each with the ascending offsets of the rows that change.
        columns: The columns that change.
    """
    nodes = [node for node, _ in columns.walk()]
    if snapshot.manifest.data_storage_version in ("0.1", "legacy") or any(map(is_any_blob, nodes)):
        return False
    ids = {node.id for node in nodes}
    by_rows = by_columns = 0.0
    for fragment, changed in changes:
        sizes = field_sizes(snapshot, fragment)
        by_rows += sizes.total * len(changed) / max(1, count_file_rows(snapshot, fragment))
        by_columns += sum(size for field_id, size in sizes.by_field.items() if field_id in ids)
    for fragment, changed in changes:
        if by_columns < by_rows:
            return True
        by_rows += _payload_bytes(snapshot, fragment, changed)
    return by_columns < by_rows


def _payload_bytes(snapshot: Snapshot, fragment: Fragment, rows: npt.NDArray[np.int64]) -> int:
    """Bytes of the blob payloads of some rows that are in separate files, and are copied if the rows move."""
    total = 0
    for entries in read_descriptors(snapshot, fragment, rows):
        beside = pa.array(_BESIDE, pa.uint8())  # pyarrow imports pandas at the first array of Python values
        kinds, sizes = (pc.struct_field(entries, name) for name in ("kind", "size"))
        total += pc.sum(pc.if_else(pc.is_in(kinds, beside), sizes, 0)).as_py() or 0
    return total
