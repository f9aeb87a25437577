"""`build_maintenance_job`: the maintenance of tables as a Dagster job.

    plan ──tasks──> rewrite (mapped, retried) ──┐
      └──surveyed────────────────────────────> collect ──one per table─> commit > materialize_deletions
                                                     > refresh_indices > clean_up ┬> report (one per table)
      └──policy──> op_outputs                                                     └> summarize

`plan` lists the tables below a root, and reads only manifests; it ends the work on tables for which nothing is due. The
error of a table is kept in its outcome until `report` fails with it, so that the other tables are finished; `summarize`
appends the reports of all tables to the log below the root, and then fails with all errors.

The work is reported as observations: maintenance changes no rows, so that it materializes nothing, changes no data
version, and starts nothing downstream.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from lance_dagster._context.jobs import build_job_with_some_resources
from lance_dagster.health.lake import make_lake
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.maintenance.budget import LanceMaintenanceBudget, checked_budget
from lance_dagster.maintenance.ops import EXECUTOR_TAG, PAYLOADS, STEPS, Engine, MaintenanceOps
from lance_dagster.tables.names import checked_job_name
from lance_dagster.tables.refs import TableLike, is_foreign, table_refs

TABLES_KEY = "lance/tables"
LAKE_KEY = "lance/whole_root"
"""Definition metadata of a job: whether it lists tables below a root."""


def build_maintenance_job(  # noqa: PLR0913 - each is a choice of its own, most by keyword only
    tables: Iterable[TableLike] | TableLike = (),
    policy: LanceMaintenancePolicy | None = None,
    *,
    root: str | bool | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    policies: Mapping[str, Any] | None = None,
    namespace: Mapping[str, Any] | None = None,
    budget: LanceMaintenanceBudget | Mapping[str, Any] | None = None,
    name: str = "lance_maintenance",
    engine: Engine = "process",
    io_manager_key: str = "io_manager",
    payload_io_manager: Any = None,
    unknown_runs: bool = False,
) -> dg.JobDefinition:
    """Make a job that keeps tables small and fast; the head of the module draws its steps.

    A table that does not exist is skipped. A table that fails does not stop the others; the run fails at the end with
    the names of such tables. Maintenance never waits for writers: a table is reported as skipped if writers committed
    first in every attempt. If a run was killed, launch it again; it finishes the rest.

    Args:
        tables: Assets, specs or keys. The metadata `lance/maintenance` of an asset changes the policy for it. External
            and observable assets are left alone unless that metadata is True, a policy or fields of one.
        policy: The steps and thresholds; by default those of `LanceMaintenancePolicy()`.
        root: True or a URI: all tables below the root of the IO manager, or below that URI, are maintained as well,
            including those of other libraries and of external assets. Each run lists them again. The log of maintenance
            is written below it, also beside a namespace.
        include: Globs over the paths of tables below the root, such as "nyc/*"; all tables if there are none.
        exclude: Globs of tables to leave out.
        policies: Policies, fields of one, or False (not maintained) for tables below the root, by folder or path, such
            as "nyc" or "nyc/flights". Those of a table's folders are applied first, then its own, then the metadata of
            its asset.
        namespace: Properties of a namespace, such as `{"impl": "rest", "uri": "https://..."}`, whose tables are
            maintained in place of those below the root; values can be `EnvVar`. By default that of the IO manager, if
            the root is True.
        budget: The limits of a run, as a budget or a mapping of its fields; work beyond them comes first in the next
            run.
        name: Name of the job.
        engine: "process": steps of the run rewrite; "spark": the executors of the Spark session of the IO manager do.
        io_manager_key: The resource that knows where the tables are: a `LanceIOManager` or a `LanceTableResource`.
        payload_io_manager: The IO manager that passes small records between steps; local files by default. Steps that
            run on several machines need one that they all can reach.
        unknown_runs: Whether old outputs of ops are removed also if the Dagster instance does not know their run: one
            that was deleted, or one of another instance that has the same root, which may still need them.

    Raises:
        DagsterInvalidDefinitionError: A reference to a table, its metadata, a policy, the root, the budget or `name` is
            invalid; or there is neither a table nor a root.
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
        policy_of(chosen, ref.metadata, label=f"asset {ref.name}")
    lake = make_lake(root, include, exclude, policies, chosen, namespace=namespace)
    if lake is not None and lake.root is None:
        raise dg.DagsterInvalidDefinitionError(
            f"the job {name} has a namespace and no root, below which the log of maintenance is written: pass "
            "root=True for the root of the IO manager, or a URI"
        )
    if not refs and lake is None:
        raise dg.DagsterInvalidDefinitionError(
            f"the job {name} has neither tables nor a root; pass assets, or root=True for all tables below the root of "
            "the IO manager"
        )
    job = MaintenanceOps(
        name=name,
        refs=refs,
        policy=chosen,
        engine=engine,
        io_manager_key=io_manager_key,
        lake=lake,
        budget=checked_budget(budget),
        unknown_runs=unknown_runs,
    )
    lance_tables = [ref.name for ref in refs if not is_foreign(ref)]
    what = f"{len(lance_tables)} Lance tables" if lake is None else "all Lance tables below a root"
    return build_job_with_some_resources(
        _graph(job),
        {PAYLOADS: payload_io_manager or dg.FilesystemIOManager()},
        name=name,
        description=f"Keeps {what} small and fast.",
        executor_def=_executor(job),
        metadata={TABLES_KEY: lance_tables, LAKE_KEY: lake is not None},
    )


def _executor(job: MaintenanceOps) -> dg.ExecutorDefinition | None:
    """In-process for Spark, which has one JVM; multiprocess with `max_parallel_tasks`; else None, the default."""
    if job.engine == "spark":
        return dg.in_process_executor
    if job.policy.max_parallel_tasks is None:
        return None
    limit = {"key": EXECUTOR_TAG, "limit": job.policy.max_parallel_tasks}
    return dg.multiprocess_executor.configured({"tag_concurrency_limits": [limit]}, name="multiprocess")


def _graph(job: MaintenanceOps) -> dg.GraphDefinition:
    plan, rewrite, collect = job.plan_op(), job.rewrite_op(), job.collect_op()
    steps = [(step, job.step_op(step, *details)) for step, details in STEPS.items()]
    report, summarize, op_outputs = job.report_op(), job.summarize_op(), job.op_outputs_op()

    @dg.graph(name=job.name)
    def maintenance() -> None:
        tasks, surveyed = plan.alias("plan")()
        op_outputs.alias("op_outputs")(surveyed)
        rewritten = tasks.map(rewrite.alias("rewrite")).collect()
        each = collect.alias("collect")(surveyed, rewritten)
        for step, op in steps:
            each = each.map(op.alias(step))
        each.map(report.alias("report"))
        summarize.alias("summarize")(surveyed, each.collect())

    return maintenance
