"""Conditions on a table's rows, made from the keys of a merge's source, so that the merge reads less of the table.

    few keys    key IN (...)              many    key BETWEEN least AND greatest
                 |                                 |
                 BTREE, bitmap, zone map of the key's column: fragments and rows that need not be read

Without an index the keys serve as a condition if they are few compared with the rows of the table: passing a row to
Spark costs more than checking whether its key is one of them.

Only columns of types that Spark and Lance order and compare alike are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import LanceDataset
from pyspark_lance.engine.jobs import collect_arrow
from pyspark_lance.lazy import DataFrame, functions
from pyspark_lance.types.column_names import quoted

_FEW: Final = 10_000
"""Largest number of keys that are looked up one by one; of more keys only the range is used."""
_MEMBERS: Final = 200_000
_MEMBER_BYTES: Final = 4 << 20
_ROWS_PER_MEMBER: Final = 8
"""Limits for keys that are sent to all tasks: most keys, most bytes, and fewest rows of the table for each key."""
_INDICES: Final = ("BTree", "Bitmap", "ZoneMap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """A condition on the table's rows.

    Attributes:
        condition: The condition, true for all rows with a key of the source; None if no condition is known.
        is_exact: Whether the condition is false for all other rows.
    """

    condition: pc.Expression | None = None
    is_exact: bool = False


def narrow_by_keys(dataset: LanceDataset, keys: pa.Table) -> pc.Expression | None:
    """A condition that is true for all rows with one of some keys; None if no index can use it.

    Args:
        dataset: The version.
        keys: The keys, in the table's types.
    """
    conditions = [
        _condition(dataset, name, keys.column(name))
        for name in _find_indexed(dataset, keys.column_names)
        if keys.num_rows
    ]
    return all_of(conditions)


def collect_few_keys(dataset: LanceDataset, on: Sequence[str], source: DataFrame) -> pa.Table | None:
    """The keys of a source that has few rows compared with the table, in the columns that can be looked up.

    One Spark job collects the keys; it also computes a source that is to be cached.

    Args:
        dataset: The version.
        on: The columns of the key.
        source: The frame.

    Returns:
        The keys; None if the source is not small, or no column can be looked up.
    """
    names = [name for name in _select_comparable(on, source) if _kind(dataset.schema.field(name).type) is not None]
    most = min(_MEMBERS, dataset.count_rows() // _ROWS_PER_MEMBER)
    if not names or not most:
        return None
    keys = collect_arrow(source.select(*map(quoted, names)).limit(most + 1))
    return keys if keys.num_rows <= most else None


def narrow_by_frame(
    dataset: LanceDataset, on: Sequence[str], source: DataFrame, keys: pa.Table | None = None
) -> Narrowed:
    """A condition that is true for all rows with a key of a DataFrame.

    Args:
        dataset: The version.
        on: The columns of the key.
        source: The frame.
        keys: The result of `collect_few_keys`. If it is None and the table has an index, the driver collects the least
            and the greatest key, or all keys if they are few.
    """
    indexed = _find_indexed(dataset, _select_comparable(on, source))
    if keys is not None and (len(keys) <= _FEW or not indexed):
        return _narrow_by_values(dataset, on, keys) if keys.nbytes <= _MEMBER_BYTES else Narrowed()
    if not indexed:
        return Narrowed()
    names = [quoted(name) for name in indexed]
    least = [functions.min(name).alias(f"least{i}") for i, name in enumerate(names)]
    most = [functions.max(name).alias(f"most{i}") for i, name in enumerate(names)]
    bounds = collect_arrow(source.agg(functions.count(functions.lit(1)).alias("rows"), *least, *most))
    if bounds.column("rows")[0].as_py() <= _FEW:
        return _narrow_by_values(dataset, on, collect_arrow(source.select(*names).distinct()))
    ends = [
        pa.chunked_array(bounds.column(f"{end}{i}").chunk(0) for end in ("least", "most")) for i in range(len(indexed))
    ]
    conditions = [_condition(dataset, name, pair, most=0) for name, pair in zip(indexed, ends, strict=True)]
    return Narrowed(condition=all_of(conditions))


def _select_comparable(on: Sequence[str], source: DataFrame) -> list[str]:
    """The columns without a collation: strings that are equal by a collation may have different bytes."""
    kinds = {name: source.schema[name].dataType.simpleString() for name in on}
    return [name for name, kind in kinds.items() if kind.partition(" ")[0] != "string" or kind == "string"]


def _narrow_by_values(dataset: LanceDataset, on: Sequence[str], keys: pa.Table) -> Narrowed:
    """The condition that each column of the key has one of the source's values."""
    conditions = [_condition(dataset, name, keys.column(name), most=_MEMBERS) for name in keys.column_names]
    return Narrowed(condition=all_of(conditions), is_exact=len(on) == 1 and conditions[0] is not None)


def _find_indexed(dataset: LanceDataset, on: Sequence[str]) -> list[str]:
    """Columns of the key that have an index."""
    indexed = {name for name, kinds in dataset.index_kinds.items() if not kinds.isdisjoint(_INDICES)}
    return [name for name in on if name in indexed and _kind(dataset.schema.field(name).type) is not None]


def _kind(kind: pa.DataType) -> str | None:
    """The kind of values for comparison; None for types that are not looked up."""
    types = pa.types
    if types.is_integer(kind) and kind != pa.uint64():
        return "integer"
    if types.is_string(kind) or types.is_large_string(kind):
        return "string"
    if types.is_date32(kind):
        return "date"
    if types.is_timestamp(kind) and kind.unit == "us":
        return "local time" if kind.tz is None else "time"  # Spark compares the two by the zone of the session
    return None


def _condition(
    dataset: LanceDataset, name: str, values: pa.ChunkedArray, *, most: int | None = None
) -> pc.Expression | None:
    """The condition that a column has one of some values, or lies in their range if they are more than `most`."""
    column_type = dataset.schema.field(name).type
    if _kind(values.type) != _kind(column_type):
        return None
    try:
        values = values.cast(column_type).drop_null()
    except pa.ArrowInvalid:
        return None  # a value that the column cannot hold
    if not len(values):
        return None
    if len(values) <= (_FEW if most is None else most):
        return pc.field(name).isin(pc.unique(values))
    ends = pc.min_max(values)
    return (pc.field(name) >= ends["min"]) & (pc.field(name) <= ends["max"])


def all_of(conditions: Iterable[pc.Expression | None]) -> pc.Expression | None:
    """The condition that all of some conditions hold, of which some may be unknown; None if all are."""
    usable_conditions = [condition for condition in conditions if condition is not None]
    return reduce(and_, usable_conditions) if usable_conditions else None
