"""Keys from the equalities of a merge's condition: to read less of the table, and to detect concurrent inserts.

    t.id = s.id          the read: rows whose id the source has                     inserts: hashes of the ids
    t.id <=> s.id        the read: the same rows, and rows without an id            inserts: any key
    lower(t.s) = s.k     the read: all rows                                         inserts: any key

The commit of a merge that inserts rows records their keys, by which a concurrent merge that inserts the same rows is
detected. If the condition may treat different keys as equal, or the inserted values are not the compared ones, the
commit records that any key may have been inserted: of two such concurrent merges, the later is always computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import LanceDataset
from lance_core.errors import SchemaError
from pyspark_lance.changing.clauses import MergeClause
from pyspark_lance.changing.conditional import find_mentioned_columns
from pyspark_lance.changing.equalities import Equality, path_of, split_conjuncts
from pyspark_lance.changing.struct_values import Value, as_column
from pyspark_lance.changing.task import INSERT
from pyspark_lance.keys.equality import check_keys_of
from pyspark_lance.keys.narrowing import Narrowed, all_of, narrow_by_frame
from pyspark_lance.lazy import DataFrame, types
from pyspark_lance.reading.filter_pushdown import parse_condition, push_filter_of_tree
from pyspark_lance.types.column_names import case_sensitive
from pyspark_lance.types.spark_types import spark_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeKeys:
    """The equalities of a merge's condition, used as its keys.

    Attributes:
        equalities: The equalities.
        alias: The name that qualifies the table's columns; None without one.
    """

    equalities: tuple[Equality, ...] = ()
    alias: str | None = None

    @property
    def _of_columns(self) -> dict[str, Equality]:
        """The first equality of each column of the table that has one."""
        return {equality.column: equality for equality in reversed(self.equalities) if equality.column is not None}

    def frame(self, source: DataFrame, base: LanceDataset) -> tuple[list[str], DataFrame]:
        """The keys of the source under the table's names, of those columns whose types are compared alike."""
        kinds = {field.name: field.dataType for field in spark_schema(base.schema)}
        column_equalities = self._of_columns
        keys = source.select(*[as_column(equality.source).alias(name) for name, equality in column_equalities.items()])
        strings = {key.name: key.dataType for key in keys.schema if key.dataType.typeName().startswith("string")}
        names = [name for name in column_equalities if name not in strings or strings[name] == kinds[name]]
        return names, keys

    def narrow_target(self, base: LanceDataset, source: DataFrame, condition: Value, few: pa.Table | None) -> Narrowed:
        """A condition that is true for each table row that a source row can match; exact if only for about these.

        Args:
            base: The version.
            source: The source.
            condition: The condition of the merge.
            few: The result of `few_keys` for the source.
        """
        names, keys = self.frame(source, base)
        parts = [self._translate_target_part(base, condition, exact=case_sensitive(source.sparkSession))]
        null_safe = [name for name in names if self._of_columns[name].is_null_safe]
        is_exact = False
        for group in ([name for name in names if name not in null_safe], *([name] for name in null_safe)):
            group_keys = None if few is None or not set(group) <= set(few.column_names) else few.select(group)
            narrowed = narrow_by_frame(base, group, keys, group_keys) if group else Narrowed()
            is_exact = is_exact or narrowed.is_exact
            is_safe = narrowed.condition is not None and group[0] in null_safe
            parts.append(narrowed.condition | pc.field(group[0]).is_null() if is_safe else narrowed.condition)
        return Narrowed(condition=all_of(parts), is_exact=is_exact and len(self.equalities) == 1)

    def _translate_target_part(self, base: LanceDataset, condition: Value, *, exact: bool) -> pc.Expression | None:
        """The parts of the condition that concern the table alone, as far as they can be pushed."""
        if self.alias is None:
            return None  # a name without qualifier may be the source's
        trees = [_own_tree(part, self.alias, exact=exact) for part in split_conjuncts(condition)]
        pushed = [push_filter_of_tree(tree, base.schema, exact=exact) for tree in trees if tree is not None]
        return all_of(pushed_part.filter for pushed_part in pushed if pushed_part is not None)

    def find_exact_key(self, source: DataFrame, condition: Value, *, exact: bool) -> list[str]:
        """The columns of the table that equal source columns of the same names; none if the condition requires more.

        Args:
            source: The source.
            condition: The condition of the merge.
            exact: Whether case matters.
        """
        if len(split_conjuncts(condition)) != len(self.equalities):
            return []
        structs = [field.name.lower() for field in source.schema if field.dataType.typeName() == "struct"]
        columns = []
        for pair in self.equalities:
            path = path_of(pair.source)
            if pair.column is None or pair.is_null_safe or path is None or len(path) > 2 or path[0].lower() in structs:
                return []
            if path[-1] != pair.column and (exact or path[-1].lower() != pair.column.lower()):
                return []
            columns.append(pair.column)
        return list(dict.fromkeys(columns))

    def find_conflict_key(
        self, base: LanceDataset, source: DataFrame, clauses: Sequence[MergeClause]
    ) -> tuple[list[str], bool]:
        """The columns by which concurrent inserts are detected, and whether equal inserted rows are equal in them.

        Args:
            base: The version.
            source: The source.
            clauses: The clauses of the merge.
        """
        inserts = [clause for clause in clauses if clause.action == INSERT]
        names, keys = self.frame(source, base)
        source_types = {field.name: field.dataType for field in keys.schema}
        stored = {field.name: field.dataType for field in spark_schema(base.schema)}
        exact = [
            name
            for name, equality in self._of_columns.items()
            if name in names
            and not equality.is_null_safe
            and _is_compared_alike(source_types[name], stored[name])
            and _is_key(base.schema.field(name))
            and all(_inserts(clause, name, equality.source) for clause in inserts)
        ]
        if exact:
            return exact, True
        mentioned_names = find_mentioned_columns([equality.target for equality in self.equalities], base)
        return mentioned_names or base.schema.names[:1], False  # an equality of a row column names no other one


def _own_tree(part: Value, alias: str, *, exact: bool) -> Any:
    """A condition that concerns the table alone, parsed and without qualifiers; None for others."""
    tree = parse_condition(part) if isinstance(part, str) else None
    if tree is None:
        return None
    columns = [node for node in tree.walk() if type(node).__name__ == "Column"]
    tables = {column.table if exact else column.table.lower() for column in columns if len(column.parts) == 2}
    if tables != {alias if exact else alias.lower()} or any(len(column.parts) != 2 for column in columns):
        return None
    for column in columns:
        column.set("table", None)
    return tree


def _is_compared_alike(source_type: Any, stored: Any) -> bool:
    """Whether source values that equal values of the stored type still equal them in the stored type."""
    if isinstance(source_type, types.IntegralType) and isinstance(stored, types.IntegralType):
        return True
    return bool(source_type == stored)


def _is_key(field: pa.Field) -> bool:
    try:
        check_keys_of("on", [field])
    except SchemaError:
        return False
    return True


def _inserts(clause: MergeClause, name: str, compared: Value) -> bool:
    """Whether a clause inserts into a column the source expression that the condition compares with the column."""
    path = path_of(compared)
    if clause.values is None:
        return path is not None and len(path) <= 2 and path[-1].lower() == name.lower()
    for column, value in clause.values.items():
        if column == name or column.rpartition(".")[2].lower() == name.lower():
            value_path = path_of(value)
            if value_path is not None and path is not None:
                return [part.lower() for part in value_path[-2:]] == [part.lower() for part in path[-2:]] or (
                    1 in (len(value_path), len(path)) and value_path[-1].lower() == path[-1].lower()
                )
            return isinstance(value, str) and value == compared
    return False
