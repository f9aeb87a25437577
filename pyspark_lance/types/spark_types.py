"""Spark's types, the Arrow types in which Spark hands over and takes back rows, and the types that are stored.

    Spark              handed over                     stored                    read back from any Lance table
    ------------------ ------------------------------- ------------------------- --------------------------------------
    timestamp          timestamp[us, session's zone]   timestamp[us, UTC]        any timestamp with a zone
    timestamp_ntz      timestamp[us]                   timestamp[us]             any timestamp without
    time(p)            time64[ns]                      time64[us]                time32, time64
    interval d to s    duration[us]                    duration[us]              any duration
    array<T>           list<element: T>                list<item: T>             list, large_list
                       ... marked as a vector          fixed_size_list<T>[n]     fixed_size_list, with the mark
    string, binary     string, binary or large ones    string, binary            large_string, fixed_size_binary, ...
    smallint           int16                           int16                     uint8
    int, bigint        int32, int64                    int32, int64              uint16, uint32
    decimal(20, 0)     decimal128(20, 0)               decimal128(20, 0)         uint64
    float              float                           float                     float16
    date               date32                          date32                    date64
    the value's type                                                             dictionary

A vector's mark is the column metadata `arrow.fixed-size-list.size`, which lance-spark uses too; set it by
`df.withMetadata("v", {"arrow.fixed-size-list.size": 128})`. Functions of Spark drop it. All columns are stored as
nullable, even if Spark knows that an expression is never null. Intervals of months cannot be stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from lance_core.errors import SchemaError, UnsupportedError
from lance_core.extension_types import is_any_list
from pyspark_lance.lazy import DataType, StructField, StructType, types
from pyspark_lance.releases import WITHOUT_COLUMN, require_feature
from pyspark_lance.types.arrow_types import SPARK_METADATA, SPARK_TYPE, describe_type, from_arrow, to_arrow

_DECLARED: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Key of the column metadata in which Spark keeps CHAR and VARCHAR."""
VECTOR_WIDTH: Final = "arrow.fixed-size-list.size"
"""Key of the column metadata that makes an array column a vector: the number of its items."""

_MOST_LEVELS: Final = 62
"""Most levels of nested types: Arrow's messages allow 64, and Spark puts a struct around the columns."""

ROW_COLUMNS: Final = ("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version")
"""Columns that every table has beside those of its schema."""


def batch_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark makes of a DataFrame, with UTC as the session's zone.

    Raises:
        SchemaError: A name is used twice, or cannot be the name of a column.
        UnsupportedError: Arrow or Lance has no such type, as none for CHAR and VARCHAR, or it is nested too deep; the
            message names the column.
    """
    from pyspark.errors import PySparkTypeError

    check_names(schema.names)
    fields = []
    for field in schema:
        _check_length(field, field.name)
        check_type(field.dataType, field.name)
        try:
            fields += to_arrow(types.StructType([field]))
        except PySparkTypeError as error:
            raise UnsupportedError(
                f"column {field.name!r}: {field.dataType.simpleString()} cannot be stored"
            ) from error
        _check_depth(fields[-1])
    return pa.schema(fields)


def _check_depth(field: pa.Field) -> None:
    """Reject a column with more levels than messages of Arrow can have.

    Raises:
        UnsupportedError: The column is nested too deep.
    """
    level = [field.type]
    for _ in range(_MOST_LEVELS + 1):
        level = [kind.field(index).type for kind in level for index in range(kind.num_fields)]
        if not level:
            return
    raise UnsupportedError(
        f"column {field.name!r} is nested more than {_MOST_LEVELS} deep, and Spark cannot pass it on"
    )


def check_names(names: Iterable[str], within: str = "", *, reads: bool = False) -> None:
    """Make sure that Lance and pylance accept these names of columns, and that they are distinct.

    The rules for top-level columns are stricter. Names that differ in case are two columns; Spark distinguishes them by
    position, or by name with `spark.sql.caseSensitive`.

    Args:
        names: The names of the columns, or of the fields of a struct.
        within: Path of the struct, if it is one.
        reads: Whether the columns are read: a table may have names that cannot be written, and row columns are read.

    Raises:
        SchemaError: A name is used twice, or the name of a column is empty or reserved.
    """
    where = f"struct {within!r}: field" if within else "column"
    seen: set[str] = set()
    for name in names:
        if not name and not within:
            raise SchemaError(f"{where} without a name")
        if not within and not reads and (name in ROW_COLUMNS or "." in name or "`" in name):
            raise SchemaError(f"{where} {name!r}: the name is reserved or contains one of the characters . `")
        if name in seen:
            raise SchemaError(f"{where} {name!r} occurs twice")
        seen.add(name)


def check_lengths(schema: StructType) -> None:
    """Reject a frame with columns of CHAR and VARCHAR.

    Raises:
        UnsupportedError: A column has a length; the message names it.
    """
    for field in schema:
        _check_length(field, field.name)


def _check_length(field: StructField, path: str) -> None:
    """Reject columns of CHAR and VARCHAR, which Spark keeps in metadata of strings: they would become STRING.

    Raises:
        UnsupportedError: The column has a length.
    """
    declared = (field.metadata or {}).get(_DECLARED)
    if declared is not None:
        kind = re.sub(r"(var)?char\(\d+\)", "STRING", declared)
        plain = f"rtrim({path})" if declared.startswith("char") else f"cast({path} AS {kind})"
        raise UnsupportedError(
            f"column {path!r}: strings have no length here, and {declared} has one, by which Spark pads and compares:"
            f" make plain strings of it, DataFrame.withColumn({path!r}, functions.expr({plain!r})). Nothing was written"
        )


def check_type(kind: DataType, path: str) -> None:
    """Reject types that cannot be stored, also inside of nested types."""
    if isinstance(kind, types.ArrayType):
        if isinstance(kind.elementType, types.NullType) and not kind.containsNull:
            raise SchemaError(f"column {path!r}: the empty array() has no item type; cast it to array<...>")
        _check_items(kind.elementType, f"{path}[]")
        check_type(kind.elementType, f"{path}[]")
    elif isinstance(kind, types.MapType):
        if isinstance(kind.keyType, types.NullType):
            raise SchemaError(f"column {path!r}: the empty map() has no key type; cast it to map<..., ...>")
        _check_items(kind.keyType, f"{path}.key")
        _check_items(kind.valueType, f"{path}.value")
        check_type(kind.keyType, f"{path}.key")
        check_type(kind.valueType, f"{path}.value")
    elif isinstance(kind, types.StructType):
        check_names(kind.names, within=path)
        for field in kind:
            _check_length(field, f"{path}.{field.name}")
            check_type(field.dataType, f"{path}.{field.name}")
    elif kind.typeName() in ("interval", "yearmonthinterval"):
        raise UnsupportedError(
            f"column {path!r}: type {kind.simpleString()} cannot be stored; cast it to a number of months or days"
        )


def _check_items(kind: DataType, path: str) -> None:
    """Reject types of items that Arrow's types do not describe fully: items have no metadata for the rest."""
    if (name := describe_type(kind)) is not None:
        plain = "string collate UTF8_BINARY" if name.startswith("string") else "time(6)"
        raise UnsupportedError(
            f"column {path!r}: {name} cannot be stored inside of an array or map; cast it to {plain}"
        )


def stored_field(field: pa.Field, width: int | None = None, path: str = "") -> pa.Field:
    """The field of a new table for a column that Spark hands over.

    Args:
        field: Field of `batch_schema`.
        width: Items of each vector if the column holds vectors; None for the width in its metadata.
        path: Path of the struct around it, for errors.

    Raises:
        SchemaError: The column is marked as a vector, but is not an array of numbers.
    """
    path = f"{path}.{field.name}" if path else field.name
    width = vector_width(field, path) if width is None else width
    kind = _stored_type(field.type, path) if width is None else _vector_type(field.type, width, path)
    return pa.field(field.name, kind, nullable=True, metadata=_stored_metadata(field))


def vector_width(field: pa.Field, path: str) -> int | None:
    """The number of items of a column's vectors, from its metadata; None if that has none.

    Raises:
        SchemaError: The metadata holds no positive number.
    """
    width = _spark_metadata(field).get(VECTOR_WIDTH)
    if width is None:
        return None
    if isinstance(width, str) and width.isdecimal():
        width = int(width)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise SchemaError(f"column {path!r}: metadata {VECTOR_WIDTH} is {width!r}, not a positive number of items")
    return width


def _vector_type(kind: pa.DataType, width: int, path: str) -> pa.DataType:
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind)):
        raise SchemaError(f"column {path!r}: a vector must be an array of numbers, not {kind}")
    item = kind.value_type
    if not (types.is_floating(item) or types.is_integer(item)):
        raise SchemaError(f"column {path!r}: the items of a vector must be numbers, not {item}")
    return pa.list_(pa.field("item", item), width)


def _stored_type(kind: pa.DataType, path: str) -> pa.DataType:
    types = pa.types
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_list(kind) or types.is_large_list(kind):
        if types.is_null(kind.value_type):
            raise SchemaError(f"column {path!r}: an array of untyped nulls has no item type; cast it to array<...>")
        return pa.list_(pa.field("item", _stored_type(kind.value_type, f"{path}[]")))
    if types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type, f"{path}.key"), _stored_type(kind.item_type, f"{path}.value"))
    if types.is_struct(kind):
        return pa.struct([stored_field(child, path=path) for child in kind])
    return _SMALL.get(kind, kind)


_SMALL: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def _spark_metadata(field: pa.Field) -> Mapping[str, Any]:
    """A column's Spark metadata, from the key of the Arrow metadata that holds it."""
    value = (field.metadata or {}).get(SPARK_METADATA)
    metadata = json.loads(value) if value else {}
    return metadata if isinstance(metadata, dict) else {}


def _stored_metadata(field: pa.Field) -> dict[bytes, bytes] | None:
    """Arrow metadata from Spark's: strings only, without the keys that Spark reserves for itself."""
    strings = {key: value for key, value in _spark_metadata(field).items() if isinstance(value, str)}
    string_metadata = {key.encode(): value.encode() for key, value in strings.items() if not key.startswith("__")}
    string_metadata.pop(VECTOR_WIDTH.encode(), None)
    # Arrow's own metadata: the marks of variant, geometry and geography.
    arrow_metadata = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(b"SPARK::")}
    return {**arrow_metadata, **string_metadata} or None


_VIEW: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


def spark_view(kind: pa.DataType, path: str) -> pa.DataType:
    """The Arrow type in which Spark reads a stored type, and in which it hands over such a column.

    Raises:
        UnsupportedError: Spark has no type for the stored type; the message names the column.
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return spark_view(kind.storage_type, path)
    if kind in _VIEW:
        return _VIEW[kind]
    if types.is_dictionary(kind):
        return spark_view(kind.value_type, path)
    if types.is_time(kind):
        require_feature("a column of TIME", f"column {path!r}")
        return pa.time64("ns")
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        return pa.binary()
    if types.is_decimal(kind):
        if kind.precision > 38 or not 0 <= kind.scale <= kind.precision:
            raise UnsupportedError(f"column {path!r}: Spark has no {kind}; {WITHOUT_COLUMN}")
        return pa.decimal128(kind.precision, kind.scale)
    return _nested_view(kind, path) if types.is_nested(kind) else kind


def _nested_view(kind: pa.DataType, path: str) -> pa.DataType:
    types = pa.types
    if is_any_list(kind):
        return pa.list_(pa.field("element", spark_view(kind.value_type, f"{path}[]")))
    if types.is_map(kind):
        return pa.map_(spark_view(kind.key_type, f"{path}.key"), spark_view(kind.item_type, f"{path}.value"))
    if types.is_struct(kind):
        return pa.struct([_view_field(child, f"{path}.{child.name}") for child in kind])
    raise UnsupportedError(f"column {path!r}: Spark has no {kind}; {WITHOUT_COLUMN}")


def _view_field(field: pa.Field, path: str) -> pa.Field:
    """A stored field as Spark sees it, with its metadata in the key that holds Spark's metadata."""
    field_metadata, kind = field.metadata or {}, spark_view(field.type, path)
    if SPARK_TYPE in field_metadata and pa.types.is_string(kind):
        require_feature("a column with a collation", f"column {path!r}")
    metadata: dict[str, Any] = {}
    for key, value in field_metadata.items():
        if not key.startswith((b"ARROW:", b"SPARK::")) and key != SPARK_TYPE:
            metadata[key.decode(errors="replace")] = value.decode(errors="replace")
    if pa.types.is_fixed_size_list(field.type):
        metadata[VECTOR_WIDTH] = field.type.list_size
    everything = (
        {**field_metadata, SPARK_METADATA: json.dumps(metadata).encode()} if metadata else field_metadata or None
    )
    return pa.field(field.name, kind, nullable=True, metadata=everything)


def spark_schema(stored: pa.Schema) -> StructType:
    """The Spark schema of a Lance table: every column nullable, vectors marked.

    Raises:
        SchemaError: A column has no name, or two columns have the same name.
        UnsupportedError: Spark has no type for a column, or the column is nested too deep; the message names it.
    """
    check_names(stored.names, reads=True)
    for field in stored:
        _check_depth(field)
    return from_arrow(pa.schema([_view_field(field, field.name) for field in stored]))
