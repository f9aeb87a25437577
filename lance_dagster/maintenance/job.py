"""`build_maintenance_job`: the maintenance of tables as a Dagster job.

    plan ──tasks──> rewrite (mapped, tried again) ──┐
      └──tables──────────────────────────────────> tables ──one per table──> commit > materialize_deletions
                                                       > refresh_indices > clean_up ┬> report (one per table)
      └──policy──> op_outputs                                                       └> summarize

`plan` reads manifests only; tables that need nothing end there. An error with one table is passed on as text until
`report` fails with it, so that the other tables are finished; `summarize` then fails with all errors.

The work is reported as observations: maintenance changes no row, so that it materializes nothing, moves no data
version, and triggers nothing downstream.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster._context import job_beside_resources
from lance_dagster.health.foreign import described, is_foreign
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.tables.names import checked_job_name, mapping_key
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, table_refs, table_root
from lance_dagster.tables.settings import partition_columns

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.maintenance.steps import Rewriter, Upkeep

__all__ = ["ORDER_TAG", "TABLES_KEY", "MaintenanceConfig", "build_maintenance_job"]

Engine = Literal["process", "spark"]

PAYLOADS = "lance_maintenance_payloads"
TABLES_KEY = "lance/tables"
ORDER_TAG = "lance/order"
_RETRIES = 2
_EXECUTOR_TAG = "lance/rewrite"


class PolicyOverrides(dg.Config):
    """Fields of the policy that one run changes."""

    model_config = ConfigDict(extra="forbid")

    target_rows_per_fragment: int | None = None
    target_bytes_per_fragment: int | None = None
    max_bytes_per_file: int | None = None
    materialize_deletions_threshold: float | None = None
    cleanup_older_than: str | None = Field(default=None, description='Such as "7d"; "never" for no limit of age.')
    retain_versions: int | None = None
    refresh_indices: bool | None = None


class MaintenanceConfig(dg.Config):
    """The configuration of one run of a maintenance job."""

    model_config = ConfigDict(extra="forbid")

    tables: list[str] = Field(default=[], description='Keys, such as "nyc/flights"; all tables of the job if empty.')
    dry_run: bool | None = Field(default=None, description="Only say what would be done.")
    policy: PolicyOverrides = Field(default=PolicyOverrides(), description="What this run does otherwise.")

    def overrides(self) -> dict[str, Any]:
        """Fields of the policy that are set."""
        given = {**self.policy.model_dump(), "dry_run": self.dry_run}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The fixed arguments of all ops of one job."""

    name: str
    refs: Sequence[TableRef]
    policy: LanceMaintenancePolicy
    engine: Engine
    io_manager_key: str

    def root(self, context: dg.OpExecutionContext) -> TableRoot:
        """The tables of the IO manager."""
        return table_root(getattr(context.resources, self.io_manager_key))

    def options(self, context: dg.OpExecutionContext, asset: str) -> dict[str, str] | None:
        """The storage options of a table."""
        root = self.root(context)
        ref = next((ref for ref in self.refs if ref.name == asset), None)
        return root.options if ref is None else root.locate(described(context, ref)).options(root.storage_options)

    def rewriter(self, context: dg.OpExecutionContext, asset: str) -> "Rewriter":
        """The rewriter that runs tasks in a step."""
        from lance_dagster.maintenance import steps as upkeep  # noqa: PLC0415 - code locations load without lance_core

        if self.engine == "process":
            return upkeep.run_here
        manager = getattr(context.resources, self.io_manager_key)
        return _on_spark(manager, self.options(context, asset), self.policy.max_parallel_tasks)


def build_maintenance_job(
    tables: Iterable[TableLike] | TableLike,
    policy: LanceMaintenancePolicy | None = None,
    *,
    name: str = "lance_maintenance",
    engine: Engine = "process",
    io_manager_key: str = "io_manager",
    payload_io_manager: Any = None,
) -> dg.JobDefinition:
    """Make a job that keeps tables small and fast; see the module's text for its steps.

    A table without a version is passed over. One that fails does not stop the others; the run fails in the end, and
    its summary names the table. Writers are never waited for: where one was faster each time, the table is reported as
    skipped. A run that was killed is started again, and finishes what is left.

    Args:
        tables: Assets, specs or keys. The metadata `lance/maintenance` of an asset changes the policy for it. External
            and observable assets are left alone unless that metadata is True, a policy or fields of one.
        policy: What to do; the defaults if it is not given.
        name: Name of the job.
        engine: "process": steps of the run rewrite; "spark": the executors of the Spark session of the IO manager.
        io_manager_key: The resource that knows where the tables are: a `LanceIOManager` or a `LanceTableResource`.
        payload_io_manager: Carries small plain records from step to step; local files by default. Steps that run on
            several machines need one that they all reach.

    Raises:
        DagsterInvalidDefinitionError: a table or its metadata cannot be used.
        ValueError: there is no such engine.
    """
    chosen = LanceMaintenancePolicy() if policy is None else policy
    if engine not in ("process", "spark"):
        raise ValueError(f'engine must be "process" or "spark", not {engine!r}')
    checked_job_name(name, "build_maintenance_job: name")
    refs = table_refs(tables)
    for ref in refs:
        policy_of(chosen, ref.metadata, where=f"asset {ref.name}")
    job = _Job(name=name, refs=refs, policy=chosen, engine=engine, io_manager_key=io_manager_key)
    own = [ref.name for ref in refs if not is_foreign(ref)]
    return job_beside_resources(
        _graph(job),
        {PAYLOADS: payload_io_manager or dg.FilesystemIOManager()},
        name=name,
        description=f"Keeps {len(own)} Lance tables small and fast.",
        executor_def=_executor(job),
        metadata={TABLES_KEY: own},
    )


def _executor(job: _Job) -> dg.ExecutorDefinition | None:
    """Spark's one JVM needs one process; a limit needs an executor that keeps it; else the code location's."""
    if job.engine == "spark":
        return dg.in_process_executor
    if job.policy.max_parallel_tasks is None:
        return None
    limit = {"key": _EXECUTOR_TAG, "limit": job.policy.max_parallel_tasks}
    return dg.multiprocess_executor.configured({"tag_concurrency_limits": [limit]}, name="multiprocess")


def _graph(job: _Job) -> dg.GraphDefinition:
    plan, rewrite, tables = _plan_op(job), _rewrite_op(job), _tables_op(job)
    steps = [(step, _step_op(job, step, work, what)) for step, (work, what) in _STEPS.items()]
    report, summarize, op_outputs = _report_op(job), _summarize_op(job), _op_outputs_op(job)

    @dg.graph(name=job.name)
    def upkeep() -> None:
        tasks, surveyed = plan.alias("plan")()
        op_outputs.alias("op_outputs")(surveyed)
        rewritten = tasks.map(rewrite.alias("rewrite")).collect()
        each = tables.alias("tables")(surveyed, rewritten)
        for step, op in steps:
            each = each.map(op.alias(step))
        each.map(report.alias("report"))
        summarize.alias("summarize")(surveyed, each.collect())

    return upkeep


def _plan_op(job: _Job) -> dg.OpDefinition:
    @dg.op(
        name=f"{job.name}_plan",
        description="Reads the manifests of all tables, and says what there is to do.",
        out={
            "tasks": dg.DynamicOut(io_manager_key=PAYLOADS),
            "surveyed": dg.Out(io_manager_key=PAYLOADS),
        },
        required_resource_keys={job.io_manager_key},
    )
    def plan(context: dg.OpExecutionContext, config: MaintenanceConfig) -> Iterator[Any]:
        changed = job.policy.changed(config.overrides(), where="configuration of the run")
        surveyed: dict[str, Any] = {"due": [], "healthy": [], "absent": [], "left alone": [], "dry run": []}
        surveyed["policy"] = changed.to_dict()
        for ref in _chosen(job, context, config):
            found, tasks = _survey(job, context, ref, config.overrides())
            if isinstance(found, str):
                surveyed[found].append(ref.name)
            elif not found.error and (found.resolved.dry_run or not found.is_due):
                kind = "dry run" if found.resolved.dry_run else "healthy"
                context.log_event(_observation(found, kind, found.before, found.health))
                surveyed[kind].append(ref.name)
            else:
                surveyed["due"].append(found)
                yield from _task_outputs(job, found, tasks)
        yield dg.Output(surveyed, "surveyed")

    return plan


def _chosen(job: _Job, context: dg.OpExecutionContext, config: MaintenanceConfig) -> list[TableRef]:
    """The tables of this run, with the metadata that their definitions have; a schedule changes their order."""
    known = {ref.name: ref for ref in job.refs}
    unknown = sorted(set(config.tables) - set(known))
    if unknown:
        raise dg.Failure(f"{', '.join(unknown)}: no table of this job; it has {', '.join(sorted(known))}")
    refs = [known[name] for name in dict.fromkeys(config.tables)] if config.tables else list(job.refs)
    salt = context.run.tags.get(ORDER_TAG)
    if salt is not None:
        refs.sort(key=lambda ref: sha256(f"{salt}:{ref.name}".encode()).digest())
    return [described(context, ref) for ref in refs]


def _survey(
    job: _Job, context: dg.OpExecutionContext, ref: TableRef, overrides: Mapping[str, Any]
) -> "tuple[Upkeep | Literal['absent', 'left alone'], list[str]]":
    """The survey of a table, and its tasks; one without a version is absent, one that is excluded is left alone."""
    from lance_dagster.maintenance import steps as upkeep  # noqa: PLC0415 - heavy imports at first use

    root, where = job.root(context), f"asset {ref.name}"
    if is_foreign(ref, context):
        context.log.info(
            "%s is left alone: others write it, as it is an external or observable asset here; metadata "
            "lance/maintenance with True or a policy has it maintained all the same", where
        )  # fmt: skip
        return "left alone", []
    policy = policy_of(job.policy, ref.metadata, where=where)
    if policy is None:
        context.log.info("%s is left alone: its metadata says so", where)
        return "left alone", []
    started = time.monotonic()
    try:
        dataset = root.open_or_none(ref)
        if dataset is None:
            context.log.info("%s has no table yet at %s; passed over", where, root.locate(ref).uri)
            return "absent", []
        found, tasks = upkeep.survey(
            dataset,
            ref.name,
            policy.changed(overrides, where="configuration of the run"),
            partition_columns(ref.metadata or {}),
            root.max_unindexed_fragments,
        )
    except dg.DagsterInvalidDefinitionError:
        raise
    except Exception as error:  # one table that is broken must not stop the others
        context.log.exception("%s cannot be read", where)
        return upkeep.Upkeep(asset=ref.name, uri=root.locate(ref).uri, error=_text("plan", error)), []
    found.seconds = time.monotonic() - started
    context.log.info("%s: version %d, %s", where, found.version, "; ".join(found.problems) or "healthy")
    return found, [task.json() for task in tasks]


def _task_outputs(job: _Job, found: "Upkeep", tasks: list[str]) -> Iterator[dg.DynamicOutput[Any]]:
    """One output per task, and for Spark, which spreads tasks itself, one per table; plain records."""
    groups = [tasks] if job.engine == "spark" and tasks else [[task] for task in tasks]
    for number, group in enumerate(groups):
        record = {"asset": found.asset, "uri": found.uri, "tasks": group}
        yield dg.DynamicOutput(
            record, mapping_key=mapping_key(found.asset, f"__v{found.version}_{number}"), output_name="tasks"
        )


def _rewrite_op(job: _Job) -> dg.OpDefinition:
    @dg.op(
        name=f"{job.name}_rewrite",
        description="Writes new files in the place of small ones; nothing refers to them yet.",
        out=dg.Out(io_manager_key=PAYLOADS),
        required_resource_keys={job.io_manager_key},
        tags={_EXECUTOR_TAG: "true"},
    )
    def rewrite(context: dg.OpExecutionContext, task: dict[str, Any]) -> dict[str, Any]:
        from lance_core.errors import CorruptFileError, NotFoundError  # noqa: PLC0415 - heavy imports at first use
        from lance_core.maintenance import CompactionTask  # noqa: PLC0415 - heavy imports at first use

        started, results, failed = time.monotonic(), [], None
        try:
            dataset = _open(job, context, task["uri"], task["asset"])
            rewriter = job.rewriter(context, task["asset"])
            done = rewriter(dataset, [CompactionTask.from_json(text) for text in task["tasks"]])
            results = [result.json() for result in done]
        except Exception as error:  # the other tables go on; `report` fails with it
            if context.retry_number < _RETRIES and not isinstance(error, CorruptFileError | NotFoundError):
                raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=2**context.retry_number) from error
            context.log.exception("asset %s: a rewrite failed", task["asset"])
            failed = _text("rewrite", error)
        seconds = time.monotonic() - started
        return {"asset": task["asset"], "results": results, "error": failed, "seconds": seconds}

    return rewrite


def _tables_op(job: _Job) -> dg.OpDefinition:
    @dg.op(
        name=f"{job.name}_tables",
        description="Gives each table the results of its rewrites.",
        out=dg.DynamicOut(io_manager_key=PAYLOADS),
    )
    def tables(surveyed: dict[str, Any], rewritten: list[Any]) -> Iterator[dg.DynamicOutput[Any]]:
        for found in surveyed["due"]:
            own = [one for one in rewritten if one["asset"] == found.asset]
            found.results = [text for one in own for text in one["results"]]
            found.seconds += sum(one["seconds"] for one in own)
            found.error = found.error or next((one["error"] for one in own if one["error"]), None)
            yield dg.DynamicOutput(found, mapping_key=mapping_key(found.asset))

    return tables


Work = Callable[[_Job, dg.OpExecutionContext, "lance_core.LanceDataset", "Upkeep"], None]


def _step_op(job: _Job, step: str, work: Work, description: str) -> dg.OpDefinition:
    @dg.op(
        name=f"{job.name}_{step}",
        description=description,
        out=dg.Out(io_manager_key=PAYLOADS),
        required_resource_keys={job.io_manager_key},
    )
    def run_step(context: dg.OpExecutionContext, table: Any) -> Any:
        if table.error is None:
            started = time.monotonic()
            try:
                work(job, context, _open(job, context, table.uri, table.asset), table)
            except Exception as error:  # the other tables go on; `report` fails with it
                context.log.exception("asset %s: %s failed", table.asset, step)
                table.error = _text(step, error)
            table.seconds += time.monotonic() - started
        return table

    return run_step


def _commit(job: _Job, context: dg.OpExecutionContext, dataset: "lance_core.LanceDataset", table: "Upkeep") -> None:
    from lance_dagster.maintenance import steps as upkeep  # noqa: PLC0415 - heavy imports at first use

    if table.num_tasks:
        upkeep.commit(dataset, table, _properties(context, table, dataset), rewriter=job.rewriter(context, table.asset))


def _materialize(
    job: _Job, context: dg.OpExecutionContext, dataset: "lance_core.LanceDataset", table: "Upkeep"
) -> None:
    from lance_dagster.maintenance import steps as upkeep  # noqa: PLC0415 - heavy imports at first use

    rewriter = job.rewriter(context, table.asset)
    upkeep.materialize_deletions(dataset, table, _properties(context, table, dataset), rewriter=rewriter)


def _refresh(job: _Job, context: dg.OpExecutionContext, dataset: "lance_core.LanceDataset", table: "Upkeep") -> None:
    from lance_dagster.maintenance import steps as upkeep  # noqa: PLC0415 - heavy imports at first use

    options, properties = job.options(context, table.asset), _properties(context, table, dataset)
    for problem in upkeep.refresh_indices(dataset, table, properties, options):
        context.log.warning("asset %s: %s", table.asset, problem)


def _clean_up(job: _Job, context: dg.OpExecutionContext, dataset: "lance_core.LanceDataset", table: "Upkeep") -> None:
    from lance_dagster.loading.recorded_versions import recorded_versions  # noqa: PLC0415 - as above
    from lance_dagster.maintenance import steps as upkeep  # noqa: PLC0415 - heavy imports at first use

    in_use = None
    if job.root(context).reads_materialized is not False:
        in_use = recorded_versions(context.instance, dg.AssetKey.from_user_string(table.asset))
    upkeep.clean_up(dataset, table, in_use)


_STEPS: dict[str, tuple[Work, str]] = {
    "commit": (_commit, "Puts what was rewritten into the table, in one commit."),
    "materialize_deletions": (_materialize, "Takes deleted rows out of files that have many of them."),
    "refresh_indices": (_refresh, "Makes zone maps of partitions; extends indices to rows that they do not cover."),
    "clean_up": (_clean_up, "Removes old versions and the files that only they need."),
}


def _report_op(job: _Job) -> dg.OpDefinition:
    @dg.op(
        name=f"{job.name}_report",
        description="Tells what was done as an observation of the asset; fails if the table failed.",
        out=dg.Out(dg.Nothing, io_manager_key=PAYLOADS),
        required_resource_keys={job.io_manager_key},
    )
    def report(context: dg.OpExecutionContext, table: Any) -> None:
        from lance_dagster.health.facts import measure  # noqa: PLC0415 - code locations load without lance_core

        if table.error is not None:
            raise dg.Failure(f"asset {table.asset}: {table.error}", metadata={"dagster/uri": table.uri})
        found = measure(_open(job, context, table.uri, table.asset), table.resolved)
        if table.lost:
            context.log.warning("asset %s: writers were faster at %d rewrites; the next run", table.asset, table.lost)
        kind = "skipped" if table.lost else "done"
        context.log_event(_observation(table, kind, found.numbers(), found.metadata()))

    return report


def _op_outputs_op(job: _Job) -> dg.OpDefinition:
    @dg.op(
        name=f"{job.name}_op_outputs",
        description="Removes what ops of runs that are long over have given each other.",
        out=dg.Out(io_manager_key=PAYLOADS),
        required_resource_keys={job.io_manager_key},
    )
    def op_outputs(context: dg.OpExecutionContext, surveyed: dict[str, Any]) -> dict[str, int]:
        from lance_dagster.op_outputs.cleanup import clean_op_outputs  # noqa: PLC0415 - heavy imports at first use

        policy = LanceMaintenancePolicy(**surveyed["policy"])
        found = clean_op_outputs(context.instance, job.root(context), policy.age, dry_run=policy.dry_run)
        verb = "due" if policy.dry_run else "removed"
        numbers = {f"{name}_{verb}": number for name, number in found.gone().items()}
        numbers["op_output_runs_kept"] = found.kept_runs
        context.add_output_metadata({f"lance/{name}": number for name, number in numbers.items()})
        context.log.info("outputs of ops: %s", ", ".join(f"{name} {number}" for name, number in numbers.items()))
        return numbers

    return op_outputs


def _summarize_op(job: _Job) -> dg.OpDefinition:
    @dg.op(
        name=f"{job.name}_summarize",
        description="Counts tables; fails, and names them, if any failed.",
        out=dg.Out(io_manager_key=PAYLOADS),
    )
    def summarize(context: dg.OpExecutionContext, surveyed: dict[str, Any], tables: list[Any]) -> dict[str, Any]:
        failed = {table.asset: table.error for table in tables if table.error is not None}
        summary = {
            "done": sorted(table.asset for table in tables if table.error is None and not table.lost),
            "skipped": sorted(table.asset for table in tables if table.error is None and table.lost),
            "healthy": surveyed["healthy"],
            "dry_run": surveyed["dry run"],
            "absent": surveyed["absent"],
            "left_alone": surveyed["left alone"],
            "failed": failed,
        }
        counts = ", ".join(f"{len(names)} {kind.replace('_', ' ')}" for kind, names in summary.items() if names)
        if failed:
            named = "; ".join(f"{asset}: {error}" for asset, error in sorted(failed.items()))
            raise dg.Failure(f"maintenance of {len(failed)} tables failed: {named} (in all: {counts})")
        context.log.info("tables: %s", counts or "none")
        return summary

    return summarize


def _observation(
    table: "Upkeep", kind: str, after: Mapping[str, int], health: Mapping[str, float]
) -> dg.AssetObservation:
    """The observation of the work, with numbers that Dagster plots."""
    entries: dict[str, Any] = {"lance/maintenance": kind, "dagster/uri": table.uri, **health}
    for name, number in table.before.items():
        entries |= {f"lance/{name}_before": number, f"lance/{name}_after": after[name]}
    entries |= {f"lance/{name}": number for name, number in table.done.items()}
    entries |= {"lance/tasks": table.num_tasks, "lance/tasks_lost": table.lost, "lance/seconds": table.seconds}
    if table.problems:
        entries["lance/problems"] = "; ".join(table.problems)
    return dg.AssetObservation(dg.AssetKey.from_user_string(table.asset), metadata=entries)


def _open(job: _Job, context: dg.OpExecutionContext, uri: str, asset: str) -> "lance_core.LanceDataset":
    import lance_core  # noqa: PLC0415 - code locations load without it

    return lance_core.dataset(uri, storage_options=job.options(context, asset))


def _properties(context: dg.OpExecutionContext, table: "Upkeep", dataset: "lance_core.LanceDataset") -> dict[str, str]:
    """The transaction properties of a commit of upkeep."""
    from lance_dagster.lineage.history import DATA_VERSION_KEY, last_data_change  # noqa: PLC0415 - heavy imports at first use

    return {
        DATA_VERSION_KEY: str(last_data_change(dataset)),
        "dagster.run_id": context.run_id,
        "dagster.job_name": context.job_name,
        "dagster.asset_key": table.asset,
        "dagster.maintenance": "true",
    }


def _on_spark(manager: Any, options: dict[str, str] | None, at_a_time: int | None) -> "Rewriter":
    """Runs tasks on Spark's executors, all at once or so many at a time."""

    def run(dataset: "lance_core.LanceDataset", tasks: Sequence[Any]) -> list[Any]:
        import pyspark_lance  # noqa: PLC0415 - optional
        from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use

        if not hasattr(manager, "spark_session"):
            raise dg.DagsterInvalidDefinitionError(
                f"a {type(manager).__name__} has no Spark session; use engine process"
            )
        results: list[Any] = []
        for start in range(0, len(tasks), at_a_time or len(tasks) or 1):
            wave = tasks[start : start + (at_a_time or len(tasks))]
            done, failures = pyspark_lance.execute_tasks(
                manager.spark_session(), dataset.uri, wave, storage_options=options
            )
            if failures:
                raise LanceError(f"{len(failures)} of {len(wave)} tasks failed; the first: {failures[0].error}")
            results += done
        return results

    return run


def _text(step: str, error: Exception) -> str:
    return f"{step}: {type(error).__name__}: {error}"
