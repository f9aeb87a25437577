"""The assets that read a table, from the code location, and the version that each read last, from its newest event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import dagster as dg

MOST_CONSUMERS: Final = 50
_TAG: Final = "dagster/input_data_version/"


def consumers(
    scope: tuple[dg.DagsterInstance, Sequence[dg.AssetKey]] | None, asset_key: dg.AssetKey
) -> dict[str, int | None] | None:
    """At most 50 assets that depend on an asset, with the version that each read last; None if they are not known.

    Events of assets in Lance tables have the versions that were read; for other assets Dagster records the data version
    of the input.

    Args:
        scope: The instance, and the keys of the assets that depend on the asset; the first `MOST_CONSUMERS` are looked
            up, by one query. None if they are not known.
        asset_key: The asset.
    """
    if scope is None:
        return None
    instance, keys = scope[0], list(scope[1][:MOST_CONSUMERS])
    read: dict[str, int | None] = {key.to_user_string(): None for key in keys}
    for record in instance.get_asset_records(keys) if keys else ():
        event = record.asset_entry.last_materialization
        if event is not None and event.asset_materialization is not None:
            materialization = event.asset_materialization
            version = _version(materialization.metadata, materialization.tags or {}, asset_key)
            read[record.asset_entry.asset_key.to_user_string()] = version
    return read


def _version(
    metadata: Mapping[str, dg.MetadataValue[Any]], tags: Mapping[str, str], asset_key: dg.AssetKey
) -> int | None:
    """The version of a table on main that a materialization read; None if its event does not record it."""
    entry: Any = metadata["lance/inputs"].value if "lance/inputs" in metadata else None
    for read in entry if isinstance(entry, list | tuple) else ():
        if isinstance(read, Mapping) and read.get("asset") == asset_key.to_user_string():
            version = read.get("version")
            return version if isinstance(version, int) and read.get("branch") is None else None
    # hash:branch:version, see `history.format_data_version`
    branch, _, number = tags.get(_TAG + asset_key.to_user_string(), "").rpartition(":")
    return int(number) if number.isdecimal() and branch.endswith(":main") else None
