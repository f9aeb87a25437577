"""The handler of pandas frames. The index is not stored: one that has a name or is not of integers is rejected.

Nor are `attrs` and the name of the columns' axis, because a table is made by several frames.

The schema's metadata hold the frame's types, as with pylance, so that integers with nulls come back as they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_core.errors import SchemaError
from lance_dagster.handlers.pyarrow import ArrowHandler

if TYPE_CHECKING:
    import pandas as pd

_LONGEST_SHOWN = 60

_NULLABLE_TYPES = {
    name: pa.type_for_alias(name.lower())
    for name in ("boolean", "string", *(f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)))
} | {"Float32": pa.float32(), "Float64": pa.float64()}
"""pandas' types of columns with nulls, with the Arrow types that hold them."""

_ARROW_BACKED = "[pyarrow]"
"""End of the names of pandas' types of columns that are backed by Arrow, such as `int64[pyarrow]`."""


class PandasHandler(ArrowHandler):
    """`pandas.DataFrame`."""

    def arrow_schema(self, value: pd.DataFrame) -> pa.Schema:
        """The Arrow types to which pandas' columns are converted."""
        with _name_column_in_errors(value):
            return pa.Schema.from_pandas(value, preserve_index=False)

    def to_arrow(self, value: pd.DataFrame) -> pa.Table:
        """The frame as an Arrow table."""
        with _name_column_in_errors(value):
            table = pa.Table.from_pandas(value, preserve_index=False)
        written = json.loads(table.schema.metadata[b"pandas"])
        for column in written["columns"]:
            if column["pandas_type"] == "decimal":  # Arrow does not record which class of pandas held them
                column["metadata"]["dtype"] = str(value[column["name"]].dtype)
        return table.replace_schema_metadata({**table.schema.metadata, b"pandas": json.dumps(written)})

    def from_arrow(self, table: pa.Table, load_as: type | None) -> Any:
        """A frame with a new range index."""
        del load_as
        return _to_frame(table)


def _to_frame(table: pa.Table) -> pd.DataFrame:
    """Columns that have another Arrow type since get the default type of pandas, and no column becomes the index.

    Columns that were backed by Arrow are so again, whatever their type is.

    Raises:
        SchemaError: A column has values that pandas cannot represent.
    """
    written = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    types = {field.name: field.type for field in table.schema}
    kinds = {
        column["field_name"]: (column["metadata"] or {}).get("dtype", column["numpy_type"])
        for column in written.get("columns", ())
    }
    backed_names = {name for name in types if kinds.get(name, "").endswith(_ARROW_BACKED)}
    columns = [
        column
        for column in written.get("columns", ())
        if _NULLABLE_TYPES.get(column["numpy_type"]) == types.get(column["field_name"], pa.null())
    ]
    metadata = json.dumps({**written, "columns": columns, "index_columns": []})
    other_columns = table.drop_columns(list(backed_names))
    frame = _convert(other_columns.replace_schema_metadata({"pandas": metadata} if columns else None))
    return _insert_backed(frame, table, backed_names) if backed_names else frame


def _convert(table: pa.Table) -> pd.DataFrame:
    """A frame with the default types of pandas, or those of the metadata.

    Raises:
        SchemaError: A column has values that pandas cannot represent.
    """
    try:
        return table.to_pandas()
    except pa.ArrowInvalid as error:
        for name, column in zip(table.column_names, table.columns, strict=True):
            try:
                column.to_pandas()
            except pa.ArrowInvalid as cause:
                raise SchemaError(
                    f"column {name!r} of {column.type} has values that pandas cannot represent: {cause}; load it as"
                    " pyarrow.Table, or select other columns by the entry `columns` of the metadata of the input"
                ) from error
        raise


def _insert_backed(frame: pd.DataFrame, table: pa.Table, backed_names: set[str]) -> pd.DataFrame:
    """The columns of a table in their order: some backed by Arrow, the others from a frame."""
    import pandas as pd

    columns: dict[str, Any] = {
        name: pd.arrays.ArrowExtensionArray(table.column(name)) if name in backed_names else frame[name]
        for name in table.column_names
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows), copy=False)


_UNCONVERTIBLE = (ValueError, TypeError, OverflowError, KeyError, NotImplementedError)  # those of Arrow among them


@contextmanager
def _name_column_in_errors(frame: pd.DataFrame) -> Iterator[None]:
    """Turn Arrow's errors about a frame into errors that name the column and example values.

    Raises:
        SchemaError: The frame has an index that would be lost, or a column that cannot be converted to Arrow or has no
            unique string as its name.
    """
    _reject_unstorable(frame)
    try:
        yield
    except _UNCONVERTIBLE as error:
        raise _make_conversion_error(frame, error) from error


def _make_conversion_error(frame: pd.DataFrame, error: Exception) -> SchemaError:
    """The error about the first column that Arrow cannot convert, with the first value of each of its types."""
    for name in frame.columns:
        if hasattr(frame[name], "sparse"):
            remedy = f"make it dense with frame[{name!r}].sparse.to_dense()"
            return SchemaError(f"column {name!r} of {frame[name].dtype} cannot be stored: {remedy}")
        try:
            pa.Array.from_pandas(frame[name])
        except _UNCONVERTIBLE as cause:
            examples: dict[str, str] = {}
            for value in frame[name].dropna():
                examples.setdefault(type(value).__name__, repr(value)[:_LONGEST_SHOWN])
            listed = ", ".join(f"{kind} ({example})" for kind, example in examples.items())
            if len(examples) > 1:
                return SchemaError(f"column {name!r} holds values of several types: {listed}; make them one type")
            reason = str(cause).splitlines()[0]
            return SchemaError(f"column {name!r} of {listed or frame[name].dtype} cannot be stored: {reason}")
    return SchemaError(f"the frame cannot be converted to an Arrow table: {error}")


def _reject_unstorable(frame: pd.DataFrame) -> None:
    named = [name for name in frame.index.names if name is not None]
    if named:
        raise SchemaError(f"the index {named} would be lost; make it a column with reset_index()")
    if len(frame) and frame.index.inferred_type != "integer":  # integers number rows
        raise SchemaError(
            f"the index, which begins with {frame.index[0]!r}, would be lost; make it a column with reset_index(), or "
            "drop it with reset_index(drop=True)"
        )
    for name in frame.columns:
        if not isinstance(name, str):
            raise SchemaError(
                f"column {name!r} has a name that is not a string; rename it with frame.rename(columns=str)"
            )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise SchemaError(f"column {twice[0]!r} appears twice; rename or drop one of them")
