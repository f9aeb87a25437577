"""The record of what a branch's commits changed whose versions cleanup has removed, until the branch is promoted.

A promotion has the properties of all commits of its branch, and who judges a branch asks which commit changed what.
Cleanup keeps both in the branch's metadata, as JSON:

    lance.removed_commits   {"covered": [[first, last], ...], "commits": [[version, operation, {name: value}], ...]}

`covered` has the removed versions of which all changes of rows are in `commits`. Versions that another library has
removed are in neither, nor are those that were forgotten because the record would have become too long.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lance_core.commit import find_transaction
from lance_core.errors import VersionNotFoundError
from lance_core.store import ObjectStore, replace_durably
from lance_core.table.operations import CreateIndex, ReserveFragments, Rewrite, UpdateConfig
from lance_core.table.paths import branch_ref_key, is_detached
from lance_core.verbs.context.references import load_branch

__all__ = ["REMOVED_COMMITS_KEY", "RemovedCommit", "RemovedCommits", "record_removal", "removed_commits"]

REMOVED_COMMITS_KEY: Final = "lance.removed_commits"
MOST_BYTES: Final = 1 << 18
"""The most bytes of a record."""

_KEEPS_ROWS: Final = (CreateIndex, ReserveFragments, Rewrite, UpdateConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCommit:
    """A commit whose version was removed.

    Attributes:
        version: The version that it made.
        operation: The name of its operation, such as "Append".
        properties: Its transaction properties.
    """

    version: int
    operation: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCommits:
    """The record of a branch.

    Attributes:
        covered: The first and last of each range of removed versions whose changes of rows are known, ascending.
        commits: The commits in these ranges that may have changed rows, ascending.
    """

    covered: tuple[tuple[int, int], ...] = ()
    commits: tuple[RemovedCommit, ...] = ()

    def covers(self, version: int) -> bool:
        """Whether it is known what a version changed that was removed."""
        return any(first <= version <= last for first, last in self.covered)

    def to_json(self) -> str:
        """The value of the metadata."""
        commits = [[commit.version, commit.operation, dict(commit.properties)] for commit in self.commits]
        return json.dumps({"covered": self.covered, "commits": commits}, separators=(",", ":"))


def removed_commits(metadata: Mapping[str, str]) -> RemovedCommits:
    """The record in the metadata of a branch; an empty one without an entry.

    Args:
        metadata: The metadata, as in `branches.list()`.

    Examples:
        >>> maintenance.removed_commits({}).commits
        ()
    """
    content = json.loads(metadata.get(REMOVED_COMMITS_KEY, "{}"))
    return RemovedCommits(
        covered=tuple((first, last) for first, last in content.get("covered", ())),
        commits=tuple(
            RemovedCommit(version=version, operation=operation, properties=properties)
            for version, operation, properties in content.get("commits", ())
        ),
    )


def record_removal(root: ObjectStore, store: ObjectStore, name: str, versions: Collection[int]) -> None:
    """Add versions of a branch that are about to be removed to its record; nothing is recorded of a promoted branch.

    Args:
        root: The store of the dataset.
        store: The store of the branch.
        name: The branch.
        versions: The versions; they exist.
    """
    try:
        ref = load_branch(root, name)
    except VersionNotFoundError:  # it was deleted meanwhile
        return
    if any(key.startswith("lance.promoted_") for key in ref.metadata):
        return
    before = removed_commits(ref.metadata)
    commits = {commit.version: commit for commit in before.commits}
    covered = {version for first, last in before.covered for version in range(first, last + 1)}
    for version in sorted(versions):
        transaction = (
            None if is_detached(version) or version <= ref.parent_version else find_transaction(store, version)
        )
        if transaction is None:
            continue
        covered.add(version)
        if not isinstance(transaction.operation, _KEEPS_ROWS):
            commits[version] = RemovedCommit(
                version=version, operation=transaction.operation.name, properties=transaction.properties
            )
    record = _shorten(covered, [commits[version] for version in sorted(commits)])
    if record == before:
        return
    metadata = {**ref.metadata, REMOVED_COMMITS_KEY: record.to_json()}
    replace_durably(root, branch_ref_key(name), replace(ref, metadata=metadata).to_bytes())


def _shorten(covered: set[int], commits: list[RemovedCommit]) -> RemovedCommits:
    """The record without the oldest commits if it would be too long."""
    while True:
        record = RemovedCommits(covered=_join(covered), commits=tuple(commits))
        size = len(record.to_json())
        if size <= MOST_BYTES or not commits:
            return record
        forgotten = commits[: max(1, len(commits) * (size - MOST_BYTES) // size)]
        commits = commits[len(forgotten) :]
        covered = {version for version in covered if version > forgotten[-1].version}


def _join(versions: Collection[int]) -> tuple[tuple[int, int], ...]:
    """The ranges of consecutive versions."""
    ranges: list[tuple[int, int]] = []
    for version in sorted(versions):
        if ranges and ranges[-1][1] == version - 1:
            ranges[-1] = (ranges[-1][0], version)
        else:
            ranges.append((version, version))
    return tuple(ranges)
