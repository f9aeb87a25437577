"""Reads the log of maintenance of a root; `lance_core.maintenance.routine.log` describes its columns and writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core.errors import DatasetNotFoundError
from lance_core.maintenance.routine.log import LOG_PATH, LOG_WHOLE_TABLE
from lance_dagster.tables.location import below_root

_CLOCKS_DIFFER: Final = timedelta(minutes=5)
"""The most by which the clocks of machines may differ."""

_BARS: Final = "▁▂▃▄▅▆▇█"
_SHOWN: Final = 30
"""The number of newest runs that a sparkline shows."""


def open_log(root_uri: str, options: Mapping[str, str] | None) -> lance_core.LanceDataset | None:
    """The log of a root; None if no run has written one."""
    try:
        return lance_core.dataset(below_root(root_uri, LOG_PATH), storage_options=dict(options or {}) or None)
    except DatasetNotFoundError:
        return None


def find_last_maintenance(log: lance_core.LanceDataset, uri: str) -> datetime | None:
    """When a run last found a table healthy, or finished it; None if no run did.

    Records with a time in the future, from a clock that was ahead, do not count.

    Args:
        log: The log.
        uri: The URI of the table.
    """
    finished = pc.field("outcome").isin(["done", "healthy"]) & pc.field("reason").is_null()
    condition = (pc.field("uri") == lance_core.canonical_uri(uri)) & (pc.field("step") == LOG_WHOLE_TABLE) & finished
    condition &= pc.field("time") <= pa.scalar(datetime.now(UTC) + _CLOCKS_DIFFER, pa.timestamp("us", "UTC"))
    times: list[datetime] = log.to_table(columns=["time"], filter=condition)["time"].to_pylist()
    return max(times, default=None)


def read_table_rows(log: lance_core.LanceDataset, takes: Callable[[str], bool]) -> list[dict[str, Any]]:
    """The rows that sum up tables, oldest first.

    Args:
        log: The log.
        takes: Returns whether a table is wanted, by its name.
    """
    rows = log.to_table(filter=f"step = '{LOG_WHOLE_TABLE}'").sort_by("time").to_pylist()
    return [row for row in rows if takes(row["table"])]


def sum_up_runs(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One record per run, newest first: its tables by outcome, and the bytes and files read, written and removed."""
    runs: dict[str, dict[str, Any]] = {}
    for row in rows:
        run = runs.setdefault(row["run_id"], {"run_id": row["run_id"], "job": row["job"], "time": row["time"]})
        kind = row["outcome"].replace(" ", "_")
        run[kind] = run.get(kind, 0) + 1
        for name in ("bytes_read", "bytes_written", "files_removed", "bytes_removed", "seconds"):
            run[name] = run.get(name, 0) + (row[name] or 0)
    return list(runs.values())[::-1]


def select_newest_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The newest record of each table, in ascending order of their names."""
    newest = {row["uri"]: dict(row) for row in rows}
    return sorted(newest.values(), key=lambda row: row["table"])


def render_trends(rows: Iterable[Mapping[str, Any]]) -> str:
    """A page in Markdown: for each table its numbers after each run, as sparklines from the least to the greatest."""
    by_uri: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["fragments"] is not None:
            by_uri.setdefault(row["uri"], []).append(row)
    lines = [
        "# Trends of maintenance",
        "",
        f"After each of the last {_SHOWN} runs, oldest first; each line ends with the newest number.",
        "",
        "| table | fragments | bytes per row | share deleted | share unindexed |",
        "|---|---|---|---|---|",
    ]
    for every in sorted(by_uri.values(), key=lambda rows: rows[-1]["table"]):
        seen = every[-_SHOWN:]
        numbers = (
            [row["fragments"] for row in seen],
            [row["bytes"] / row["rows"] if row["rows"] else 0 for row in seen],
            [row["deleted_rows"] / (row["deleted_rows"] + row["rows"] or 1) for row in seen],
            [row["unindexed"] or 0 for row in seen],
        )
        lines.append(
            f"| {seen[-1]['table']} | "
            + " | ".join(f"{_draw_sparkline(series)} {series[-1]:.4g}" for series in numbers)
            + " |"
        )
    return "\n".join(lines)


def _draw_sparkline(numbers: Sequence[float]) -> str:
    """Numbers as bars of eight heights; all of one height if they are equal."""
    low, high = min(numbers), max(numbers)
    steps = [0 if high == low else round((number - low) / (high - low) * (len(_BARS) - 1)) for number in numbers]
    return "".join(_BARS[step] for step in steps)
