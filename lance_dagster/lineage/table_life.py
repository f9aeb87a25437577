"""Which table a recorded version is about: one that is dropped and made again counts its versions from 1 again.

    the table has an id        (`LanceDataset.recorded_table_id`): it is part of the data version, so that events name
                               their table
    others made the table      observations record the identity of their version (`LanceDataset.identity`). If the
                               version has another identity now, that one is the id in data versions from then on

Events and cursors that record neither are taken to be about the present table.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from lance_core.errors import NotFoundError, VersionNotFoundError

if TYPE_CHECKING:
    import dagster as dg

    import lance_core

IDENTITY: Final = "lance/identity"
"""The entry of an observation with the identity of its version."""
_TAG: Final = "dagster/data_version"
_MOST_OBSERVATIONS: Final = 100
_ID_DIGITS: Final = 12


def is_about_another(data_version: str | None, dataset: lance_core.LanceDataset) -> bool:
    """Whether a data version is that of a table which was dropped since, and made again.

    A table can lose its id, as by pylance's restore of a version from before the id, and then gets another one: it is
    the same table if the version that the data version names is there, with the id. Once that version is cleaned up,
    both look alike, and the answer is True.

    Args:
        data_version: The data version of an event; None if it has none.
        dataset: The table that is there now.
    """
    recorded = table_id_in(data_version)
    if data_version is None or recorded in (None, dataset.recorded_table_id()):
        return False
    branch = _branch_in(data_version)
    try:
        version = dataset.checkout_version((None if branch == "main" else branch, int(data_version.rpartition(":")[2])))
    except NotFoundError:
        return True
    return version.recorded_table_id() != recorded


def has_version(dataset: lance_core.LanceDataset, version: int, identity: str | None) -> bool:
    """Whether a version that was seen before belongs to a table, as it was not dropped and made again since.

    Args:
        dataset: The table at its newest version.
        version: The version.
        identity: Its identity when it was seen; None if that was not recorded.
    """
    if version > dataset.version:
        return False
    if identity is None:
        return True
    if version == dataset.version:
        return dataset.identity == identity
    try:
        return dataset.checkout_version((dataset.branch, version)).identity == identity
    except VersionNotFoundError:
        return True  # it was cleaned up


def observed_table_id(instance: dg.DagsterInstance, key: dg.AssetKey, dataset: lance_core.LanceDataset) -> str | None:
    """The id of a table: its own, or else the one that the newest observation has for it.

    Args:
        instance: The instance that records the observations.
        key: The asset.
        dataset: The table at its newest version.
    """
    recorded_id = dataset.recorded_table_id()
    if recorded_id is not None:
        return recorded_id
    is_newest = True
    for record in instance.fetch_observations(key, limit=_MOST_OBSERVATIONS).records:
        event = record.asset_observation
        if event is None or IDENTITY not in event.metadata:
            continue
        data_version = (event.tags or {}).get(_TAG, "")
        if data_version and _branch_in(data_version) != (dataset.branch or "main"):
            continue
        version, identity = event.metadata["lance/version"].value, event.metadata[IDENTITY].value
        if is_newest and isinstance(version, int) and not has_version(dataset, version, str(identity)):
            return sha256(dataset.identity.encode()).hexdigest()[:_ID_DIGITS]
        if data_version:
            return table_id_in(data_version)
        is_newest = False  # it is of a commit that changed no rows, and has no data version
    return None


def table_id_in(data_version: str | None) -> str | None:
    """The table's id in a data version, see `history.format_data_version`; None without one."""
    return (data_version or "").partition(":")[0].partition(".")[2] or None


def _branch_in(data_version: str) -> str:
    return data_version.partition(":")[2].rpartition(":")[0]
