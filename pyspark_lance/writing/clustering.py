"""Clustering of rows by slice, so that a write makes few files, each with rows of one slice.

    before:  task 0: a b c a b c      task 1: a b c b       ->  one file per task and slice: 6
    after:   task 0: a a a c c c      task 1: b b b b       ->  one file per slice: 3

Spark's `rebalance` moves the rows: adaptive execution then puts small slices into one task and divides a large slice
among several tasks. Correctness does not depend on it: the tasks check the slice of each row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from lance_core import Between, Equals, Slices
from pyspark_lance.types.column_names import check_spellings, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY: Final = "__lance_slice_{}"
_MAX_BUCKETS: Final = 256
"""Most ranges of a column; if there are more, neighbouring ranges are merged to keep the expression short."""


def cluster_by_slice(frame: DataFrame, slices: Slices) -> DataFrame:
    """The frame, with the rows of each slice in few tasks, and next to each other in each task.

    With a single slice the frame stays as it is.
    """
    from pyspark.sql import functions

    if len(slices.names) == 1:
        return frame
    check_spellings(frame, frame.columns)
    keys: dict[str, Column] = {}
    sort: list[Any] = []
    for position, name in enumerate(slices.columns):
        column = functions.col(quoted(name))
        conditions = [slice_.conditions[name] for slice_ in slices.slices]
        if all(isinstance(condition, Equals) for condition in conditions):
            key = column
        else:
            starts = sorted({condition.start for condition in conditions if isinstance(condition, Between)})
            step = -(-len(starts) // _MAX_BUCKETS)
            key = _bucket(column, starts[::step], 0)
            if step > 1:
                sort.append(column)
        keys[_KEY.format(position)] = key
    keyed = frame.withColumns(keys).hint("rebalance", *keys)
    return keyed.sortWithinPartitions(*keys, *sort).drop(*keys)


def cluster_by_columns(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The frame, with the rows of each value of the columns in few tasks, and next to each other in each task."""
    from pyspark.sql import functions

    check_spellings(frame, frame.columns)
    keys = [functions.col(quoted(name)) for name in columns]
    return frame.hint("rebalance", *keys).sortWithinPartitions(*keys)


def _bucket(column: Column, starts: list[Any], first: int) -> Column:
    """An expression for the position of the last start at or below the column's value, by bisection."""
    from pyspark.sql import functions

    if len(starts) == 1:
        return functions.lit(first)
    middle = len(starts) // 2
    start = starts[middle]
    if isinstance(start, dt.datetime) and start.tzinfo is None:
        literal = functions.lit(start.isoformat()).cast("timestamp_ntz")
    else:
        literal = functions.lit(start)
    return functions.when(column < literal, _bucket(column, starts[:middle], first)).otherwise(
        _bucket(column, starts[middle:], first + middle)
    )
