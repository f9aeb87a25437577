"""Text of tables in Markdown that Dagster's UI renders: whatever it says, it stays text in its cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from lance_core.printing import printable

__all__ = ["cell", "code", "run_link", "table"]

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()#+!|~<>&$])")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/-]+")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_LONGEST: Final = 200


def cell(value: object) -> str:
    """A value as the text of a cell: marks are escaped, control and direction characters are spelled, long ones cut."""
    if value is None:
        return ""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return _SPECIAL.sub(r"\\\1", printable(shown).replace("\n", "\\n"))


def code(name: str) -> str:
    """A name as code; one that has more than letters, digits and the signs of paths stays text."""
    return f"`{name}`" if _PLAIN.fullmatch(name) else cell(name)


def run_link(run_id: str | None, ui_url: str = "") -> str:
    """A link to a run in the UI, which is at a URL or path of its own; what is no id of a run stays text."""
    if run_id is None:
        return ""
    return f"[{run_id[:8]}]({ui_url.rstrip('/')}/runs/{run_id})" if _RUN_ID.fullmatch(run_id) else cell(run_id)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, optional: bool = False) -> str:
    """A table of cells that are Markdown already; with `optional`, columns without any entry are left out."""
    lines = [list(row) for row in rows]
    if optional and lines:
        used = [position for position in range(len(headings)) if any(line[position] for line in lines)]
        headings = [headings[position] for position in used]
        lines = [[line[position] for position in used] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(headings), ["---"] * len(headings), *lines])
