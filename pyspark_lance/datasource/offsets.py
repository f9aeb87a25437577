"""Offsets of a stream from a table: a version, with the table and the branch to which it belongs.

    {"version": 7, "table": "<LanceDataset.identity of version 7>", "branch": "main"}
    {"version": 7}      written by earlier releases
    {"version": 0}      before the first version

A table that was dropped and made again has versions with the same numbers. A stream may only continue from an offset if
its version is still the one that was read.
"""

from __future__ import annotations

from typing import Any, Final

from lance_core import LanceDataset
from lance_core.errors import IncompatibleConflictError, LanceError, VersionNotFoundError
from pyspark_lance.datasource.options import SourceOptions

__all__ = ["RESTART", "START", "check_offset", "number_of", "offset_at", "version_at"]

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
    return {"version": dataset.version, "table": dataset.identity, "branch": dataset.branch or "main"}


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
        there = "there is no table" if latest is None else f"its latest version is {latest.version}"
        raise IncompatibleConflictError(
            f"the stream has read {options.uri} up to version {version}, and now {there}: it was dropped, and perhaps "
            f"made again. {RESTART}"
        )
    branch = latest.branch or "main"
    if offset.get("branch", branch) != branch:
        raise IncompatibleConflictError(
            f"the stream has read branch {offset['branch']!r} up to version {version}, and is now to read branch "
            f"{branch!r} of {options.uri}. {RESTART}"
        )
    if "table" not in offset:
        return
    now = latest if latest.version == version else version_at(options, version)
    if now.identity != offset["table"]:
        raise IncompatibleConflictError(
            f"version {version} of {options.uri} differs from the one that the stream has read: the table was dropped "
            f"and made again, or the stream is now to read another table. {RESTART}"
        )
