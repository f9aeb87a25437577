"""Project the output columns of a scan: stored columns, fields of structs, row columns and computed columns.

    columns               read from the files     returned
    None                  all columns             all columns
    ["a", "s.x"]          a, and x of s           a, and a column named "s.x"
    {"y": "a + s.x"}      a, and s                y
    ["_rowid", "a"]       a                       _rowid, a

with_row_id and with_row_address add their columns at the end.

Row columns are stored in no data file, but scans can return them and filters can use them:

_rowid                        stable row id where the dataset has them, else the row address
_rowaddr                      fragment id << 32 | row offset in the fragment
_rowoffset                    position among the live rows of the dataset, from 0
_row_created_at_version       version in which the row was added
_row_last_updated_at_version  version in which the row was last changed

Blob columns are returned as descriptions or payloads, by the argument `blob_handling`:

    blob_handling          blobs of 2.0 and 2.1           blobs of 2.2
    None, *_descriptions   struct of position and size    struct of kind, position, size, blob_id and blob_uri
    all_binary             large_binary                   large_binary
    as_stored              large_binary                   struct of data and uri, as in the table's schema

No payload is read for descriptions. Files of version 0.1 store payloads like other bytes, without descriptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.structural.blob import describe_field
from lance_core.errors import ArgumentTypeError, CorruptFileError, InvalidInputError, SchemaError
from lance_core.extension_types import empty_table, has_extensions
from lance_core.row_addresses import make_row_addresses
from lance_core.schema import (
    JSON,
    Field,
    Schema,
    field_to_arrow,
    resolve_extensions,
    schema_to_arrow,
    split_path,
)
from lance_core.schema.field import BLOB_V2_NAME, is_blob, is_blob_v2, is_packed, map_fields
from lance_core.schema.relabel import relabel
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.rowids import U64Array, decode_row_ids, decode_versions
from lance_core.verbs.expressions.arrow import columns_of, evaluated, stored_types
from lance_core.verbs.expressions.printed import format_expr
from lance_core.verbs.expressions.sql_meaning import with_sql_meaning
from lance_core.verbs.scan.read_fragment import Rows

ROW_ID: Final = "_rowid"
ROW_ADDRESS: Final = "_rowaddr"
ROW_OFFSET: Final = "_rowoffset"
CREATED_AT: Final = "_row_created_at_version"
UPDATED_AT: Final = "_row_last_updated_at_version"

ROW_COLUMNS: Final = (ROW_ID, ROW_ADDRESS, ROW_OFFSET, CREATED_AT, UPDATED_AT)

_FIRST_VERSION: Final = 1
"""The version of all rows in a dataset that does not record the versions of rows."""


def row_field(name: str) -> pa.Field:
    """The Arrow field of one of `ROW_COLUMNS`."""
    return pa.field(name, pa.uint64())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """The row columns of one fragment.

    Attributes:
        fragment: The fragment.
        names: The wanted row columns, in order.
        num_rows: Physical rows of the fragment.
        live: Which physical rows are alive; None for all.
        rows_before: Live rows of the dataset before this fragment.
    """

    fragment: Fragment
    names: Sequence[str]
    num_rows: int
    live: npt.NDArray[np.bool_] | None
    rows_before: int

    def values(self) -> Sequence[tuple[str, Callable[[Rows], U64Array]]]:
        """Each name with a function that returns the values for some physical rows."""
        return [(name, self._column(name)) for name in self.names]

    def _column(self, name: str) -> Callable[[Rows], U64Array]:
        if name == ROW_OFFSET:
            return self._offsets()
        stored = {
            ROW_ID: (self.fragment.row_ids, decode_row_ids),
            CREATED_AT: (self.fragment.created_at_versions, decode_versions),
            UPDATED_AT: (self.fragment.last_updated_at_versions, decode_versions),
        }
        data, decode = stored.get(name, (None, decode_row_ids))
        if data is not None:
            # Datasets with these columns always record the number of rows.
            num_rows = self.fragment.physical_rows
            numbers = decode(data, num_rows)
            if len(numbers) != num_rows:
                raise CorruptFileError(
                    f"fragment {self.fragment.id}: has {name} for {len(numbers)} rows, the manifest says {num_rows}"
                )
            return lambda rows: numbers[_as_selection(rows)]
        if name in (CREATED_AT, UPDATED_AT):
            return lambda rows: np.full(len(rows), _FIRST_VERSION, np.uint64)
        return self._addresses

    def _addresses(self, rows: Rows) -> U64Array:
        where = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
        return make_row_addresses(self.fragment.id, where)

    def _offsets(self) -> Callable[[Rows], U64Array]:
        alive = np.ones(self.num_rows, np.bool_) if self.live is None else self.live
        # The position of a deleted row is the number of live rows before it.
        positions = (np.cumsum(alive) - alive + self.rows_before).astype(np.uint64)
        return lambda rows: positions[_as_selection(rows)]


def with_row_columns(
    batch: pa.RecordBatch,
    added: Sequence[tuple[str, Callable[[Rows], U64Array]]],
    where: Rows,
    live: npt.NDArray[np.bool_] | None,
) -> pa.RecordBatch:
    """The batch with row columns; if `live` is given, ids and addresses of deleted rows are null."""
    if not added:
        return batch
    columns, fields = list(batch.columns), list(batch.schema)
    for name, values in added:
        dead = ~rows_at(live, where) if live is not None and name in (ROW_ID, ROW_ADDRESS) else None
        columns.append(pa.array(values(where), pa.uint64(), mask=dead))
        fields.append(row_field(name))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))


def rows_at(mask: npt.NDArray[np.bool_], where: Rows) -> npt.NDArray[np.bool_]:
    """The entries of a mask of all physical rows for some rows."""
    return mask[_as_selection(where)]


def _as_selection(rows: Rows) -> slice | npt.NDArray[np.int64]:
    return slice(rows.start, rows.stop) if isinstance(rows, range) else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputColumn:
    """One column of the result.

    Attributes:
        field: Its name and type.
        path: Its path in the columns that are read; empty for a computed one.
        expression: The expression that computes it; None if it is read.
    """

    field: pa.Field
    path: tuple[str, ...] = ()
    expression: pc.Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Columns to read, and the output columns that are made of them.

    Attributes:
        schema: The columns to read from the files.
        outputs: The output columns; None for the columns that are read.
    """

    schema: Schema
    outputs: tuple[OutputColumn, ...] | None = None

    @classmethod
    def of(
        cls, schema: Schema, columns: Sequence[str] | Mapping[str, str | pc.Expression] | None, *, flatten: bool = True
    ) -> Projection:
        """The projection for the argument `columns` of a scan.

        Args:
            schema: The dataset's columns.
            columns: Names and dotted paths; or a mapping from names to SQL or Arrow expressions; None for all columns.
            flatten: True makes a separate column of a dotted path. False makes a struct with only that field; a stored
                column that is named again is then returned once, and a row column as often as it is named.

        Raises:
            ArgumentTypeError: A name in a mapping is not a string, or a value is neither SQL nor an expression.
            InvalidInputError: `columns` is not a list of names or a mapping, a column is named twice, or an expression
                is invalid.
            SchemaError: A column does not exist.
            UnsupportedError: An expression uses a function or syntax that is not supported.
        """
        if columns is None:
            return cls(schema=schema)
        if isinstance(columns, str):
            raise InvalidInputError(f"columns is a list of names, not the string {columns!r}")
        if isinstance(columns, Mapping):
            return cls._of_expressions(schema, columns)
        names = _check_names(columns, distinct=flatten)
        column_names = set(schema.names)
        if column_names.issuperset(names):
            return cls(schema=schema.project(list(dict.fromkeys(names))))
        stored = [name for name in names if name in column_names or name not in ROW_COLUMNS]
        by_name = {field.name: field for field in schema.fields}
        read = _whole_packed(schema.project(list(dict.fromkeys(stored))), by_name)
        if not flatten:
            names = _drop_repeated(
                [split_path(name)[0] if name not in column_names else name for name in names], column_names
            )
        outputs = []
        for name in names:
            if name in ROW_COLUMNS and name not in column_names:
                outputs.append(OutputColumn(field=row_field(name), path=(name,)))
                continue
            path = (name,) if name in column_names else tuple(split_path(name))
            outputs.append(OutputColumn(field=_find_field(read, path).with_name(name), path=path))
        return cls(schema=read, outputs=tuple(outputs))

    @classmethod
    def _of_expressions(cls, schema: Schema, columns: Mapping[str, str | pc.Expression]) -> Projection:
        from lance_core.verbs.expressions.sql import parse_column  # noqa: PLC0415 - it imports the SQL parser

        input_schema = with_row_fields(schema)
        outputs = []
        read: dict[str, None] = {}
        for name, definition in columns.items():
            if not isinstance(name, str):
                raise ArgumentTypeError(f"columns: a name is a string, not {name!r}")
            if not isinstance(definition, str | pc.Expression):
                raise ArgumentTypeError(
                    f"columns: {name!r} is an SQL string or a pyarrow expression, not {type(definition).__name__}"
                )
            path = _find_typed_path(schema, definition) if isinstance(definition, str) else ()
            if path:
                outputs.append(OutputColumn(field=_find_field(schema, path).with_name(name), path=path))
                read.setdefault(path[0])
                continue
            if isinstance(definition, pc.Expression):
                expression = with_sql_meaning(definition, stored_types(input_schema))
                kind = _type_of(expression, input_schema)
            else:
                parsed = parse_column(definition, input_schema)
                expression, kind = parsed.expression, parsed.type
            outputs.append(OutputColumn(field=pa.field(name, kind), expression=expression))
            read.update(dict.fromkeys(columns_of(expression)))
        stored = [name for name in read if name not in ROW_COLUMNS or name in schema.names]
        return cls(schema=schema.project(stored), outputs=tuple(outputs))

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The row columns that the output columns need."""
        needed: dict[str, None] = {}
        for output in self.outputs or ():
            names = output.path[:1] if output.expression is None else columns_of(output.expression)
            needed.update(dict.fromkeys(name for name in names if name in ROW_COLUMNS))
        return tuple(name for name in needed if name not in self.schema.names)

    def result(self, row_columns: Sequence[str]) -> pa.Schema:
        """Schema of the output, with these row columns at the end."""
        stored = schema_to_arrow(self.schema)
        fields = list(resolve_extensions(stored)) if self.outputs is None else [output.field for output in self.outputs]
        columns = [field for field in fields if field.name not in row_columns or field.name in self.schema.names]
        return pa.schema([*columns, *map(row_field, row_columns)], metadata=stored.metadata)

    def apply(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The output for a batch of columns that were read; `schema` is what `result` returned."""
        if self.outputs is None:
            return with_types(batch, schema)
        computed = {o.field.name: o.expression for o in self.outputs if o.expression is not None}
        table = evaluated(batch, computed) if computed else None
        by_name = {output.field.name: output for output in self.outputs}
        columns = []
        for field in schema:
            output = by_name.get(field.name)
            if output is None:
                column = batch.column(field.name)
            elif output.expression is None:
                column = _extract_path(batch, output.path)
            else:
                assert table is not None
                column = table.column(field.name).combine_chunks()
            columns.append(_cast_result(column, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else rows_without_columns(batch.num_rows)


def _whole_packed(read: Schema, by_name: Mapping[str, Field]) -> Schema:
    """The columns to read; packed structs are read whole, because they are stored row by row."""
    fields = (by_name[field.name] if is_packed(field) else field for field in read.fields)
    return Schema(fields=tuple(fields), metadata=read.metadata)


def _check_names(columns: Any, *, distinct: bool) -> list[str]:
    """The names in a list of columns.

    Raises:
        InvalidInputError: The columns are not names, or a name is repeated.
    """
    names = list(columns) if isinstance(columns, Iterable) else [columns]
    if not isinstance(columns, Iterable) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"columns is a list of names, or a mapping of names and SQL, not {columns!r}")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice and distinct:
        raise InvalidInputError(f"Duplicate column name: {', '.join(twice)}")
    return names


def _drop_repeated(names: list[str], columns: set[str]) -> list[str]:
    """Names of columns without repetitions; row columns are repeated as often as they are named."""
    seen: set[str] = set()
    distinct_names = []
    for name in names:
        if name in seen and (name in columns or name not in ROW_COLUMNS):
            continue
        seen.add(name)
        distinct_names.append(name)
    return distinct_names


def rows_without_columns(num_rows: int) -> pa.RecordBatch:
    """A batch with a number of rows and without columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), num_rows, [None]))


def with_row_fields(schema: Schema) -> pa.Schema:
    """The columns that an expression can refer to: the dataset's, in storage types, and the row columns."""
    input_schema: pa.Schema | None = schema.memo.get("with row fields")
    if input_schema is None:
        stored = schema_to_arrow(schema)
        rows = [row_field(name) for name in ROW_COLUMNS if name not in stored.names]
        input_schema = schema.memo["with row fields"] = pa.schema([*stored, *rows])
    return input_schema


def with_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give the columns their extension types."""
    if batch.schema.equals(schema):
        return batch
    if not schema.names:
        return rows_without_columns(batch.num_rows)
    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(_cast_result(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast_result(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    return relabel(column, kind) if has_extensions(kind) else column.cast(kind)


def _find_typed_path(schema: Schema, definition: str) -> tuple[str, ...]:
    """The path of a column, or of JSON in a struct, that SQL names; else (): expressions leave JSON as it is stored."""
    if definition in schema.names:
        return (definition,)
    with suppress(SchemaError, InvalidInputError):
        if schema.column(definition).logical_type == JSON:
            return tuple(split_path(definition))
    return ()


def _find_field(schema: Schema, path: Sequence[str]) -> pa.Field:
    node: Field = next(field for field in schema.fields if field.name == path[0])
    nullable = node.nullable
    for name in path[1:]:
        if node.logical_type != "struct":
            raise SchemaError(f"column {'.'.join(path)!r}: {node.name!r} is not a struct")
        node = node.child(name)
        nullable = nullable or node.nullable
    field: pa.Field = resolve_extensions(pa.schema([field_to_arrow(node)])).field(0)
    return field.with_nullable(nullable)


def _extract_path(batch: pa.RecordBatch, path: Sequence[str]) -> pa.Array:
    column = batch.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _type_of(expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
    for name in columns_of(expression):
        if name not in schema.names:
            raise SchemaError(f"{format_expr(expression)}: no column {name!r}; the columns are {schema.names}")
    return evaluated(empty_table(stored_types(schema)), {"type": expression}).column("type").type


AS_BYTES: Final = "all_binary"
"""The handling that returns payloads as bytes."""

AS_STORED: Final = "as_stored"
"""The handling that returns payloads in the types of the table's schema, which other tables accept; not in pylance."""

_HANDLINGS: Final = (AS_BYTES, "all_descriptions", "blobs_descriptions", AS_STORED)
_EXTENSION_NAME: Final = "ARROW:extension:name"
_DESCRIBED: Final = {"lance-encoding:blob": b"true"}


def check_blob_handling(handling: object) -> None:
    """Check that a value of `blob_handling` is known; None is the default.

    Raises:
        InvalidInputError: The value is unknown.
    """
    if handling is not None and handling not in _HANDLINGS:
        raise InvalidInputError(f"Invalid blob_handling: {handling}. Expected one of: {', '.join(_HANDLINGS)}")


def scanned_columns(manifest: Manifest, handling: str | None = None) -> Schema:
    """All columns of a version in the form that a scan returns, with the field ids of the files.

    Args:
        manifest: The version.
        handling: The form of blobs; None for descriptions.

    Raises:
        InvalidInputError: The value of `handling` is unknown.
    """
    check_blob_handling(handling)
    schema = manifest.schema
    if handling == AS_STORED:
        return schema
    name = f"scanned, {AS_BYTES if handling == AS_BYTES else 'described'}"
    columns: Schema | None = schema.memo.get(name)
    if columns is None:
        has_blobs = any(is_blob(field) or is_blob_v2(field) for field, _ in schema.walk())
        columns = schema
        if has_blobs and manifest.data_storage_version not in ("0.1", "legacy"):
            view = _payload_field if handling == AS_BYTES else _describe_field
            columns = map_fields(schema, view)
        schema.memo[name] = columns
    return columns


def described_columns(manifest: Manifest) -> Schema | None:
    """All columns with blobs as descriptions; None if these are the columns of the schema."""
    columns = scanned_columns(manifest)
    return None if columns is manifest.schema else columns


def is_description(field: pa.Field) -> bool:
    """Whether a column of a scan holds descriptions of blobs."""
    return pa.types.is_struct(field.type) and (field.metadata or {}).get(b"lance-encoding:blob") == b"true"


def has_descriptions(field: pa.Field) -> bool:
    """Whether a column of a scan, or a field of its structs, holds descriptions of blobs."""
    return is_description(field) or (pa.types.is_struct(field.type) and any(map(has_descriptions, field.type)))


def _describe_field(field: Field) -> Field:
    if is_blob_v2(field):
        return replace(
            describe_field(field), metadata={**_DESCRIBED, "lance-encoding:packed": b"true"}, extension_name=""
        )
    if not is_blob(field):
        return field
    parts = tuple(Field(name=name, logical_type="uint64") for name in ("position", "size"))
    return replace(field, logical_type="struct", children=parts, encoding=0, metadata=_DESCRIBED)


def _payload_field(field: Field) -> Field:
    if not is_blob_v2(field):
        return field
    metadata = {key: value for key, value in field.metadata.items() if key != _EXTENSION_NAME}
    # The extension name makes the reader expect descriptors; the Arrow type does not have it.
    return replace(field, logical_type="large_binary", children=(), metadata=metadata, extension_name=BLOB_V2_NAME)
