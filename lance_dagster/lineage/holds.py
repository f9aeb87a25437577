"""Tags on the versions that incremental readers have consumed last, so that no cleanup removes them.

    changes.<asset key of the reader>-<digest>.<version>

Any cleanup respects tags, that of other tools included. A reader's run tags the version up to which it reads before it
reads, and removes the tags of versions that no part of its table needs any more after it has committed. A tag that is
older than the days in the table's configuration (`lance-dagster.changes.days`, 30 by default) holds its version no
longer: the reader's runs, and maintenance, remove it. Versions of branches are not tagged, as tags keep branches.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from lance_core.errors import InvalidInputError, VersionNotFoundError
from lance_dagster.properties import hashed

if TYPE_CHECKING:
    import lance_core

__all__ = ["DAYS_KEY", "hold", "holders", "release", "release_expired"]

DAYS_KEY: Final = "lance-dagster.changes.days"
_DAYS: Final = 30
_PREFIX: Final = "changes."


def hold(dataset: lance_core.LanceDataset, reader: str) -> None:
    """Keep a version for a reader from being cleaned up; a version of a branch is left alone.

    Args:
        dataset: The table at the version.
        reader: The asset that reads its changes.
    """
    name = f"{_reader(reader)}.{dataset.version}"
    if dataset.branch is not None or name in dataset.tags.list():
        return
    try:
        dataset.tags.create(name, dataset.version)
    except InvalidInputError:
        if name not in dataset.tags.list():  # else another run of the reader has created it meanwhile
            raise


def release(dataset: lance_core.LanceDataset, reader: str, needed: Collection[int]) -> None:
    """Remove the tags of a reader but those on versions that it needs.

    Args:
        dataset: The table.
        reader: The asset that reads its changes.
        needed: The versions that parts of its table have consumed last.
    """
    prefix = _reader(reader) + "."
    for name, tag in dataset.tags.list().items():
        if name.startswith(prefix) and tag["branch"] is None and tag["version"] not in needed:
            _delete(dataset, name)


def release_expired(dataset: lance_core.LanceDataset) -> dict[str, list[int]]:
    """Remove the tags of readers that are too old; returns the versions that readers still hold, by reader.

    Raises:
        InvalidInputError: The configuration has no number of days.
    """
    value = dataset.config().get(DAYS_KEY, str(_DAYS))
    if not value.isdecimal():
        raise InvalidInputError(f"configuration {DAYS_KEY} must be a number of days, not {value!r}")
    oldest = datetime.now(UTC) - timedelta(days=int(value))
    for name, tag in dataset.tags.list().items():
        if name.startswith(_PREFIX) and tag["created_at"] < oldest:
            _delete(dataset, name)
    return holders(dataset)


def holders(dataset: lance_core.LanceDataset) -> dict[str, list[int]]:
    """The versions of a table that incremental readers hold, by the reader as their tags name it."""
    found: dict[str, list[int]] = {}
    for name, tag in sorted(dataset.tags.list().items(), key=lambda item: item[1]["version"]):
        if name.startswith(_PREFIX):
            found.setdefault(name.removeprefix(_PREFIX).rpartition(".")[0], []).append(tag["version"])
    return found


def _reader(asset: str) -> str:
    """The beginning of the names of a reader's tags."""
    return f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_-]', '.', asset)}-{hashed(asset)[:8]}"


def _delete(dataset: lance_core.LanceDataset, name: str) -> None:
    try:
        dataset.tags.delete(name)
    except VersionNotFoundError:  # another run has removed it
        return
