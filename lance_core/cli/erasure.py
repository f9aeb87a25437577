"""The command that erases rows, and proves it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lance_core.cli.command import FOUND_PROBLEMS, command
from lance_core.cli.output import CommandOutput, human_bytes
from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.maintenance.erasure.report import ErasureReport
from lance_core.printing import printable


def _read_condition(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The condition, or the content of the file that is named after an @."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise click.BadParameter(printable(f"{value[1:]}: {reason}"), context, parameter) from None


@command("erase", versioned=False)
@click.option(
    "--where",
    required=True,
    metavar="SQL",
    callback=_read_condition,
    help="The rows. @FILE reads the condition from a file, so that no list of processes shows it.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and which versions stop being readable.")
@click.option("--retag", is_flag=True, help="Move tags of versions that hold rows to the version after the erasure.")
@click.option(
    "--release-branches", is_flag=True, help="Remove versions that branches were forked from; these cannot be promoted."
)
@click.option("--drop-indices", is_flag=True, help="Drop indices that hold rows and cannot be built here.")
@click.option(
    "--delete-unverified", is_flag=True, help="Remove unreferenced files and versions of any age. Stop writers!"
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def erase(dataset: LanceDataset, output: CommandOutput, where: str, dry_run: bool, yes: bool, **allowed: Any) -> None:
    """Erase rows from all versions, branches and files.

    The rows are removed from indices as well. What is left is read to prove it.

    Exit code 4 if rows may be left; the obstacles, or the places that can still hold rows, are listed.
    """
    if not (yes or dry_run or output.as_json):
        _ask(dataset)
    try:
        report = dataset.erase_rows(where, dry_run=dry_run, **allowed)
    except (InvalidInputError, UnsupportedError) as error:
        columns = ", ".join(dataset.schema.names)
        raise InvalidInputError(
            f"the condition does not fit the table ({error.code}), whose columns are {columns}; the message is "
            "withheld, as it can show the condition or a row: erase_rows(..., dry_run=True) in Python shows it"
        ) from None
    if output.as_json:
        output.record(dataclasses.asdict(report))
    else:
        _print(report, output)
    if report.obstacles or not (report.proven or dry_run):
        sys.exit(FOUND_PROBLEMS)


def _ask(dataset: LanceDataset) -> None:
    """Ask whether rows are to be erased; end the command unless the answer is yes."""
    try:
        agreed = click.confirm(printable(f"Erase rows from all versions of {dataset.uri} forever?"))
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("there is no answer on standard input: --yes erases without the question") from None
    if not agreed:
        raise click.Abort


def _print(report: ErasureReport, output: CommandOutput) -> None:
    """Print what was found and done, what is left, and the verdict."""
    if report.holding:
        rows = [dataclasses.asdict(version) for version in report.holding]
        columns = ["branch", "version", "is_latest", "fragments", "reasons", "tags"]
        output.rows(rows, columns, title="Versions that hold rows, or traces of them")
    for title, findings in (("Obstacles", report.obstacles), ("What can still hold rows", report.remaining)):
        if findings:
            rows = [dataclasses.asdict(finding) for finding in findings]
            output.rows(rows, ["kind", "path", "message"], title=title)
    columns = [field.name for field in dataclasses.fields(report)]
    shown = columns[columns.index("rows_deleted") : columns.index("remaining")]
    output.record({name: _list_actions(getattr(report, name)) for name in shown})
    read = report.read
    amount = (
        f"{read.files} file(s), {human_bytes(read.bytes)}, {read.versions} version(s) of {read.branches} branch(es)"
    )
    if report.obstacles:
        output.line("Nothing was changed." if not report.dry_run else "Nothing would be changed.")
    elif report.proven:
        output.line(f"No row is left: {amount} were read.")
    elif report.dry_run:
        output.line("Nothing was changed: this was a dry run.")
    else:
        output.line(f"Not proven: {len(report.remaining)} place(s) can still hold rows; {amount} were read.")


def _list_actions(actions: Mapping[str, Any] | Sequence[str] | int) -> list[str] | int | None:
    """What was done to each place, or to how many."""
    if isinstance(actions, int):
        return actions or None
    if not isinstance(actions, Mapping):
        return list(actions)
    return [
        f"{name}: {', '.join(map(str, done)) if isinstance(done, tuple) else done}" for name, done in actions.items()
    ]
