"""The versions that incremental readers have consumed last, which no cleanup removes (`LanceDataset.readers`).

    changes.<asset key of the reader>-<digest>.<version>

A reader's run tags the version up to which it reads before it reads, and removes the tags of versions that no part of
its table, on no branch, needs any more after it has committed. A tag that no run has renewed for the days in the
table's configuration (`lance-dagster.changes.days`, 30 by default) holds its version no longer: maintenance removes it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from lance_core.errors import InvalidInputError, VersionNotFoundError
from lance_dagster.lineage.positions import consumed_versions

if TYPE_CHECKING:
    import lance_core

__all__ = ["DAYS_KEY", "expired", "holders", "release", "release_expired"]

DAYS_KEY: Final = "lance-dagster.changes.days"
_DAYS: Final = 30


def release(dataset: lance_core.LanceDataset, table: lance_core.LanceDataset, reader: str, name: str) -> None:
    """Let cleanups remove the versions of an input whose changes no part of a reader's table needs any more.

    Args:
        dataset: The input at the version that was consumed.
        table: The reader's table after its commit.
        reader: The asset that reads the changes.
        name: The name of the input's watermarks there.
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
    """Remove the tags of readers that are too old; returns the versions that readers still hold, by reader.

    Raises:
        InvalidInputError: The configuration has no number of days.
    """
    dataset.readers.release_older_than(_age(dataset))
    return holders(dataset)


def expired(dataset: lance_core.LanceDataset) -> list[str]:
    """The tags that `release_expired` removes.

    Raises:
        InvalidInputError: The configuration has no number of days.
    """
    return dataset.readers.older_than(_age(dataset))


def _age(dataset: lance_core.LanceDataset) -> timedelta:
    """The age from which a reader's tag is too old."""
    value = dataset.config().get(DAYS_KEY, str(_DAYS))
    if not value.isdecimal():
        raise InvalidInputError(f"configuration {DAYS_KEY} must be a number of days, not {value!r}")
    return timedelta(days=int(value))


def holders(dataset: lance_core.LanceDataset) -> dict[str, list[int]]:
    """The versions of a table's branch that incremental readers hold, by reader."""
    found: dict[str, list[int]] = {}
    for tag in sorted(dataset.readers.list().values(), key=lambda tag: tag["version"]):
        if tag["branch"] == dataset.branch:
            found.setdefault(tag["reader"], []).append(tag["version"])
    return found
