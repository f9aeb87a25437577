"""`build_branch_jobs`: promote or discard the branch of some tables, as Dagster jobs.

    lance_promote    each table: gates -> one commit on main -> one materialization per partition
    lance_discard    each table: the branch is deleted; partitions whose last event was about the branch are reported
                     as main has them

The branch is named by the run tag `lance/branch` or by the configuration of the op. Both jobs can be run again. Tables
without the branch are skipped. An earlier promotion is found and not repeated; it is reported if it was not before. The
run tag `lance/force`, or `force` in the configuration, promotes a branch that the gates reject; the events record this.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lance_dagster._context.definitions import blocking_checks, sort_upstream_first
from lance_dagster._context.jobs import build_job_of_one_op
from lance_dagster._context.steps import facts_of
from lance_dagster.properties import PROMOTION_JOB_NAME, PROMOTION_RUN_ID
from lance_dagster.tables.branch_policy import (
    BRANCH_TAG,
    FORCE_TAG,
    MAIN,
    NO_RETRIES,
    PUBLISHES_TAG,
    branch_source,
    describe_launch,
    named_branch,
    only_branch,
)
from lance_dagster.tables.names import checked_job_name
from lance_dagster.tables.refs import (
    ChosenTables,
    TableLike,
    TableRef,
    TableRoot,
    chosen_refs,
    is_foreign,
    is_tagged,
    table_refs,
    table_root,
)

if TYPE_CHECKING:
    from lance_dagster.branches.check_results import BranchChecks
    from lance_dagster.branches.promotion import Published


class BranchConfig(ChosenTables):
    """The configuration of one run.

    Attributes:
        branch: The branch; by default the run tag `lance/branch` names it.
        force: Whether to promote a branch that gates reject; the run tag `lance/force` does the same.
    """

    branch: str | None = Field(default=None, description="The branch; by default the run tag lance/branch names it.")
    force: bool = Field(
        default=False, description="Whether to promote a branch that failed checks or that other gates reject."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BranchOps:
    """The arguments of a job's op."""

    refs: Sequence[TableRef]
    io_manager_key: str
    gates: dict[str, Any]
    discard: bool

    def root(self, context: dg.OpExecutionContext) -> TableRoot:
        """The root of the IO manager."""
        return table_root(getattr(context.resources, self.io_manager_key))


def build_branch_jobs(
    tables: Iterable[TableLike] | TableLike,
    *,
    io_manager_key: str = "io_manager",
    require_checks: bool = True,
    max_commit_drift: int | None = None,
    min_row_ratio: float | None = None,
    max_row_ratio: float | None = None,
    discard_promoted: bool = False,
    promote_name: str = "lance_promote",
    discard_name: str = "lance_discard",
) -> tuple[dg.JobDefinition, dg.JobDefinition]:
    """Make the two jobs that promote or discard a branch; the head of the module describes them.

    Gates and conflicts of all tables are checked before the first table is promoted. If others then change a table in
    the seconds until its own commit, its main is unchanged, other tables are promoted, and the run fails.

    Args:
        tables: Assets, specs or keys. Branches of external and observable assets are left alone unless their metadata
            `lance/maintenance` is True, a policy or fields of one.
        io_manager_key: The resource that knows where the tables are: a `LanceIOManager` or a `LanceTableResource`.
        require_checks: Whether checks reject the branch: one that failed on it, except for a warning, and a blocking
            one of the code location that has not passed on the rows that are published.
        max_commit_drift: The most commits that main may have had since the fork; None for any number.
        min_row_ratio: The fewest rows that the branch may have, as a fraction of main's; None for any number.
        max_row_ratio: The most rows that the branch may have, as a fraction of main's; None for any number.
        discard_promoted: Whether the branch is deleted after it is promoted.
        promote_name: Name of the job that promotes.
        discard_name: Name of the job that discards.

    Returns:
        The job that promotes, and the one that discards.

    Raises:
        DagsterInvalidDefinitionError: A reference to a table, or the name of a job, is invalid.

    Examples:
        >>> [job.name for job in lance_dagster.build_branch_jobs(["nyc/flights"])]
        ['lance_promote', 'lance_discard']
    """
    checked_job_name(promote_name, "build_branch_jobs: promote_name")
    checked_job_name(discard_name, "build_branch_jobs: discard_name")
    gates = {
        "require_checks": require_checks,
        "max_commit_drift": max_commit_drift,
        "min_row_ratio": min_row_ratio,
        "max_row_ratio": max_row_ratio,
    }
    job = _BranchOps(refs=table_refs(tables), io_manager_key=io_manager_key, gates=gates, discard=discard_promoted)
    return (
        _build_job(job, promote_name, _promote, "Promotes the branch of these tables into main.", publishes=True),
        _build_job(job, discard_name, _discard, "Discards the branch of these tables.", publishes=False),
    )


def _build_job(job: _BranchOps, name: str, work: Any, description: str, *, publishes: bool) -> dg.JobDefinition:
    def run(context: dg.OpExecutionContext, config: BranchConfig) -> None:
        work(job, context, config)

    return build_job_of_one_op(
        run,
        name=name,
        description=description,
        resource_key=job.io_manager_key,
        tags={**NO_RETRIES, **({PUBLISHES_TAG: "true"} if publishes else {})},
        metadata={"lance/tables": [ref.name for ref in job.refs]},
    )


def _promote(job: _BranchOps, context: dg.OpExecutionContext, config: BranchConfig) -> None:
    from lance_core.errors import LanceError  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core

    branch, forced = _find_branch_of_run(job, context, config), is_tagged(context, FORCE_TAG) or config.force
    tables = [(ref, main) for ref, main in _open_tables(job, context, config) if main is not None]
    checked_branches, rejected = _pass_gates(job, context, _group_by_table(tables), branch, forced=forced)
    promotion.reject_conflicts([(ref.name, main) for ref, main in tables], branch, checked_branches)
    done, failed = 0, []
    for same in _group_by_table(sort_upstream_first(context, tables, lambda pair: pair[0].key)):
        main = same[0][1]
        names = ", ".join(ref.name for ref, _ in same)
        try:
            run = {PROMOTION_RUN_ID: context.run.run_id, PROMOTION_JOB_NAME: context.run.job_name}
            checks = checked_branches.get(main.root_uri)
            published = promotion.publish(main, branch, checked=checks, tag=True, properties=run)
        except LanceError as error:
            context.log.exception("%s: not promoted", names)
            failed.append(f"{names}: {error}")
            continue
        for ref, table in same:
            done += _report(job, context, ref, table, published, forced=rejected.get(main.root_uri))
    if failed:
        undo = f". Others were promoted: undo run {context.run.run_id} before you discard the branch" if done else ""
        raise dg.Failure(f"branch {branch} was not promoted everywhere: {'; '.join(failed)}{undo}")
    if not done:
        raise dg.Failure(f"no table of this job has, or had, a branch {branch}")


def _pass_gates(
    job: _BranchOps,
    context: dg.OpExecutionContext,
    tables: Sequence[Sequence[tuple[TableRef, Any]]],
    branch: str,
    *,
    forced: bool,
) -> tuple["dict[str, BranchChecks]", dict[str, list[str]]]:
    """The branch as the gates have checked it, and the gates that reject it though the run forces it, by table.

    Raises:
        Failure: A gate rejects the branch, and the run does not force the promotion.
    """
    from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core

    gates, launch = promotion.Gates(**job.gates), describe_launch(job.root(context).branching, branch)
    checked_branches: dict[str, BranchChecks] = {}
    rejected: dict[str, list[str]] = {}
    for same in tables:
        main, keys = same[0][1], [ref.key for ref, _ in same]
        checks = promotion.open_branch_checks(context.instance, main, branch, keys, partial(blocking_checks, context))
        if checks is None:
            continue
        checked_branches[main.root_uri] = checks
        if checks.is_promoted:
            continue
        problems = checks.sentences(launch) if gates.require_checks else []
        names = ", ".join(ref.name for ref, _ in same)
        problems += [f"{names}: {reason}" for reason in promotion.find_gate_problems(main, branch, gates)]
        rejected |= {main.root_uri: problems} if problems else {}
    reasons = "; ".join(problem for problems in rejected.values() for problem in problems)
    if rejected and not forced:
        raise dg.Failure(
            f"branch {branch} is not promoted, and main is unchanged: {reasons}. Materialize the asset on the branch "
            f"again once this is fixed, or promote the branch all the same with the run tag {FORCE_TAG}: true"
        )
    if rejected:
        context.log.warning("branch %s is promoted because the run forces it, although %s", branch, reasons)
    return checked_branches, rejected


def _group_by_table(pairs: Sequence[tuple[TableRef, Any]]) -> list[list[tuple[TableRef, Any]]]:
    """Assets with their tables, grouped by table, because several assets may share a table."""
    tables: dict[str, list[tuple[TableRef, Any]]] = {}
    for ref, main in pairs:
        tables.setdefault(main.root_uri, []).append((ref, main))
    return list(tables.values())


def _report(
    job: _BranchOps,
    context: dg.OpExecutionContext,
    ref: TableRef,
    main: Any,
    published: "Published | None",
    *,
    forced: Sequence[str] | None,
) -> bool:
    """Report what Dagster lacks about the promotion of one table; returns whether the branch was ever promoted."""
    from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.branches.writing import discard_branch  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.events.reporting import build_observation, record  # noqa: PLC0415 - heavy imports

    if published is None:
        context.log.info("%s: skipped, it has no such branch", ref.name)
        return False
    context.log.info("%s: branch %s %s", ref.name, published.branch, published.summary)
    if published.left_behind:
        context.log.warning("%s: branch %s keeps %s", ref.name, published.branch, ", ".join(published.left_behind))
    entries = {"lance/forced": "; ".join(forced)} if forced and published.is_new else {}
    events = promotion.build_promotion_events(context, job.root(context), ref, published, entries=entries)
    record(context, events)
    if published.is_new and not published.is_of(ref):
        context.log_event(build_observation(ref, published.dataset, {"lance/promoted_from": published.branch}))
    discarded = job.discard and discard_branch(main, published.branch)
    if events or discarded:
        _show_branches(context, ref, main)
    return True


def _discard(job: _BranchOps, context: dg.OpExecutionContext, config: BranchConfig) -> None:
    from lance_dagster.branches.writing import discard_branch  # noqa: PLC0415 - code locations load without lance_core

    branch = _find_branch_of_run(job, context, config)
    for ref, main in _open_tables(job, context, config):
        if main is None:
            context.log.info("%s: there is no table", ref.name)
            continue
        written = _find_written_partitions(context.instance, ref, branch)
        discarded = discard_branch(main, branch)
        context.log.info("%s: branch %s %s", ref.name, branch, "is discarded" if discarded else "does not exist")
        if written is not None:
            _report_main(job, context, ref, main, branch, written)
        if discarded:
            _show_branches(context, ref, main)


def _find_written_partitions(instance: dg.DagsterInstance, ref: TableRef, branch: str) -> list[str] | None:
    """The partitions whose newest event is about a branch; None if no newest event is.

    The list is empty for a table without partitions whose newest event is about the branch.
    """
    from lance_dagster.branches.page import find_runs_of_branch  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.events.reporting import list_partitions_of_runs, read_recorded_states  # noqa: PLC0415 - heavy imports

    partitions = list_partitions_of_runs(
        instance, ref.key, [run.run_id for run in find_runs_of_branch(instance, branch)]
    )
    reported_versions = read_recorded_states(instance, ref.key, partitions, None)
    about = [partition for partition, reported in reported_versions.items() if reported.branch == branch]
    return [partition for partition in about if partition is not None] if about else None


def _report_main(
    job: _BranchOps, context: dg.OpExecutionContext, ref: TableRef, main: Any, branch: str, partitions: Sequence[str]
) -> None:
    """Report what main has of partitions whose newest event was about a branch that was discarded."""
    from lance_dagster.events.published import PUBLISHED  # noqa: PLC0415 - heavy imports
    from lance_dagster.events.reporting import (  # noqa: PLC0415 - heavy imports
        TableReport,
        build_materializations,
        count_partition_rows,
        read_recorded_states,
        record,
    )

    latest = main.checkout_version((None, None))
    reported_versions = read_recorded_states(context.instance, ref.key, partitions, latest)
    report = TableReport(
        ref=ref,
        location=job.root(context).locate(ref),
        ui_url=job.root(context).ui_url,
        dataset=latest,
        partitions=partitions,
        metadata={"lance/discarded": branch},
        rows=count_partition_rows(latest, ref, partitions),
        provenance={partition: reported.provenance for partition, reported in reported_versions.items()},
        entries_by_partition={
            partition: {PUBLISHED: False}
            for partition, reported in reported_versions.items()
            if reported.version is None
        },
    )
    if BRANCH_TAG not in context.run.tags:  # so that `lance_eager` does not take the events for new data
        context.instance.add_run_tags(context.run.run_id, {BRANCH_TAG: branch})
    record(context, build_materializations(report, context))


def _find_branch_of_run(job: _BranchOps, context: dg.OpExecutionContext, config: BranchConfig) -> str:
    """The branch of this run.

    Raises:
        Failure: Neither the run's tag nor the configuration names a branch, or the environment names another one.
    """
    branch_name = config.branch or context.run.tags.get(BRANCH_TAG)
    branch = named_branch(
        branch_name,
        facts_of(context.run, context.instance),
        where="the configuration" if config.branch else f"run tag {BRANCH_TAG}",
    )
    if branch is None:
        raise dg.Failure(
            f"no branch is named: set the run tag {BRANCH_TAG}, or `branch` in the configuration of the op"
        )
    policy = job.root(context).branching
    only = only_branch(policy)
    if only not in (None, branch):
        raise dg.Failure(
            f"{branch_source(policy, only)}, so that branch {branch} is neither promoted nor discarded in this "
            f"environment: run the job where {policy.name} is {branch} or {MAIN}"
        )
    return branch


def _open_tables(
    job: _BranchOps, context: dg.OpExecutionContext, config: BranchConfig
) -> Iterator[tuple[TableRef, Any]]:
    """The assets of this run with their tables; None for a table that does not exist."""
    for full in chosen_refs(context, job.refs, config.tables):
        if is_foreign(full, context):
            context.log.info("%s: skipped, because others write the table and own its branches", full.name)
            continue
        yield full, job.root(context).open_or_none(full)


def _show_branches(context: dg.OpExecutionContext, ref: TableRef, main: Any) -> None:
    """Report the branches that the table has now."""
    from lance_dagster.branches.page import describe_branches  # noqa: PLC0415 - code locations load without lance_core

    entries = describe_branches(main, context.instance, ref.key)
    context.log_event(dg.AssetObservation(asset_key=ref.key, metadata=entries))
