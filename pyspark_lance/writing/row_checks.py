"""Rules of a write: tasks check the condition, and report what the other rules need.

condition      every row must meet the condition               `RowRules.check`, for replaceWhere
partition_by   files hold rows of one value of these columns   `PartitionValues`, which are reported
keys           each key must occur once                        `hashes_of_keys`, then `all_hashes` of all tasks: for
                                                               merge_on, if the table does not exist yet
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core import Equals, Slice, Slices, key_hashes, matching
from lance_core.errors import InvalidInputError
from pyspark_lance.keys.equality import normalize_keys, normalize_spark_keys

AMBIGUOUS: Final = "Ambiguous merge inserts are prohibited: several rows of the source have the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """The rules of a write; they are pickled.

    Attributes:
        condition: A condition that every row must meet.
        sql: The condition as the user wrote it.
        partition_by: Columns of which each file holds one value.
        keys: Columns that make up a key.
    """

    condition: pc.Expression | None = None
    sql: str | None = None
    partition_by: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    def check(self, batch: pa.RecordBatch) -> None:
        """Make sure that all rows meet the condition.

        Raises:
            InvalidInputError: A row does not meet the condition; the message has the condition and the row's values.
        """
        if self.condition is None or not batch.num_rows:
            return
        row = matching(batch, self.condition).index(False).as_py()  # registers functions that the condition calls
        if row >= 0:
            values = {name: batch.column(name)[row].as_py() for name in batch.schema.names[:8]}
            raise InvalidInputError(f"replaceWhere {self.sql!r} does not hold for a row that is written: {values}")


class PartitionValues:
    """The distinct values of some columns in a task's rows, in order of their first occurrence.

    Args:
        columns: The columns.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = tuple(columns)
        self._positions: dict[tuple[Any, ...], int] = {}
        self._types: list[pa.DataType] = []

    def assign(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """The position of each row's values."""
        codes, columns = np.zeros(batch.num_rows, np.int64), []
        for name in self.columns:
            column = batch.column(name)
            column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            columns.append(column)
            encoded = column.dictionary_encode("encode")
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
            # Renumber the codes after each column, so that the codes of many columns do not overflow the integer.
            _, rows, codes = np.unique(codes, return_index=True, return_inverse=True)
        self._types = [column.type for column in columns]
        distinct_values = zip(*(column.take(pa.array(rows)).to_pylist() for column in columns), strict=True)
        return np.array([self._position(values) for values in distinct_values], np.int32)[codes]

    def table(self) -> pa.Table:
        """The values, in order of their positions."""
        columns: list[Any] = list(zip(*self._positions, strict=True)) or [() for _ in self.columns]
        types = self._types or [pa.null() for _ in self.columns]
        return pa.table([pa.array(v, t) for v, t in zip(columns, types, strict=True)], names=list(self.columns))

    def _position(self, values: tuple[Any, ...]) -> int:
        # A NaN does not equal itself, and would count as another value in each batch.
        comparable_values = tuple(math.nan if value != value else value for value in values)  # noqa: PLR0124 - detects NaN
        return self._positions.setdefault(comparable_values, len(self._positions))


def slices_of(tables: Iterable[pa.Table], columns: tuple[str, ...]) -> Slices | None:
    """A slice for each of the values that tasks reported; None without values."""
    distinct_rows = {tuple(row[name] for name in columns) for table in tables for row in table.to_pylist()}
    if not distinct_rows:
        return None
    return Slices(
        Slice(
            name=",".join(f"{name}={value}" for name, value in zip(columns, row, strict=True)),
            conditions={name: Equals(value) for name, value in zip(columns, row, strict=True)},
        )
        for row in sorted(distinct_rows, key=repr)
    )


def hashes_of_keys(keys: pa.Table, *, repeats: bool = False) -> npt.NDArray[np.uint64]:
    """Hashes of the keys that contain no null; a key that contains a null equals no other.

    Args:
        keys: The keys.
        repeats: Whether a key may occur several times; its hash is returned once.

    Raises:
        InvalidInputError: A key occurs twice; the message names the key.
    """
    keys = normalize_keys(keys.drop_null())
    if repeats:
        return np.unique(key_hashes(keys, keys.column_names))
    counts = normalize_spark_keys(keys).group_by(keys.column_names).aggregate([([], "count_all")])
    twice = counts.filter(pc.field("count_all") > 1)
    if twice.num_rows:
        key = ", ".join(f"{name} = {twice.column(name)[0].as_py()!r}" for name in keys.column_names)
        raise InvalidInputError(f"{AMBIGUOUS} {key}")
    return key_hashes(keys, keys.column_names)


def all_hashes(
    parts: Iterable[npt.NDArray[np.uint64] | None], on: Iterable[str], *, repeats: bool = False
) -> npt.NDArray[np.uint64]:
    """The hashes of keys that all tasks report.

    Args:
        parts: The hashes of each task; None from a task that reports none.
        on: The key, for the message.
        repeats: Whether a key may occur several times; its hash is returned once.

    Raises:
        InvalidInputError: Two tasks have rows of one key.
    """
    hashes = np.concatenate([np.zeros(0, np.uint64), *(part for part in parts if part is not None)])
    if repeats:
        return np.unique(hashes)
    if len(np.unique(hashes)) < len(hashes):
        raise InvalidInputError(
            f"Ambiguous merge inserts are prohibited: several rows of the source have one key; the key is {list(on)}"
        )
    return hashes
