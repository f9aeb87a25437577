"""The tables of one maintenance run, and the survey of each table."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from logging import Logger
from typing import TYPE_CHECKING, Any, Final, Literal

import dagster as dg

from lance_dagster.health.lake import Lake, LakeTable, locate_declaring
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of, recorded_metadata
from lance_dagster.maintenance.work import TableWork
from lance_dagster.tables.location import TABLE_KEY
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.namespaces import ids_at
from lance_dagster.tables.refs import (
    INDICES_KEY,
    MAINTENANCE_KEY,
    TableRef,
    TableRoot,
    chosen_refs,
    is_foreign,
    known_refs,
    on_branch,
)
from lance_dagster.tables.settings import partition_columns

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import MaintenancePlan, MaintenancePolicy, MaintenanceReport

ORDER_TAG: Final = "lance/order"
"""Tag of a run with the value from which the order of its tables is drawn."""

_FOREIGN: Final = (
    "it is an external or observable asset, which others write; to maintain it all the same, set its metadata "
    "lance/maintenance to True or a policy"
)


class AssetLog(logging.LoggerAdapter[logging.Logger]):
    """The log of a run, in which messages of the core about a table name its asset."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Say that the name at the start of the message is that of an asset."""
        return f"asset {msg}", kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTarget:
    """A table of a run.

    Attributes:
        ref: The asset of the table.
        table: The table in the listing below the root of the job; None if it is not in a listing.
        other_assets: Further assets of the run that share the table, such as one that owns columns of it.
    """

    ref: TableRef
    table: LakeTable | None = None
    other_assets: tuple[str, ...] = ()

    @property
    def is_asset(self) -> bool:
        """Whether the job or the code location has an asset for the table, which otherwise is only in a listing."""
        return self.table is None or self.table.is_declared

    @property
    def is_defined(self) -> bool:
        """Whether the run knows the definition of its asset."""
        return self.is_asset and self.ref.metadata is not None

    def with_metadata(self, value: Any) -> MaintenanceTarget:
        """This table with the metadata `lance/maintenance` that its owner recorded."""
        return replace(self, ref=replace(self.ref, metadata={MAINTENANCE_KEY: value}))

    def uri(self, root: TableRoot) -> str:
        """The URI of the table."""
        return root.locate(self.ref).uri if self.table is None else self.table.uri

    def ids(self, root: TableRoot) -> Sequence[Sequence[str]] | None:
        """Its ids in the listing of a root, each as its parts; None where no manifest table has been listed."""
        from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it

        if self.table is not None or root.listing is None or not root.listing.is_kept:
            return None if self.table is None else self.table.ids
        ids = ids_at(root.root_uri, canonical_uri(self.uri(root)), root.listing)
        return [object_id.split(catalog.DELIMITER) for object_id in ids]

    def open(self, root: TableRoot, branch: str | None) -> lance_core.LanceDataset | None:
        """The newest version of a branch of the table, or of main; None if there is no table or no such branch."""
        return (
            root.open_on(self.ref, branch) if self.table is None else on_branch(self.table.open(root.options), branch)
        )


def choose_targets(
    context: dg.OpExecutionContext | dg.SensorEvaluationContext,
    root: TableRoot,
    refs: Sequence[TableRef],
    lake: Lake | None,
    names: Sequence[str] = (),
    *,
    log: Logger | None = None,
) -> list[MaintenanceTarget]:
    """The tables of a run or a tick, each once, as their definitions describe them.

    Args:
        context: The context of the op or the tick.
        root: The root of the IO manager.
        refs: The tables of the job, by asset.
        lake: The root whose tables the job lists; None if it lists none.
        names: The names of the tables of the run; all tables if empty.
        log: Logs policies and globs that choose no table, and assets that share a table; None for no log.

    Raises:
        Failure: A name is that of no table of the job.
    """
    lake_tables: dict[str, LakeTable] = {}
    if lake is not None:
        lake_tables = {
            table.ref.name: table
            for table in lake.find(root, [ref.resolved(context) for ref in refs], context, with_manifest=True)
        }
    all_refs = [*refs, *(table.ref for name, table in lake_tables.items() if name not in {ref.name for ref in refs})]
    chosen = [
        MaintenanceTarget(ref=ref, table=lake_tables.get(ref.name)) for ref in chosen_refs(context, all_refs, names)
    ]
    targets = _each_table_once(context, root, chosen)
    if log is not None:
        _log_choice(log, lake, lake_tables.values(), targets)
    return targets


def _log_choice(
    log: Logger, lake: Lake | None, lake_tables: Collection[LakeTable], targets: Sequence[MaintenanceTarget]
) -> None:
    from lance_core.maintenance.routine.maintain import warn_of_idle_choices  # noqa: PLC0415 - code locations load without it

    if lake is not None:
        warn_of_idle_choices(log, lake.policies, lake.include, [name for table in lake_tables for name in table.names])
    for target in targets:
        for other in target.other_assets:
            log.info("asset %s shares the table of %s, and is maintained with it", other, _where(target))


def in_order_of_run(context: dg.OpExecutionContext, targets: list[MaintenanceTarget]) -> list[MaintenanceTarget]:
    """The tables of a run in the order that its schedule has drawn; without a schedule in their own order."""
    salt = context.run.tags.get(ORDER_TAG)
    if salt is None:
        return targets
    return sorted(targets, key=lambda target: sha256(f"{salt}:{target.ref.name}".encode()).digest())


def _each_table_once(
    context: dg.OpExecutionContext | dg.SensorEvaluationContext, root: TableRoot, targets: Sequence[MaintenanceTarget]
) -> list[MaintenanceTarget]:
    """One target per table, in order, with the other assets that share the table, and the indices that all declare.

    If assets share a table, the target is that of an asset that excludes the table from maintenance, or else of the
    asset that writes the rows. An asset that others write, and whose table is in no listing of a root, is left alone,
    and always has a target of its own.

    Args:
        context: The context of the op or the tick.
        root: The root of the IO manager.
        targets: The targets, by asset.
    """
    import lance_core  # noqa: PLC0415 - code locations load without it

    def rank(target: MaintenanceTarget) -> tuple[bool, bool]:
        metadata = target.ref.metadata or {}
        return plain_metadata(metadata.get(MAINTENANCE_KEY)) is not False, TABLE_KEY in metadata

    by_uri: dict[str, list[MaintenanceTarget]] = {}
    for target in targets:
        is_others = target.table is None and is_foreign(target.ref, context)
        uri = f"asset {target.ref.name}" if is_others else lance_core.canonical_uri(target.uri(root))
        by_uri.setdefault(uri, []).append(target)
    declaring = locate_declaring(root, [*known_refs(context), *(target.ref for target in targets)])
    once = []
    for uri, same in by_uri.items():
        first, *other_targets = sorted(same, key=rank)
        table = next((target.table for target in same if target.table is not None), None)
        ref = first.ref
        if uri in declaring and ref.metadata is not None:
            ref = replace(ref, metadata={**ref.metadata, INDICES_KEY: (declaring[uri].metadata or {})[INDICES_KEY]})
        once.append(replace(first, ref=ref, table=table, other_assets=tuple(other.ref.name for other in other_targets)))
    return once


def survey_target(
    context: dg.OpExecutionContext,
    root: TableRoot,
    target: MaintenanceTarget,
    policy: LanceMaintenancePolicy,
    lake: Lake | None,
    overrides: Mapping[str, Any],
    *,
    is_shared: bool = False,
) -> TableWork | Literal["absent", "left alone"]:
    """The survey of a table; "absent" if the table does not exist, "left alone" if it is excluded.

    Args:
        context: The context of the op.
        root: The root of the IO manager.
        target: The table.
        policy: The policy of the job.
        lake: The root whose tables the job lists.
        overrides: The fields of the policy that the configuration of the run changes.
        is_shared: Whether the policy of the job is for several tables: a table without a column that it declares an
            index on, as its own metadata and policy do not, does not get that index.
    """
    from lance_core.maintenance import MaintenancePlan, MaintenanceReport  # noqa: PLC0415 - code locations load without it
    from lance_core.maintenance.routine import survey as surveys  # noqa: PLC0415 - code locations load without it

    changed, label = partial(LanceMaintenancePolicy.changed, where="configuration of the run"), _where(target)
    core_policy, started = changed(policy, overrides).to_core(), time.monotonic()
    branch = root.branch_of_job(context)
    columns = partition_columns(target.ref.metadata or {}) if branch is None else ()  # main is indexed
    try:
        table_policy = policy_of_target(context, target, policy, lake, log=context.log)
        if table_policy is None:
            return "left alone"
        core_policy = changed(table_policy, overrides).to_core()
        dataset = target.open(root, branch)
        if dataset is None:
            context.log.info("%s: skipped, there is no %s", label, _place(target.uri(root), branch))
            return "absent"
        fit = partial(_fit_declarations, dataset=dataset, lake=lake, is_shared=is_shared)
        survey = partial(
            surveys.survey_table,
            dataset,
            table=target.ref.name,
            max_unindexed_fragments=root.max_unindexed_fragments,
            versions=None if target.table is None or branch is not None else target.table.versions,
            ids=target.ids(root),
        )
        report = survey(fit(core_policy, target), partition_columns=columns)
        work = TableWork(report=report, is_asset=target.is_asset, is_defined=target.is_defined)
        if target.is_defined:
            work = replace(work, owners=[target.ref.name], maintenance_metadata=recorded_metadata(target.ref.metadata))
        elif report.plan.is_due:
            owners, recorded = _owners(dataset)
            if recorded is not None:
                recorded_target = target.with_metadata(json.loads(recorded))
                table_policy = policy_of_target(context, recorded_target, policy, lake, log=context.log)
                if table_policy is None:
                    return "left alone"
                report = survey(fit(changed(table_policy, overrides).to_core(), recorded_target))
            work = replace(work, owners=owners, maintenance_metadata=recorded)
        named_assets = _named_by_table(dataset) if report.plan.cleanup_due else ()
        work = replace(work, other_assets=[*target.other_assets, *named_assets])
        report = surveys.drop_idle_cleanup(dataset, report, lambda: versions_in_use(context, root, work))
    except Exception as error:  # a broken table must not stop the others
        context.log.exception("%s cannot be read", label)
        plan = MaintenancePlan(table=target.ref.name, uri=target.uri(root), policy=core_policy)
        return TableWork(report=MaintenanceReport(plan=plan).failed("plan", error))
    if report.plan.problems or target.table is None:
        context.log.info("%s: version %d, %s", label, dataset.version, "; ".join(report.plan.problems) or "healthy")
    work = replace(work, report=report)
    report = report if work.is_due else _count_indices_left(report, AssetLog(context.log))
    return replace(work, report=replace(report, seconds=time.monotonic() - started))


def options_of_table(
    context: dg.OpExecutionContext, root: TableRoot, refs: Sequence[TableRef], lake: Lake | None, plan: MaintenancePlan
) -> dict[str, str] | None:
    """The storage options that open the table of a plan, which must still be the one of its ids and of its asset.

    The policy was chosen by these, and others may have given them to another table since.

    Args:
        context: The context of the op.
        root: The root of the IO manager.
        refs: The tables of the job, by asset.
        lake: The root whose tables the job lists.
        plan: The plan.

    Raises:
        DatasetNotFoundError: The ids or the asset have no table any more, or another one.
    """
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it
    from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

    place, options = root if lake is None else lake.place(root), root.options
    if plan.ids is not None:
        place = place.with_listing()
        options = catalog.check_ids(
            plan.root_uri,
            plan.ids,
            root_uri=place.root_uri,
            storage_options=place.options,
            namespace=dict(place.namespace) or None,
            listing=place.listing,
        )
    if (place.root_uri, place.namespace) == (root.root_uri, root.namespace):
        root = place  # with what is listed now
    further_refs = [] if plan.ids is None else known_refs(context)
    ref = {each.name: each for each in [*further_refs, *refs]}.get(plan.table)
    if ref is None:
        return options
    try:
        location = root.locate(ref.resolved(context))
    except dg.DagsterInvalidDefinitionError:  # an asset that has no table, and has the name of this one
        return options
    if canonical_uri(location.uri) != plan.root_uri:
        raise DatasetNotFoundError(f"{plan.root_uri} is no longer the table of asset {plan.table}")
    return location.options(root.storage_options)


def _count_indices_left(report: MaintenanceReport, log: AssetLog) -> MaintenanceReport:
    """The report of a table on which the run does no work, with the indices that only pylance can build or extend."""
    plan = report.plan
    if plan.indices_left:
        log.warning(
            "%s: the indices %s do not cover all rows, and only pylance can extend them: pip install "
            "'lance-dagster[search]'", plan.table, ", ".join(plan.indices_left)
        )  # fmt: skip
        report = report.plus(indices_not_refreshed=len(plan.indices_left))
    return report.check_indices(plan.indices_missing, None if plan.policy.dry_run else log)


def _fit_declarations(
    policy: MaintenancePolicy,
    target: MaintenanceTarget,
    *,
    dataset: lance_core.LanceDataset,
    lake: Lake | None,
    is_shared: bool,
) -> MaintenancePolicy:
    """The policy without indices on columns that the table lacks, unless its own metadata or policy declares them."""
    from lance_core.maintenance import without_missing_columns  # noqa: PLC0415 - heavy imports

    asset_policy = policy_of(LanceMaintenancePolicy(), target.ref.metadata, label=_where(target))
    policies = {} if lake is None else lake.policies
    by_path = [policies.get(name) for name in (target.table.names if target.table is not None else ())]
    is_own = any(isinstance(changes, Mapping) and "indices" in changes for changes in by_path)
    is_own = is_own or (asset_policy is not None and asset_policy.indices is not None)
    return policy if is_own or not is_shared else without_missing_columns(dataset, policy)


def _place(uri: str, branch: str | None) -> str:
    """What a run maintains, for messages."""
    return f"table at {uri} yet" if branch is None else f"branch {branch} of {uri}"


def _owners(dataset: lance_core.LanceDataset) -> tuple[list[str], str | None]:
    """The assets that own a table by its commits, and the metadata `lance/maintenance` that the newest one recorded."""
    from lance_dagster.lineage.history import owner_of, owning_commits  # noqa: PLC0415 - heavy imports at first use

    newest = owner_of(dataset)
    if newest is None:
        return [], None
    named = [*newest.assets, *(asset for commit in owning_commits(dataset) for asset in commit.assets)]
    said = newest.maintenance_metadata
    return list(dict.fromkeys(named)), None if said is None else json.dumps(said)


def _named_by_table(dataset: lance_core.LanceDataset) -> list[str]:
    """The assets that commits and columns of a table name, including those of other code locations."""
    from lance_dagster.handlers.arrow_schema import owners  # noqa: PLC0415 - heavy imports at first use

    return [*_owners(dataset)[0], *owners(dataset.schema).values()]


def versions_in_use(context: dg.OpExecutionContext, root: TableRoot, work: TableWork) -> dict[str, int] | None:
    """The versions that cleanup keeps because inputs load them; None if inputs load the newest version, as of a branch.

    For an asset whose definition the run does not know, it is unknown what inputs load: its versions are kept.
    """
    from lance_dagster.loading.recorded_versions import recorded_versions  # noqa: PLC0415 - heavy imports at first use

    if work.report.plan.branch is not None or (root.reads_materialized is False and work.is_defined):
        return None
    used: dict[str, int] = {}
    for owner in dict.fromkeys([*work.owners, *work.other_assets]):
        versions = recorded_versions(context.instance, dg.AssetKey.from_user_string(owner))
        used |= {name if owner == work.asset else f"{name} of {owner}": version for name, version in versions.items()}
    return used


def is_left_alone(
    context: dg.SensorEvaluationContext,
    dataset: lance_core.LanceDataset,
    target: MaintenanceTarget,
    policy: LanceMaintenancePolicy,
    lake: Lake | None,
) -> bool:
    """Whether the owner of a table, whose definition is unknown here, has recorded that it is not maintained."""
    recorded = _owners(dataset)[1]
    if recorded is None:
        return False
    return policy_of_target(context, target.with_metadata(json.loads(recorded)), policy, lake) is None


def policy_of_target(
    context: dg.OpExecutionContext | dg.SensorEvaluationContext,
    target: MaintenanceTarget,
    policy: LanceMaintenancePolicy,
    lake: Lake | None,
    *,
    log: Logger | None = None,
) -> LanceMaintenancePolicy | None:
    """The policy for a table; None if it is left alone.

    A job with a root maintains all tables below the root. A table that is given by its asset is left alone if others
    write it.

    Args:
        context: The context of the op or the tick.
        target: The table.
        policy: The policy of the job.
        lake: The root whose tables the job lists.
        log: Logs a table that is left alone; None for no log.
    """
    why = "its metadata lance/maintenance, or its policy, is False, or the policies for its names differ"
    if lake is not None and target.table is not None:
        table_policy = lake.policy(policy, target.table, target.ref, *([] if log is None else [log]))
    elif is_foreign(target.ref, context):
        table_policy, why = None, _FOREIGN
    else:
        table_policy = policy_of(policy, target.ref.metadata, label=_where(target))
    if table_policy is None and log is not None:
        log.info("%s is left alone: %s", _where(target), why)
    return table_policy


def _where(target: MaintenanceTarget) -> str:
    return f"asset {target.ref.name}"
