"""`build_audited_job`: write to a branch, audit it, publish it, and only then tell Dagster.

    assets ──write──> branch of the run ──> checks read the branch ──all blocking ones passed──> publish
                                                                                                   │
       main <──────────── one commit per table, one materialization per partition ─────────────────┘

The run carries Dagster's tag `dagster/defer_asset_events`: its writes are not recorded as materializations, its checks
are. The last step, `<name>_publish`, promotes the branch of each table, logs the materializations with main's version,
and discards the branch. When a blocking check fails that step is skipped: main, the events and whatever is downstream
are as before, and the branch is there to be looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import dagster as dg

from lance_dagster._context import facts_of
from lance_dagster.branching import AUDITED_TAG, PUBLISHES_TAG, run_branch
from lance_dagster.tables import TableRef, table_refs, table_root

__all__ = ["DEFER_TAG", "build_audited_job"]

DEFER_TAG: Final = "dagster/defer_asset_events"
"""Dagster's tag of runs whose materializations are recorded by others."""

_DEFAULT_KEY: Final = "io_manager"

Definition = dg.AssetsDefinition | dg.AssetChecksDefinition


def build_audited_job(
    assets: Iterable[Definition],
    *,
    name: str,
    upstream: Iterable[dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset] = (),
    io_manager_key: str = "io_manager",
    keep_branch: bool = False,
    resources: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.JobDefinition:
    """Make a job that publishes assets once their checks have passed; see the module's text.

    Each run writes to a branch of its own, which its re-executions continue, regardless of the IO manager's policy.
    Everything that the job materializes is published by it; assets of other IO managers do not belong here.

    Args:
        assets: The assets, all with the same partitions or none, and the checks that are to run on the branch; the
            specs of checks that assets bring along run as well.
        name: Name of the job.
        upstream: The assets that they read as inputs and that the job does not make; these are read as ever, from main.
        io_manager_key: The resource that stores the assets: a `LanceIOManager`.
        keep_branch: Whether the branch stays once it is published.
        resources: Resources that assets or checks ask for by other keys than that of the IO manager.
        tags: More tags for the runs.

    Raises:
        DagsterInvalidDefinitionError: there is no asset, something else is among them, or partitions differ.
    """
    given = list(assets)
    checks = [one for one in given if isinstance(one, dg.AssetChecksDefinition)]
    stored = [one for one in given if isinstance(one, dg.AssetsDefinition) and one not in checks]
    if not stored or len(stored) + len(checks) < len(given):
        raise dg.DagsterInvalidDefinitionError(
            f"job {name}: an audited job is made of assets and asset checks, at least one asset, not of {given!r}"
        )
    publish = _publish_asset(name, stored, io_manager_key, keep_branch=keep_branch)
    keys = [key for one in stored for key in one.keys]
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*keys, *publish.keys),
        tags={**(tags or {}), DEFER_TAG: "true", AUDITED_TAG: "true", PUBLISHES_TAG: "true"},
        description=f"Writes {', '.join(key.to_user_string() for key in keys)} to a branch, audits it, publishes it.",
    )
    if io_manager_key != _DEFAULT_KEY and io_manager_key not in (resources or {}):
        raise dg.DagsterInvalidDefinitionError(
            f"job {name}: give it its IO manager, resources={{{io_manager_key!r}: LanceIOManager(...)}}: of a code "
            f"location's own it gets {_DEFAULT_KEY!r} only"
        )
    defs = dg.Definitions(
        assets=[*stored, publish, *upstream],
        asset_checks=checks,
        jobs=[job],
        resources={_DEFAULT_KEY: _replaceable_io_manager(), **(resources or {})},
    )
    try:
        return defs.resolve_job_def(name)
    except dg.DagsterInvalidDefinitionError as error:
        raise dg.DagsterInvalidDefinitionError(
            f"job {name}: {error}. Assets that are read in it and made elsewhere are given as upstream=[...]"
        ) from error


def _replaceable_io_manager() -> Any:
    """Dagster's default, which a code location replaces by its own in jobs that have it."""

    @dg.op(out=dg.Out(dg.Nothing))
    def nothing() -> None: ...

    @dg.job
    def empty() -> None:
        nothing()

    return empty.resource_defs[_DEFAULT_KEY]


def _publish_asset(
    name: str, assets: Sequence[dg.AssetsDefinition], io_manager_key: str, *, keep_branch: bool
) -> dg.AssetsDefinition:
    """The last step: an asset, because blocking checks hold up assets only."""
    refs = table_refs(assets)
    partitions = {one.partitions_def for one in assets if one.partitions_def is not None}
    if len(partitions) > 1:
        raise dg.DagsterInvalidDefinitionError(f"job {name}: its assets have different partitions")

    # Its argument is in beta; the warning must not reach users who do not use it.
    policies = [one.backfill_policy for one in assets if one.backfill_policy is not None]
    policy: dict[str, Any] = {"backfill_policy": policies[0]} if policies else {}

    def publish(context: dg.AssetExecutionContext) -> None:
        facts = facts_of(context.run)
        root = table_root(getattr(context.resources, io_manager_key))
        partitioned = {key for one in assets if one.partitions_def is not None for key in one.keys}
        for ref in refs:
            keys = list(context.partition_keys) if ref.key in partitioned else None
            _publish(context, root, ref, run_branch(facts), keys, keep_branch=keep_branch)

    made: dg.AssetsDefinition = dg.asset(
        name=f"{name}_publish",
        deps=[ref.key for ref in refs],
        partitions_def=next(iter(partitions), None),
        required_resource_keys={io_manager_key},
        description="Promotes the branch of this run, and only then tells of the partitions.",
        **policy,
    )(publish)
    return made


def _publish(
    context: dg.AssetExecutionContext,
    root: Any,
    ref: TableRef,
    branch: str,
    partitions: list[str] | None,
    *,
    keep_branch: bool,
) -> None:
    from lance_dagster import publishing  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.branch_tables import discard_branch  # noqa: PLC0415 - as above
    from lance_dagster.history import PROMOTION_RUN_KEY  # noqa: PLC0415 - as above
    from lance_dagster.reporting import record  # noqa: PLC0415 - as above

    main = root.open_or_none(ref)
    properties = {PROMOTION_RUN_KEY: context.run.run_id}
    published = None if main is None else publishing.publish(main, branch, tag=True, properties=properties)
    if published is None or main is None:
        raise dg.Failure(
            f"asset {ref.name} has no branch {branch} at {root.locate(ref).uri}: was it written by another IO manager?"
        )
    context.log.info("%s: branch %s is version %d of main", ref.name, branch, published.version)
    if published.left_behind:
        context.log.warning("%s: branch %s keeps %s", ref.name, branch, ", ".join(published.left_behind))
    record(context, publishing.promotion_events(context, root, ref, published, partitions=partitions))
    if not keep_branch:
        discard_branch(main, branch)
