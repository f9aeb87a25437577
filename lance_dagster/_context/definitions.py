"""Definition metadata from the code location: of an asset's inputs, and of the assets that share its definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import dagster as dg

from lance_dagster._context.steps import ABSENT, AnyContext, asset_graph, find_asset, graph_of, job_of_step

Value = TypeVar("Value")


def list_inputs_of(context: AnyContext, asset_key: dg.AssetKey, upstream: dg.AssetKey) -> Sequence[Mapping[str, Any]]:
    """The definition metadata of the inputs by which an asset loads another one; none if they are not known.

    Args:
        context: The op, asset, check or sensor, of whose code location the definition is.
        asset_key: The asset.
        upstream: The asset that is loaded.
    """
    definition = _definition(context, asset_key)
    if definition is None or not definition.is_executable:
        return []
    names = [name for name, key in definition.keys_by_input_name.items() if key == upstream]
    return [definition.node_def.input_def_named(name).metadata or {} for name in names]


def list_partitions_to_read(
    job: Any, instance: dg.DagsterInstance | None, upstream: dg.AssetKey, reader: dg.AssetKey, partition: str | None
) -> list[str] | None:
    """The partitions of an asset that a partition of another asset reads; None for all, defined or not.

    Args:
        job: The job, of whose code location the assets are.
        instance: The instance, which knows the dynamic partitions.
        upstream: The asset that is read.
        reader: The asset that reads.
        partition: The partition of the asset that reads; None if it has no partitions.
    """
    graph = asset_graph(job)
    definition, read_definition = graph.get(reader).partitions_def, graph.get(upstream).partitions_def
    mapping = graph.get_partition_mapping(reader, upstream)
    if read_definition is None or isinstance(mapping, dg.AllPartitionMapping):
        return None
    subset = None if partition is None or definition is None else definition.subset_with_partition_keys([partition])
    mapped = mapping.get_upstream_mapped_partitions_result_for_partitions(
        subset, definition, read_definition, dynamic_partitions_store=instance
    )
    return sorted(mapped.partitions_subset.get_partition_keys())


def assets_of_same_definition(context: AnyContext, asset_key: dg.AssetKey) -> Mapping[dg.AssetKey, Mapping[str, Any]]:
    """The metadata of all assets of an asset's definition, itself included; empty if the definition is unknown."""
    definition = _definition(context, asset_key)
    return {} if definition is None else {key: definition.metadata_by_key.get(key) or {} for key in definition.keys}


def blocking_checks(context: AnyContext | dg.OutputContext, asset_key: dg.AssetKey) -> set[str] | None:
    """The names of an asset's blocking checks in the code location; None if it is not known, or lacks the asset.

    Args:
        context: The op, asset, output or sensor, of whose code location the checks are.
        asset_key: The asset.
    """
    job = job_of_step(context) if isinstance(context, dg.OutputContext) else getattr(context, "job_def", None)
    repository: Any = None if isinstance(context, dg.OutputContext) else graph_of(context)
    for graph in (repository, asset_graph(job)):  # a repository that was made for one job has no assets
        asset = find_asset(graph, asset_key)
        keys = () if asset is None else graph.get_check_keys_for_assets({asset_key})
        names = {key.name for key in keys if graph.get(key).blocking}
        if names or (asset is not None and not asset.assets_def.is_auto_created_stub):
            return names
    return None


def find_skippable_assets(definitions: Sequence[dg.AssetsDefinition]) -> set[dg.AssetKey]:
    """The assets that a run of all may leave out: of definitions with an optional output, and of those downstream."""
    keys: set[dg.AssetKey] = set()
    optional = [
        definition
        for definition in definitions
        if not all(output.is_required for op in definition.node_def.iterate_op_defs() for output in op.output_defs)
    ]
    while optional:
        keys |= {key for definition in optional for key in definition.keys}
        optional = [
            definition
            for definition in definitions
            if not definition.keys <= keys
            and any(dep.asset_key in keys for spec in definition.specs for dep in spec.deps)
        ]
    return keys


def sort_upstream_first(
    context: AnyContext, values: Sequence[Value], key_of: Callable[[Value], dg.AssetKey]
) -> list[Value]:
    """The values in the order of their assets, upstream ones first; as given if the code location is not known."""
    graph = graph_of(context)
    order = {} if graph is None else {key: number for number, key in enumerate(graph.toposorted_asset_keys)}
    return sorted(values, key=lambda value: order.get(key_of(value), len(order)))


def _definition(context: AnyContext, asset_key: dg.AssetKey) -> Any:
    """The definition of an asset; None if the code location does not have it."""
    with suppress(*ABSENT, AttributeError):
        return context.repository_def.assets_defs_by_key.get(asset_key)  # type: ignore[union-attr]
    return getattr(find_asset(asset_graph(getattr(context, "job_def", None)), asset_key), "assets_def", None)
