"""Dagster partition keys as typed slices of a table.

    partitions definition      column            one key becomes
    ---------------------      ------            ---------------
    static, dynamic            string            column == "key"
                               int               column == int("key")      only if str(int(key)) == key
                               date              column == date            only if the key is its ISO form
    daily, hourly, weekly,     timestamp, zone   start <= column < end     both ends in UTC
    monthly, any cron          timestamp         start <= column < end     wall clock of the definition's time zone
                               date              start <= column < end     only if both ends are midnights
                               string, int       as for static keys
    multi                      one per dimension the conditions of all dimensions

Windows are half-open, and days of 23 or 25 hours keep their length because the ends are instants. Keys never
become SQL, so a key such as ``x') OR 1=1 --`` is a value like any other. A key without an exact condition is
rejected before anything is written, because a slice that is too wide would delete rows of other partitions; the error
names the asset, the column and the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.extension_types import is_any_string
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.partition_expr import find_misfit, partition_column
from lance_dagster.tables.refs import TableRef

_WHOLE = "the partition key"  # the name of the only dimension in messages


_NO_TYPES: Final = (
    "the columns of a frame without rows may have no types: give the asset the metadata "
    '"lance/schema": {{"{}": "string", ...}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dimension:
    """One dimension of the partitions, with its column."""

    name: str
    column: str
    type: pa.DataType
    definition: dg.PartitionsDefinition[Any]


def slices_of(ref: TableRef, keys: Iterable[str], schema: pa.Schema) -> lance_core.Slices:
    """The slices of partitions of an asset; see `make_slices`."""
    assert ref.partitions_def is not None
    return make_slices(ref.key, ref.partitions_def, keys, (ref.metadata or {}).get("partition_expr"), schema)


def make_slices(
    asset_key: dg.AssetKey,
    definition: dg.PartitionsDefinition[Any],
    keys: Iterable[str],
    partition_expr: object,
    schema: pa.Schema,
) -> lance_core.Slices:
    """Turn partition keys into one slice per key, sorted and named by their keys.

    Args:
        asset_key: The asset, for messages.
        definition: Its partitions definition.
        keys: The keys, at least one, in any order, as Dagster defines no order of them.
        partition_expr: The metadata entry of that name: a column name, or for multi-partitions a mapping from each
            dimension to a column name.
        schema: The columns of the rows that the slices select.

    Raises:
        InvalidInputError: `partition_expr` is missing or not of the right form, or a key has no exact condition.
        SchemaError: A partition column is missing, or its type does not go with the definition.
    """
    try:
        columns = _columns_in(plain_metadata(partition_expr), schema, asset_key)
        dimensions = _dimensions(definition, columns, schema)
        slices = lance_core.Slices(
            (_slice(key, definition, dimensions) for key in sorted(keys)),
            owner=f"asset {asset_key.to_user_string()}",
            outside="are outside of the run's {count} partitions",
            remedy='set out_of_partition (metadata lance/out_of_partition) to "allow"',
        )
        slices.check(schema)
    except SchemaError as error:
        raise SchemaError(f"asset {asset_key.to_user_string()}: {error}") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"asset {asset_key.to_user_string()}: {error}") from error
    return slices


def partition_columns(partition_expr: object, schema: pa.Schema, asset_key: dg.AssetKey) -> list[str]:
    """The columns that an entry `partition_expr` names; none without an entry.

    Args:
        partition_expr: The entry: a column, or a mapping from each dimension to a column.
        schema: The columns of the table.
        asset_key: The asset, for messages.
    """
    columns = _columns_in(plain_metadata(partition_expr), schema, asset_key)
    names = columns.values() if isinstance(columns, Mapping) else [columns]
    return [name for name in names if isinstance(name, str)]


def _columns_in(partition_expr: object, schema: pa.Schema, asset_key: dg.AssetKey) -> object:
    """The entry with columns in place of SQL expressions that cast columns; a column of the exact name wins."""

    def column(expression: object) -> object:
        if not isinstance(expression, str) or expression in schema.names:
            return expression
        return partition_column(expression, label=f"asset {asset_key.to_user_string()}")

    if isinstance(partition_expr, Mapping):
        return {name: column(expression) for name, expression in partition_expr.items()}
    return column(partition_expr)


def _dimensions(
    definition: dg.PartitionsDefinition[Any], partition_expr: object, schema: pa.Schema
) -> tuple[_Dimension, ...]:
    """The dimensions of a definition with their columns, from `partition_expr`."""
    parts: dict[str, dg.PartitionsDefinition[Any]] = {_WHOLE: definition}
    is_multi = isinstance(definition, dg.MultiPartitionsDefinition)
    if isinstance(definition, dg.MultiPartitionsDefinition):
        parts = {part.name: part.partitions_def for part in definition.partitions_defs}
    misfit = find_misfit(partition_expr, list(parts) if is_multi else None)
    if misfit is not None:
        raise InvalidInputError(misfit)
    columns: Any = partition_expr if is_multi else {_WHOLE: partition_expr}
    return tuple(
        _Dimension(name=name, column=columns[name], type=_column_type(schema, columns[name]), definition=part)
        for name, part in parts.items()
    )


def _column_type(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column by its exact name; for a dictionary column, the type of its values."""
    positions = schema.get_all_field_indices(column)
    if not positions:
        raise SchemaError(
            f"partition column {column!r} is not among the table's columns {schema.names}; metadata partition_expr "
            "must name one of these"
        )
    if len(positions) > 1:
        raise SchemaError(f"partition column {column!r} exists {len(positions)} times; its name must be unique")
    kind = schema.field(positions[0]).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _slice(key: str, definition: dg.PartitionsDefinition[Any], dimensions: tuple[_Dimension, ...]) -> lance_core.Slice:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        parsed = key if isinstance(key, dg.MultiPartitionKey) else definition.get_partition_key_from_str(key)
        parts = parsed.keys_by_dimension
        conditions = {d.column: _condition(d, parts[d.name]) for d in dimensions}
    else:
        conditions = {d.column: _condition(d, str(key)) for d in dimensions}
    return lance_core.Slice(name=str(key), conditions=conditions)


def _condition(dimension: _Dimension, key: str) -> lance_core.Equals | lance_core.Between:
    """The condition of one dimension's key on that dimension's column."""
    if isinstance(dimension.definition, dg.TimeWindowPartitionsDefinition):
        if pa.types.is_timestamp(dimension.type):
            return _timestamp_window(dimension, key)
        if pa.types.is_date(dimension.type):
            return _date_window(dimension, key)
    return lance_core.Equals(_key_value(dimension, key))


def _key_value(dimension: _Dimension, key: str) -> str | int | date:
    """A key as a value of the column, where no other key has this value.

    Raises:
        SchemaError: Keys cannot be values of the column's type.
        InvalidInputError: The key is not the exact form of a value.
    """
    kind = dimension.type
    if is_any_string(kind):
        return key
    try:
        if pa.types.is_integer(kind):
            number = int(key)
            if str(number) == key:
                return number
        elif pa.types.is_date(kind):
            day = date.fromisoformat(key)
            if day.isoformat() == key:
                return day
        else:
            raise SchemaError(
                f"partition column {dimension.column!r} of type {kind} does not go with "
                f"{type(dimension.definition).__name__} (dimension: {dimension.name})"
                + (f"; {_NO_TYPES.format(dimension.column)}" if kind in (pa.null(), pa.float64()) else "")
            )
    except ValueError as error:
        if isinstance(error, SchemaError):
            raise
    raise InvalidInputError(
        f"partition key {key!r} is not exactly one value of column {dimension.column!r} of type {kind}"
    )


def _window(dimension: _Dimension, key: str) -> tuple[datetime, datetime]:
    """The window of a time partition, its ends in the definition's time zone."""
    definition = dimension.definition
    assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
    try:
        window = definition.time_window_for_partition_key(key)
    except ValueError as error:
        raise InvalidInputError(f"partition key {key!r} is not of the form {definition.fmt!r}") from error
    if not key.startswith(window.start.strftime(definition.fmt)):
        raise InvalidInputError(
            f"partition key {key!r} is not the start of a partition; the next partition starts at {window.start}"
        )
    return window.start, window.end


def _timestamp_window(dimension: _Dimension, key: str) -> lance_core.Between:
    start, end = _window(dimension, key)
    if dimension.type.tz is not None:
        return lance_core.Between(start.astimezone(UTC), end.astimezone(UTC))
    for edge in (start, end):
        if not _wall_clock_is_exact(edge):
            raise InvalidInputError(
                f"partition {key!r} begins or ends at {edge.isoformat()}, a time that the clocks show twice that day; "
                f"column {dimension.column!r} of type {dimension.type} has no time zone and cannot distinguish the two"
            )
    return lance_core.Between(start.replace(tzinfo=None, fold=0), end.replace(tzinfo=None, fold=0))


def _wall_clock_is_exact(edge: datetime) -> bool:
    """Whether the wall-clock time of `edge` divides rows before and after it as the instant does.

    It does not within an hour that the clocks show twice, except at the first instant of that hour.
    """
    return not _is_ambiguous(edge) or (edge.fold == 0 and not _is_ambiguous(edge - timedelta(microseconds=1)))


def _is_ambiguous(moment: datetime) -> bool:
    """Whether the clocks show this wall-clock time twice."""
    early, late = moment.replace(fold=0).utcoffset(), moment.replace(fold=1).utcoffset()
    return early is not None and late is not None and early > late


def _date_window(dimension: _Dimension, key: str) -> lance_core.Between:
    start, end = _window(dimension, key)
    for edge in (start, end):
        if not _is_first_instant_of_day(edge):
            raise InvalidInputError(
                f"partition {key!r} begins or ends at {edge.isoformat()}; column {dimension.column!r} of type "
                f"{dimension.type} holds whole days and cannot divide one"
            )
    return lance_core.Between(start.date(), end.date())


def _is_first_instant_of_day(moment: datetime) -> bool:
    """Whether `moment` is the first instant of its day: midnight, or a later time where the clocks skip midnight."""
    before = (moment.astimezone(UTC) - timedelta(microseconds=1)).astimezone(moment.tzinfo)
    return before.date() != moment.date()
