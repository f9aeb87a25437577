r"""Finds comments, strings and names in Spark SQL, as Spark's own lexer does.

    DELETE FROM t -- old\rWHERE id = 1        the comment ends at the carriage return
    DELETE FROM t /* /*+ a */ WHERE id = 1    a hint in a comment opens no nested comment

Other SQL parsers end a comment elsewhere. They get statements whose comments are replaced by blanks, so that they
cannot mistake a condition for a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from lance_core.errors import InvalidInputError
from pyspark_lance.lazy import SparkSession
from pyspark_lance.releases import is_at_least

WORD: Final = "word"
QUOTED: Final = "quoted"
STRING: Final = "string"
SIGN: Final = "sign"
_LITERAL: Final = "spark.sql.parser.escapedStringLiterals"
_SETTINGS: Final = (
    _LITERAL,
    "spark.sql.parser.quotedRegexColumnNames",
    "spark.sql.legacy.charVarcharAsString",
    "spark.sql.legacy.consecutiveStringLiterals.enabled",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled",
    "spark.sql.preserveCharVarcharTypeInfo",
)
"""Settings that are false by default; each changes what names or constants mean."""

_STRING: Final = r"""[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\""""
"""The pattern of strings; a doubled quote continues the string."""
_QUOTED_NAME: Final = r"`(?:[^`]|``)*`"
"""The pattern of names in backticks."""

_LEXEME: Final = re.compile(
    r"(?P<line>--(?:\\\n|[^\r\n])*)|(?P<bracket>/\*(?!\+))|(?P<space>\s+)"
    rf"|(?P<string>{_STRING})|(?P<quoted>{_QUOTED_NAME})|(?P<word>\w+)|(?P<sign>.)",
    re.DOTALL,
)
_BLANKS: Final = ("line", "bracket", "space")
"""Kinds of lexemes that mean nothing."""
_BRACKETS: Final = re.compile(r"/\*(?!\+)|\*/")


def position(statement: str, offset: int) -> str:
    """A position as messages name it."""
    before = statement[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


def lexemes(statement: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and position of each lexeme: comments, space, strings, quoted names, words, signs of one character.

    Raises:
        InvalidInputError: A comment does not end.
    """
    at = 0
    while at < len(statement):
        match = _LEXEME.match(statement, at)
        assert match is not None, "any character is one"
        end = _behind_comment(statement, at) if match["bracket"] else match.end()
        yield str(match.lastgroup), statement[at:end], at
        at = end


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        kind: A word, a quoted name, a string or a sign of one character.
        text: Its characters as they are in the statement.
        start: Position of its first character.
    """

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position after its last character."""
        return self.start + len(self.text)

    @property
    def upper(self) -> str:
        """A word in upper case, or a sign; empty for names in backticks and strings, which are no keywords."""
        return self.text.upper() if self.kind in (WORD, SIGN) else ""

    @property
    def is_name(self) -> bool:
        """Whether it can be a part of a name."""
        return self.kind in (WORD, QUOTED)

    @property
    def value(self) -> str:
        """A name without its backticks, or the characters of a string."""
        if self.kind == QUOTED:
            return self.text[1:-1].replace("``", "`")
        if self.kind != STRING:
            return self.text
        return string_value(self.text)


def tokens_of(statement: str) -> list[Token]:
    """The tokens of a statement, without comments; hints stay.

    Raises:
        InvalidInputError: A comment, a string or a name does not end.
    """
    tokens = [Token(kind, text, at) for kind, text, at in lexemes(statement) if kind not in _BLANKS]
    for token in tokens:
        if token.kind == SIGN and token.text in "'\"`":
            raise InvalidInputError(f"{position(statement, token.start)}: the {token.text} is not closed")
    return tokens


def find_pipe(text: str) -> int | None:
    """The position of the first `|>` between the parts of a query; None without one."""
    bars = [token.start for token in tokens_of(text) if token.text == "|"]
    return next((bar for bar in bars if text[bar + 1 : bar + 2] == ">" and bar - 1 not in bars), None)


def blank_comments(statement: str) -> str:
    """A statement whose comments, and other white space, are replaced by blanks; everything else keeps its position.

    Raises:
        InvalidInputError: A comment does not end.
    """
    return "".join(re.sub(r"[^\n]", " ", text) if kind in _BLANKS else text for kind, text, _ in lexemes(statement))


def parse_sql(text: str) -> Any:
    """The tree of an expression or a query in Spark SQL; None if it cannot be parsed."""
    import sqlglot  # noqa: PLC0415 - takes a second, which most reads and writes save

    try:
        return sqlglot.parse_one(blank_comments(text), read="spark")
    except (sqlglot.errors.SqlglotError, RecursionError, InvalidInputError):
        return None


def is_plain(statement: str) -> bool:
    """Whether the strings of a statement mean the same under all settings of a session.

    Settings change what double quotes mean, what backslashes and doubled quotes in strings mean, and what replaces
    `${variable}`.
    """
    if any(sign in statement for sign in ('"', "\\", "${")):
        return False
    return not any("''" in text[1:-1] for kind, text, _ in lexemes(statement) if kind == "string")


def has_usual_settings(spark: SparkSession) -> bool:
    """Whether all settings that change what names and constants mean have their defaults in a session."""
    settings: Any = spark.conf.getAll if is_at_least((4, 0)) else spark.conf
    return not any(str(settings.get(name, "false")).lower() == "true" for name in _SETTINGS)


def has_escapes(spark: SparkSession) -> bool:
    """Whether a backslash in a string is an escape in a session, as it is by default."""
    return str(spark.conf.get(_LITERAL, "false")).lower() != "true"


def string_value(text: str, *, escapes: bool = True) -> str:
    """The characters that a string of Spark SQL stands for.

    Args:
        text: The string, with its quotes.
        escapes: Whether a backslash is an escape.
    """
    if text[0] in "rR":
        return text[2:-1]
    quote = text[0] * 2
    pattern = rf"{_ESCAPE}|{quote}" if escapes else quote
    return re.sub(pattern, lambda match: text[0] if match[0] == quote else _unescape(match[0]), text[1:-1])


_ESCAPE: Final = r"\\(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|[\s\S])"
_CHARACTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _unescape(escape: str) -> str:
    r"""The character of an escape, by the rules of Spark's parser; `\%` and `\_` are left to LIKE."""
    mark, digits = escape[1], escape[2:]
    if not digits:
        return _CHARACTERS.get(mark, mark)
    return chr(int(digits, 16)) if mark in "uU" else chr(int(escape[1:], 8))


def replace_strings(condition: str, change: Callable[[str], str], *, escapes: bool = True) -> str:
    """A condition in which each string is replaced, by a function of the characters that it stands for."""
    parts = (
        change(string_value(text, escapes=escapes)) if kind == "string" else text
        for kind, text, _ in lexemes(condition)
    )
    return "".join(parts)


def translate_strings(condition: str, *, escapes: bool = True) -> str:
    """A condition whose strings mean in Lance's SQL, which has no escapes, what they mean in Spark SQL.

    Args:
        condition: The condition.
        escapes: Whether a backslash in a string is an escape.
    """
    if "\\" not in condition and not re.search(r"\b[rR]['\"]", condition):
        return condition
    return replace_strings(condition, lambda value: "'" + value.replace("'", "''") + "'", escapes=escapes)


def _behind_comment(statement: str, start: int) -> int:
    depth, at = 1, start + 2
    while depth:
        bracket = _BRACKETS.search(statement, at)
        if bracket is None:
            raise InvalidInputError(f"{position(statement, start)}: the comment is not closed")
        depth += -1 if bracket.group() == "*/" else 1
        at = bracket.end()
    return at
