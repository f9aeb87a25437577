"""`build_audited_job`: a write-audit-publish job, which reports to Dagster only what is published.

    assets ──write──> branch of the run ──> checks read the branch ──all blocking ones passed──> publish
                                                                                                   │
       main <──────────── one commit per table, one materialization per partition ─────────────────┘

The run has Dagster's tag `dagster/defer_asset_events`: Dagster records the results of its checks, but its writes not as
materializations. The last step, `<name>_publish`, promotes the branch of each table, logs the materializations with
main's version, and discards the branch. If a blocking check fails, that step is skipped: main, the events and the
assets downstream stay as they were, and the branch is kept for inspection.

    orders ─────────────────> <name>_publish_after_0 ──┐
    refunds (left out) ─ ─ ─> <name>_publish_after_1 ─ ┴──> <name>_publish_tables

Dagster skips a step if an output that it waits for was left out, but not one that waits for a list of outputs of which
some exist. So, where an output is optional, the last step is a graph, in which a step that does nothing waits for each.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster._context.check_log import read_provenance_log
from lance_dagster._context.definitions import find_skippable_assets, sort_upstream_first
from lance_dagster._context.jobs import defer_job
from lance_dagster._context.roots import list_runs_of_root, root_of
from lance_dagster._context.steps import facts_of
from lance_dagster.properties import PROMOTED_FROM, PROMOTION_RUN_ID
from lance_dagster.tables.branch_policy import AUDITED_TAG, DEFER_TAG, PUBLISHES_TAG, run_branch
from lance_dagster.tables.jobs import LostTables
from lance_dagster.tables.names import checked_job_name
from lance_dagster.tables.refs import TableRef, TableRoot, group_by_table, join_names, table_refs, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.branches.check_results import BranchChecks
    from lance_dagster.branches.promotion import Tables

_DEFAULT_KEY: Final = "io_manager"

Definition = dg.AssetsDefinition | dg.AssetChecksDefinition


def build_audited_job(
    assets: Iterable[Definition] | dg.AssetsDefinition,
    *,
    name: str,
    upstream: Iterable[dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset] = (),
    io_manager_key: str = "io_manager",
    keep_branch: bool = False,
    resources: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    allow_unaudited: bool = False,
) -> Any:
    """Make a write-audit-publish job, which publishes assets once their checks pass; the head of the module draws it.

    Each run writes to a branch of its own, which its re-executions continue, regardless of the IO manager's policy.
    The job publishes everything that it materializes, so that assets of other IO managers do not belong in it.

    Args:
        assets: The assets, all with the same partitions or none, and checks that are to run on the branch. The job also
            runs the other checks that the code location has of these assets, as any job that selects the assets does.
        name: Name of the job.
        upstream: The assets that the given assets read as inputs, and that the job does not write. As in any run on a
            branch, they are read from main as it was when the root run or the backfill began.
        io_manager_key: The resource that stores the assets: a `LanceIOManager`.
        keep_branch: Whether the branch is kept after it is published.
        resources: Resources that the assets and checks require, by key; also the IO manager of another key than the
            default.
        tags: More tags for the runs.
        allow_unaudited: Whether the job may have no blocking check, and so publish unchecked rows.

    Returns:
        A job for `dg.Definitions(jobs=[...])`, which finds the checks there, as jobs of `dg.define_asset_job` do.

    Raises:
        DagsterInvalidDefinitionError: `name` is invalid; `assets` has no asset, or something that is neither an asset
            nor a check; the partitions of the assets differ; `io_manager_key` is not the default, and `resources` lacks
            it; or, when the code location is loaded, no check of the assets is blocking.

    Examples:
        >>> @dg.asset
        ... def flights(): ...
        >>> @dg.asset_check(asset=flights, blocking=True)
        ... def has_rows(): return dg.AssetCheckResult(passed=True)
        >>> job = lance_dagster.build_audited_job([flights, has_rows], name="nightly")
        >>> job.name
        'nightly'
    """
    checked_job_name(name, "build_audited_job: name")
    definitions = [assets] if isinstance(assets, str | dg.AssetsDefinition) else list(assets)
    checks = [definition for definition in definitions if isinstance(definition, dg.AssetChecksDefinition)]
    stored = [
        definition
        for definition in definitions
        if isinstance(definition, dg.AssetsDefinition) and definition not in checks
    ]
    if not stored or len(stored) + len(checks) < len(definitions):
        raise dg.DagsterInvalidDefinitionError(
            f"job {name}: a write-audit-publish job is made of assets and asset checks, at least one asset, "
            f"not of {definitions!r}"
        )
    audit = _Audit(
        name=name,
        stored=stored,
        checks=checks,
        publish=_publish_asset(name, stored, io_manager_key, keep_branch=keep_branch),
        upstream=list(upstream),
        resources=dict(resources or {}),
        tags=dict(tags or {}),
        allow_unaudited=allow_unaudited,
    )
    if io_manager_key != _DEFAULT_KEY and io_manager_key not in (resources or {}):
        raise dg.DagsterInvalidDefinitionError(
            f"job {name}: pass its IO manager, resources={{{io_manager_key!r}: LanceIOManager(...)}}: from the code "
            f"location it gets only {_DEFAULT_KEY!r}"
        )
    audit.job(checks, {})  # rejects invalid assets here, and not when the code location is loaded
    return defer_job(audit.unresolved(), audit.resolve)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audit:
    """The parts of a write-audit-publish job."""

    name: str
    stored: Sequence[dg.AssetsDefinition]
    checks: Sequence[dg.AssetChecksDefinition]
    publish: dg.AssetsDefinition
    upstream: Sequence[Any]
    resources: Mapping[str, Any]
    tags: Mapping[str, str]
    allow_unaudited: bool

    @property
    def keys(self) -> set[dg.AssetKey]:
        """The assets that are written."""
        return {key for asset in self.stored for key in asset.keys}

    def unresolved(self) -> Any:
        """The job as Dagster takes it before the assets of the code location are known."""
        names = ", ".join(sorted(key.to_user_string() for key in self.keys))
        return dg.define_asset_job(
            self.name,
            selection=dg.AssetSelection.assets(*self.keys, *self.publish.keys),
            tags={**self.tags, DEFER_TAG: "true", AUDITED_TAG: "true", PUBLISHES_TAG: "true"},
            description=f"Writes {names} to a branch, checks and publishes it.",
        )

    def resolve(self, assets: Sequence[Any], resources: Mapping[str, Any]) -> dg.JobDefinition:
        """The job with the checks and resources of its code location.

        Raises:
            DagsterInvalidDefinitionError: No check of the job is blocking.
        """
        check_keys = {key for check in self.checks for key in check.check_keys}
        added_checks = [
            definition
            for definition in assets
            if isinstance(definition, dg.AssetChecksDefinition)
            and any(key.asset_key in self.keys for key in definition.check_keys)
            and not check_keys & set(definition.check_keys)
        ]
        specs = [spec for definition in (*self.stored, *self.checks, *added_checks) for spec in definition.check_specs]
        if not self.allow_unaudited and not any(spec.blocking for spec in specs if spec.asset_key in self.keys):
            names = ", ".join(sorted(key.to_user_string() for key in self.keys))
            raise dg.DagsterInvalidDefinitionError(
                f"job {self.name}: no check of {names} is blocking, so that the job would publish unchecked rows. Add "
                "one, @asset_check(asset=..., blocking=True), to the asset_checks of the definitions, or pass "
                "allow_unaudited=True"
            )
        return self.job([*self.checks, *added_checks], resources)

    def job(self, checks: Sequence[dg.AssetChecksDefinition], resources: Mapping[str, Any]) -> dg.JobDefinition:
        """The job with given checks.

        Raises:
            DagsterInvalidDefinitionError: Dagster cannot build the job, such as without an asset that is read.
        """
        defs = dg.Definitions(
            assets=[*self.stored, self.publish, *self.upstream],
            asset_checks=list(checks),
            jobs=[self.unresolved()],
            resources={_DEFAULT_KEY: _replaceable_io_manager(), **resources, **self.resources},
        )
        try:
            return defs.resolve_job_def(self.name)
        except dg.DagsterInvalidDefinitionError as error:
            raise dg.DagsterInvalidDefinitionError(
                f"job {self.name}: {error}. Pass assets that the job reads but does not write as upstream=[...]"
            ) from error


def _replaceable_io_manager() -> Any:
    """Build Dagster's default IO manager, which a code location replaces by its own in the jobs that have it."""

    @dg.op(out=dg.Out(dg.Nothing))
    def nothing() -> None: ...

    @dg.job
    def empty() -> None:
        nothing()

    return empty.resource_defs[_DEFAULT_KEY]


def _publish_asset(
    name: str, assets: Sequence[dg.AssetsDefinition], io_manager_key: str, *, keep_branch: bool
) -> dg.AssetsDefinition:
    """Build the last step, which promotes and reports: an asset, because a failed blocking check skips only assets."""
    refs = table_refs(assets)
    partitions = {asset.partitions_def for asset in assets if asset.partitions_def is not None}
    if len(partitions) > 1:
        raise dg.DagsterInvalidDefinitionError(
            f"job {name}: its assets have different partitions; give them one partitions_def, or make one job for each"
        )

    # The argument `backfill_policy` is in beta; users who do not use it must not see the warning.
    policies = [asset.backfill_policy for asset in assets if asset.backfill_policy is not None]
    options: dict[str, Any] = {"backfill_policy": policies[0]} if policies else {}
    options |= {
        "name": f"{name}_publish",
        "partitions_def": next(iter(partitions), None),
        "description": "Promotes the branch of this run, and then reports the partitions.",
    }
    skippable = find_skippable_assets(assets)

    def publish(context: dg.AssetExecutionContext) -> None:
        from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core

        branch = run_branch(facts_of(context.run, context.instance))
        root = table_root(getattr(context.resources, io_manager_key))
        partitioned = {key for asset in assets if asset.partitions_def is not None for key in asset.keys}
        tables = _open_written_tables(context, root, refs, branch, skippable)
        checked_branches = _require_passed_checks(context, group_by_table(tables), branch)
        promotion.reject_conflicts(group_by_table(tables), branch, checked_branches)
        lost = LostTables(context)
        for ref, _ in sort_upstream_first(context, tables, lambda pair: pair[0].key):
            keys = list(context.partition_keys) if ref.key in partitioned else None
            with lost.noting():
                _publish(context, root, ref, branch, checked_branches, keys, keep_branch=keep_branch)
        lost.fail(f"branch {branch} is not published, or not reported, everywhere")

    keys = [ref.key for ref in refs]
    resource_keys = {io_manager_key}
    if skippable:
        return _build_publish_graph(publish, keys, skippable, resource_keys, options)
    publish_asset: dg.AssetsDefinition = dg.asset(deps=keys, required_resource_keys=resource_keys, **options)(publish)
    return publish_asset


def _build_publish_graph(
    publish: Callable[[dg.AssetExecutionContext], None],
    keys: Sequence[dg.AssetKey],
    skippable: Collection[dg.AssetKey],
    resource_keys: set[str],
    options: Mapping[str, Any],
) -> dg.AssetsDefinition:
    """Build the last step of a job with assets that Dagster may skip; the head of the module draws it."""
    always = [key for key in keys if key not in skippable]
    groups = [*([always] if always else []), *([key] for key in keys if key in skippable)]
    inputs = {key: f"asset_{number}" for number, key in enumerate(keys)}

    def wait() -> None: ...

    nothing, name = dg.Out(dg.Nothing), options["name"]
    waits = [
        dg.op(name=f"{name}_after_{number}", ins={inputs[key]: dg.In(dg.Nothing) for key in group}, out=nothing)(wait)
        for number, group in enumerate(groups)
    ]
    last = dg.op(
        name=f"{name}_tables", ins={"done": dg.In(dg.Nothing)}, out=nothing, required_resource_keys=resource_keys
    )(publish)

    @dg.graph_asset(ins={inputs[key]: dg.AssetIn(key, dagster_type=dg.Nothing) for key in keys}, **options)
    def graph(**values: Any) -> Any:
        return last(
            [
                step(**{inputs[key]: values[inputs[key]] for key in group})
                for step, group in zip(waits, groups, strict=True)
            ]
        )

    return graph


def _open_written_tables(
    context: dg.AssetExecutionContext,
    root: TableRoot,
    refs: Iterable[TableRef],
    branch: str,
    skippable: Collection[dg.AssetKey],
) -> "list[tuple[TableRef, lance_core.LanceDataset]]":
    """The assets with their tables, without those that the runs on the branch have left out.

    Raises:
        Failure: A table lacks the branch though a run wrote to it.
    """
    written, lost = [], []
    for ref in refs:
        main = root.open_or_none(ref)
        if main is not None and _has_branch_or_promotion(main, branch):
            written.append((ref, main))
        elif ref.key in skippable and not _has_deferred_write(context, ref.key):
            context.log.info("%s: its output was left out, so that nothing of it is published", ref.name)
        else:
            lost.append(ref)
    if lost:
        places = ", ".join(root.locate(ref).uri for ref in lost)
        raise dg.Failure(
            f"the table of {join_names(lost)} has no branch {branch}, so that nothing of this run is published: if the "
            "branch was discarded, or the table dropped or moved, launch a new run, or re-execute all steps of the "
            f"first one; leave assets that another IO manager stores out of the job. It was looked for at {places}"
        )
    return written


def _has_deferred_write(context: dg.AssetExecutionContext, key: dg.AssetKey) -> bool:
    """Whether the root run of a step, or a re-execution of it, has written an asset."""
    root = replace(root_of(facts_of(context.run, context.instance)), backfill_id=None)
    runs = list_runs_of_root(context.instance, root)
    return any(read_provenance_log(context.instance, run.run_id, key) for run in runs)


def _has_branch_or_promotion(main: Any, branch: str) -> bool:
    """Whether a table has a branch, or main has what was promoted of it."""
    return branch in main.branches.list() or main.find_transaction(PROMOTED_FROM, branch) is not None


def _require_passed_checks(
    context: dg.AssetExecutionContext, tables: "Tables", branch: str
) -> "dict[str, BranchChecks]":
    """Return the results of the checks of the branch, all passed, by the URI of the table.

    Tables that were published before, and whose branch was discarded, are left out.

    Raises:
        Failure: A blocking check has not passed, as in a re-execution of the last step alone.
    """
    from lance_dagster.branches.promotion import open_checks  # noqa: PLC0415 - code locations load without lance_core

    checked_branches = open_checks(context, tables, branch, only_blocking=True)
    launch = "in a re-execution of the run"
    reasons = [reason for checks in checked_branches.values() for reason in checks.sentences(launch)]
    if reasons:
        raise dg.Failure(f"branch {branch} is not published, and main is unchanged: {'; '.join(reasons)}")
    return checked_branches


def _publish(
    context: dg.AssetExecutionContext,
    root: Any,
    ref: TableRef,
    branch: str,
    checked_branches: "Mapping[str, BranchChecks]",
    partitions: list[str] | None,
    *,
    keep_branch: bool,
) -> None:
    from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.branches.writing import discard_branch  # noqa: PLC0415 - code locations load without lance_core

    main = root.open_or_none(ref)
    properties = {PROMOTION_RUN_ID: context.run.run_id}
    published = None
    if main is not None:
        checks = checked_branches.get(main.root_uri)
        published = promotion.publish(main, branch, checked=checks, properties=properties, refs=[ref])
    if published is None or main is None:
        raise dg.Failure(
            f"asset {ref.name} has no branch {branch} at {root.locate(ref).uri}: leave assets that another IO manager "
            "stores out of the job"
        )
    promotion.report_promotion(context, root, ref, published, partitions=partitions)
    if not keep_branch:
        discard_branch(main, branch)
