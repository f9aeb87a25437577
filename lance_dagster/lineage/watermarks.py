"""Watermarks of incremental inputs: the version that each part of a table has consumed, and what is read next.

watermark   <asset key of the input> / <part>, or in a table that several assets write
            <asset key of the input> for <asset key of the reader> / <part>
part        `lineage.input_parts` describes them
position    {"version": 9, "identity": "...", "branch": "b", "since": 7, "run": "...", "rows": "..."}
            and "read": 8 if version 9 is a promotion whose changes were consumed before, on its branch

After the promotion of a branch that was consumed up to version V, these ranges of versions are unread, in this order. A
run reads the first one that has changes, so that each change is read once:

    branch  (V, promoted]     versions that the branch got after the run
    main    (fork, P - 1]     versions that others wrote to main before P, the version that promoted the branch
    main    (P, latest]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lance_core.errors import IncompatibleConflictError, UnsupportedError, VersionNotFoundError
from lance_dagster.lineage.history import read_history
from lance_dagster.properties import PROMOTED_FORK, PROMOTED_FROM, PROMOTED_IDENTITY, PROMOTED_VERSION, split_values
from lance_dagster.tables.location import TABLE_KEY, is_shared

if TYPE_CHECKING:
    import lance_core

FULL_REFRESH: Final = "lance/full_refresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPosition:
    """The position up to which a part of a downstream table has consumed an input.

    Attributes:
        version: The last version whose changes were consumed.
        since: The version after which the last consumed changes began.
        identity: The identity of `version`.
        branch: The branch of the input; None for main.
        run: The run that consumed the changes.
        rows: The rows of the input that were read, as `lineage.input_parts` describes them; None in positions of
            earlier versions of this library.
        read: The last version whose changes the run read; None if it is `version`.
    """

    version: int
    since: int
    identity: str
    branch: str | None
    run: str
    rows: str | None = None
    read: int | None = None

    @classmethod
    def of(cls, value: str) -> InputPosition:
        """The position from the value of a watermark."""
        fields = json.loads(value)
        return cls(**{name: fields.get(name) for name in cls.__slots__})

    def entry(self) -> str:
        """The position as the value of a watermark."""
        entry = {name: getattr(self, name) for name in self.__slots__}
        for name in ("rows", "read"):
            if entry[name] is None:
                del entry[name]
        return json.dumps(entry, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadRange:
    """Versions of an input whose changes a run can read.

    Attributes:
        begin: The version after which the changes begin; 0 for all rows.
        dataset: The input's table at the last version whose changes are read.
        consumed: The input's table at the version that is consumed afterwards: that of `dataset`, or the promotion that
            follows it.
    """

    begin: int
    dataset: lance_core.LanceDataset
    consumed: lance_core.LanceDataset

    @classmethod
    def up_to(cls, dataset: lance_core.LanceDataset, begin: int) -> UnreadRange:
        """The range of versions after `begin`, up to that of a table."""
        return cls(begin=begin, dataset=dataset, consumed=dataset)

    @property
    def end(self) -> tuple[str, int]:
        """The branch and the last version whose changes are read."""
        return self.dataset.branch or "main", self.dataset.version

    def position(self, run: str, rows: str) -> InputPosition:
        """The position of a part after a run has consumed the range for some rows."""
        last = self.consumed.version
        return InputPosition(
            version=last,
            since=self.begin,
            identity=self.consumed.identity,
            branch=self.consumed.branch,
            run=run,
            rows=rows,
            read=None if self.dataset.version == last else self.dataset.version,
        )


def watermark_name(asset: str, reader: str, metadata: Mapping[str, object]) -> str:
    """The name of the watermarks of an input in the table of an asset that reads it.

    Args:
        asset: The input.
        reader: The asset that reads the input.
        metadata: The reader's definition metadata. Each asset of a shared table has watermarks of its own.
    """
    shares = TABLE_KEY in metadata or is_shared(metadata, f"asset {reader}")
    return f"{asset} for {reader}" if shares else asset


def positions_of(table: lance_core.LanceDataset, name: str) -> set[InputPosition]:
    """The positions up to which the parts of a table have consumed an input, by the name of the watermarks."""
    return {InputPosition.of(watermark.position) for watermark in table.watermarks(name).values()}


def needed_versions(table: lance_core.LanceDataset, name: str, branch: str | None) -> set[int]:
    """The versions of a branch of an input that parts of a table consumed last, and those from which they began.

    The next run reads the changes after the last consumed version. If the last run is undone, the version from which it
    began becomes the last consumed one.
    """
    positions = [position for position in positions_of(table, name) if position.branch == branch]
    return {version for position in positions for version in (position.version, position.since)}


def unread_by_key(
    dataset: lance_core.LanceDataset, parts: Iterable[tuple[InputPosition | None, str | None]], label: str
) -> list[tuple[list[UnreadRange], list[str] | None]]:
    """The unread ranges of an input, in the order in which runs read them, with the partitions that are to be read.

    Args:
        dataset: The input's table at the latest version.
        parts: Positions of parts of the asset that reads the input, each with the partition of the input that the part
            reads; None for all rows.
        label: The input, for messages.

    Raises:
        VersionNotFoundError: The version that was consumed last was cleaned up.
        IncompatibleConflictError: The input's table was created again, or another branch of it was consumed.
    """
    read: dict[InputPosition | None, list[UnreadRange]] = {}
    keys_by_ranges: dict[tuple[object, ...], tuple[list[UnreadRange], list[str] | None]] = {}
    for position, key in parts:
        if position not in read:
            read[position] = unread_ranges(dataset, position, label)
        same = tuple((unread.begin, *unread.end) for unread in read[position])
        _, keys = keys_by_ranges.get(same, (None, None))
        keys_by_ranges[same] = read[position], None if key is None else sorted({*(keys or ()), key})
    return list(keys_by_ranges.values())


def updates_unknown(uri: str, label: str, error: UnsupportedError) -> UnsupportedError:
    """The error about reading changes of a table that does not record which rows were updated.

    Args:
        uri: The table.
        label: The input, for the message.
        error: The error of the read.
    """
    return UnsupportedError(
        f"{label}: {uri} had no stable row ids in these versions, so that updates of rows cannot be read as changes: "
        f"{error}. Give them to the table (lance migrate-row-ids {uri}, or stable_row_ids=True of a "
        f"LanceMaintenancePolicy), and let one run with the tag {FULL_REFRESH}=true read all rows"
    )


def unread_ranges(dataset: lance_core.LanceDataset, position: InputPosition | None, label: str) -> list[UnreadRange]:
    """The ranges of versions of an input that are not consumed, in the order in which runs read them.

    Args:
        dataset: The input's table at the latest version.
        position: The position up to which the input was consumed; None if nothing was.
        label: The input, for messages.

    Returns:
        At least one range; the last one ends at the version of `dataset`.

    Raises:
        VersionNotFoundError: A version was cleaned up, so that the changes are not known.
        IncompatibleConflictError: The table was created again, or the consumed version is on a branch that was not
            promoted.
    """
    if position is None:
        return [UnreadRange.up_to(dataset, 0)]
    version, branch = position.version, position.branch
    if not _is_ancestor(dataset, branch, version):
        return _ranges_after_promotion(dataset, position, label)
    consumed = _checked_out(dataset, branch, version, label)
    if consumed.identity != position.identity:
        raise IncompatibleConflictError(
            f"{label}: version {version} of {dataset.uri} is not the one that was consumed: the table was dropped and "
            f"created again. Run with the tag {FULL_REFRESH}=true to read all rows"
        )
    return [UnreadRange.up_to(dataset, version)]


def _is_ancestor(dataset: lance_core.LanceDataset, branch: str | None, version: int) -> bool:
    """Whether a version is in the history of a table: on its branch, or before a fork on a parent branch."""
    line, forks = dataset.branch, {} if branch == dataset.branch else dataset.branches.list()
    last = version
    while line != branch:
        if line is None or line not in forks:
            return False
        line, last = forks[line]["parent_branch"], forks[line]["parent_version"]
    return version <= last


def consumed_range(dataset: lance_core.LanceDataset, position: InputPosition, label: str) -> UnreadRange:
    """The range of versions that a run has consumed, to be read again.

    Args:
        dataset: The input's table at the latest version.
        position: The position that the run has stored.
        label: The input, for messages.

    Raises:
        VersionNotFoundError: A version was cleaned up.
    """
    consumed = _checked_out(dataset, position.branch, position.version, label)
    read = consumed if position.read is None else _checked_out(dataset, position.branch, position.read, label)
    return UnreadRange(begin=position.since, dataset=read, consumed=consumed)


def _checked_out(
    dataset: lance_core.LanceDataset, branch: str | None, version: int, label: str
) -> lance_core.LanceDataset:
    """The input's table at a version of a branch, which was consumed last or not consumed yet.

    Raises:
        VersionNotFoundError: The version was cleaned up.
    """
    if (branch, version) == (dataset.branch, dataset.version):
        return dataset
    try:
        return dataset.checkout_version((branch, version))
    except VersionNotFoundError as error:
        available_versions = dataset.checkout_version((branch, None)).version_refs()
        raise VersionNotFoundError(
            f"{label}: version {version} of {_place(dataset, branch)}, which was consumed last or not consumed yet, "
            "was cleaned up, so that what changed since is not known; the oldest available version is "
            f"{available_versions[0]['version']}. Run with the tag {FULL_REFRESH}=true to read all rows, and replace "
            "those that were derived from them"
        ) from error


def _place(dataset: lance_core.LanceDataset, branch: str | None) -> str:
    return dataset.uri if branch in (None, dataset.branch) else f"branch {branch!r} of {dataset.uri}"


def _other_rows(dataset: lance_core.LanceDataset, position: InputPosition, label: str) -> IncompatibleConflictError:
    return IncompatibleConflictError(
        f"{label}: version {position.version} of branch {position.branch or 'main'!r} was consumed last, which is not "
        f"in the history of version {dataset.version} of {dataset.uri}. Run with the tag {FULL_REFRESH}=true to read "
        "all rows"
    )


def _ranges_after_promotion(dataset: lance_core.LanceDataset, position: InputPosition, label: str) -> list[UnreadRange]:
    """The ranges after the promotion of the branch that was consumed.

    Raises:
        VersionNotFoundError: A version that others wrote was cleaned up.
        IncompatibleConflictError: The branch was not promoted, or was removed after later versions of it were promoted.
    """
    promotions = [
        commit
        for commit in read_history(dataset, count_changes=False)
        if position.branch in split_values(commit.properties.get(PROMOTED_FROM))
        and PROMOTED_IDENTITY in commit.properties
    ]
    # Other promotions are of branches that were forked later by the same name, or of later versions of this branch.
    exact = [commit for commit in promotions if commit.properties[PROMOTED_IDENTITY] == position.identity]
    for commit in (exact or promotions)[:1]:
        later = _later_on_branch(dataset, position, commit.properties, label)
        promotion = _checked_out(dataset, dataset.branch, commit.version, label)
        unread_of_others = _find_ranges_of_others(promotion, int(commit.properties[PROMOTED_FORK]), label)
        return [*later, *unread_of_others, UnreadRange.up_to(dataset, commit.version)]
    raise _other_rows(dataset, position, label)


def _later_on_branch(
    dataset: lance_core.LanceDataset, position: InputPosition, properties: Mapping[str, str], label: str
) -> list[UnreadRange]:
    """The promoted versions of a branch after the one that was consumed.

    Raises:
        VersionNotFoundError: A promoted version was cleaned up.
        IncompatibleConflictError: The versions do not exist any more: the branch was removed, or created again.
    """
    promoted, identity = int(properties[PROMOTED_VERSION]), properties[PROMOTED_IDENTITY]
    if position.identity == identity:
        return []
    assert position.branch is not None
    if position.branch in dataset.branches.list() and position.version < promoted:
        consumed = _checked_out(dataset, position.branch, position.version, label)
        last = _checked_out(dataset, position.branch, promoted, label)
        if (consumed.identity, last.identity) == (position.identity, identity):
            return [UnreadRange.up_to(last, position.version)]
    raise IncompatibleConflictError(
        f"{label}: version {position.version} of branch {position.branch!r} was consumed last. Its version {promoted} "
        "was promoted, and the versions between do not exist any more, as the branch was removed or created again. Run "
        f"with the tag {FULL_REFRESH}=true to read all rows of {dataset.uri}"
    )


def _find_ranges_of_others(promotion: lance_core.LanceDataset, fork: int, label: str) -> list[UnreadRange]:
    """The versions between a fork and its promotion that may have changed rows; versions that were cleaned up count.

    Raises:
        VersionNotFoundError: The last version that others wrote was cleaned up.
    """
    history = read_history(promotion, after=fork, count_changes=False)
    unchanged = {commit.version for commit in history if not commit.changes_rows}
    changed_versions = [version for version in range(fork + 1, promotion.version) if version not in unchanged]
    if not changed_versions:
        return []
    last = _checked_out(promotion, promotion.branch, max(changed_versions), label)
    return [UnreadRange(begin=fork, dataset=last, consumed=promotion)]
