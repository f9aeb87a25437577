"""Match the rows of data, whose columns are to be set, to the rows of a table: by key, `_rowid` or `_rowaddr`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import IncompatibleConflictError, InvalidInputError, SchemaError
from lance_core.extension_types import has_extensions, is_json_type
from lance_core.file.pool import in_order
from lance_core.row_addresses import bitmap_of, make_row_addresses, offsets_of
from lance_core.schema import Schema, field_from_arrow, schema_to_arrow
from lance_core.schema.jsonb import jsonb_array
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import decode_row_ids_of
from lance_core.verbs.columns.write_columns.tasks import ColumnTask
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.files.conform import check_extension
from lance_core.verbs.rows.removal import live_rows
from lance_core.verbs.rows.source_rows import KeyIndex
from lance_core.verbs.scan.projection import ROW_ADDRESS, ROW_ID
from lance_core.verbs.scan.read_fragment import count_live, parallel_requests

_Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
_SHOWN = 5


def matched_rows(
    snapshot: Snapshot, tasks: Sequence[ColumnTask], data: pa.Table, on: Sequence[str]
) -> dict[int, tuple[pa.Array, pa.Array]]:
    """For each fragment, the addresses of the rows to set, and the numbers of the rows of the data with their values.

    Args:
        snapshot: The version.
        tasks: The fragments, and the rows of the scope.
        data: The data.
        on: The columns of the key; `_rowid` or `_rowaddr` alone.

    Raises:
        SchemaError: The key is not in the data or the table, or has another type.
        InvalidInputError: A key is null or occurs twice in the data, occurs twice in the scope, or is not in the scope.
    """
    keys = _fit_keys(snapshot.manifest.schema, data, on)
    index = KeyIndex(keys, list(on))
    _check_data(index, keys)

    def look(task: ColumnTask) -> _Found:
        fragment = snapshot.manifest.fragments.by_id(task.fragment_id)
        return _look_up(snapshot, fragment, BitMap.deserialize(task.scope), index, on)

    matches, counts = {}, np.zeros(len(index.counts), np.int64)
    results = in_order(look, tasks, requests=parallel_requests(snapshot.store))
    for task, (offsets, codes) in zip(tasks, results, strict=True):
        counts += np.bincount(codes, minlength=len(counts))
        if len(codes):
            addresses = pa.array(make_row_addresses(task.fragment_id, offsets), pa.uint64())
            matches[task.fragment_id] = (addresses, pa.array(index.first[codes]))
    _check_table(snapshot, index, keys, counts)
    return matches


def same_scope(
    snapshot: Snapshot, tasks: Sequence[ColumnTask], latest: Snapshot, whole: Sequence[ColumnTask], on: Sequence[str]
) -> tuple[ColumnTask, ...]:
    """The tasks of a later version for the rows of the scope of an earlier one, which are found by their key.

    Rows that others inserted since then, and rows that they moved into the condition of a scope, are not among them.

    Args:
        snapshot: The earlier version.
        tasks: Its fragments, and the rows of the scope.
        latest: The later version.
        whole: Tasks for all rows of the later version.
        on: The columns of the key.

    Raises:
        IncompatibleConflictError: The key does not identify the rows of the scope.
    """
    if not tasks:
        return ()
    keys = pa.concat_tables(_read_keys(snapshot, task, on) for task in tasks)
    index = KeyIndex(keys, list(on))
    later_tasks, counts = [], np.zeros(len(index.counts), np.int64)
    for task in whole:
        fragment = latest.manifest.fragments.by_id(task.fragment_id)
        offsets, codes = _look_up(latest, fragment, BitMap.deserialize(task.scope), index, on)
        counts += np.bincount(codes, minlength=len(counts))
        if len(offsets):
            later_tasks.append(replace(task, num_rows=len(offsets), scope=bitmap_of(offsets).serialize()))
    if (index.codes < 0).any() or (index.counts > 1).any() or (counts > 1).any():
        raise IncompatibleConflictError(
            f"Incompatible transaction: {snapshot.store.root}: rows moved since version {snapshot.manifest.version}, "
            f"and the key {list(on)} is null or not unique, so that the rows of that version are not known any more: "
            "open the table again, and write the columns again"
        )
    return tuple(later_tasks)


def _read_keys(snapshot: Snapshot, task: ColumnTask, on: Sequence[str]) -> pa.Table:
    """The keys of the rows of a task."""
    fragment, scope = snapshot.manifest.fragments.by_id(task.fragment_id), BitMap.deserialize(task.scope)
    ids = decode_row_ids_of(fragment) if on[0] == ROW_ID else None
    if ids is not None:
        return pa.table({ROW_ID: ids[offsets_of(scope)]})
    schema = schema_to_arrow(snapshot.manifest.schema.project(list(on)))
    part = scope if len(scope) < count_live(snapshot, fragment) else None
    batches = [batch for batch, _ in live_rows(snapshot, fragment, on, part)]
    return pa.Table.from_batches(batches, schema).select(list(on))


def _fit_keys(schema: Schema, data: pa.Table, on: Sequence[str]) -> pa.Table:
    """The key of the data, in the types of the table."""
    if not on:
        raise InvalidInputError("on names no column: give the columns of the key, or _rowid or _rowaddr")
    lacking = [name for name in on if name not in data.column_names]
    if lacking:
        raise SchemaError(f"the data lacks the key column {lacking[0]!r}; it has {data.column_names}")
    if set(on) & {ROW_ID, ROW_ADDRESS}:
        if len(on) > 1:
            raise InvalidInputError(
                f"{ROW_ID} and {ROW_ADDRESS} each identify a row: give one of them alone, not on={list(on)}"
            )
        kinds = pa.schema([pa.field(on[0], pa.uint64())])
    else:
        unknown = [name for name in on if name not in schema.names]
        if unknown:
            raise SchemaError(f"the table has no key column {unknown[0]!r}; it has {schema.names}")
        for name in on:
            if has_extensions(data.schema.field(name).type):
                check_extension(schema.column(name), field_from_arrow(data.schema.field(name)), name)
        kinds = schema_to_arrow(schema.project(list(on)))
    columns = [_fit_key(data.column(field.name), field) for field in kinds]
    return pa.table(columns, names=kinds.names).select(list(on))


def _fit_key(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if is_json_type(column.type):
        return pa.chunked_array([jsonb_array(chunk.storage, field.name) for chunk in column.chunks], field.type)
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"the key column {field.name!r} is {column.type} in the data and {field.type} in the table: {error}"
        ) from error


def _look_up(snapshot: Snapshot, fragment: Fragment, scope: BitMap, index: KeyIndex, on: Sequence[str]) -> _Found:
    """The offsets of the rows of the scope whose key is in the data, and the code of the key of each."""
    if on[0] in (ROW_ID, ROW_ADDRESS):
        offsets = offsets_of(scope)
        ids = decode_row_ids_of(fragment) if on[0] == ROW_ID else None
        names = make_row_addresses(fragment.id, offsets) if ids is None else ids[offsets]
        rows, codes = index.look_up(pa.table({on[0]: names}))
        return offsets[rows], codes
    parts: list[_Found] = []
    part = scope if len(scope) < count_live(snapshot, fragment) else None
    for batch, places in live_rows(snapshot, fragment, on, part):
        where = np.arange(places.start, places.stop) if isinstance(places, range) else places
        rows, codes = index.look_up(pa.Table.from_batches([batch]))
        parts.append((where[rows], codes))
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _check_data(index: KeyIndex, keys: pa.Table) -> None:
    nulls = int((index.codes < 0).sum())
    if nulls:
        raise InvalidInputError(f"the key is null in {nulls} rows of the data: a null key names no row")
    twice = np.flatnonzero(index.counts > 1)
    if len(twice):
        raise InvalidInputError(f"{len(twice)} keys occur twice in the data, such as {_show(index, keys, twice)}")


def _check_table(snapshot: Snapshot, index: KeyIndex, keys: pa.Table, counts: npt.NDArray[np.int64]) -> None:
    where = f"version {snapshot.manifest.version} of {snapshot.store.root}"
    twice, lacking = np.flatnonzero(counts > 1), np.flatnonzero(counts == 0)
    if len(twice):
        raise InvalidInputError(
            f"{len(twice)} keys of the data occur twice in {where}, such as {_show(index, keys, twice)}: give a key "
            "of more columns, or a scope (where) in which it is unique"
        )
    if len(lacking):
        raise InvalidInputError(
            f"{len(lacking)} of {keys.num_rows} rows of the data are not among the rows of the scope in {where}, such "
            f"as {_show(index, keys, lacking)}; nothing was written"
        )


def _show(index: KeyIndex, keys: pa.Table, codes: npt.NDArray[np.int64]) -> str:
    rows = keys.take(pa.array(np.sort(index.first[codes])[:_SHOWN])).to_pylist()
    return ", ".join(str(row) if len(row) > 1 else repr(next(iter(row.values()))) for row in rows)
