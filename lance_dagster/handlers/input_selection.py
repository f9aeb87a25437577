"""The columns and the rows of a table that the metadata of an input selects.

columns   the entry `columns`; by default all columns, or for an asset that owns columns the key and these
rows      the entry `lance/filter`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import lance_core
from lance_core.errors import DatasetNotFoundError, LanceError, SchemaError
from lance_dagster.handlers.arrow_schema import owners
from lance_dagster.handlers.base import ROW_NAMES
from lance_dagster.tables.filters import LanceFilter
from lance_dagster.tables.location import TABLE_KEY
from lance_dagster.tables.names import listed_columns


class MissingInputError(DatasetNotFoundError):
    """The table or the partitions that an input loads were never written."""


def parse_columns(value: object, schema: pa.Schema, label: str) -> list[str] | None:
    """The entry `columns`, checked against the columns of the table; None for all columns.

    Raises:
        SchemaError: The table lacks a column.
    """
    if value is None:
        return None
    assert isinstance(value, list | tuple)  # check_input rejects other values
    missing = [name for name in value if name not in (*schema.names, *ROW_NAMES)]
    if missing:
        raise SchemaError(f"{label}: columns {missing} are not among the table's columns {schema.names}")
    return list(value)


def columns_of_asset(
    asset_key: dg.AssetKey, metadata: Mapping[str, object], schema: pa.Schema, label: str
) -> list[str] | None:
    """The key and the columns of an asset that owns columns; None for any other asset, which has all columns.

    Raises:
        MissingInputError: The table has no column of the asset.
    """
    if TABLE_KEY not in metadata:
        return None
    asset_columns = [name for name, owner in owners(schema).items() if owner == asset_key.to_user_string()]
    if not asset_columns:
        raise MissingInputError(
            f"{label}: the table has no column of that asset; materialize the asset first, or name columns of the "
            "table in the metadata columns of the input"
        )
    return [*listed_columns(metadata.get("lance/key")), *asset_columns]


def choose_counted_columns(
    columns: Sequence[str] | None, key: Sequence[str], schema: pa.Schema, readers: Sequence[str]
) -> tuple[str, ...] | None:
    """The columns whose updates count as changes: those that are read, without the readers' own; None for all.

    Args:
        columns: The columns that the input loads; None for all columns.
        key: The columns by which the reader's merge matches rows.
        schema: The columns of the input's table.
        readers: The assets that read the input.
    """
    reader_columns = {name for name, owner in owners(schema).items() if owner in readers}
    if columns is None and not reader_columns:
        return None
    names = schema.names if columns is None else list(dict.fromkeys((*columns, *key)))
    if set(names) - {*schema.names, "_rowid", "_rowaddr"}:
        return None
    return tuple(name for name in names if name in schema.names and name not in reader_columns)


def split_key(key: Sequence[str], columns: Sequence[str] | None, schema: pa.Schema) -> tuple[str, ...] | None:
    """The columns whose updates may change the key of a row of the reader; None if those of any column may.

    The reader computes a column of the key that the input lacks, from any columns that it reads.

    Args:
        key: The columns by which the reader's merge matches rows.
        columns: The columns that the input loads; None for all columns.
        schema: The columns of the input's table.
    """
    return tuple(key) if set(key) <= set(schema.names if columns is None else columns) else None


def parse_filter(value: object, dataset: lance_core.LanceDataset, label: str) -> pc.Expression | None:
    """The entry `lance/filter` as an expression; None for all rows.

    Raises:
        DagsterInvalidDefinitionError: The filter is invalid for the table.
    """
    if value is None:
        return None
    if isinstance(value, LanceFilter):
        return value.expression
    if isinstance(value, str):
        try:
            return dataset.parse_filter(value)
        except LanceError as error:
            raise dg.DagsterInvalidDefinitionError(f"{label}: metadata lance/filter: {error}") from error
    if isinstance(value, list | tuple):
        try:
            return pq.filters_to_expression(_as_tuples(value))
        except (ValueError, TypeError) as error:
            raise dg.DagsterInvalidDefinitionError(f"{label}: metadata lance/filter: {error}") from error
    raise AssertionError("check_input rejects other values")


def _as_tuples(filters: Sequence[Any]) -> list[Any]:
    """The filters as pyarrow takes them: with tuples, which JSON lacks.

    Either terms that all hold, `[[a, op, v], ...]`, or several of such lists, of which one holds.

    Raises:
        ValueError: The filters have another form, or a term that is true for no row.
        TypeError: A term compares with a value of a wrong type.
    """
    if filters and all(_is_list(part) and part and _is_list(part[0]) for part in filters):
        return [[_as_tuple(term) for term in terms] for terms in filters]
    if not filters:
        raise ValueError(f"it must be a list of [column, operator, value], not {filters!r}")
    return [_as_tuple(term) for term in filters]


def _as_tuple(term: Any) -> tuple[str, str, Any]:
    if not (_is_list(term) and len(term) == 3 and isinstance(term[0], str)):
        raise ValueError(f"it must be a list of [column, operator, value], not {term!r} among them")
    column, operator, value = term
    is_membership = operator in ("in", "not in")
    if is_membership and not isinstance(value, list | tuple | set | frozenset):
        # pyarrow takes a string for the list of its characters.
        raise TypeError(f"{operator!r} needs a list of values, not {value!r}, for column {column!r}")
    if value is None or (is_membership and None in value):
        raise ValueError(
            f"{[*term]}: no row compares with null; leave null out, or give an SQL string with {column} IS NULL or "
            f"{column} IS NOT NULL"
        )
    return column, operator, value


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
