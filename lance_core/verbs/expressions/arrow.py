"""Check filters (SQL strings or Arrow expressions), find the columns that they use, and evaluate them on batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import reject
from lance_core.errors import InvalidInputError
from lance_core.extension_types import exported_metadata, storage_type
from lance_core.index.query.conditions import Compare, parse_condition
from lance_core.schema import Schema, schema_to_arrow
from lance_core.verbs.expressions.large_conditions import LARGE, Split, combined, leaves_of, split
from lance_core.verbs.expressions.printed import format_expr
from lance_core.verbs.expressions.sql_meaning import with_sql_meaning

_SMALL: Final = 4096
"""Bytes of a serialized expression up to which the names of its columns are cached."""

FEW_SHARE: Final = 1 / 4
"""If at most this share of a batch's rows is left, the next condition is evaluated on a copy of these rows."""


def check_filter(filter_: object, schema: Schema | pa.Schema) -> pc.Expression | None:
    """The filter as an expression over columns in storage types.

    Args:
        filter_: An SQL string, a pyarrow expression, or a mapping with one of these as `expr_filter`; None for none.
        schema: The columns that it can refer to.

    Raises:
        InvalidInputError: The argument is not a filter, or the SQL has no boolean value. `matching` checks the type of
            an Arrow expression.
        SchemaError: The SQL refers to a column that does not exist.
        UnsupportedError: The SQL uses a function or syntax that is not supported, or the mapping has another key.
    """
    if isinstance(filter_, Mapping):
        reject("filter", {name: value for name, value in filter_.items() if name != "expr_filter"})
        filter_ = filter_.get("expr_filter")
    if filter_ is None:
        return None
    if isinstance(filter_, pc.Expression):
        return with_sql_meaning(filter_, stored_types(schema))
    if isinstance(filter_, str):
        from lance_core.verbs.expressions.sql import parse_filter  # noqa: PLC0415 - it imports the SQL parser

        return parse_filter(filter_, schema)
    raise InvalidInputError(f"a filter is an SQL string or a pyarrow.compute expression, not {type(filter_).__name__}")


def stored_types(schema: Schema | pa.Schema) -> pa.Schema:
    """The columns in storage types, which expressions use, because Arrow's functions support no extension types."""
    columns = schema_to_arrow(schema) if isinstance(schema, Schema) else schema
    if all(storage_type(field.type) == field.type for field in columns):
        return columns
    return pa.schema([pa.field(field.name, storage_type(field.type)) for field in columns])


def columns_of(expression: pc.Expression) -> list[str]:
    """Names of the top-level columns that an expression refers to, in order of first use."""
    serialized = _serialize(expression)
    if serialized.buffer.size <= _SMALL:
        return list(_known_columns(serialized.buffer.to_pybytes()))
    if serialized.columns is None:
        serialized.columns = _columns(serialized.buffer)
    return list(serialized.columns)


@dataclass(slots=True)
class _Serialized:
    """A serialized expression, and the names of its columns; None until they are needed."""

    expression: pc.Expression
    buffer: pa.Buffer
    columns: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Recent:
    """The last long expression: each batch needs it several times, and serializing it takes a tenth of a second."""

    last: _Serialized | None = None


_recent: Final = _Recent()


def _serialize(expression: pc.Expression) -> _Serialized:
    """The serialized expression; the last long one is cached."""
    last = _recent.last
    if last is not None and last.expression is expression:
        return last
    _, (buffer,) = expression.__reduce__()
    serialized = _Serialized(expression, buffer)
    if buffer.size > _SMALL:
        _recent.last = serialized
    return serialized


@lru_cache(maxsize=256)
def _known_columns(data: bytes) -> tuple[str, ...]:
    return _columns(pa.py_buffer(data))


def _columns(buffer: pa.Buffer) -> tuple[str, ...]:
    """The columns of a serialized expression.

    Arrow serializes an expression as the metadata of an IPC file: a list of
    `call`, `literal`, `field_ref` and `end` entries; `nested_field_ref: n` stands before the n parts of a path.
    """
    names: dict[str, None] = {}
    parts_left = 0
    for key, value in exported_metadata(pa.ipc.open_file(buffer).schema):
        if key == b"nested_field_ref":
            parts_left = -int(value)  # negative until the first part is read
        elif key == b"field_ref":
            if parts_left <= 0:
                names.setdefault(value.decode())
            parts_left = max(abs(parts_left) - 1, 0)
    return tuple(names)


def calls_of(expression: pc.Expression) -> list[str]:
    """Names of the functions that an expression calls."""
    return [value.decode() for key, value in _read_entries(expression) if key == b"call"]


def prepare(expression: pc.Expression) -> None:
    """Register this library's functions that an expression calls with Arrow, as it may come from another process."""
    serialized = _serialize(expression).buffer.to_pybytes()
    if b"lance." in serialized or b"datafusion." in serialized:
        from lance_core.verbs.expressions.sql.python_functions import register  # noqa: PLC0415 - it imports the SQL parser

        register(value.decode() for key, value in _read_entries(expression) if key == b"call")


def evaluated(rows: pa.RecordBatch | pa.Table, expressions: Mapping[str, pc.Expression]) -> pa.Table:
    """Evaluate at least one expression on rows, and return a table with one column for each, in the same order.

    Raises:
        InvalidInputError: An expression does not fit the columns, or fails for some value.
    """
    from pyarrow import acero  # noqa: PLC0415 - it imports pandas

    for expression in expressions.values():
        prepare(expression)
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    parts = {name: _split_if_large(expression) for name, expression in expressions.items()}
    leaves = [leaf for part in parts.values() for leaf in leaves_of(part)]
    try:
        project = acero.ProjectNodeOptions(leaves, [str(position) for position in range(len(leaves))])
        nodes = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", project),
        ]
        columns = list(acero.Declaration.from_sequence(nodes).to_table(use_threads=False).columns)
        return pa.table([combined(part, columns) for part in parts.values()], names=list(parts))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"{', '.join(map(format_expr, expressions.values()))}: {error}") from error


def _split_if_large(expression: pc.Expression) -> Split | pc.Expression:
    """The expression, or its pieces if it is large: the time that Arrow takes grows with the square of its size."""
    buffer = _serialize(expression).buffer
    return expression if buffer.size <= LARGE else split(buffer.to_pybytes())


def matching(batch: pa.RecordBatch, expression: pc.Expression) -> pa.Array:
    """For each row, whether the expression is true; null counts as false.

    Raises:
        InvalidInputError: The expression does not fit the columns, or its values are not booleans.

    Examples:
        >>> lance.matching(pa.record_batch({"n": [1, None, 3]}), pc.field("n") > 1).to_pylist()
        [False, False, True]
    """
    plain = _compare_plainly(batch, expression)
    if plain is not None:
        return _without_nulls(plain)
    try:
        keep = evaluated(batch, {"keep": expression}).column("keep")
    except InvalidInputError as error:
        raise InvalidInputError(f"filter {error}") from error.__cause__
    if not pa.types.is_boolean(keep.type):
        raise InvalidInputError(f"filter {format_expr(expression)} gives {keep.type}, not true or false")
    return _without_nulls(keep.combine_chunks())


def _compare_plainly(batch: pa.RecordBatch, expression: pc.Expression) -> pa.Array | None:
    """Compare a column with a value, without Arrow's execution plan; None for other expressions."""
    buffer = _serialize(expression).buffer
    if buffer.size > _SMALL:
        return None  # parsing a long condition takes longer than the plan
    test = parse_condition(expression)
    if not isinstance(test, Compare) or len(test.path) != 1:
        return None
    position = batch.schema.get_field_index(str(test.path[0]))
    if position < 0 or batch.column(position).type != test.value.type:
        return None
    try:
        return pc.call_function(test.operator, [batch.column(position), test.value])
    except pa.ArrowException:
        return None  # the plan raises the error


def _without_nulls(mask: pa.BooleanArray) -> pa.BooleanArray:
    """The mask with false for null; combining the bits of both buffers takes a tenth of the time of `fill_null`."""
    if not mask.null_count:
        return mask
    if mask.offset:
        return pc.fill_null(mask, False)
    valid, values = (np.frombuffer(buffer, np.uint8) for buffer in mask.buffers())
    size = -(-len(mask) // 8)
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(valid[:size] & values[:size])])


def true_places(mask: pa.Array) -> npt.NDArray[np.int64]:
    """The positions at which a mask without nulls is true."""
    positions: npt.NDArray[np.uint64] = pc.indices_nonzero(mask).to_numpy()
    return positions.astype(np.int64)


def matching_all(batch: pa.RecordBatch, expressions: Sequence[pc.Expression], mask: pa.Array | None = None) -> pa.Array:
    """For each row, whether all expressions are true; if few rows are left, only these are evaluated further.

    Args:
        batch: The rows.
        expressions: At least one expression.
        mask: The rows for which the result can be true; None for all.

    Raises:
        InvalidInputError: An expression returns no booleans, or cannot be evaluated on the rows.
    """
    if mask is None:
        mask, expressions = matching(batch, expressions[0]), expressions[1:]
    for expression in expressions:
        if mask.true_count == 0:
            break
        if mask.true_count > FEW_SHARE * len(mask):
            mask = pc.and_(mask, matching(batch, expression))
            continue
        names = [name for name in columns_of(expression) if name in batch.schema.names]
        if not names:  # a constant
            mask = pc.and_(mask, matching(batch, expression))
            continue
        left = true_places(mask)
        left_matches = matching(batch.select(names).take(pa.array(left)), expression).to_numpy(zero_copy_only=False)
        values = np.zeros(len(mask), np.bool_)
        values[left[left_matches]] = True
        mask = pa.array(values)
    return mask


def _read_entries(expression: pc.Expression) -> Iterator[tuple[bytes, bytes]]:
    """The entries of the serialized expression, which `_columns` describes."""
    _, (buffer,) = expression.__reduce__()
    yield from exported_metadata(pa.ipc.open_file(buffer).schema)
