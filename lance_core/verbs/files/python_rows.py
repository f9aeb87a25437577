"""Rows from Python: columns by name, a list of dicts or a pandas frame become a table of Arrow.

Values that do not fit raise errors of this library, which name the column; Arrow's own errors name only the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lance_core.errors import ArgumentTypeError, InvalidInputError, SchemaError, UnsupportedError
from lance_core.extension_types import explain_polars_rejection


def table_of_columns(columns: Mapping[Any, Any], schema: pa.Schema | None = None) -> pa.Table:
    """The table of columns by name: lists, or arrays of numpy, pandas or Arrow.

    Args:
        columns: The values of each column.
        schema: Which columns to take, and their types; None for all, with the types of their values.

    Raises:
        ArgumentTypeError: A name is not a string, or the values of a column are not a list or an array.
        SchemaError: Values do not fit a column's type, columns differ in length, or one of the schema is missing.
        UnsupportedError: Arrow cannot convert to the type of a column.
    """
    names = list(columns) if schema is None else schema.names
    types = [None] * len(names) if schema is None else schema.types
    for name in columns:
        if not isinstance(name, str | bytes):
            raise ArgumentTypeError(f"columns by name: a name is a string, not {name!r}")
    missing = [name for name in names if name not in columns and _encode_name(name) not in columns]
    if missing:
        raise SchemaError(f"the data has no column {missing[0]!r}, which the schema has; its columns are {[*columns]}")
    arrays = [
        _build_array(name, columns[name if name in columns else _encode_name(name)], kind)
        for name, kind in zip(names, types, strict=True)
    ]
    for name, array in zip(names, arrays, strict=True):
        if len(array) != len(arrays[0]):
            raise SchemaError(f"column {name!r} has {len(array)} rows, and {names[0]!r} has {len(arrays[0])}")
    try:
        return (
            pa.Table.from_arrays(arrays, names=names) if schema is None else pa.Table.from_arrays(arrays, schema=schema)
        )
    except (ValueError, TypeError) as error:  # a name that cannot be UTF-8
        raise SchemaError(f"columns {names}: {error}") from error


def table_of_dicts(rows: Sequence[Any], schema: pa.Schema | None = None) -> pa.Table:
    """The table of rows that are dicts, with the columns of the first one, or of a schema; a missing value is null.

    Raises:
        ArgumentTypeError: A row is not a dict, or a name not a string.
        SchemaError: Values do not fit a column's type.
        UnsupportedError: Arrow cannot convert to the type of a column.
    """
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ArgumentTypeError(f"row {number}: a dict of values by column is needed, not {type(row).__name__}")
    names = list(rows[0]) if schema is None else schema.names
    return table_of_columns({name: [row.get(name) for row in rows] for name in names}, schema)


def table_of_frame(frame: Any, schema: pa.Schema | None = None, *, with_index: bool = True) -> pa.Table:
    """The table of a pandas frame.

    Args:
        frame: The frame.
        schema: Which columns to take, and their types; None for all, with the types of their values.
        with_index: Whether an index that has names, or other labels than row numbers, becomes columns, as in pylance.

    Raises:
        ArgumentTypeError: A series or an index is given.
        SchemaError: Values do not fit a column's type, or columns have the same name.
        UnsupportedError: Arrow cannot convert to the type of a column.
    """
    if not hasattr(frame, "columns"):
        raise ArgumentTypeError(f"rows cannot be taken from a {type(frame).__name__} of pandas; a DataFrame is needed")
    try:
        return pa.Table.from_pandas(frame, schema=schema, preserve_index=None if with_index else False)
    except NotImplementedError as error:
        raise UnsupportedError(f"a frame of pandas: {_format_message(error)}") from error
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise SchemaError(f"a frame of pandas: {_format_message(error)}") from error


def check_polars(data: Any) -> None:
    """Reject frames and series of polars that Arrow cannot take.

    Raises:
        SchemaError: The values or the name of a column are the reason.
    """
    reason = explain_polars_rejection(data.schema.items() if hasattr(data, "schema") else [(data.name, data.dtype)])
    if reason is not None:
        raise SchemaError(reason)


def _build_array(name: str | bytes, values: Any, kind: pa.DataType | None) -> pa.Array | pa.ChunkedArray:
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values if kind is None or values.type.equals(kind) else values.cast(kind)
        return pa.array(values, type=kind)
    except InvalidInputError:
        raise
    except NotImplementedError as error:
        raise UnsupportedError(f"column {name!r}: {_format_message(error)}") from error
    except (ValueError, TypeError, OverflowError) as error:
        if not any(hasattr(values, way) for way in ("__iter__", "__array__", "__arrow_array__", "__arrow_c_array__")):
            raise ArgumentTypeError(
                f"column {name!r}: a list or an array of values is needed, not {type(values).__name__}"
            ) from error
        raise SchemaError(f"column {name!r}: {_format_message(error)}") from error


def _encode_name(name: Any) -> Any:
    """The name as bytes, as the mapping may have bytes as its keys."""
    return name.encode(errors="surrogatepass") if isinstance(name, str) else name


def _format_message(error: Exception) -> str:
    """The message of an error; pyarrow adds the column as another argument."""
    return "; ".join(map(str, error.args))
