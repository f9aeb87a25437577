"""Metadata about a table's branches for its events: the number of open ones, and a page in Markdown.

lance/open_branches   branches that were not promoted
lance/branches        base, rows, checks and age of each branch; also its changes after a promotion, discard or report
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core.errors import LanceError
from lance_dagster.branches.check_results import find_failed_checks
from lance_dagster.events.table_log import cell, code, table
from lance_dagster.tables.branch_policy import BRANCH_TAG

_SHORT: Final = ("branch", "base", "commits", "rows", "checks", "age", "state")
_LONG: Final = ("branch", "base", "commits", "rows", "added", "removed", "partitions", "checks", "age", "state")

_MOST_BRANCHES: Final = 20
_MOST_RUNS: Final = 40
"""The most runs whose checks are looked up for a short page: a backfill has many runs."""


def describe_branches(
    main: lance_core.LanceDataset, instance: dg.DagsterInstance, key: dg.AssetKey, *, short: bool = False
) -> dict[str, Any]:
    """The entries of an event about the branches of a table.

    Args:
        main: The table.
        instance: The instance that recorded the table's checks.
        key: The asset.
        short: Whether to leave out the changes of each branch, which cost a request per commit.
    """
    listed = main.branches.list()
    newest_first = sorted(listed.items(), key=lambda pair: (-pair[1]["create_at"], pair[0]))
    shown = dict(newest_first[:_MOST_BRANCHES]) if short else listed
    most_runs = _MOST_RUNS if short else None
    checks = {name: find_failed_checks(instance, main, name, key, most_runs=most_runs) for name in shown}
    page = table(_SHORT if short else _LONG, _render_rows(main, shown, checks, short=short))
    left = len(listed) - len(shown)
    if left:
        page = f"{page}\n\nand {left} older ones"
    return {
        "lance/branches": dg.MetadataValue.md(page if listed else "No branches."),
        "lance/open_branches": sum(
            "lance.promoted_version" not in description["metadata"] for description in listed.values()
        ),
    }


def find_runs_of_branch(instance: dg.DagsterInstance, branch: str) -> Sequence[dg.DagsterRun]:
    """The runs whose tag `lance/branch` names a branch, newest first."""
    return instance.get_runs(filters=dg.RunsFilter(tags={BRANCH_TAG: branch}))


def _render_rows(
    main: lance_core.LanceDataset,
    described: Mapping[str, Mapping[str, Any]],
    checks: Mapping[str, list[str] | None],
    *,
    short: bool,
) -> Iterator[list[str]]:
    for name, description in described.items():
        base = f"{cell(description['parent_branch'] or 'main')}@{description['parent_version']}"
        promoted = description["metadata"].get("lance.promoted_version")
        try:
            cells, ahead = _short(main, name, description) if short else _long(main, name)
        except LanceError as error:  # a branch that is broken, or was just discarded, must not hide the others
            columns = len(_SHORT if short else _LONG)
            yield [
                code(name),
                base,
                *[""] * (columns - 4),
                _age(description["create_at"]),
                cell(f"cannot be read: {error}"),
            ]
            continue
        state = f"promoted as {promoted}" if promoted else f"open{ahead}"
        yield [code(name), base, *cells, _describe_checks(checks[name]), _age(description["create_at"]), cell(state)]


def _short(main: lance_core.LanceDataset, name: str, described: Mapping[str, Any]) -> tuple[list[str], str]:
    head = main.checkout_version((name, None))
    return [str(head.version - described["parent_version"]), f"{head.count_rows():,}"], ""


def _long(main: lance_core.LanceDataset, name: str) -> tuple[list[str], str]:
    diff = main.branches.diff(name)
    rows = (f"{count:,}" for count in (diff.rows.on_branch, diff.rows.added, diff.rows.removed))
    return [str(diff.commits), *rows, cell(_join_names(diff.partitions))], f", main {diff.drift} ahead"


def _describe_checks(failed: Sequence[str] | None) -> str:
    """The failed checks of a branch; None if they were not looked up."""
    if failed is None:
        return "not looked up"
    return cell("failed: " + ", ".join(failed)) if failed else "no failure"


def _join_names(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} .. {names[-1]} ({len(names)})"


def _age(created: int) -> str:
    seconds = max(0, int(datetime.now(UTC).timestamp()) - created)
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
