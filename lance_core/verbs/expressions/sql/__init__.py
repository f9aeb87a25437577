"""SQL expressions over the columns of a dataset, compiled to Arrow expressions.

    SQL --parse--> tree --compile--> typed expression

Semantics are DataFusion's as pylance uses it; pylance's documentation lists the functions. Unknown constructs are
rejected with their name and position in the SQL. sqlglot is imported with this package, so import it on use.

A string is compiled once for the same columns, unless it may call a function of the current time: parsing takes as long
as reading 100,000 values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.extension_types import storage_type
from lance_core.schema import Schema, schema_to_arrow
from lance_core.verbs.expressions.sql.casts import cast
from lance_core.verbs.expressions.sql.compile import SqlCompiler
from lance_core.verbs.expressions.sql.typed import Typed
from lance_core.verbs.expressions.sql.zones import ZONES_ARE_WRITTEN, with_written_zones

_CLOCK: Final = re.compile("now|current", re.IGNORECASE)
_MOST_COMPILED: Final = 256
_SHOWN: Final = 100
"""Characters of a string that an error shows of one that can be very long."""
_Compiled = TypeVar("_Compiled")
_compiled_strings: dict[tuple[str, Callable[..., Any]], tuple[pa.Schema, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedColumn:
    """A column that is computed.

    Attributes:
        expression: The Arrow expression that computes it.
        type: Type of its values.
    """

    expression: pc.Expression
    type: pa.DataType


def parse_expression(sql: str, schema: pa.Schema | Schema) -> pc.Expression:
    """Compile an expression: a value or a condition.

    Args:
        sql: The SQL, for example `price * 1.2` or `name LIKE 'a%' AND day >= date '2024-01-01'`.
        schema: The columns that it can refer to. The result is for batches of their storage types.

    Raises:
        InvalidInputError: The string is not a valid SQL expression; the message has the position.
        SchemaError: A column does not exist; the message names those that do.
        UnsupportedError: The SQL has a function or syntax that is not supported; the message has its name and position.
    """
    return parse_column(sql, schema).expression


def parse_column(sql: str, schema: pa.Schema | Schema) -> ComputedColumn:
    """Compile an expression, and return it with the type of its values; as `parse_expression` otherwise."""
    compiled = _compile_cached(sql, schema)
    return ComputedColumn(expression=compiled.expression, type=compiled.type)


def parse_value(sql: str, schema: pa.Schema, kind: pa.DataType) -> pc.Expression:
    """Compile an expression to values for a column of a type, cast as by CAST.

    Arguments and errors are those of `parse_expression`. The values of a dictionary type have its value type; nested
    values are not cast.
    """
    value = _compile_cached(sql, schema)
    if value.type == kind or pa.types.is_nested(value.type) or pa.types.is_nested(kind):
        return value.expression
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return cast(value, kind).expression


def parse_filter(sql: str, schema: pa.Schema | Schema, *, assume_utc: bool = True) -> pc.Expression:
    """Compile a condition, with the errors of `parse_expression`.

    Args:
        sql: The SQL.
        schema: The columns that it can refer to.
        assume_utc: Whether times without a zone are UTC where they meet timestamps that have one.

    Raises:
        InvalidInputError: The expression is not a condition, or needs a zone that may not be assumed.
    """
    with _prefix_messages(), nullcontext() if assume_utc else with_written_zones():
        return _compile_once(sql, schema, _filter)[0]


def _filter(sql: str, columns: pa.Schema) -> tuple[pc.Expression, tuple[pc.Expression, ...]]:
    """The condition, and the parts of it that AND joins; the SQL is parsed once for both."""
    compiled, parts = SqlCompiler(sql, columns).condition()
    if not pa.types.is_boolean(compiled.type):
        raise InvalidInputError(f"the filter {sql!r} does not return a boolean but {compiled.type}")
    return compiled.expression, tuple(part.expression for part in parts)


def parse_conjuncts(sql: str, schema: pa.Schema | Schema) -> tuple[pc.Expression, ...]:
    """Compile a condition to the parts that AND joins: each is needed only for rows for which those before it are true.

    Arguments and errors are those of `parse_filter`.
    """
    with _prefix_messages():
        return _compile_once(sql, schema, _filter)[1]


@contextmanager
def _limit_depth(sql: str) -> Iterator[None]:
    """Reject SQL that nests deeper than Python's stack allows; lists and chains of AND and OR may be of any length."""
    try:
        yield
    except RecursionError:
        shown = sql if len(sql) <= _SHOWN else f"{sql[:_SHOWN]}..."
        raise InvalidInputError(f"the SQL expression is nested too deep: {shown!r}") from None


@contextmanager
def _prefix_messages() -> Iterator[None]:
    """Begin the messages of errors in filters with the words of pylance, which tools look for."""
    try:
        yield
    except (InvalidInputError, UnsupportedError) as error:
        raise type(error)(f"Invalid user input: {error}") from error


def _compile_cached(sql: str, schema: pa.Schema | Schema) -> Typed:
    return _compile_once(sql, schema, _compile_value)


def _compile_value(sql: str, columns: pa.Schema) -> Typed:
    if sql in columns.names:
        # A name that is no SQL, such as `odd name`, still names its column.
        return Typed(pc.field(sql), columns.field(sql).type)
    return SqlCompiler(sql, columns).compile()


def _compile_once(sql: str, schema: pa.Schema | Schema, make: Callable[[str, pa.Schema], _Compiled]) -> _Compiled:
    """Compile a string with `make`, over the columns in storage types, or return the result of an earlier call."""
    columns = schema_to_arrow(schema) if isinstance(schema, Schema) else schema
    cached_result = None if ZONES_ARE_WRITTEN.get() else _compiled_strings.get((sql, make))
    if cached_result is not None and cached_result[0] == columns:
        compiled_sql: _Compiled = cached_result[1]
        return compiled_sql
    stored = pa.schema([pa.field(field.name, storage_type(field.type)) for field in columns])
    with _limit_depth(sql):
        compiled_sql = make(sql, stored)
    if not _CLOCK.search(sql):
        if len(_compiled_strings) >= _MOST_COMPILED:
            _compiled_strings.clear()
        _compiled_strings[sql, make] = columns, compiled_sql
    return compiled_sql
