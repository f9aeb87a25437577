"""The ops of a maintenance job; the head of `job` shows their order."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg

from lance_dagster.health.lake import Lake
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.maintenance.budget import LanceMaintenanceBudget, within_budget
from lance_dagster.maintenance.limits import time_is_up
from lance_dagster.maintenance.observations import has_work, is_last, observation_of, outcome_of, summary_of
from lance_dagster.maintenance.on_spark import spark_rewriter
from lance_dagster.maintenance.run_config import MaintenanceConfig
from lance_dagster.maintenance.survey import RewriteOutcome, Survey
from lance_dagster.maintenance.targets import (
    choose_targets,
    failure_of,
    in_order_of_run,
    owner_properties,
    survey_target,
    versions_in_use,
)
from lance_dagster.properties import DATA_VERSION, JOB_NAME, MAINTENANCE, RUN_ID
from lance_dagster.tables.names import mapping_key
from lance_dagster.tables.refs import TableRef, TableRoot, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import CompactionTask
    from lance_dagster.maintenance.steps import MaintenanceOutcome, MaintenancePlan, Rewriter

__all__ = [
    "EXECUTOR_TAG",
    "PAYLOADS",
    "STEPS",
    "Engine",
    "MaintenanceOps",
    "collect_op",
    "op_outputs_op",
    "plan_op",
    "report_op",
    "rewrite_op",
    "step_op",
    "summarize_op",
]

Engine = Literal["process", "spark"]

PAYLOADS = "lance_maintenance_payloads"
_RETRIES = 2
EXECUTOR_TAG = "lance/rewrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOps:
    """The arguments of all ops of one job."""

    name: str
    refs: Sequence[TableRef]
    policy: LanceMaintenancePolicy
    engine: Engine
    io_manager_key: str
    lake: Lake | None = None
    budget: LanceMaintenanceBudget = field(default_factory=LanceMaintenanceBudget)

    def op(self, step: str, description: str, **options: Any) -> Callable[[Callable[..., Any]], dg.OpDefinition]:
        """`dg.op` for a step of this job, whose output the payload IO manager stores."""
        return dg.op(
            name=f"{self.name}_{step}",
            description=description,
            required_resource_keys={self.io_manager_key},
            **{"out": dg.Out(io_manager_key=PAYLOADS), **options},
        )

    def root(self, context: dg.OpExecutionContext) -> TableRoot:
        """The root of the IO manager."""
        return table_root(getattr(context.resources, self.io_manager_key))

    def log_root(self, context: dg.OpExecutionContext) -> TableRoot:
        """The root below which the log is written."""
        root = self.root(context)
        return root if self.lake is None else self.lake.place(root)

    def options(self, context: dg.OpExecutionContext, asset: str) -> dict[str, str] | None:
        """The storage options of a table."""
        root = self.root(context)
        ref = next((ref for ref in self.refs if ref.name == asset), None)
        return root.options if ref is None else root.locate(ref.resolved(context)).options(root.storage_options)

    def open(self, context: dg.OpExecutionContext, uri: str, asset: str) -> "lance_core.LanceDataset":
        """The newest version of a table."""
        import lance_core  # noqa: PLC0415 - code locations load without it

        return lance_core.dataset(uri, storage_options=self.options(context, asset))

    def was_dropped(self, context: dg.OpExecutionContext, uri: str, asset: str) -> bool:
        """Whether a table was dropped since it was planned."""
        from lance_core.errors import DatasetNotFoundError, LanceError  # noqa: PLC0415 - code locations load without it

        try:
            self.open(context, uri, asset)
        except DatasetNotFoundError:
            return True
        except (LanceError, OSError):  # the error of the step is reported instead
            return False
        return False

    def rewriter(self, context: dg.OpExecutionContext, asset: str) -> "Rewriter":
        """The rewriter that runs tasks in a step."""
        from lance_dagster.maintenance.steps import run_here  # noqa: PLC0415 - code locations load without lance_core

        if self.engine == "process":
            return run_here
        manager = getattr(context.resources, self.io_manager_key)
        return spark_rewriter(manager, self.options(context, asset), self.policy.max_parallel_tasks)


def plan_op(job: MaintenanceOps) -> dg.OpDefinition:
    """The op that lists the tables, and plans the work on those that need it."""
    out = {"tasks": dg.DynamicOut(io_manager_key=PAYLOADS), "surveyed": dg.Out(io_manager_key=PAYLOADS)}

    @job.op("plan", "Reads the manifests of all tables, and reports what is due.", out=out)
    def plan(context: dg.OpExecutionContext, config: MaintenanceConfig) -> Iterator[Any]:
        from lance_dagster.maintenance.receipts import receipts_of  # noqa: PLC0415 - heavy imports at first use

        changed = job.policy.changed(config.overrides(), where="configuration of the run")
        surveyed, root, due = Survey(policy=changed), job.root(context), []
        targets = choose_targets(context, root, job.refs, job.lake, config.tables, log=context.log)
        for target in in_order_of_run(context, targets):
            outcome, tasks = survey_target(context, root, target, job.policy, job.lake, config.overrides())
            if isinstance(outcome, str):
                (surveyed.absent if outcome == "absent" else surveyed.left_alone).append(target.ref.name)
            elif outcome.error is None and not outcome.plan.is_due:
                is_dry = outcome.plan.policy.dry_run
                seen = observation_of(
                    outcome, "dry run" if is_dry else "healthy", outcome.plan.before, outcome.plan.health
                )
                if config.tables or (target.is_asset and (is_dry or not is_last(context.instance, seen))):
                    context.log_event(seen)
                (surveyed.dry_run if is_dry else surveyed.healthy).append(target.ref.name)
                surveyed.receipts.extend(() if is_dry else receipts_of(outcome, "healthy"))
            else:
                due.append((outcome, tasks))
        for outcome, tasks in within_budget(context, job.log_root(context), due, job.budget.changed(config.limits())):
            outcome = _in_dry_run(job, context, outcome, tasks)  # noqa: PLW2901 - the new outcome
            if outcome.error is None and (outcome.plan.policy.dry_run or outcome.is_put_off):
                _report_planned(context, outcome, surveyed, is_asked=bool(config.tables))
            else:
                surveyed.due.append(outcome)
                yield from _task_outputs(job, outcome.plan, tasks)
        yield dg.Output(surveyed, "surveyed")

    return plan


def _report_planned(
    context: dg.OpExecutionContext,
    table: "MaintenanceOutcome",
    surveyed: Survey,
    *,
    is_asked: bool,
) -> None:
    """Report a table that is finished with the survey, because of a dry run or because all its work is put off."""
    from lance_dagster.maintenance.receipts import receipts_of  # noqa: PLC0415 - heavy imports at first use

    plan = table.plan
    if plan.policy.dry_run:
        surveyed.dry_run.append(plan.asset)
    else:
        surveyed.receipts.extend(receipts_of(table, "put off"))
    kind, after = ("dry run", table.after) if plan.policy.dry_run else ("put off", plan.before)
    seen = observation_of(table, kind, after, plan.health)
    if is_asked or plan.policy.dry_run or not is_last(context.instance, seen):
        context.log_event(seen)
    if table.deferred:
        does_nothing = table.is_put_off or not (plan.indices_due or has_work(table))
        (surveyed.put_off if does_nothing else surveyed.partly_done)[plan.asset] = table.deferred


def _in_dry_run(
    job: MaintenanceOps,
    context: dg.OpExecutionContext,
    table: "MaintenanceOutcome",
    tasks: "list[CompactionTask]",
) -> "MaintenanceOutcome":
    """In a dry run, the outcome that a run would have; an error is kept in the outcome, as for other steps."""
    from lance_dagster.maintenance.dry_runs import dry_run  # noqa: PLC0415 - heavy imports at first use

    plan = table.plan
    if table.error is not None or not plan.policy.dry_run:
        return table
    try:
        in_use = versions_in_use(context, job.root(context), plan)
        dataset = job.open(context, plan.uri, plan.asset).checkout_version((plan.branch, plan.version))
        return dry_run(dataset, table, tasks, in_use)
    except Exception as error:
        context.log.exception("asset %s: the dry run failed", plan.asset)
        return replace(table, error=failure_of("dry_run", error))


def _task_outputs(
    job: MaintenanceOps, plan: "MaintenancePlan", tasks: "list[CompactionTask]"
) -> Iterator[dg.DynamicOutput[Any]]:
    """One output per task, or one per table for Spark, which distributes the tasks."""
    groups = [tasks] if job.engine == "spark" and tasks else [[task] for task in tasks]
    for number, group in enumerate(groups):
        record = {
            "asset": plan.asset,
            "uri": plan.uri,
            "tasks": [task.json() for task in group],
            "deadline": plan.deadline,
        }
        yield dg.DynamicOutput(
            record, mapping_key=mapping_key(plan.asset, f"__v{plan.version}_{number}"), output_name="tasks"
        )


def rewrite_op(job: MaintenanceOps) -> dg.OpDefinition:
    """The op that runs a compaction task."""

    @job.op("rewrite", "Rewrites small files into new ones, which are not committed yet.", tags={EXECUTOR_TAG: "true"})
    def rewrite(context: dg.OpExecutionContext, task: dict[str, Any]) -> Any:
        from lance_core.errors import CorruptFileError, NotFoundError, ObjectNotFoundError  # noqa: PLC0415 - heavy imports at first use
        from lance_core.maintenance import CompactionTask  # noqa: PLC0415 - heavy imports at first use

        started, results, failed, is_damaged = time.monotonic(), [], None, False
        if time_is_up(task["deadline"]):
            return RewriteOutcome(asset=task["asset"], put_off=len(task["tasks"]))
        try:
            dataset = job.open(context, task["uri"], task["asset"])
            rewriter = job.rewriter(context, task["asset"])
            done = rewriter(dataset, [CompactionTask.from_json(text) for text in task["tasks"]])
            results = [result.json() for result in done]
        except Exception as error:  # kept in the outcome, so that the other tables are finished; `report` fails with it
            if job.was_dropped(context, task["uri"], task["asset"]):
                return RewriteOutcome(asset=task["asset"])
            if context.retry_number < _RETRIES and not isinstance(error, CorruptFileError | NotFoundError):
                raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=2**context.retry_number) from error
            context.log.exception("asset %s: a rewrite failed", task["asset"])
            failed = failure_of("rewrite", error)
            is_damaged = isinstance(error, CorruptFileError | ObjectNotFoundError)
        seconds = time.monotonic() - started
        return RewriteOutcome(
            asset=task["asset"], results=results, error=failed, seconds=seconds, is_damaged=is_damaged
        )

    return rewrite


def collect_op(job: MaintenanceOps) -> dg.OpDefinition:
    """The op that collects the results of tasks by table."""

    @job.op("collect", "Collects the results of rewrites by table.", out=dg.DynamicOut(io_manager_key=PAYLOADS))
    def collect(surveyed: Any, rewritten: list[Any]) -> Iterator[dg.DynamicOutput[Any]]:
        for outcome in surveyed.due:
            rewrites: list[RewriteOutcome] = [rewrite for rewrite in rewritten if rewrite.asset == outcome.plan.asset]
            late = sum(rewrite.put_off for rewrite in rewrites)
            reason = f"max_duration: the time was up before {late} rewrites began" if late else None
            table = replace(
                outcome,
                results=[result for rewrite in rewrites for result in rewrite.results],
                seconds=outcome.seconds + sum(rewrite.seconds for rewrite in rewrites),
                deferred="; ".join(filter(None, (outcome.deferred, reason))) or None,
                error=outcome.error or next((rewrite.error for rewrite in rewrites if rewrite.error), None),
                is_damaged=any(rewrite.is_damaged for rewrite in rewrites),
            )
            yield dg.DynamicOutput(table, mapping_key=mapping_key(outcome.plan.asset))

    return collect


STEPS = {
    "commit": "Commits the rewritten files of a table.",
    "materialize_deletions": "Rewrites files with many deleted rows.",
    "refresh_indices": "Creates zone maps on partition columns; extends indices to rows that they do not cover.",
    "clean_up": "Removes old versions and the files that only they need.",
}


def step_op(job: MaintenanceOps, step: str, description: str) -> dg.OpDefinition:
    """The op of one of `STEPS`."""

    @job.op(step, description)
    def run_step(context: dg.OpExecutionContext, table: Any) -> Any:
        if table.was_dropped or table.plan.policy.dry_run or not table.plan.version:  # 0: the survey failed
            return table
        if step == "clean_up" and table.is_damaged:
            return table.failed(step, "all versions stay, as an older one may be needed in place of the damaged files")
        started = time.monotonic()
        try:
            table = _run_step(job, context, step, table)
        except Exception as error:  # kept in the outcome: other steps and tables are finished; `report` fails with it
            if job.was_dropped(context, table.plan.uri, table.plan.asset):
                context.log.info("asset %s: its table was dropped during the run", table.plan.asset)
                return replace(table, was_dropped=True)
            context.log.exception("asset %s: %s failed", table.plan.asset, step)
            table = table.failed(step, error)
        return replace(table, seconds=table.seconds + time.monotonic() - started)

    return run_step


def _run_step(
    job: MaintenanceOps, context: dg.OpExecutionContext, step: str, table: "MaintenanceOutcome"
) -> "MaintenanceOutcome":
    """The outcome after one of `STEPS`, with the step's receipt, and after the last step with the table's numbers."""
    from lance_dagster.maintenance import deadlines, receipts, steps  # noqa: PLC0415 - heavy imports at first use

    dataset, started = job.open(context, table.plan.uri, table.plan.asset), time.monotonic()
    if step != "commit" and time_is_up(table.plan.deadline):
        late = deadlines.put_off_step(dataset, table, step)
        return steps.measured(dataset, late) if step == "clean_up" else late
    before = dataset.version
    done = _work(job, context, step, table, dataset)
    seconds = time.monotonic() - started
    done = receipts.receipt_of(
        table, done, step=step, version_before=before, version_after=dataset.version, seconds=seconds
    )
    return steps.measured(dataset, done) if step == "clean_up" else done


def _work(
    job: MaintenanceOps,
    context: dg.OpExecutionContext,
    step: str,
    table: "MaintenanceOutcome",
    dataset: "lance_core.LanceDataset",
) -> "MaintenanceOutcome":
    """The outcome after one of `STEPS`."""
    from lance_dagster.lineage.history import last_data_change  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.reader_tags import release_expired  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.maintenance import steps  # noqa: PLC0415 - heavy imports at first use

    asset = table.plan.asset
    if step == "clean_up":
        for reader, versions in release_expired(dataset).items():
            context.log.info("asset %s: versions %s are held for incremental reader %s", asset, versions, reader)
        done, problems = steps.clean_up(dataset, table, versions_in_use(context, job.root(context), table.plan))
        for problem in problems:
            context.log.warning("asset %s: %s", asset, problem)
        return done
    if step == "commit" and not table.plan.num_tasks:
        return table
    properties = {
        DATA_VERSION: str(last_data_change(dataset)),
        RUN_ID: context.run_id,
        JOB_NAME: context.job_name,
        MAINTENANCE: "true",
        **owner_properties(table.plan),
    }
    rewriter, options = job.rewriter(context, asset), job.options(context, asset)
    if step == "commit":
        return steps.commit(dataset, table, properties, rewriter=rewriter, storage_options=options)
    if step == "materialize_deletions":
        return steps.materialize_deletions(dataset, table, properties, rewriter=rewriter)
    done, problems = steps.refresh_indices(dataset, table, properties, options, rewriter=rewriter)
    for problem in problems:
        context.log.warning("asset %s: %s", asset, problem)
    return done


def report_op(job: MaintenanceOps) -> dg.OpDefinition:
    """The op that reports the work on a table."""

    @job.op(
        "report",
        "Reports the work as an observation of the asset; fails if the table failed.",
        out=dg.Out(dg.Nothing, io_manager_key=PAYLOADS),
    )
    def report(context: dg.OpExecutionContext, table: Any) -> None:
        plan = table.plan
        if table.error is not None:
            raise dg.Failure(f"asset {plan.asset}: {table.error}", metadata={"dagster/uri": plan.uri})
        if table.was_dropped:
            return
        if table.lost:
            context.log.warning(
                "asset %s: %d rewrites or indices were not committed, because writers committed first; the next run "
                "repeats them",
                plan.asset,
                table.lost,
            )
        context.log_event(observation_of(table, outcome_of(table), table.after, table.health_after))

    return report


def summarize_op(job: MaintenanceOps) -> dg.OpDefinition:
    """The op that counts the tables, and records the work in the log of maintenance."""

    @job.op("summarize", "Counts the tables, and appends them to the log; fails if a table failed.")
    def summarize(context: dg.OpExecutionContext, surveyed: Any, tables: list[Any]) -> dict[str, Any]:
        from lance_dagster.maintenance.receipts import record_run  # noqa: PLC0415 - heavy imports at first use

        summary = summary_of(surveyed, tables)
        failed = summary["failed"]
        try:
            record_run(job.log_root(context), surveyed, tables, run_id=context.run_id, job=context.job_name)
        except Exception as error:  # reported below, with the tables that failed
            context.log.exception("the log of maintenance could not be written")
            failed["the log of maintenance"] = failure_of("append", error)
        counts = ", ".join(f"{len(names)} {kind.replace('_', ' ')}" for kind, names in summary.items() if names)
        if failed:
            named = "; ".join(f"{asset}: {error}" for asset, error in sorted(failed.items()))
            raise dg.Failure(f"maintenance of {len(failed)} tables failed: {named} (tables by outcome: {counts})")
        context.log.info("tables: %s", counts or "none")
        return summary

    return summarize


def op_outputs_op(job: MaintenanceOps) -> dg.OpDefinition:
    """The op that removes old outputs of ops."""

    @job.op("op_outputs", "Removes the outputs of ops of runs that ended long ago.")
    def op_outputs(context: dg.OpExecutionContext, surveyed: Any) -> dict[str, int]:
        from lance_dagster.op_outputs.cleanup import clean_op_outputs  # noqa: PLC0415 - heavy imports at first use

        policy, root = surveyed.policy, job.root(context)
        is_shared = root.branch_of_job(context) is not None  # with production, whose runs another instance records
        cleanup = clean_op_outputs(context.instance, root, policy.age, dry_run=policy.dry_run, of_known_runs=is_shared)
        verb = "due" if policy.dry_run else "removed"
        numbers = {
            f"op_output_runs_{verb}": cleanup.runs,
            f"op_output_tables_{verb}": cleanup.tables,
            f"op_output_bytes_{verb}": cleanup.bytes,
            "op_output_runs_kept": cleanup.kept_runs,
        }
        context.add_output_metadata({f"lance/{name}": number for name, number in numbers.items()})
        context.log.info("outputs of ops: %s", ", ".join(f"{name} {number}" for name, number in numbers.items()))
        return numbers

    return op_outputs
