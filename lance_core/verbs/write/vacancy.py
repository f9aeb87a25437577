"""The promise that slices are empty: a write that only fills them looks again in each version that it would follow.

version that the write is based on    no row in the slices, but those of earlier attempts of the same write
each later one, before the put        the same
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap

from lance_core.errors import DatasetExistsError
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.write.replace import rows_in_slices

__all__ = ["check_empty"]

_NAMED = 5
"""Most slices that a message names."""


def check_empty(source: Snapshot, slices: Slices, own: Mapping[int, BitMap]) -> None:
    """Make sure that no row lies in the slices.

    Args:
        source: The version.
        slices: The slices.
        own: Rows that may be there, as offsets by fragment id.

    Raises:
        DatasetExistsError: There is another one.
    """
    found = sum(len(rows - own.get(fragment.id, BitMap())) for fragment, rows in rows_in_slices(source, slices))
    if found:
        names = ", ".join(map(repr, slices.names[:_NAMED])) + (" ..." if len(slices.names) > _NAMED else "")
        raise DatasetExistsError(
            f"{source.store.root}: version {source.manifest.version} has rows in {names} ({found} in all), and only "
            "empty slices were to be filled; nothing was written"
        )
