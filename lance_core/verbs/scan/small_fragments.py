"""Read small fragments, or rows of many fragments, together: several files at once, some megabytes at a time.

A column of a hundred files of a thousand rows is decoded at once, and sliced into the rows of each fragment. The
batches are the same; only the time differs. It saves time where reads are fast compared with decoding: on a local disk
or in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from lance_core.errors import LanceError
from lance_core.file.coalesced import can_coalesce, coalesce
from lance_core.file.pool import in_order, num_threads
from lance_core.schema import Schema, schema_to_arrow
from lance_core.table.fragment import DataFile
from lance_core.verbs.expressions.arrow import columns_of, matching_all
from lance_core.verbs.scan.filter_stages import fixed_width
from lance_core.verbs.scan.fragment_scan import FragmentScan, ReadRows
from lance_core.verbs.scan.read_fragment import Rows, open_file

SMALL_FILE_BYTES: Final = 512 * 1024
"""Files of at most this size are read together."""

SMALL_COLUMNS_BYTES: Final = 1024 * 1024
"""Columns of fixed width that have at most this many bytes are read together, however large their files are."""

SMALL_FILE_ROWS: Final = 64 * 1024
"""Files of at most this many rows are read together, because rows can take much more memory than bytes in the file."""

FIRST_BYTES: Final = 1024 * 1024
"""About how many bytes the first read has; each further read has twice as many as the previous one."""

MOST_BYTES: Final = 16 * 1024 * 1024
"""About how many bytes one read has at most, or the reads of all threads."""

MOST_FILES: Final = 128
"""The most files from which rows are read together."""

FEW_ROWS: Final = 4096
"""At most this many chosen rows are read by one thread."""

FEWEST: Final = 4
"""Fewer consecutive fragments are read one by one."""

_REMOTE_AT_ONCE: Final = 8
"""How many groups of fragments of a remote store are worked on at a time."""

_Result = TypeVar("_Result")


def coalesced(scans: Iterable[FragmentScan], *, at_once: bool = False) -> Iterator[FragmentScan]:
    """Yield scans in their order, with the rows of small fragments already read.

    Small fragments without a row that matches the filter are skipped, unless the scan has to check claims of indices.

    Args:
        scans: Scans of the same snapshot with the same options.
        at_once: Whether the caller needs all rows before it uses any; the first read is then as large as later ones.
    """
    for group in grouped(scans, at_once=at_once):
        yield from _read(group) if len(group) >= FEWEST else group


def worked_on(
    scans: Iterable[FragmentScan], work: Callable[[FragmentScan], _Result]
) -> Iterator[tuple[FragmentScan, _Result]]:
    """Yield scans in their order, each with the result of `work`; several are worked on at a time.

    Small fragments are read together; large ones are divided, so that one file occupies all threads as well.

    Args:
        scans: Scans of the same snapshot with the same options.
        work: What is done with a scan, whole or of some of its rows; it runs in another thread.
    """
    scans = list(scans)
    is_near = all(scan.is_near for scan in scans[:1])
    total = sum(scan.num_possible for scan in scans)
    part = scans[0].rows_of_a_part(total) if scans else 1
    if total <= part if is_near else len(scans) < 2:
        yield from ((scan, work(scan)) for scan in coalesced(scans, at_once=True))
        return

    def work_on(group: list[FragmentScan]) -> list[tuple[FragmentScan, _Result]]:
        return [(scan, work(scan)) for scan in (_read(group) if len(group) >= FEWEST else group)]

    # A scan that reads other columns for the rows that match divides itself, unless there are enough scans.
    has_late = scans[0].has_late_columns
    if has_late and len(scans) < 2 * num_threads():
        yield from ((scan, work(scan)) for scan in coalesced(scans, at_once=True))
        return
    groups = _divided(grouped(scans, at_once=True), total if has_late else part)
    for results in in_order(work_on, groups, requests=0 if is_near else _REMOTE_AT_ONCE):
        yield from results


def _divided(groups: Iterable[list[FragmentScan]], num_rows: int) -> Iterator[list[FragmentScan]]:
    """Yield groups that are read together, and scans of about `num_rows` rows each by itself."""
    for group in groups:
        if len(group) >= FEWEST:
            yield group
        else:
            yield from ([window] for scan in group for window in scan.parts(num_rows))


def grouped(scans: Iterable[FragmentScan], *, at_once: bool = False) -> Iterator[list[FragmentScan]]:
    """Yield scans in their order, in groups: groups of at least `FEWEST` scans are read together, others one by one.

    Args:
        scans: Scans of the same snapshot with the same options.
        at_once: Whether the caller needs all rows before it uses any; all groups are then equal, for all threads.
    """
    waiting: list[FragmentScan] = []
    num_bytes, limit = 0, max(MOST_BYTES // num_threads(), FIRST_BYTES) if at_once else FIRST_BYTES
    row_bytes: int | None = None
    for scan in scans:
        if row_bytes is None:
            row_bytes = _row_bytes(scan.first_columns)
        size = _estimate_bytes(scan, waiting[0] if waiting else None, row_bytes)
        if waiting and (size is None or num_bytes + size > limit):
            yield waiting
            waiting, num_bytes, limit = [], 0, limit if at_once else min(2 * limit, MOST_BYTES)
            size = _estimate_bytes(scan, None, row_bytes)
        if size is None:
            yield [scan]
            continue
        waiting.append(scan)
        num_bytes += size
    if waiting:
        yield waiting


def coalesced_rows(parts: Sequence[tuple[FragmentScan, Rows]]) -> Iterator[tuple[FragmentScan, Rows]]:
    """Yield scans and their rows in their order; where the rows are few and small, they are already read.

    Args:
        parts: Scans of the same snapshot with the same options, without a filter, and physical rows of each fragment.
    """
    for group in in_order(_with_rows, _group_rows(parts)):
        yield from group


def _group_rows(parts: Sequence[tuple[FragmentScan, Rows]]) -> Iterator[list[tuple[FragmentScan, Rows]]]:
    """Yield parts in groups whose rows are read together, as many groups as there are threads or more."""
    row_bytes = _row_bytes(parts[0][0].first_columns) if parts else 0
    is_worth_dividing = sum(len(rows) for _, rows in parts) > FEW_ROWS
    most_files = min(MOST_FILES, max(FEWEST, -(-len(parts) // num_threads()))) if is_worth_dividing else MOST_FILES
    waiting: list[tuple[FragmentScan, Rows]] = []
    num_rows, num_bytes = 0, 0
    for scan, rows in parts:
        stored = sum(file.file_size_bytes for file in scan.fragment.files)
        size = len(rows) * (row_bytes or stored // max(scan.fragment.physical_rows, 1))
        num_rows, num_bytes = num_rows + len(rows), num_bytes + size
        is_full = len(waiting) == most_files or num_rows > SMALL_FILE_ROWS or num_bytes > MOST_BYTES // num_threads()
        if waiting and is_full:
            yield waiting
            waiting, num_rows, num_bytes = [], len(rows), size
        waiting.append((scan, rows))
    if waiting:
        yield waiting


def _with_rows(parts: Sequence[tuple[FragmentScan, Rows]]) -> Sequence[tuple[FragmentScan, Rows]]:
    """Parts with their rows, which are read together if there are several parts and their files can be joined."""
    scans, chosen = [scan for scan, _ in parts], [rows for _, rows in parts]
    batch = None
    if len(scans) > 1:
        is_joined = _can_join(scans[0], None) and all(_can_join(scan, scans[0]) for scan in scans)
        batch = _read_rows(scans, scans[0].first_columns, chosen) if is_joined else None
    if batch is None:
        return parts
    starts = accumulate(map(len, chosen), initial=0)
    return [
        (
            replace(
                scan, read_rows=ReadRows(schema=scan.first_columns, rows=rows, batch=batch.slice(start, len(rows)))
            ),
            rows,
        )
        for start, (scan, rows) in zip(starts, parts, strict=False)
    ]


def _estimate_bytes(scan: FragmentScan, first: FragmentScan | None, row_bytes: int) -> int | None:
    """About how many bytes of a fragment are read; None if it should not be read together with the first fragment.

    Args:
        scan: The fragment's scan.
        first: The scan of the first fragment; None if this fragment is the first.
        row_bytes: Bytes of a row; 0 if they are not known.
    """
    size, rows = sum(file.file_size_bytes for file in scan.fragment.files), scan.fragment.physical_rows
    is_small = 0 < size <= SMALL_FILE_BYTES and rows <= SMALL_FILE_ROWS
    if size and not is_small and 0 < rows * row_bytes <= SMALL_COLUMNS_BYTES:
        is_small, size = True, rows * row_bytes
    return size if is_small and _can_join(scan, first) else None


def _row_bytes(columns: Schema) -> int:
    """Bytes of a row of some columns; 0 if there are no columns, or a column has no fixed width."""
    widths = [fixed_width(field.type) for field in schema_to_arrow(columns)]
    return sum(widths) if all(widths) else 0


def _can_join(scan: FragmentScan, first: FragmentScan | None) -> bool:
    """Whether a fragment has one file, which can be read together with the file of the first fragment."""
    if len(scan.fragment.files) != 1 or not scan.fragment.physical_rows or not scan.is_near:
        return False
    file = scan.fragment.files[0]
    if first is not None:
        return _columns(file) == _columns(first.fragment.files[0])
    columns = scan.first_columns
    is_whole = bool(columns.fields) and columns.only_ids(set(file.fields)) == columns
    return is_whole and (file.file_major_version, file.file_minor_version) >= (2, 1) and can_coalesce(columns)


def _columns(file: DataFile) -> object:
    return file.fields, file.column_indices, file.file_major_version, file.file_minor_version


def _read(scans: Sequence[FragmentScan]) -> Iterator[FragmentScan]:
    """Read the rows of scans together, and yield each scan with its rows, or without rows if that is not possible."""
    columns = scans[0].first_columns
    rows = _read_rows(scans, columns)
    if rows is None:
        yield from scans
        return
    matches = _match_filter(scans[0], rows)
    position = 0
    for scan in scans:
        count = scan.fragment.physical_rows
        scan_matches = None if matches is None else matches.slice(position, count)
        if scan_matches is None or scan_matches.true_count or scan.claims:
            batch = rows.slice(position, count)
            yield replace(
                scan, read_rows=ReadRows(schema=columns, rows=range(count), batch=batch, matches=scan_matches)
            )
        position += count


def _match_filter(scan: FragmentScan, rows: pa.RecordBatch) -> pa.Array | None:
    """Which rows match the filter; None without a filter, or if the filter needs other columns."""
    expression = scan.options.filter
    if expression is None or not set(columns_of(expression)) <= set(rows.schema.names):
        return None
    try:
        return matching_all(rows, scan.options.conjuncts or (expression,))
    except LanceError:
        return None  # if it fails only for deleted rows, the scans of single fragments will succeed


def _read_rows(
    scans: Sequence[FragmentScan], schema: Schema, chosen: Sequence[Rows] | None = None
) -> pa.RecordBatch | None:
    """Read all physical rows of some fragments, or chosen rows of each, in one batch.

    Returns:
        The rows; None if the fragments have to be read one by one, which also reports errors.
    """
    file = scans[0].fragment.files[0]
    try:
        readers = [open_file(scan.snapshot, scan.fragment.files[0], scan.opened) for scan in scans]
        counts = [reader.num_rows for reader in readers]
        if counts != [scan.fragment.physical_rows for scan in scans]:
            return None
        rows = None if chosen is None else np.concatenate([
            start + np.asarray(offsets, np.int64)
            for start, offsets in zip(accumulate(counts, initial=0), chosen, strict=False)
        ])  # fmt: skip
        columns = dict(file.columns())
        num_rows = sum(counts) if rows is None else len(rows)
        (batch,) = coalesce(readers).read(schema, columns, rows, batch_rows=num_rows)
    except (LanceError, ValueError):
        return None
    return batch
