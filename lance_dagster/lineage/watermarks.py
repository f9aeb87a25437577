"""Watermarks of incremental inputs: the version that each part of a table has consumed, and what is read next.

watermark   <asset key of the input> / <part>, or of a table that several assets write
            <asset key of the input> for <asset key of the reader> / <part>
part        "all", or the beginning of the digest of a partition's key
position    {"version": 9, "identity": "...", "branch": "b", "since": 7, "run": "..."}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lance_core.errors import IncompatibleConflictError, UnsupportedError, VersionNotFoundError
from lance_dagster.lineage.history import read_history
from lance_dagster.properties import PROMOTED_FORK, PROMOTED_FROM, PROMOTED_VERSION, hashed, several
from lance_dagster.tables.location import TABLE_KEY, is_shared

if TYPE_CHECKING:
    import lance_core

__all__ = [
    "FULL_REFRESH",
    "InputPosition",
    "by_version",
    "consumed_versions",
    "next_after",
    "parts_of",
    "unread_after",
    "updates_unknown",
    "watermark_name",
]

FULL_REFRESH: Final = "lance/full_refresh"
_WHOLE: Final = "all"
"""The part of a table without partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPosition:
    """How far a part of a downstream table has consumed an input.

    Attributes:
        version: The last version whose changes were consumed.
        since: The version after which they began.
        identity: The identity of `version`.
        branch: The branch of the input; None for main.
        run: The run that consumed them.
    """

    version: int
    since: int
    identity: str
    branch: str | None
    run: str

    @classmethod
    def of(cls, value: str) -> InputPosition:
        """The position that a watermark holds."""
        found = json.loads(value)
        return cls(**{name: found.get(name) for name in cls.__slots__})

    def entry(self) -> str:
        """The position as a watermark holds it."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":"))


def watermark_name(asset: str, reader: str, metadata: Mapping[str, object]) -> str:
    """The name of the watermarks of an input in the table of an asset that reads it.

    Args:
        asset: The input.
        reader: The asset.
        metadata: Its definition metadata. Of assets that share a table each has consumed an input by itself.
    """
    shares = TABLE_KEY in metadata or is_shared(metadata, f"asset {reader}")
    return f"{asset} for {reader}" if shares else asset


def consumed_versions(table: lance_core.LanceDataset, name: str, branch: str | None) -> set[int]:
    """The versions of a branch of an input that parts of a table have consumed last, by the name of its watermarks."""
    positions = [InputPosition.of(one.position) for one in table.watermarks(name).values()]
    return {one.version for one in positions if one.branch == branch}


def unread_after(
    dataset: lance_core.LanceDataset,
    table: lance_core.LanceDataset,
    name: str,
    partitions: Sequence[str] | None,
    where: str,
) -> Mapping[int, Sequence[str] | None]:
    """The versions of an input after which the next run reads it, each with its partitions of the reader; None for all.

    Args:
        dataset: The input's table at the latest version.
        table: The table of the asset that reads it.
        name: The name of the input's watermarks there.
        partitions: The partitions of the asset that reads it; None if it has none.
        where: The input, for messages.

    Raises:
        VersionNotFoundError: The version that was consumed last was cleaned up.
        IncompatibleConflictError: The table was made again, or another branch of it was consumed.
    """
    known = {part: InputPosition.of(one.position) for part, one in table.watermarks(name).items()}
    return by_version(
        (0 if part not in known else next_after(dataset, known[part], where), key)
        for part, key in parts_of(partitions).items()
    )


def updates_unknown(uri: str, where: str, error: UnsupportedError) -> UnsupportedError:
    """The error for changes of a table that does not record which rows were updated.

    Args:
        uri: The table.
        where: The input, for the message.
        error: The error of the read.
    """
    return UnsupportedError(
        f"{where}: {uri} was created without stable row ids, and updates of rows cannot be read as changes: {error}. "
        "Give the input's asset the metadata lance/stable_row_ids: True, or LanceIOManager the setting stable_row_ids, "
        f"drop the table and materialize that asset again; until then a run with the tag {FULL_REFRESH}=true reads all "
        "rows"
    )


def by_version(begins: Iterable[tuple[int, str | None]]) -> dict[int, list[str] | None]:
    """Partitions by the version after which they read; None for an asset without any."""
    found: dict[int, list[str] | None] = {}
    for begin, partition in begins:
        found[begin] = None if partition is None else [*(found.get(begin) or []), partition]
    return found


def parts_of(partitions: Iterable[str] | None) -> dict[str, str | None]:
    """Partitions by the part of the table that they are."""
    return {_WHOLE: None} if partitions is None else {hashed(one)[:16]: one for one in sorted(partitions)}


def next_after(dataset: lance_core.LanceDataset, position: InputPosition, where: str) -> int:
    """The version after which changes are read: the one that was consumed last, or that promoted its branch.

    Raises:
        VersionNotFoundError: The version was cleaned up.
        IncompatibleConflictError: The version is another one now, or of a branch whose rows are not those of main.
    """
    version, branch = position.version, position.branch
    if branch not in (None, dataset.branch):
        return _promotion_of(dataset, position, where)
    own = dataset.branch
    if branch is None and own is not None and version > dataset.branches.list()[own]["parent_version"]:
        raise _other_rows(dataset, position, where)
    try:
        consumed = dataset if version == dataset.version else dataset.checkout_version((branch, version))
    except VersionNotFoundError as error:
        oldest = dataset.version_refs()[0]["version"]
        raise VersionNotFoundError(
            f"{where}: version {version} of {dataset.uri}, which was consumed last, was cleaned up, so that what "
            f"changed since is not known; the oldest available version is {oldest}. Run with the tag "
            f"{FULL_REFRESH}=true to read all of the table and replace what was derived from it"
        ) from error
    if consumed.identity != position.identity:
        raise IncompatibleConflictError(
            f"{where}: version {version} of {dataset.uri} is another one than was consumed: the table was dropped and "
            f"made again. Run with the tag {FULL_REFRESH}=true to read all of it"
        )
    return version


def _other_rows(dataset: lance_core.LanceDataset, position: InputPosition, where: str) -> IncompatibleConflictError:
    return IncompatibleConflictError(
        f"{where}: version {position.version} of branch {position.branch or 'main'!r} was consumed last, which is none "
        f"of the versions that led to version {dataset.version} of {dataset.uri}. Run with the tag {FULL_REFRESH}=true "
        "to read all of it"
    )


def _promotion_of(dataset: lance_core.LanceDataset, position: InputPosition, where: str) -> int:
    """The version that promoted the branch that was consumed.

    Raises:
        IncompatibleConflictError: The branch was not promoted; or the promotion has rows that were not consumed: from
            later versions of the branch, or of others, who wrote to main between the fork and the promotion.
    """
    for one in read_history(dataset, count_changes=False):
        if position.branch not in several(one.properties.get(PROMOTED_FROM)):
            continue
        fork = one.properties.get(PROMOTED_FORK)
        promoted = one.properties.get(PROMOTED_VERSION)
        if fork is None or promoted != str(position.version):
            break
        since = read_history(dataset.checkout_version(one.version), after=int(fork), count_changes=False)
        others = [other.version for other in since if other.changes_rows and other.version != one.version]
        if not others:
            return one.version
        raise IncompatibleConflictError(
            f"{where}: version {position.version} of branch {position.branch!r} was consumed last, which version "
            f"{one.version} of {dataset.uri} promoted. Others had written to main since the fork (version "
            f"{min(others)}), and these rows were not consumed. Run with the tag {FULL_REFRESH}=true to read all of it"
        )
    raise _other_rows(dataset, position, where)
