"""Merges by any condition, with any number of clauses: what `MERGE INTO` of SQL and `LanceTable.merge` run.

    source (cached) --- join by the condition --- target: addresses, and columns that the clauses need
                             |
    both sides       first WHEN MATCHED whose condition is true      (the clauses of one side see only its names)
    source only      first WHEN NOT MATCHED
    target only      first WHEN NOT MATCHED BY SOURCE
                             |
    values | address | kind  --> `RowLevelChange`: one commit

Several rows of the source that would change the same row of the table are an error, as in Delta, unless the only WHEN
MATCHED clause is a DELETE without a condition. Equalities in the condition narrow what is read of the table, and are
the key by which concurrent merges that insert the same rows are detected (`merge_keys`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing.clauses import MergeClause, Side, check_clauses
from pyspark_lance.changing.conditional import find_mentioned_columns, row_columns
from pyspark_lance.changing.equalities import find_equalities
from pyspark_lance.changing.job import ChangeOptions, ChangeResult, RowLevelChange, run_change
from pyspark_lance.changing.key_lookup import KeyLookup
from pyspark_lance.changing.merge_frames import (
    KeyedRows,
    can_look_up,
    check_columns_of,
    find_repeated_key,
    partition_by_key,
    reject_duplicate_keys,
    row_id_columns,
    rows_of,
    tasks_of,
)
from pyspark_lance.changing.merge_keys import MergeKeys
from pyspark_lance.changing.stored_values import FieldOrder, cast_values, null_column
from pyspark_lance.changing.struct_values import Value, as_column, fill_lacking_fields, lacks_fields, respell_values
from pyspark_lance.changing.task import ADDRESS, DELETE, INSERT, KIND, UPDATE
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.jobs import run_job
from pyspark_lance.engine.sessions import with_times
from pyspark_lance.keys.equality import has_bytes
from pyspark_lance.keys.narrowing import Narrowed, collect_few_keys
from pyspark_lance.lazy import Column, DataFrame, functions
from pyspark_lance.reading.plan import table_schema
from pyspark_lance.types.column_names import case_sensitive, check_spellings, match_names, quoted
from pyspark_lance.types.spark_types import check_lengths, spark_schema

_BOTH: Final = "matched"
_NEW: Final = "not matched"
_OTHERS: Final = "not matched by source"
_OWN: Final = "__lance_"
_SOURCE: Final = "__lance_source"
_TARGET: Final = "__lance_target"
_CLAUSE: Final = "__lance_clause"
_CELL: Final = "__lance_cell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseMerge:
    """A merge of a source by any condition, with its clauses.

    Attributes:
        source: The rows that are merged; its alias qualifies its columns.
        condition: The condition that pairs rows, in Spark SQL or as a column.
        clauses: The clauses, in order.
        alias: The name that qualifies the table's columns; None without one.
        tasks: Number of tasks that write the rows; None for Spark's own number.
        unique: The key of a merge by a key, which must be unique in inserted rows of the source. A clause without
            values then sets the columns that the source has, and not all columns of the table.
        is_as_it_is: Whether each row of the source has a key of its own, and clauses without values alone, which write
            the source's values as they are: their types were checked.
        has_repeats: Whether values of the key occur several times in the source.
        deleting: Rows of the table that are deleted in the same commit.
        keys: The equalities of the condition.
        few: The result of `collect_few_keys` for the source.
        looks_up: Whether tasks look up the keys of the source in the table, so that no join is needed.
    """

    source: DataFrame
    condition: Value
    clauses: tuple[MergeClause, ...]
    alias: str | None = None
    tasks: int | None = None
    unique: tuple[str, ...] = ()
    is_as_it_is: bool = False
    has_repeats: bool = False
    deleting: KeyedRows | None = None
    keys: MergeKeys = field(default_factory=MergeKeys)
    few: pa.Table | None = field(default=None, repr=False)
    looks_up: bool = False

    def run(self, dataset: LanceDataset, options: ChangeOptions, checked_through: int | None = None) -> ChangeResult:
        """Merge into a table, in one commit.

        Args:
            dataset: The version that is changed first.
            options: How to write and commit.
            checked_through: Version up to which the history was searched for other attempts.

        Raises:
            SchemaError: A value does not fit its column, or a column is missing; the message names the column.
            UnsupportedError: The source has a column of CHAR or VARCHAR.
            InvalidInputError: A condition or a clause cannot be used, or several rows of the source change one row.
            RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
        """
        with with_times(self.source.sparkSession, self.source.schema, spark_schema(dataset.schema)):
            merge = self._find_keys(dataset)
            with merge._cache_source(dataset) as cached_merge:  # noqa: SLF001 - of the same class
                change = cached_merge._change  # noqa: SLF001 - of the same class
                return run_change(dataset, lambda base: change(base, options), options, checked_through)

    @property
    def _alias(self) -> str:
        return self.alias or _TARGET

    @property
    def _exact(self) -> bool:
        return case_sensitive(self.source.sparkSession)

    def _source_names(self, base: LanceDataset) -> dict[str, str]:
        """The source's column for each column of the table, as far as there is one."""
        return match_names(base.schema.names, self.source.columns, exact=self._exact)

    def _sides(self, *sides: Side) -> list[MergeClause]:
        return [clause for clause in self.clauses if clause.side in sides]

    @property
    def _writes(self) -> bool:
        return any(clause.action != DELETE for clause in self.clauses)

    def _find_keys(self, base: LanceDataset) -> ClauseMerge:
        """This merge with the keys of its condition; no job is run."""
        check_clauses(self.clauses)
        check_lengths(self.source.schema)
        check_spellings(self.source, self.source.columns)
        with short_errors("merge"):
            self._frame(base, None, has_rows=False).schema  # noqa: B018 - Spark checks all expressions
        if self.keys.equalities:
            return self
        target = self._empty(base, [*base.schema.names, *self._row_columns(base)]).alias(self._alias)
        names = base.schema.names
        keys = find_equalities(self.condition, self.source, target, names, alias=self._alias, exact=self._exact)
        if not keys:
            raise InvalidInputError(
                f"merge: the condition {self.condition!r} has no equality of an expression of the table and an"
                f" expression of the source, such as {self.alias or 'target'}.id = source.id, by which Spark can join"
            )
        return replace(self, keys=MergeKeys(equalities=tuple(keys), alias=self.alias))

    @contextlib.contextmanager
    def _cache_source(self, base: LanceDataset) -> Iterator[ClauseMerge]:
        """This merge with a source that is computed once and cached by Spark."""
        spark, cached_source = self.source.sparkSession, self.source.persist()
        try:
            # Tasks of a merge without clauses detect a key that occurs twice, if they can compare it.
            is_seen = self.is_as_it_is and all(has_bytes(base.schema.field(name)) for name in self.unique)
            has_repeats = (
                bool(self.unique) and not is_seen and find_repeated_key(cached_source, self.unique) is not None
            )
            if (whole := self._build_whole_rows(base)) is not None and can_look_up(base, *whole):
                tasks = tasks_of(run_job(spark, cached_source.count))
                if can_look_up(base, *whole, tasks) and not has_repeats:
                    yield replace(self, source=cached_source, tasks=tasks, looks_up=True)
                    return
            few = None if self._sides(_OTHERS) else collect_few_keys(base, *self.keys.frame(cached_source, base))
            tasks = tasks_of(run_job(spark, cached_source.count) if few is None else few.num_rows)
            source = partition_by_key(cached_source, tasks, self.unique) if is_seen else cached_source
            yield replace(self, source=source, few=few, tasks=tasks, has_repeats=has_repeats)
        finally:
            cached_source.unpersist()

    def _build_whole_rows(self, base: LanceDataset) -> tuple[DataFrame, list[str]] | None:
        """The rows of an upsert and their key, if rows of the table are only replaced by whole rows of the source."""
        is_plain = all(clause.condition is None and clause.values is None for clause in self.clauses)
        if not is_plain or not self._writes or self._sides(_OTHERS) or self.deleting is not None:
            return None
        if self.is_as_it_is:
            is_whole = set(self.source.columns) == set(base.schema.names)
            return (self.source, list(self.unique)) if is_whole else None
        places = self._source_names(base)
        keys = self.keys.find_exact_key(self.source, self.condition, exact=self._exact)
        has_deletes = any(clause.action == DELETE for clause in self.clauses)
        if has_deletes or not keys or len(places) < len(base.schema.names):
            return None
        rows = self.source.select(*[functions.col(quoted(places[name])).alias(name) for name in base.schema.names])
        guarded, is_exact = self.keys.find_conflict_key(base, self.source, self.clauses)
        is_same = [field.dataType for field in rows.schema] == [field.dataType for field in spark_schema(base.schema)]
        return (rows, keys) if is_same and is_exact and set(guarded) == set(keys) else None

    def _plan_upsert(self, base: LanceDataset, options: ChangeOptions) -> RowLevelChange | None:
        """The change whose tasks look up the keys of the source; None if a concurrent commit changed the columns."""
        whole = self._build_whole_rows(base)
        if whole is None:
            return None
        rows, keys = whole
        source = partition_by_key(rows, self.tasks or 1, keys)
        matched = next((clause.action for clause in self._sides(_BOTH)), None)
        lookup = KeyLookup(matched=matched, inserts=bool(self._sides(_NEW)))
        return RowLevelChange.writing(base, source, keys, options, repeats=not self.is_as_it_is, lookup=lookup)

    def _change(self, base: LanceDataset, options: ChangeOptions) -> RowLevelChange:
        if self.looks_up and (upsert := self._plan_upsert(base, options)) is not None:
            return upsert
        frame = self._frame(base, options.storage_options, has_rows=True)
        if self.deleting is not None:
            deleted = self.deleting.deletes(base, options.storage_options)
            frame = frame.unionByName(deleted, allowMissingColumns=True)
        if not self._writes:
            return RowLevelChange(dataset=base, frame=frame, on=self.unique, options=options)
        if self.is_as_it_is:
            return RowLevelChange.writing(base, frame, self.unique, options)
        names, is_exact = self.keys.find_conflict_key(base, self.source, self.clauses)
        return RowLevelChange.writing(base, frame, names, options, repeats=True, is_exact=is_exact)

    def _frame(self, base: LanceDataset, storage_options: Mapping[str, str] | None, *, has_rows: bool) -> DataFrame:
        """The rows that change, with their new values."""
        rows, table_columns = self._join_sides(base, storage_options, has_rows=has_rows)
        in_source, in_target = functions.col(_SOURCE).isNotNull(), functions.col(ADDRESS).isNotNull()
        is_side: dict[Side, Column] = {_BOTH: in_source & in_target, _NEW: ~in_target, _OTHERS: ~in_source}
        sides = [side for side in is_side if self._sides(side)]
        for number, side in enumerate(sides):
            rows = self._stage(
                self._select_visible_columns(side, rows, base, table_columns), side, number, is_side[side], base
            )
        clauses = [functions.col(f"{_CLAUSE}{number}") for number in range(len(sides))]
        is_side_row = [clause.isNotNull() for clause in clauses]
        kinds = [
            self._choose_by_clause(number, [c.action for c in self._sides(side)]) for number, side in enumerate(sides)
        ]
        values = []
        for index, name in enumerate(base.schema.names if self._writes else ()):
            cells = [functions.col(f"{_CELL}{number}_{index}") for number in range(len(sides))]
            values.append(choose_first(zip(is_side_row, cells, strict=True)).alias(name))
        changed_rows = rows.where(functions.coalesce(*clauses).isNotNull())
        if has_rows and self.has_repeats and _NEW in sides:
            places = [self.source.columns.index(name) for name in self.unique]
            keys = [functions.col(f"{_SOURCE}{i}").alias(name) for i, name in zip(places, self.unique, strict=True)]
            reject_duplicate_keys(changed_rows.where(clauses[sides.index(_NEW)].isNotNull()).select(*keys), self.unique)
        kind = choose_first(zip(is_side_row, kinds, strict=True)).cast("tinyint")
        frame = changed_rows.select(*values, *row_id_columns(base).values(), kind.alias(KIND))
        return self._drop_repeated_deletes(frame) if has_rows else frame

    def _select_visible_columns(
        self, side: Side, rows: DataFrame, base: LanceDataset, table_columns: Sequence[str]
    ) -> DataFrame:
        """The joined rows with only those columns that the clauses of a side may refer to."""
        if side == _BOTH:
            return rows
        if side == _NEW:
            return rows.drop(*[functions.col(f"{quoted(self._alias)}.{quoted(name)}") for name in table_columns])
        copies = [functions.col(_copy_of(name, base)).alias(name) for name in table_columns]
        marker_columns = [functions.col(name) for name in rows.columns if name.startswith(_OWN)]
        return rows.select(*copies, *marker_columns).alias(self._alias)

    def _stage(self, rows: DataFrame, side: Side, number: int, is_side: Column, base: LanceDataset) -> DataFrame:
        """Add to each row the number of the clause of a side that applies to it, and the values of that clause."""
        clauses = self._sides(side)
        chosen = choose_clause(clauses, rows)
        staged_rows = rows.withColumn(f"{_CLAUSE}{number}", functions.when(is_side, chosen))
        if not self._writes:
            return staged_rows
        kinds = {field.name: field.dataType for field in spark_schema(base.schema)}
        if self.is_as_it_is:
            kinds |= {field.name: field.dataType for field in self.source.schema if field.name in kinds}
        values = [self._cast_to_stored(clause, base, rows) for clause in clauses]
        cells = []
        for index, name in enumerate(base.schema.names):
            null = null_column(kinds[name])
            clause_cells = [
                clause_values.get(name, functions.col(f"{_TARGET}{index}") if clause.action == UPDATE else null)
                for clause, clause_values in zip(clauses, values, strict=True)
            ]
            cells.append(self._choose_by_clause(number, clause_cells).alias(f"{_CELL}{number}_{index}"))
        return staged_rows.select("*", *cells)

    def _drop_repeated_deletes(self, frame: DataFrame) -> DataFrame:
        """The rows of the frame, each deleted row once where several rows of the source may delete it."""
        matched = self._sides(_BOTH)
        has_one_delete = len(matched) == 1 and matched[0].action == DELETE and matched[0].condition is None
        if has_one_delete and not self.is_as_it_is:
            is_deleted = functions.col(KIND) == DELETE
            once = frame.where(is_deleted).dropDuplicates([ADDRESS])
            frame = once.union(frame.where(~is_deleted)) if self._writes else once
        by_source = self._sides(_OTHERS)
        return frame if self.tasks is None or by_source else frame.coalesce(self.tasks)

    def _join_sides(
        self, base: LanceDataset, storage_options: Mapping[str, str] | None, *, has_rows: bool
    ) -> tuple[DataFrame, list[str]]:
        """The pairs and the rows without a partner, and the columns of the table that they have."""
        ids = row_id_columns(base)
        table_columns = self._columns(base)
        read_columns = list(dict.fromkeys([*table_columns, *ids]))
        if has_rows:
            within = Narrowed()
            if not self._sides(_OTHERS):
                within = self.keys.narrow_target(base, self.source, self.condition, self.few)
            expected_rows = self.few.num_rows if within.is_exact and self.few is not None else None
            spark = self.source.sparkSession
            rows = rows_of(spark, base, read_columns, within.condition, storage_options, expected_rows)
        else:
            rows = self._empty(base, read_columns)
        copies = [functions.col(quoted(name)).alias(_copy_of(name, base)) for name in table_columns]
        renamed = [functions.col(name).alias(to) for name, to in ids.items()]
        target = rows.select(*[quoted(name) for name in table_columns], *copies, *renamed)
        target = target.alias(self._alias)
        marks = [functions.col(quoted(n)).alias(f"{_SOURCE}{i}") for i, n in enumerate(self.source.columns)]
        source = self.source.select("*", *marks, functions.lit(True).alias(_SOURCE))
        inserts, by_source = self._sides(_NEW), self._sides(_OTHERS)
        how = "full" if inserts and by_source else "left" if inserts else "right" if by_source else "inner"
        with short_errors(f"merge: condition {self.condition}"):
            joined = source.join(target, as_column(self.condition), how)
            joined.schema  # noqa: B018 - Spark checks the condition
        return joined, table_columns

    def _empty(self, base: LanceDataset, columns: Sequence[str]) -> DataFrame:
        return self.source.sparkSession.createDataFrame([], table_schema(base, columns))

    def _row_columns(self, base: LanceDataset) -> list[str]:
        """The row columns that expressions of the merge may name; those of values without names have none."""
        values = [value for clause in self.clauses for value in (clause.values or {}).values()]
        return row_columns([self.condition, *(clause.condition for clause in self.clauses), *values], base)

    def _columns(self, base: LanceDataset) -> list[str]:
        """The columns of the table that the merge needs: those of expressions, and those that keep their values."""
        needed_names = set(
            find_mentioned_columns([self.condition, *(clause.condition for clause in self.clauses)], base)
        )
        for clause in self.clauses:
            values = self._own_values(clause, base) if clause.values is not None or clause.action == UPDATE else {}
            needed_names |= set(find_mentioned_columns(list(values.values()), base))
            if clause.action == UPDATE:
                partial_names = self._find_partial_columns(base) if clause.values is None else set()
                needed_names |= set(base.schema.names) - set(values) | partial_names
        return [*(name for name in base.schema.names if name in needed_names), *self._row_columns(base)]

    def _own_values(self, clause: MergeClause, base: LanceDataset) -> dict[str, Value]:
        """The values of a clause by the table's names."""
        if clause.values is not None:
            has_rows = clause.action != INSERT
            return respell_values(
                clause.values, base.schema, str(clause), alias=self._alias, exact=self._exact, has_rows=has_rows
            )
        places, exact = {name: i for i, name in enumerate(self.source.columns)}, self._exact
        source_names = self._source_names(base)
        lacking = [name for name in base.schema.names if name not in source_names]
        if self.is_as_it_is:
            check_columns_of(self.source, base)
        if lacking and not self.unique:
            raise SchemaError(f"{clause} *: the source lacks the columns {lacking}; it has {self.source.columns}")
        values: dict[str, Value] = {}
        for index, stored in enumerate(spark_schema(base.schema)):
            if stored.name in lacking:
                continue
            value = functions.col(f"{_SOURCE}{places[source_names[stored.name]]}")
            old = functions.col(f"{_TARGET}{index}") if clause.action == UPDATE else None
            source_type = self.source.schema[source_names[stored.name]].dataType
            values[stored.name] = fill_lacking_fields(value, source_type, stored.dataType, old, exact=exact)
        return values

    def _find_partial_columns(self, base: LanceDataset) -> set[str]:
        """The columns of the table whose structs lack fields in the source, which keep their values."""
        stored, source, exact = spark_schema(base.schema), self.source.schema, self._exact
        return {
            name
            for name, source_name in self._source_names(base).items()
            if lacks_fields(source[source_name].dataType, stored[name].dataType, exact=exact)
        }

    def _cast_to_stored(self, clause: MergeClause, base: LanceDataset, rows: DataFrame) -> dict[str, Column]:
        """The values of a clause, in the types of the columns."""
        if clause.action == DELETE:
            return {}
        clause_values = self._own_values(clause, base)
        strict = [field.name for field in base.schema if not field.nullable and field.name not in clause_values]
        if strict and clause.action == INSERT:
            raise SchemaError(f"{clause}: rows cannot be inserted without values for the columns {strict}")
        if self.is_as_it_is:
            return {name: as_column(value) for name, value in clause_values.items()}
        order = FieldOrder(exact=self._exact)
        expressions = {name: name for name in clause_values} if clause.values is None else None
        with short_errors(f"{clause}: values {clause.values or '*'}"):
            return cast_values(rows, clause_values, base.schema, what=str(clause), order=order, expressions=expressions)

    def _choose_by_clause(self, number: int, cells: Sequence[Any]) -> Column:
        clause = functions.col(f"{_CLAUSE}{number}")
        return choose_first((clause == index, cell) for index, cell in enumerate(cells))


def _copy_of(name: str, base: LanceDataset) -> str:
    """The name of the copy of a column of the table, which no expression of a user names."""
    return f"{_TARGET}{base.schema.names.index(name) if name in base.schema.names else name}"


def choose_clause(clauses: Sequence[MergeClause], rows: DataFrame) -> Column:
    """The position of the first clause whose condition is true for a row; null if there is none.

    Args:
        clauses: The clauses of a side.
        rows: The rows, with the columns that the clauses may refer to.

    Raises:
        InvalidInputError: A condition does not fit the columns.
    """
    chosen = functions.lit(None).cast("int")
    for index, clause in reversed(list(enumerate(clauses))):
        with short_errors(f"{clause}: condition {clause.condition}"):
            holds = functions.lit(True) if clause.condition is None else as_column(clause.condition)
            holds = functions.coalesce(holds, functions.lit(False))
            rows.select(holds).schema  # noqa: B018 - Spark checks the condition
        chosen = functions.when(holds, index).otherwise(chosen)
    return chosen


def choose_first(cases: Iterable[tuple[Column, Any]]) -> Column:
    """The value of the first condition that holds; null if none does. There is at least one."""
    chain: Any = functions
    for condition, value in cases:
        chain = chain.when(condition, value)
    return chain  # type: ignore[no-any-return]  # there is a condition
