"""The equalities between a table expression and a source expression that the condition of a merge requires.

    t.id = s.id AND lower(t.s) <=> s.k AND t.x > s.x
    -----------     ----------------     ---------
    id = s.id       lower(t.s) <=> s.k   no equality

A condition is split at its ANDs: SQL by its tokens, a Spark `Column` by its function calls. An expression belongs to
the only side on which Spark can resolve it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lance_core.errors import InvalidInputError
from pyspark_lance.changing.struct_values import Value, as_column
from pyspark_lance.engine.errors import without_error_log
from pyspark_lance.engine.lexing import SIGN, Token, tokens_of
from pyspark_lance.engine.spark_internals import called_function, column_path, expression_text
from pyspark_lance.lazy import DataFrame
from pyspark_lance.types.column_names import match_names

_EQUAL: Final = {"=": False, "==": False, "<=>": True, "equal_null": True}
"""Operators and functions of Spark that test equality, and whether a null equals a null in them."""
_WORDS: Final = ("AND", "OR", "NOT", "EXISTS", "BETWEEN", "IN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP")
_SIGNS: Final = ("!", "<", ">", "<=", ">=", "<>", "!=", "!<", "!>", "->", "=>", "?", ",")
_LOOSER: Final = frozenset((*_WORDS, *_SIGNS))
"""Tokens that bind as loosely as a comparison, or more loosely."""
_OPERATORS: Final = frozenset("<=>!")
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """An equality that a condition requires.

    Attributes:
        target: The expression of the table.
        source: The expression of the source.
        column: The column, if `target` is a column of the table; None for other expressions.
        is_null_safe: Whether a null equals a null.
    """

    target: Value
    source: Value
    column: str | None
    is_null_safe: bool


def find_equalities(
    condition: Value, source: DataFrame, target: DataFrame, names: Sequence[str], *, alias: str, exact: bool
) -> list[Equality]:
    """The equalities that a condition requires.

    Args:
        condition: The condition, in Spark SQL or as a column.
        source: The source.
        target: A frame with the table's columns, under its alias.
        names: The columns of the table.
        alias: The name that qualifies the columns of the table.
        exact: Whether case matters.
    """
    # In a merge, the alias names the table, also where the source has a struct of that name.
    structs = [field.name for field in source.schema if field.dataType.typeName() == "struct"]
    frames = {"target": target, "source": source.drop(*(name for name in structs if name.lower() == alias.lower()))}
    pairs = []
    for part in split_conjuncts(condition):
        for left, right, is_null_safe in _split_comparisons(part):
            kinds = _find_side(left, frames), _find_side(right, frames)
            if set(kinds) != {"source", "target"}:
                continue
            table_value, source_value = (left, right) if kinds[0] == "target" else (right, left)
            path = path_of(table_value) or ()
            table_names = match_names(path[-1:], names, exact=exact) if len(path) in (1, 2) else {}
            is_qualified = len(path) == 2 and (path[0] == alias or (not exact and path[0].lower() == alias.lower()))
            column = table_names[path[-1]] if table_names and (len(path) == 1 or is_qualified) else None
            pairs.append(Equality(target=table_value, source=source_value, column=column, is_null_safe=is_null_safe))
    return pairs


def split_conjuncts(condition: Value) -> list[Value]:
    """The conditions that AND joins into a condition."""
    if isinstance(condition, str):
        return list(_split(condition))
    text = expression_text(condition)
    if text is not None:
        return split_conjuncts(text)
    name, arguments = called_function(condition) or ("", ())
    return [conjunct for part in arguments for conjunct in split_conjuncts(part)] if name == "and" else [condition]


def path_of(value: Value) -> tuple[str, ...] | None:
    """The parts of a name, if an expression is just a name; None for other expressions."""
    if not isinstance(value, str):
        text = expression_text(value)
        return column_path(value) if text is None else path_of(text)
    tokens = _tokens(value)
    names = tokens[::2]
    dots = [token.text == "." for token in tokens[1::2]]
    if len(names) != len(dots) + 1 or not all(dots) or not all(token.is_name for token in names):
        return None
    return None if names[0].text[0].isdigit() else tuple(token.value for token in names)


def _split_comparisons(part: Value) -> Iterator[tuple[Value, Value, bool]]:
    """Yield both sides of a comparison, and whether a null equals a null."""
    if not isinstance(part, str):
        name, arguments = called_function(part) or ("", ())
        if name in _EQUAL and len(arguments) == 2:
            yield arguments[0], arguments[1], _EQUAL[name]
        return
    tokens = _tokens(part)
    plain = [token for token, depth in _measure_depths(tokens) if not depth]
    signs = [token for token in plain if token.upper in _EQUAL]
    if len(signs) == 1 and not any(token.upper in _LOOSER for token in plain):
        sign = signs[0]
        left, right = part[tokens[0].start : sign.start].strip(), part[sign.end : tokens[-1].end].strip()
        if left and right:
            yield left, right, _EQUAL[sign.upper]


def _find_side(value: Value, frames: Mapping[str, DataFrame]) -> str | None:
    """The only side on which Spark resolves an expression; None for a constant, and for an expression of both sides."""
    sides = [side for side, frame in frames.items() if _resolves(frame, value)]
    if len(sides) == 2 and len(path_of(value) or ()) > 1:
        return "source"  # qualified by the source's alias, which is also a struct of the table
    return sides[0] if len(sides) == 1 else None


def _resolves(frame: DataFrame, value: Value) -> bool:
    from pyspark.errors import PySparkException

    try:
        with without_error_log():
            frame.select(as_column(value)).schema  # noqa: B018 - Spark resolves the names
    except PySparkException:
        return False
    return True


def _tokens(text: str) -> list[Token]:
    """The tokens of an expression, with operators of several characters as one; none if it is not understood."""
    if "${" in text:
        return []  # Spark replaces it by the value of a setting
    try:
        tokens = tokens_of(text)
    except InvalidInputError:
        return []  # Spark reports the error
    merged: list[Token] = []
    for token in tokens:
        last = merged[-1] if merged else None
        if last is not None and last.end == token.start and {*last.text, *token.text} <= _OPERATORS:
            merged[-1] = Token(SIGN, last.text + token.text, last.start)
        else:
            merged.append(token)
    return merged


def _measure_depths(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Yield each token with its depth in parentheses and CASEs; a closing token has the depth of the inside."""
    open_: list[str] = []
    before = ""
    for token in tokens:
        is_word = before != "."  # a field may be called `end`
        yield token, len(open_)
        if token.upper in _OPENING or (is_word and token.upper == "CASE"):
            open_.append(token.upper)
        elif token.upper in _CLOSING or (is_word and token.upper == "END" and open_[-1:] == ["CASE"]):
            del open_[-1:]
        before = token.upper


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a condition that AND joins, without parentheses around them."""
    tokens = _tokens(text)
    depths = [depth for _, depth in _measure_depths(tokens)]
    if len(tokens) > 2 and tokens[0].upper == "(" and tokens[-1].upper == ")" and min(depths[1:]) > 0:
        yield from _split(text[tokens[1].start : tokens[-2].end])
        return
    ands = list(_find_joining_ands(tokens, depths))
    if not ands:
        yield text
        return
    for start, end in zip([-1, *ands], [*ands, len(tokens)], strict=True):
        if end > start + 1:
            yield from _split(text[tokens[start + 1].start : tokens[end - 1].end])


def _find_joining_ands(tokens: Sequence[Token], depths: Sequence[int]) -> Iterator[int]:
    """Yield the position of each AND that joins the conditions; none if an OR joins some of them."""
    plain = [index for index, depth in enumerate(depths) if not depth and (not index or tokens[index - 1].upper != ".")]
    if any(tokens[index].upper == "OR" for index in plain):
        return
    is_range = False
    for index in plain:
        if tokens[index].upper == "AND" and not is_range:
            yield index
        is_range = tokens[index].upper == "BETWEEN" or (is_range and tokens[index].upper != "AND")
