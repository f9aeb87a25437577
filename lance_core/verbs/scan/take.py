"""Take rows by position or by row address; only the pages and chunks with these rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.encoding.concatenate import take_table_rows
from lance_core.errors import InvalidInputError
from lance_core.row_addresses import fragment_ids_of, offsets_of, row_offsets
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.projection import rows_without_columns
from lance_core.verbs.scan.read_fragment import Rows, count_file_rows, count_live_each
from lance_core.verbs.scan.small_fragments import coalesced_rows

_Integers = npt.NDArray[np.int64]


def take_rows(
    snapshot: Snapshot, fragments: Sequence[Fragment], indices: Sequence[int] | pa.Array, options: ScanOptions
) -> pa.Table:
    """Rows at positions among the live rows of the fragments, in the given order, with repetitions.

    Raises:
        InvalidInputError: A position is out of range.
    """
    unique, order = np.unique(whole_numbers("indices", indices), return_inverse=True)
    counts = np.array(count_live_each(snapshot, fragments), dtype=np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    if len(unique) and (unique[0] < 0 or unique[-1] >= total):
        outside = unique[0] if unique[0] < 0 else unique[-1]
        raise InvalidInputError(f"row {outside} is outside the {total} rows of {snapshot.store.root}")
    owner = np.searchsorted(ends, unique, side="right")
    parts = []
    for position in np.unique(owner).tolist():
        rows = unique[owner == position] - (ends[position] - counts[position])
        parts.append((fragments[position], _find_physical_offsets(snapshot, fragments[position], rows)))
    return in_order(_gather(snapshot, parts, options), order)


def whole_numbers(name: str, numbers: Any) -> npt.NDArray[np.int64] | npt.NDArray[np.uint64]:
    """Row numbers from any sequence as an array of int64, or of uint64 if they have that type or a number needs it.

    Args:
        name: The name of the numbers in errors.
        numbers: A sequence or array of integers.

    Raises:
        InvalidInputError: The numbers are not a sequence of integers.
    """
    if isinstance(numbers, list | tuple) and any(type(number) is bool for number in numbers):
        # Python's booleans count as integers.
        numbers = [int(number) if type(number) is bool else number for number in numbers]
    if hasattr(numbers, "to_numpy"):
        numbers = numbers.to_numpy(zero_copy_only=False) if isinstance(numbers, pa.Array) else numbers.to_numpy()
    is_list = isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes | Mapping)
    try:
        array = np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers) if is_list else None)
        if (
            array.dtype == object
            and array.ndim == 1
            and array.size
            and all(isinstance(scalar, pa.Scalar) for scalar in array)
        ):
            array = np.asarray([scalar.as_py() for scalar in array])
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InvalidInputError(f"{name} must be a list or an array of integers, not {numbers!r}")
    return array.astype(np.uint64) if array.dtype == np.uint64 else array.astype(np.int64)


def take_addresses(
    snapshot: Snapshot, fragments: Sequence[Fragment], addresses: npt.NDArray[np.uint64], options: ScanOptions
) -> pa.Table:
    """Rows at these addresses, which must all exist, in the given order.

    Args:
        snapshot: The version.
        fragments: Fragments that contain the rows.
        addresses: Fragment id << 32 | row offset.
        options: The columns and row columns to return; other options are ignored.
    """
    unique, order = np.unique(addresses, return_inverse=True)
    ids, offsets = fragment_ids_of(unique), row_offsets(unique)
    by_id = {fragment.id: fragment for fragment in fragments}
    parts = [(by_id[number], offsets[ids == number]) for number in np.unique(ids).tolist()]
    return in_order(_gather(snapshot, parts, options), order)


def take_offsets(snapshot: Snapshot, fragment: Fragment, offsets: _Integers, options: ScanOptions) -> pa.Table:
    """Rows of a fragment at ascending physical offsets without repetition, which must all exist."""
    return _gather(snapshot, [(fragment, offsets)], options)


def _gather(snapshot: Snapshot, parts: Sequence[tuple[Fragment, _Integers]], options: ScanOptions) -> pa.Table:
    """Rows of fragments, given by ascending offsets without repetition, one fragment after the other."""
    options = replace(options, batch_size=None)
    schema, projection = options.result_schema, options.result
    batches: list[pa.RecordBatch] = []
    for scan, rows in coalesced_rows(
        [(FragmentScan(snapshot, fragment, options), _as_range(rows)) for fragment, rows in parts]
    ):
        batches.extend(projection.apply(batch, schema) for batch in scan.rows(rows))
    return pa.Table.from_batches(batches, schema=schema)


def _as_range(offsets: _Integers) -> Rows:
    """Offsets without a gap as a range, which copies less; others as they are."""
    whole = len(offsets) > 0 and int(offsets[-1]) - int(offsets[0]) + 1 == len(offsets)
    return range(int(offsets[0]), int(offsets[-1]) + 1) if whole else offsets


def in_order(table: pa.Table, order: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> pa.Table:
    """The rows of a table in the order of these positions; Arrow's `take` counts no rows of a table without columns."""
    is_same = len(order) == table.num_rows and bool((np.diff(order) == 1).all())
    if not table.num_columns:
        return pa.Table.from_batches([rows_without_columns(len(order))], schema=table.schema)
    return table if is_same else take_table_rows(table, pa.array(order))


def _find_physical_offsets(snapshot: Snapshot, fragment: Fragment, rows: _Integers) -> _Integers:
    """The physical offsets of live rows, given by their positions among the live rows."""
    deletions = snapshot.deletions(fragment)
    if deletions is None:
        return rows
    deleted = offsets_of(deletions.within(count_file_rows(snapshot, fragment)).bitmap)
    # The number of live rows before each deleted row: the deleted rows before a live row follow from it.
    before = deleted - np.arange(len(deleted))
    return rows + np.searchsorted(before, rows, side="right")
