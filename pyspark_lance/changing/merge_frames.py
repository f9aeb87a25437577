"""Rows of a DataFrame that name rows of a table by a key, and frames that changes are made of.

rows      fitted to the table: its spelling of columns, its collations of keys; types are checked before any job
deletes   target inner join rows       target: keys and addresses of the table's rows, narrowed by the keys of the rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing.stored_values import wrap_blobs
from pyspark_lance.changing.task import ADDRESS, DELETE, KIND, ROW_ID
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.jobs import run_job
from pyspark_lance.engine.sessions import with_times
from pyspark_lance.keys.equality import check_keys_of, has_bytes
from pyspark_lance.keys.narrowing import narrow_by_frame
from pyspark_lance.lazy import Column, DataFrame, DataType, Row, SparkSession, StructField, functions, types
from pyspark_lance.reading.plan import plan_read, table_schema
from pyspark_lance.reading.read import read_frame
from pyspark_lance.types.column_names import case_sensitive, check_spellings, match_names, quoted, rename_columns_like
from pyspark_lance.types.spark_types import batch_schema, spark_schema
from pyspark_lance.writing.row_checks import AMBIGUOUS
from pyspark_lance.writing.schema_plan import ADD_FIRST, plan_write

TASK_ROWS: Final = 1 << 18
"""Rows of a merge's source for each task and its file."""
_LOOKUP_ROWS: Final = 16 << 20
"""Most keys of a table that all tasks of a merge read in total; if they would read more, Spark joins instead."""
_ADD_OR_DROP: Final = f"Drop them (DataFrame.drop), or {ADD_FIRST}"
_COUNT: Final = "__lance_count"
SOURCE: Final = "source"
TARGET: Final = "target"
"""The names that qualify the columns of both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """Rows whose key names rows of a table.

    Attributes:
        rows: The rows.
        keys: Columns that make up the key.
    """

    rows: DataFrame
    keys: tuple[str, ...]

    @classmethod
    def fit(cls, rows: DataFrame, keys: Sequence[str], base: LanceDataset) -> KeyedRows:
        """Rows with the table's spelling of columns and collations of keys; no job is run.

        Args:
            rows: The rows, of which the key alone has to fit the table.
            keys: Columns that make up the key.
            base: The version that is changed first.

        Raises:
            SchemaError: A column of the key does not fit the table's; the message names it.
        """
        rows = rename_columns_like(rows, batch_schema(rows.schema), base.schema)
        names = match_names(keys, base.schema.names, exact=case_sensitive(rows.sparkSession))
        missing = [name for name in keys if name not in names]
        if missing:
            raise SchemaError(f"on: {base.uri} has no columns {missing}; it has {base.schema.names}")
        fields = [base.schema.field(names[name]) for name in keys]
        check_keys_of("on", fields)
        rows = apply_collations(rows, fields)
        _check_types(rows, fields)
        return cls(rows=rows, keys=tuple(field.name for field in fields))

    def fit_values(self, base: LanceDataset, *, inserts: bool) -> KeyedRows:
        """The rows, of which all columns are written as they are.

        Args:
            base: The version that is changed first.
            inserts: Whether rows are inserted.

        Raises:
            SchemaError: A column does not fit the table's, or the rows lack a column that inserted rows need.
        """
        check_columns_of(self.rows, base)
        strict = [field.name for field in base.schema if not field.nullable and field.name not in self.rows.columns]
        if strict and inserts:
            raise SchemaError(f"merge: rows cannot be inserted without values for the columns {strict}")
        check_spellings(self.rows, base.schema.names)
        rows = wrap_blobs(self.rows, base.schema)
        _check_types(rows, [base.schema.field(name) for name in rows.columns])
        return replace(self, rows=rows)

    def check_condition(self, condition: str, base: LanceDataset) -> None:
        """Let Spark check a condition over `source` and `target`.

        Raises:
            InvalidInputError: The condition does not fit the columns.
        """
        spark, stored = self.rows.sparkSession, spark_schema(base.schema)
        with with_times(spark, self.rows.schema, stored), short_errors(f"condition {condition!r}"):
            both = self.rows.alias(SOURCE).join(spark.createDataFrame([], stored).alias(TARGET), how="cross")
            both.where(condition).schema  # noqa: B018 - Spark checks the condition

    def same_key(self, base: LanceDataset) -> Column:
        """The condition that the key of a row equals the key of a row of the table."""
        stored, source = spark_schema(base.schema), self.rows.schema
        same = [
            is_same_value(
                f"{SOURCE}.{quoted(name)}", f"{TARGET}.{quoted(name)}", source[name].dataType, stored[name].dataType
            )
            for name in self.keys
        ]
        return reduce(and_, same)

    def deletes(self, base: LanceDataset, storage_options: Mapping[str, str] | None) -> DataFrame:
        """The deletes of all rows of a version that have one of the keys, in the columns that `task` draws."""
        check_spellings(self.rows, base.schema.names)
        about = row_id_columns(base)
        within = narrow_by_frame(base, self.keys, self.rows)
        target = rows_of(self.rows.sparkSession, base, [*self.keys, *about], within.condition, storage_options)
        target = target.alias(TARGET)
        if not within.is_exact:
            target = self.rows.alias(SOURCE).join(target, self.same_key(base), "inner")
        ids = [functions.col(f"{TARGET}.{name}").alias(to) for name, to in about.items()]
        return target.select(*ids, kind_column(DELETE))


def check_columns_of(rows: DataFrame, base: LanceDataset) -> None:
    """Make sure that a table has all columns of a source.

    Raises:
        SchemaError: The table lacks a column of the source.
    """
    unknown = [name for name in rows.columns if name not in base.schema.names]
    if unknown:
        raise SchemaError(f"merge: {base.uri} has no columns {unknown}; it has {base.schema.names}. {_ADD_OR_DROP}")


def _check_types(rows: DataFrame, fields: Sequence[pa.Field]) -> None:
    """Make sure that some columns fit those of the table."""
    schema = batch_schema(rows.select(*[quoted(field.name) for field in fields]).schema)
    plan_write(schema, pa.schema(fields), case_sensitive=True, has_schema_mode=False)


def tasks_of(rows: int) -> int:
    """The number of tasks that write the rows of a merge's source."""
    return max(1, -(-rows // TASK_ROWS))


def partition_by_key(source: DataFrame, tasks: int, keys: Sequence[str]) -> DataFrame:
    """The source, divided among tasks so that one has all rows of a key."""
    return source.coalesce(1) if tasks == 1 else source.repartition(tasks, *map(quoted, keys))


def can_look_up(base: LanceDataset, source: DataFrame, keys: Sequence[str], tasks: int = 1) -> bool:
    """Whether tasks look up the keys of a source in the table: they compare keys as Spark does, and read few enough."""
    stored = {field.name: field.dataType for field in spark_schema(base.schema)}
    same = all(has_bytes(base.schema.field(name)) and source.schema[name].dataType == stored[name] for name in keys)
    return same and base.count_rows() * tasks <= _LOOKUP_ROWS


def apply_collations(source: DataFrame, keys: Sequence[pa.Field]) -> DataFrame:
    """The source with the collations that the table has for the columns of the key."""
    key_fields = {field.name: kind for field, kind in zip(keys, spark_schema(pa.schema(keys)), strict=True)}
    casts = {
        name: functions.col(quoted(name)).cast(field.dataType)
        for name, field in key_fields.items()
        if source.schema[name].dataType != field.dataType
        and _is_string_field(source.schema[name])
        and _is_string_field(field)
    }
    return source.withColumns(casts) if casts else source


def _is_string_field(field: StructField) -> bool:
    return field.dataType.typeName().startswith("string")


def reject_duplicate_keys(source: DataFrame, keys: Sequence[str]) -> None:
    """Make sure that a source has each key once; a key that contains a null equals no other.

    Raises:
        InvalidInputError: The source has a key twice; the message names the key.
    """
    twice = find_repeated_key(source, keys)
    if twice is not None:
        key = ", ".join(f"{name} = {twice[name]!r}" for name in keys)
        raise InvalidInputError(f"{AMBIGUOUS} {key}")


def find_repeated_key(source: DataFrame, keys: Sequence[str]) -> Row | None:
    """A key that a source has several times; None if there is none."""
    columns = [functions.col(quoted(name)) for name in keys]
    rows_with_key = source.where(reduce(and_, [column.isNotNull() for column in columns]))
    counted = rows_with_key.groupBy(*columns).agg(functions.count(functions.lit(1)).alias(_COUNT))
    return next(iter(run_job(source.sparkSession, partial(counted.where(f"{_COUNT} > 1").take, 1))), None)


def is_same_value(source_column: str, target_column: str, source_kind: DataType, target_kind: DataType) -> Column:
    """The condition that a column of the source equals a column of the table.

    Spark compares a float with another kind of number as floats, where 9007199254740992 equals 9007199254740993.
    Such keys are therefore compared in the types of both.
    """
    source, target = functions.col(source_column), functions.col(target_column)
    floats = [isinstance(kind, types.FloatType | types.DoubleType) for kind in (source_kind, target_kind)]
    numbers = [isinstance(kind, types.NumericType) for kind in (source_kind, target_kind)]
    if not all(numbers) or all(floats) or not any(floats):
        return source == target
    as_target = functions.expr(f"try_cast({source_column} AS {target_kind.simpleString()})")
    as_source = functions.expr(f"try_cast({target_column} AS {source_kind.simpleString()})")
    return (source == target) & (as_target == target) & (as_source == source)


def renamed(name: str, to: str) -> Column:
    """A column under another name."""
    return functions.col(quoted(name)).alias(to)


def kind_column(kind: int) -> Column:
    """The column with the kind of change of the rows."""
    return functions.lit(kind).cast("tinyint").alias(KIND)


def row_id_columns(base: LanceDataset) -> dict[str, str]:
    """The row columns that identify a row, with their names in a change."""
    ids = {"_rowid": ROW_ID} if base.has_stable_row_ids else {}
    return {"_rowaddr": ADDRESS, **ids}


def rows_of(
    spark: SparkSession,
    base: LanceDataset,
    columns: Sequence[str],
    where: str | pc.Expression | None,
    storage_options: Mapping[str, str] | None,
    expected_rows: int | None = None,
) -> DataFrame:
    """A frame of columns of a version, which may be row columns.

    Args:
        spark: The session.
        base: The version.
        columns: Names of the columns.
        where: The condition on the rows; None for all rows.
        storage_options: Options of the storage.
        expected_rows: The approximate number of rows, if it is known.
    """
    schema = table_schema(base, columns)
    condition = base.parse_filter(where) if isinstance(where, str) else where
    plan = plan_read(base, schema, filter=condition, storage_options=storage_options)
    return read_frame(spark, base, plan, schema, expected_rows=expected_rows)
