"""What definitions tell Dagster before anything is materialised.

    definition    dagster/table_name  dagster/uri  kinds += lance

The Dagster UI shows table name and URI on the asset's page only when they are in the definition.
"""

from __future__ import annotations

import warnings
from typing import Any

import dagster as dg

from lance_dagster.io_manager import LanceIOManager
from lance_dagster.location import locate_table

__all__ = ["stamp_lance_metadata"]


def stamp_lance_metadata(defs: dg.Definitions) -> dg.Definitions:
    """Put table name, URI and kind into the definitions of all assets that a `LanceIOManager` stores.

    An asset counts as stored unless it says `-> None`, has another IO manager, or is external; entries that it has
    already stay. Only the `root_uri` is resolved if it is an environment variable, never the storage options.

    Args:
        defs: Definitions whose `resources` hold the IO managers.

    Raises:
        DagsterInvalidDefinitionError: two assets would be stored in one table, or a name cannot be a folder name.

    Example:
        ```python
        defs = stamp_lance_metadata(dg.Definitions(assets=[...], resources={"io_manager": LanceIOManager(...)}))
        ```
    """
    managers = _managers(defs)
    owners: dict[str, dg.AssetKey] = {}

    def stamp(spec: dg.AssetSpec) -> dg.AssetSpec:
        manager = managers.get(spec.key)
        if manager is None:
            return spec
        location = locate_table(
            _resolved(manager.root_uri), spec.key, spec.metadata, default_schema=_resolved(manager.schema_)
        )
        owner = owners.setdefault(location.uri, spec.key)
        if owner != spec.key:
            raise dg.DagsterInvalidDefinitionError(
                f"assets {owner.to_user_string()} and {spec.key.to_user_string()} would both be stored in "
                f'{location.uri}; give one of them the metadata "schema" or "table"'
            )
        entries = {"dagster/table_name": location.name, "dagster/uri": location.uri}
        new = {key: value for key, value in entries.items() if key not in spec.metadata}
        return spec.merge_attributes(metadata=new, kinds={"lance"} - spec.kinds)

    with warnings.catch_warnings():  # a preview interface since 1.9, the only one that reaches every kind of asset
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return defs.map_resolved_asset_specs(func=stamp)


def _managers(defs: dg.Definitions) -> dict[dg.AssetKey, LanceIOManager]:
    """Our IO manager of each asset that has one, and whose body hands it a value."""
    managers: dict[dg.AssetKey, LanceIOManager] = {}
    for one in defs.assets or ():
        if not isinstance(one, dg.AssetsDefinition) or not one.is_executable:
            continue
        for name, key in one.keys_by_output_name.items():
            output = one.node_def.output_def_named(name)
            manager = (defs.resources or {}).get(output.io_manager_key)
            if isinstance(manager, LanceIOManager) and not output.dagster_type.is_nothing:
                managers[key] = manager
    return managers


def _resolved(value: str | None) -> Any:
    return value.get_value() if isinstance(value, dg.EnvVar) else value
