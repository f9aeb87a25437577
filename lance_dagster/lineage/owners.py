"""The assets that a table belongs to, as its own commits name them.

Commits of maintenance are made for no asset, and count only where cleanup has left no other commit that names one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lance_dagster.properties import (
    ASSET_KEY,
    COLUMNS,
    MAINTENANCE,
    MAINTENANCE_METADATA,
    properties_of,
    several,
)

if TYPE_CHECKING:
    import lance_core

__all__ = ["OwningCommit", "owner_of", "owning_commits"]

_MOST_VERSIONS: Final = 20
"""How many of the newest versions are read; maintenance by others makes fewer between two writes."""


@dataclass(frozen=True, slots=True)
class OwningCommit:
    """A commit that names assets.

    Attributes:
        version: Its version.
        assets: The keys of the assets, parts joined by slashes.
        properties: The properties of its transaction.
    """

    version: int
    assets: list[str]
    properties: Mapping[str, str]

    @property
    def maintenance_metadata(self) -> Any:
        """The metadata `lance/maintenance` of the asset; None if the commit recorded none.

        Of several values, which the promotion of a branch has joined, False counts first.
        """
        given = [json.loads(one) for one in several(self.properties.get(MAINTENANCE_METADATA))]
        return False if any(one is False for one in given) else next(iter(given), None)


def owning_commits(dataset: lance_core.LanceDataset) -> list[OwningCommit]:
    """The commits that name assets, newest first; those of maintenance only if there are no others."""
    named = list(_named(dataset))
    return [one for one in named if MAINTENANCE not in one.properties] or named


def owner_of(dataset: lance_core.LanceDataset) -> OwningCommit | None:
    """The newest commit of rows that names an asset; None if no recent one does.

    Commits of assets that own columns alone do not count.
    """
    maintained = None
    for one in _named(dataset):
        if COLUMNS in one.properties:
            continue
        if MAINTENANCE not in one.properties:
            return one
        maintained = maintained or one
    return maintained


def _named(dataset: lance_core.LanceDataset) -> Iterator[OwningCommit]:
    for handle, made in islice(dataset.history(), _MOST_VERSIONS):
        properties = properties_of(made)
        assets = several(properties.get(ASSET_KEY))
        if assets:
            yield OwningCommit(handle.version, assets, properties)
