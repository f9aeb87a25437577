"""Checks that reject collated strings in conditions and keys that are compared without Spark.

    column s: string collate UTF8_LCASE      "s = 'a'"       Spark: 'a' and 'A'     by bytes: 'a' only
                                             "s is null"     the same

Lance's SQL and Arrow compare strings by their bytes. A condition on such a column would select other rows than in
Spark, so it is rejected before anything is read or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.extension_types import empty_table, storage_type
from pyspark_lance.engine.lexing import has_escapes, translate_strings
from pyspark_lance.engine.sessions import is_utc, session_zone
from pyspark_lance.keys.equality import collation
from pyspark_lance.lazy import SparkSession

ON_FRAME: Final = "put the condition on the DataFrame instead, by .where(...), which compares as Spark does"
"""The remedy for a condition of a read."""
PLAIN_SLICES: Final = (
    "slices need columns without one: make the table from a DataFrame with"
    " .withColumn(name, functions.collate(name, 'UTF8_BINARY'))"
)
"""The remedy for slices."""
_BINARY: Final = "UTF8_BINARY"
_DATAFUSION_CALL: Final = re.compile(r"\bdatafusion\.(\w+)\.[\w+/=]+\(")
"""How Arrow prints the call of a function that `lance_core` leaves to DataFusion."""
_OPAQUE: Final = pa.struct([pa.field("compared by a collation", pa.int8())])
"""A type whose values cannot be compared, but can be null."""


def comparable_filter(
    what: str, given_filter: Any, dataset: LanceDataset, *, assume_utc: bool, remedy: str, escapes: bool = True
) -> pc.Expression | None:
    """A condition that selects the same rows by bytes and in Spark, as an expression; None without one.

    Args:
        what: The argument, for the messages.
        given_filter: Lance's SQL, with strings as Spark SQL writes them, or an Arrow expression.
        dataset: The version whose rows it selects.
        assume_utc: Whether times without a zone are in UTC; otherwise they are rejected.
        remedy: What the caller can do instead of a condition that compares a column with a collation.
        escapes: Whether a backslash in a string is an escape, as in Spark by default.

    Raises:
        InvalidInputError: The condition is neither, is not SQL, or does not fit the columns.
        UnsupportedError: The condition compares a column that has a collation; the message names both.
    """
    if given_filter is None:
        return None
    if not isinstance(given_filter, str | pc.Expression):
        raise InvalidInputError(
            f"{what} is Lance's SQL or an Arrow expression, not {given_filter!r}; the frame's where takes a column"
        )
    condition = given_filter
    if isinstance(given_filter, str):
        condition = dataset.parse_filter(translate_strings(given_filter, escapes=escapes), assume_utc=assume_utc)
    check_fits(what, condition, dataset.schema)
    check_condition(what, condition, dataset.schema, remedy)
    return condition


def session_filter(
    what: str, given_filter: Any, dataset: LanceDataset, spark: SparkSession, remedy: str
) -> pc.Expression | None:
    """A condition of `comparable_filter`, by the time zone and the settings of a session."""
    in_utc, escapes = is_utc(session_zone(spark)), has_escapes(spark)
    return comparable_filter(what, given_filter, dataset, assume_utc=in_utc, remedy=remedy, escapes=escapes)


def check_condition(what: str, condition: pc.Expression | None, schema: pa.Schema, remedy: str) -> None:
    """Make sure that a condition selects the same rows by bytes and in Spark.

    Args:
        what: The argument, for the message.
        condition: The condition; None without one.
        schema: The columns, as they are stored.
        remedy: What the caller can do instead.

    Raises:
        UnsupportedError: The condition compares a column that has a collation, or calls a function of DataFusion, which
            tasks do not need to have; the message names it.
    """
    if condition is None:
        return
    foreign_call = _DATAFUSION_CALL.search(str(condition))
    if foreign_call is not None:
        raise UnsupportedError(
            f"{what}: tasks of Spark do not compute {foreign_call[1]}, which needs DataFusion; {remedy}"
        )
    for path in _find_collated_paths(schema):
        try:
            check_fits(what, condition, pa.schema([_hide_values(field, path) for field in schema]))
        except InvalidInputError:
            raise _make_collation_error(
                what, ".".join(path).replace(".[]", "[]"), collation(_at(schema, path)), remedy
            ) from None


def check_columns(what: str, fields: Iterable[pa.Field], remedy: str) -> None:
    """Make sure that no column has a collation, so that Spark compares all values by their bytes.

    Args:
        what: The argument that names the columns.
        fields: The columns, as they are stored.
        remedy: What the caller can do instead.

    Raises:
        UnsupportedError: A column has a collation; the message names both.
    """
    for field in fields:
        if collation(field) != _BINARY:
            raise _make_collation_error(what, field.name, collation(field), remedy)


def _make_collation_error(what: str, name: str, by: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what}: column {name!r} has the collation {by}, by which only Spark itself compares; {remedy}"
    )


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, or the items of a list as a field `[]`; none of other types."""
    if pa.types.is_struct(kind):
        return list(kind)
    return [kind.value_field.with_name("[]")] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []


def _find_collated_paths(fields: Iterable[pa.Field], around: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the columns, and of the fields and items inside of them, that have a collation."""
    for field in fields:
        path, inner = (*around, field.name), _inner_fields(field.type)
        yield from _find_collated_paths(inner, path)
        if not inner and collation(field) != _BINARY:
            yield path


def _at(fields: Iterable[pa.Field], path: tuple[str, ...]) -> pa.Field:
    field = next(field for field in fields if field.name == path[0])
    return field if len(path) == 1 else _at(_inner_fields(field.type), path[1:])


def _hide_values(field: pa.Field, path: tuple[str, ...]) -> pa.Field:
    """A column in which the values at a path have the type that cannot be compared."""
    if field.name != path[0]:
        return field
    if len(path) == 1:
        return field.with_type(_OPAQUE)
    inner = [_hide_values(child, path[1:]) for child in _inner_fields(field.type)]
    return field.with_type(pa.struct(inner) if pa.types.is_struct(field.type) else pa.list_(inner[0]))


def check_fits(what: str, condition: pc.Expression, schema: pa.Schema) -> None:
    """Make sure that Arrow can evaluate a condition over the rows of a table, by evaluating it over none.

    Args:
        what: The argument, for the message.
        condition: The condition.
        schema: The columns of the table.

    Raises:
        InvalidInputError: The condition does not fit the columns.
    """
    from pyarrow import acero  # noqa: PLC0415 - loads pandas, which tasks without a filter can do without

    stored = pa.schema([field.with_type(storage_type(field.type)) for field in schema])
    try:
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(empty_table(stored)))
        keep = acero.Declaration("filter", acero.FilterNodeOptions(condition))
        acero.Declaration.from_sequence([source, keep]).to_table()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"{what} {condition}: {error}") from error
