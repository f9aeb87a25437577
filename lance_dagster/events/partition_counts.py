"""The rows that partitions have after a write, for their events.

    write                                       rows of a partition
    -----                                       -------------------
    replaces the partition, creates the table   those that it wrote
    append, merge, the commit of an earlier     counted in the new version: by zone maps where they tell, else by the
    attempt that is kept                        partition columns of the fragments that can have rows of it

A step costs the same however long the table is: nothing is counted where so many fragments would have to be opened as
call for a refresh of the zone maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import lance_core
from lance_dagster.events.reporting import partition_rows
from lance_dagster.tables.refs import TableRef

__all__ = ["rows_of_partitions"]

_MOST_OPENED: Final = 64
"""So many fragments are opened at most where no zone maps are kept."""


def rows_of_partitions(
    written: lance_core.WriteResult,
    ref: TableRef,
    keys: Sequence[str],
    columns: Sequence[str],
    *,
    adds: bool,
    most_uncovered: int | None,
) -> dict[str, int]:
    """The rows of the partitions of a write in the version that it made; none where that is not known.

    Args:
        written: The result of the write.
        ref: The asset.
        keys: The partitions.
        columns: The partition columns.
        adds: Whether the write leaves the rows that a partition has.
        most_uncovered: How many fragments may lie outside of zone maps; None for no zone maps.
    """
    if written.slice_rows and (written.operation == "Overwrite" or not adds):
        return {key: written.slice_rows[key] for key in keys if key in written.slice_rows}
    most = _MOST_OPENED if most_uncovered is None else most_uncovered
    if _uncovered(written.dataset, columns) > most + (written.fragments_added or 0):
        return {}
    return {key: found.rows for key, found in partition_rows(written.dataset, ref, keys).items()}


def _uncovered(dataset: lance_core.LanceDataset, columns: Sequence[str]) -> int:
    """How many fragments lie outside of a zone map on one of the columns; nothing but the manifest is looked at."""
    covered: dict[str, set[int]] = {column: set() for column in columns}
    for index in dataset.describe_indices():
        if index.index_type == "ZoneMap" and len(index.field_names) == 1 and index.field_names[0] in covered:
            covered[index.field_names[0]].update(*(one.fragment_ids for one in index.segments))
    wanted = set(dataset.fragment_ids())
    return len(set[int]().union(*(wanted - found for found in covered.values())))
