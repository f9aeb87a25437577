"""The names of Lance tables in a statement, found among its tokens.

SELECT t.id FROM lake.nyc.t@dev VERSION AS OF 3 WHERE lake.nyc.t.id > :least
                 |-- table --|  |-- travel --|        |-- qualifier --|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lance_core.errors import InvalidInputError
from pyspark_lance.catalog.registry import PATHS
from pyspark_lance.catalog.tables import TableFinder, TableName
from pyspark_lance.engine.lexing import QUOTED, STRING, Token
from pyspark_lance.statements.tokens import Cursor, Piece

_TRAVELS: Final = ("VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A name that begins with a catalog of Lance tables.

    Attributes:
        name: The name; it may be a table's, or qualify a column.
        start: Position of its first character in the piece.
        name_end: Position after the parts of the name, before its branch and time travel.
        end: Position after the name with its branch and time travel.
        version: The operand of VERSION AS OF.
        timestamp: The operand of TIMESTAMP AS OF.
        sample_end: Position after a TABLESAMPLE that follows; `end` without one.
        ends: Position after each part.
    """

    name: TableName
    start: int
    name_end: int
    end: int
    version: Piece | None = None
    timestamp: Piece | None = None
    sample_end: int
    ends: tuple[int, ...]


def names_lance(cursor: Cursor, finder: TableFinder) -> bool:
    """Whether the next name is that of a Lance table."""
    first, dot, second = cursor.peek(), cursor.peek(1), cursor.peek(2)
    if not first.is_name or dot.text != "." or not finder.names_catalog(first.value):
        return False
    # A database may be called lance as well: paths are in backticks.
    return finder.catalog(first.value) is not None or second.kind == QUOTED


def find_mentions(piece: str, finder: TableFinder) -> list[Mention]:
    """The names of Lance tables in a piece of a statement."""
    cursor = Cursor(piece)
    mentions = []
    before = ""
    while not cursor.is_done:
        if before != "." and names_lance(cursor, finder):
            mentions.append(read_mention(cursor))
            before = ""
        else:
            before = cursor.token().text
    return mentions


_IN_STRINGS: Final = {
    "IDENTIFIER": "the name itself, without IDENTIFIER('...')",
    "TABLE_CHANGES": "a table: pyspark_lance.read_changes(spark, uri, begin_version=...) reads changes",
}
"""Functions that take a name as a string, and what to write instead."""


def reject_names_in_strings(cursor: Cursor, finder: TableFinder) -> None:
    """Reject names of Lance tables in strings that Spark would look up, and statements about them.

    Raises:
        InvalidInputError: A string names a Lance table; the message has its position.
    """
    while not cursor.is_done:
        token = cursor.token()
        if token.upper in _IN_STRINGS and cursor.sees("(") and _find_mentions_in_string(cursor.peek(1), finder):
            cursor.fail(_IN_STRINGS[token.upper], token)
        if token.upper == "EXECUTE" and cursor.sees("IMMEDIATE") and _find_mentions_in_string(cursor.peek(1), finder):
            cursor.fail("the statement itself, without EXECUTE IMMEDIATE", token)


def _find_mentions_in_string(token: Token, finder: TableFinder) -> list[Mention]:
    """The names of Lance tables in a string."""
    try:
        return find_mentions(token.value, finder) if token.kind == STRING else []
    except InvalidInputError:  # Spark reports the error
        return []


def read_mention(cursor: Cursor) -> Mention:
    """Read the name of a Lance table, with its branch and its version."""
    start = cursor.peek().start
    ends = _ends(cursor)
    name = cursor.table()
    end = cursor.peek(-1).end
    version = timestamp = None
    at = 1 if cursor.sees("FOR") else 0
    if cursor.peek(at).upper in _TRAVELS and cursor.peek(at + 1).upper == "AS" and cursor.peek(at + 2).upper == "OF":
        cursor.take_if("FOR")
        is_version = cursor.token().upper in ("VERSION", "SYSTEM_VERSION")
        cursor.expect("AS OF")
        operand = _operand(cursor)
        version, timestamp = (operand, None) if is_version else (None, operand)
        end = cursor.peek(-1).end
    return Mention(
        name=name,
        start=start,
        name_end=ends[-1],
        end=end,
        version=version,
        timestamp=timestamp,
        sample_end=_behind_sample(cursor.copy(), end),
        ends=tuple(ends),
    )


def _ends(cursor: Cursor) -> Sequence[int]:
    ahead, ends = 0, [cursor.peek().end]
    while cursor.peek(ahead + 1).text == "." and cursor.peek(ahead + 2).is_name:
        ahead += 2
        ends.append(cursor.peek(ahead).end)
    return ends


def _operand(cursor: Cursor) -> Piece:
    """Read an operand of AS OF, and no more than the operand: a clause or an alias may follow."""
    first = cursor.peek()
    _primary(cursor)
    while cursor.peek().text in ("+", "-"):
        cursor.token()
        _primary(cursor)
    end = cursor.peek(-1).end
    return Piece(cursor.statement[first.start : end], first.start)


def _primary(cursor: Cursor) -> None:
    if cursor.take_if(":"):
        cursor.identifier("the name of a parameter")
    elif cursor.take_if("INTERVAL"):
        cursor.token()
        cursor.identifier("a unit of time")
    elif cursor.take_if("TIMESTAMP", "DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ") and not cursor.sees("("):
        cursor.string()
    elif not cursor.sees("("):
        cursor.token()
    if cursor.take_if("("):
        if not cursor.sees(")"):
            cursor.piece()
        cursor.expect(")")


def _behind_sample(cursor: Cursor, end: int) -> int:
    if not cursor.take_if("TABLESAMPLE"):
        return end
    for _ in range(2):
        cursor.expect("(")
        cursor.piece()
        cursor.expect(")")
        end = cursor.peek(-1).end
        if not cursor.take_if("REPEATABLE"):
            break
    return end


def is_path(name: TableName) -> bool:
    """Whether a name stands for a path: lance.`/data/t.lance`."""
    return len(name.parts) == 2 and name.parts[0].lower() == PATHS


def parse_name(text: str, finder: TableFinder) -> TableName:
    """The name of a Lance table that stands alone.

    Raises:
        InvalidInputError: The string is not the name of a Lance table.
    """
    cursor = Cursor(text)
    if not names_lance(cursor, finder):
        cursor.fail("the name of a table, after that of a catalog of pyspark_lance.register_catalog")
    table = cursor.table()
    cursor.finish()
    return table
