"""The output of commands: tables for people, JSON for programs, progress bars on standard error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import click
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lance_core.printing import printable

Row = Mapping[str, Any]

_WIDE: Final = 160
"""Characters of a line if the output is not a terminal."""

_UNCUT: Final = 10_000
"""Characters of a line with rows of a Lance table, which are not cut if the output is not a terminal."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Where a command prints to.

    Attributes:
        as_json: Whether to print JSON.
    """

    as_json: bool

    def rows(self, rows: Sequence[Row], columns: Sequence[str], *, title: str = "", are_data: bool = False) -> None:
        """Print items of one kind: as an array of objects in JSON, or as a table.

        Args:
            rows: The items.
            columns: The keys that the table shows.
            title: The title of the table.
            are_data: Whether the items are rows of a Lance table, whose names and values are not formatted: a year is
                not a count.
        """
        if self.as_json:
            self._json(list(rows))
            return
        table = Table(title=_to_text(title) if title else None, title_justify="left", header_style="bold")
        for column in columns:
            numeric = any(_is_number(row.get(column)) for row in rows)
            justify: JustifyMethod = "right" if numeric else "left"
            name = column if are_data else column.replace("_", " ")
            # Values of data are cut at the terminal's width rather than wrapped.
            table.add_column(
                _to_text(name), justify=justify, overflow="ellipsis" if are_data else "fold", no_wrap=are_data
            )
        for row in rows:
            cells = (
                _format_plain(row.get(column)) if are_data else _format(column, row.get(column)) for column in columns
            )
            table.add_row(*map(_to_text, cells))
        self._console(_UNCUT if are_data else _WIDE).print(table)

    @property
    def width(self) -> int:
        """The characters of a line: of the terminal, or as the variable COLUMNS says."""
        return self._console().width

    def record(self, values: Row) -> None:
        """Print one item: as an object in JSON, or as a list of names and values."""
        if self.as_json:
            self._json(dict(values))
            return
        table = Table(show_header=False, box=None)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in values.items():
            if value not in (None, "", [], {}):
                table.add_row(_to_text(name.replace("_", " ")), _to_text(_format(name, value)))
        self._console().print(table)

    def line(self, string: str) -> None:
        """Print a line of text, unless the output is JSON."""
        if not self.as_json:
            self._console().print(_to_text(string))

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar while the body runs; the body calls the function with the amount done and the total."""
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(printable(what), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def _json(self, value: object) -> None:
        click.echo(json.dumps(value, indent=2, default=_to_json_value))

    def _console(self, width: int = _WIDE) -> Console:
        """The console. If the output is not a terminal, lines have at least `width` characters."""
        console = Console(highlight=False, markup=False, emoji=False)
        is_asked = width == _WIDE and os.environ.get("COLUMNS", "").isdecimal()
        if console.is_terminal or is_asked:
            return console
        return Console(highlight=False, markup=False, emoji=False, width=max(console.width, width))


def _to_text(string: str) -> Text:
    """A string without markup; characters that act on the terminal are shown as escapes."""
    return Text(printable(string))


def human_bytes(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in name:
        return human_bytes(value)
    if isinstance(value, int) and not isinstance(value, bool) and "version" not in name:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return "\n".join(f"{key} = {_format(key, item)}" for key, item in value.items() if item not in ([], {}))
    if isinstance(value, list | tuple):
        return (
            _format_ids(value) if value and all(isinstance(item, int) for item in value) else ", ".join(map(str, value))
        )
    return str(value)


def _format_plain(value: object) -> str:
    """A value of a row, without formatting."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return "" if value is None else str(value)


def _format_ids(ids: Sequence[int]) -> str:
    """The number of ids, and the ids: 7 (ids 1-5, 8-9)."""
    return f"{len(ids):,} (id{'' if len(ids) == 1 else 's'} {_format_runs(ids)})"


def _format_runs(numbers: Sequence[int]) -> str:
    """Numbers for people: 1-5, 8, 10-11."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _to_json_value(value: object) -> Any:
    """The form in JSON of a value that JSON does not have."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
