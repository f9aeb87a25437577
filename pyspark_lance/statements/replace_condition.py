"""The condition of REPLACE WHERE: comparisons of columns with constants, which mean the same to Spark and to Lance.

day = 1 AND name IN ('a', 'it''s') OR NOT (x BETWEEN 1 AND 3)   accepted, and evaluated as Lance's SQL
x / 2 > 1, upper(s) = 'A', x = '1'                              rejected: Spark divides and casts differently
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lance_core.errors import InvalidInputError
from pyspark_lance.engine.lexing import STRING, blank_comments, is_plain, parse_sql, replace_strings, tokens_of
from pyspark_lance.reading.filter_pushdown import NotPushedError, split_comparison
from pyspark_lance.statements.parameters import bind_parameters, is_in_zone, literal, parameters_in, replace_parts
from pyspark_lance.types.column_names import match_names

_ZONED: Final = re.compile(r".*:.*(Z|UTC|[+-]\d\d(:?\d\d)?)", re.DOTALL)
"""A time with a zone that Spark and Lance read alike."""


def replace_condition(
    text: str,
    params: Mapping[str, Any],
    schema: pa.Schema,
    *,
    exact: bool,
    usual: bool = True,
    zone: str | None = None,
    escapes: bool = True,
) -> str:
    """The condition with its parameters bound, which Spark and `write(replace_where=)` evaluate alike.

    Args:
        text: The condition.
        params: The values of its parameters.
        schema: The columns of the table.
        exact: Whether case matters in names.
        usual: Whether no setting of the session changes what constants mean.
        zone: The zone of the session; None if it takes a time without a zone for a TIMESTAMP_NTZ.
        escapes: Whether a backslash in a string is an escape in the session.

    Raises:
        InvalidInputError: The condition is more than comparisons of columns with constants of their kind, or a
            parameter has no value.
    """
    text = blank_comments(text)
    if "${" in text or not (usual or is_plain(text)):
        raise _make_rejection(text)
    for _, _, name in parameters_in(text) if zone is not None else ():
        value = params.get(name)
        if isinstance(value, dt.datetime) and value.tzinfo is None and not is_in_zone(name, value, str(zone)):
            raise InvalidInputError(
                f"REPLACE WHERE: parameter :{name} has no zone, and {value} is one time in the zone of this process and"
                f" another in that of the session ({zone}): write it into the condition, or give it as a string."
                " Nothing was done"
            )
    whole = replace_parts(text, bind_parameters(text, params, partial(_literal, escapes=escapes)))
    # The parser reads quotes and backslashes in another way.
    plain = replace_strings(whole, lambda value: "'" + re.sub(r"""['"\\]""", "", value) + "'")
    # A setting makes a string in double quotes a name.
    is_double = any(token.kind == STRING and '"' in token.text[:2] for token in tokens_of(whole))
    tree = parse_sql(plain)
    if is_double or tree is None or not _is_known(tree, schema, exact=exact):
        raise _make_rejection(text)
    return _without_types(whole)


def _without_types(text: str) -> str:
    """A condition in which times with a zone are strings: a typed constant of Lance's SQL has no zone."""
    changes = []
    for word, string in itertools.pairwise(tokens_of(text)):
        is_typed = word.upper in ("TIMESTAMP", "TIMESTAMP_LTZ") and string.kind == STRING
        if is_typed and _ZONED.fullmatch(string.value.strip()):
            value = re.sub(r"\s*(UTC|Z)$", "Z", string.value.strip()).replace("'", "''")
            changes.append((word.start, string.end, f"'{value}'"))
    return replace_parts(text, changes)


def _literal(name: str, value: Any, *, escapes: bool) -> str:
    """A value as a literal."""
    if isinstance(value, str):
        plain = str.__str__(value).replace("'", "''")
        return "'" + (plain.replace("\\", "\\\\") if escapes else plain) + "'"
    if isinstance(value, dt.datetime):
        return f"timestamp '{dt.datetime.isoformat(value, sep=' ')}'"
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        return literal(name, value)
    if isinstance(value, int):
        return f"({int.__int__(value)})"
    if not math.isfinite(value):
        return literal(name, value)  # a cast, which `_check` rejects for numbers
    shown = float.__repr__(value) if isinstance(value, float) else decimal.Decimal.__format__(value, "f")
    return f"({shown})"


def _make_rejection(text: str) -> InvalidInputError:
    return InvalidInputError(
        f"REPLACE WHERE {text}: the condition compares columns of the table with constants of their type, joined by"
        " AND, OR and NOT; for anything else, DELETE and then INSERT, or let pyspark_lance.write(replace_where=...)"
        " read it as Lance's SQL. Nothing was done"
    )


def _is_known(tree: Any, schema: pa.Schema, *, exact: bool) -> bool:
    kind = type(tree).__name__.upper()
    if kind in ("PAREN", "NOT"):
        return _is_known(tree.this, schema, exact=exact)
    if kind in ("AND", "OR"):
        return all(_is_known(operand, schema, exact=exact) for operand in (tree.this, tree.expression))
    if kind == "COLUMN":
        column_type = _type(tree, schema, exact=exact)
        return column_type is not None and bool(pa.types.is_boolean(column_type))
    try:
        _, side, constants = split_comparison(tree)
    except NotPushedError:
        return False
    column_type = _type(side, schema, exact=exact)
    return column_type is not None and all(_fits(constant, column_type) for constant in constants)


def _type(tree: Any, schema: pa.Schema, *, exact: bool) -> pa.DataType | None:
    """The type of a column of the table; None for anything else."""
    if type(tree).__name__ != "Column" or len(tree.parts) != 1:
        return None
    name = match_names([tree.name], schema.names, exact=exact).get(tree.name)
    return None if name is None else schema.field(name).type


def _fits(tree: Any, column: pa.DataType) -> bool:
    """Whether a constant is of the kind of a column."""
    kind, types = type(tree).__name__.upper(), pa.types
    if kind == "PAREN":
        return _fits(tree.this, column)
    if kind == "NEG":
        return not tree.this.is_string and _fits(tree.this, column)
    if kind == "BOOLEAN":
        return bool(types.is_boolean(column))
    if kind == "CAST":
        to = tree.to.sql("spark").upper()
        is_same_kind = (
            types.is_date(column) if to == "DATE" else types.is_timestamp(column) and to.startswith("TIMESTAMP")
        )
        is_string = type(tree.this).__name__ == "Literal" and tree.this.is_string
        return bool(is_same_kind and is_string and _fits(tree.this, column))
    if kind == "HEXSTRING":
        return bool(types.is_binary(column) or types.is_large_binary(column))
    if kind != "LITERAL":
        return False
    if tree.is_string and types.is_timestamp(column):
        return bool(_ZONED.fullmatch(tree.name.strip())) is (column.tz is not None)
    if tree.is_string:
        is_string = types.is_string(column) or types.is_large_string(column)
        return bool(is_string or types.is_date(column))
    return bool(types.is_integer(column) or types.is_floating(column) or types.is_decimal(column))
