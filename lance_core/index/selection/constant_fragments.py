"""Finds fragments that hold a single value in a column, by zone maps: a condition is true for all rows or for none.

A fragment counts only if exactly one segment covers it, and the zones span all of its rows without overlapping, with
the same value, no null and no NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.index.kinds.zonemap import ZoneMap
from lance_core.index.query.rows import Bools, View
from lance_core.index.selection.candidates import view_of
from lance_core.index.selection.segments import IndexReader, Segment, find_usable_segments
from lance_core.schema import arrow_type_of
from lance_core.table.manifest.manifest import Manifest


def find_constant_columns(
    manifest: Manifest, columns: Sequence[str], reader: IndexReader
) -> tuple[Bools, pa.Table] | None:
    """The fragments that hold one value in each of some columns.

    Args:
        manifest: The version.
        columns: Names of columns, at least one.
        reader: Reads its indices.

    Returns:
        For each fragment whether it has single values, and these values, one row per fragment; None if no fragment has
        them.
    """
    fields = {field.name: field for field in manifest.schema.fields}
    nodes = [fields.get(name) for name in columns]
    groups = [
        [segments for segments in find_usable_segments(manifest, node) if segments[0].index.kind == "ZoneMap"]
        for node in nodes
        if node is not None
    ]
    if len(groups) < len(nodes) or not all(groups):
        return None
    view = view_of(manifest)
    is_constant = np.ones(len(view.ids), np.bool_)
    column_values: list[pa.Array] = []
    for node, indices in zip(nodes, groups, strict=True):
        assert node is not None
        has_one_value, values = _find_in_index(view, indices[0], reader, arrow_type_of(node))
        is_constant &= has_one_value
        column_values.append(values)
    if not is_constant.any():
        return None
    places = pa.array(np.flatnonzero(is_constant))
    return is_constant, pa.Table.from_arrays([values.take(places) for values in column_values], names=list(columns))


def _find_in_index(
    view: View, segments: Sequence[Segment], reader: IndexReader, kind: pa.DataType
) -> tuple[Bools, pa.Array]:
    """The fragments that hold one value, and the value of each."""
    is_constant, vouched = np.zeros(len(view.ids), np.bool_), np.zeros(len(view.ids), np.int64)
    values = pa.nulls(len(view.ids), kind)
    if pa.types.is_floating(kind):
        return is_constant, values
    for segment in segments:
        covered = view.covered(segment.covered)
        vouched += covered
        content = reader.try_read(segment.index, kind)
        if not isinstance(content, ZoneMap):
            continue
        has_one_value, first = _find_in_zones(content, view, covered)
        is_constant |= has_one_value
        values = pc.if_else(pa.array(has_one_value), content.lows.take(pa.array(first)), values)
    return is_constant & (vouched == 1), values


def _find_in_zones(
    zones: ZoneMap, view: View, covered: Bools
) -> tuple[Bools, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The fragments that hold one value, and a zone of each."""
    count = len(view.ids)
    first = np.zeros(count, np.int64)
    if not len(zones):
        return np.zeros(count, np.bool_), first
    where, order, is_whole = zones.layout(view, covered)
    same = pc.fill_null(pc.equal(zones.lows, zones.highs), False).to_numpy(zero_copy_only=False)
    same = same & (zones.nulls == 0) & (zones.nans == 0)
    first[where] = order
    lows = zones.lows.take(pa.array(order))
    like_first = pc.fill_null(pc.equal(lows, zones.lows.take(pa.array(first[where]))), False)
    differs = ~(same[order] & like_first.to_numpy(zero_copy_only=False))
    return covered & is_whole & (np.bincount(where, weights=differs, minlength=count) == 0), first
