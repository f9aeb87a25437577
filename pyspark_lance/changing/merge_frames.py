"""The DataFrame of a merge by a key: inserted, updated and deleted rows, found by joins of Spark's public API.

A merge of whole rows into a table that is not large needs no such frame: its tasks look up the keys themselves
(`key_lookup`).

target  = key columns and addresses of the table's rows, and old values that are needed
pairs   = target inner join source                      Spark sends the smaller side to the larger one
found   = source left join pairs                        inserted rows: no address; updated rows: an address
others  = target anti join source                       rows that only the table has
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing.stored_values import wrap_blobs
from pyspark_lance.changing.task import ADDRESS, DELETE, INSERT, KIND, ROW_ID, UPDATE
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.keys.equality import check_keys_of, has_bytes
from pyspark_lance.keys.narrowing import Narrowed, collect_few_keys, narrow_by_frame
from pyspark_lance.reading.plan import plan_read, table_schema
from pyspark_lance.reading.read import read_frame
from pyspark_lance.types.column_names import case_sensitive, check_spellings, match_names, quoted, rename_columns_like
from pyspark_lance.types.null_columns import null_column
from pyspark_lance.types.spark_types import batch_schema, spark_schema
from pyspark_lance.writing.row_checks import AMBIGUOUS
from pyspark_lance.writing.schema_plan import ADD_FIRST, plan_write

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    from lance_core import LanceDataset

TASK_ROWS: Final = 1 << 18
"""Rows of a merge's source for each task and its file."""
_FEW_ROWS: Final = 200_000
"""Rows up to which keys and addresses are sent to all tasks instead of being shuffled."""
_LOOKUP_ROWS: Final = 16 << 20
"""Most keys of a table that all tasks of a merge read in total; if they would read more, Spark joins instead."""
_ADD_OR_DROP: Final = f"Drop them (DataFrame.drop), or {ADD_FIRST}"
_OLD: Final = "__lance_old_"
_KEY: Final = "__lance_key_"
_COUNT: Final = "__lance_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFrames:
    """A merge by a key: its source, its key, and what happens to the rows of each side.

    Attributes:
        source: The rows that are merged.
        keys: Columns that make up the key.
        matched: What happens to rows in both: UPDATE, DELETE, or None if they stay as they are.
        inserts: Whether rows only in the source are inserted.
        deletes_others: Whether rows only in the table are deleted.
        condition: Spark SQL over `source` and `target` that selects the rows in both that change; None for all.
        num_rows: Rows of the source; None if they are not counted.
        tasks: Number of tasks that write the rows; None for Spark's own number.
        few: The result of `collect_few_keys` for the source.
        looks_up: Whether tasks look up the keys of the source in the table, so that no frame is needed.
    """

    source: DataFrame
    keys: tuple[str, ...]
    matched: int | None
    inserts: bool
    deletes_others: bool = False
    condition: str | None = None
    num_rows: int | None = None
    tasks: int | None = None
    few: pa.Table | None = None
    looks_up: bool = False

    @property
    def writes(self) -> bool:
        """Whether the merge writes rows; if not, it only deletes."""
        return self.inserts or self.matched == UPDATE

    @contextlib.contextmanager
    def cache_source(self, base: LanceDataset, *, is_alone: bool = True) -> Iterator[MergeFrames]:
        """A copy whose source is computed once, cached by Spark, counted and divided among tasks.

        Args:
            base: The version that is changed first.
            is_alone: Whether the commit has no other changes.
        """
        cached_source = self.source.persist()
        try:
            if self.condition is None and self._inserts_unseen_keys(base):
                reject_duplicate_keys(cached_source, self.keys)
            rows, few = cached_source.count() if is_alone and self._can_look_up(base) else None, None
            looks_up = rows is not None and can_look_up(base, self.source, self.keys, tasks_of(rows))
            if not looks_up and not self.deletes_others:
                few = collect_few_keys(base, self.keys, cached_source)
            if rows is None:
                rows = cached_source.count() if few is None else few.num_rows
            tasks = tasks_of(rows)
            # From here on one task has all rows of a key, and detects duplicates.
            source = partition_by_key(cached_source, tasks, self.keys)
            yield replace(self, source=source, num_rows=rows, tasks=tasks, few=few, looks_up=looks_up)
        finally:
            cached_source.unpersist()

    def _inserts_unseen_keys(self, base: LanceDataset) -> bool:
        """Whether rows are inserted whose keys tasks cannot compare, so that they detect no duplicates."""
        return self.inserts and not all(has_bytes(base.schema.field(name)) for name in self.keys)

    def _can_look_up(self, base: LanceDataset) -> bool:
        """Whether tasks can do the merge: one of whole rows, without a condition."""
        if not self.writes or self.deletes_others or self.condition is not None or self._missing_columns(base):
            return False
        return can_look_up(base, self.source, self.keys)

    def fit_to_table(self, base: LanceDataset) -> MergeFrames:
        """Return a copy whose source has the table's spelling of columns and collations of keys; no job is run.

        Args:
            base: The version that is changed first.

        Raises:
            SchemaError: A column does not fit the table's; the message names it.
            InvalidInputError: The condition does not fit the columns.
        """
        source = rename_columns_like(self.source, batch_schema(self.source.schema), base.schema)
        exact = case_sensitive(source.sparkSession)
        names = match_names(self.keys, base.schema.names, exact=exact)
        missing = [name for name in self.keys if name not in names]
        if missing:
            raise SchemaError(f"on: {base.uri} has no columns {missing}; it has {base.schema.names}")
        keys = [base.schema.field(names[name]) for name in self.keys]
        check_keys_of("on", keys)
        source = apply_collations(source, keys)
        if self.writes:
            source = wrap_blobs(source, base.schema)
        fitted_merge = replace(self, source=source, keys=tuple(field.name for field in keys))
        fields = fitted_merge._check_and_list_fields(base) if self.writes else keys  # noqa: SLF001 - of the same class
        schema = batch_schema(source.select(*[quoted(field.name) for field in fields]).schema)
        plan_write(schema, pa.schema(fields), case_sensitive=True, has_schema_mode=False)
        if self.condition is not None:
            target = source.sparkSession.createDataFrame([], spark_schema(base.schema))
            both = source.alias("source").join(target.alias("target"), how="cross")
            with short_errors(f"condition {self.condition!r}"):
                both.where(self.condition).schema  # noqa: B018 - Spark checks the condition
        return fitted_merge

    def _check_and_list_fields(self, base: LanceDataset) -> list[pa.Field]:
        self._missing_columns(base)  # rejects columns that the table lacks
        schema = base.schema
        return [schema.field(name) for name in self.source.columns]

    def frame(self, base: LanceDataset, storage_options: Mapping[str, str] | None) -> DataFrame:
        """The changes to a version, in the columns that the head of `task` draws.

        Raises:
            SchemaError: The source has a column that the table lacks, or lacks a column that inserted rows need.
        """
        names: list[str] = base.schema.names if self.writes else []
        old = self._missing_columns(base) if self.writes else []
        check_spellings(self.source, base.schema.names)
        about = row_id_columns(base)
        columns = [*self.keys, *about, *(base.schema.names if self.condition is not None else old)]
        within = Narrowed()
        if not self.deletes_others:
            within = narrow_by_frame(base, self.keys, self.source, self.few)
        target = rows_of(
            self.source.sparkSession,
            base,
            list(dict.fromkeys(columns)),
            within.condition,
            storage_options,
            expected_rows=self.num_rows if within.is_exact else None,
        )
        frames = []
        if self.inserts or self.matched is not None:
            if self.writes and self.condition is not None:
                changes = self._build_conditional_changes(target, base, old, about)
            else:
                pairs = self._build_pairs(target, old, about, has_all=within.is_exact)
                changes = self._build_changes(pairs, base, old, about) if self.writes else _deleted_rows(pairs, about)
            # A join that shuffles leaves the session's number of partitions, each of which would become a file.
            frames.append(changes if self.tasks is None else changes.coalesce(self.tasks))
        if self.deletes_others:
            frames.append(self._build_table_only_rows(target, names, frames, base, about))
        return reduce(lambda left, right: left.unionByName(right), frames)

    def _missing_columns(self, base: LanceDataset) -> list[str]:
        """Check the columns of the source, and return those of the table that it lacks.

        Raises:
            SchemaError: The source has a column that the table lacks, or lacks one that inserted rows need.
        """
        schema, source_columns = base.schema, dict.fromkeys(self.source.columns)
        table_columns = set(schema.names)
        unknown = [name for name in source_columns if name not in table_columns]
        if unknown:
            raise SchemaError(f"merge: {base.uri} has no columns {unknown}; it has {schema.names}. {_ADD_OR_DROP}")
        lacking = [name for name in schema.names if name not in source_columns]
        strict = [name for name in lacking if not base.schema.field(name).nullable]
        if strict and self.inserts:
            raise SchemaError(f"merge: rows cannot be inserted without values for the columns {strict}")
        return lacking

    def _build_pairs(self, target: DataFrame, old: list[str], about: Mapping[str, str], *, has_all: bool) -> DataFrame:
        """Rows in both: the key, the row's address, old values, and whether the condition holds.

        Args:
            target: Rows of the table.
            old: Columns whose values are kept.
            about: The columns that identify a row.
            has_all: Whether the source has the key of each of these rows.
        """
        from pyspark.sql import functions

        columns = {f"target.{quoted(name)}": f"{_KEY}{i}" for i, name in enumerate(self.keys)}
        columns |= {f"target.{name}": to for name, to in about.items()}
        if self.matched == UPDATE:
            columns |= {f"target.{quoted(name)}": f"{_OLD}{i}" for i, name in enumerate(old)}
        if has_all and self.condition is None:
            plain = {name.removeprefix("target."): to for name, to in columns.items()}
            return target.select(
                *[functions.col(n).alias(to) for n, to in plain.items()], functions.lit(True).alias(KIND)
            )
        both = self._join_target(target, "inner")
        return both.select(*[functions.col(name).alias(to) for name, to in columns.items()], self._holds().alias(KIND))

    def _join_target(self, target: DataFrame, how: str) -> DataFrame:
        """The join of the source and the table."""
        ends = [(f"source.{quoted(name)}", f"target.{quoted(name)}") for name in self.keys]
        return self.source.alias("source").join(target.alias("target"), self._equal(ends, target.schema), how)

    def _holds(self) -> Column:
        """Whether the condition holds for a pair."""
        from pyspark.sql import functions

        no = functions.lit(False)
        return functions.lit(True) if self.condition is None else functions.coalesce(functions.expr(self.condition), no)

    def _build_conditional_changes(
        self, target: DataFrame, base: LanceDataset, old: list[str], about: Mapping[str, str]
    ) -> DataFrame:
        """Rows of the source, each with its kind of change, if a condition decides about each pair.

        Two rows of the source may have one key, of which the condition holds for one.

        Raises:
            InvalidInputError: Two inserted rows have one key, and tasks would not detect it.
        """
        from pyspark.sql import functions

        kinds = {field.name: field.dataType for field in spark_schema(base.schema)}
        is_new = functions.col("target._rowaddr").isNull()
        values = []
        for name in base.schema.names:
            value = functions.col(f"{'target' if name in old else 'source'}.{quoted(name)}")
            if name in old and self.matched != UPDATE:
                value = null_column(kinds[name])
            values.append(value.alias(name))
        kind = functions.when(is_new, functions.lit(INSERT)).when(self._holds(), functions.lit(self.matched))
        both = self._join_target(target, "left" if self.inserts else "inner")
        ids = [functions.col(f"target.{name}").alias(to) for name, to in about.items()]
        changes = both.select(*values, *ids, kind.cast("tinyint").alias(KIND)).where(functions.col(KIND).isNotNull())
        if self._inserts_unseen_keys(base):
            reject_duplicate_keys(changes.where(functions.col(KIND) == INSERT), self.keys)
        return changes

    def _build_changes(
        self, pairs: DataFrame, base: LanceDataset, old: list[str], about: Mapping[str, str]
    ) -> DataFrame:
        """Rows of the source, each with its kind of change."""
        from pyspark.sql import functions

        same = self._equal(
            [(f"source.{quoted(name)}", f"{_KEY}{i}") for i, name in enumerate(self.keys)], spark_schema(base.schema)
        )
        if not old and self.num_rows is not None and self.num_rows <= _FEW_ROWS:
            # Spark's own estimate of a join is the product of its sides.
            pairs = functions.broadcast(pairs)
        joined = self.source.alias("source").join(pairs, same, "left" if self.inserts else "inner")
        kinds = {field.name: field.dataType for field in spark_schema(base.schema)}
        values: list[Column] = []
        for name in base.schema.names:
            if name not in old:
                value = functions.col(f"source.{quoted(name)}")
            elif self.matched == UPDATE:
                value = functions.col(f"{_OLD}{old.index(name)}")
            else:
                value = null_column(kinds[name])
            values.append(value.alias(name))
        kind = functions.when(functions.col(KIND), functions.lit(self.matched))
        if self.inserts:
            kind = functions.when(functions.col(ADDRESS).isNull(), functions.lit(INSERT)).otherwise(kind)
        changes = joined.select(*values, *about.values(), kind.cast("tinyint").alias(KIND))
        return changes.where(functions.col(KIND).isNotNull())

    def _build_table_only_rows(
        self,
        target: DataFrame,
        names: list[str],
        frames: Sequence[DataFrame],
        base: LanceDataset,
        about: Mapping[str, str],
    ) -> DataFrame:
        """Rows that only the table has."""
        kinds = {field.name: field.dataType for field in (frames[0].schema if frames else spark_schema(base.schema))}
        nulls = [null_column(kinds[name]).alias(name) for name in names]
        keys = self.source.select(*[renamed(name, f"{_KEY}{i}") for i, name in enumerate(self.keys)])
        ends = [(f"{_KEY}{i}", f"target.{quoted(name)}") for i, name in enumerate(self.keys)]
        table_only_rows = target.alias("target").join(keys, self._equal(ends, target.schema), "left_anti")
        return table_only_rows.select(*nulls, *[renamed(*pair) for pair in about.items()], kind_column(DELETE))

    def _equal(self, ends: Sequence[tuple[str, str]], target: StructType) -> Column:
        """The condition that the key of the source equals the key of the table."""
        kinds = [(self.source.schema[name].dataType, target[name].dataType) for name in self.keys]
        return reduce(and_, [is_same_value(*pair, *of) for pair, of in zip(ends, kinds, strict=True)])


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


def _deleted_rows(pairs: DataFrame, about: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions

    return pairs.where(functions.col(KIND)).select(*about.values(), kind_column(DELETE))


def apply_collations(source: DataFrame, keys: Sequence[pa.Field]) -> DataFrame:
    """The source with the collations that the table has for the columns of the key."""
    from pyspark.sql import functions

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
    from pyspark.sql import functions

    columns = [functions.col(quoted(name)) for name in keys]
    rows_with_key = source.where(reduce(and_, [column.isNotNull() for column in columns]))
    counted = rows_with_key.groupBy(*columns).agg(functions.count(functions.lit(1)).alias(_COUNT))
    return next(iter(counted.where(f"{_COUNT} > 1").take(1)), None)


def is_same_value(source_column: str, target_column: str, source_kind: DataType, target_kind: DataType) -> Column:
    """The condition that a column of the source equals a column of the table.

    Spark compares a float with another kind of number as floats, where 9007199254740992 equals 9007199254740993.
    Such keys are therefore compared in the types of both.
    """
    from pyspark.sql import functions, types

    source, target = functions.col(source_column), functions.col(target_column)
    floats = [isinstance(kind, types.FloatType | types.DoubleType) for kind in (source_kind, target_kind)]
    numbers = [isinstance(kind, types.NumericType) for kind in (source_kind, target_kind)]
    if not all(numbers) or all(floats) or not any(floats):
        return source == target
    return (source == target) & (source.try_cast(target_kind) == target) & (target.try_cast(source_kind) == source)


def renamed(name: str, to: str) -> Column:
    """A column under another name."""
    from pyspark.sql import functions

    return functions.col(quoted(name)).alias(to)


def kind_column(kind: int) -> Column:
    """The column with the kind of change of the rows."""
    from pyspark.sql import functions

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
    *,
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
