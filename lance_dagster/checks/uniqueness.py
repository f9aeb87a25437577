"""Counts of duplicate and null keys, read from the columns of the key only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow.compute as pc

import lance_core
from lance_core.errors import SchemaError
from lance_dagster.handlers.exact_cast import show_row
from lance_dagster.handlers.merging import cast_to_groupable
from lance_dagster.tables.partitions import slices_of
from lance_dagster.tables.refs import TableRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniqueness:
    """The counts of duplicate and null keys.

    Attributes:
        rows: The number of rows that were checked.
        duplicates: The number of rows beyond the first of each key.
        nulls: The number of rows with a null in a column of the key.
        summary: These numbers in a sentence, with an example of a duplicate.
    """

    rows: int
    duplicates: int
    nulls: int
    summary: str


def count_duplicates(
    dataset: lance_core.LanceDataset, columns: Sequence[str], ref: TableRef, partition_keys: Sequence[str] | None
) -> Uniqueness:
    """Count rows whose key an earlier row has, and rows with a null in the key.

    Raises:
        SchemaError: The table lacks a column.
    """
    missing = [name for name in columns if name not in dataset.schema.names]
    if missing:
        raise SchemaError(f"columns {missing} are not among the table's columns {dataset.schema.names}")
    condition = None
    if ref.partitions_def is not None and partition_keys is not None:
        condition = slices_of(ref, partition_keys, dataset.schema).expression(dataset.schema)
    table = dataset.to_table(columns=list(columns), filter=condition)
    counted = cast_to_groupable(table).group_by(list(columns)).aggregate([([], "count_all")])
    duplicates = table.num_rows - counted.num_rows
    nulls = pc.sum(reduce(pc.or_, (pc.is_null(table[name]) for name in columns))).as_py() or 0
    summary = f"{table.num_rows:,} rows, {duplicates:,} with a key of another row, {nulls:,} with a null in the key"
    if duplicates:
        example = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).select(list(columns))
        summary += f"; for example {show_row(example.cast(table.schema))}"
    return Uniqueness(rows=table.num_rows, duplicates=duplicates, nulls=nulls, summary=summary)
