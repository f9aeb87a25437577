"""The commands."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import click

import lance_core
from lance_core.cli.command import storage_options_of
from lance_core.cli.output import Output
from lance_core.errors import DatasetNotFoundError, LanceError
from lance_core.printing import printable
from lance_dagster.history import read_history
from lance_dagster.lineage import find_tables, lineage, open_branches
from lance_dagster.table_log import partitions_text
from lance_dagster.undo import Undo, plan_undo

__all__ = ["cli", "run"]

FAILED: Final = 1
TRY_AGAIN: Final = 3
_TO_SECONDS: Final = len("2026-11-22T04:00:00")

_LINEAGE_COLUMNS: Final = ("table", "branch", "version", "operation", "asset", "partitions", "time", "run_id", "inputs")

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lance-dagster", prog_name="lance-dagster")
def cli() -> None:
    """The changes of Dagster's runs to Lance tables, read from the tables."""


def run() -> None:
    """Run the command line."""
    cli()


def _command(name: str, argument: str) -> Callable[[F], click.Command]:
    """Make a function a command on a root or table: it is called with URI, storage options and output."""

    def decorate(function: F) -> click.Command:
        @functools.wraps(function)
        def wrapped(uri: str, storage_option: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
            output = Output(as_json)
            try:
                function(uri, storage_options_of(storage_option) or None, output, **arguments)
            except (LanceError, OSError) as error:
                _fail(error, output)

        made: Any = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(wrapped)
        made = click.option(
            "-o", "--storage-option", multiple=True, metavar="KEY=VALUE", help="Option of the storage; can be repeated."
        )(made)
        made = click.argument("uri", metavar=argument)(made)
        return cli.command(name)(made)

    return decorate


@_command("lineage", "ROOT_OR_TABLE")
@click.option("--run", "run_id", metavar="ID", help="Only what this run made.")
@click.option("--version", "version", type=int, metavar="N", help="Only this version.")
@click.option("--asset", metavar="KEY", help="Only what was made for this asset, such as nyc/flights.")
def lineage_command(
    uri: str,
    options: Mapping[str, str] | None,
    output: Output,
    run_id: str | None,
    version: int | None,
    asset: str | None,
) -> None:
    """The run of each version, and the versions of other tables that it read."""
    if sum(choice is not None for choice in (run_id, version, asset)) > 1:
        raise click.UsageError("--run, --version and --asset exclude each other")
    found = lineage(find_tables(uri, options), run_id=run_id, version=version, asset=asset)
    if output.as_json:
        output.rows(found, [])
    elif found:
        output.rows([_for_people(entry) for entry in found], _LINEAGE_COLUMNS)
    else:
        output.line("No version was found.")


@_command("undo", "ROOT_OR_TABLE")
@click.option("--run", "run_id", metavar="ID", required=True, help="The run to take back.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do it.")
def undo_command(
    uri: str, options: Mapping[str, str] | None, output: Output, run_id: str, dry_run: bool, yes: bool
) -> None:
    """Undo the change of one run by a new commit, if that is exact; otherwise report the reason, and write nothing."""
    if dry_run == yes:
        raise click.UsageError("say either --dry-run or --yes")
    branches = [branch for table in find_tables(uri, options) for branch in open_branches(table)]
    plans = [plan for branch in branches if (plan := plan_undo(branch, run_id)) is not None]
    if not plans:
        raise DatasetNotFoundError(f"run {run_id} changed no table of {uri}")
    rows = [_undone(plan, None if dry_run else plan.commit()) for plan in plans]
    columns = ["table", "branch", "undoes", "how", "rows", "rows_after", "version"]
    output.rows(rows if output.as_json else [_undone_for_people(row) for row in rows], columns)


@_command("tables", "ROOT")
def tables_command(uri: str, options: Mapping[str, str] | None, output: Output) -> None:
    """An overview of the tables below a root."""
    rows = [_overview(table) for table in find_tables(uri, options)]
    if not output.as_json:
        rows = [{**row, "time": str(row["time"] or "")[:_TO_SECONDS]} for row in rows]
    output.rows(
        rows, ["table", "asset", "rows", "bytes", "fragments", "version", "versions", "branches", "time", "run_id"]
    )


def _overview(table: lance_core.LanceDataset) -> dict[str, Any]:
    newest = next(islice(read_history(table, count_changes=False), 1), None)
    made = next((one for one in read_history(table, count_changes=False) if one.run_id and one.changes_rows), None)
    return {
        "table": table.uri,
        "asset": None if made is None else made.asset,
        "rows": table.count_rows(),
        "bytes": table.total_bytes,
        "fragments": len(table.fragment_ids()),
        "version": table.version,
        "versions": len(table.version_refs()),
        "branches": sorted(table.branches.list()),
        "tags": sorted(table.tags.list()),
        "time": None if newest is None else newest.time.isoformat(),
        "run_id": None if made is None else made.run_id,
    }


def _undone(plan: Undo, version: int | None) -> dict[str, Any]:
    return {
        "table": plan.dataset.root_uri,
        "branch": plan.dataset.branch or "main",
        "run_id": plan.run_id,
        "undoes": list(plan.versions),
        "how": plan.how,
        "rows": plan.rows,
        "rows_after": plan.rows_after,
        "version": version,
    }


def _for_people(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **entry,
        "time": str(entry["time"])[:_TO_SECONDS],
        "partitions": partitions_text(entry["partitions"]),
        "inputs": "\n".join(f"{read['asset']} at {read['version']}" for read in entry["inputs"]),
    }


def _undone_for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "undoes": "version " + ", ".join(map(str, row["undoes"]))}


def _fail(error: Exception, output: Output) -> None:
    if output.as_json:
        output.record({"error": {"code": getattr(error, "code", "os"), "message": str(error)}})
    else:
        click.echo(printable(f"lance-dagster: {error}"), err=True)
    sys.exit(TRY_AGAIN if getattr(error, "retryable", False) else FAILED)
