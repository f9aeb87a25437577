"""Merges by any condition, with any number of clauses: what `MERGE INTO` of SQL and `LanceTable.merge` run.

    source (kept) --- join by the condition --- target: addresses, and columns that the clauses need
                             |
    both sides       first WHEN MATCHED whose condition is true      (each side sees its own names alone)
    source only      first WHEN NOT MATCHED
    target only      first WHEN NOT MATCHED BY SOURCE
                             |
    values | address | kind  --> `RowLevelChange`: one commit

A row of the table that several rows of the source would change is an error, as in Delta, unless the only WHEN MATCHED
clause is a DELETE without condition. Equalities of columns in the condition narrow what is read of the table, and are
the key by which concurrent merges that insert the same rows are detected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing.conditional import mentioned
from pyspark_lance.changing.job import ChangeOptions, ChangeResult, RowLevelChange, run_change
from pyspark_lance.changing.merge_frames import TASK_ROWS, row_id_columns, rows_of
from pyspark_lance.changing.task import ADDRESS, DELETE, INSERT, KIND, UPDATE
from pyspark_lance.changing.update_values import Value, as_column, spelled_values, stored_as
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.keys.narrowing import few_keys, narrowed_by_frame
from pyspark_lance.reading.filter_pushdown import push_tree
from pyspark_lance.reading.plan import table_schema
from pyspark_lance.types.names import case_sensitive, check_spellings, matched_names, quoted
from pyspark_lance.types.spark_types import spark_schema

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql import Column, DataFrame

__all__ = ["ClauseMerge", "MergeClause", "Side"]

Side = Literal["matched", "not matched", "not matched by source"]

_BOTH: Final = "matched"
_NEW: Final = "not matched"
_OTHERS: Final = "not matched by source"
_OWN: Final = "__lance_"
_SOURCE: Final = "__lance_source"
_TARGET: Final = "__lance_target"
_CLAUSE: Final = "__lance_clause"
_CELL: Final = "__lance_cell"
_WORDS: Final = {UPDATE: "UPDATE", DELETE: "DELETE", INSERT: "INSERT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClause:
    """A clause of a merge.

    Attributes:
        side: The rows that it concerns: pairs, rows only in the source, or rows only in the table.
        action: UPDATE, DELETE or INSERT.
        condition: A further condition; None for all rows of that side.
        values: New values by column of the table; None for those of the source's columns of the same names.
    """

    side: Side
    action: int
    condition: Value | None = None
    values: Mapping[str, Value] | None = None

    def __str__(self) -> str:
        return f"WHEN {self.side.upper()} THEN {_WORDS[self.action]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseMerge:
    """A merge.

    Attributes:
        source: The rows that are merged; its alias qualifies its columns.
        condition: The condition that pairs rows, in Spark SQL.
        clauses: The clauses, in order.
        alias: The name that qualifies the table's columns; None without one.
        tasks: Number of tasks that write the rows; None for Spark's own number.
        keys: The pairs of columns that the condition requires to be equal: of the table, and of the source.
        few: The result of `few_keys` for the source.
    """

    source: DataFrame
    condition: str
    clauses: tuple[MergeClause, ...]
    alias: str | None = None
    tasks: int | None = None
    keys: tuple[tuple[str, str], ...] = ()
    few: pa.Table | None = field(default=None, repr=False)

    def run(self, dataset: LanceDataset, options: ChangeOptions) -> ChangeResult:
        """Merge into a table, in one commit.

        Raises:
            SchemaError: A value does not fit its column, or a column is missing; the message names the column.
            InvalidInputError: A condition or a clause cannot be used, or several rows of the source change one row.
            RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
        """
        merge = self._checked(dataset)
        with merge._kept(dataset) as kept:  # noqa: SLF001 - its own
            return run_change(dataset, lambda base: kept._change(base, options), options)  # noqa: SLF001 - its own

    @property
    def _alias(self) -> str:
        return self.alias or _TARGET

    def _sides(self, *sides: Side) -> list[MergeClause]:
        return [clause for clause in self.clauses if clause.side in sides]

    @property
    def _writes(self) -> bool:
        return any(clause.action != DELETE for clause in self.clauses)

    def _checked(self, base: LanceDataset) -> ClauseMerge:
        """This merge with the keys of its condition; no job is run."""
        check_clauses(self.clauses)
        check_spellings(self.source, self.source.columns)
        keys = _equalities(self.condition, self.source, base, self.alias)
        if not keys:
            raise InvalidInputError(
                f"merge: the condition {self.condition!r} has no equality of a column of the table and a column of the"
                f" source, such as {self.alias or 'target'}.id = source.id, by which concurrent merges are detected"
            )
        merge = replace(self, keys=tuple(keys))
        merge._frame(base, None, has_rows=False)  # noqa: SLF001 - its own; Spark checks all expressions
        return merge

    @contextlib.contextmanager
    def _kept(self, base: LanceDataset) -> Iterator[ClauseMerge]:
        """This merge with a source that is computed once and kept by Spark."""
        kept = self.source.persist()
        try:
            few = None if self._sides(_OTHERS) else few_keys(base, *self._key_frame(kept, base))
            rows = kept.count() if few is None else few.num_rows
            yield replace(self, source=kept, few=few, tasks=-(-rows // TASK_ROWS) or 1)
        finally:
            kept.unpersist()

    def _key_frame(self, source: DataFrame, base: LanceDataset) -> tuple[list[str], DataFrame]:
        """The keys of the source under the table's names, of those columns whose types are compared alike."""
        from pyspark.sql import functions

        kinds = {one.name: one.dataType for one in spark_schema(base.schema)}
        keys = source.select(*[functions.col(own).alias(name) for name, own in self.keys])
        strings = {one.name: one.dataType for one in keys.schema if one.dataType.typeName().startswith("string")}
        names = [name for name, _ in self.keys if name not in strings or strings[name] == kinds[name]]
        return names, keys

    def _within(self, base: LanceDataset, keys: tuple[list[str], DataFrame]) -> pc.Expression | None:
        """A condition on the table's rows that all those meet that can be paired."""
        found = (self._pushed(base), narrowed_by_frame(base, *keys, self.few).condition)
        known = [one for one in found if one is not None]
        return reduce(and_, known) if known else None

    def _pushed(self, base: LanceDataset) -> pc.Expression | None:
        if self.alias is None:
            return None  # a name without qualifier may be the source's
        pushed = [push_tree(tree, base.schema) for tree in _own_conjuncts(self.condition, self.alias)]
        known = [one.filter for one in pushed if one is not None]
        return reduce(and_, known) if known else None

    def _change(self, base: LanceDataset, options: ChangeOptions) -> RowLevelChange:
        frame = self._frame(base, options.storage_options, has_rows=True)
        if not self._writes:
            return RowLevelChange(dataset=base, frame=frame, on=(), options=options)
        return RowLevelChange.writing(base, frame, [name for name, _ in self.keys], options, repeats=True)

    def _frame(self, base: LanceDataset, storage_options: Mapping[str, str] | None, *, has_rows: bool) -> DataFrame:
        """The rows that change, with their new values."""
        from pyspark.sql import functions

        rows, own = self._joined(base, storage_options, has_rows=has_rows)
        in_source, in_target = functions.col(_SOURCE).isNotNull(), functions.col(ADDRESS).isNotNull()
        is_side: dict[Side, Column] = {_BOTH: in_source & in_target, _NEW: ~in_target, _OTHERS: ~in_source}
        sides = [side for side in is_side if self._sides(side)]
        for number, side in enumerate(sides):
            rows = self._stage(self._seeing(side, rows, base, own), side, number, is_side[side], base)
        clauses = [functions.col(f"{_CLAUSE}{number}") for number in range(len(sides))]
        kinds = [self._by_clause(number, [c.action for c in self._sides(side)]) for number, side in enumerate(sides)]
        values = []
        for index, name in enumerate(base.schema.names if self._writes else ()):
            cells = [functions.col(f"{_CELL}{number}_{index}") for number in range(len(sides))]
            values.append(_first_of(clauses, cells).alias(name))
        kept = rows.where(functions.coalesce(*clauses).isNotNull())
        frame = kept.select(
            *values, *row_id_columns(base).values(), _first_of(clauses, kinds).cast("tinyint").alias(KIND)
        )
        return self._without_repeats(frame) if has_rows else frame

    def _seeing(self, side: Side, rows: DataFrame, base: LanceDataset, own: Sequence[str]) -> DataFrame:
        """The rows with the names that clauses of a side may refer to: not those of the other side."""
        from pyspark.sql import functions

        if side == _BOTH:
            return rows
        if side == _NEW:
            return rows.drop(*[functions.col(f"{quoted(self._alias)}.{quoted(name)}") for name in own])
        copies = [functions.col(f"{_TARGET}{base.schema.names.index(name)}").alias(name) for name in own]
        others = [functions.col(name) for name in rows.columns if name.startswith(_OWN)]
        return rows.select(*copies, *others).alias(self._alias)

    def _stage(self, rows: DataFrame, side: Side, number: int, is_side: Column, base: LanceDataset) -> DataFrame:
        """The rows with the clause of a side that is applied to each, and the values that it gives."""
        from pyspark.sql import functions

        clauses = self._sides(side)
        chosen = functions.lit(None).cast("int")
        for index, clause in reversed(list(enumerate(clauses))):
            holds = functions.lit(True) if clause.condition is None else as_column(clause.condition)
            with short_errors(f"{clause}: condition {clause.condition}"):
                self._side(clause, rows, base).select(holds).schema  # noqa: B018 - Spark checks the condition
            holds = functions.coalesce(holds, functions.lit(False))
            chosen = functions.when(holds, functions.lit(index)).otherwise(chosen)
        found = rows.withColumn(f"{_CLAUSE}{number}", functions.when(is_side, chosen))
        if not self._writes:
            return found
        kinds = {one.name: one.dataType for one in spark_schema(base.schema)}
        values = [self._stored(clause, base, rows, kinds) for clause in clauses]
        cells = []
        for index, name in enumerate(base.schema.names):
            null = functions.lit(None).cast(kinds[name])
            own = [
                made.get(name, functions.col(f"{_TARGET}{index}") if clause.action == UPDATE else null)
                for clause, made in zip(clauses, values, strict=True)
            ]
            cells.append(self._by_clause(number, own).alias(f"{_CELL}{number}_{index}"))
        return found.select("*", *cells)

    def _without_repeats(self, frame: DataFrame) -> DataFrame:
        """The rows of the frame, each deleted row once where several rows of the source may delete it."""
        from pyspark.sql import functions

        matched = self._sides(_BOTH)
        if len(matched) == 1 and matched[0].action == DELETE and matched[0].condition is None:
            is_deleted = functions.col(KIND) == DELETE
            once = frame.where(is_deleted).dropDuplicates([ADDRESS])
            frame = once.union(frame.where(~is_deleted)) if self._writes else once
        by_source = self._sides(_OTHERS)
        return frame if self.tasks is None or by_source else frame.coalesce(self.tasks)

    def _joined(
        self, base: LanceDataset, storage_options: Mapping[str, str] | None, *, has_rows: bool
    ) -> tuple[DataFrame, list[str]]:
        """The pairs and the rows without a partner, and the columns of the table that they have."""
        from pyspark.sql import functions

        ids = row_id_columns(base)
        own = self._columns(base)
        if has_rows:
            within = None
            if not self._sides(_OTHERS):
                within = self._within(base, self._key_frame(self.source, base))
            rows = rows_of(self.source.sparkSession, base, [*own, *ids], within, storage_options)
        else:
            rows = self._empty(base, [*own, *ids])
        copies = [functions.col(quoted(name)).alias(f"{_TARGET}{base.schema.names.index(name)}") for name in own]
        renamed = [functions.col(name).alias(to) for name, to in ids.items()]
        target = rows.select(*[quoted(name) for name in own], *copies, *renamed)
        target = target.alias(self._alias)
        marks = [functions.col(quoted(n)).alias(f"{_SOURCE}{i}") for i, n in enumerate(self.source.columns)]
        source = self.source.select("*", *marks, functions.lit(True).alias(_SOURCE))
        inserts, others = self._sides(_NEW), self._sides(_OTHERS)
        how = "full" if inserts and others else "left" if inserts else "right" if others else "inner"
        with short_errors(f"merge: condition {self.condition}"):
            joined = source.join(target, functions.expr(self.condition), how)
            joined.schema  # noqa: B018 - Spark checks the condition
        return joined, own

    def _empty(self, base: LanceDataset, columns: Sequence[str]) -> DataFrame:
        return self.source.sparkSession.createDataFrame([], table_schema(base, columns))

    def _columns(self, base: LanceDataset) -> list[str]:
        """The columns of the table that the merge needs: those of expressions, and those that keep their values."""
        found = set(mentioned([self.condition, *(clause.condition for clause in self.clauses)], base))
        for clause in self.clauses:
            found |= set(mentioned(list((clause.values or {}).values()), base))
            if clause.action == UPDATE:
                found |= set(base.schema.names) - set(self._own_values(clause, base))
        return [name for name in base.schema.names if name in found]

    def _own_values(self, clause: MergeClause, base: LanceDataset) -> dict[str, Value]:
        """The values of a clause by the table's names."""
        from pyspark.sql import functions

        exact = case_sensitive(self.source.sparkSession)
        if clause.values is not None:
            return spelled_values(clause.values, base.schema.names, str(clause), alias=self.alias, exact=exact)
        places = {name: i for i, name in enumerate(self.source.columns)}
        found = matched_names(base.schema.names, self.source.columns, exact=exact)
        lacking = [name for name in base.schema.names if name not in found]
        if lacking:
            raise SchemaError(f"{clause} *: the source lacks the columns {lacking}; it has {self.source.columns}")
        return {name: functions.col(f"{_SOURCE}{places[found[name]]}") for name in base.schema.names}

    def _side(self, clause: MergeClause, joined: DataFrame, base: LanceDataset) -> DataFrame:
        """The columns that a clause may refer to."""
        from pyspark.sql import functions

        if clause.side == _BOTH:
            return joined
        if clause.side == _NEW:
            marks = [functions.col(quoted(n)).alias(f"{_SOURCE}{i}") for i, n in enumerate(self.source.columns)]
            return self.source.select("*", *marks)
        rows = self._empty(base, base.schema.names)
        return rows if self.alias is None else rows.alias(self.alias)

    def _stored(
        self, clause: MergeClause, base: LanceDataset, joined: DataFrame, kinds: Mapping[str, Any]
    ) -> dict[str, Column]:
        """The values of a clause, in the types of the columns."""
        if clause.action == DELETE:
            return {}
        given = self._own_values(clause, base)
        strict = [one.name for one in base.schema if not one.nullable and one.name not in given]
        if strict and clause.action == INSERT:
            raise SchemaError(f"{clause}: rows cannot be inserted without values for the columns {strict}")
        columns = {name: as_column(value) for name, value in given.items()}
        with short_errors(f"{clause}: values {given}"):
            types = self._side(clause, joined, base).select(*[c.alias(f"v{i}") for i, c in enumerate(columns.values())])
            schema = types.schema
        return {
            name: stored_as(column, _sql(given[name], name), one.dataType, kinds[name], _alone(base, name))
            for (name, column), one in zip(columns.items(), schema, strict=True)
        }

    def _by_clause(self, number: int, cells: Sequence[Any]) -> Column:
        from pyspark.sql import functions

        found: Any = functions
        for index, cell in enumerate(cells):
            found = found.when(functions.col(f"{_CLAUSE}{number}") == index, cell)
        return found  # type: ignore[no-any-return]  # there is a clause


def _first_of(clauses: Sequence[Column], cells: Sequence[Column]) -> Column:
    """The cell of the side that has a clause for the row."""
    from pyspark.sql import functions

    found: Any = functions
    for clause, cell in zip(clauses, cells, strict=True):
        found = found.when(clause.isNotNull(), cell)
    return found  # type: ignore[no-any-return]  # there is a side


def _alone(base: LanceDataset, name: str) -> pa.Schema:
    return pa.schema([base.schema.field(name)])


def _sql(value: Value, name: str) -> str:
    return value if isinstance(value, str) else f"source.{name}"


def check_clauses(clauses: Sequence[MergeClause]) -> None:
    """Make sure that clauses can be run in their order.

    Raises:
        InvalidInputError: The list is empty, a clause does not fit its rows, or a clause without a condition precedes
            another one for the same rows.
    """
    if not clauses:
        raise InvalidInputError("merge: there is no clause; add one, such as WHEN MATCHED THEN UPDATE SET *")
    for clause in clauses:
        if (clause.action == INSERT) != (clause.side == "not matched"):
            raise InvalidInputError(f"merge: {clause} is not possible: WHEN NOT MATCHED inserts, and no other does")
        if clause.side == "not matched by source" and clause.action == UPDATE and clause.values is None:
            raise InvalidInputError(f"merge: {clause} needs values: these rows have no source")
    for side in {clause.side for clause in clauses}:
        own = [clause for clause in clauses if clause.side == side]
        for clause in own[:-1]:
            if clause.condition is None:
                raise InvalidInputError(f"merge: only the last clause WHEN {side.upper()} can be without a condition")


def _equalities(condition: str, source: DataFrame, base: LanceDataset, alias: str | None) -> list[tuple[str, str]]:
    """The pairs of columns, of the table and of the source, that a condition requires to be equal."""
    from sqlglot import exp  # noqa: PLC0415 - loads for half a second

    exact = case_sensitive(source.sparkSession)
    found: dict[str, str] = {}
    for part in _conjuncts(condition):
        ends = (part.this, part.expression) if isinstance(part, exp.EQ) else ()
        if not ends or not all(isinstance(one, exp.Column) for one in ends):
            continue
        for own, other in (ends, ends[::-1]):
            name = matched_names([own.name], base.schema.names, exact=exact).get(own.name)
            path = ".".join(quoted(one.name) for one in other.parts)
            if name is not None and _is_target(own, alias, source) and not _is_target(other, alias, source):
                found.setdefault(name, path)
    return [(name, path) for name, path in found.items() if _resolves(source, path)]


def _resolves(source: DataFrame, path: str) -> bool:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    try:
        source.select(functions.col(path)).schema  # noqa: B018 - Spark looks the column up
    except AnalysisException:
        return False
    return True


def _is_target(column: Any, alias: str | None, source: DataFrame) -> bool:
    """Whether a column of the condition is one of the table."""
    if len(column.parts) == 1:
        return column.name.lower() not in {name.lower() for name in source.columns}
    return alias is not None and len(column.parts) == 2 and column.table.lower() == alias.lower()


def _own_conjuncts(condition: str, alias: str) -> list[Any]:
    """The parts of a condition that only concern the table, without qualifiers."""
    from sqlglot import exp  # noqa: PLC0415 - loads for half a second

    own = []
    for part in _conjuncts(condition):
        columns = list(part.find_all(exp.Column))
        if columns and all(len(one.parts) == 2 and one.table.lower() == alias.lower() for one in columns):
            for one in columns:
                one.set("table", None)
            own.append(part)
    return own


def _conjuncts(condition: str) -> list[Any]:
    import sqlglot  # noqa: PLC0415 - loads for half a second

    if '"' in condition or "\\" in condition:  # settings of the session decide what these mean
        return []
    try:
        waiting = [sqlglot.parse_one(condition, read="spark")]
    except (sqlglot.errors.SqlglotError, RecursionError):
        return []
    found = []
    while waiting:
        tree = waiting.pop(0)
        if isinstance(tree, sqlglot.exp.Paren):
            waiting.insert(0, tree.this)
        elif isinstance(tree, sqlglot.exp.And):
            waiting[:0] = [tree.this, tree.expression]
        else:
            found.append(tree)
    return found
