"""The ops of a maintenance job; the head of `job` shows their order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import dagster as dg

from lance_dagster.health.lake import Lake
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.maintenance.budget import LanceMaintenanceBudget
from lance_dagster.maintenance.expired_partitions import find_expired_partitions, observe_expired_partitions
from lance_dagster.maintenance.observations import INDEX_WORK, observation_of, repeats_last_observation, summary_of
from lance_dagster.maintenance.run_config import MaintenanceConfig
from lance_dagster.maintenance.targets import (
    AssetLog,
    choose_targets,
    in_order_of_run,
    options_of_table,
    survey_target,
    versions_in_use,
)
from lance_dagster.maintenance.work import JobSurvey, TableWork
from lance_dagster.properties import DATA_VERSION, JOB_NAME, MAINTENANCE, RUN_ID
from lance_dagster.tables.location import below_root
from lance_dagster.tables.names import LOG_FOLDER, mapping_key
from lance_dagster.tables.refs import TableRef, TableRoot, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import CompactionTask, IndexBuilder, MaintenancePlan, MaintenanceReport, Rewriter
    from lance_core.maintenance.routine.steps import StepContext

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
    unknown_runs: bool = False

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
        """The root below which the log is written.

        Raises:
            DagsterInvalidDefinitionError: The IO manager has a namespace and no root.
        """
        root = self.root(context)
        root = root if self.lake is None else self.lake.place(root)
        below_root(root.root_uri, LOG_FOLDER)
        return root

    def opener(
        self, context: dg.OpExecutionContext, plan: "MaintenancePlan"
    ) -> Callable[[], "lance_core.LanceDataset"]:
        """A function that opens the newest version of a table, unless its ids or its asset have another one now."""
        import lance_core  # noqa: PLC0415 - code locations load without it

        root = self.root(context)
        return lambda: lance_core.dataset(
            plan.uri, storage_options=options_of_table(context, root, self.refs, self.lake, plan)
        )

    def rewriter(self, context: dg.OpExecutionContext) -> "Rewriter":
        """The rewriter that runs tasks in a step: in its process, or on Spark's executors."""
        from lance_core.maintenance.routine.steps import run_here  # noqa: PLC0415 - code locations load without it

        def run_on_executors(dataset: Any, tasks: "Sequence[CompactionTask]") -> Iterable[Any]:
            import pyspark_lance  # noqa: PLC0415 - optional

            spark = self.spark_session(context)
            return pyspark_lance.executor_rewriter(spark, self.policy.max_parallel_tasks)(dataset, tasks)

        return run_here if self.engine == "process" else run_on_executors

    def index_builder(self, context: dg.OpExecutionContext) -> "IndexBuilder | None":
        """What builds parts of declared indices on Spark's executors; None for a child process of the step."""
        if self.engine == "process":
            return None
        import pyspark_lance  # noqa: PLC0415 - optional

        return pyspark_lance.executor_index_builder(self.spark_session(context))

    def spark_session(self, context: dg.OpExecutionContext) -> Any:
        """The Spark session of the IO manager.

        Raises:
            DagsterInvalidDefinitionError: The IO manager has none.
        """
        manager = getattr(context.resources, self.io_manager_key)
        if not hasattr(manager, "spark_session"):
            raise dg.DagsterInvalidDefinitionError(
                f'a {type(manager).__name__} has no Spark session; use engine="process"'
            )
        return manager.spark_session()

    def plan_op(self) -> dg.OpDefinition:
        """The op that lists the tables, and plans the work on those that need it."""
        out = {"tasks": dg.DynamicOut(io_manager_key=PAYLOADS), "surveyed": dg.Out(io_manager_key=PAYLOADS)}

        @self.op("plan", "Reads the manifests of all tables, and reports what is due.", out=out)
        def plan(context: dg.OpExecutionContext, config: MaintenanceConfig) -> Iterator[Any]:
            changed = self.policy.changed(config.overrides(), where="configuration of the run")
            self.log_root(context)  # a run that could not write its log changes nothing
            root = self.root(context) if self.lake is not None else self.root(context).with_listing()
            surveyed, due = JobSurvey(policy=changed), []
            targets = choose_targets(context, root, self.refs, self.lake, config.tables, log=context.log)
            is_shared = self.lake is not None or len(self.refs) > 1
            for target in in_order_of_run(context, targets):
                work = survey_target(
                    context, root, target, self.policy, self.lake, config.overrides(), is_shared=is_shared
                )
                if isinstance(work, str):
                    (surveyed.absent if work == "absent" else surveyed.left_alone).append(target.ref.name)
                elif work.report.error is None and not work.is_due:
                    _end_with_survey(context, work, surveyed, is_asked=bool(config.tables))
                else:
                    due.append(work)
            for fitting in self._fit_budget(context, due, self.budget.changed(config.limits())):
                work = self._foresee_dry_run(context, fitting)
                is_dry, report = work.report.plan.policy.dry_run, work.report
                if report.was_dropped:
                    surveyed.absent.append(work.asset)
                elif report.error is None and (is_dry or report.is_put_off):
                    _end_with_survey(context, work, surveyed, is_asked=bool(config.tables))
                else:
                    surveyed.due.append(replace(work, report=replace(report, tasks=())))
                    yield from self._task_outputs(work)
            yield dg.Output(surveyed, "surveyed")

        return plan

    def _fit_budget(
        self, context: dg.OpExecutionContext, due: Sequence[TableWork], budget: LanceMaintenanceBudget
    ) -> list[TableWork]:
        """The work of a run that fits into its budget."""
        from lance_core.maintenance.routine.budget import fit_budget  # noqa: PLC0415 - code locations load without it
        from lance_core.maintenance.routine.log import find_tables_put_off  # noqa: PLC0415 - code locations load without it
        from lance_dagster.health.log import open_log  # noqa: PLC0415 - code locations load without lance_core

        root, work_by_asset = self.log_root(context), {work.asset: work for work in due}
        log = None if budget == LanceMaintenanceBudget() else open_log(root.root_uri, root.options)
        before = () if log is None else find_tables_put_off(log)
        reports = fit_budget([work.report for work in due], budget.to_core(), before)
        for report in reports:
            if report.deferred:
                context.log.info("asset %s: put off: %s", report.plan.table, report.deferred)
        return [replace(work_by_asset[report.plan.table], report=report) for report in reports]

    def _foresee_dry_run(self, context: dg.OpExecutionContext, work: TableWork) -> TableWork:
        """In a dry run, add what a run would do to the report; an error is kept in it, as for other steps."""
        from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - heavy imports at first use
        from lance_core.maintenance.routine.dry_run import foresee  # noqa: PLC0415 - heavy imports at first use

        report, plan = work.report, work.report.plan
        if report.error is not None or not plan.policy.dry_run or plan.health is None:
            return work
        try:
            in_use = versions_in_use(context, self.root(context), work)
            dataset = self.opener(context, plan)().checkout_version((plan.branch, plan.health.version))
            return replace(work, report=foresee(dataset, report, in_use))
        except DatasetNotFoundError:
            return replace(work, report=replace(report, was_dropped=True))
        except Exception as error:
            context.log.exception("asset %s: the dry run failed", work.asset)
            return replace(work, report=report.failed("dry_run", error))

    def _task_outputs(self, work: TableWork) -> Iterator[dg.DynamicOutput[Any]]:
        """One output per task, or one per table for Spark, which distributes the tasks."""
        report, plan = work.report, work.report.plan
        groups = [report.tasks] if self.engine == "spark" and report.tasks else [[task] for task in report.tasks]
        version = 0 if plan.health is None else plan.health.version
        for number, group in enumerate(groups):
            part = replace(report, tasks=list(group))
            yield dg.DynamicOutput(
                part, mapping_key=mapping_key(work.asset, f"__v{version}_{number}"), output_name="tasks"
            )

    def rewrite_op(self) -> dg.OpDefinition:
        """The op that runs a compaction task."""

        @self.op(
            "rewrite", "Rewrites small files into new ones, which are not committed yet.", tags={EXECUTOR_TAG: "true"}
        )
        def rewrite(context: dg.OpExecutionContext, task: Any) -> Any:
            from lance_core.errors import CorruptFileError, NotFoundError  # noqa: PLC0415 - heavy imports at first use
            from lance_core.maintenance.routine.report import Rewrites  # noqa: PLC0415 - heavy imports
            from lance_core.maintenance.routine.run import explain_drop  # noqa: PLC0415 - heavy imports
            from lance_core.maintenance.routine.steps import rewrite_tasks  # noqa: PLC0415 - heavy imports

            plan = task.plan
            open_table = self.opener(context, plan)
            rewrites, error = rewrite_tasks(open_table, task.tasks, self.rewriter(context), plan.deadline)
            if error is None:
                return plan.table, rewrites
            if explain_drop(open_table) is not None:
                return plan.table, Rewrites()
            if context.retry_number < _RETRIES and not isinstance(error, CorruptFileError | NotFoundError):
                raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=2**context.retry_number) from error
            context.log.error("asset %s: a rewrite failed", plan.table, exc_info=error)
            return plan.table, rewrites  # the other tables are finished; `report` fails with the error

        return rewrite

    def collect_op(self) -> dg.OpDefinition:
        """The op that collects the results of tasks by table."""

        @self.op("collect", "Collects the results of rewrites by table.", out=dg.DynamicOut(io_manager_key=PAYLOADS))
        def collect(surveyed: Any, rewritten: list[Any]) -> Iterator[dg.DynamicOutput[Any]]:
            for work in surveyed.due:
                report = work.report.with_rewrites([rewrites for table, rewrites in rewritten if table == work.asset])
                yield dg.DynamicOutput(replace(work, report=report), mapping_key=mapping_key(work.asset))

        return collect

    def step_op(self, step: str, core_steps: Sequence[str], description: str) -> dg.OpDefinition:
        """The op of one of `STEPS`."""

        @self.op(step, description)
        def run_steps(context: dg.OpExecutionContext, table: Any) -> Any:
            from lance_core.maintenance.routine.run import run_step  # noqa: PLC0415 - code locations load without it
            from lance_core.maintenance.routine.steps import StepContext  # noqa: PLC0415 - code locations load without it
            from lance_dagster.lineage.history import last_data_change  # noqa: PLC0415 - heavy imports at first use

            log = AssetLog(context.log)

            def commit_properties(step: str, dataset: Any) -> dict[str, str]:
                run = {RUN_ID: context.run_id, JOB_NAME: context.job_name, MAINTENANCE: "true"}
                rows = {} if step == "expire" else {DATA_VERSION: str(last_data_change(dataset))}
                return {**rows, **run, **table.owner_properties()}

            def step_context(step: str, dataset: Any) -> "StepContext":
                builds_indices = step == "refresh_indices" and table.report.plan.policy.indices is not None
                return StepContext(
                    rewriter=self.rewriter(context),
                    index_builder=self.index_builder(context) if builds_indices else None,
                    properties={} if step == "clean_up" else commit_properties(step, dataset),
                    versions_in_use=lambda: versions_in_use(context, self.root(context), table),
                    log=log,
                )

            open_table = self.opener(context, table.report.plan)
            work: TableWork = table
            for core_step in core_steps:
                report = run_step(core_step, work.report, open_table, partial(step_context, core_step), log)
                if core_step == "expire" and report.done.get("rows_expired"):
                    work = self._find_expired_partitions(context, work, report, open_table)
                else:
                    work = replace(work, report=report)
            return work

        return run_steps

    def _find_expired_partitions(
        self,
        context: dg.OpExecutionContext,
        work: TableWork,
        report: "MaintenanceReport",
        open_table: Callable[[], Any],
    ) -> TableWork:
        """The work after rows expired, with the partitions that have no rows any more."""
        from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

        refs = {ref.name: ref for ref in self.refs}
        keys = {name: dg.AssetKey.from_user_string(name) for name in (*work.owners, *work.other_assets)}
        assets = [refs.get(name, TableRef(key=key)).resolved(context) for name, key in keys.items()]
        try:
            partitions = find_expired_partitions(context, report, assets, open_table())
        except DatasetNotFoundError as error:
            return replace(work, report=report.dropped("the comparison of its partitions", str(error)))
        except Exception as error:  # the rows are deleted: the other steps go on
            context.log.exception("asset %s: its partitions could not be compared", work.asset)
            return replace(work, report=report.failed("expire", error))
        return replace(work, report=report, expired_partitions=partitions)

    def report_op(self) -> dg.OpDefinition:
        """The op that reports the work on a table."""

        @self.op(
            "report",
            "Reports the work as an observation of the asset; fails if the table failed.",
            out=dg.Out(dg.Nothing, io_manager_key=PAYLOADS),
        )
        def report(context: dg.OpExecutionContext, table: Any) -> None:
            done = table.report
            if done.error is not None:
                raise dg.Failure(f"asset {table.asset}: {done.error}", metadata={"dagster/uri": done.plan.uri})
            if done.outcome == "absent":
                return
            if done.lost:
                context.log.warning(
                    "asset %s: %d rewrites or indices were not committed, because writers committed first; the next "
                    "run repeats them",
                    table.asset,
                    done.lost,
                )
            context.log_event(observation_of(table))
            for observation in observe_expired_partitions(table) if table.expired_partitions else ():
                context.log_event(observation)

        return report

    def summarize_op(self) -> dg.OpDefinition:
        """The op that counts the tables, and records the work in the log of maintenance."""

        @self.op("summarize", "Counts the tables, and appends them to the log; fails if a table failed.")
        def summarize(context: dg.OpExecutionContext, surveyed: Any, tables: list[Any]) -> dict[str, Any]:
            from lance_core.maintenance.routine.log import append_log  # noqa: PLC0415 - heavy imports at first use

            summary, root = summary_of(surveyed, tables), self.log_root(context)
            failed = summary["failed"]
            try:
                append_log(
                    root.root_uri,
                    [*surveyed.finished, *(work.report for work in tables)],
                    surveyed.policy.to_core(),
                    run_id=context.run_id,
                    job=context.job_name,
                    storage_options=root.options,
                )
            except Exception as error:  # reported below, with the tables that failed
                context.log.exception("the log of maintenance could not be written")
                failed["the log of maintenance"] = f"append: {type(error).__name__}: {error}"
            by_outcome = {kind: names for kind, names in summary.items() if names and kind != INDEX_WORK}
            counts = ", ".join(f"{len(names)} {kind.replace('_', ' ')}" for kind, names in by_outcome.items())
            for asset, index_work in summary[INDEX_WORK].items():
                context.log.info("asset %s: indices: %s", asset, "; ".join(index_work))
            if failed:
                named = "; ".join(f"{asset}: {error}" for asset, error in sorted(failed.items()))
                raise dg.Failure(f"maintenance of {len(failed)} tables failed: {named} (tables by outcome: {counts})")
            context.log.info("tables: %s", counts or "none")
            return summary

        return summarize

    def op_outputs_op(self) -> dg.OpDefinition:
        """The op that removes old outputs of ops."""

        @self.op("op_outputs", "Removes the outputs of ops of runs that ended long ago.")
        def op_outputs(context: dg.OpExecutionContext, surveyed: Any) -> dict[str, int]:
            from lance_dagster.op_outputs.cleanup import clean_op_outputs  # noqa: PLC0415 - heavy imports at first use

            policy, root = surveyed.policy, self.root(context)
            is_shared = root.branch_of_job(context) is not None  # with production, whose runs another instance records
            unknown_runs = self.unknown_runs and not is_shared
            cleanup = clean_op_outputs(
                context.instance, root, policy.age, dry_run=policy.dry_run, unknown_runs=unknown_runs
            )
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


def _end_with_survey(context: dg.OpExecutionContext, work: TableWork, surveyed: JobSurvey, *, is_asked: bool) -> None:
    """Report a table that is finished with the survey: healthy, in a dry run, or with all its work put off."""
    plan, observation = work.report.plan, observation_of(work)
    is_reported = work.is_asset or plan.is_due or work.report.is_put_off
    if is_asked or (
        is_reported and (plan.policy.dry_run or not repeats_last_observation(context.instance, observation))
    ):
        context.log_event(observation)
    surveyed.finished.append(work.report)


STEPS: Final[Mapping[str, tuple[Sequence[str], str]]] = {
    "commit": (
        ("expire", "commit"),
        "Deletes rows that expire; commits rewritten files; gives the table stable row ids, if the policy says so.",
    ),
    "materialize_deletions": (("materialize_deletions",), "Rewrites files with many deleted rows."),
    "refresh_indices": (
        ("refresh_indices",),
        "Creates zone maps on partition columns; extends indices to rows that they do not cover.",
    ),
    "clean_up": (
        ("move_files", "clean_up"),
        "Moves files of old rows to a base path; removes old versions and the files that only they need.",
    ),
}
"""The ops after the rewrites, in order: the steps of the core that each runs, and its description."""
