"""`build_branch_jobs`: promote or discard the branch of some tables, as Dagster jobs.

    lance_promote    each table: gates -> one commit on main -> one materialization per partition
    lance_discard    each table: the branch is deleted; partitions whose last event was about the branch are reported
                     as main has them

The branch is named by the run tag `lance/branch` or by the configuration of the op. Both jobs can be run again. Tables
without the branch are skipped. An earlier promotion is found and not repeated; it is reported if it was not before. The
run tag `lance/force`, or `force` in the configuration, promotes a branch that the gates reject; the events record this.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lance_dagster._context.definitions import sort_upstream_first
from lance_dagster._context.steps import facts_of
from lance_dagster.branches.gate import Gates
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
from lance_dagster.tables.event_keys import DISCARDED
from lance_dagster.tables.jobs import LostTables, TableRun, build_table_job
from lance_dagster.tables.location import TableLocation
from lance_dagster.tables.refs import (
    ChosenTables,
    TableLike,
    TableRef,
    group_by_table,
    is_foreign,
    is_tagged,
    join_names,
    table_refs,
)

if TYPE_CHECKING:
    from lance_dagster.branches.check_results import BranchChecks
    from lance_dagster.branches.promotion import Published, Tables


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
    refs = table_refs(tables)
    gates = Gates(
        require_checks=require_checks,
        max_commit_drift=max_commit_drift,
        min_row_ratio=min_row_ratio,
        max_row_ratio=max_row_ratio,
    )
    promote = build_table_job(
        refs,
        BranchConfig,
        partial(_promote, gates=gates, discard=discard_promoted),
        name=promote_name,
        label="build_branch_jobs: promote_name",
        description="Promotes the branch of these tables into main.",
        io_manager_key=io_manager_key,
        tags={**NO_RETRIES, PUBLISHES_TAG: "true"},
    )
    discard = build_table_job(
        refs,
        BranchConfig,
        _discard,
        name=discard_name,
        label="build_branch_jobs: discard_name",
        description="Discards the branch of these tables.",
        io_manager_key=io_manager_key,
        tags=NO_RETRIES,
    )
    return promote, discard


def _promote(run: TableRun, *, gates: Gates, discard: bool) -> None:
    from lance_core.errors import LanceError  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core

    context = run.context
    branch, forced = _find_branch_of_run(run), is_tagged(context, FORCE_TAG) or run.config.force
    candidates = list(_open_tables(run))
    _reject_lost_tables(run, candidates, branch)
    opened = [(ref, main) for ref, main in candidates if main is not None]
    tables = group_by_table(sort_upstream_first(context, opened, lambda pair: pair[0].key))
    checked_branches, rejected = _pass_gates(run, gates, tables, branch, forced=forced)
    promotion.reject_conflicts(tables, branch, checked_branches)
    done, failed, lost = 0, [], LostTables(context)
    for main, refs in tables:
        names = join_names(refs)
        try:
            run.reject_moved(refs, main)
            properties = {PROMOTION_RUN_ID: context.run.run_id, PROMOTION_JOB_NAME: context.run.job_name}
            checks = checked_branches.get(main.root_uri)
            published = promotion.publish(main, branch, checked=checks, properties=properties, refs=refs)
        except LanceError as error:
            context.log.exception("%s: not promoted", names)
            failed.append(f"{names}: {error}")
            continue
        for ref in refs:
            done += published is not None
            with lost.noting():
                _report(run, ref, main, published, forced=rejected.get(main.root_uri), discard=discard)
    if failed:
        undo = f". Others were promoted: undo run {context.run.run_id} before you discard the branch" if done else ""
        messages = ". ".join(["; ".join(failed) + undo, *lost.reasons])
        raise dg.Failure(f"branch {branch} was not promoted everywhere: {messages}")
    lost.fail(f"branch {branch} was promoted, and is not reported everywhere")
    if not done:
        raise dg.Failure(f"no table of this job has, or had, a branch {branch}")


def _reject_lost_tables(run: TableRun, candidates: Sequence[tuple[TableRef, Any]], branch: str) -> None:
    """Reject a branch of several tables if one of them, by the events of runs on it, is not there any more.

    Raises:
        Failure: A run wrote to the branch of a table that was dropped, or that is not that of the asset any more.
    """
    from lance_dagster.lineage.lost_tables import explain_lost_branches  # noqa: PLC0415 - heavy imports

    lost = explain_lost_branches(run.context.instance, run.root, candidates, branch)
    if lost:
        names = ", ".join(key.to_user_string() for key in lost)
        raise dg.Failure(
            f"branch {branch} is not promoted, and main of all tables is unchanged: {'; '.join(lost.values())}. To go "
            f"on without {names}, name the other assets as `tables` in the configuration of the op, or run the "
            f"job that discards the branch with `tables` = {names}"
        )


def _pass_gates(
    run: TableRun, gates: Gates, tables: "Tables", branch: str, *, forced: bool
) -> tuple["dict[str, BranchChecks]", dict[str, list[str]]]:
    """The branch as the gates have checked it, and the gates that reject it though the run forces it, by table.

    Raises:
        Failure: A gate rejects the branch, and the run does not force the promotion.
    """
    from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core

    launch = describe_launch(run.root.branching, branch)
    checked_branches = promotion.open_checks(run.context, tables, branch)
    rejected: dict[str, list[str]] = {}
    for main, refs in tables:
        checks = checked_branches.get(main.root_uri)
        if checks is None or checks.is_promoted:
            continue
        problems = checks.sentences(launch) if gates.require_checks else []
        reasons_of_table = promotion.find_gate_problems(main, checks, gates)
        problems += [f"{join_names(refs)}: {reason}" for reason in reasons_of_table]
        rejected |= {main.root_uri: problems} if problems else {}
    reasons = "; ".join(problem for problems in rejected.values() for problem in problems)
    if rejected and not forced:
        raise dg.Failure(
            f"branch {branch} is not promoted, and main is unchanged: {reasons}. Materialize the asset on the branch "
            f"again once this is fixed, or promote the branch all the same with the run tag {FORCE_TAG}: true"
        )
    if rejected:
        run.context.log.warning("branch %s is promoted because the run forces it, although %s", branch, reasons)
    return checked_branches, rejected


def _report(
    run: TableRun,
    ref: TableRef,
    main: Any,
    published: "Published | None",
    *,
    forced: Sequence[str] | None,
    discard: bool,
) -> None:
    """Report what Dagster lacks about the promotion of one table."""
    from lance_dagster.branches import promotion  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.branches.writing import discard_branch  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.events.reporting import build_observation  # noqa: PLC0415 - heavy imports

    context = run.context
    if published is None:
        context.log.info("%s: skipped, it has no such branch", ref.name)
        return
    entries = {"lance/forced": "; ".join(forced)} if forced and published.is_new else {}
    is_reported = promotion.report_promotion(context, run.root, ref, published, entries=entries)
    if published.is_new and not published.is_of(ref):
        context.log_event(
            build_observation(run.root, ref, published.dataset, {"lance/promoted_from": published.branch})
        )
    discarded = discard and discard_branch(main, published.branch)
    if is_reported or discarded:
        _show_branches(context, ref, main)


def _discard(run: TableRun) -> None:
    from lance_dagster.branches.writing import discard_branch  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.lineage.lost_tables import explain_lost_branches  # noqa: PLC0415 - heavy imports

    branch, context = _find_branch_of_run(run), run.context
    candidates = list(_open_tables(run))
    lost, reasons = LostTables(context), explain_lost_branches(context.instance, run.root, candidates, branch)
    for ref, main in candidates:
        if ref.key in reasons:
            context.log.warning("%s. From now on the branch counts as discarded there", reasons[ref.key])
            context.log_event(dg.AssetObservation(asset_key=ref.key, metadata={DISCARDED: branch}))
        elif main is None:
            context.log.info("%s: there is no table", ref.name)
        if main is None:
            continue
        with lost.noting():
            run.reject_moved([ref], main)
            written = _find_written_partitions(context.instance, ref, branch)
            discarded = discard_branch(main, branch)
            context.log.info("%s: branch %s %s", ref.name, branch, "is discarded" if discarded else "does not exist")
            location = run.root.locate_changed(ref, main)
            if written is not None:
                _report_main(run, ref, main, branch, written, location)
            if discarded:
                _show_branches(context, ref, main)
    lost.fail(f"branch {branch} is not discarded, or not reported, everywhere")


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
    run: TableRun, ref: TableRef, main: Any, branch: str, partitions: Sequence[str], location: TableLocation
) -> None:
    """Report what main has of partitions whose newest event was about a branch that was discarded."""
    from lance_dagster.events.published import PUBLISHED  # noqa: PLC0415 - heavy imports
    from lance_dagster.events.reporting import (  # noqa: PLC0415 - heavy imports
        TableReport,
        count_partition_rows,
        log_events,
        read_recorded_states,
    )

    latest, context = main.checkout_version((None, None)), run.context
    reported_versions = read_recorded_states(context.instance, ref.key, partitions, latest)
    report = TableReport(
        ref=ref,
        dataset=latest,
        partitions=partitions,
        metadata={DISCARDED: branch},
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
    log_events(context, run.root, report, location)


def _find_branch_of_run(run: TableRun) -> str:
    """The branch of this run.

    Raises:
        Failure: Neither the run's tag nor the configuration names a branch, or the environment names another one.
    """
    context, configured = run.context, run.config.branch
    label = "the configuration" if configured else f"run tag {BRANCH_TAG}"
    facts = facts_of(context.run, context.instance)
    branch = named_branch(configured or context.run.tags.get(BRANCH_TAG), facts, label=label)
    if branch is None:
        raise dg.Failure(
            f"no branch is named: set the run tag {BRANCH_TAG}, or `branch` in the configuration of the op"
        )
    policy = run.root.branching
    only = only_branch(policy)
    if only not in (None, branch):
        raise dg.Failure(
            f"{branch_source(policy, only)}, so that branch {branch} is neither promoted nor discarded in this "
            f"environment: run the job where {policy.name} is {branch} or {MAIN}"
        )
    return branch


def _open_tables(run: TableRun) -> Iterator[tuple[TableRef, Any]]:
    """The assets of this run with their tables; None for a table that does not exist."""
    for full in run.chosen_refs():
        if is_foreign(full, run.context):
            run.context.log.info("%s: skipped, because others write the table and own its branches", full.name)
            continue
        yield full, run.root.open_or_none(full)


def _show_branches(context: dg.OpExecutionContext, ref: TableRef, main: Any) -> None:
    """Report the branches that the table has now."""
    from lance_dagster.branches.page import describe_branches  # noqa: PLC0415 - code locations load without lance_core

    entries = describe_branches(main, context.instance, ref.key)
    context.log_event(dg.AssetObservation(asset_key=ref.key, metadata=entries))
