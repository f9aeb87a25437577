"""The command `lance-dagster`: lineage, tables and undo here; maintenance and change-type in modules of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import click

import lance_core
from lance_core.cli.command import command
from lance_core.cli.output import CommandOutput
from lance_dagster.cli.undo_report import (
    recording_instance,
    reject_lost_versions,
    report_undo_before,
    report_undo_of,
)
from lance_dagster.events.table_log import shorten_partitions
from lance_dagster.lineage.history import read_history
from lance_dagster.lineage.runs import NoSuchRunError, find_run, find_tables, lineage, open_branches, without_changes
from lance_dagster.undo.plan import AlreadyUndoneError, Undo, plan_undo

_TO_SECONDS: Final = len("2026-11-22T04:00:00")

_LINEAGE_COLUMNS: Final = ("table", "branch", "version", "operation", "asset", "partitions", "time", "run_id", "inputs")

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lance-dagster", prog_name="lance-dagster")
def cli() -> None:
    """Show the changes that Dagster's runs made to Lance tables, read from the tables."""


def run() -> None:
    """Run the command line."""
    cli()


def _command(name: str, argument: str, *, lists: bool = False) -> Callable[[F], click.Command]:
    """Make a command on a root or table from a function of its URI, its storage options, the output and the options.

    Args:
        name: Name of the command.
        argument: The name of the URI.
        lists: Whether the function gets the properties of a namespace, whose tables it looks at.
    """

    def decorate(function: F) -> click.Command:
        result = command(name, argument=argument, program="lance-dagster", lists=lists, whole=lists)(function)
        cli.add_command(result)
        return result

    return decorate


@_command("lineage", "[ROOT_OR_TABLE]", lists=True)
@click.option("--run", "run_id", metavar="ID", help="Only versions of this run; a unique prefix of its id is enough.")
@click.option("--version", "version", type=int, metavar="N", help="Only this version.")
@click.option("--asset", metavar="KEY", help="Only versions of this asset, such as nyc/flights.")
def lineage_command(
    uri: str,
    options: Mapping[str, str] | None,
    output: CommandOutput,
    namespace: Mapping[str, str] | None,
    run_id: str | None,
    version: int | None,
    asset: str | None,
) -> None:
    """List the versions of tables with the runs that made them, and the inputs of these runs."""
    if sum(choice is not None for choice in (run_id, version, asset)) > 1:
        raise click.UsageError("--run, --version and --asset cannot be combined")
    tables = [table for table, _ in find_tables(uri, options, namespace)]
    if run_id is not None:
        run_id = _run_or_itself(tables, run_id, uri)
    facts = lineage(tables, run_id=run_id, version=version, asset=asset)
    if output.as_json:
        output.rows(facts, [])
    elif facts:
        output.rows([_format_for_people(entry) for entry in facts], _LINEAGE_COLUMNS)
    else:
        output.line("No version was found.")


def _run_or_itself(tables: list[lance_core.LanceDataset], run_id: str, label: str) -> str:
    """The run whose id has the given prefix; the prefix itself if no run has it, or several have."""
    try:
        return find_run(tables, run_id, label=label)
    except NoSuchRunError:
        return run_id


@_command("undo", "[ROOT_OR_TABLE]", lists=True)
@click.option(
    "--run", "run_id", metavar="ID", required=True, help="The run to undo; a unique prefix of its id is enough."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be undone.")
@click.option("--yes", is_flag=True, help="Undo it.")
@click.option(
    "--report", is_flag=True, help="Report the tables after the undo to the Dagster instance of DAGSTER_HOME."
)
def undo_command(
    uri: str,
    options: Mapping[str, str] | None,
    output: CommandOutput,
    namespace: Mapping[str, str] | None,
    run_id: str,
    dry_run: bool,
    yes: bool,
    report: bool,
) -> None:
    """Undo the changes of one run by a new commit per table and branch.

    If the changes cannot be undone exactly, the command fails with the reason and writes nothing.
    """
    if dry_run == yes:
        raise click.UsageError("give either --dry-run or --yes")
    if report and dry_run:
        raise click.UsageError("--report needs --yes: a dry run changes nothing that could be reported")
    with recording_instance(required=report) as instance:
        tables = [table for table, _ in find_tables(uri, options, namespace)]
        reject = partial(reject_lost_versions, instance, uri, options, namespace, tables)
        try:
            full_run_id = find_run(tables, run_id, label=uri)
            plans, before = _plan_undos([branch for table in tables for branch in open_branches(table)], full_run_id)
        except NoSuchRunError:
            reject(run_id, [])
            raise
        reject(full_run_id, [*before, *(plan.dataset for plan in plans)])
        rows = []
        for plan in plans:
            version = None if dry_run else plan.commit(options)
            rows.append(_describe_undo(plan, version))
            if report and instance is not None and version is not None:
                report_undo_of(instance, uri, namespace, plan, version)
        for branch in before:
            if report and instance is not None:
                report_undo_before(instance, uri, namespace, branch, full_run_id)
    columns = ["table", "branch", "undoes", "how", "rows", "rows_after", "version"]
    output.rows(rows if output.as_json else [_format_undo_for_people(row) for row in rows], columns)


def _plan_undos(
    branches: Sequence[lance_core.LanceDataset], run_id: str
) -> tuple[list[Undo], list[lance_core.LanceDataset]]:
    """The undos that are due, and the branches on which the run was undone before.

    Raises:
        CannotUndoError: The change of a branch cannot be undone, or all changes were undone before.
        NoSuchRunError: The run changed no rows.
    """
    plans, before = [], []
    again: AlreadyUndoneError | None = None
    for branch in branches:
        try:
            plan = plan_undo(branch, run_id)
        except AlreadyUndoneError as error:
            again = error
            before.append(branch)
        else:
            plans += [] if plan is None else [plan]
    if not plans and again is not None:
        raise again
    if not plans:
        raise NoSuchRunError(without_changes(branches, run_id))
    return plans, before


@_command("tables", "[ROOT]", lists=True)
def tables_command(
    uri: str, options: Mapping[str, str] | None, output: CommandOutput, namespace: Mapping[str, str] | None
) -> None:
    """List the tables below a root by their paths, or those of a namespace by their ids."""
    rows = [{"name": name, **_describe_table(table)} for table, name in find_tables(uri, options, namespace)]
    if not output.as_json:
        rows = [{**row, "time": str(row["time"] or "")[:_TO_SECONDS]} for row in rows]
    output.rows(rows, [column for column in rows[0] if column != "tags"])


def _describe_table(table: lance_core.LanceDataset) -> dict[str, Any]:
    newest = next(islice(read_history(table, count_changes=False), 1), None)
    last_write = next(
        (commit for commit in read_history(table, count_changes=False) if commit.run_id and commit.changes_rows), None
    )
    return {
        "table": table.uri,
        "asset": None if last_write is None else last_write.asset,
        "rows": table.count_rows(),
        "bytes": table.total_bytes,
        "fragments": len(table.fragment_ids()),
        "version": table.version,
        "versions": len(table.version_refs()),
        "branches": sorted(table.branches.list()),
        "tags": sorted(table.tags.list()),
        "time": None if newest is None else newest.time.isoformat(),
        "run_id": None if last_write is None else last_write.run_id,
    }


def _describe_undo(plan: Undo, version: int | None) -> dict[str, Any]:
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


def _format_for_people(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **entry,
        "time": str(entry["time"])[:_TO_SECONDS],
        "partitions": shorten_partitions(entry["partitions"]),
        "inputs": "\n".join(_format_input_for_people(read) for read in entry["inputs"]),
    }


def _format_input_for_people(read: Mapping[str, Any]) -> str:
    branch = f" of branch {read['branch']}" if "branch" in read else ""
    return f"{read['asset']} at {read['version']}{branch}"


def _format_undo_for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "undoes": "version " + ", ".join(map(str, row["undoes"]))}
