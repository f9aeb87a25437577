"""The clauses of a merge (`merge_insert`), and the check that the source's columns fit the clauses and the dataset.

Conditions are over these columns:

    clause                               columns of the condition
    when_matched_update_all              source.<column>, target.<column>
    when_not_matched_by_source_delete    <column> of the dataset; blobs are descriptions, as in a delete

Where a struct of the source lacks fields of the dataset, updated rows keep the old values of these fields:

    dataset     s: struct<a, b, c: struct<d, e>>
    source      s: struct<a, c: struct<d>>
    updated     a and c.d of the source, b and c.e of the row; null only if both structs are

Keys of the source are converted to the types of the dataset's columns, by value. A merge that only deletes writes no
value of its source, so its keys can have any type: 7 is the same key as int64, as double and as decimal. A value that
the column's type cannot hold exactly is the key of no row, and is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.extension_types import empty_table
from lance_core.schema import Field, Schema, schema_from_arrow, schema_to_arrow, typed_schema
from lance_core.schema import primary_key as key_fields
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.expressions.arrow import columns_of, matching
from lance_core.verbs.files.conform import conform, fit
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.rows.source_rows import SourceRows
from lance_core.verbs.rows.write_mode import WriteMode
from lance_core.verbs.scan.conditions import evaluate, to_condition, to_expression
from lance_core.verbs.scan.projection import scanned_columns, with_row_fields


def partial_structs(dataset: Schema, data: Schema) -> dict[str, Field]:
    """The columns of the data whose structs lack fields of the dataset, by name."""
    by_name = {field.name: field for field in data.fields}
    columns = (field for field in dataset.fields if field.name in by_name)
    return {field.name: by_name[field.name] for field in columns if _lacks_fields(field, by_name[field.name])}


def with_old_fields(new: pa.Table, old: pa.Table | pa.RecordBatch, columns: Mapping[str, Field]) -> pa.Table:
    """New values of rows, with the old values of the fields that the source lacks.

    Args:
        new: The new values, in storage types; fields that the source lacks have any values.
        old: The old values of the same rows, which have at least these columns.
        columns: The columns to complete, as the source gives them.
    """
    for name, source in columns.items():
        index = new.schema.get_field_index(name)
        if index >= 0:
            array = _complete_struct(_complete_list(new.column(index)), _complete_list(old.column(name)), source)
            new = new.set_column(index, new.schema.field(index), array)
    return new


def _lacks_fields(dataset: Field, data: Field) -> bool:
    if dataset.logical_type != "struct" or data.logical_type != "struct":  # blobs are given as bytes
        return False
    by_name = {child.name: child for child in data.children}
    return any(child.name not in by_name or _lacks_fields(child, by_name[child.name]) for child in dataset.children)


def _complete_struct(new: Any, old: Any, source: Field) -> pa.Array:
    if source.logical_type != "struct":
        return new
    by_name = {child.name: child for child in source.children}
    pairs = zip(new.type, new.flatten(), old.flatten(), strict=True)
    children = [
        _complete_struct(new_values, old_values, by_name[field.name]) if field.name in by_name else old_values
        for field, new_values, old_values in pairs
    ]
    mask = pc.and_(new.is_null(), old.is_null()) if new.null_count and old.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(new.type), mask=mask)


def _complete_list(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column


class WhenMatched(Enum):
    """What happens to rows of the dataset whose key is in the source."""

    NOTHING = "nothing"
    UPDATE = "update"
    DELETE = "delete"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClauses:
    """The clauses of a merge.

    Attributes:
        on: Columns that make up the key.
        matched: What happens to rows whose key is in the source.
        condition: For updates: only rows for which this is true are updated; it uses `source.<column>` and
            `target.<column>`.
        inserts: Whether source rows whose key is not in the dataset are inserted.
        deletes_others: Whether rows whose key is not in the source are deleted.
        delete_condition: For `deletes_others`: delete only rows for which this is true, over the dataset's columns.
        write_mode: How updated rows are stored.
        use_index: Whether an index of the key may decide which rows are read, and how updated rows are stored.
        within: Slices that must contain the matched rows that are updated or deleted; None for the whole dataset.
        source_deletes: For each row of the source, whether it deletes the row with its key and is never inserted; None
            if no row of the source deletes.
        records_keys: Whether the commit records the inserted keys even if `on` is not the declared primary key.
    """

    on: tuple[str, ...]
    matched: WhenMatched = WhenMatched.NOTHING
    condition: str | pc.Expression | None = None
    inserts: bool = False
    deletes_others: bool = False
    delete_condition: str | pc.Expression | None = None
    write_mode: WriteMode = WriteMode.AUTO
    use_index: bool = True
    within: Slices | None = None
    source_deletes: npt.NDArray[np.bool_] | None = None
    records_keys: bool = False

    def check(self) -> None:
        """Check that the clauses change rows.

        Raises:
            InvalidInputError: The clauses change no rows.
        """
        if self.matched is WhenMatched.NOTHING and not self.inserts and not self.deletes_others:
            if self.source_deletes is not None:
                return
            raise InvalidInputError("The merge insert job is not configured to change the data in any way")

    @property
    def writes_rows(self) -> bool:
        """Whether rows of the source are written."""
        return self.inserts or self.matched is WhenMatched.UPDATE

    @property
    def only_deletes_matched(self) -> bool:
        """Whether the merge uses only the keys of the source."""
        return self.matched is WhenMatched.DELETE and not self.inserts and self.condition is None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSource:
    """The rows that are merged, fitted to the dataset.

    Attributes:
        rows: The rows, in storage types.
        schema: Their columns, with the dataset's field ids.
        missing: The dataset's columns that the rows lack.
        fits_columns: Whether the merge can be written as new files with only the rows' columns.
        partial: The columns whose structs lack fields, as the source gives them.
    """

    rows: SourceRows
    schema: Schema
    missing: Schema
    fits_columns: bool
    partial: Mapping[str, Field]


def merge_source(source: SourceRows, schema: Schema, clauses: MergeClauses) -> MergeSource:
    """Fit the rows of a merge's source to a dataset.

    Raises:
        SchemaError: A column is unknown or has another type, or a required column is missing.
        InvalidInputError: The write mode is "rewrite_columns", which cannot express the clauses with these columns.
    """
    source_schema = source.schema
    lacking = [name for name in clauses.on if name not in source_schema.names]
    if lacking:
        raise SchemaError(f"merge_insert: the source lacks the key columns {lacking}; it has {source_schema.names}")
    if clauses.only_deletes_matched:
        source = _fit_keys(source, schema, clauses.on)
        source_schema = source.schema
    source_names = set(source_schema.names)
    present = tuple(field for field in schema.fields if field.name in source_names)
    columns, updates = replace(schema, fields=present), clauses.matched is WhenMatched.UPDATE
    fitted = fit(columns, source_schema, fills_structs=clauses.inserts, keeps_structs=updates)
    partial = partial_structs(columns, schema_from_arrow(source_schema)) if updates else {}
    missing = tuple(field for field in schema.fields if field.name not in source_names)
    strict = [field.name for field in missing if not field.nullable]
    if clauses.inserts and strict:
        raise SchemaError(f"merge_insert: rows cannot be inserted without values for the columns {strict}")
    reason = _why_not_by_columns(clauses, fitted, missing)
    if clauses.write_mode is WriteMode.REWRITE_COLUMNS and reason is not None:
        raise InvalidInputError(
            f"write mode rewrite_columns cannot express this merge insert: {reason}. Use auto or rewrite_rows instead."
        )
    checked = fitted
    if not clauses.writes_rows:
        checked = replace(fitted, fields=tuple(replace(field, nullable=True) for field in fitted.fields))
    target = schema_to_arrow(checked)
    is_alike = source_schema.equals(target, check_metadata=True)
    rows = source if is_alike else source.converted(target, lambda table: conform(table, checked))
    return MergeSource(
        rows=rows, schema=fitted, missing=replace(schema, fields=missing), fits_columns=reason is None, partial=partial
    )


def _fit_keys(source: SourceRows, schema: Schema, on: Sequence[str]) -> SourceRows:
    """Only the keys, in the dataset's types, without keys that these types cannot hold: no row has them."""
    arrow = schema_to_arrow(schema)
    names = [name for name in source.schema.names if name in on]
    target = pa.schema([arrow.field(name) for name in names])
    keys = pa.schema([source.schema.field(name) for name in names])
    key_schema = keys_by_value(empty_table(keys), target).schema
    return source.converted(key_schema, lambda table: keys_by_value(table.select(names), target))


def primary_key(schema: Schema) -> tuple[str, ...]:
    """The columns of the unenforced primary key, in order; empty without a key, or if a part is a nested field."""
    members, top = key_fields(schema), {field.id for field in schema.fields}
    return tuple(field.name for field in members) if all(field.id in top for field in members) else ()


def join_columns(on: str | Sequence[str] | None, schema: Schema) -> tuple[str, ...]:
    """The key columns of a merge, from the argument of the public method.

    Raises:
        InvalidInputError: A column does not exist or is named twice, or none is named and there is no primary key.
    """
    columns = (on,) if isinstance(on, str) else tuple(on or ())
    for name in columns:
        if name not in schema.names:
            raise InvalidInputError(f"Merge insert key column {name!r} does not exist in schema; it has {schema.names}")
    if len(set(columns)) < len(columns):
        raise InvalidInputError(f"Merge insert key columns contain a column twice: {list(columns)}")
    columns = columns or primary_key(schema)
    if not columns:
        raise InvalidInputError(
            "A merge insert operation requires join keys: specify `on` columns explicitly or configure a primary key "
            "in the dataset schema"
        )
    return columns


def _why_not_by_columns(clauses: MergeClauses, fitted: Schema, missing: Sequence[object]) -> str | None:
    """Why the merge cannot write new files with only the source's columns; None if it can."""
    does_more = clauses.inserts or clauses.deletes_others or clauses.source_deletes is not None
    if clauses.matched is not WhenMatched.UPDATE or does_more:
        return "it does more than update matched rows"
    if not missing:
        return "the source covers every dataset column, so there is nothing to skip"
    if set(fitted.names) <= set(clauses.on):
        return "the source has no column besides the key"
    return None


def check_conditions(clauses: MergeClauses, source: pa.Schema, manifest: Manifest) -> None:
    """Check that the conditions of a merge fit the columns; a merge evaluates them only on rows that need them.

    Args:
        clauses: The clauses of the merge.
        source: Columns of the source, fitted to the dataset.
        manifest: The version of the dataset.

    Raises:
        InvalidInputError: A condition is none, uses an unknown column, or is neither true nor false.
    """
    schema, described = manifest.schema, scanned_columns(manifest)
    if clauses.condition is not None:
        is_updated(clauses.condition, empty_table(source), empty_table(schema_to_arrow(schema)), schema)
    if clauses.delete_condition is not None:
        nothing = pa.RecordBatch.from_pylist([], with_row_fields(described))
        matching(nothing, to_condition(clauses.delete_condition, described))


def is_updated(
    condition: str | pc.Expression, source: pa.Table, target: pa.Table, schema: Schema
) -> npt.NDArray[np.bool_]:
    """For each match, whether the condition of the update is true.

    Args:
        condition: The condition.
        source: The rows of the source.
        target: The rows of the dataset, in storage types.
        schema: Their columns.

    Raises:
        InvalidInputError: The condition does not fit the columns, or is neither true nor false.
    """
    sides = {"source": pa.struct(list(source.schema)), "target": pa.struct(list(typed_schema(schema)))}
    expression = to_expression(condition, pa.schema(sides))
    both = pa.table({"source": _as_struct(source), "target": _as_struct(target)})
    keep = evaluate(both.select(columns_of(expression) or ["source"]), {"keep": expression}).column("keep")
    if not pa.types.is_boolean(keep.type):
        raise InvalidInputError(f"the condition {condition} gives {keep.type}, not true or false")
    mask: npt.NDArray[np.bool_] = pc.fill_null(keep, False).to_numpy()
    return mask


def _as_struct(table: pa.Table) -> pa.ChunkedArray:
    whole = combine_chunks(table)
    arrays = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in whole.columns]
    return pa.chunked_array([pa.StructArray.from_arrays(arrays, fields=list(table.schema))])


_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], ...], ...]] = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    (pa.types.is_string, pa.types.is_large_string),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
    (pa.types.is_timestamp,),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_duration,),
)


def _are_comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of the two types can be equal."""
    alike = any(any(is_one(left) for is_one in kinds) and any(is_one(right) for is_one in kinds) for kinds in _KINDS)
    return alike and (getattr(left, "tz", None) is None) == (getattr(right, "tz", None) is None)


def keys_by_value(keys: pa.Table, target: pa.Schema) -> pa.Table:
    """The keys in the dataset's types, without keys that these types cannot hold; incomparable columns stay.

    Args:
        keys: The key columns.
        target: The same columns in the dataset's types.
    """
    fitting = np.ones(keys.num_rows, np.bool_)
    columns = []
    for name, column in zip(keys.column_names, keys.columns, strict=True):
        kind = target.field(name).type
        if column.type == kind or not _are_comparable(column.type, kind):
            columns.append(column)
            continue
        values, exact = _convert_exactly(column, kind)
        columns.append(values)
        fitting &= exact
    converted_keys = pa.table(columns, names=keys.column_names)
    return converted_keys if fitting.all() else converted_keys.filter(pa.array(fitting))


def _convert_exactly(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.ChunkedArray, npt.NDArray[np.bool_]]:
    """The values in another type, null where it cannot hold them exactly, and a mask of the values that it holds."""
    if all(any(is_one(side) for is_one in _KINDS[0][1:]) for side in (column.type, kind)) or _is_mixed(
        column.type, kind
    ):
        new_values = [None if value is None else _convert_number(value, kind) for value in column.to_pylist()]
    else:
        try:
            return column.cast(kind), np.ones(len(column), np.bool_)
        except pa.ArrowInvalid:
            new_values = [_cast(value, kind) for value in column]
    missing = column.is_null().to_numpy()
    exact = np.array([value is not None for value in new_values], np.bool_) | missing
    new_values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in new_values]
    return pa.chunked_array([pa.array(new_values, kind)]), exact


def _is_mixed(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether one type is an integer and the other a float or a decimal."""
    return pa.types.is_integer(left) != pa.types.is_integer(right) and any(is_one(left) for is_one in _KINDS[0])


def _cast(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """The value in another type; None if that type cannot hold it."""
    try:
        return value.cast(kind) if value.is_valid else None
    except pa.ArrowInvalid:
        return None


def _convert_number(value: float | Decimal, kind: pa.DataType) -> Any:
    """A number in another type; None if that type cannot hold it."""
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            near = np.dtype(kind.to_pandas_dtype()).type(value)
        return near if float(near) == value or math.isnan(value) else None
    if not math.isfinite(value):
        return None
    exact = Decimal(value)
    try:
        number = pa.scalar(int(exact) if pa.types.is_integer(kind) else exact, kind).as_py()
    except (pa.ArrowInvalid, OverflowError):
        return None
    return number if number == exact else None
