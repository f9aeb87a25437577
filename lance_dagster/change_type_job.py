"""`build_change_type_job`: a job that changes the type of a column of a table.

The job is for a table to which an asset writes partitions or appends, so that the asset cannot overwrite the whole
table with a new schema. The type of the column is changed in place. The run reports an observation with the new
columns; the rows are the same, so that automation starts nothing downstream.
"""

from collections.abc import Iterable

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.properties import ASSET_KEY, JOB_NAME, ROOT_RUN_ID, RUN_ID
from lance_dagster.tables.branch_policy import BRANCH_TAG
from lance_dagster.tables.jobs import TableRun, build_table_job
from lance_dagster.tables.refs import TableLike, TableRef, table_refs

__all__ = ["ChangeTypeConfig", "build_change_type_job"]


class ChangeTypeConfig(dg.Config):
    """The configuration of one run.

    Attributes:
        table: Key of the asset, such as "nyc/flights"; optional if the job has one table.
        column: The column.
        type: The new type, as pyarrow spells it: int64, float64, date32, timestamp[us, tz=UTC], decimal128(10, 2).
        allow_loss: Whether the cast may change values.
    """

    model_config = ConfigDict(extra="forbid")

    table: str | None = Field(
        default=None, description='Key of the asset, such as "nyc/flights"; optional if the job has one table.'
    )
    column: str = Field(description="The column.")
    type: str = Field(description="The new type, such as int64, float64, date32, timestamp[us, tz=UTC].")
    allow_loss: bool = Field(default=False, description="Whether the cast may change values.")


def build_change_type_job(
    tables: Iterable[TableLike] | TableLike, *, name: str = "lance_change_type", io_manager_key: str = "io_manager"
) -> dg.JobDefinition:
    """Make a job that changes the type of a column; the configuration of a run names table, column and type.

    Args:
        tables: Assets, specs or keys.
        name: Name of the job.
        io_manager_key: The resource that knows where the tables are: a `LanceIOManager` or a `LanceTableResource`.

    Raises:
        DagsterInvalidDefinitionError: `tables` is empty, a reference is invalid, or `name` is.

    Examples:
        >>> job = lance_dagster.build_change_type_job(["nyc/flights"])
        >>> change = {"table": "nyc/flights", "column": "delay", "type": "float64"}
        >>> config = dg.validate_run_config(job, {"ops": {"lance_change_type_op": {"config": change}}})
        >>> config["ops"]["lance_change_type_op"]["config"]["column"]
        'delay'
    """
    refs = table_refs(tables)
    if not refs:
        raise dg.DagsterInvalidDefinitionError("build_change_type_job: no table is given; pass assets, specs or keys")

    return build_table_job(
        refs,
        ChangeTypeConfig,
        _change_type,
        name=name,
        label="build_change_type_job: name",
        description="Changes the type of a column of a table.",
        io_manager_key=io_manager_key,
    )


def _change_type(run: TableRun) -> None:
    from lance_dagster.events.materialization import column_schema  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.io_manager.column_types import (  # noqa: PLC0415 - heavy imports at first use
        change_column_type,
        parse_type,
        reject_moved_partitions,
    )

    context, config, root = run.context, run.config, run.root
    ref = _find_table_of_run({ref.name: ref for ref in run.refs}, config.table)
    resolved_ref = ref.resolved(context)
    dataset, branch = root.open(resolved_ref), root.branch_of_job(context)
    if branch is not None:
        dataset = dataset.ensure_branch(branch, renew_promoted=True)
    before, kind = dataset.version, parse_type(config.type)
    for other in (other_ref.resolved(context) for other_ref in run.refs):
        if other.key == ref.key or root.locate(other).uri == root.locate(resolved_ref).uri:
            partitions = context.instance.get_materialized_partitions(other.key)
            reject_moved_partitions(dataset, other, partitions, config.column, kind, allow_loss=config.allow_loss)
    properties = {
        RUN_ID: context.run.run_id,
        ROOT_RUN_ID: context.run.root_run_id or context.run.run_id,
        JOB_NAME: context.run.job_name,
        ASSET_KEY: ref.name,
    }
    run.reject_moved([resolved_ref], dataset)
    change_column_type(dataset, config.column, kind, allow_loss=config.allow_loss, properties=properties)
    if dataset.version == before:
        context.log.info("%s: column %r is of type %s already", ref.name, config.column, config.type)
        return
    root.locate_changed(resolved_ref, dataset)
    context.log_event(
        dg.AssetObservation(
            asset_key=ref.key,
            description=f"Column {config.column!r} is of type {config.type} now.",
            metadata={
                **({} if branch is None else {BRANCH_TAG: branch}),
                "dagster/row_count": dataset.count_rows(),
                "lance/version": dataset.version,
                "dagster/column_schema": column_schema(dataset.schema),
            },
        )
    )


def _find_table_of_run(refs: dict[str, TableRef], table: str | None) -> TableRef:
    """The table of a run.

    Raises:
        DagsterInvalidInvocationError: The job does not have the table, or it has several tables and none is named.
    """
    if table is None and len(refs) == 1:
        return next(iter(refs.values()))
    if table not in refs:
        raise dg.DagsterInvalidInvocationError(
            f"table {table!r} is not in this job; it has {', '.join(sorted(refs))}"
            if table is not None
            else f"the configuration names no table; set `table` to one of {', '.join(sorted(refs))}"
        )
    return refs[table]
