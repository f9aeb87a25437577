"""Merges by a key with clauses: what `merge(..., clauses=)` and the plugin's `lance/merge_on` run.

    on: k                                    target.k = source.k --> ClauseMerge
    then: update, insert without values      the columns that the source and the table share
    no table yet                             the source's rows as WHEN NOT MATCHED inserts them --> a new table

The source may have columns that the table lacks, such as an `op` that says what to do with a row, if clauses use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing.clauses import MergeClause
from pyspark_lance.changing.conditional import names_in_text
from pyspark_lance.changing.equalities import Equality
from pyspark_lance.changing.job import ChangeOptions, ChangeResult
from pyspark_lance.changing.merge_clauses import ClauseMerge, choose_clause, choose_first
from pyspark_lance.changing.merge_frames import SOURCE, TARGET, KeyedRows
from pyspark_lance.changing.merge_keys import MergeKeys
from pyspark_lance.changing.struct_values import as_column, strip_alias
from pyspark_lance.changing.task import DELETE, INSERT
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.engine.sessions import with_times
from pyspark_lance.lazy import Column, DataFrame, functions
from pyspark_lance.types.column_names import case_sensitive, check_spellings, match_names, quoted
from pyspark_lance.types.spark_types import spark_schema


def merge_by_key(
    source: DataFrame,
    dataset: LanceDataset,
    on: Sequence[str],
    clauses: tuple[MergeClause, ...],
    options: ChangeOptions,
    *,
    is_as_it_is: bool = False,
    deleting: KeyedRows | None = None,
    checked_through: int | None = None,
) -> ChangeResult:
    """Merge a source, which has each key once, into a table.

    Args:
        source: The rows.
        dataset: The version that is changed first.
        on: The columns of the key.
        clauses: The clauses, in order.
        options: How to write and commit.
        is_as_it_is: Whether the clauses have no values, and the source's values are written as they are.
        deleting: Further rows that are deleted in the same commit.
        checked_through: Version up to which the history was searched for other attempts.

    Raises:
        SchemaError: A column does not fit the table's; the message names it.
        InvalidInputError: A clause does not fit the columns, or the source has a key twice.
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
    """
    with with_times(source.sparkSession, source.schema, spark_schema(dataset.schema)):
        fitted = KeyedRows.fit(source, on, dataset)
        if is_as_it_is and any(clause.action != DELETE for clause in clauses):
            fitted = fitted.fit_values(dataset, inserts=any(clause.action == INSERT for clause in clauses))
    if not is_as_it_is:
        _check_others(fitted.rows, clauses, dataset)
    ends = [(name, f"{TARGET}.{quoted(name)}", f"{SOURCE}.{quoted(name)}") for name in fitted.keys]
    equalities = [
        Equality(column=name, target=target, source=source_name, is_null_safe=False)
        for name, target, source_name in ends
    ]
    merge = ClauseMerge(
        source=fitted.rows.alias(SOURCE),
        condition=fitted.same_key(dataset),
        clauses=clauses,
        alias=TARGET,
        unique=fitted.keys,
        is_as_it_is=is_as_it_is,
        deleting=deleting,
        keys=MergeKeys(equalities=tuple(equalities), alias=TARGET),
    )
    return merge.run(dataset, options, checked_through)


def _check_others(source: DataFrame, clauses: Sequence[MergeClause], dataset: LanceDataset) -> None:
    """Make sure that clauses use each source column that the table lacks: an unused one may be misspelt."""
    texts: list[Any] = [clause.condition for clause in clauses]
    texts += [value for clause in clauses for value in (clause.values or {}).values()]
    used = names_in_text(texts)
    others = [name for name in source.columns if name not in dataset.schema.names]
    unused = [name for name in others if name.lower() not in used]
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
    inserts = [clause for clause in clauses if clause.action == INSERT]
    if not inserts:
        return None
    rows = source.alias(SOURCE)
    chosen = choose_clause(inserts, rows)
    copied = {name: f"{SOURCE}.{quoted(name)}" for name in source.columns}
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
    with short_errors(f"merge: values {values}"):
        for name in names:
            clause_cells = [as_column(part[name]) if name in part else functions.lit(None) for part in values]
            cells.append(choose_first((chosen == index, cell) for index, cell in enumerate(clause_cells)).alias(name))
        new_rows = rows.where(chosen.isNotNull()).select(*cells)
        new_rows.schema  # noqa: B018 - Spark checks the values
    return new_rows


def _unify_spelling(values: Sequence[Mapping[str, Any]], on: Sequence[str], *, exact: bool) -> list[Mapping[str, Any]]:
    """Values with one spelling of each column: that of the key, or of the first clause that names the column."""
    known_names = list(on)
    by_clause: list[Mapping[str, Any]] = []
    for clause in values:
        columns = [strip_alias(name, known_names, TARGET, exact=exact) for name in clause]
        names = match_names(columns, known_names, exact=exact)
        if len(set(columns)) < len(columns):
            raise SchemaError(f"merge: a column has two values: {list(clause)}")
        by_clause.append({names.get(name, name): value for name, value in zip(columns, clause.values(), strict=True)})
        known_names += [name for name in columns if name not in names]
    return by_clause
