"""Merges by a key with clauses: what `merge(..., clauses=)` and the plugin's `lance/merge_on` run.

    on: k                                    target.k = source.k --> ClauseMerge
    then: update, insert without values      the columns that the source and the table share
    no table yet                             the source's rows as WHEN NOT MATCHED inserts them --> a new table

The source may have columns that the table lacks, such as an `op` that says what to do with a row, if clauses use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing.clauses import MergeClause
from pyspark_lance.changing.conditional import names_in_text
from pyspark_lance.changing.job import ChangeOptions, ChangeResult
from pyspark_lance.changing.merge_clauses import ClauseMerge
from pyspark_lance.changing.merge_frames import MergeFrames
from pyspark_lance.changing.struct_values import Value, as_column, fill_lacking_fields, lacks_fields
from pyspark_lance.changing.task import DELETE, INSERT, UPDATE
from pyspark_lance.changing.update_values import strip_alias
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.types.column_names import case_sensitive, check_spellings, match_names, quoted
from pyspark_lance.types.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SOURCE = "source"
_TARGET = "target"


def merge_by_clauses(
    source: DataFrame,
    dataset: LanceDataset,
    on: Sequence[str],
    clauses: Sequence[MergeClause],
    options: ChangeOptions,
    *,
    deleting: MergeFrames | None = None,
    checked_through: int | None = None,
) -> ChangeResult:
    """Merge a source, which has each key once, into a table.

    Args:
        source: The rows.
        dataset: The version that is changed first.
        on: The columns of the key.
        clauses: The clauses, in order.
        options: How to write and commit.
        deleting: Deletes of further rows in the same commit.
        checked_through: Version up to which the history was searched for other attempts.

    Raises:
        SchemaError: A column does not fit the table's; the message names it.
        InvalidInputError: A clause does not fit the columns, or the source has a key twice.
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
    """
    # Types, collations and spelling of the key are those of a merge without clauses.
    fitted = MergeFrames(source=source, keys=tuple(on), matched=DELETE, inserts=False).fit_to_table(dataset)
    shared = [name for name in fitted.source.columns if name in dataset.schema.names]
    _check_others(fitted.source, shared, clauses, dataset)
    copied = {action: _copy_columns(fitted.source, dataset, shared, action) for action in (UPDATE, INSERT)}
    merge = ClauseMerge(
        source=fitted.source.alias(_SOURCE),
        condition=" AND ".join(f"{_TARGET}.{quoted(name)} = {_SOURCE}.{quoted(name)}" for name in fitted.keys),
        clauses=tuple(
            replace(clause, values=copied[clause.action])
            if clause.action != DELETE and clause.values is None
            else clause
            for clause in clauses
        ),
        alias=_TARGET,
        unique=fitted.keys,
        deleting=deleting,
    )
    return merge.run(dataset, options, checked_through)


def _copy_columns(source: DataFrame, dataset: LanceDataset, shared: Sequence[str], action: int) -> dict[str, Value]:
    """The source's values of some columns; fields that its structs lack are those of the table's row, or null."""
    from pyspark.sql import functions

    exact = case_sensitive(source.sparkSession)
    kinds = spark_schema(dataset.schema)
    copied_values: dict[str, Value] = {name: f"{_SOURCE}.{quoted(name)}" for name in shared}
    for name in shared:
        source_type = source.schema[name].dataType
        if lacks_fields(source_type, kinds[name].dataType, exact=exact):
            old = functions.col(f"{_TARGET}.{quoted(name)}") if action == UPDATE else None
            value = functions.col(f"{_SOURCE}.{quoted(name)}")
            copied_values[name] = fill_lacking_fields(value, source_type, kinds[name].dataType, old, exact=exact)
    return copied_values


def _check_others(
    source: DataFrame, shared: Sequence[str], clauses: Sequence[MergeClause], dataset: LanceDataset
) -> None:
    """Make sure that clauses use each source column that the table lacks: an unused one may be misspelt."""
    texts: list[Any] = [clause.condition for clause in clauses]
    texts += [value for clause in clauses for value in (clause.values or {}).values()]
    used = names_in_text(texts)
    unused = [name for name in source.columns if name not in shared and name.lower() not in used]
    if unused:
        raise SchemaError(
            f"merge: {dataset.uri} has no columns {unused}, and no clause uses them; it has {dataset.schema.names}."
            " Drop them (DataFrame.drop), or name them in a clause"
        )


def inserted_rows(source: DataFrame, on: Sequence[str], clauses: Sequence[MergeClause]) -> DataFrame | None:
    """The rows that a merge inserts into an empty table; None if no clause inserts.

    Args:
        source: The rows that are merged.
        on: The columns of the key.
        clauses: The clauses, as `parse_merge_clauses` returns them.

    Raises:
        InvalidInputError: A clause does not fit the source, or gives no values for the key.
        SchemaError: A clause gives two values for a column.

    Examples:
        >>> clauses = pyspark_lance.parse_merge_clauses({"when_not_matched": {"then": "insert", "condition": "id > 1"}})
        >>> pyspark_lance.inserted_rows(spark.range(3), ["id"], clauses).count()
        1
    """
    from pyspark.sql import functions

    inserts = [clause for clause in clauses if clause.action == INSERT]
    if not inserts:
        return None
    rows = source.alias(_SOURCE)
    chosen = functions.lit(None).cast("int")
    for index, clause in reversed(list(enumerate(inserts))):
        holds = functions.lit(True) if clause.condition is None else as_column(clause.condition)
        with short_errors(f"{clause}: condition {clause.condition}"):
            rows.where(holds).schema  # noqa: B018 - Spark checks the condition
        chosen = functions.when(functions.coalesce(holds, functions.lit(False)), index).otherwise(chosen)
    copied = {name: f"{_SOURCE}.{quoted(name)}" for name in source.columns}
    values = _unify_spelling(
        [copied if clause.values is None else clause.values for clause in inserts],
        on,
        exact=case_sensitive(source.sparkSession),
    )
    for clause, clause_values in zip(inserts, values, strict=True):
        lacking = [name for name in on if name not in clause_values]
        if lacking:
            raise InvalidInputError(f"{clause}: values lack the key columns {lacking}")
    cells: list[Column] = []
    names = dict.fromkeys(name for clause_values in values for name in clause_values)
    check_spellings(source, names)
    for name in names:
        cell: Any = functions
        for index, clause_values in enumerate(values):
            cell_value = as_column(clause_values[name]) if name in clause_values else functions.lit(None)
            cell = cell.when(chosen == index, cell_value)
        cells.append(cell.alias(name))
    with short_errors(f"merge: values {values}"):
        new_rows = rows.where(chosen.isNotNull()).select(*cells)
        new_rows.schema  # noqa: B018 - Spark checks the values
    return new_rows


def _unify_spelling(values: Sequence[Mapping[str, Any]], on: Sequence[str], *, exact: bool) -> list[Mapping[str, Any]]:
    """Values with one spelling of each column: that of the key, or of the first clause that names the column."""
    known_names = list(on)
    by_clause: list[Mapping[str, Any]] = []
    for clause in values:
        columns = [strip_alias(name, known_names, _TARGET, exact=exact) for name in clause]
        names = match_names(columns, known_names, exact=exact)
        if len(set(columns)) < len(columns):
            raise SchemaError(f"merge: a column has two values: {list(clause)}")
        by_clause.append({names.get(name, name): value for name, value in zip(columns, clause.values(), strict=True)})
        known_names += [name for name in columns if name not in names]
    return by_clause
