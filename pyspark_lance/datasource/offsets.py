"""Offsets of a stream from a table: a version, with the table and the branch to which it belongs.

    {"version": 7, "table": "<LanceDataset.identity of version 7>", "branch": "main",
     "fragments": 3, "last_fragment": 5, "deleted_rows": 0, "files": ["<a data file>", "<another>"]}
    {"version": 7}      written by earlier releases
    {"version": 0}      before the first version

A table that was dropped and made again has versions with the same numbers. A stream may only continue from an offset if
its version is still the one that was read. If that version was cleaned up, the next one must have a data file of it, or
have compacted one: names of data files are never used twice. After a version without rows, the next one must have only
fragments that it appended. What the next version added follows from the fragments and the deleted rows that the offset
counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from lance_core import LanceDataset
from lance_core.errors import IncompatibleConflictError, LanceError, VersionNotFoundError
from pyspark_lance.datasource.options import SourceOptions

START: Final[dict[str, Any]] = {"version": 0}

RESTART: Final = (
    "Start a new query with another option checkpointLocation. It begins with the version in option startingVersion; "
    "without that its first batch holds all rows of the table"
)


def number_of(offset: dict[str, Any]) -> int:
    """The version of an offset; 0 before the first one."""
    return int(offset["version"])


def offset_at(dataset: LanceDataset) -> dict[str, Any]:
    """The offset after a version."""
    files = [fragment.metadata.files[0].path for fragment in dataset.get_fragments() if fragment.metadata.files]
    return {
        "version": dataset.version,
        "table": dataset.identity,
        "branch": dataset.branch or "main",
        **count_fragments(dataset),
        "files": list(dict.fromkeys([*files[:1], *files[-1:]])),
    }


def count_fragments(dataset: LanceDataset) -> dict[str, int]:
    """The number of fragments of a version that was read, the largest of their ids, and the number of deleted rows.

    Ids are never used twice, so later fragments have larger ones.
    """
    fragments = dataset.get_fragments()
    return {
        "fragments": len(fragments),
        "last_fragment": max((fragment.fragment_id for fragment in fragments), default=-1),
        "deleted_rows": sum(fragment.metadata.num_deletions for fragment in fragments),
    }


def has_all_fragments(dataset: LanceDataset, counts: Mapping[str, int]) -> bool:
    """Whether a later version has all fragments that `count_fragments` counted, without further deletions."""
    read = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id <= counts["last_fragment"]]
    deleted = sum(fragment.metadata.num_deletions for fragment in read)
    return (len(read), deleted) == (counts["fragments"], counts["deleted_rows"])


def version_at(options: SourceOptions, version: int) -> LanceDataset:
    """A version that a stream reads.

    Raises:
        LanceError: The version was cleaned up.
    """
    try:
        return options.open(version)
    except VersionNotFoundError as error:
        raise LanceError(
            f"version {version} of {options.uri}, which the stream needs next, was cleaned up: the stream fell behind"
            f" the cleanup of the table. {RESTART}"
        ) from error


def check_offset(options: SourceOptions, offset: dict[str, Any], latest: LanceDataset | None) -> None:
    """Make sure that an offset belongs to the table and the branch that are read.

    Args:
        options: The options that the user gave.
        offset: The offset, from the checkpoint.
        latest: The latest version of the table; None if there is no table.

    Raises:
        IncompatibleConflictError: The offset belongs to another table or branch.
        LanceError: The version of the offset was cleaned up.
    """
    version = number_of(offset)
    if version == 0:
        return
    if latest is None or latest.version < version:
        table_state = "there is no table" if latest is None else f"its latest version is {latest.version}"
        raise IncompatibleConflictError(
            f"the stream has read {options.uri} up to version {version}, and now {table_state}: it was dropped, and"
            f" perhaps made again. {RESTART}"
        )
    branch = latest.branch or "main"
    if offset.get("branch", branch) != branch:
        raise IncompatibleConflictError(
            f"the stream has read branch {offset['branch']!r} up to version {version}, and is now to read branch "
            f"{branch!r} of {options.uri}. {RESTART}"
        )
    if "table" not in offset:
        return
    try:
        now = latest if latest.version == version else options.open(version)
    except VersionNotFoundError:
        following = version_at(options, version + 1)
        if not _continues(following, offset):
            version_at(options, version)  # raises
        return
    if now.identity != offset["table"]:
        raise IncompatibleConflictError(
            f"version {version} of {options.uri} differs from the one that the stream has read: the table was dropped "
            f"and made again, or the stream is now to read another table. {RESTART}"
        )


def _continues(following: LanceDataset, offset: dict[str, Any]) -> bool:
    """Whether a version has what the version before it had, by the offset of that one."""
    if offset.get("fragments") != 0:
        return _has_file_of(following, offset.get("files", ()))
    transaction = following.read_transaction(following.version)
    operation: Any = transaction and transaction.operation
    added = operation.fragments if operation is not None and operation.name == "Append" else ()
    return len(following.get_fragments()) == len(added)


def _has_file_of(dataset: LanceDataset, names: Collection[str]) -> bool:
    """Whether a version has one of some data files, or has compacted it."""
    paths = {file.path for fragment in dataset.get_fragments() for file in fragment.metadata.files}
    transaction = dataset.read_transaction(dataset.version)
    for group in getattr(transaction and transaction.operation, "groups", ()):
        paths |= {file.path for fragment in group.old_fragments for file in fragment.files}
    return not paths.isdisjoint(names)
