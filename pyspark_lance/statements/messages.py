"""Messages of errors in the words of SQL: the author of a statement knows neither internal names nor Python's methods.

tags.update moves it                      ->  CALL lake.system.update_tag moves it
SELECT nope FROM lance_3f0a... AS `src`   ->  SELECT nope FROM lake.nyc.src
Did you mean ...? [`_rowaddr`]            ->  Did you mean ...? [`id`, `x`]      only `_rowaddr` was read
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lance_core.errors import LanceError
from pyspark_lance.types.column_names import quoted

if TYPE_CHECKING:
    from pyspark_lance.statements.context import Context

_REMEDIES: Final = (
    (r"tag (\S+) already exists in the table (\S+); tags\.update moves it",
     r"tag \1 already exists in the table \2; CALL {catalog}.system.update_tag moves it"),
    (r"\b(tag|branch)(?:s|es)\.delete\('([^']*)'\)", r"CALL {catalog}.system.delete_\1('{table}', '\2')"),
    (r"\btags\.list\(\) lists", r"SHOW TAGS IN {table} lists"),
    (r"\bbranches\.list\(\) lists", r"SHOW BRANCHES IN {table} lists"),
    (r"version main:(\d+) does not exist in the table (\S+); versions\(\) lists",
     r"version \1 does not exist in the table \2; DESCRIBE HISTORY {table} lists"),
    (r"version (\S+):(\d+) does not exist in the table (\S+); versions\(\) lists",
     r"version \2 does not exist in branch \1 of {table}; DESCRIBE HISTORY {table}@\1 lists"),
    (r"(has no version as old as \S+)\Z", r"\1; DESCRIBE HISTORY {table} lists the versions"),
    (r"\A(Cannot cast column \"[^\"]*\" from .+ to .+)",
     r"\1: ADD COLUMN of the new type, UPDATE {table} SET it by CAST, then DROP COLUMN and RENAME COLUMN"),
    (r"; replace=True replaces it", "; replace => true replaces it"),
    (r"\AreplaceWhere ", "REPLACE WHERE "),
    (r"\Avector_columns: ", "TBLPROPERTIES: "),
    (r"\AAmbiguous merge inserts are prohibited: ", "Ambiguous change, which changes one row several times: "),
)  # fmt: skip
"""Patterns of messages that name methods and arguments of Python, and what they say about SQL."""
_UNRESOLVED: Final = re.compile(
    r"(with name (?P<name>\S+) cannot be resolved\.)(?: +Did you mean one of the following\? \[(?P<given>.*?)\]\.)?"
)
_MOST: Final = 5
"""Most names that are suggested instead of an unknown one."""


@contextlib.contextmanager
def translate_messages(context: Context) -> Iterator[None]:
    """Put the messages of Lance errors of a statement into the words of SQL.

    Args:
        context: The context of the statement.

    Raises:
        LanceError: The error that was raised, with its message changed.
    """
    try:
        yield
    except LanceError as error:
        message = _respell_message(str(error), context)
        if message != str(error):
            error.args = (message, *error.args[1:])
        raise


def _respell_message(message: str, context: Context) -> str:
    for frame, name in context.spelled.items():
        message = message.replace(frame, name)
    table_names = [name for uri, name in context.finder.spelled.items() if uri in message]
    table = max(table_names, key=len, default=next(iter(context.finder.spelled.values()), "the table"))
    escaped = table.replace("\\", r"\\")
    for pattern, words in _REMEDIES:
        remedy = words.replace("{table}", escaped).replace("{catalog}", escaped.partition(".")[0])
        message = re.sub(pattern, remedy, message)
    return _UNRESOLVED.sub(lambda match: _complete_suggestions(match, context.columns), message)


def _complete_suggestions(match: re.Match[str], columns: list[str]) -> str:
    """The part of Spark's message that suggests columns, completed by columns of the tables that were not read."""
    suggestions = [suggestion for suggestion in (match["given"] or "").split(", ") if suggestion]
    missing_name = match["name"].rpartition(".")[2].strip("`").lower()
    other_columns = {
        name.lower(): name
        for name in columns
        if not any(suggestion.endswith(quoted(name)) for suggestion in suggestions)
    }
    close = difflib.get_close_matches(missing_name, list(other_columns), n=_MOST, cutoff=0)
    suggestions += [quoted(other_columns[name]) for name in close]
    if not suggestions:
        return match[0]
    return f"{match[1]} Did you mean one of the following? [{', '.join(suggestions[:_MOST])}]."
