"""Makers of new columns, whose values come from expressions, a function, a stream of rows, or a join.

Each maker declares the columns that it reads and makes, and turns a batch of live rows into their new columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import ArgumentTypeError, InvalidInputError, SchemaError
from lance_core.extension_types import empty_table
from lance_core.schema import Schema, resolve_extensions, typed_schema
from lance_core.schema.relabel import relabel
from lance_core.verbs.columns.batch_udf import BatchUDF, BatchUDFCheckpoint, as_batch, check_output
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.expressions.arrow import columns_of
from lance_core.verbs.files.fragment_writer import ReaderLike, open_input_rows
from lance_core.verbs.rows.source_rows import KeyIndex
from lance_core.verbs.scan.conditions import evaluate, to_expression
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.projection import ROW_ADDRESS, ROW_ID
from lance_core.verbs.scan.scanner import LanceScanner

_NULL = re.compile(
    r"\s*(CAST\s*\(\s*NULL\s+AS\b[^()]*(\([^()]*\))?\s*\)|arrow_cast\s*\(\s*NULL\s*,\s*'[^']*'\s*\))\s*", re.IGNORECASE
)
"""SQL that consists of one typed null."""
_ONE_ROW_EACH: Final = "give one row for each row of the dataset, in its order"


class ColumnMaker(Protocol):
    """The protocol of a maker of new columns.

    Attributes:
        reads: Columns of the dataset that the maker needs; may include `_rowid` and `_rowaddr`.
        makes: Schema of the columns that the maker makes.
        cache: The checkpoint in which results are kept; None if they are not kept.
        is_pure: Whether the columns of several fragments may be made at once, in any order.
    """

    @property
    def reads(self) -> Sequence[str]: ...  # noqa: D102 - attributes, described by the class
    @property
    def makes(self) -> pa.Schema: ...  # noqa: D102 - attributes, described by the class
    @property
    def cache(self) -> BatchUDFCheckpoint | None: ...  # noqa: D102 - attributes, described by the class
    @property
    def is_pure(self) -> bool: ...  # noqa: D102 - attributes, described by the class

    def make(self, rows: pa.Table, fragment_id: int, batch_index: int) -> pa.Table:
        """The new columns for a batch of rows."""

    def finish(self) -> None:
        """Check that the source has no values left."""


class _Expressions:
    """Columns computed by expressions."""

    cache = None
    is_pure = True

    def __init__(self, expressions: Mapping[str, str | pc.Expression], schema: pa.Schema) -> None:
        self._expressions = {name: to_expression(value, schema) for name, value in expressions.items()}
        used = dict.fromkeys(name for each in self._expressions.values() for name in columns_of(each))
        # Expressions without columns still need the number of rows.
        self.reads = list(used) or [ROW_ADDRESS]
        kinds = [schema.field(name) if name in schema.names else pa.field(name, pa.uint64()) for name in self.reads]
        # Expressions leave JSON inside of a column as strings whose metadata name its type.
        self.makes = resolve_extensions(evaluate(empty_table(pa.schema(kinds)), self._expressions).schema)

    def make(self, rows: pa.Table, _fragment_id: int, _batch_index: int) -> pa.Table:
        """Evaluate the expressions on the rows."""
        table = evaluate(rows, self._expressions)
        columns = [
            pa.chunked_array([relabel(chunk, kind) for chunk in column.chunks], kind)
            for column, kind in zip(table.columns, self.makes.types, strict=True)
        ]
        return pa.table(columns, schema=self.makes)

    def finish(self) -> None:
        """Nothing can be left over."""


class _Function:
    """Columns that a function returns."""

    is_pure = False

    def __init__(self, udf: BatchUDF, reads: Sequence[str], makes: pa.Schema) -> None:
        self._udf = udf
        self.reads = reads
        self.makes = makes
        self.cache = udf.cache

    def make(self, rows: pa.Table, fragment_id: int, batch_index: int) -> pa.Table:
        """Call the function, unless the result is kept from an earlier run."""
        batch = None if self.cache is None else self.cache.get_batch(fragment_id, batch_index)
        if batch is None:
            batch = self._udf.columns_of(as_batch(rows))
            check_output(batch.schema, self.makes)
            if self.cache is not None:
                self.cache.insert_batch(fragment_id, batch_index, batch)
        elif batch.schema != self.makes or batch.num_rows != rows.num_rows:
            where = "" if self.cache is None else self.cache.path
            raise InvalidInputError(
                f"{where} cannot be used as a checkpoint: it has {batch.num_rows} rows of {batch.schema.names} for "
                f"batch {batch_index} of fragment {fragment_id}, which has {rows.num_rows}; delete it to start again"
            )
        return pa.Table.from_batches([batch])

    def finish(self) -> None:
        """Nothing can be left over."""


class _Stream:
    """Columns from a stream that has one row per live row of the dataset, in the same order."""

    cache = None
    is_pure = False
    reads = (ROW_ADDRESS,)

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
        self.makes = schema
        self._batches: Iterator[pa.RecordBatch | pa.Table] = iter(batches)
        self._rest: pa.Table = empty_table(schema)

    def make(self, rows: pa.Table, _fragment_id: int, _batch_index: int) -> pa.Table:
        """The next rows of the stream."""
        parts, num_left = [], rows.num_rows
        while num_left:
            if not self._rest.num_rows:
                batch = next(self._batches, None)
                if batch is None:
                    raise InvalidInputError(
                        f"Stream ended before producing values for all rows in dataset; {_ONE_ROW_EACH}"
                    )
                self._rest = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            parts.append(self._rest.slice(0, num_left))
            self._rest = self._rest.slice(parts[-1].num_rows)
            num_left -= parts[-1].num_rows
        return pa.concat_tables(parts) if parts else empty_table(self.makes)

    def finish(self) -> None:
        """Check that the stream is at its end."""
        if self._rest.num_rows or any(batch.num_rows for batch in self._batches):
            raise InvalidInputError(f"Stream produced more values than expected for dataset; {_ONE_ROW_EACH}")


class Joined:
    """Columns of a table, by a left join; null equals null, as in pylance.

    Args:
        table: The table.
        left_on: Column of the dataset that is joined on; `_rowid` and `_rowaddr` are possible.
        right_on: Column of the table that is joined on.
        kind: Type of `left_on`.

    Raises:
        SchemaError: The columns that are joined on do not exist or differ in type.
        InvalidInputError: The table has a key several times.
    """

    cache = None
    is_pure = True

    def __init__(self, table: pa.Table, left_on: str, right_on: str, kind: pa.DataType) -> None:
        if right_on not in table.column_names:
            raise SchemaError(f"no column {right_on!r} to join on; the data has {table.column_names}")
        key_type = table.schema.field(right_on).type
        if key_type != kind:
            raise SchemaError(f"Index column type mismatch: {left_on!r} is {kind}, but {right_on!r} is {key_type}")
        self.reads = (left_on,)
        keys = table.column(right_on)
        self._index = KeyIndex(pa.table({left_on: keys}), [left_on])
        self._null = pc.index(keys.is_null(), True).as_py()
        repeated = self._index.first[self._index.counts > 1].tolist() or ([self._null] if keys.null_count > 1 else [])
        if repeated:
            key = keys[repeated[0]].as_py()
            raise InvalidInputError(
                f"the data has the key {right_on} = {key!r} in several rows: leave one row of each key"
            )
        self._values = table.drop_columns([right_on])
        self.makes: pa.Schema = self._values.schema

    def rows(self, table: pa.Table) -> pa.Array:
        """For each row of the dataset, the number of the joined row; null for rows without a match."""
        matched_rows, codes = self._index.look_up(table)
        partners, missing = np.zeros(table.num_rows, np.int64), np.ones(table.num_rows, np.bool_)
        partners[matched_rows], missing[matched_rows] = self._index.first[codes], False
        if self._null >= 0:
            is_null = np.asarray(table.column(self.reads[0]).is_null())
            partners[is_null], missing[is_null] = self._null, False
        return pa.array(partners, mask=missing)

    def make(self, rows: pa.Table, _fragment_id: int, _batch_index: int) -> pa.Table:
        """The columns of the joined rows; null for rows without a match."""
        return self._values.take(self.rows(rows))

    def take(self, rows: pa.Array) -> pa.Table:
        """The values of joined rows, given their numbers as `rows` returns them."""
        return self._values.take(rows)

    def finish(self) -> None:
        """Check nothing: rows of the table without a match in the dataset are ignored."""


def column_maker(
    transforms: Any, snapshot: Snapshot, read_columns: Sequence[str] | None, reader_schema: pa.Schema | None
) -> ColumnMaker:
    """The maker for an argument of `add_columns`.

    Raises:
        ArgumentTypeError: A name is not a string, or a value neither SQL nor an expression.
        InvalidInputError: The argument is of an unsupported kind.
    """
    schema = typed_schema(snapshot.manifest.schema)
    if isinstance(transforms, Mapping):
        for name, value in transforms.items():
            if not isinstance(name, str):
                raise ArgumentTypeError(f"Column names must be a string. Got {type(name)}")
            if not isinstance(value, str | pc.Expression):
                raise ArgumentTypeError(f"Column expressions must be a string. Got {type(value)}")
        return _Expressions(transforms, schema)
    if isinstance(transforms, BatchUDF) or callable(transforms):
        udf = transforms if isinstance(transforms, BatchUDF) else BatchUDF(transforms)
        reads = list(schema.names if read_columns is None else read_columns)
        makes = udf.output_schema
        if makes is None:
            makes = _infer_schema(udf, snapshot, reads)
        return _Function(udf, reads, makes)
    return _Stream(*open_input_rows(transforms, reader_schema))


def null_fields(transforms: Mapping[Any, Any], snapshot: Snapshot) -> list[pa.Field] | None:
    """The fields of the new columns if the SQL of each is a typed null, so that no file is needed; else None."""
    fields = []
    for name, sql in transforms.items():
        if not isinstance(name, str) or not isinstance(sql, str) or name in snapshot.manifest.schema.names:
            return None
        column = parse_null(sql)
        if column is None:
            return None
        fields.append(pa.field(name, column))
    return fields


def parse_null(sql: str) -> pa.DataType | None:
    """The type of SQL that is a typed null, such as CAST(NULL AS INT); None for any other SQL."""
    if _NULL.fullmatch(sql) is None:
        return None
    from lance_core.verbs.expressions.sql import parse_column  # noqa: PLC0415 - it imports the SQL parser

    parsed = parse_column(sql, pa.schema([]))
    return None if pa.types.is_null(parsed.type) else parsed.type


def joined(data: ReaderLike, schema: pa.Schema | None, columns: Schema, left_on: str, right_on: str | None) -> Joined:
    """The maker of the columns of a join.

    Raises:
        SchemaError: The columns that are joined on do not exist or differ in type.
    """
    data_schema, batches = open_input_rows(data, schema)
    tables = [pa.Table.from_batches([b]) if isinstance(b, pa.RecordBatch) else b for b in batches]
    table = pa.concat_tables(tables) if tables else empty_table(data_schema)
    kind: pa.DataType = pa.uint64()
    if left_on not in (ROW_ID, ROW_ADDRESS):
        kind = typed_schema(columns.project([left_on])).field(0).type
    return Joined(table, left_on, right_on or left_on, kind)


def _infer_schema(udf: Callable[[pa.RecordBatch], Any], snapshot: Snapshot, reads: Sequence[str]) -> pa.Schema:
    """Call the function on one row to see what it returns."""
    options = ScanOptions(
        schema=snapshot.manifest.schema.project([name for name in reads if name not in (ROW_ID, ROW_ADDRESS)]),
        limit=1,
        with_row_id=ROW_ID in reads,
        with_row_address=ROW_ADDRESS in reads,
    )
    for batch in LanceScanner(snapshot, snapshot.manifest.fragments, options).to_batches():
        return as_batch(udf(batch)).schema
    raise InvalidInputError("the dataset has no row to try the function on; give it an output_schema")
