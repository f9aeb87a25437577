"""Conditions on the table's rows from the keys of a merge's source, for an index to use.

    few keys    key IN (...)              many    key BETWEEN least AND greatest
                 |                                 |
                 BTREE, bitmap, zone map of the key's column: fragments and rows that need not be read

Without an index the keys are a condition too where they are few beside the rows of the table: to hand a row over to
Spark costs more than to look whether its key is among them.

Only for types of which Spark and Lance have the same order and equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_lance.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lance_core import LanceDataset

__all__ = ["narrowed_by_frame", "narrowed_by_keys"]

_FEW: Final = 10_000
"""Most keys that are looked up one by one; of more keys only the range is used."""
_MEMBERS: Final = 200_000
_MEMBER_BYTES: Final = 4 << 20
_ROWS_PER_MEMBER: Final = 8
"""Most keys, and their bytes, that are sent to all tasks, and least rows of the table for each of them."""
_INDICES: Final = ("BTree", "Bitmap", "ZoneMap")


def narrowed_by_keys(dataset: LanceDataset, keys: pa.Table) -> pc.Expression | None:
    """A condition that is true for all rows with one of some keys; None if no index can use it.

    Args:
        dataset: The version.
        keys: The keys, in the table's types.
    """
    found = [
        _condition(dataset, name, keys.column(name)) for name in _indexed(dataset, keys.column_names) if keys.num_rows
    ]
    return _all_of(found)


def narrowed_by_frame(
    dataset: LanceDataset, on: Sequence[str], source: DataFrame, num_rows: int | None = None
) -> pc.Expression | None:
    """The same for the keys of a DataFrame: its least and greatest ones come to the driver, or all if they are few.

    Args:
        dataset: The version.
        on: The columns of the key.
        source: The frame.
        num_rows: Its rows, if it is kept by Spark.
    """
    from pyspark.sql import functions

    # Texts that are equal by the rules of a language may differ.
    on = [
        name
        for name in on
        if source.schema[name].dataType.simpleString().partition(" ")[0] != "string"
        or source.schema[name].dataType.simpleString() == "string"
    ]
    indexed = _indexed(dataset, on)
    if not indexed:
        return None if num_rows is None else _members(dataset, on, source, num_rows)
    names = [quoted(name) for name in indexed]
    least = [functions.min(name).alias(f"least{i}") for i, name in enumerate(names)]
    most = [functions.max(name).alias(f"most{i}") for i, name in enumerate(names)]
    bounds = source.agg(functions.count(functions.lit(1)).alias("rows"), *least, *most).toArrow()
    if bounds.column("rows")[0].as_py() <= _FEW:
        values = source.select(*names).distinct().toArrow()
        return _all_of([_condition(dataset, name, values.column(i)) for i, name in enumerate(indexed)])
    return _all_of(
        [
            _condition(
                dataset,
                name,
                pa.chunked_array(bounds.column(f"{end}{i}").chunk(0) for end in ("least", "most")),
                most=0,
            )
            for i, name in enumerate(indexed)
        ]
    )


def _members(dataset: LanceDataset, on: Sequence[str], source: DataFrame, num_rows: int) -> pc.Expression | None:
    """The condition that a key is among those of a small source; None if it is not small beside the table."""
    known = [name for name in on if _kind(dataset.schema.field(name).type) is not None]
    if not known or num_rows > _MEMBERS or num_rows * _ROWS_PER_MEMBER > dataset.count_rows():
        return None
    values = source.select(*map(quoted, known)).toArrow()
    if values.nbytes > _MEMBER_BYTES:
        return None
    return _all_of([_condition(dataset, name, values.column(i), most=_MEMBERS) for i, name in enumerate(known)])


def _indexed(dataset: LanceDataset, on: Sequence[str]) -> list[str]:
    """Columns of the key that have an index."""
    manifest = dataset.source.manifest
    known = {index.fields[0] for index in manifest.indices if index.kind in _INDICES and len(index.fields) == 1}
    with_index = {field.name for field in manifest.schema.fields if field.id in known}
    return [name for name in on if name in with_index and _kind(dataset.schema.field(name).type) is not None]


def _kind(kind: pa.DataType) -> str | None:
    """The kind of values for comparison; None for types that are not looked up."""
    types = pa.types
    if types.is_integer(kind) and kind != pa.uint64():
        return "integer"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_date32(kind):
        return "date"
    if types.is_timestamp(kind) and kind.unit == "us":
        return "local time" if kind.tz is None else "time"  # Spark compares the two by the zone of the session
    return None


def _condition(
    dataset: LanceDataset, name: str, values: pa.ChunkedArray, *, most: int | None = None
) -> pc.Expression | None:
    """That a column is among some values, or between their ends if they are more than `most`."""
    wanted = dataset.schema.field(name).type
    if _kind(values.type) != _kind(wanted):
        return None
    try:
        values = values.cast(wanted).drop_null()
    except pa.ArrowInvalid:
        return None  # a value that the column cannot hold
    if not len(values):
        return None
    if len(values) <= (_FEW if most is None else most):
        return pc.field(name).isin(pc.unique(values))
    ends = pc.min_max(values)
    return (pc.field(name) >= ends["min"]) & (pc.field(name) <= ends["max"])


def _all_of(conditions: Sequence[pc.Expression | None]) -> pc.Expression | None:
    found = [condition for condition in conditions if condition is not None]
    return reduce(and_, found) if found else None
