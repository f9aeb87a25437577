"""Builds jobs: with some of their resources, of one op, or only when the code location is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg


def build_job_with_some_resources(
    graph: dg.GraphDefinition, resources: Mapping[str, Any], **options: Any
) -> dg.JobDefinition:
    """A job with some resources of its own; the code location provides the others.

    `GraphDefinition.to_job` with resources requires all resources at once, except for "io_manager". This function
    skips that check, so that the code location can add the missing ones.
    """
    defined = {key: _definition(resource) for key, resource in resources.items()}
    return dg.JobDefinition(graph_def=graph, resource_defs=defined, _was_explicitly_provided_resources=False, **options)


def defer_job(job: Any, resolve: Callable[[Sequence[Any], Mapping[str, Any]], dg.JobDefinition]) -> Any:
    """Let a job be built when its code location is loaded, from the assets, checks and resources there.

    Args:
        job: The result of `dg.define_asset_job`; the built job has its name, tags and description.
        resolve: Builds the job from the definitions of assets and checks, and from the resources.
    """

    class Later(type(job)):  # type: ignore[misc] # the class has no public name
        """A job of `dg.define_asset_job` that is built by the given function when the code location is loaded."""

        def resolve(
            self,
            asset_graph: Any,
            default_executor_def: Any = None,  # noqa: ARG002 - Dagster's signature
            resource_defs: Mapping[str, Any] | None = None,
        ) -> dg.JobDefinition:
            return resolve(list(asset_graph.assets_defs), dict(resource_defs or {}))

    return Later(name=job.name, selection=job.selection, description=job.description, tags=job.tags)


def _definition(resource: Any) -> dg.ResourceDefinition:
    """The definition of a resource."""
    definition: dg.ResourceDefinition = getattr(resource, "get_resource_definition", lambda: resource)()
    return definition
