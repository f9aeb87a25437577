"""Register with Arrow, and call, functions that it has no kernel for: they get whole arrays.

Arrow finds a function by its name, and a name has one signature. So a name states the function and its types, by which
a process that gets an expression from another process can register the functions that the expression calls:

    lance.<function>.<the types of the arguments and of the result: a serialized Arrow schema, as base64>
    datafusion.<function>.<the same>

The last argument of the latter is DataFusion's SQL over x0, x1, ..., as bytes after `SQL_MARK`, which `format_expr`
leaves out. So conditions that differ in it alone share a function: Arrow keeps each function until the process ends.

An implementation in Python gets the type of its result, and arrays of the same length; null arguments give null.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import ROUND_DOWN, Context, Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, LanceError, UnsupportedError
from lance_core.verbs.expressions.printed import SQL_MARK
from lance_core.verbs.expressions.sql.functions_json import JSON_FUNCTIONS
from lance_core.verbs.expressions.sql.typed import Typed, call, literal

if TYPE_CHECKING:
    from datafusion import DataFrame, SessionContext

PREFIXES: Final = ("lance.", "datafusion.")

_MOST_ROWS: Final = 1 << 20
"""Rows that DataFusion gives at once: a batch is not cut."""
_MISMATCH: Final = re.compile("No function matches .*")
_registered: set[str] = set()


def python_call(function: str, arguments: Sequence[Typed], kind: pa.DataType, *, sql: str | None = None) -> Typed:
    """A call of one of `IMPLEMENTATIONS`, or of DataFusion's SQL, whose result has type `kind`."""
    types = [*(argument.type for argument in arguments), kind]
    fields = [pa.field(str(position), argument_type) for position, argument_type in enumerate(types)]
    prefix = PREFIXES[sql is not None]
    name = f"{prefix}{function}.{base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode()}"
    register([name])
    return call(name, [*arguments, *([] if sql is None else [literal(SQL_MARK + sql.encode(), pa.binary())])], kind)


def register(names: Iterable[str]) -> None:
    """Make these functions known to Arrow in this process."""
    for name in names:
        if name in _registered or not name.startswith(PREFIXES):
            continue
        _, function, encoded = name.split(".", 2)
        *types, kind = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded))).types
        arguments = {f"x{position}": argument_type for position, argument_type in enumerate(types)}
        documentation = {"summary": function, "description": function}
        if name.startswith(PREFIXES[1]):
            arguments["sql"] = pa.binary()
            implementation: Callable[..., Any] = partial(_compute, function, kind)
        else:
            implementation = _adapt(function, IMPLEMENTATIONS[function], kind)
        pc.register_scalar_function(implementation, name, documentation, arguments, kind)
        _registered.add(name)


def _compute(name: str, kind: pa.DataType, context: Any, *arguments: Any) -> pa.Array:
    """Evaluate the SQL that is the last argument."""
    if not context.batch_length:
        return pa.array([], kind)
    sql = arguments[-1] if isinstance(arguments[-1], pa.Scalar) else arguments[-1][0]
    arrays = _as_arrays(context, arguments[:-1])
    return evaluate_sql(name, sql.as_py().removeprefix(SQL_MARK).decode(), arrays, context.batch_length).cast(kind)


def type_of_sql(name: str, sql: str, types: Sequence[pa.DataType]) -> pa.DataType:
    """The type that `evaluate_sql` gives for columns of types; nothing is evaluated."""
    session = open_session(f"the function {name}")
    with _name_errors(name):
        plan = _plan(session, sql, [pa.array([], kind) for kind in types], 0).optimized_logical_plan()
        return session.create_dataframe_from_logical_plan(plan).schema().field(0).type


def evaluate_sql(name: str, sql: str, arrays: Sequence[pa.Array], num_rows: int) -> pa.Array:
    """The values of an expression of DataFusion over columns x0, x1, ...

    Raises:
        InvalidInputError: The expression does not fit the columns, or fails for some value.
        UnsupportedError: DataFusion is not installed.
    """
    session = open_session(f"the function {name}")
    with _name_errors(name):
        return _plan(session, sql, arrays, num_rows).to_arrow_table().column(0).combine_chunks()


def _plan(session: SessionContext, sql: str, arrays: Sequence[pa.Array], num_rows: int) -> DataFrame:
    columns = {f"x{position}": array for position, array in enumerate(arrays)} or {"x0": pa.nulls(num_rows)}
    frame = session.read_batch(pa.record_batch(columns))
    return frame.select(frame.parse_sql_expr(sql).alias("value"))


@contextmanager
def _name_errors(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # DataFusion has no other type for its errors
        message = str(error).removeprefix("DataFusion error: ").removeprefix("Execution error: ")
        mismatch = _MISMATCH.search(message)  # without the list of all signatures
        why = message if mismatch is None else mismatch[0]
        raise InvalidInputError(f"the function {name} cannot be evaluated: {why}") from error


def open_session(what: str) -> SessionContext:
    """DataFusion's session.

    Raises:
        UnsupportedError: DataFusion is not installed; the message names what needs it.
    """
    try:
        return _session()
    except ImportError as error:
        raise UnsupportedError(f"{what} needs DataFusion: pip install 'lance-dagster[sql]'") from error


@lru_cache(maxsize=1)
def _session() -> SessionContext:
    from datafusion import SessionConfig, SessionContext  # noqa: PLC0415 - an extra, and half a second

    return SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(_MOST_ROWS))


def _adapt(name: str, function: Callable[..., Any], kind: pa.DataType) -> Callable[..., pa.Array]:
    """Adapt a function to Arrow's calling convention: a context comes first, then scalars and arrays mixed."""

    def adapted(context: Any, *arguments: Any) -> pa.Array:
        try:
            result = function(kind, *_as_arrays(context, arguments))
            return result if isinstance(result, pa.Array) else pa.array(result, kind)
        except (LanceError, pa.ArrowException):
            raise
        except (ValueError, ArithmeticError) as error:
            raise InvalidInputError(f"the function {name} cannot be evaluated: {error}") from error

    return adapted


def _as_arrays(context: Any, arguments: Sequence[Any]) -> list[pa.Array]:
    return [
        pa.repeat(argument, context.batch_length) if isinstance(argument, pa.Scalar) else argument
        for argument in arguments
    ]


_WIDE: Final = Context(prec=80, rounding=ROUND_DOWN)


def _map_rows(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Apply a function of Python values to each row; the result is null if an argument is null."""

    def over_rows(_kind: pa.DataType, *arrays: pa.Array) -> list[Any]:
        columns = [array.to_pylist() for array in arrays]
        return [None if None in row else function(*row) for row in zip(*columns, strict=True)]

    return over_rows


def _remainder(kind: pa.DataType, *arrays: pa.Array) -> pa.Array:
    """The remainder of two numbers as in C, which has the sign of the first; Arrow has no kernel for it."""
    numbers, divisors = arrays
    if pa.types.is_integer(kind) and pc.any(pc.and_(pc.equal(divisors, 0), numbers.is_valid())).as_py():
        raise InvalidInputError("Divide by zero error")
    with np.errstate(all="ignore"):
        values = np.fmod(*(array.fill_null(0).to_numpy(zero_copy_only=False) for array in arrays))
    nulls = [array.is_null().to_numpy(zero_copy_only=False) for array in arrays if array.null_count]
    return pa.array(values, kind, mask=np.logical_or.reduce(nulls) if nulls else None)


def _float_order(_kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Integers that compare as the floats do in SQL: negative numbers, -0.0, 0.0, positive numbers, NaN."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    width = f"i{numbers.dtype.itemsize}"
    bits = numbers.view(width)
    # The bits of a negative number without its sign, inverted: the larger it is, the lower.
    order = np.where(bits < 0, bits ^ np.iinfo(width).max, bits).astype(np.int64)
    order[np.isnan(numbers)] = np.iinfo(np.int64).max
    missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    return pa.array(order, pa.int64(), mask=missing)


def _map_decimals(function: Callable[[Decimal, Decimal], Decimal]) -> Callable[..., list[Decimal | None]]:
    """Apply a function of two decimals to each row; digits beyond the scale of the result are cut off."""

    def over_rows(kind: pa.DataType, left: pa.Array, right: pa.Array) -> list[Decimal | None]:
        step = Decimal(1).scaleb(-kind.scale)
        return [
            None if first is None or second is None else _WIDE.quantize(function(first, second), step)
            for first, second in zip(left.to_pylist(), right.to_pylist(), strict=True)
        ]

    return over_rows


def _check_divisor(function: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Decimal, Decimal], Decimal]:
    def divided(left: Decimal, right: Decimal) -> Decimal:
        if not right:
            raise InvalidInputError("Divide by zero error")
        return function(left, right)

    return divided


def _change_case(kernel: str, function: Callable[[str], str]) -> Callable[..., Any]:
    """Upper or lower case: by Arrow for ASCII, else in Python, where one character may become several."""

    def over_rows(kind: pa.DataType, strings: pa.Array) -> Any:
        if pc.all(pc.string_is_ascii(strings), min_count=0).as_py():
            return pc.call_function(kernel, [strings])
        return pa.array([None if string is None else function(string) for string in strings.to_pylist()], kind)

    return over_rows


def _string_to_date(kind: pa.DataType, strings: pa.Array) -> pa.Array:
    """The dates of strings that may have a time, which is cut off, and a zone."""
    try:
        return strings.cast(kind)
    except pa.ArrowInvalid:
        moments = pa.concat_arrays([_moment(strings[position : position + 1]) for position in range(len(strings))])
        return moments.cast(pa.date32()).cast(kind)


def _moment(string: pa.Array) -> pa.Array:
    try:
        return string.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return string.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))


def _array_has(_kind: pa.DataType, lists: pa.Array, values: pa.Array) -> list[bool | None]:
    pairs = zip(lists.to_pylist(), values.to_pylist(), strict=True)
    return [None if items is None or value is None else _has(items, value) for items, value in pairs]


def _has(items: Sequence[Any], item: Any) -> bool:
    """Whether an item is in a list, in which NaN equals NaN."""
    return item in items if item == item else any(each != each for each in items)  # noqa: PLR0124 - NaN alone is not itself


IMPLEMENTATIONS: Final[dict[str, Callable[..., Any]]] = {
    "array_has": _array_has,
    "array_has_all": _map_rows(lambda items, searched_items: all(_has(items, item) for item in searched_items)),
    "array_has_any": _map_rows(lambda items, searched_items: any(_has(items, item) for item in searched_items)),
    "decimal_add": _map_decimals(_WIDE.add),
    "decimal_multiply": _map_decimals(_WIDE.multiply),
    "decimal_quotient": _map_decimals(_check_divisor(_WIDE.divide)),
    "decimal_remainder": _map_decimals(_check_divisor(_WIDE.remainder)),
    "decimal_subtract": _map_decimals(_WIDE.subtract),
    "float_order": _float_order,
    **{name: _map_rows(function) for name, (_, function) in JSON_FUNCTIONS.items()},
    "lower": _change_case("utf8_lower", str.lower),
    "remainder": _remainder,
    "string_to_date": _string_to_date,
    "upper": _change_case("utf8_upper", str.upper),
}
