"""Whether the values of an index are those of stored rows: an index can outlive rows that a compaction removed.

Only kinds that list their values can be checked: ZONEMAP, BITMAP, BTREE, LABEL_LIST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import LanceError
from lance_core.index.kinds import bitmap, btree, zonemap
from lance_core.index.kinds.files import open_file, read_columns
from lance_core.index.kinds.registry import is_known
from lance_core.table.fragment import Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.index import IndexMetadata
from lance_core.verbs.context.handle import Session, Snapshot
from lance_core.verbs.indices.build import IndexedField, indexed_field
from lance_core.verbs.rows.removal import live_rows

_ROWS: Final = 1 << 20
"""Values of stored rows that are compared at a time."""

_FILES: Final[Mapping[str, Mapping[str, list[str]]]] = {
    "ZoneMap": {zonemap.FILE: ["min", "max"]},
    "Bitmap": {bitmap.FILE: ["keys"]},
    "LabelList": {bitmap.FILE: ["keys"]},
    "BTree": {btree.DATA_FILE: ["values"], btree.LOOKUP_FILE: ["min", "max"]},
}


def open_stored_rows(snapshot: Snapshot, fragments: Sequence[Fragment]) -> Snapshot:
    """A version with all rows that its files store: without deletion files, and without indices, which may be wrong."""
    whole = [replace(fragment, deletion_file=None) for fragment in fragments]
    manifest = replace(snapshot.manifest, fragments=FragmentList.of(whole), indices=())
    return Snapshot(snapshot.store, manifest, snapshot.options, Session())


def lists_values(index: IndexMetadata) -> bool:
    """Whether the values of an index can be read."""
    return index.kind in _FILES and is_known(index)


def holds_only_stored_values(snapshot: Snapshot, index: IndexMetadata) -> bool:
    """Whether each value of an index is a value of a stored row of the version; False if either cannot be read.

    Args:
        snapshot: A version that has the index.
        index: The index, whose values can be read.
    """
    try:
        field = indexed_field(snapshot.manifest.schema, index.fields[0])
        left = _read_index_values(snapshot, index)
        for values in _read_stored_values(snapshot, field):
            if not len(left):
                break
            left = left.filter(pc.invert(pc.is_in(left, value_set=_drop_repeats(values).cast(left.type))))
    except (LanceError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return not len(left)


def _read_index_values(snapshot: Snapshot, index: IndexMetadata) -> pa.Array:
    """The distinct values of an index."""
    store, folder = snapshot.locate_index(index)
    chunks: list[pa.Array] = []
    for name, columns in _FILES[index.kind].items():
        table = read_columns(open_file(store, folder, name, index), columns)
        chunks += [chunk for column in columns for chunk in table.column(column).chunks]
    return _drop_repeats(pa.chunked_array(chunks)) if chunks else pa.nulls(0)


def _drop_repeats(values: pa.ChunkedArray) -> pa.Array:
    """The distinct values without nulls; zeros have one sign."""
    distinct = pc.unique(values.drop_null())
    if pa.types.is_float16(distinct.type):
        distinct = distinct.cast(pa.float32())
    return pc.add(distinct, pa.scalar(0.0, distinct.type)) if pa.types.is_floating(distinct.type) else distinct


def _read_stored_values(snapshot: Snapshot, field: IndexedField) -> Iterator[pa.ChunkedArray]:
    """The values of a field in all stored rows; for lists, their elements."""
    whole = open_stored_rows(snapshot, snapshot.manifest.fragments)
    waiting: list[pa.Array] = []
    for fragment in whole.manifest.fragments:
        for batch, _ in live_rows(whole, fragment, [field.nodes[0].name]):
            values = field.values(batch)
            is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
            waiting.append(values.flatten() if is_list else values)
            if sum(map(len, waiting)) >= _ROWS:
                yield pa.chunked_array(waiting)
                waiting = []
    if waiting:
        yield pa.chunked_array(waiting)
