"""`build_undo_job`: undo the changes of one run to tables, and report the tables to Dagster.

    run to undo     run tag `lance/undo_run`, or `run_id` in the configuration of the op; a unique prefix is enough
    tables          all tables of the job, and their branches, that the run changed; where the environment, or the run
                    tag `lance/branch`, names a branch, that branch alone
    dry run         `dry_run` in the configuration, or the run tag `lance/dry_run`: the undo is only logged

All undos are planned before the first one is committed. A table on which the run was undone before, by the command or
by a job that ended early, is only reported.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lance_dagster.tables.branch_policy import BRANCH_TAG, NO_RETRIES, PUBLISHES_TAG
from lance_dagster.tables.event_keys import UNDO_ENTRY
from lance_dagster.tables.jobs import LostTables, TableRun, build_table_job
from lance_dagster.tables.refs import ChosenTables, TableLike, TableRef, group_by_table, is_tagged, join_names
from lance_dagster.tables.write_events import read_write_events_of_run

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.lineage.history import TableVersion
    from lance_dagster.undo.plan import Undo

UNDO_TAG = "lance/undo_run"
"""Run tag that names the run to undo."""

DRY_RUN_TAG = "lance/dry_run"
"""Run tag of a dry run."""


class UndoConfig(ChosenTables):
    """The configuration of one run.

    Attributes:
        run_id: The run to undo, or a unique prefix of its id; by default the run tag `lance/undo_run` names it.
        dry_run: Whether to log only what would be done; the run tag `lance/dry_run` does the same.
    """

    run_id: str | None = Field(
        default=None, description="The run to undo; by default the run tag lance/undo_run names it."
    )
    dry_run: bool = Field(default=False, description="Whether to log only what would be done.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The work on one branch of a table: an undo, or the report of an earlier undo.

    Attributes:
        refs: The assets to report; several may share a table.
        plan: The undo; None if the run was undone before.
        done: The newest version of the branch, if the run was undone before; else None.
        other_refs: The other assets that share the table.
    """

    refs: Sequence[TableRef]
    plan: "Undo | None"
    done: "lance_core.LanceDataset | None" = None
    other_refs: Sequence[TableRef] = ()

    @property
    def branch(self) -> str | None:
        """The branch; None for main."""
        dataset = self.done if self.plan is None else self.plan.dataset
        return None if dataset is None else dataset.branch


def build_undo_job(
    assets: Iterable[TableLike] | TableLike, *, name: str = "lance_undo", io_manager_key: str = "io_manager"
) -> dg.JobDefinition:
    """Make the job that undoes a run; the head of the module describes its runs.

    Args:
        assets: Assets, specs or keys.
        name: Name of the job.
        io_manager_key: The resource that knows where the tables are: a `LanceIOManager` or a `LanceTableResource`.

    Raises:
        DagsterInvalidDefinitionError: A reference to a table, or `name`, is invalid.

    Examples:
        >>> lance_dagster.build_undo_job(["nyc/flights"]).name
        'lance_undo'
    """
    return build_table_job(
        assets,
        UndoConfig,
        _undo,
        name=name,
        label="build_undo_job: name",
        description="Undoes the changes of one run to these tables, if that is exact, and reports the tables.",
        io_manager_key=io_manager_key,
        tags=NO_RETRIES,
    )


def _undo(run: TableRun) -> None:
    from lance_dagster.lineage.runs import find_run, without_changes  # noqa: PLC0415 - heavy imports

    context, root, config = run.context, run.root, run.config
    run_prefix = config.run_id or context.run.tags.get(UNDO_TAG)
    if not run_prefix:
        raise dg.Failure(
            f"no run to undo is named: set the run tag {UNDO_TAG}, or `run_id` in the configuration of the op"
        )
    candidates = [(ref, root.open_or_none(ref)) for ref in run.chosen_refs()]
    tables = [(ref, main) for ref, main in candidates if main is not None]
    only = root.branch_of_job(context)
    try:
        run_id = find_run([main for _, main in tables], run_prefix, label="the tables of this job")
    except LookupError as error:
        _reject_lost_versions(run, run_prefix, candidates, [], only)
        raise dg.Failure(str(error)) from error
    planned, rejected = _plan(tables, run_id, only)
    _reject_lost_versions(run, run_id, candidates, planned, only, rejected)
    if not planned:
        raise dg.Failure(
            without_changes([head for main, _ in group_by_table(tables) for head in _list_heads(main, only)], run_id)
        )
    for work in planned:
        if work.plan is not None:
            dataset = work.plan.dataset
            label = f"{join_names(work.refs)}, {dataset.branch or 'main'}"
            versions = ", ".join(map(str, work.plan.versions))
            context.log.info(
                "%s: version %s of run %s: %s, %d rows become %d",
                label,
                versions,
                run_id,
                work.plan.how,
                work.plan.rows,
                work.plan.rows_after,
            )
            if work.plan.indices_lost:
                context.log.warning("%s: %s", label, work.plan.how)
    if is_tagged(context, DRY_RUN_TAG) or config.dry_run:
        context.log.info("dry run: nothing was changed")
        return
    branches = [work.branch for work in planned]
    # So that `lance_eager` does not take events about a branch for new data, and those about main for such.
    tag = {BRANCH_TAG: branches[0]} if branches[0] and None not in branches else {PUBLISHES_TAG: "true"}
    context.instance.add_run_tags(context.run.run_id, tag)
    _commit(run, planned, run_id)


def _commit(run: TableRun, planned: Sequence[_Planned], run_id: str) -> None:
    """Commit and report the undos.

    Raises:
        Failure: A table was dropped or renamed meanwhile; the others are undone.
    """
    lost = LostTables(run.context)
    for work in planned:
        with lost.noting():
            if work.plan is not None:
                run.reject_moved(work.refs, work.plan.dataset)
            _report(run, work, run_id, lost)
    lost.fail(f"run {run_id} is not undone, or not reported, everywhere")


def _plan(tables: Sequence[tuple[TableRef, Any]], run_id: str, only: str | None) -> tuple[list[_Planned], list[str]]:
    """The work on each branch of each table that the run changed, and the reasons against an undo.

    Args:
        tables: The assets with their tables.
        run_id: The run.
        only: The branch to which the undo is limited; None for main and all branches.
    """
    from lance_dagster.lineage.runs import versions_of_run  # noqa: PLC0415 - heavy imports
    from lance_dagster.undo.plan import AlreadyUndoneError, CannotUndoError, plan_undo  # noqa: PLC0415 - heavy imports

    planned: list[_Planned] = []
    rejected: list[str] = []
    for main, refs in group_by_table(tables):
        for branch in _list_heads(main, only):
            try:
                plan = plan_undo(branch, run_id)
            except AlreadyUndoneError:
                planned.append(_planned(refs, versions_of_run(branch, run_id), plan=None, done=branch))
            except CannotUndoError as error:
                rejected.append(f"{join_names(refs)}: {error}")
            else:
                planned += [] if plan is None else [_planned(refs, plan.run_versions, plan=plan)]
    return planned, rejected


def _list_heads(main: "lance_core.LanceDataset", only: str | None) -> "list[lance_core.LanceDataset]":
    """The newest versions of main and the branches of a table, or of the branch to which an undo is limited."""
    from lance_dagster.lineage.runs import open_branches  # noqa: PLC0415 - heavy imports

    return [head for head in open_branches(main) if only in (None, head.branch)]


def _reject_lost_versions(
    run: TableRun,
    run_id: str,
    candidates: Sequence[tuple[TableRef, Any]],
    planned: Sequence[_Planned],
    only: str | None,
    rejected: Sequence[str] = (),
) -> None:
    """Reject the undo if a change cannot be undone exactly, or the run has recorded a version that is not there.

    Raises:
        Failure: There is a reason against the undo; nothing was committed.
    """
    from lance_dagster.lineage.lost_tables import explain_lost_versions  # noqa: PLC0415 - heavy imports

    mains = {ref.key: main for ref, main in candidates}
    events = read_write_events_of_run(run.context.instance, run_id)
    writes = [(event, mains[event.key]) for event in events if event.key in mains and only in (None, event.branch)]
    planned_branches = {(ref.key, work.branch) for work in planned for ref in work.refs}
    lost = explain_lost_versions(run.context.instance, run.root, run_id, writes, planned_branches)
    remedy = ". To go on without a table, name the other assets as `tables` in the configuration of the op"
    if rejected or lost:
        raise dg.Failure(f"nothing was undone: {'; '.join([*rejected, *lost])}{remedy if lost else ''}")


def _planned(refs: Sequence[TableRef], versions: "Sequence[TableVersion]", **facts: Any) -> _Planned:
    """The work on versions, which is reported for the assets that their commits name, or else for all of the table."""
    named = {name for version in versions for name in version.assets}
    reported = [ref for ref in refs if ref.name in named] or list(refs)
    return _Planned(refs=reported, other_refs=[ref for ref in refs if ref not in reported], **facts)


def _report(run: TableRun, planned: _Planned, run_id: str, lost: LostTables) -> None:
    from lance_dagster.events.reporting import build_observation, log_events  # noqa: PLC0415 - heavy imports
    from lance_dagster.undo.events import report_earlier_undo, report_undo  # noqa: PLC0415 - heavy imports

    context, root = run.context, run.root
    undone = None if planned.plan is None else planned.plan.commit(root.options)
    if undone is None:
        context.log.info("%s: run %s was undone before", join_names(planned.refs), run_id)
    else:
        context.log.info("%s: run %s is undone in version %d", join_names(planned.refs), run_id, undone)
    dataset = planned.done if planned.plan is None else planned.plan.dataset
    assert dataset is not None
    is_reported = undone is not None
    for ref in planned.refs:
        with lost.noting():
            location = root.locate_changed(ref, dataset)
            if planned.plan is not None and undone is not None:
                report = report_undo(context.instance, ref, planned.plan, undone)
            else:
                report = report_earlier_undo(context.instance, ref, dataset, run_id)
            is_reported = log_events(context, root, report, location) or is_reported
    if planned.branch is None and is_reported:
        for ref in planned.other_refs:
            with lost.noting():
                latest = dataset.checkout_version((None, None))
                context.log_event(build_observation(root, ref, latest, {UNDO_ENTRY: run_id}))
