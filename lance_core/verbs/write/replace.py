"""Finds and removes rows of slices, and of earlier attempts, for a write that replaces them.

Only the columns that define the slices are read, and only from fragments that no index excludes. In a fragment with one
slice, these columns have constant pages, so reading them costs little more than the footer. A fragment whose only value
is known from a zone map is not opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyroaring import BitMap

from lance_core.row_addresses import bitmap_of, row_offsets
from lance_core.schema import schema_to_arrow
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.rows.removal import Removal, find_rows_by_fragment, remove_rows
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.plan import ScanPlan
from lance_core.verbs.scan.projection import ROW_ADDRESS


def remove_slices(
    snapshot: Snapshot, slices: Slices | None, files: UncommittedFiles, further_rows: Mapping[int, BitMap] | None = None
) -> Removal:
    """Find the rows of the slices, and write deletion files for the fragments that lose only some of their rows.

    Args:
        snapshot: The version.
        slices: The slices whose rows are removed; None to remove only `further_rows`.
        files: Collects the files that are written.
        further_rows: Further rows to remove: offsets of live rows, by fragment id.

    Raises:
        SchemaError, InvalidInputError: The slices cannot be distinguished in this dataset.
    """
    return remove_rows(snapshot, _merge_further_rows(snapshot, slices, dict(further_rows or {})), files)


def _merge_further_rows(
    snapshot: Snapshot, slices: Slices | None, further_rows: dict[int, BitMap]
) -> Iterator[tuple[Fragment, BitMap]]:
    for fragment, rows in () if slices is None else rows_in_slices(snapshot, slices):
        yield fragment, rows | further_rows.pop(fragment.id, BitMap())
    for fragment_id, rows in further_rows.items():
        yield snapshot.manifest.fragments[snapshot.manifest.fragments.ids.index(fragment_id)], rows


def rows_in_slices(snapshot: Snapshot, slices: Slices) -> Iterator[tuple[Fragment, BitMap]]:
    """Yield the fragments with live rows in the slices, and the offsets of these rows.

    Raises:
        SchemaError, InvalidInputError: The slices cannot be distinguished in this dataset.
    """
    columns = ScanOptions(schema=snapshot.manifest.schema.project(slices.columns), with_row_address=True)

    def plan() -> ScanPlan:
        condition = slices.expression(schema_to_arrow(columns.schema))
        return ScanPlan.of(snapshot, snapshot.manifest.fragments, columns, condition)

    yield from find_rows_by_fragment(snapshot, columns, lambda scan: _find_rows_in_slices(scan, slices), plan)


def _find_rows_in_slices(scan: FragmentScan, slices: Slices) -> BitMap:
    """Offsets of the rows of a scan that are in the slices."""
    rows = BitMap()
    for batch in scan.batches():
        offsets = row_offsets(batch.column(ROW_ADDRESS).to_numpy())
        in_slice = slices.assign(batch) >= 0
        rows |= bitmap_of(offsets[in_slice])
        scan.check_claims(batch, offsets, in_slice)
    return rows
