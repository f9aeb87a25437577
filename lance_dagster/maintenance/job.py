"""`build_maintenance_job`: the maintenance of tables as a Dagster job.

    plan ──tasks──> rewrite (mapped, retried) ──┐
      └──tables──────────────────────────────> tables ──one per table──> commit > materialize_deletions
                                                     > refresh_indices > clean_up ┬> report (one per table)
      └──policy──> op_outputs                                                     └> summarize

`plan` finds the tables below a root, and reads manifests only; tables for which nothing is due end there. An error with
one table travels with its outcome until `report` fails with it, so that the other tables are finished; `summarize`
appends the receipts of all tables to the log below the root, and then fails with all errors.

The work is reported as observations: maintenance changes no row, so that it materializes nothing, moves no data
version, and triggers nothing downstream.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg

from lance_dagster._context.jobs import job_beside_resources
from lance_dagster.health.foreign import is_foreign
from lance_dagster.health.lake import Lake, checked_lake
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.maintenance.budget import LanceMaintenanceBudget, checked_budget, in_dry_run, is_over, spent
from lance_dagster.maintenance.observations import is_last, observation_of
from lance_dagster.maintenance.on_spark import spark_rewriter
from lance_dagster.maintenance.run_config import MaintenanceConfig
from lance_dagster.maintenance.targets import (
    choose_targets,
    failure_of,
    owner_properties,
    survey_target,
    versions_in_use,
)
from lance_dagster.properties import DATA_VERSION, JOB_NAME, MAINTENANCE, RUN_ID
from lance_dagster.tables.names import checked_job_name, mapping_key
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, table_refs, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import CompactionTask
    from lance_dagster.maintenance.steps import MaintenanceOutcome, MaintenancePlan, Rewriter

__all__ = ["LAKE_KEY", "TABLES_KEY", "build_maintenance_job"]

Engine = Literal["process", "spark"]

PAYLOADS = "lance_maintenance_payloads"
TABLES_KEY = "lance/tables"
LAKE_KEY = "lance/whole_root"
"""Definition metadata of a job: whether it looks for tables below a root."""
_RETRIES = 2
_EXECUTOR_TAG = "lance/rewrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class _MaintenanceOps:
    """The fixed arguments of all ops of one job."""

    name: str
    refs: Sequence[TableRef]
    policy: LanceMaintenancePolicy
    engine: Engine
    io_manager_key: str
    lake: Lake | None = None
    budget: LanceMaintenanceBudget = field(default_factory=LanceMaintenanceBudget)

    def op(self, step: str, description: str, **options: Any) -> Callable[[Callable[..., Any]], dg.OpDefinition]:
        """`dg.op` for a step of this job; its output is a payload."""
        return dg.op(
            name=f"{self.name}_{step}",
            description=description,
            required_resource_keys={self.io_manager_key},
            **{"out": dg.Out(io_manager_key=PAYLOADS), **options},
        )

    def root(self, context: dg.OpExecutionContext) -> TableRoot:
        """The tables of the IO manager."""
        return table_root(getattr(context.resources, self.io_manager_key))

    def place(self, context: dg.OpExecutionContext) -> TableRoot:
        """The root whose log is written."""
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

    def is_gone(self, context: dg.OpExecutionContext, uri: str, asset: str) -> bool:
        """Whether a table was dropped since it was planned."""
        from lance_core.errors import DatasetNotFoundError, LanceError  # noqa: PLC0415 - code locations load without it

        try:
            self.open(context, uri, asset)
        except DatasetNotFoundError:
            return True
        except (LanceError, OSError):  # the error that led here is the one to report
            return False
        return False

    def rewriter(self, context: dg.OpExecutionContext, asset: str) -> "Rewriter":
        """The rewriter that runs tasks in a step."""
        from lance_dagster.maintenance.steps import run_here  # noqa: PLC0415 - code locations load without lance_core

        if self.engine == "process":
            return run_here
        manager = getattr(context.resources, self.io_manager_key)
        return spark_rewriter(manager, self.options(context, asset), self.policy.max_parallel_tasks)


def build_maintenance_job(  # noqa: PLR0913 - each is a choice of its own, most by keyword only
    tables: Iterable[TableLike] | TableLike = (),
    policy: LanceMaintenancePolicy | None = None,
    *,
    root: str | bool | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    policies: Mapping[str, Any] | None = None,
    budget: LanceMaintenanceBudget | Mapping[str, Any] | None = None,
    name: str = "lance_maintenance",
    engine: Engine = "process",
    io_manager_key: str = "io_manager",
    payload_io_manager: Any = None,
) -> dg.JobDefinition:
    """Make a job that keeps tables small and fast; the head of the module draws its steps.

    A table without a version is passed over. A table that fails does not stop the others; the run fails in the end, and
    its summary names the table. Maintenance never waits for writers: a table is reported as skipped if it lost the race
    against them in every attempt. A run that was killed is launched again, and finishes what is left.

    Args:
        tables: Assets, specs or keys. The metadata `lance/maintenance` of an asset changes the policy for it. External
            and observable assets are left alone unless that metadata is True, a policy or fields of one.
        policy: What to do; the defaults if it is not given.
        root: True, or a URI: all tables below the root of the IO manager, or below that URI, are maintained as well,
            those of other libraries and of external assets included. Each run looks for them anew.
        include: Globs over the paths of tables below the root, such as "nyc/*"; all tables if there are none.
        exclude: Globs of tables that are left out.
        policies: Policies or fields of one (False: left alone) for tables below the root, by folder or path, such as
            "nyc" or "nyc/flights". A table takes those of its folders, then its own, then the metadata of its asset.
        budget: What a run may cost at most, as a budget or a mapping of its fields; what goes beyond it comes first in
            the next run.
        name: Name of the job.
        engine: "process": steps of the run rewrite; "spark": the executors of the Spark session of the IO manager.
        io_manager_key: The resource that knows where the tables are: a `LanceIOManager` or a `LanceTableResource`.
        payload_io_manager: Carries small plain records from step to step; local files by default. Steps that run on
            several machines need one that they all reach.

    Raises:
        DagsterInvalidDefinitionError: A table, its metadata or a policy cannot be used; or there is neither a table nor
            a root.
        ValueError: The engine is neither "process" nor "spark".

    Examples:
        >>> job = lance_dagster.build_maintenance_job(["nyc/flights"])
        >>> job.name
        'lance_maintenance'
    """
    chosen = LanceMaintenancePolicy() if policy is None else policy
    if engine not in ("process", "spark"):
        raise ValueError(f'engine must be "process" or "spark", not {engine!r}')
    checked_job_name(name, "build_maintenance_job: name")
    refs = table_refs(tables)
    for ref in refs:
        policy_of(chosen, ref.metadata, where=f"asset {ref.name}")
    lake = checked_lake(root, include, exclude, policies, chosen)
    if not refs and lake is None:
        raise dg.DagsterInvalidDefinitionError(
            f"the job {name} has neither tables nor a root; name assets, or give root=True for all tables below the "
            "root of the IO manager"
        )
    job = _MaintenanceOps(
        name=name,
        refs=refs,
        policy=chosen,
        engine=engine,
        io_manager_key=io_manager_key,
        lake=lake,
        budget=checked_budget(budget),
    )
    own = [ref.name for ref in refs if not is_foreign(ref)]
    what = f"{len(own)} Lance tables" if lake is None else "all Lance tables below a root"
    return job_beside_resources(
        _graph(job),
        {PAYLOADS: payload_io_manager or dg.FilesystemIOManager()},
        name=name,
        description=f"Keeps {what} small and fast.",
        executor_def=_executor(job),
        metadata={TABLES_KEY: own, LAKE_KEY: lake is not None},
    )


def _executor(job: _MaintenanceOps) -> dg.ExecutorDefinition | None:
    """One process for Spark's one JVM; an executor that keeps the limit, if there is one; else the code location's."""
    if job.engine == "spark":
        return dg.in_process_executor
    if job.policy.max_parallel_tasks is None:
        return None
    limit = {"key": _EXECUTOR_TAG, "limit": job.policy.max_parallel_tasks}
    return dg.multiprocess_executor.configured({"tag_concurrency_limits": [limit]}, name="multiprocess")


def _graph(job: _MaintenanceOps) -> dg.GraphDefinition:
    plan, rewrite, tables = _plan_op(job), _rewrite_op(job), _tables_op(job)
    steps = [(step, _step_op(job, step, description)) for step, description in _STEPS.items()]
    report, summarize, op_outputs = _report_op(job), _summarize_op(job), _op_outputs_op(job)

    @dg.graph(name=job.name)
    def maintenance() -> None:
        tasks, surveyed = plan.alias("plan")()
        op_outputs.alias("op_outputs")(surveyed)
        rewritten = tasks.map(rewrite.alias("rewrite")).collect()
        each = tables.alias("tables")(surveyed, rewritten)
        for step, op in steps:
            each = each.map(op.alias(step))
        each.map(report.alias("report"))
        summarize.alias("summarize")(surveyed, each.collect())

    return maintenance


def _plan_op(job: _MaintenanceOps) -> dg.OpDefinition:
    out = {"tasks": dg.DynamicOut(io_manager_key=PAYLOADS), "surveyed": dg.Out(io_manager_key=PAYLOADS)}

    @job.op("plan", "Reads the manifests of all tables, and reports what is due.", out=out)
    def plan(context: dg.OpExecutionContext, config: MaintenanceConfig) -> Iterator[Any]:
        from lance_dagster.maintenance.receipts import receipts_of  # noqa: PLC0415 - heavy imports at first use

        changed = job.policy.changed(config.overrides(), where="configuration of the run")
        surveyed: dict[str, Any] = {"due": [], "healthy": [], "absent": [], "left alone": [], "dry run": []}
        surveyed |= {"policy": changed, "receipts": [], "put off": {}}
        root, due = job.root(context), []
        for target in choose_targets(context, root, job.refs, job.lake, config.tables):
            found, tasks = survey_target(context, root, target, job.policy, job.lake, config.overrides())
            if isinstance(found, str):
                surveyed[found].append(target.ref.name)
            elif found.error is None and not found.plan.is_due:
                kind = "dry run" if found.plan.policy.dry_run else "healthy"
                seen = observation_of(found, kind, found.plan.before, found.plan.health)
                if target.is_asset and (kind == "dry run" or config.tables or not is_last(context.instance, seen)):
                    context.log_event(seen)
                surveyed[kind].append(target.ref.name)
                surveyed["receipts"] += receipts_of(found, kind) if kind == "healthy" else ()
            else:
                due.append((found, tasks))
        for found, tasks in spent(context, job.place(context), due, job.budget.changed(config.limits())):
            if found.plan.policy.dry_run and found.error is None:
                context.log_event(
                    observation_of(in_dry_run(found, tasks), "dry run", found.plan.before, found.plan.health)
                )
                surveyed["dry run"].append(found.plan.asset)
            elif not found.is_put_off:
                surveyed["due"].append(found)
                yield from _task_outputs(job, found.plan, tasks)
            else:
                surveyed["receipts"] += receipts_of(found, "put off")
            if found.deferred:
                surveyed["put off"][found.plan.asset] = found.deferred
        yield dg.Output(surveyed, "surveyed")

    return plan


def _task_outputs(
    job: _MaintenanceOps, plan: "MaintenancePlan", tasks: "list[CompactionTask]"
) -> Iterator[dg.DynamicOutput[Any]]:
    """One output per task, and for Spark, which spreads tasks itself, one per table; plain records."""
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


def _rewrite_op(job: _MaintenanceOps) -> dg.OpDefinition:
    @job.op("rewrite", "Writes new files for small ones; nothing refers to them yet.", tags={_EXECUTOR_TAG: "true"})
    def rewrite(context: dg.OpExecutionContext, task: dict[str, Any]) -> dict[str, Any]:
        from lance_core.errors import CorruptFileError, NotFoundError  # noqa: PLC0415 - heavy imports at first use
        from lance_core.maintenance import CompactionTask  # noqa: PLC0415 - heavy imports at first use

        started, results, failed = time.monotonic(), [], None
        if is_over(task["deadline"]):
            return {"asset": task["asset"], "results": [], "error": None, "seconds": 0.0, "put_off": len(task["tasks"])}
        try:
            dataset = job.open(context, task["uri"], task["asset"])
            rewriter = job.rewriter(context, task["asset"])
            done = rewriter(dataset, [CompactionTask.from_json(one) for one in task["tasks"]])
            results = [result.json() for result in done]
        except Exception as error:  # the other tables go on; `report` fails with it
            if job.is_gone(context, task["uri"], task["asset"]):
                return {"asset": task["asset"], "results": [], "error": None, "seconds": 0.0, "put_off": 0}
            if context.retry_number < _RETRIES and not isinstance(error, CorruptFileError | NotFoundError):
                raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=2**context.retry_number) from error
            context.log.exception("asset %s: a rewrite failed", task["asset"])
            failed = failure_of("rewrite", error)
        seconds = time.monotonic() - started
        return {"asset": task["asset"], "results": results, "error": failed, "seconds": seconds, "put_off": 0}

    return rewrite


def _tables_op(job: _MaintenanceOps) -> dg.OpDefinition:
    @job.op("tables", "Gives each table the results of its rewrites.", out=dg.DynamicOut(io_manager_key=PAYLOADS))
    def tables(surveyed: dict[str, Any], rewritten: list[Any]) -> Iterator[dg.DynamicOutput[Any]]:
        for found in surveyed["due"]:
            own = [one for one in rewritten if one["asset"] == found.plan.asset]
            late = sum(one["put_off"] for one in own)
            table = replace(
                found,
                results=[result for one in own for result in one["results"]],
                seconds=found.seconds + sum(one["seconds"] for one in own),
                deferred=f"max_duration: the time was up before {late} rewrites began" if late else found.deferred,
                error=found.error or next((one["error"] for one in own if one["error"]), None),
            )
            yield dg.DynamicOutput(table, mapping_key=mapping_key(found.plan.asset))

    return tables


_STEPS = {
    "commit": "Puts what was rewritten into the table, in one commit.",
    "materialize_deletions": "Rewrites files of which many rows are deleted.",
    "refresh_indices": "Creates zone maps of partitions; extends indices to rows that they do not cover.",
    "clean_up": "Removes old versions and the files that only they need.",
}


def _step_op(job: _MaintenanceOps, step: str, description: str) -> dg.OpDefinition:
    @job.op(step, description)
    def run_step(context: dg.OpExecutionContext, table: Any) -> Any:
        if table.error is not None or table.is_gone:
            return table
        started = time.monotonic()
        try:
            table = _run_step(job, context, step, table)
        except Exception as error:  # the other tables go on; `report` fails with it
            if job.is_gone(context, table.plan.uri, table.plan.asset):
                context.log.info("asset %s: its table was dropped during the run", table.plan.asset)
                return replace(table, is_gone=True)
            context.log.exception("asset %s: %s failed", table.plan.asset, step)
            table = replace(table, error=failure_of(step, error))
        return replace(table, seconds=table.seconds + time.monotonic() - started)

    return run_step


def _run_step(
    job: _MaintenanceOps, context: dg.OpExecutionContext, step: str, table: "MaintenanceOutcome"
) -> "MaintenanceOutcome":
    """The outcome after one of `_STEPS`, with its receipt; after the last one with the numbers of the table."""
    from lance_dagster.maintenance import receipts, steps  # noqa: PLC0415 - heavy imports at first use

    dataset, started = job.open(context, table.plan.uri, table.plan.asset), time.monotonic()
    if step != "commit" and is_over(table.plan.deadline):
        late = replace(table, deferred=table.deferred or f"max_duration: the time was up before {step} began")
        return steps.measured(dataset, late) if step == "clean_up" else late
    before = dataset.version
    done = _work(job, context, step, table, dataset)
    seconds = time.monotonic() - started
    done = receipts.receipt_of(
        table, done, step=step, version_before=before, version_after=dataset.version, seconds=seconds
    )
    return steps.measured(dataset, done) if step == "clean_up" else done


def _work(
    job: _MaintenanceOps,
    context: dg.OpExecutionContext,
    step: str,
    table: "MaintenanceOutcome",
    dataset: "lance_core.LanceDataset",
) -> "MaintenanceOutcome":
    """The outcome after one of `_STEPS`."""
    from lance_dagster.lineage.history import last_data_change  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.holds import release_expired  # noqa: PLC0415 - as above
    from lance_dagster.maintenance import steps  # noqa: PLC0415 - as above

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
    if step == "refresh_indices":
        done, problems = steps.refresh_indices(dataset, table, properties, job.options(context, asset))
        for problem in problems:
            context.log.warning("asset %s: %s", asset, problem)
        return done
    work = steps.commit if step == "commit" else steps.materialize_deletions
    return work(dataset, table, properties, rewriter=job.rewriter(context, asset))


def _report_op(job: _MaintenanceOps) -> dg.OpDefinition:
    @job.op(
        "report",
        "Reports the work as an observation of the asset; fails if the table failed.",
        out=dg.Out(dg.Nothing, io_manager_key=PAYLOADS),
    )
    def report(context: dg.OpExecutionContext, table: Any) -> None:
        plan = table.plan
        if table.error is not None:
            raise dg.Failure(f"asset {plan.asset}: {table.error}", metadata={"dagster/uri": plan.uri})
        if table.is_gone:
            return
        if table.lost:
            context.log.warning(
                "asset %s: %d rewrites lost the race against writers; the next run repeats them",
                plan.asset,
                table.lost,
            )
        kind = "skipped" if table.lost else "done"
        context.log_event(observation_of(table, kind, table.after, table.health_after))

    return report


def _op_outputs_op(job: _MaintenanceOps) -> dg.OpDefinition:
    @job.op("op_outputs", "Removes the outputs of ops of runs that ended long ago.")
    def op_outputs(context: dg.OpExecutionContext, surveyed: dict[str, Any]) -> dict[str, int]:
        from lance_dagster.op_outputs.cleanup import clean_op_outputs  # noqa: PLC0415 - heavy imports at first use

        policy = surveyed["policy"]
        found = clean_op_outputs(context.instance, job.root(context), policy.age, dry_run=policy.dry_run)
        verb = "due" if policy.dry_run else "removed"
        numbers = {
            f"op_output_runs_{verb}": found.runs,
            f"op_output_tables_{verb}": found.tables,
            f"op_output_bytes_{verb}": found.bytes,
            "op_output_runs_kept": found.kept_runs,
        }
        context.add_output_metadata({f"lance/{name}": number for name, number in numbers.items()})
        context.log.info("outputs of ops: %s", ", ".join(f"{name} {number}" for name, number in numbers.items()))
        return numbers

    return op_outputs


def _summarize_op(job: _MaintenanceOps) -> dg.OpDefinition:
    @job.op("summarize", "Counts tables, and records them in the log; fails, and names them, if any failed.")
    def summarize(context: dg.OpExecutionContext, surveyed: dict[str, Any], tables: list[Any]) -> dict[str, Any]:
        failed = {table.plan.asset: table.error for table in tables if table.error is not None}
        finished = [table for table in tables if table.error is None and not table.is_gone]
        summary = {
            "done": sorted(table.plan.asset for table in finished if not table.lost),
            "skipped": sorted(table.plan.asset for table in finished if table.lost),
            "healthy": surveyed["healthy"],
            "dry_run": surveyed["dry run"],
            "absent": [*surveyed["absent"], *sorted(table.plan.asset for table in tables if table.is_gone)],
            "left_alone": surveyed["left alone"],
            "failed": failed,
            "put_off": {**surveyed["put off"], **{one.plan.asset: one.deferred for one in tables if one.deferred}},
        }
        try:
            _record(job, context, surveyed, tables)
        except Exception as error:  # with the tables that failed it is named below
            context.log.exception("the log of maintenance could not be written")
            failed["the log of maintenance"] = failure_of("append", error)
        counts = ", ".join(f"{len(names)} {kind.replace('_', ' ')}" for kind, names in summary.items() if names)
        if failed:
            named = "; ".join(f"{asset}: {error}" for asset, error in sorted(failed.items()))
            raise dg.Failure(f"maintenance of {len(failed)} tables failed: {named} (in all: {counts})")
        context.log.info("tables: %s", counts or "none")
        return summary

    return summarize


def _record(
    job: _MaintenanceOps, context: dg.OpExecutionContext, surveyed: Mapping[str, Any], tables: Sequence[Any]
) -> None:
    """Append what was done to the log of maintenance; a dry run does nothing."""
    from lance_dagster.maintenance.receipts import append_receipts, receipts_of  # noqa: PLC0415 - heavy imports

    rows = list(surveyed["receipts"])
    for table in [table for table in tables if not table.is_gone]:
        rows += receipts_of(table, "failed" if table.error else "skipped" if table.lost else "done")
    root = job.place(context)
    if rows and not surveyed["policy"].dry_run:
        run = {"run_id": context.run_id, "job": context.job_name}
        append_receipts(root.root_uri, root.options, rows, surveyed["policy"], **run)
