"""`stamp_lance_metadata`: metadata of definitions, which Dagster shows before assets are materialized.

    definition    dagster/table_name  dagster/uri  kinds += lance

The Dagster UI shows table name and URI on the asset's page only if they are in the definition.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final

import dagster as dg

from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.io_manager.config import LanceIOManager
from lance_dagster.lineage.declared_columns import column_lineage
from lance_dagster.tables.location import NO_LOCATION, SHARED_KEY, TABLE_KEY, is_shared, locate_table
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.partition_expr import find_misfit, partition_column
from lance_dagster.tables.refs import remember_root
from lance_dagster.tables.settings import check_input

__all__ = ["stamp_lance_metadata"]

_UNSET: Final = "unset:/"
"""The root by which tables are located while the environment variable of the root is not set."""


def stamp_lance_metadata(defs: dg.Definitions) -> dg.Definitions:
    """Add table name, URI and kind to the definitions of all assets that a `LanceIOManager` stores.

    Assets that are annotated `-> None`, have another IO manager, or are external are left as they are; existing entries
    are kept. A namespace is not asked, so that its tables get no URI here. Environment variables of `root_uri` and
    `schema` are resolved, those of storage options never; entries that depend on a variable that is not set are left
    out.

    The metadata of assets and inputs is checked here as well, so that a misspelt entry is found when the code location
    is loaded and not at the end of a run.

    Args:
        defs: Definitions whose `resources` include the IO managers.

    Raises:
        DagsterInvalidDefinitionError: Two assets would be stored in one table, a name cannot be a folder name, an entry
            of metadata is unknown or has an invalid value, or the metadata `partition_expr` of a partitioned asset
            does not name the partition column.

    Examples:
        >>> @dg.asset
        ... def flights(): ...
        >>> lake = {"io_manager": lance_dagster.LanceIOManager(root_uri="/lake")}
        >>> defs = lance_dagster.stamp_lance_metadata(dg.Definitions([flights], resources=lake))
        >>> [asset] = defs.resolve_all_asset_specs()
        >>> asset.metadata["dagster/uri"]
        '/lake/public/flights.lance'
    """
    managers = _managers(defs)
    _check_inputs(defs, managers)
    owners: dict[tuple[Any, ...], tuple[dg.AssetKey, bool]] = {}

    def stamp(spec: dg.AssetSpec) -> dg.AssetSpec:
        manager = managers.get(spec.key)
        if manager is None:
            return spec
        _check(spec, manager)
        root, schema = _resolved(manager.root_uri), _resolved(manager.schema_)
        unset = f"{_UNSET}{manager.root_uri.env_var_name}" if isinstance(manager.root_uri, dg.EnvVar) else _UNSET
        place = NO_LOCATION if manager.namespace else root or unset
        location = locate_table(place, spec.key, spec.metadata, default_schema=schema)
        uri = location.uri if root and not manager.namespace else None
        shared = is_shared(spec.metadata, f"asset {spec.key.to_user_string()}")
        owns_columns = TABLE_KEY in spec.metadata
        table = (location.uri, *sorted(manager.namespace.items()))
        owner, allowed = (spec.key, True) if owns_columns else owners.setdefault(table, (spec.key, shared))
        if owner != spec.key and not (shared and allowed):
            raise dg.DagsterInvalidDefinitionError(
                f"assets {owner.to_user_string()} and {spec.key.to_user_string()} would both be stored in "
                f'{uri or location.name}; give one of them the metadata "schema" or "table", or '
                f'both of them {{"{SHARED_KEY}": True}} if they are meant to write to one table'
            )
        if root or manager.namespace:
            stamped_uri = spec.metadata.get("dagster/uri", uri)
            remember_root(spec.key, stamped_uri, root or "", manager.storage_options, schema, manager.namespace)
        entries = {}
        if schema is not None or manager.schema_ is None:
            entries["dagster/table_name"] = location.name
            if uri is not None:
                entries["dagster/uri"] = uri
        new = {key: value for key, value in entries.items() if key not in spec.metadata}
        return spec.merge_attributes(metadata=new, kinds={"lance"} - spec.kinds)

    with warnings.catch_warnings():  # a preview interface since 1.9, and the only one for every kind of asset
        warnings.simplefilter("ignore", dg.PreviewWarning)
        sources = [asset for asset in defs.assets or () if isinstance(asset, dg.SourceAsset)]
        if not sources:
            return defs.map_resolved_asset_specs(func=stamp)
        mapped = _without(defs, sources).map_resolved_asset_specs(func=stamp)
        return dg.Definitions.merge(mapped, dg.Definitions(assets=sources))


def _without(defs: dg.Definitions, left_out: Sequence[dg.SourceAsset]) -> dg.Definitions:
    """The definitions without source assets, which Dagster cannot map, and which are stored in no table here."""
    names = [name for name in signature(dg.Definitions).parameters if hasattr(defs, name)]
    arguments: dict[str, Any] = {name: getattr(defs, name) for name in names}
    rest = [asset for asset in defs.assets or () if not any(asset is source for source in left_out)]
    return dg.Definitions(**{**arguments, "assets": rest})


def _managers(defs: dg.Definitions) -> dict[dg.AssetKey, LanceIOManager]:
    """The `LanceIOManager` of each asset that has one, and whose body returns a value."""
    managers: dict[dg.AssetKey, LanceIOManager] = {}
    for asset in defs.assets or ():
        if not isinstance(asset, dg.AssetsDefinition) or not asset.is_executable:
            continue
        for name, key in asset.keys_by_output_name.items():
            output = asset.node_def.output_def_named(name)
            manager = (defs.resources or {}).get(output.io_manager_key)
            if isinstance(manager, LanceIOManager) and not output.dagster_type.is_nothing:
                managers[key] = manager
    return managers


def _check(spec: dg.AssetSpec, manager: LanceIOManager) -> None:
    """Check the metadata of an asset.

    Raises:
        DagsterInvalidDefinitionError: An entry is unknown, invalid or missing.
    """
    asset = spec.key.to_user_string()
    settings = manager.settings().output.overridden(spec.metadata, asset=asset, strict=True)
    settings.check(asset=asset, partitioned=spec.partitions_def is not None)
    column_lineage(spec.metadata, label=f"asset {asset}")
    policy_of(LanceMaintenancePolicy(), spec.metadata, label=f"asset {asset}")
    if "lance/schema" in spec.metadata:
        from lance_dagster.handlers.arrow_schema import known_schema  # noqa: PLC0415 - loads pyarrow

        known_schema(spec.metadata, {}, f"asset {asset}")
    columns = plain_metadata(spec.metadata.get("partition_expr"))
    for column in columns.values() if isinstance(columns, Mapping) else [columns]:
        if isinstance(column, str) and column:
            partition_column(column, label=f"asset {asset}")
    definition = spec.partitions_def
    dimensions = None
    if isinstance(definition, dg.MultiPartitionsDefinition):
        dimensions = [part.name for part in definition.partitions_defs]
    misfit = None if definition is None else find_misfit(columns, dimensions)
    if misfit is not None:
        raise dg.DagsterInvalidDefinitionError(f"asset {asset}: {misfit}")


def _check_inputs(defs: dg.Definitions, managers: Mapping[dg.AssetKey, LanceIOManager]) -> None:
    """Check the metadata of inputs that are loaded from these tables."""
    for asset in defs.assets or ():
        if not isinstance(asset, dg.AssetsDefinition) or not asset.is_executable:
            continue
        for name, key in asset.keys_by_input_name.items():
            input_definition = asset.node_def.input_dict.get(name)
            if key in managers and input_definition is not None:
                check_input(input_definition.metadata, f"input {name!r} (asset {key.to_user_string()})")


def _resolved(value: str | None) -> str | None:
    return value.get_value() if isinstance(value, dg.EnvVar) else value
