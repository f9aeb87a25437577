"""Runs INSERT, UPDATE, DELETE, MERGE and TRUNCATE, by the functions that write and change rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.catalog.tables import TableName
from pyspark_lance.changing.clauses import MergeClause
from pyspark_lance.changing.conditional import RowCondition, delete_where, update_where
from pyspark_lance.changing.merge_clauses import ClauseMerge
from pyspark_lance.changing.stored_values import FieldOrder, cast_values, null_column
from pyspark_lance.changing.struct_values import Value, respell_values
from pyspark_lance.changing.task import DELETE, INSERT, UPDATE
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.lexing import has_escapes, has_usual_settings
from pyspark_lance.engine.sessions import has_times_without_zone, session_zone
from pyspark_lance.lazy import DataFrame, functions
from pyspark_lance.statements.context import Context
from pyspark_lance.statements.names import find_mentions
from pyspark_lance.statements.replace_condition import replace_condition
from pyspark_lance.statements.tokens import Assignment, Piece
from pyspark_lance.types.column_names import case_sensitive, match_names
from pyspark_lance.types.spark_types import spark_schema
from pyspark_lance.writing.options import existing_partition_columns

_ACTIONS: Final = {"UPDATE": UPDATE, "DELETE": DELETE, "INSERT": INSERT}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWhen:
    """WHEN [NOT] MATCHED [BY SOURCE] [AND condition] THEN UPDATE | DELETE | INSERT."""

    side: str
    action: str
    condition: Piece | None
    values: Mapping[str, Piece] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsingClause:
    """The source of a merge: a query or the name of a table, [alias [(columns)]]."""

    piece: Piece
    is_query: bool
    alias: str | None
    columns: Sequence[str]


def insert(
    context: Context,
    *,
    table: TableName,
    query: Piece,
    columns: Sequence[str] | None,
    by_name: bool,
    overwrites: bool,
    condition: Piece | None,
) -> DataFrame:
    """Run an INSERT INTO | OVERWRITE table [(columns)] [BY NAME] [REPLACE WHERE condition] query."""
    dataset, location = context.target(table)
    rows = _fit_to_columns(context.rows(query), table, dataset, columns, by_name=by_name)
    replace_where = None
    if condition is not None:
        replace_where = replace_condition(
            condition.text,
            context.params,
            dataset.schema,
            exact=case_sensitive(context.spark),
            usual=has_usual_settings(context.spark),
            escapes=has_escapes(context.spark),
            zone=None if has_times_without_zone(context.spark) else session_zone(context.spark),
        )
    written = context.write(
        rows,
        dataset.uri,
        mode="overwrite" if overwrites or replace_where is not None else "append",
        replace_where=replace_where,
        partition_by=tuple(existing_partition_columns(dataset) or ()) or None,
        storage_options=location.storage_options,
    )
    return context.counts(num_affected_rows=written, num_inserted_rows=written)


def _fit_to_columns(
    rows: DataFrame, table: TableName, dataset: LanceDataset, columns: Sequence[str] | None, *, by_name: bool
) -> DataFrame:
    """The rows of a query in the columns of the table, in their types.

    Raises:
        SchemaError: The query has other columns than the table, or a value does not fit its column.
    """
    names = dataset.schema.names
    exact = case_sensitive(rows.sparkSession)
    column_names = list(columns or (rows.columns if by_name else names))
    twice = sorted(name for name, count in Counter(column_names).items() if count > 1)
    if twice:
        raise SchemaError(f"{table}: the columns {twice} are named more than once: name each column once")
    spellings = match_names(column_names, names, exact=exact)
    unknown = [name for name in column_names if name not in spellings]
    if unknown:
        raise SchemaError(f"{table} has no columns {unknown}; it has {names}")
    if len(column_names) != len(rows.columns):
        raise SchemaError(
            f"{table}: the query has {len(rows.columns)} columns, {rows.columns}, for {len(column_names)} of"
            f" the table, {column_names}; name the columns, INSERT INTO {table} (...), or say BY NAME"
        )
    plain = rows.toDF(*[f"__lance_{i}" for i in range(len(column_names))])
    places = {spellings[name]: i for i, name in enumerate(column_names)}
    strict = [field.name for field in dataset.schema if not field.nullable and field.name not in places]
    if strict:
        raise SchemaError(f"{table}: rows cannot be inserted without values for the columns {strict}")
    order = FieldOrder(by_name=by_name, exact=exact)
    query_values: dict[str, Value] = {name: functions.col(plain.columns[place]) for name, place in places.items()}
    expressions = {name: rows.columns[place] for name, place in places.items()}
    values = cast_values(
        plain, query_values, dataset.schema, what=f"INSERT INTO {table}", order=order, expressions=expressions
    )
    values |= {
        field.name: null_column(field.dataType) for field in spark_schema(dataset.schema) if field.name not in places
    }
    return plain.select(*[values[name].alias(name) for name in names])


def update(
    context: Context, *, table: TableName, alias: str | None, values: Mapping[str, Piece], where: Piece | None
) -> DataFrame:
    """Run an UPDATE table [alias] SET column = value, ... [WHERE condition]."""
    dataset, location = context.target(table)
    alias = alias or table.last
    _check_assignments(context, values, table, alias, dataset)
    expressions = {
        _unqualified_name(name, table): context.expression(piece, table, alias) or "" for name, piece in values.items()
    }
    condition = context.expression(where, table, alias)
    rows = RowCondition(session=context.spark, condition=condition, alias=alias)
    result = update_where(dataset, expressions, rows, context.options(location))
    return context.counts(num_affected_rows=result.rows_updated)


def _check_assignments(
    context: Context, values: Mapping[str, Piece], table: TableName, alias: str, dataset: LanceDataset
) -> None:
    """Make sure that the columns that get values are columns of the table.

    Raises:
        SchemaError: An assigned name is not a column of the table; the message has its position.
    """
    exact = case_sensitive(context.spark)
    for name, piece in values.items():
        if not isinstance(piece, Assignment):
            continue
        try:
            respell_values(
                {_unqualified_name(name, table): piece.text}, dataset.schema, "SET", alias=alias, exact=exact
            )
        except SchemaError as error:
            raise SchemaError(f"{context.describe_position(piece.column)}: {error}. Nothing was done") from None


def delete(context: Context, *, table: TableName, alias: str | None, where: Piece | None) -> DataFrame:
    """Run a DELETE FROM table [alias] [WHERE condition]."""
    dataset, location = context.target(table)
    alias = alias or table.last
    condition = context.expression(where, table, alias)
    rows = RowCondition(session=context.spark, condition=condition, alias=alias)
    result = delete_where(dataset, rows, context.options(location))
    return context.counts(num_affected_rows=result.rows_deleted)


def truncate(context: Context, *, table: TableName) -> DataFrame:
    """Run a TRUNCATE TABLE."""
    dataset, _ = context.target(table)
    dataset.truncate_table()
    return context.nothing()


def merge(
    context: Context,
    *,
    table: TableName,
    alias: str | None,
    source: UsingClause,
    on: Piece,
    clauses: Sequence[MergeWhen],
) -> DataFrame:
    """Run a MERGE INTO table [alias] USING source ON condition WHEN ..."""
    dataset, location = context.target(table)
    alias = alias or table.last
    rows, source_alias = _source_rows(context, source)
    if source_alias is not None:
        if source_alias.lower() == alias.lower():
            raise InvalidInputError(
                f"merge: the table and the source are both called {alias}: give one of them an alias"
            )
        rows = rows.alias(source_alias)

    for when in clauses:
        _check_assignments(context, when.values or {}, table, alias, dataset)

    def expression(piece: Piece | None) -> Any:
        return context.expression(piece, table, alias)

    changes = [
        MergeClause(
            side=when.side,  # type: ignore[arg-type]  # one of the three
            action=_ACTIONS[when.action],
            condition=expression(when.condition),
            values=None
            if when.values is None
            else {_unqualified_name(name, table): expression(piece) for name, piece in when.values.items()},
        )
        for when in clauses
    ]
    job = ClauseMerge(source=rows, condition=expression(on), clauses=tuple(changes), alias=alias)
    done = job.run(dataset, context.options(location))
    return context.counts(
        num_affected_rows=done.rows_updated + done.rows_deleted + done.rows_inserted,
        num_updated_rows=done.rows_updated,
        num_deleted_rows=done.rows_deleted,
        num_inserted_rows=done.rows_inserted,
    )


def _source_rows(context: Context, source: UsingClause) -> tuple[DataFrame, str | None]:
    """The rows of the source of a merge, and the name that qualifies its columns."""
    alias = source.alias
    mentions = [] if source.is_query else find_mentions(source.piece.text, context.finder)
    if source.is_query:
        frame = context.rows(source.piece)
    elif mentions:
        frame = context.frame(mentions[0], source.piece.start)
        alias = alias or mentions[0].name.last
    else:
        with short_errors(context.describe_position(source.piece.start)):
            frame = context.spark.table(source.piece.text)
            frame.columns  # noqa: B018 - Spark looks for the table
    if source.columns:
        if len(source.columns) != len(frame.columns):
            raise SchemaError(f"merge: the source has the columns {frame.columns}, not {source.columns}")
        frame = frame.toDF(*source.columns)
    return frame, alias


def _unqualified_name(name: str, table: TableName) -> str:
    """The name of a column without the full name of the table before it."""
    prefix = ".".join(table.parts) + "."
    return name[len(prefix) :] if name.lower().startswith(prefix.lower()) else name
