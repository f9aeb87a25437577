"""`lance-dagster maintenance`: the results of maintenance runs, read from their log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from lance_core.cli.output import CommandOutput
from lance_core.errors import DatasetNotFoundError
from lance_core.maintenance.routine.log import LOG_PATH
from lance_dagster.cli.app import _command
from lance_dagster.health.lake import Lake
from lance_dagster.health.log import open_log, read_table_rows, render_trends, select_newest_rows, sum_up_runs

_RUNS = (
    "time", "run", "done", "partly_done", "put_off", "healthy", "skipped", "failed", "bytes_read", "bytes_written",
    "files_removed", "bytes_removed", "seconds", "job",
)  # fmt: skip
_TABLES = (
    "table", "time", "outcome", "version_after", "fragments", "rows", "deleted_rows", "bytes", "versions", "unindexed",
    "reason",
)  # fmt: skip

_NARROW_RUNS = ("time", "run", "tables", "bytes_read", "bytes_removed", "seconds")
_NARROW_TABLES = ("table", "outcome", "fragments", "rows", "bytes", "reason")
_NARROW: Final = 130
"""Terminals with fewer characters a line show the two narrow lists of columns; JSON has all columns."""
_OUTCOMES: Final = ("done", "partly_done", "put_off", "healthy", "skipped", "failed")

_RUN_ID: Final = 8
"""The number of characters of a run's id that tables show, as in Dagster's UI."""


@_command("maintenance", "ROOT")
@click.option("--tables", "by_table", is_flag=True, help="List the newest record of each table instead of the runs.")
@click.option("--trends", "as_page", is_flag=True, help="Print numbers of each table after each run, in Markdown.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only tables such as 'nyc/*'; can be repeated.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Tables to leave out; can be repeated.")
def maintenance_command(
    uri: str,
    options: Mapping[str, str] | None,
    output: CommandOutput,
    by_table: bool,
    as_page: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
) -> None:
    """List the runs of maintenance on the tables below a root, the newest first.

    The runs are read from the log that they write below ROOT, also where a namespace names the tables: there are no
    --namespace and no ids apart from the names in that log.
    """
    if by_table and as_page:
        raise click.UsageError("--tables and --trends cannot be combined")
    log = open_log(uri, options)
    if log is None:
        raise DatasetNotFoundError(
            f"there is no {LOG_PATH} at {uri}: no run of a maintenance job has finished there; give the root of its "
            "tables"
        )
    rows = read_table_rows(log, Lake(root=uri, include=include, exclude=exclude).takes)
    if as_page:
        page = render_trends(rows)
        output.record({"page": page}) if output.as_json else output.line(page)
        return
    records = select_newest_rows(rows) if by_table else sum_up_runs(rows)
    if output.as_json:
        output.rows([{**row, "time": row["time"].isoformat()} for row in records], [])
        return
    shown = [{**row, "run": row["run_id"][:_RUN_ID], "tables": _counts(row)} for row in records]
    is_narrow = output.width < _NARROW
    if by_table:
        output.rows(shown, _NARROW_TABLES if is_narrow else _TABLES)
    else:
        output.rows(shown, _NARROW_RUNS if is_narrow else _RUNS)


def _counts(run: Mapping[str, Any]) -> str:
    """The number of tables by outcome, such as `12 done, 1 failed`."""
    return ", ".join(f"{run[kind]:,} {kind.replace('_', ' ')}" for kind in _OUTCOMES if run.get(kind))
