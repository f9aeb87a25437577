"""Runs INSERT, UPDATE, DELETE, MERGE and TRUNCATE, by the functions that write and change rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.catalog.tables import TableName
from pyspark_lance.changing.clauses import MergeClause
from pyspark_lance.changing.conditional import RowCondition, delete_where, update_where
from pyspark_lance.changing.merge_clauses import ClauseMerge
from pyspark_lance.changing.stored_values import FieldOrder, stored_as
from pyspark_lance.changing.task import DELETE, INSERT, UPDATE
from pyspark_lance.changing.update_values import spelled_values
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.lexing import has_escapes, has_usual_settings
from pyspark_lance.engine.sessions import has_times_without_zone, session_zone
from pyspark_lance.statements import records
from pyspark_lance.statements.context import Context
from pyspark_lance.statements.names import mentions_of
from pyspark_lance.statements.replace_condition import replace_condition
from pyspark_lance.statements.tokens import Assignment, Piece
from pyspark_lance.types.column_names import case_sensitive, matched_names
from pyspark_lance.types.null_columns import null_column
from pyspark_lance.types.spark_types import spark_schema
from pyspark_lance.writing.partitioning import PARTITIONED_BY, partition_by, partitioned_by
from pyspark_lance.writing.write import write

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "check_not_partitioned_by",
    "delete",
    "insert",
    "merge",
    "truncate",
    "update",
]

_ACTIONS: Final = {"UPDATE": UPDATE, "DELETE": DELETE, "INSERT": INSERT}


def check_not_partitioned_by(table: TableName, dataset: LanceDataset, names: Iterable[str]) -> None:
    """Make sure that a table is not partitioned by columns that are to be dropped or renamed.

    Raises:
        InvalidInputError: The table is partitioned by one of them, so that a dynamic overwrite would replace all rows.
    """
    partition_columns = sorted(set(names) & set(partitioned_by(dataset)))
    if partition_columns:
        raise InvalidInputError(
            f"{table} is PARTITIONED BY {', '.join(partition_columns)}: to drop or rename the column, first run"
            f" ALTER TABLE {table} UNSET TBLPROPERTIES ('{PARTITIONED_BY}'); SET TBLPROPERTIES ('{PARTITIONED_BY}' ="
            " 'column') partitions it again. Nothing was done"
        )


def insert(context: Context, statement: records.Insert) -> DataFrame:
    """Run an INSERT."""
    dataset, location = context.target(statement.table)
    rows = _in_columns(context, context.sources.query(statement.query), statement, dataset)
    replace_where = None
    if statement.replace_where is not None:
        replace_where = replace_condition(
            statement.replace_where.text,
            context.sources.params,
            dataset.schema,
            exact=case_sensitive(context.spark),
            usual=has_usual_settings(context.spark),
            escapes=has_escapes(context.spark),
            zone=None if has_times_without_zone(context.spark) else session_zone(context.spark),
        )
    done = write(
        rows,
        dataset.uri,
        mode="overwrite" if statement.overwrites or replace_where is not None else "append",
        replace_where=replace_where,
        partition_by=partition_by(dataset),
        storage_options=location.storage_options,
    )
    written = 0 if done is None else done.rows_written
    return context.counts(num_affected_rows=written, num_inserted_rows=written)


def _in_columns(context: Context, rows: DataFrame, statement: records.Insert, dataset: LanceDataset) -> DataFrame:
    """The rows of a query in the columns of the table, in their types.

    Raises:
        SchemaError: The query has other columns than the table, or a value does not fit its column.
    """
    from pyspark.sql import functions

    names = dataset.schema.names
    exact = case_sensitive(context.spark)
    column_names = list(statement.columns or (rows.columns if statement.by_name else names))
    twice = sorted(name for name, count in Counter(column_names).items() if count > 1)
    if twice:
        raise SchemaError(f"{statement.table}: the columns {twice} are named more than once: name each column once")
    spellings = matched_names(column_names, names, exact=exact)
    unknown = [name for name in column_names if name not in spellings]
    if unknown:
        raise SchemaError(f"{statement.table} has no columns {unknown}; it has {names}")
    if len(column_names) != len(rows.columns):
        raise SchemaError(
            f"{statement.table}: the query has {len(rows.columns)} columns, {rows.columns}, for {len(column_names)} of"
            f" the table, {column_names}; name the columns, INSERT INTO {statement.table} (...), or say BY NAME"
        )
    plain = rows.toDF(*[f"__lance_{i}" for i in range(len(column_names))])
    places = {spellings[name]: i for i, name in enumerate(column_names)}
    strict = [field.name for field in dataset.schema if not field.nullable and field.name not in places]
    if strict:
        raise SchemaError(f"{statement.table}: rows cannot be inserted without values for the columns {strict}")
    kinds = {field.name: field.dataType for field in spark_schema(dataset.schema)}
    order = FieldOrder(by_name=statement.by_name, exact=exact)
    values: list[Column] = []
    for name in names:
        if name not in places:
            values.append(null_column(kinds[name]).alias(name))
            continue
        field = plain.schema[places[name]]
        stored = pa.schema([dataset.schema.field(name)])
        name_given = rows.columns[places[name]]
        value = functions.col(field.name)
        what = f"INSERT INTO {statement.table}"
        value = stored_as(value, name_given, field.dataType, kinds[name], stored, what=what, order=order)
        values.append(value.alias(name))
    return plain.select(*values)


def update(context: Context, statement: records.Update) -> DataFrame:
    """Run an UPDATE."""
    dataset, location = context.target(statement.table)
    alias = statement.alias or statement.table.last
    _check_assignments(context, statement.values, statement.table, alias, dataset)
    values = {
        _unqualified_name(name, statement.table): context.sources.expression(piece, statement.table, alias)
        for name, piece in statement.values.items()
    }
    condition = context.expression(statement.where, statement.table, alias)
    where = RowCondition(session=context.spark, condition=condition, alias=alias)
    done = update_where(dataset, values, where, context.options(location))
    return context.counts(num_affected_rows=done.rows_updated)


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
            spelled_values(
                {_unqualified_name(name, table): piece.text}, dataset.schema, "SET", alias=alias, exact=exact
            )
        except SchemaError as error:
            raise SchemaError(f"{context.sources.at(piece.column)}: {error}. Nothing was done") from None


def delete(context: Context, statement: records.Delete) -> DataFrame:
    """Run a DELETE."""
    dataset, location = context.target(statement.table)
    alias = statement.alias or statement.table.last
    condition = context.expression(statement.where, statement.table, alias)
    where = RowCondition(session=context.spark, condition=condition, alias=alias)
    done = delete_where(dataset, where, context.options(location))
    return context.counts(num_affected_rows=done.rows_deleted)


def truncate(context: Context, statement: records.Truncate) -> DataFrame:
    """Run a TRUNCATE TABLE."""
    dataset, _ = context.target(statement.table)
    dataset.truncate_table()
    return context.nothing()


def merge(context: Context, statement: records.Merge) -> DataFrame:
    """Run a MERGE INTO."""
    dataset, location = context.target(statement.table)
    alias = statement.alias or statement.table.last
    source, source_alias = _source(context, statement)
    if source_alias is not None:
        if source_alias.lower() == alias.lower():
            raise InvalidInputError(
                f"merge: the table and the source are both called {alias}: give one of them an alias"
            )
        source = source.alias(source_alias)

    for when in statement.clauses:
        _check_assignments(context, when.values or {}, statement.table, alias, dataset)

    def expression(piece: Piece | None) -> Any:
        return context.expression(piece, statement.table, alias)

    clauses = [
        MergeClause(
            side=when.side,  # type: ignore[arg-type]  # one of the three
            action=_ACTIONS[when.action],
            condition=expression(when.condition),
            values=None
            if when.values is None
            else {_unqualified_name(name, statement.table): expression(piece) for name, piece in when.values.items()},
        )
        for when in statement.clauses
    ]
    job = ClauseMerge(source=source, condition=expression(statement.on), clauses=tuple(clauses), alias=alias)
    done = job.run(dataset, context.options(location))
    return context.counts(
        num_affected_rows=done.rows_updated + done.rows_deleted + done.rows_inserted,
        num_updated_rows=done.rows_updated,
        num_deleted_rows=done.rows_deleted,
        num_inserted_rows=done.rows_inserted,
    )


def _source(context: Context, statement: records.Merge) -> tuple[DataFrame, str | None]:
    """The source of a merge, and the name that qualifies its columns."""
    if statement.source_is_query:
        frame, alias = context.sources.query(statement.source), statement.source_alias
    else:
        mentions = mentions_of(statement.source.text, context.finder)
        if mentions:
            frame = context.sources.frame(mentions[0], statement.source.start)
            alias = statement.source_alias or mentions[0].name.last
        else:
            with short_errors(context.sources.at(statement.source.start)):
                frame = context.spark.table(statement.source.text)
                frame.columns  # noqa: B018 - Spark looks for the table
            alias = statement.source_alias
    if statement.source_columns:
        if len(statement.source_columns) != len(frame.columns):
            raise SchemaError(f"merge: the source has the columns {frame.columns}, not {statement.source_columns}")
        frame = frame.toDF(*statement.source_columns)
    return frame, alias


def _unqualified_name(name: str, table: TableName) -> str:
    """The name of a column without the full name of the table before it."""
    prefix = ".".join(table.parts) + "."
    return name[len(prefix) :] if name.lower().startswith(prefix.lower()) else name
