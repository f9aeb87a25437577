"""The tokens of a statement, and a cursor that reads them.

    SELECT `a b`, 'it''s' FROM lake.nyc.t@dev -- why
    word   quoted string  word word . word . word @ word

A statement is never composed from strings: what is not understood here stays a piece of the user's own text, from the
start of one token to the end of another, which Spark parses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

from lance_core.errors import InvalidInputError
from pyspark_lance.catalog.tables import TableName
from pyspark_lance.engine.lexing import QUOTED, SIGN, STRING, Token, position, tokens_of

_Item = TypeVar("_Item")

_QUERIES: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "MAP", "REDUCE")
"""How queries begin."""
_CHANGES: Final = ("INSERT INTO", "INSERT OVERWRITE", "MERGE INTO", "DELETE FROM")
"""How statements begin that can follow WITH and FROM."""
_OPENING: Final = {"(": ")", "[": "]"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a statement that Spark parses: a query, a condition, an expression, a type.

    Attributes:
        text: The characters, as the user wrote them.
        start: Position of the first one in the statement.
    """

    text: str
    start: int

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Assignment(Piece):
    """The value that a column gets.

    Attributes:
        column: Position of the column's name in the statement.
    """

    column: int


class Cursor:
    """Reads the tokens of a statement from left to right.

    Attributes:
        statement: The statement.
    """

    def __init__(self, statement: str) -> None:
        self.statement = statement
        self._tokens = tokens_of(statement)
        if self._tokens and self._tokens[-1].text == ";":
            self._tokens.pop()
        self._at = 0

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or a token `ahead` of it; an empty token at the end."""
        at = self._at + ahead
        end = self._tokens[-1].end if self._tokens else 0
        return self._tokens[at] if 0 <= at < len(self._tokens) else Token(SIGN, "", end)

    @property
    def is_done(self) -> bool:
        """Whether all tokens are read."""
        return self._at >= len(self._tokens)

    def sees(self, words: str) -> bool:
        """Whether these words, or signs, come next."""
        return all(self.peek(i).upper == word for i, word in enumerate(words.split()))

    def take_if(self, *choices: str) -> bool:
        """Read one of these sequences of words if it comes next."""
        for words in choices:
            if self.sees(words):
                self._at += len(words.split())
                return True
        return False

    def expect(self, words: str) -> None:
        """Read these words.

        Raises:
            InvalidInputError: Something else comes next.
        """
        if not self.take_if(words):
            self.fail(words)

    def fail(self, expected: str, at: Token | None = None) -> NoReturn:
        """Reject what comes next.

        Args:
            expected: What is accepted in its place.
            at: The token that is rejected; None for the next token.
        """
        token = at or self.peek()
        problem = f"{token.text!r} is not understood" if token.text else "the statement ends"
        raise InvalidInputError(
            f"{position(self.statement, token.start)}: {problem}; expected {expected}. Nothing was done"
        )

    def check_single(self) -> None:
        """Make sure that there is one statement.

        Raises:
            InvalidInputError: A semicolon is followed by another statement.
        """
        for token in self._tokens:
            if token.text == ";":
                self.fail("one statement: run each by a call of its own", token)

    def finish(self) -> None:
        """Make sure that all tokens are read.

        Raises:
            InvalidInputError: Some tokens are left.
        """
        if not self.is_done:
            self.fail("the end of the statement")

    def token(self) -> Token:
        """Read any token."""
        token = self.peek()
        if not token.text:
            self.fail("more")
        self._at += 1
        return token

    def identifier(self, what: str = "a name") -> str:
        """Read a name of one part."""
        if not self.peek().is_name:
            self.fail(what)
        return self.token().value

    def read_list(self, read: Callable[[], _Item], *, is_enclosed: bool = False) -> tuple[_Item, ...]:
        """Read a list of what `read` reads, in parentheses if one comes next, or must come."""
        if is_enclosed:
            self.expect("(")
        is_enclosed = is_enclosed or self.take_if("(")
        items = [read()]
        while self.take_if(","):
            items.append(read())
        if is_enclosed:
            self.expect(")")
        return tuple(items)

    def path(self) -> str:
        """Read the name of a column, or a dotted path to a field."""
        parts = [self.identifier("a column")]
        while self.take_if("."):
            parts.append(self.identifier("a field"))
        return ".".join(parts)

    def table(self) -> TableName:
        """Read the name of a table."""
        parts = [self.identifier("a table")]
        while self.take_if("."):
            parts.append(self.identifier("a part of a name"))
        ref = None
        if self.peek().text == "@" and self.peek().start == self.peek(-1).end:
            self._at += 1
            ref = self.ref()
        return TableName(parts=tuple(parts), ref=ref)

    def ref(self) -> str:
        """Read the name of a branch or a tag: parts of names with signs between them, and no space."""
        ref = self.identifier("a branch or a tag")
        if self.peek(-1).kind == QUOTED:
            return ref
        while self.peek().start == self.peek(-1).end and (self.peek().is_name or self.peek().text in ("-", "/", ".")):
            ref += self.token().value
        return ref

    def string(self, what: str = "a string") -> str:
        """Read a string."""
        if self.peek().kind != STRING:
            self.fail(what)
        return self.token().value

    def whole_number(self) -> int:
        """Read a whole number that is not negative."""
        if not self.peek().text.isdecimal():
            self.fail("a whole number")
        return int(self.token().text)

    def piece(self, *stops: str, angles: bool = False) -> Piece:
        """Read up to one of these sequences of words outside of parentheses and CASE, a closing parenthesis or the end.

        Args:
            stops: The sequences of words.
            angles: Whether < and > are parentheses, as in the names of types.

        Raises:
            InvalidInputError: There is nothing to read, or a parenthesis is not closed.
        """
        first = self.peek()
        open_: list[str] = []
        while not self.is_done:
            token = self.peek()
            if not open_ and (any(self.sees(stop) for stop in stops) or token.text in (")", "]")):
                break
            self._at += 1
            if token.text in _OPENING or (angles and token.text == "<"):
                open_.append(_OPENING.get(token.text, ">"))
            elif token.upper == "CASE" and self.peek(-2).text != ".":
                open_.append("END")
            elif open_ and token.upper == open_[-1]:
                open_.pop()
        if open_:
            self.fail(open_[-1])
        if first.start == self.peek().start:
            self.fail("an expression")
        return Piece(self.statement[first.start : self.peek(-1).end], first.start)

    def properties(self) -> dict[str, str]:
        """Read `('key' = 'value', key.part = 5)`."""
        self.expect("(")
        properties: dict[str, str] = {}
        while not properties or self.take_if(","):
            start = self.peek()
            key = self.key()
            if key in properties:
                self.fail("each key once", start)
            self.expect("=")
            properties[key] = self._constant()
        self.expect(")")
        return properties

    def key(self) -> str:
        """Read the key of a property: a string, or a name of several parts."""
        return self.token().value if self.peek().kind == STRING else self.path()

    def _constant(self) -> str:
        """Read a string, a number or a boolean, as the string that Spark makes of it."""
        if self.peek().kind == STRING:
            return self.token().value
        start = self.peek()
        text = self.piece(",").text.lower()
        if not re.fullmatch(r"true|false|-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text):
            self.fail("a string, a number, true or false", start)
        return text

    def rest(self) -> Piece:
        """Read everything up to the end."""
        first = self.peek()
        if self.is_done:
            self.fail("a query")
        self._at = len(self._tokens)
        return Piece(self.statement[first.start : self._tokens[-1].end], first.start)

    def query(self, *, is_within: bool = False) -> Piece:
        """Read a query, up to the end, or up to the parenthesis around it.

        Raises:
            InvalidInputError: There is another statement, which Spark would run.
        """
        if self.peek().upper not in _QUERIES:
            self.fail("a query")
        if self.peek().upper in ("WITH", "FROM"):
            ahead = self.copy()
            ahead.piece(*_CHANGES)
            if any(ahead.sees(words) for words in _CHANGES):
                ahead.fail("the end of the query")
        return self.piece() if is_within else self.rest()

    def copy(self) -> Cursor:
        """Another cursor at the same position."""
        other = Cursor(self.statement)
        other._at = self._at
        return other
