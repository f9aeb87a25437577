"""Commands that keep a table small, check it, or restore a version."""

from __future__ import annotations

import dataclasses
import sys
from datetime import timedelta
from typing import Any

import click

from lance_core.cli.command import FAILED, FOUND_PROBLEMS, command, parse_version
from lance_core.cli.output import CommandOutput, human_bytes
from lance_core.commit.versions import list_versions
from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.errors import CorruptFileError, InvalidInputError, LanceError
from lance_core.maintenance.cleanup.run import cleanup_old_versions, explain_cleanup_old_versions, select
from lance_core.maintenance.compaction.compaction import Compaction, compact
from lance_core.maintenance.compaction.options import COMPACTION_MODES
from lance_core.maintenance.verify.files import Problem
from lance_core.maintenance.verify.files import verify as verify_version
from lance_core.printing import printable
from lance_core.times import parse_duration


def parse_option_age(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """Read an age such as 14d or "1h 30m".

    Raises:
        BadParameter: The value is not a duration.
    """
    try:
        return None if value is None else parse_duration(value)
    except InvalidInputError as error:
        raise click.BadParameter(str(error), context, parameter) from error


_RETRIES = click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How often fragments that writers change meanwhile are planned and compacted again.",
)


@command("compact", versioned=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--target-rows", type=click.IntRange(min=1), help="Merge fragments with fewer rows.  [1048576]")
@click.option("--target-bytes", type=click.IntRange(min=1), help="Merge fragments with fewer bytes, up to this size.")
@click.option("--threshold", type=float, help="Rewrite fragments with more than this share of deleted rows.  [0.1]")
@click.option("--keep-deletions", is_flag=True, help="Do not rewrite fragments for their deletions.")
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="Never merge different values of COLUMN.")
@click.option("--mode", type=click.Choice(COMPACTION_MODES), help="How pages are rewritten.  [try_binary_copy]")
@click.option("--repair-pages", is_flag=True, help="Also rewrite fragments with pages that verify reports.")
@click.option("--exclude", type=int, multiple=True, metavar="FRAGMENT", help="Leave this fragment as it is.")
@click.option("--max-fragments", type=click.IntRange(min=1), help="The most fragments to rewrite.")
@click.option("--max-rows", type=click.IntRange(min=1), help="The most rows to rewrite.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="The most bytes to rewrite.")
@click.option("--processes", type=click.IntRange(min=1), help="Processes to use.")
@_RETRIES
def compact_command(
    dataset: LanceDataset, output: CommandOutput, dry_run: bool, retries: int, **arguments: Any
) -> None:
    """Merge small fragments and drop deleted rows.

    Fragments that writers change meanwhile are left for another attempt. Fragments that are left at the end are no
    failure: the next compaction finds them.

    Options that are not given come from the table's configuration (lance.compaction.*).
    """
    options = {
        "target_rows_per_fragment": arguments["target_rows"],
        "target_bytes_per_fragment": arguments["target_bytes"],
        "materialize_deletions_threshold": arguments["threshold"],
        "materialize_deletions": False if arguments["keep_deletions"] else None,
        "partition_by": arguments["partition_by"] or None,
        "compaction_mode": arguments["mode"],
        "repair_pages": arguments["repair_pages"] or None,
        "excluded_fragment_ids": arguments["exclude"] or None,
        "max_source_fragments": arguments["max_fragments"],
        "max_source_rows": arguments["max_rows"],
        "max_source_bytes": arguments["max_bytes"],
        "num_threads": arguments["processes"],
    }
    _compact(dataset, output, options, dry_run=dry_run, retries=retries)


@command("materialize-deletions", versioned=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--threshold", type=float, help="Only in fragments with more than this share of deleted rows.  [0.1]")
@click.option("--processes", type=click.IntRange(min=1), help="Processes to use.")
@_RETRIES
def materialize_deletions(
    dataset: LanceDataset,
    output: CommandOutput,
    dry_run: bool,
    threshold: float | None,
    processes: int | None,
    retries: int,
) -> None:
    """Drop deleted rows from the files of each fragment."""
    options = {"deletions_only": True, "materialize_deletions_threshold": threshold, "num_threads": processes}
    _compact(dataset, output, options, dry_run=dry_run, retries=retries)


def _compact(
    dataset: LanceDataset, output: CommandOutput, options: dict[str, Any], *, dry_run: bool, retries: int
) -> None:
    if dry_run:
        plan = Compaction.plan(dataset, options)
        rows = [
            {"task": number, "fragments": task.fragment_ids, "rows": task.num_rows, "bytes": task.num_bytes}
            for number, task in enumerate(plan.tasks, 1)
        ]
        if rows or output.as_json:
            output.rows(rows, ["task", "fragments", "rows", "bytes"])
        else:
            output.line("There is nothing to do.")
        return
    version, size = dataset.version, dataset.total_bytes
    with output.progress("rows rewritten") as progress:
        metrics = compact(dataset, options, progress=progress, retries=retries)
    if not output.as_json and not metrics.fragments_removed:
        busy = (
            f"Writers changed all fragments meanwhile, {retries + 1} times: {metrics.tasks_skipped} task(s) are left."
        )
        output.line(busy if metrics.tasks_skipped else "There is nothing to do.")
        return
    values = {**dataclasses.asdict(metrics), "from_version": version, "version": dataset.version}
    output.record({**values, "bytes_before": size, "bytes_after": dataset.total_bytes})


@command("cleanup", versioned=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--older-than",
    callback=parse_option_age,
    metavar="AGE",
    help='Remove versions that a newer one replaced longer ago than this, such as 14d or "1h 30m".  [14d; any age with '
    "--retain-versions or --only]",
)
@click.option(
    "--retain-versions",
    type=click.IntRange(min=1),
    help="How many of the newest versions to keep; without --older-than, all others are removed, of whatever age.",
)
@click.option("--only", type=int, multiple=True, metavar="VERSION", help="Remove only this version; can be repeated.")
@click.option("--in-use", type=int, multiple=True, metavar="VERSION", help="Keep this version; can be repeated.")
@click.option(
    "--delete-unverified", is_flag=True, help="Remove unreferenced files and versions of any age. Stop writers!"
)
@click.option("--fail-on-tags", is_flag=True, help="Fail if a tagged version is selected, rather than keep it.")
@click.option("--rate", type=click.IntRange(min=1), help="Most deletions per second.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Most deletions at a time.")
@click.option("--list", "list_files", is_flag=True, help="With --dry-run: list the files.")
def cleanup(dataset: LanceDataset, output: CommandOutput, dry_run: bool, **arguments: Any) -> None:
    """Remove old versions and files that only they need.

    The exit code is 1 if a file could not be deleted: its versions stay, and the next cleanup removes them.
    """
    if arguments["list_files"] and not dry_run:
        raise click.UsageError("--list is for --dry-run: give both, or neither to remove the files")
    selectors = select(
        arguments["older_than"],
        arguments["retain_versions"],
        versions=list(arguments["only"]) or None,
        delete_unverified=arguments["delete_unverified"],
        error_if_tagged_old_versions=arguments["fail_on_tags"],
        in_use={f"--in-use {version}": version for version in arguments["in_use"]},
        age_from="replacement",
    )
    if not dry_run:
        with output.progress("files removed") as progress:
            stats = cleanup_old_versions(
                dataset,
                selectors,
                delete_rate_limit=arguments["rate"],
                delete_concurrency=arguments["concurrency"],
                progress=progress,
            )
        output.record(dataclasses.asdict(stats))
        if stats.failures:
            message = f"{len(stats.failures):,} files could not be deleted; the first: {stats.failures[0]}"
            click.echo(printable(f"lance: {message}"), err=True)
            sys.exit(FAILED)
        return
    list_files = arguments["list_files"]
    plan = explain_cleanup_old_versions(dataset, selectors, include_files=list_files, max_files=sys.maxsize)
    if output.as_json:
        output.record(dataclasses.asdict(plan))
        return
    for warning in plan.warnings:
        output.line(warning)
    if list_files:
        output.rows([dataclasses.asdict(file) for file in plan.candidate_files], ["path", "kind", "size_bytes"])
    output.line(f"{plan.stats.old_versions} version(s), {human_bytes(plan.stats.bytes_removed)}, would be removed.")


@command("verify")
@click.option("--all", "all_versions", is_flag=True, help="Check all versions.")
@click.option("--rows", is_flag=True, help="Also read all rows.")
def verify(dataset: LanceDataset, output: CommandOutput, all_versions: bool, rows: bool) -> None:
    """Check that the files agree with the manifest.

    With --rows all pages are decoded as well.

    The exit code is 4 if there is a problem.
    """
    if all_versions and click.get_current_context().params["at_version"] is not None:
        raise click.UsageError("--all checks all versions: leave out --version")
    numbers = list_versions(dataset.snapshot.store) if all_versions else [dataset.version]
    problems: list[Problem] = []
    checked = 0
    for number in numbers:
        try:
            chosen = dataset.checkout_version(number)
        except LanceError as error:
            if isinstance(error, CorruptFileError) and number != numbers[-1]:
                continue  # the history of the other versions names it
            problems.append(Problem(version=number, fragment_id=None, path="", message=str(error)))
            continue
        with output.progress(f"version {number}: fragments checked") as progress:
            new = verify_version(chosen, progress, rows=rows)
            problems += [problem for problem in new if problem not in problems]  # of all: the history's
        checked += len(chosen.snapshot.manifest.fragments)
    listed = [dataclasses.asdict(problem) for problem in problems]
    if listed or output.as_json:
        output.rows(listed, ["version", "fragment_id", "path", "message"])
    output.line(f"{len(numbers)} version(s), {checked} fragment(s): {len(problems)} problem(s)")
    if problems:
        sys.exit(FOUND_PROBLEMS)


@command("migrate-row-ids", versioned=False)
def migrate_row_ids(dataset: LanceDataset, output: CommandOutput) -> None:
    """Give rows ids that survive updates and moves.

    One version is committed beside writers, and no row is written. Indices stay valid.
    """
    output.record(dataclasses.asdict(dataset.migrate_to_stable_row_ids()))


@command("restore", versioned=False)
@click.argument("version")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def restore(dataset: LanceDataset, output: CommandOutput, version: str, yes: bool) -> None:
    """Make an old VERSION the latest one again.

    VERSION is a number or a tag; the new version has the same content.
    """
    chosen = dataset.checkout_version(parse_version(version))
    if not yes and not output.as_json:
        click.confirm(printable(f"Make version {chosen.version} the latest one of {dataset.uri}?"), abort=True)
    restored = chosen.version
    chosen.restore()
    output.record({"restored_version": restored, "version": chosen.version})
