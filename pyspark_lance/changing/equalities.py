"""The equalities between a table expression and a source expression that the condition of a merge requires.

    t.id = s.id AND lower(t.s) <=> s.k AND t.x > s.x
    -----------     ----------------     ---------
    id = s.id       lower(t.s) <=> s.k   no equality

A condition is split at its ANDs: SQL by its tokens, a Spark `Column` by its function calls. The names in an expression
show whether it belongs to the table or to the source. Where the names leave that open, Spark decides: the expression
belongs to the only side on which Spark can resolve it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lance_core.errors import InvalidInputError
from pyspark_lance.changing.struct_values import Value, as_column
from pyspark_lance.engine.errors import without_error_log
from pyspark_lance.engine.lexing import blank_comments
from pyspark_lance.engine.spark_internals import called_function, column_path, expression_text, names_of_column
from pyspark_lance.types.column_names import match_names, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EQUAL: Final = {"=": False, "==": False, "<=>": True, "equal_null": True}
"""Operators and functions of Spark that test equality, and whether a null equals a null in them."""
_WORDS: Final = ("AND", "OR", "NOT", "EXISTS", "BETWEEN", "IN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP")
_SIGNS: Final = ("!", "<", ">", "<=", ">=", "<>", "!=", "!<", "!>", "->", "=>", "?", ",")
_LOOSER: Final = frozenset((*_WORDS, *_SIGNS))
"""Tokens that bind as loosely as a comparison, or more loosely."""
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
    sides = _Sides(source, target, alias, exact=exact)
    pairs = []
    for part in split_conjuncts(condition):
        for left, right, is_null_safe in _split_comparisons(part):
            kinds = sides.of(left), sides.of(right)
            if set(kinds) != {"source", "target"}:
                continue
            table_value, source_value = (left, right) if kinds[0] == "target" else (right, left)
            path = path_of(table_value) or ()
            table_names = match_names(path[-1:], names, exact=exact) if len(path) in (1, 2) else {}
            is_column = bool(table_names) and (len(path) == 1 or sides.is_target(path[0]))
            column = table_names[path[-1]] if is_column else None
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
    dots = [token.text == "." and token.kind == "DOT" for token in tokens[1::2]]
    if len(names) != len(dots) + 1 or not all(dots) or not all(token.is_name for token in names):
        return None
    return tuple(token.name for token in names)


def _split_comparisons(part: Value) -> Iterator[tuple[Value, Value, bool]]:
    """Yield both sides of a comparison, and whether a null equals a null."""
    if not isinstance(part, str):
        name, arguments = called_function(part) or ("", ())
        if name in _EQUAL and len(arguments) == 2:
            yield arguments[0], arguments[1], _EQUAL[name]
        return
    tokens = _tokens(part)
    plain = [token for token, depth in _measure_depths(tokens) if not depth]
    signs = [token for token in plain if token.word in _EQUAL]
    if len(signs) == 1 and not any(token.word in _LOOSER for token in plain):
        sign = signs[0]
        left, right = part[tokens[0].start : sign.start].strip(), part[sign.end : tokens[-1].end].strip()
        if left and right:
            yield left, right, _EQUAL[sign.word]


class _Sides:
    """Decides for each expression whether it belongs to the table or to the source."""

    def __init__(self, source: DataFrame, target: DataFrame, alias: str, *, exact: bool) -> None:
        self._frames = {"target": target, "source": source}
        self._exact = exact
        self._kinds = {
            side: {self._folded(field.name): field.dataType.typeName() for field in frame.schema}
            for side, frame in self._frames.items()
        }
        self._alias = self._folded(alias)

    def _folded(self, name: str) -> str:
        return name if self._exact else name.lower()

    def is_target(self, name: str) -> bool:
        """Whether a name is the alias of the table."""
        return self._folded(name) == self._alias

    def of(self, value: Value) -> str | None:
        """The side of an expression; None for a constant, and for an expression that fits both sides."""
        texts = [value] if isinstance(value, str) else names_of_column(value)
        if texts is not None and not any(_OPAQUE.search(text) for text in texts):
            possible_sides = {side for text in texts for path in _paths(text) for side in self._of_name(path)}
            if len(possible_sides) < 2:
                return next(iter(possible_sides), None)
        sides = [side for side, frame in self._frames.items() if _resolves(frame, value)]
        return sides[0] if len(sides) == 1 else None

    def _of_name(self, path: Sequence[str]) -> list[str]:
        """The sides that a name may belong to; none for keywords."""
        first = self._folded(path[0])
        if len(path) == 1:
            return [side for side, kinds in self._kinds.items() if first in kinds]
        if first == self._alias:
            return ["target"]
        if self._kinds["target"].get(first) not in ("struct", "map", "array"):
            return ["source"]  # qualified by the source's alias, or a field of one of its columns
        is_source = _resolves(self._frames["source"], ".".join(map(quoted, path)))
        return ["source" if is_source else "target"]


_OPAQUE: Final = re.compile(r"\bselect\b|\.\s*\*", re.IGNORECASE)
"""Subqueries, and `*` for all columns of a side: the names in such an expression are not known."""


def _paths(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the parts of each possible column name in an expression; names of functions are left out."""
    tokens = [*_tokens(text), _Lexeme(kind="END", text="", start=0, end=0)]
    path: list[str] = []
    for before, token in zip([tokens[-1], *tokens], tokens, strict=False):
        if token.is_name and path and before.text == ".":
            path.append(token.name)
        elif token.is_name:
            if path:
                yield tuple(path)
            path = [token.name]
        elif token.text != ".":
            if path and token.text != "(":
                yield tuple(path)
            path = []


def _resolves(frame: DataFrame, value: Value) -> bool:
    from pyspark.errors import PySparkException

    try:
        with without_error_log():
            frame.select(as_column(value)).schema  # noqa: B018 - Spark resolves the names
    except PySparkException:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lexeme:
    kind: str
    text: str
    start: int
    end: int

    @property
    def is_name(self) -> bool:
        return self.kind == "IDENTIFIER" or ((self.text[:1].isalpha() or self.text[:1] == "_") and self.word != "")

    @property
    def name(self) -> str:
        return self.text[1:-1].replace("``", "`") if self.text.startswith("`") else self.text

    @property
    def word(self) -> str:
        """A word in upper case, or a sign; empty for strings and for names in backticks."""
        return "" if self.text[:1] in "`'\"" or self.kind.endswith("STRING") else self.text.upper()


def _tokens(text: str) -> list[_Lexeme]:
    import sqlglot  # noqa: PLC0415 - loads for half a second

    if "${" in text:
        return []  # Spark replaces it by the value of a setting
    try:
        sqlglot_tokens = sqlglot.tokenize(blank_comments(text), read="spark")
    except (sqlglot.errors.SqlglotError, RecursionError, InvalidInputError):
        return []  # Spark reports the error
    return [
        _Lexeme(
            kind=token.token_type.name, text=text[token.start : token.end + 1], start=token.start, end=token.end + 1
        )
        for token in sqlglot_tokens
    ]


def _measure_depths(tokens: Sequence[_Lexeme]) -> Iterator[tuple[_Lexeme, int]]:
    """Yield each token with its depth in parentheses and CASEs; a closing token has the depth of the inside."""
    open_: list[str] = []
    before = ""
    for token in tokens:
        is_word = before != "."  # a field may be called `end`
        yield token, len(open_)
        if token.word in _OPENING or (is_word and token.word == "CASE"):
            open_.append(token.word)
        elif token.word in _CLOSING or (is_word and token.word == "END" and open_[-1:] == ["CASE"]):
            del open_[-1:]
        before = token.word


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a condition that AND joins, without parentheses around them."""
    tokens = _tokens(text)
    depths = [depth for _, depth in _measure_depths(tokens)]
    if len(tokens) > 2 and tokens[0].word == "(" and tokens[-1].word == ")" and min(depths[1:]) > 0:
        yield from _split(text[tokens[1].start : tokens[-2].end])
        return
    ands = list(_find_joining_ands(tokens, depths))
    if not ands:
        yield text
        return
    for start, end in zip([-1, *ands], [*ands, len(tokens)], strict=True):
        if end > start + 1:
            yield from _split(text[tokens[start + 1].start : tokens[end - 1].end])


def _find_joining_ands(tokens: Sequence[_Lexeme], depths: Sequence[int]) -> Iterator[int]:
    """Yield the position of each AND that joins the conditions; none if an OR joins some of them."""
    plain = [index for index, depth in enumerate(depths) if not depth and (not index or tokens[index - 1].word != ".")]
    if any(tokens[index].word == "OR" for index in plain):
        return
    is_range = False
    for index in plain:
        if tokens[index].word == "AND" and not is_range:
            yield index
        is_range = tokens[index].word == "BETWEEN" or (is_range and tokens[index].word != "AND")
