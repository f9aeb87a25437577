"""Tags that keep versions of an input until an incremental reader has consumed the changes after them.

    changes.<asset key of the reader>-<digest>.<version>

An asset reads incrementally by the metadata `lance/changes`; `LanceDataset.readers` makes the tags. A run tags the
version up to which it reads, before it reads. After its commit it removes the tags of versions that no partition of its
table needs any more, on any branch. A tag expires that no run has renewed for the days in the input's configuration
(`lance-dagster.changes.days`, 30 by default): maintenance removes it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from lance_core.errors import InvalidInputError, VersionNotFoundError
from lance_dagster.lineage.watermarks import consumed_versions

if TYPE_CHECKING:
    import lance_core

__all__ = ["DAYS_KEY", "expired", "holders", "release", "release_expired"]

DAYS_KEY: Final = "lance-dagster.changes.days"
_DAYS: Final = 30


def release(dataset: lance_core.LanceDataset, table: lance_core.LanceDataset, reader: str, name: str) -> None:
    """Remove a reader's tags from the versions of an input that no partition of its table needs any more.

    Args:
        dataset: The input at the version that was consumed.
        table: The reader's table after its commit.
        reader: The asset that reads the changes.
        name: The input's name in the watermarks of the reader's table.
    """
    dataset.readers.hold(reader)  # a run that has consumed a later version may have released it meanwhile
    needed = consumed_versions(table, name, dataset.branch)
    for line in {None, *table.branches.list()} - {table.branch}:
        try:
            needed |= consumed_versions(table.checkout_version((line, None)), name, dataset.branch)
        except VersionNotFoundError:  # the branch was removed meanwhile
            continue
    dataset.readers.release(reader, needed)


def release_expired(dataset: lance_core.LanceDataset) -> dict[str, list[int]]:
    """Remove expired tags; returns the versions that are still tagged, by reader.

    Raises:
        InvalidInputError: `lance-dagster.changes.days` is not a whole number.
    """
    dataset.readers.release_older_than(_age(dataset))
    return holders(dataset)


def expired(dataset: lance_core.LanceDataset) -> list[str]:
    """The names of the expired tags.

    Raises:
        InvalidInputError: `lance-dagster.changes.days` is not a whole number.
    """
    return dataset.readers.older_than(_age(dataset))


def _age(dataset: lance_core.LanceDataset) -> timedelta:
    """The age at which a reader's tag expires."""
    value = dataset.config().get(DAYS_KEY, str(_DAYS))
    if not value.isdecimal():
        raise InvalidInputError(f"configuration {DAYS_KEY} must be a number of days, not {value!r}")
    return timedelta(days=int(value))


def holders(dataset: lance_core.LanceDataset) -> dict[str, list[int]]:
    """The versions of a table's branch that incremental readers have tagged, by reader."""
    found: dict[str, list[int]] = {}
    for tag in sorted(dataset.readers.list().values(), key=lambda tag: tag["version"]):
        if tag["branch"] == dataset.branch:
            found.setdefault(tag["reader"], []).append(tag["version"])
    return found
