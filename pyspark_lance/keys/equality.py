"""Equality of keys, one definition for all merges: that of Spark's join, except for floats against integers.

    float, double          -0.0 equals 0.0, and a NaN equals a NaN
    timestamps             in microseconds, as Spark reads them
    float and integer      by their exact values; Spark's join would compare both as floats
    string collate ...     by the collation of the table's column
    a null anywhere        equals no other key

Tasks of the data source and hashes of inserted keys cannot use Spark's join. They convert values into a form in which
equal keys are the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core import LanceDataset
from lance_core.errors import SchemaError
from lance_core.extension_types import empty_table
from pyspark_lance.keys.narrowing import narrow_by_keys
from pyspark_lance.types.arrow_types import SPARK_TYPE
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.spark_types import spark_view

_BINARY: Final = "UTF8_BINARY"
_LOWER: Final = "UTF8_LCASE"
_TRIMS: Final = "_RTRIM"


def check_keys_of(what: str, fields: Iterable[pa.Field], *, by_tasks: bool = False) -> None:
    """Make sure that the values of some columns can be compared.

    Args:
        what: The argument that names the columns.
        fields: The columns, as they are stored.
        by_tasks: Whether tasks compare the values themselves, without Spark's join.

    Raises:
        SchemaError: The values of a column cannot be compared; the message names the column.
    """
    for field in fields:
        kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            raise SchemaError(
                f"{what}: the values of column {field.name!r} of type {field.type} cannot be compared; name columns"
                " of numbers, strings, bytes, dates or times, or the fields of a struct as columns of their own"
            )
        if by_tasks and not has_bytes(field):
            raise SchemaError(
                f"{what}: column {field.name!r} has the collation {collation(field)}, by which only Spark itself"
                " compares; pyspark_lance.merge(df, uri, on=...) does"
            )


def collation(field: pa.Field) -> str:
    """The collation of a column of strings."""
    name = (field.metadata or {}).get(SPARK_TYPE, b"").decode()
    return name.rpartition(" ")[2] if name.startswith("string") else _BINARY


def has_bytes(field: pa.Field) -> bool:
    """Whether this module can convert equal values of a column into the same bytes."""
    return collation(field).removesuffix(_TRIMS) in (_BINARY, _LOWER)


def exact_keys(fields: Iterable[pa.Field]) -> list[str]:
    """The columns whose equal values are identical: neither floats, nor strings with a collation, nor nanoseconds."""
    return [f.name for f in fields if not _is_rounded(f.type) and collation(f) == _BINARY]


def _is_rounded(kind: pa.DataType) -> bool:
    """Whether values that are stored differently can be equal in Spark, whose timestamps have microseconds."""
    return bool(pa.types.is_floating(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"))


def normalize_keys(keys: pa.Table) -> pa.Table:
    """Keys in a form in which equal keys are the same bytes; types and names stay."""
    columns = [_normalize_column(column, field) for column, field in zip(keys.columns, keys.schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=keys.schema)


def _normalize_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    kind = field.type
    if pa.types.is_floating(kind):
        return pa.chunked_array([_normalize_floats(chunk) for chunk in column.chunks], type=kind)
    name = collation(field)
    if name == _BINARY or not has_bytes(field):
        return column
    strings = column.cast(pa.string())
    if name.startswith(_LOWER):
        # As in Spark: letter by letter, a dotted capital I as two letters, and all forms of sigma as one.
        strings = pc.utf8_lower(pc.replace_substring(strings, "İ", "i\u0307"))
        strings = pc.replace_substring(strings, "\u03c2", "\u03c3")
    if name.endswith(_TRIMS):
        strings = pc.utf8_rtrim(strings, characters=" ")
    return strings.cast(kind)


def _normalize_floats(array: pa.Array) -> pa.Array:
    values = array.to_numpy(zero_copy_only=False) + array.type.to_pandas_dtype()(0)  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(values, array.type, mask=mask)


def normalize_spark_keys(keys: pa.Table) -> pa.Table:
    """Keys in the types in which Spark compares them, in a form in which equal keys are the same bytes."""
    view = pa.schema([field.with_type(spark_view(field.type, field.name)) for field in keys.schema])
    convert = BatchConverter(view, exact=False)
    return normalize_keys(pa.Table.from_batches(map(convert, keys.to_batches()), view))


def join_by_key(dataset: LanceDataset, keys: pa.Table, about: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table that have one of the keys. A key that contains a null equals no other key.

    Args:
        dataset: The version.
        keys: The keys, by the table's names; its other columns are added to each row that has the key.
        about: Columns of the table to yield.
    """
    from pyarrow import acero  # noqa: PLC0415 - loads pandas
    from pyarrow.dataset import InMemoryDataset  # noqa: PLC0415 - takes time, which most merges save

    if not keys.num_rows:
        return
    fields = [field.with_nullable(True) for field in dataset.schema if field.name in keys.column_names]
    on = [field.name for field in fields]
    extra = [name for name in keys.column_names if name not in on]
    key_columns = _select_fields(keys, fields)
    table = _join_columns(normalize_spark_keys(key_columns), keys.select(extra))
    condition = narrow_by_keys(dataset, key_columns.select(exact_keys(fields)))
    rows = dataset.scanner(columns=[*on, *about], filter=condition).to_reader()

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            part = pa.Table.from_batches([batch])
            yield from _join_columns(
                normalize_spark_keys(_select_fields(part, fields)), part.select(about)
            ).to_batches()

    empty = _join_columns(
        normalize_spark_keys(_select_fields(empty_table(rows.schema), fields)), empty_table(rows.schema).select(about)
    )
    first = pa.RecordBatch.from_pylist([], schema=empty.schema)  # before pyarrow 26 a reader must have a batch
    reader = pa.RecordBatchReader.from_batches(empty.schema, chain([first], batches()))
    build = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    if hasattr(acero, "RecordBatchReaderSourceNodeOptions"):
        probe = acero.Declaration("record_batch_reader_source", acero.RecordBatchReaderSourceNodeOptions(reader))
    else:  # before pyarrow 26
        probe = acero.Declaration("scan", acero.ScanNodeOptions(InMemoryDataset(reader)))
    join = acero.HashJoinNodeOptions("inner", on, on, left_output=list(about), right_output=extra)
    yield from acero.Declaration("hashjoin", join, inputs=[probe, build]).to_reader()


def _select_fields(table: pa.Table, fields: Sequence[pa.Field]) -> pa.Table:
    """The columns of some fields, cast to their types, with their metadata."""
    return pa.Table.from_arrays([table.column(f.name).cast(f.type) for f in fields], schema=pa.schema(fields))


def _join_columns(left: pa.Table, right: pa.Table) -> pa.Table:
    schema = pa.schema([*left.schema, *right.schema])
    return pa.Table.from_arrays([*left.columns, *right.columns], schema=schema)
