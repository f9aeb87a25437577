"""Check that slices are empty, for writes with `require_empty`.

The slices may have no rows except those of earlier attempts of the same write. The check is made in the version that
the write is based on, and again in each later version that the write would follow, before the manifest is put.
"""

from __future__ import annotations

from collections.abc import Collection

from pyroaring import BitMap

from lance_core.errors import DatasetExistsError
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.rows.removal import RowsByFragment
from lance_core.verbs.write.earlier_attempts import rows_of_attempts
from lance_core.verbs.write.replace import rows_in_slices
from lance_core.verbs.write.request import CommitRequest

__all__ = ["check_required_empty"]

_NAMED = 5
"""The most slices that a message names."""


def check_required_empty(request: CommitRequest, source: Snapshot, attempts: Collection[int]) -> None:
    """Check that the slices of a write with `require_empty` have no rows except those of its earlier attempts.

    Args:
        request: The write.
        source: The version.
        attempts: Versions of earlier attempts of the write.

    Raises:
        DatasetExistsError: A slice has rows of other writes.
    """
    if not request.write.require_empty:
        return
    assert request.write.slices is not None
    rows: RowsByFragment = {}
    if request.attempt is not None and attempts:
        rows, _, beside = rows_of_attempts(source, request.attempt, attempts)
        if beside:
            return  # the caller lets rows stay that cannot be distinguished from those of other writes
    _check_empty(source, request.write.slices, rows)


def _check_empty(source: Snapshot, slices: Slices, attempt_rows: RowsByFragment) -> None:
    """Check that no other rows are in the slices.

    Args:
        source: The version.
        slices: The slices.
        attempt_rows: Rows that are allowed in the slices, as offsets by fragment id.

    Raises:
        DatasetExistsError: Another row is in the slices.
    """
    num_rows = sum(
        len(rows - attempt_rows.get(fragment.id, BitMap())) for fragment, rows in rows_in_slices(source, slices)
    )
    if num_rows:
        names = ", ".join(map(repr, slices.names[:_NAMED])) + (" ..." if len(slices.names) > _NAMED else "")
        raise DatasetExistsError(
            f"{source.store.root}: version {source.manifest.version} has rows in {names} ({num_rows} in all), and "
            "require_empty writes only to empty slices; nothing was written"
        )
