"""Updates and deletes with a condition in Spark SQL, evaluated by Spark: for SQL statements and `LanceTable`.

    condition    s.name LIKE 'a%' AND id > 5         rows       id > 5 is pushed to the read; Spark evaluates all of it
    values       {"x": "x + 1"}                      frame      values | address | kind --> `RowLevelChange`: one commit

`pyspark_lance.update` and `delete` take conditions in Lance's SQL, which knows neither Spark's functions nor
subqueries: the read evaluates them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError
from pyspark_lance.changing.job import ChangeOptions, ChangeResult, RowLevelChange, run_change
from pyspark_lance.changing.merge_frames import kind_column, renamed, row_id_columns, rows_of
from pyspark_lance.changing.stored_values import FieldOrder, cast_values
from pyspark_lance.changing.struct_values import Value, as_column, is_column, respell_values
from pyspark_lance.changing.task import ADDRESS, DELETE, UPDATE
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.lexing import has_usual_settings
from pyspark_lance.engine.sessions import with_times
from pyspark_lance.engine.spark_internals import names_of_column
from pyspark_lance.lazy import DataFrame, SparkSession, functions, types
from pyspark_lance.reading.filter_pushdown import push_filter
from pyspark_lance.reading.plan import table_schema
from pyspark_lance.types.column_names import case_sensitive, check_spellings, quoted
from pyspark_lance.types.spark_types import spark_schema

_ROW_COLUMNS: Final = ("_rowid", "_rowaddr")
_NAME: Final = re.compile(r"\w+|`(?:[^`]|``)*`")
_STAR: Final = re.compile(r"\.\s*\*")
_NOT_BOOLEAN: Final = "FILTER_NOT_BOOLEAN"
"""Spark's error for a condition that is not boolean, such as a plain NULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCondition:
    """The condition that selects the rows of an update or a delete.

    Attributes:
        session: The session that evaluates the condition.
        condition: The condition, in Spark SQL or as a column; None for all rows.
        alias: The name that may qualify columns.
        filter: A condition in Lance's SQL, which was checked.
    """

    session: SparkSession
    condition: Value | None = None
    alias: str | None = None
    filter: str | None = None

    def rows(self, base: LanceDataset, columns: list[str], storage_options: Mapping[str, str] | None) -> DataFrame:
        """The rows of a version, with these columns and the ones that the condition needs."""
        named = [*find_mentioned_columns([self.condition], base), *row_columns([self.condition], base)]
        needed = [name for name in named if name not in columns]
        is_pushed = isinstance(self.condition, str) and has_usual_settings(self.session)
        pushed = push_filter(str(self.condition), base.schema, self.alias) if is_pushed else None
        within = self.filter if pushed is None else pushed.filter
        rows = rows_of(self.session, base, [*columns, *needed], within, storage_options)
        rows = rows if self.alias is None else rows.alias(self.alias)
        if self.condition is None or (pushed is not None and pushed.is_exact):
            return rows
        return rows.where(as_column(self.condition))

    def check_in_spark(self, verb: str, base: LanceDataset) -> RowCondition:
        """Let Spark check the condition, before anything runs; a NULL, which no row meets, becomes `false`.

        Raises:
            InvalidInputError: The condition does not fit the table.
        """
        if self.condition is None:
            return self
        if not isinstance(self.condition, str) and not is_column(self.condition):
            raise InvalidInputError(f"{verb}: the condition must be Spark SQL or a Column, not {self.condition!r}")
        further = row_columns([self.condition], base)
        fields = [*spark_schema(base.schema), *(table_schema(base, further) if further else ())]
        rows = self.session.createDataFrame([], types.StructType(fields))
        rows = rows if self.alias is None else rows.alias(self.alias)
        try:
            with short_errors(f"{verb}: {self.condition}"):
                condition = as_column(self.condition)
                rows.where(condition).schema  # noqa: B018 - Spark checks the condition
        except InvalidInputError as error:
            if _NOT_BOOLEAN in str(error) and isinstance(rows.select(condition).schema[0].dataType, types.NullType):
                return replace(self, condition="false")
            raise
        return self


def find_mentioned_columns(expressions: list[Value | None], base: LanceDataset) -> list[str]:
    """The columns of a version that some expressions name; all columns if the names of an expression are unknown."""
    texts = [_list_names(expr) for expr in expressions]
    if any(names is None or any(_STAR.search(text) or "${" in text for text in names) for names in texts):
        return list(base.schema.names)
    mentioned_names = names_in_text([text for names in texts for text in names or ()])
    return [name for name in base.schema.names if name.lower() in mentioned_names]


def _list_names(expression: Value | None) -> list[str] | None:
    """The names, and SQL with names, in an expression; None if they are unknown."""
    if expression is None or isinstance(expression, str):
        return [expression or ""]
    return names_of_column(expression)


def row_columns(expressions: list[Value | None], base: LanceDataset) -> list[str]:
    """The columns `_rowid` and `_rowaddr`, which no table lists, as far as some expressions may name them."""
    mentioned_names: set[str] = set()
    for expr in expressions:
        names = _list_names(expr)
        mentioned_names |= set(_ROW_COLUMNS) if names is None else names_in_text(names)
    return [name for name in _ROW_COLUMNS if name in mentioned_names and name not in base.schema.names]


def names_in_text(texts: Sequence[str | None]) -> set[str]:
    """All words and whole strings that may be names of columns in some expressions, in lower case."""
    words = {word.strip("`").replace("``", "`").lower() for text in texts for word in _NAME.findall(text or "")}
    return words | {text.lower() for text in texts if text}  # the name of a column may have spaces in it


def delete_where(dataset: LanceDataset, where: RowCondition, options: ChangeOptions) -> ChangeResult:
    """Delete the rows that meet a condition, in one commit.

    Raises:
        InvalidInputError: The condition does not fit the table.
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
    """
    with with_times(where.session, spark_schema(dataset.schema)):
        where = where.check_in_spark("delete", dataset)

        def change(base: LanceDataset) -> RowLevelChange:
            with short_errors(f"delete: {where.condition}"):
                rows = where.rows(base, ["_rowaddr"], options.storage_options)
                frame = rows.select(renamed("_rowaddr", ADDRESS), kind_column(DELETE))
                return RowLevelChange(dataset=base, frame=frame, on=(), options=options)

        return run_change(dataset, change, options)


def update_where(
    dataset: LanceDataset, values: Mapping[str, Value], where: RowCondition, options: ChangeOptions
) -> ChangeResult:
    """Set columns of the rows that meet a condition, in one commit.

    Raises:
        SchemaError: The table lacks a column, or a value has another type; the message names the column.
        InvalidInputError: The condition or a value does not fit the table.
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
    """
    with with_times(where.session, spark_schema(dataset.schema)):
        where = where.check_in_spark("update", dataset)
        exact = case_sensitive(where.session)
        column_values = respell_values(values, dataset.schema, "update", alias=where.alias, exact=exact)

        def change(base: LanceDataset) -> RowLevelChange:
            names = base.schema.names
            ids = row_id_columns(base)
            rows_changed = "" if where.condition is None else f"{where.condition}, "
            with short_errors(f"update: {rows_changed}set {dict(values)}"):
                further = [name for name in row_columns(list(column_values.values()), base) if name not in ids]
                rows = where.rows(base, [*names, *ids, *further], options.storage_options)
                check_spellings(rows, names)
                order = FieldOrder(exact=exact)
                new_values = cast_values(rows, column_values, base.schema, what="update", order=order)
                cells = [new_values.get(name, functions.col(quoted(name))).alias(name) for name in names]
                frame = rows.select(*cells, *[renamed(*pair) for pair in ids.items()], kind_column(UPDATE))
                return RowLevelChange.writing(base, frame, (), options)

        return run_change(dataset, change, options)
