"""Update the rows that match a condition with new values of some columns, in one version.

By rows: the rows move with their new values to new fragments, and are deleted from the old fragments. By columns: new
files, with values for all rows of each fragment with matching rows, replace the columns that change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.encoding.concatenate import encode_as_dictionary
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.extension_types import is_any_list
from lance_core.row_addresses import offsets_of
from lance_core.schema import JSON, Field, Schema, schema_to_arrow
from lance_core.schema.jsonb import jsonb_array
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Update, UpdateMode
from lance_core.table.rowids import decode_row_ids_of
from lance_core.verbs.context.handle import Snapshot, retry_on_latest
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files
from lance_core.verbs.expressions.arrow import columns_of
from lance_core.verbs.files.column_files import patch_rows, replace_columns, write_at_once, write_column_file
from lance_core.verbs.rows.removal import MovedRows, each_matching, remove_rows, rows_of
from lance_core.verbs.rows.write_mode import WriteMode, check_columns_can_be_replaced, writes_less_by_columns
from lance_core.verbs.scan.conditions import evaluate, to_condition, to_expression
from lance_core.verbs.scan.projection import described_columns

_PLAIN_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]*")


def update_rows(
    snapshot: Snapshot,
    updates: Mapping[str, str | pc.Expression],
    where: str | pc.Expression | None,
    *,
    conflict_retries: int,
    retry_timeout: timedelta,
    data_storage_version: str | None = None,
    write_mode: WriteMode = WriteMode.AUTO,
) -> tuple[Manifest, int]:
    """Commit a version in which columns have new values in the rows that match.

    Returns:
        The new version, and how many rows changed.

    Raises:
        InvalidInputError: A column does not exist, or an expression does not fit it.
        UnsupportedError: A field of a struct is named rather than a column.
        RetryableConflictError: A commit of another writer conflicted with every attempt.
    """
    if not updates:
        raise InvalidInputError("No updates provided")
    if write_mode is WriteMode.REWRITE_COLUMNS and data_storage_version is not None:
        raise InvalidInputError(
            "write_mode='rewrite_columns' writes files of the dataset's version, and takes no data_storage_version"
        )

    def attempt(base: Snapshot) -> tuple[Manifest, int]:
        for name in updates:
            if name not in base.manifest.schema.names:
                _raise_unknown_column(name, updates[name], base.manifest.schema)
        arrow = schema_to_arrow(base.manifest.schema)
        expressions = {}
        for name, value in updates.items():
            is_string = base.manifest.schema.column(name).logical_type == JSON and not _is_stored_json(value, arrow)
            expressions[name] = to_expression(value, arrow, pa.string() if is_string else arrow.field(name).type)
        values = expressions
        described = described_columns(base.manifest)
        condition = None if where is None else to_condition(where, described or base.manifest.schema)
        rows = list(each_matching(base, condition, described))
        columns = Schema(fields=tuple(field for field in base.manifest.schema.fields if field.name in updates))
        by_columns = write_mode is WriteMode.REWRITE_COLUMNS
        if by_columns:
            check_columns_can_be_replaced(base.manifest, [fragment for fragment, _ in rows], columns)
        if write_mode is WriteMode.FEWEST_BYTES and data_storage_version is None:
            changes = [(fragment, offsets_of(bitmap)) for fragment, bitmap in rows]
            by_columns = writes_less_by_columns(base, changes, columns)
        with collecting_files(base) as files:
            if by_columns:
                operation, affected = _rewrite_columns(base, rows, columns, values, files), None
            else:
                operation, affected = _rewrite_rows(base, rows, values, files, data_storage_version)
            manifest = files.commit(operation, affected)
        return manifest, sum(len(bitmap) for _, bitmap in rows)

    return retry_on_latest(snapshot, attempt, conflict_retries=conflict_retries, retry_timeout=retry_timeout)


def _rewrite_rows(
    base: Snapshot,
    rows: Sequence[tuple[Fragment, BitMap]],
    values: Mapping[str, pc.Expression],
    files: UncommittedFiles,
    data_storage_version: str | None,
) -> tuple[Update, Mapping[int, BitMap]]:
    """Move rows with new values to new fragments, and return the operation and the rows that it removes."""
    arrow = schema_to_arrow(base.manifest.schema)
    with MovedRows(base, files, data_storage_version=data_storage_version) as moved:
        ids, ids_fragment = None, None
        for fragment, batch, offsets in rows_of(base, rows):
            if fragment is not ids_fragment:
                ids, ids_fragment = decode_row_ids_of(fragment), fragment
            moved.write(_change_rows(batch, values, arrow), None if ids is None else ids[offsets])
        fragments = moved.finish()
        removal = remove_rows(base, rows, files)
    operation = Update(
        removed_fragment_ids=removal.removed_fragment_ids,
        updated_fragments=removal.updated_fragments,
        new_fragments=fragments,
        fields_for_preserving_frag_bitmap=tuple(
            node.id for name in values for node, _ in base.manifest.schema.column(name).walk()
        ),
    )
    return operation, removal.affected_rows


def _rewrite_columns(
    base: Snapshot,
    rows: Sequence[tuple[Fragment, BitMap]],
    columns: Schema,
    values: Mapping[str, pc.Expression],
    files: UncommittedFiles,
) -> Update:
    """Write files with the new values, which replace the columns in each fragment with matching rows."""
    arrow = schema_to_arrow(base.manifest.schema)
    needed = {*values, *(name for value in values.values() for name in columns_of(value))}
    reads = Schema(fields=tuple(field for field in base.manifest.schema.fields if field.name in needed))

    def change_batch(old: pa.RecordBatch, _first: int, _last: int) -> pa.Table:
        return _change_rows(old, values, arrow)

    def write(part: tuple[Fragment, BitMap]) -> Fragment:
        fragment, bitmap = part
        tables = patch_rows(base, fragment, columns, offsets_of(bitmap), change_batch, reads=reads)
        return replace_columns(fragment, write_column_file(base, fragment, columns, tables, files))

    updated = tuple(write_at_once(write, rows, base.store))
    changed = {fragment.id: bitmap.serialize() for fragment, bitmap in rows}
    return Update(
        updated_fragments=updated,
        fields_modified=tuple(node.id for node, _ in columns.walk()) if updated else (),
        update_mode=UpdateMode.REWRITE_COLUMNS,
        updated_fragment_offset_bitmaps=changed if base.manifest.uses_stable_row_ids else {},
    )


def _is_stored_json(value: str | pc.Expression, columns: pa.Schema) -> bool:
    """Whether the value for a column of JSON is that of such a column, rather than a JSON string."""
    if not isinstance(value, str):
        return False
    from lance_core.verbs.expressions.sql import parse_column  # noqa: PLC0415 - it imports the SQL parser

    return bool(pa.types.is_large_binary(parse_column(value, columns).type))


def _raise_unknown_column(name: str, value: str | pc.Expression, schema: Schema) -> NoReturn:
    """Raise the error for a name that is not a column; fields of structs cannot be updated, as in pylance."""
    with suppress(SchemaError):
        top = schema.column(schema.project([name]).fields[0].name)
        if schema.column(name).id != top.id:
            new = value if isinstance(value, str) else "value"
            struct_sql = _rebuild_struct(top, _quote(top.name), schema.column(name).id, new)
            raise UnsupportedError(
                f"{name!r} is a field of a struct, which cannot be updated by itself; "
                f"give {top.name!r} a new value as a whole, which keeps null structs null: {struct_sql}"
            )
    raise InvalidInputError(f"Column {name!r} does not exist in dataset schema; it has {schema.names}")


def _rebuild_struct(field: Field, path: str, changed: int, value: str) -> str:
    """SQL for a struct value in which one field, given by its id, has a new value."""
    parts = []
    for child in field.children:
        child_value = f"{path}.{_quote(child.name)}"
        if child.id == changed:
            child_value = value
        elif any(node.id == changed for node, _ in child.walk()):
            child_value = _rebuild_struct(child, child_value, changed, value)
        name = child.name.replace("'", "''")
        parts.append(f"'{name}', {child_value}")
    return f"CASE WHEN {path} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


def _quote(name: str) -> str:
    """A name as an SQL identifier."""
    return name if _PLAIN_IDENTIFIER.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _change_rows(rows: pa.RecordBatch, values: Mapping[str, pc.Expression], schema: pa.Schema) -> pa.Table:
    """The rows with their new values, cast to the types of the columns."""
    table = pa.Table.from_batches([rows])
    computed = evaluate(table, values)
    for name in values:
        field = schema.field(name)
        column = computed.column(name)
        if pa.types.is_string(column.type) and (field.metadata or {}).get(b"ARROW:extension:name") == b"lance.json":
            column = pa.chunked_array([jsonb_array(chunk, name) for chunk in column.chunks], field.type)
        if not _have_common_fields(column.type, field.type):
            raise InvalidInputError(
                f"column {name!r}: the new value of type {column.type} shares no field with {field.type}"
            )
        if column.type != field.type:
            try:
                column = _cast_chunks(column, field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidInputError(f"column {name!r}: {error}") from error
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


def _cast_chunks(column: pa.ChunkedArray, kind: Any) -> pa.ChunkedArray:
    """Values in another type; Arrow itself casts only strings to dictionaries."""
    if not pa.types.is_dictionary(kind):
        return column.cast(kind)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return pa.chunked_array([encode_as_dictionary(chunk, kind) for chunk in column.cast(kind.value_type).chunks], kind)


def _have_common_fields(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether each struct shares a field with the struct to which it is cast; otherwise Arrow's cast returns nulls."""
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        shared = {f.name for f in left} & {f.name for f in right}
        pairs = [(left.field(name).type, right.field(name).type) for name in shared]
        return (bool(pairs) or not right.num_fields) and all(_have_common_fields(*pair) for pair in pairs)
    if is_any_list(left) and is_any_list(right):
        return _have_common_fields(left.value_type, right.value_type)
    return True
