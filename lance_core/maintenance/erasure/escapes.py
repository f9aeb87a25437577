r"""Patterns that find a string in a record, also where the string was escaped, once or several times.

    é       é   \u00e9   \\u00E9   %C3%A9
    "       "   \"   \\\"   \u0022   %22
    😀      😀   \ud83d\ude00   %F0%9F%98%80
    '       '   ''   \'   \u0027   %27

JSON within JSON has more backslashes, of which any number counts.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["in_bytes", "in_words"]

_BACKSLASHES: Final = r"\\\\*"
"""One or more; the first is a literal, which the search for a pattern looks up quickly."""

_SHORT: Final = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_BEGIN: Final = r"(?:(?<![\w.-])|(?<=\\[bfnrt]))"
_END: Final = r"(?![\w.-])"


def in_bytes(string: str) -> re.Pattern[bytes]:
    r"""A pattern that finds a string anywhere in the bytes of a record.

    >>> bool(in_bytes("josé").search(b'{"a": "{\\"name\\": \\"jos\\\\u00e9\\"}"}'))
    True
    """
    return re.compile(_pattern(string).encode())


def in_words(string: str) -> re.Pattern[str]:
    r"""A pattern that finds a string as a word of another string.

    >>> bool(in_words("é").search('["\\u00e9"]')), bool(in_words("7").search("17"))
    (True, False)
    """
    return re.compile(f"{_BEGIN}{_pattern(string)}{_END}")


def _pattern(string: str) -> str:
    return "".join(map(_character, string))


def _character(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    escaped = "".join(f"{_BACKSLASHES}u(?i:{units[start : start + 4]})" for start in range(0, len(units), 4))
    in_uri = "".join(f"%(?i:{byte:02x})" for byte in character.encode())
    forms = [re.escape(character), escaped, in_uri]
    if character in _SHORT:
        forms.append(_BACKSLASHES + _SHORT[character])
    if character in "\"'/":
        forms.append(_BACKSLASHES + re.escape(character))
    if character == "\\":
        forms[0] = _BACKSLASHES
    if character == "'":
        forms.append("''")
    return f"(?:{'|'.join(forms)})"
