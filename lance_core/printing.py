"""Makes strings of a table safe to print on a terminal.

Names, messages and values in a table can come from an untrusted writer. Some characters act on a terminal: they clear
the screen, set a title, make a link or reverse the direction of writing. `printable` shows them as escapes.
"""

from __future__ import annotations

import re
from typing import Final

# C0 except the newline, DEL, C1, the controls of writing direction, line separators, and surrogates.
_HIDDEN: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMED: Final = {"\t": "\\t", "\r": "\\r"}


def printable(string: object) -> str:
    """A string in which no character acts on a terminal: control characters except newlines become escapes.

    Args:
        string: The string; any other object is converted by `str`.
    """
    return _HIDDEN.sub(_escape, str(string))


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    return _NAMED.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")
