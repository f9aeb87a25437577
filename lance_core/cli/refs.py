"""Commands for branches and shallow clones: branches, promote, discard, clones."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from lance_core.cli.command import command
from lance_core.cli.maintenance import parse_option_age
from lance_core.cli.output import CommandOutput
from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.errors import LanceError
from lance_core.printing import printable


@command("branches", versioned=False)
@click.argument("branch", required=False)
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="With BRANCH: count changed rows by COLUMN.")
@click.option("--orphans", is_flag=True, help="List branches left by an unfinished creation or removal.")
def branches(
    dataset: LanceDataset, output: CommandOutput, branch: str | None, partition_by: tuple[str, ...], orphans: bool
) -> None:
    """List branches and what they changed.

    With BRANCH, show its changes in full.
    """
    if orphans and (branch is not None or partition_by):
        raise click.UsageError("--orphans lists branches without a record: give it alone")
    if partition_by and branch is None:
        raise click.UsageError("--partition-by is for one BRANCH: name it")
    if branch is not None:
        diff = dataset.branches.diff(branch, partition_by=list(partition_by) or None)
        output.record({**dataclasses.asdict(diff), "drift": diff.drift})
        return
    if orphans:
        output.rows([{"name": name} for name in dataset.branches.orphans(timedelta(0))], ["name"])
        return
    rows = [_row(dataset, name, described) for name, described in dataset.branches.list().items()]
    columns = ["branch", "parent", "parent_version", "version", "commits", "rows", "added", "removed", "drift"]
    output.rows(rows, [*columns, "promoted_version", "created", "committed"])


@command("clones", versioned=False)
@click.option(
    "--release", metavar="CLONE", help="Let cleanup remove the version of this clone, given by its tag or root."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clones(dataset: LanceDataset, output: CommandOutput, release: str | None, yes: bool) -> None:
    """List the shallow clones of a table, or release one.

    Cleanup keeps the versions that shallow clones refer to.
    """
    if release is not None:
        if not (yes or output.as_json):
            click.confirm(printable(f"Let cleanup remove what the clone {release} refers to?"), abort=True)
        output.rows([{"released": name} for name in dataset.clones.release(release)], ["released"])
        return
    rows = [
        {"clone": name, "uri": record["uri"], "branch": record["branch"] or "main", "version": record["version"],
         "created": record["created_at"]}
        for name, record in dataset.clones.list().items()
    ]  # fmt: skip
    output.rows(rows, ["clone", "uri", "branch", "version", "created"])


@command("promote", versioned=False)
@click.argument("branch")
@click.option("--tag", help="Name of a tag for the new version.  [promoted.<branch>.<id>]")
@click.option("--no-tag", is_flag=True, help="Do not tag the new version.")
@click.option("-m", "--message", help="A string for the history.")
@click.option("--discard", "then_discard", is_flag=True, help="Discard the branch afterwards.")
def promote(
    dataset: LanceDataset,
    output: CommandOutput,
    branch: str,
    tag: str | None,
    no_tag: bool,
    message: str | None,
    then_discard: bool,
) -> None:
    """Commit the changes of BRANCH to main, in one version.

    A branch that was promoted already makes no second version.
    """
    if tag is not None and no_tag:
        raise click.UsageError("give --tag or --no-tag, not both")
    done = dataset.branches.promote(branch, tag=tag or not no_tag, commit_message=message)
    if then_discard:
        dataset.branches.discard(branch)
    output.record(dataclasses.asdict(done))


@command("discard", versioned=False)
@click.argument("branch", required=False)
@click.option(
    "--older-than", callback=parse_option_age, metavar="AGE", help="Without BRANCH: all branches idle for this time."
)
@click.option("--dry-run", is_flag=True, help="With --older-than: only say what would be discarded.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def discard(
    dataset: LanceDataset,
    output: CommandOutput,
    branch: str | None,
    older_than: timedelta | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete BRANCH and its files.

    With --older-than, delete all branches without a recent commit.
    """
    if (branch is None) == (older_than is None):
        raise click.UsageError("give a BRANCH, or --older-than")
    if branch is not None and dry_run:
        raise click.UsageError("--dry-run is for --older-than: `lance branches TABLE BRANCH` shows what BRANCH holds")
    if not (yes or dry_run or output.as_json):
        click.confirm(printable(f"Discard {branch or 'idle branches'} of {dataset.uri}?"), abort=True)
    if branch is not None:
        output.record({"branch": branch, "discarded": dataset.branches.discard(branch)})
        return
    assert older_than is not None
    output.record({**dataclasses.asdict(dataset.branches.sweep(older_than, dry_run=dry_run)), "dry_run": dry_run})


def _row(dataset: LanceDataset, name: str, described: dict[str, Any]) -> dict[str, Any]:
    row = {
        "branch": name,
        "parent": described["parent_branch"] or "main",
        "parent_version": described["parent_version"],
        "created": datetime.fromtimestamp(described["create_at"], UTC),
        "promoted_version": described["metadata"].get("lance.promoted_version"),
    }
    try:
        diff = dataset.branches.diff(name)
    except LanceError as error:  # a broken branch must not hide the others
        return {**row, "error": str(error)}
    return {
        **row,
        "version": diff.branch_version,
        "commits": diff.commits,
        "rows": diff.rows.on_branch,
        "added": diff.rows.added,
        "removed": diff.rows.removed,
        "partitions": list(diff.partitions),
        "drift": diff.drift,
        "committed": diff.committed,
    }
