"""Rows by position: only the pages and chunks that hold them are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.api.read import physical_rows, read_fragment
from lance_core.api.scan import ScanOptions, live_count, with_types
from lance_core.api.source import Source
from lance_core.errors import InvalidInputError
from lance_core.schema import resolve_extensions, schema_to_arrow
from lance_core.table.fragment import Fragment

__all__ = ["take_rows"]


def take_rows(
    source: Source, fragments: Sequence[Fragment], indices: Sequence[int] | pa.Array, options: ScanOptions
) -> pa.Table:
    """Rows at positions among the live rows of the fragments, in the order asked for, with repetitions.

    Raises:
        InvalidInputError: A position lies outside.
    """
    wanted = np.asarray(indices, dtype=np.int64)
    unique, order = np.unique(wanted, return_inverse=True)
    counts = np.array([live_count(source, fragment) for fragment in fragments], dtype=np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    if len(unique) and (unique[0] < 0 or unique[-1] >= total):
        outside = unique[0] if unique[0] < 0 else unique[-1]
        raise InvalidInputError(f"row {outside} lies outside the {total} rows")
    owner = np.searchsorted(ends, unique, side="right")
    schema = resolve_extensions(schema_to_arrow(options.schema))
    batches: list[pa.RecordBatch] = []
    for position in np.unique(owner).tolist():
        rows = unique[owner == position] - (ends[position] - counts[position])
        offsets = _physical_offsets(source, fragments[position], rows)
        found = read_fragment(source, fragments[position], options.schema, offsets)
        batches.extend(with_types(batch, schema) for batch in found)
    table = pa.Table.from_batches(batches, schema=schema)
    return table if _is_identity(order, len(unique)) else table.take(pa.array(order))


def _physical_offsets(source: Source, fragment: Fragment, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the live rows with these numbers lie in the files."""
    deletions = source.deletions(fragment)
    if deletions is None:
        return rows
    return np.flatnonzero(deletions.live_rows(physical_rows(source, fragment)))[rows]


def _is_identity(order: npt.NDArray[np.int64], length: int) -> bool:
    return len(order) == length and bool((np.diff(order) == 1).all())
