"""Checks that reject collated strings in conditions and keys that are compared without Spark.

    column s: string collate UTF8_LCASE      "s = 'a'"       Spark: 'a' and 'A'     by bytes: 'a' only
                                             "s is null"     the same

Lance's SQL and Arrow compare strings by their bytes. A condition on such a column would select other rows than in
Spark, so it is rejected before anything is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import UnsupportedError
from pyspark_lance.keys.equality import collation

__all__ = ["ON_FRAME", "check_columns", "check_condition"]

ON_FRAME: Final = "put the condition on the DataFrame instead, by .where(...), which compares as Spark does"
"""The remedy for a condition of a read."""
_BINARY: Final = "UTF8_BINARY"
_OPAQUE: Final = pa.struct([pa.field("compared by a collation", pa.int8())])
"""A type whose values cannot be compared, but can be null."""


def check_condition(what: str, condition: pc.Expression | None, schema: pa.Schema, remedy: str) -> None:
    """Make sure that a condition selects the same rows by bytes and in Spark.

    Args:
        what: The argument, for the message.
        condition: The condition; None without one.
        schema: The columns, as they are stored.
        remedy: What the caller can do instead.

    Raises:
        UnsupportedError: The condition compares a column that has a collation; the message names both.
    """
    if condition is None:
        return
    for path in _collated(schema):
        if not _fits(condition, pa.schema([_hidden(field, path) for field in schema])):
            raise _rejected(what, ".".join(path), collation(_at(schema, path)), remedy)


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
            raise _rejected(what, field.name, collation(field), remedy)


def _rejected(what: str, name: str, by: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what}: column {name!r} has the collation {by}, by which only Spark itself compares; {remedy}"
    )


def _collated(fields: Iterable[pa.Field], around: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the columns and fields of structs that have a collation."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _collated(field.type, (*around, field.name))
        elif collation(field) != _BINARY:
            yield (*around, field.name)


def _at(fields: pa.Schema | pa.StructType, path: tuple[str, ...]) -> pa.Field:
    field = fields.field(path[0])
    return field if len(path) == 1 else _at(field.type, path[1:])


def _hidden(field: pa.Field, path: tuple[str, ...]) -> pa.Field:
    """A column in which the values at a path have the type that cannot be compared."""
    if field.name != path[0]:
        return field
    if len(path) == 1:
        return field.with_type(_OPAQUE)
    return field.with_type(pa.struct([_hidden(child, path[1:]) for child in field.type]))


def _fits(condition: pc.Expression, schema: pa.Schema) -> bool:
    """Whether Arrow can evaluate a condition over columns of these types."""
    from pyarrow import acero  # noqa: PLC0415 - loads pandas

    try:
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(schema.empty_table()))
        keep = acero.Declaration("filter", acero.FilterNodeOptions(condition))
        acero.Declaration.from_sequence([source, keep]).to_table()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError):
        return False
    return True
