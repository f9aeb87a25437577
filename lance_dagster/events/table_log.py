"""Pages about a table in Markdown, for the metadata of its events; values are escaped.

lance/table_log    the last ten versions: a link to the run, time, operation, rows, partitions; branches with their fork
                   versions, tags, the inputs of each version, and the assets that read the table

Empty columns are left out, so that a page fits into the 800 pixels that Dagster's UI has for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lance_core.printing import printable
from lance_dagster.lineage.consumers import MOST_CONSUMERS
from lance_dagster.lineage.history import TableVersion, read_history

if TYPE_CHECKING:
    import lance_core

LAST: Final = 10
_KEYS_SHOWN: Final = 2
_LONGEST_MESSAGE: Final = 40
_ON_ONE_LINE: Final = str.maketrans({" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"})
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()#+!|~<>&$])")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/-]+")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_LONGEST: Final = 200


def read_recent_versions(dataset: lance_core.LanceDataset) -> list[TableVersion]:
    """The newest versions, newest first."""
    return list(islice(read_history(dataset, count_changes=False, ahead=LAST + 1), LAST))


def render_history(versions: Iterable[TableVersion], ui_url: str = "") -> str:
    """Versions as a table in Markdown, with links to their runs in the UI at a URL."""
    return table(
        ["run", "version", "time (UTC)", "operation", "rows", "partitions", "message"],
        (
            [
                run_link(version.committed_by or version.run_id, ui_url),
                str(version.version),
                f"{version.time:%Y-%m-%d %H:%M:%S}".translate(_ON_ONE_LINE),
                cell(version.operation),
                cell(version.rows),
                cell(shorten_partitions(version.partitions)),
                cell(_cut(version.message)),
            ]
            for version in versions
        ),
        optional=True,
    )


def _cut(message: str | None) -> str | None:
    """A commit message, shortened: no other cell of the table can be long."""
    if message is None or len(message) <= _LONGEST_MESSAGE:
        return message
    return message[: _LONGEST_MESSAGE - 1] + "…"


def render_table_log(
    dataset: lance_core.LanceDataset,
    versions: Sequence[TableVersion],
    consumers: Mapping[str, int | None] | None = None,
    ui_url: str = "",
    branches: str | None = None,
) -> str:
    """The page of a table.

    Args:
        dataset: The table.
        versions: The versions to show, newest first.
        consumers: The assets that read the table, with the version that each read last, or None where it is unknown;
            None if the assets are unknown.
        ui_url: The URL of the Dagster UI, for links to runs.
        branches: Markdown about the branches; by default their tree.
    """
    parts = [f"## {cell(dataset.root_uri)}", "### Versions", render_history(versions, ui_url)]
    parts += [
        "### Branches",
        branches or _branches(dataset),
        "### Tags",
        _tags(dataset),
        "### Inputs",
        _inputs(versions),
    ]
    if consumers is not None:
        rows = ([cell(asset), cell(version)] for asset, version in sorted(consumers.items()))
        parts += ["### Consumers", table(["asset", "version read last"], rows, optional=True) if consumers else "none"]
        if len(consumers) >= MOST_CONSUMERS:
            parts.append(f"At most {MOST_CONSUMERS} consumers are listed.")
    return "\n\n".join(parts)


def _branches(dataset: lance_core.LanceDataset) -> str:
    """The branches as a tree: each below the branch from which it was forked."""
    branches: dict[str, Any] = dataset.branches.list()
    children: dict[str, list[str]] = {}
    for name, branch in branches.items():
        children.setdefault(branch.get("parent_branch") or "main", []).append(name)
    lines: list[str] = []

    def add(name: str, depth: int) -> None:
        label = f" from version {branches[name].get('parent_version')}" if name in branches else ""
        lines.append(f"{'  ' * depth}- {cell(name)}{label}")
        for child in sorted(children.pop(name, [])):
            add(child, depth + 1)

    add("main", 0)
    for orphans in list(children):
        for name in sorted(children.pop(orphans, [])):
            add(name, 0)
    return "\n".join(lines)


def _tags(dataset: lance_core.LanceDataset) -> str:
    tags: dict[str, Any] = dataset.tags.list()
    rows = (
        [cell(name), cell(tag.get("branch") or "main"), str(tag.get("version"))] for name, tag in sorted(tags.items())
    )
    return table(["tag", "branch", "version"], rows) if tags else "none"


def _inputs(versions: Iterable[TableVersion]) -> str:
    rows = [
        [str(version.version), cell(read.asset), cell(read.label)] for version in versions for read in version.inputs
    ]
    return table(["version", "read", "at version"], rows) if rows else "none"


def shorten_partitions(partitions: Any) -> str:
    """A few partition keys in full; of more keys the number, the first and the last."""
    if partitions is None:
        return ""
    if isinstance(partitions, dict):
        count = f"{partitions['count']} keys, " if "count" in partitions else ""
        return f"{count}{partitions.get('first')} .. {partitions.get('last')}"
    if len(partitions) <= _KEYS_SHOWN:
        return ", ".join(map(str, partitions))
    return f"{len(partitions)} keys, {partitions[0]} .. {partitions[-1]}"


def cell(value: object) -> str:
    """A value as a cell: Markdown, control and direction characters are escaped, and long values truncated."""
    if value is None:
        return ""
    plain = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    shown = plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
    return _SPECIAL.sub(r"\\\1", printable(shown).replace("\n", "\\n"))


def code(name: str) -> str:
    """A name as code if it has only ASCII letters, digits, `.`, `_`, `/` and `-`; else as a cell."""
    return f"`{name}`" if _PLAIN.fullmatch(name) else cell(name)


def run_link(run_id: str | None, ui_url: str = "") -> str:
    """A link to a run in the UI at a URL or path; a string that is no id of a run becomes a cell."""
    if run_id is None:
        return ""
    return f"[{run_id[:8]}]({ui_url.rstrip('/')}/runs/{run_id})" if _RUN_ID.fullmatch(run_id) else cell(run_id)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, optional: bool = False) -> str:
    """A table in Markdown, whose cells are Markdown; with `optional`, columns without any entry are left out."""
    lines = [list(row) for row in rows]
    if optional and lines:
        used = [position for position in range(len(headings)) if any(line[position] for line in lines)]
        headings = [headings[position] for position in used]
        lines = [[line[position] for position in used] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(headings), ["---"] * len(headings), *lines])
