"""Change existing columns: rename, drop or cast columns, and allow or forbid nulls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.commit.loop import commit
from lance_core.encoding.concatenate import encode_as_dictionary
from lance_core.errors import ArgumentTypeError, InvalidInputError, SchemaError, UnsupportedError
from lance_core.extension_types import is_string_like, is_variable_list
from lance_core.schema import (
    JSON,
    UNASSIGNED,
    Field,
    Schema,
    check_primary_key,
    field_from_arrow,
    quote_path,
    rust_name,
    schema_to_arrow,
    split_path,
)
from lance_core.schema.field import map_fields
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Project
from lance_core.table.transaction import Transaction
from lance_core.verbs.columns.add import commit_merge
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import collecting_files
from lance_core.verbs.files.column_files import live_batches, replace_columns, spread, write_at_once, write_column_file
from lance_core.verbs.files.conform import check_column_name, describe_extension

Convert = Callable[[pa.ChunkedArray, pa.Field], pa.ChunkedArray]
"""Converts values of a column to the type of a field; raises if a value cannot be converted."""

_KEYS = {"path", "name", "nullable", "data_type"}
_TYPES: Final = {
    "name": (str, "a string"),
    "nullable": (bool, "True or False"),
    "data_type": (pa.DataType, "a type of pyarrow"),
}
_OUT_OF_RANGE = re.compile(r"Integer value (-?\d+) not in range")


def drop_columns(snapshot: Snapshot, columns: Sequence[str]) -> Manifest:
    """Commit a version without some columns; the data files stay.

    Raises:
        SchemaError: A column does not exist.
        InvalidInputError: No column would be left.
        UnsupportedError: A map would lose its keys or values.
    """
    schema = snapshot.manifest.schema
    removed = {_find_field(schema, path).id for path in columns}
    fields = tuple(left_field for field in schema.fields if (left_field := _without(field, removed)) is not None)
    if not fields:
        raise InvalidInputError("Cannot drop all columns from a dataset")
    _check_maps(schema, fields, removed)
    return _commit_projection(snapshot, replace(schema, fields=fields), preserves_nullability=True)


def alter_columns(snapshot: Snapshot, alterations: Sequence[Mapping[str, Any]]) -> Manifest:
    """Commit a version with changed columns, with the arguments of `LanceDataset.alter_columns`.

    Raises:
        SchemaError: A column does not exist, two would have one name, or a cast is not possible.
        InvalidInputError: A column that would no longer allow nulls has nulls, or an alteration is invalid.
        UnsupportedError: A field of a list or map would no longer allow nulls, a field inside of a map is cast, or a
            map's keys would allow nulls.
    """
    schema = snapshot.manifest.schema
    changes = [_parse_change(schema, alteration) for alteration in alterations]
    strict = [change for change in changes if change.nullable is False and change.old.nullable]
    casts = [change for change in changes if change.cast is not None]
    if strict and casts:
        raise InvalidInputError(
            "cannot make a column non-nullable and cast columns in the same call: apply the cast first, then the "
            "nullability change"
        )
    _check_cast_alone(changes, casts)
    for change in strict:
        _check_no_nulls(snapshot, change.path)
    altered = schema
    for change in sorted(changes, key=lambda change: change.cast is not None):  # a cast gives the column a new id
        altered = map_fields(altered, change.apply)
    _check_names(altered.fields)
    _check_maps(schema, altered.fields)
    for name in {field.name for field in altered.fields} - {field.name for field in schema.fields}:
        check_column_name(name)
    if any(change.nullable for change in changes):
        check_primary_key(altered.fields)
    if not casts:
        return _commit_projection(snapshot, altered, preserves_nullability=not strict)
    ids = {node.id for change in casts for node, _ in change.old.walk()}
    for index in snapshot.manifest.indices:
        if ids & {*index.fields, *index.covering_fields}:
            raise UnsupportedError(f"a column with an index cannot be cast: drop the index {index.name!r} first")
    return _cast(snapshot, altered.with_ids(snapshot.manifest.max_field_id + 1), casts)


def retype_columns(
    snapshot: Snapshot, types: Mapping[str, pa.DataType], convert: Convert, properties: Mapping[str, str] | None = None
) -> Manifest:
    """Commit a version in which columns have other types; a function converts their values.

    The version has no index on these columns.

    Args:
        snapshot: The version to change.
        types: The new type of each top-level column.
        convert: Called with a batch of a column's live values and the new field; returns the converted values.
        properties: Properties of the transaction.

    Raises:
        SchemaError: A column does not exist.
    """
    changes = [
        _Alteration(
            path=path, old=_find_field(snapshot.manifest.schema, path), cast=field_from_arrow(pa.field(path, kind))
        )
        for path, kind in types.items()
    ]
    altered = snapshot.manifest.schema
    for change in changes:
        altered = map_fields(altered, change.apply)
    return _cast(snapshot, altered.with_ids(snapshot.manifest.max_field_id + 1), changes, convert, properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alteration:
    """One change of a column, as `alter_columns` gives it.

    Attributes:
        path: The column.
        old: The column as it is.
        name: New name; None to keep it.
        nullable: Whether it allows nulls; None to keep that.
        cast: The field that it becomes, without ids; None if it keeps its type.
    """

    path: str
    old: Field
    name: str | None = None
    nullable: bool | None = None
    cast: Field | None

    def apply(self, field: Field) -> Field:
        """The changed field, if it is the column; other fields stay."""
        if field.id != self.old.id:
            return field
        if self.cast is not None:
            # The extension type is dropped with the old type.
            metadata = {key: value for key, value in field.metadata.items() if not key.startswith("ARROW:extension:")}
            metadata |= self.cast.metadata
            field = replace(
                self.cast,
                name=field.name,
                nullable=field.nullable,
                metadata=metadata,
                id=UNASSIGNED,
                primary_key=field.primary_key,
                clustering_key=field.clustering_key,
            )
        return replace(
            field,
            name=field.name if self.name is None else self.name,
            nullable=field.nullable if self.nullable is None else self.nullable,
        )


def _check_types(alteration: Mapping[str, Any]) -> None:
    for key, (kind, words) in _TYPES.items():
        if not isinstance(alteration.get(key), kind | None):
            what = f"{key} of {alteration['path']!r}"
            raise ArgumentTypeError(f"alter_columns: {what} is {words}, not {alteration[key]!r:.80}")


def _parse_change(schema: Schema, alteration: Mapping[str, Any]) -> _Alteration:
    if not isinstance(alteration, Mapping):
        raise InvalidInputError(
            f"alter_columns takes mappings with the key path, and name, nullable or data_type, not {alteration!r}"
        )
    for key in alteration:
        if key not in _KEYS:
            raise InvalidInputError(f"Unknown key: {key}. Valid keys are path, name, nullable, and data_type.")
    if not isinstance(alteration.get("path"), str):
        raise InvalidInputError(f"an alteration names its column under the key path; there is none in {alteration!r}")
    if not _KEYS.intersection(alteration) - {"path"}:
        raise InvalidInputError(
            f"At least one of name, nullable, or data_type must be specified, for {alteration['path']}"
        )
    path = alteration["path"]
    _check_types(alteration)
    old = _find_field(schema, path)
    kind = alteration.get("data_type")
    cast = None
    if kind is not None:
        if old.logical_type == JSON:
            raise SchemaError(
                f'Cannot cast column "{path}" of JSON to {rust_name(kind)}; json_extract in add_columns can'
            )
        target = field_from_arrow(pa.field(old.name, kind))
        _check_same_extension(old, target, path)
        if target.logical_type != old.logical_type or target.children:
            source_type = schema_to_arrow(Schema(fields=(old,))).field(0).type
            if not _can_cast(source_type, kind):
                raise SchemaError(f'Cannot cast column "{path}" from {rust_name(source_type)} to {rust_name(kind)}')
            cast = target
    return _Alteration(path=path, old=old, name=alteration.get("name"), nullable=alteration.get("nullable"), cast=cast)


def _check_same_extension(old: Field, new: Field, path: str) -> None:
    types = (describe_extension(old), describe_extension(new))
    if new.logical_type == old.logical_type and types[0] != types[1]:
        raise SchemaError(f'Cannot cast column "{path}" from {types[0]} to {types[1]}: add a column of that type')


def _check_cast_alone(changes: Sequence[_Alteration], casts: Sequence[_Alteration]) -> None:
    """Check that a column is cast once, and that nothing in it is changed as well, which the cast would replace."""
    for cast in casts:
        inside = {node.id for node, _ in cast.old.walk()}
        for change in changes:
            is_replaced = change.old.id != cast.old.id or change.cast is not None
            if change is not cast and change.old.id in inside and is_replaced:
                raise InvalidInputError(
                    f'"{change.path}" is changed, and "{cast.path}" is cast, in the same call: use one call of '
                    "alter_columns for each"
                )


def _check_maps(schema: Schema, altered: Sequence[Field], removed: Collection[int] = ()) -> None:
    """Check that each map that stays has its keys, which allow no nulls, and its values, all of their old types."""
    after = {node.id: node for top in altered for node, _ in top.walk()}
    for column in schema.fields:
        for node, _ in column.walk():
            if node.logical_type != "map":
                continue
            (entries,) = node.children
            parts = {entries.id, *(child.id for child in entries.children)}
            if node.id not in after and parts.isdisjoint(removed):
                continue
            key = after.get(entries.children[0].id)
            # A cast field has no id yet; a struct that loses its last field is dropped itself.
            is_whole = parts <= after.keys()
            is_cast = is_whole and any(inside.id == UNASSIGNED for inside, _ in after[node.id].walk())
            if is_cast or not is_whole or (key is not None and key.nullable and not entries.children[0].nullable):
                raise UnsupportedError(
                    f"column {column.name!r}: the entries, keys and values of the map {node.name!r} cannot be dropped "
                    "or cast, and its keys cannot allow nulls: add a column with the new map, and drop the old one"
                )


def _commit_projection(snapshot: Snapshot, schema: Schema, *, preserves_nullability: bool) -> Manifest:
    operation = Project(schema=schema, preserves_nullability=preserves_nullability)
    transaction = Transaction(read_version=snapshot.manifest.version, operation=operation)
    return commit(snapshot.store, transaction, base=snapshot.manifest).manifest


def _cast(
    snapshot: Snapshot,
    schema: Schema,
    casts: Sequence[_Alteration],
    convert: Convert | None = None,
    properties: Mapping[str, str] | None = None,
) -> Manifest:
    """Write the cast columns with new field ids; the old values stay in their files, where no field refers to them."""
    old_ids = {node.id for change in casts for node, _ in change.old.walk()}
    before = snapshot.manifest.schema.by_id().keys()
    new_ids = {node.id for node, _ in schema.walk() if node.id not in before}
    # Readers fail on a list whose fields lie in several files, and those of 0.1 and 2.0 on such a struct.
    splits_structs = snapshot.manifest.data_storage_version not in ("0.1", "2.0")
    new_ids = _with_whole_columns(schema, new_ids, splits_structs=splits_structs)
    old_ids = _with_whole_columns(snapshot.manifest.schema, old_ids, splits_structs=splits_structs)
    written = schema.only_ids(new_ids)
    read = snapshot.manifest.schema.only_ids(old_ids)
    live = {node.id for node, _ in schema.walk()}
    with collecting_files(snapshot) as files:

        def write(fragment: Fragment) -> Fragment:
            tables = _cast_rows(snapshot, fragment, read, written, convert)
            file = write_column_file(snapshot, fragment, written, tables, files)
            # The fragment drops files that held only cast columns.
            return replace_columns(fragment, file).without_dead_files(live)

        fragments = list(write_at_once(write, snapshot.manifest.fragments, snapshot.store))
        return commit_merge(files, fragments, schema, preserves_nullability=True, properties=properties)


def _with_whole_columns(schema: Schema, ids: set[int], *, splits_structs: bool) -> set[int]:
    """Add all fields of the columns that have some of these fields and cannot lie in several files."""
    whole = set(ids)
    for top in schema.fields:
        nodes = {node.id: node for node, _ in top.walk()}
        parents = [node for node in nodes.values() if not splits_structs or node.logical_type != "struct"]
        if any(parent.id not in ids and not ids.isdisjoint(node.id for node, _ in parent.walk()) for parent in parents):
            whole |= nodes.keys()
    return whole


def _cast_rows(
    snapshot: Snapshot, fragment: Fragment, read: Schema, target: Schema, convert: Convert | None
) -> Iterator[pa.Table]:
    arrow = schema_to_arrow(target)
    for rows, mask in live_batches(snapshot, fragment, read):
        try:
            columns = []
            for column, field in zip(rows.columns, arrow, strict=True):
                columns.append(_cast_column(column, field.type) if convert is None else convert(column, field))
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"alter_columns: {_cast_message(error, arrow.field(len(columns)))}") from error
        yield spread(pa.table(columns, schema=arrow), mask)


def _cast_message(error: pa.ArrowInvalid, field: pa.Field) -> str:
    """The message for a cast that failed, in pylance's words if a number is too large for the type."""
    match = _OUT_OF_RANGE.match(str(error))
    if match is None:
        return f"column {field.name!r}: {error}"
    return f"column {field.name!r}: Can't cast value {match[1]} to type {rust_name(field.type)}: {error}"


def _cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column; children of structs are matched by position, as they may have new names."""
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), kind)])
    if not pa.types.is_struct(kind):
        return _cast_values(column, kind)
    return pa.chunked_array([_cast_struct(chunk, kind) for chunk in column.chunks], kind)


def _cast_struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(kind):
        return _cast_values(array, kind)
    children = [_cast_struct(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
    mask = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _cast_values(values: Any, kind: pa.DataType) -> Any:
    """Cast values that are not structs; times without a zone are interpreted in the zone of the result."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_dictionary(kind):
        plain = _cast_values(values, kind.value_type)
        if isinstance(plain, pa.ChunkedArray):
            return pa.chunked_array([encode_as_dictionary(chunk, kind) for chunk in plain.chunks], kind)
        return encode_as_dictionary(plain, kind)
    is_local = pa.types.is_date(values.type) or (pa.types.is_timestamp(values.type) and values.type.tz is None)
    if is_local and pa.types.is_timestamp(kind) and kind.tz is not None:
        return pc.assume_timezone(values.cast(pa.timestamp(kind.unit)), kind.tz)
    return values.cast(kind)


def _can_cast(old: Any, new: Any) -> bool:
    """Whether both types are integers, floats, strings, bytes, lists of these, decimals, or castable temporal types.

    A column of nulls can become anything. Dictionaries are cast as their values are.
    """
    if pa.types.is_null(old):
        return True
    if pa.types.is_dictionary(old) or pa.types.is_dictionary(new):
        old, new = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (old, new))
        return bool(old == new) or _can_cast(old, new)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return True
    if pa.types.is_temporal(old) and pa.types.is_temporal(new):
        # The reference library uses the day in UTC for date64, but the day in the time zone for date32.
        is_day_of_zone = pa.types.is_date64(new) and pa.types.is_timestamp(old) and old.tz is not None
        return not is_day_of_zone and _has_cast(old, new)
    return _is_of_one_kind(old, new)


def _has_cast(old: pa.DataType, new: pa.DataType) -> bool:
    try:
        pa.array([], old).cast(new)
    except pa.ArrowNotImplementedError:
        return False
    return True


def _is_of_one_kind(old: pa.DataType, new: pa.DataType) -> bool:
    kinds = (
        pa.types.is_integer,
        pa.types.is_floating,
        is_string_like,
        lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    )
    if any(is_kind(old) and is_kind(new) for is_kind in kinds):
        return True
    if is_variable_list(old) and is_variable_list(new):
        return bool(old.value_type == new.value_type) or _is_of_one_kind(old.value_type, new.value_type)
    if pa.types.is_fixed_size_list(old) and pa.types.is_fixed_size_list(new):
        return bool(old.list_size == new.list_size) and _is_of_one_kind(old.value_type, new.value_type)
    return False


def _check_no_nulls(snapshot: Snapshot, path: str) -> None:
    parts = split_path(path)
    for end in range(1, len(parts)):
        above = snapshot.manifest.schema.column(".".join(map(quote_path, parts[:end])))
        if above.logical_type != "struct":
            raise UnsupportedError(
                f'Column "{path}" lies in a list or map, in which nulls cannot be forbidden: write the rows to a new '
                "table that has the column without nulls"
            )
    schema = snapshot.manifest.schema.project([path])
    for fragment in snapshot.manifest.fragments:
        for rows, _ in live_batches(snapshot, fragment, schema):
            column = rows.column(0)
            for _part in parts[1:]:
                column = pc.struct_field(column, [0]) if column.type.num_fields == 1 else column
            if column.null_count:
                raise InvalidInputError(f'Column "{path}" contains NULL values and cannot be made non-nullable')


def _check_names(fields: Sequence[Field]) -> None:
    for name, count in Counter(field.name for field in fields).items():
        if count > 1:
            raise SchemaError(f'Duplicate field name "{name}"')
        if not name:
            raise SchemaError("a column has an empty name")
    for field in fields:
        if field.logical_type == "struct":
            _check_names(field.children)


def _find_field(schema: Schema, path: str) -> Field:
    try:
        return schema.column(path)
    except SchemaError as error:
        raise SchemaError(f'Column "{path}" does not exist in the dataset: {error}') from error


def _without(field: Field, removed: set[int]) -> Field | None:
    if field.id in removed:
        return None
    children = tuple(left_child for child in field.children if (left_child := _without(child, removed)) is not None)
    if len(children) < len(field.children) and (field.logical_type != "struct" or not children):
        return None
    return replace(field, children=children)
