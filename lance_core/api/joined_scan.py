"""Scans of many small fragments: their files are read together, some megabytes at a time.

A column of a hundred files of a thousand rows is decoded in one go, and cut into the rows of each fragment again. What
comes out is the same, batch by batch; only the time differs. It pays where reading is fast and decoding is slow: on a
local disk, or in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from lance_core.api.filter import columns_of, matching_all
from lance_core.api.fragment_scan import FragmentScan, ReadRows
from lance_core.api.read import opened_reader
from lance_core.errors import LanceError
from lance_core.file.joined import can_join, join
from lance_core.schema import Schema
from lance_core.table.fragment import DataFile

__all__ = ["joined"]

SMALL_FILE_BYTES: Final = 512 * 1024
"""Files of at most this size are read together."""

SMALL_FILE_ROWS: Final = 64 * 1024
"""The same for rows, which can take much more memory than bytes in the file."""

FIRST_BYTES: Final = 1024 * 1024
"""About so many bytes of them are read first, twice as many the next time, and so on."""

MOST_BYTES: Final = 16 * 1024 * 1024
"""About so many bytes are the most."""

FEWEST: Final = 4
"""Fewer fragments in a row are read one by one."""


def joined(scans: Iterable[FragmentScan]) -> Iterator[FragmentScan]:
    """The same scans in the same order, with the rows of small fragments already read.

    Small fragments without a row that matches the filter are left out.

    Args:
        scans: Scans with the same source and options.
    """
    waiting: list[FragmentScan] = []
    num_bytes, limit = 0, FIRST_BYTES
    for scan in scans:
        size = _joinable_bytes(scan, waiting[0] if waiting else None)
        if waiting and (size is None or num_bytes + size > limit):
            yield from _read(waiting)
            waiting, num_bytes, limit = [], 0, min(2 * limit, MOST_BYTES)
            size = _joinable_bytes(scan, None)
        if size is None:
            yield scan
            continue
        waiting.append(scan)
        num_bytes += size
    if waiting:
        yield from _read(waiting)


def _joinable_bytes(scan: FragmentScan, first: FragmentScan | None) -> int | None:
    """Size of the fragment's only file; None if it is not to be read together with the first one."""
    files = scan.fragment.files
    if len(files) != 1 or not scan.is_near:
        return None
    file = files[0]
    is_small = 0 < file.file_size_bytes <= SMALL_FILE_BYTES and 0 < scan.fragment.physical_rows <= SMALL_FILE_ROWS
    if not is_small or (file.file_major_version, file.file_minor_version) < (2, 1):
        return None
    if first is not None:
        return file.file_size_bytes if _columns(file) == _columns(first.fragment.files[0]) else None
    wanted = scan.first_columns
    is_whole = bool(wanted.fields) and wanted.only_ids(set(file.fields)) == wanted
    return file.file_size_bytes if is_whole and can_join(wanted) else None


def _columns(file: DataFile) -> object:
    return file.fields, file.column_indices, file.file_major_version, file.file_minor_version


def _read(scans: Sequence[FragmentScan]) -> Iterator[FragmentScan]:
    """The scans, with their rows if these can be read."""
    wanted = scans[0].first_columns
    rows = _rows_of(scans, wanted) if len(scans) >= FEWEST else None
    if rows is None:
        yield from scans
        return
    mask = _matches(scans[0], rows)
    position = 0
    for scan in scans:
        count = scan.fragment.physical_rows
        if mask is None or mask.slice(position, count).true_count:
            known = ReadRows(schema=wanted, rows=range(count), batch=rows.slice(position, count))
            yield replace(scan, known=known)
        position += count


def _matches(scan: FragmentScan, rows: pa.RecordBatch) -> pa.Array | None:
    """Which rows match the filter; None if there is none, or if it needs more than their columns."""
    expression = scan.options.filter
    if expression is None or not set(columns_of(expression)) <= set(rows.schema.names):
        return None
    try:
        return matching_all(rows, scan.options.conjuncts or (expression,))
    except LanceError:
        return None  # if it fails for deleted rows only, the scans of the fragments will not fail


def _rows_of(scans: Sequence[FragmentScan], wanted: Schema) -> pa.RecordBatch | None:
    """All physical rows of some fragments; None if they have to be read one by one, if only to see what is wrong."""
    file = scans[0].fragment.files[0]
    try:
        readers = [opened_reader(scan.source, scan.fragment.files[0], scan.opened) for scan in scans]
        if any(r.num_rows != scan.fragment.physical_rows for r, scan in zip(readers, scans, strict=True)):
            return None
        num_rows = sum(reader.num_rows for reader in readers)
        columns = dict(zip(file.fields, file.column_indices, strict=True))
        (batch,) = join(readers).read(wanted, columns, batch_rows=num_rows)
    except (LanceError, ValueError):
        return None
    return batch
