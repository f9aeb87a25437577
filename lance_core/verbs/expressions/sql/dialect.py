"""Parse SQL expressions in pylance's dialect with sqlglot, and report errors by their position.

Names are bare or in back-ticks; both 'single' and "double" quotes make strings. `==` is `=`. Functions keep their names
and arguments as written: `functions.py` knows which ones exist, the parser does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, NoReturn

from sqlglot import exp, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from lance_core.errors import InvalidInputError, LanceError, UnsupportedError, UnsupportedExpressionError
from lance_core.verbs.expressions.sql.words import with_names

_OWN_SYNTAX = frozenset({"CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "POSITION", "CEIL", "FLOOR"})
_MARK = " "
"""Prefix of function names, which keeps the parser from recognising them."""
_MISSING_PART = re.compile(r"Required keyword: '\w+' missing for <class '[^']*'>")
_QUERIES = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.VALUES})


class _Lance(Dialect):
    """Pylance's dialect of SQL, for sqlglot."""

    class Tokenizer(tokens.Tokenizer):
        """The quotes of strings and names; no word begins a command."""

        QUOTES: ClassVar[list[str | tuple[str, str]]] = ["'", '"']
        STRING_ESCAPES: ClassVar[list[str]] = ["'", '"']
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`"]
        # No word makes the rest of the expression a command for some server.
        COMMANDS: ClassVar[set[Any]] = set()
        HEX_STRINGS: ClassVar[list[str | tuple[str, str]]] = [("x'", "'"), ("X'", "'")]


_PARSER = _Lance.parser_class
_KNOWN = {*_PARSER.FUNCTIONS, *_PARSER.FUNCTION_PARSERS} - {*_OWN_SYNTAX, *_PARSER.NO_PAREN_FUNCTION_PARSERS}


def parse(sql: str) -> exp.Expr:
    """The tree of one expression.

    Raises:
        InvalidInputError: The string is not an expression; the message names the place.
    """
    dialect = _Lance()
    try:
        words = [*_as_written(with_names(dialect.tokenize(sql)))]
        # No expression is a statement, whichever word it begins with.
        kind = exp.Select if words and words[0].token_type in _QUERIES else exp.Expr
        trees = [tree for tree in dialect.parser().parse_into(kind, words, sql) if tree is not None]
    except (ParseError, TokenError) as error:
        raise InvalidInputError(_syntax_message(sql, error)) from error
    if len(trees) != 1 or isinstance(trees[0], exp.Block):
        raise InvalidInputError(f"expected one SQL expression in {sql!r}")
    if any(word.text.startswith(_MARK) for word in words):  # else there is no call to look for in a long tree
        for call in trees[0].find_all(exp.Anonymous):
            if isinstance(call.this, str):
                call.set("this", call.this.removeprefix(_MARK))
    return trees[0]


def _as_written(words: Sequence[Token]) -> Iterator[Token]:
    """Hide function names from the parser, as it gives the functions that it knows a meaning and arguments of its own.

    A subclass of the parser could leave them out, but a compiled sqlglot (`sqlglot[c]`) does not allow subclasses.
    """
    for token, following in zip_longest(words, words[1:]):
        kind, word = token.token_type, token.text
        if following is not None and following.token_type is TokenType.L_PAREN:
            if word.upper() in _KNOWN and kind is not TokenType.IDENTIFIER:
                word = _MARK + word
        elif kind in _PARSER.NO_PAREN_FUNCTIONS:
            kind = TokenType.VAR
        is_kept = kind == token.token_type and word == token.text
        yield token if is_kept else Token(kind, word, token.line, token.col, token.start, token.end, token.comments)


def position_of(node: exp.Expr) -> int | None:
    """The first character of the expression, from 1, that belongs to a node; None if the parser did not keep it."""
    starts = [int(n.meta["start"]) for n in node.walk() if "start" in n.meta]
    return min(starts) + 1 if starts else None


def is_in_parentheses(node: exp.Expr, sql: str) -> bool:
    """Whether parentheses around a node are in the SQL: the parser puts some around IS itself."""
    position = position_of(node)
    return position is None or sql[: position - 1].rstrip().endswith("(")


def follows_not(node: exp.Expr, sql: str) -> bool:
    """Whether the word before a node is NOT: the parser makes one tree of `NOT x IN (1)` and `x NOT IN (1)`."""
    position = position_of(node)
    return position is not None and sql[: position - 1].rstrip().upper().endswith("NOT")


def unsupported(node: exp.Expr, sql: str, what: str) -> NoReturn:
    """Reject a construct.

    Raises:
        UnsupportedExpressionError: The construct is not supported; the message names it and its position.
    """
    raise _mark_located(UnsupportedExpressionError(f"{what} is not supported{_describe_position(node, sql)}"))


def invalid(node: exp.Expr, sql: str, why: str) -> NoReturn:
    """Reject an expression that makes no sense.

    Raises:
        InvalidInputError: The expression makes no sense; the message names the reason and the position.
    """
    raise _mark_located(InvalidInputError(f"{why}{_describe_position(node, sql)}"))


def locate(node: exp.Expr, sql: str, error: InvalidInputError | UnsupportedError) -> NoReturn:
    """Raise an error again, with the position of a node in its message.

    Raises:
        InvalidInputError: The error is one.
        UnsupportedExpressionError: The error is an `UnsupportedError`.
    """
    kind = InvalidInputError if isinstance(error, InvalidInputError) else UnsupportedExpressionError
    raise _mark_located(kind(f"{error}{_describe_position(node, sql)}")) from error


def is_located(error: LanceError) -> bool:
    """Whether the message of an error names the position."""
    return getattr(error, "is_located", False)


def _mark_located(error: LanceError) -> LanceError:
    error.is_located = True  # type: ignore[attr-defined]
    return error


def _describe_position(node: exp.Expr, sql: str) -> str:
    position = position_of(node)
    return f", in {sql!r}" if position is None else f", at position {position} of {sql!r}"


def _syntax_message(sql: str, error: SqlglotError) -> str:
    details = getattr(error, "errors", [])
    if not details:
        return f"cannot read SQL {sql!r}: {error}"
    first = details[0]
    line = sql.splitlines(keepends=True)[: int(first["line"]) - 1]
    end = sum(len(part) for part in line) + int(first["col"])
    start = max(end - len(first["highlight"] or ""), 0) + 1
    why = _MISSING_PART.sub("an operand is missing", first["description"].rstrip("."))
    return f"cannot read SQL {sql!r}: {why}, at position {start}"
