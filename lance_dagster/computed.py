"""`computed_columns`: an asset whose function computes columns of another asset's table, each row once.

The body of the asset returns `RowsToCompute`; the IO manager opens the table, on the branch of the run, and computes
the rows of the run's partitions that are due (`handlers.computed`).
"""

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster._context.steps import output_contexts
from lance_dagster.tables.location import TABLE_KEY
from lance_dagster.tables.refs import is_tagged, table_ref

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_core import ComputeProgress

__all__ = ["RowsToCompute", "computed_columns"]

_OPTIONS: Final = (
    "batch_size", "commit_every", "visible_every", "max_failed_rows", "timeout", "processes", "concurrency", "setup",
    "on_running",
)  # fmt: skip
"""Arguments that are passed on to `LanceDataset.compute_columns`."""
_DRY_RUN_TAG: Final = "lance/dry_run"
_SECONDS: Final = 30.0
"""Seconds between two reports of the progress of a run."""


@dataclass(frozen=True, kw_only=True)
class RowsToCompute:
    """The value of an asset of `computed_columns`.

    Attributes:
        asset: The asset, whose key names the computation.
        function: The function, with the resources that it asks for.
        inputs: The columns that it reads.
        columns: The columns that it returns.
        code_version: Its version.
        attempt: The run, which the table of failed rows names.
        progress: Called after each call of the function.
        observe: Reports entries as an observation of the asset.
        options: Further arguments of `LanceDataset.compute_columns`.
        engine: "process" or "spark".
        cost_per_row: What a call costs for each row; None if that is not known.
    """

    asset: dg.AssetKey
    function: Callable[..., Any]
    inputs: Sequence[str]
    columns: "pa.Schema"
    code_version: str
    attempt: str
    progress: "Callable[[ComputeProgress], object]"
    observe: Callable[[Mapping[str, Any]], object]
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "process"
    cost_per_row: float | None = None


class ComputeConfig(dg.Config):
    """The configuration of a run of computed columns."""

    retry_failed: bool = False
    """Whether rows are computed again on which the function has failed."""
    dry_run: bool = False
    """Whether the rows that are due are only counted, for an observation, as with the run tag `lance/dry_run`."""


def computed_columns(  # noqa: PLR0913 - each is a choice of its own, by keyword only
    *,
    table: Any,
    inputs: Sequence[str],
    columns: "pa.Schema",
    code_version: str,
    batch_size: int = 256,
    commit_every: int | str = 10_000,
    visible_every: int | str | None = None,
    max_failed_rows: float = 0,
    timeout: float | None = None,
    processes: int = 0,
    concurrency: int = 1,
    setup: Callable[[], Any] | None = None,
    on_running: str = "reject",
    engine: str = "process",
    cost_per_row: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    **asset_options: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Decorate a function that computes columns of the rows of a table, each row once.

    The result is an asset that owns the columns. Rows are due that have no cells yet, whose inputs have changed, or
    whose cells are by another code version; what was computed lands, also if the run is killed. See the guide "Computed
    columns", and `LanceDataset.compute_columns` for the arguments that are not described here.

    Args:
        table: The asset that makes the rows, or its key, or "schema.table".
        inputs: The columns that the function reads.
        columns: The columns that it returns, all of which may be null.
        code_version: The version of the function, which is the asset's code version.
        batch_size: The most rows of a call.
        commit_every: Rows, or a duration, after which results are staged.
        visible_every: Rows, or a duration, after which fragments that are done are committed.
        max_failed_rows: The most rows on which the function may fail, or a share below 1.
        timeout: Seconds after which a call counts as one that failed.
        processes: Worker processes that call a plain function.
        concurrency: Calls of a coroutine function at the same time.
        setup: Makes the second argument of the function, once per process.
        on_running: What happens while another run computes these columns: "reject", "wait" or "split".
        engine: "process" for the process of the step, and its `processes`; "spark" for the executors of the session of
            the IO manager, to which the function and its resources are sent.
        cost_per_row: What a call costs for each row, in a currency of your choice; the events have the sum.
        metadata: Further metadata of the asset, such as `partition_expr`.
        **asset_options: Arguments of `dg.asset`, such as `partitions_def`, `group_name`, `automation_condition`.
            Resources are parameters of the function, by name.

    Raises:
        ValueError: The engine is neither "process" nor "spark", or Spark is to have `processes`.

    Examples:
        >>> @dg.asset
        ... def photos() -> pa.Table:
        ...     return pa.table({"text": ["a", "bc"]})
        >>> sizes = pa.schema([("size", pa.int32())])
        >>> @lance_dagster.computed_columns(table=photos, inputs=["text"], columns=sizes, code_version="1")
        ... def photo_sizes(batch):
        ...     return pc.utf8_length(batch["text"])
    """
    if engine not in ("process", "spark"):
        raise ValueError(f'engine must be "process" or "spark", not {engine!r}')
    if processes and engine == "spark":
        raise ValueError('engine="spark" calls the function in the processes of its executors: leave out processes')
    options = {name: value for name, value in locals().items() if name in _OPTIONS}
    ref = None if isinstance(table, str) and "." in table else table_ref(table)
    asset_options["deps"] = [*(asset_options.get("deps") or ()), *([] if ref is None else [ref.key])]
    asset_options["metadata"] = {
        **(metadata or {}),
        "lance/write_mode": "columns",
        "lance/missing": "keep",
        TABLE_KEY: table if ref is None else ref.key.to_user_string(),
    }

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        facts = {
            "inputs": inputs,
            "columns": columns,
            "code_version": code_version,
            "engine": engine,
            "cost_per_row": cost_per_row,
        }
        return _build_asset(function, facts, options, asset_options)

    return decorate


def _build_asset(
    function: Callable[..., Any], facts: Mapping[str, Any], options: Mapping[str, Any], asset_options: dict[str, Any]
) -> dg.AssetsDefinition:
    """The asset of a function; its parameters after the batch, and after the object of `setup`, are resources."""
    parameters = list(inspect.signature(function).parameters)[1 if options["setup"] is None else 2 :]
    more_resources = asset_options.pop("required_resource_keys", ())
    named = {"name": function.__name__, "description": inspect.getdoc(function), **asset_options}

    def compute(context: dg.AssetExecutionContext, config: ComputeConfig) -> Iterator[Any]:
        resources = {name: getattr(context.resources, name) for name in parameters}
        if facts["engine"] == "spark":
            resources = {
                name: _SentResource(resource) if isinstance(resource, dg.ConfigurableResource) else resource
                for name, resource in resources.items()
            }
        value = RowsToCompute(
            asset=context.asset_key,
            function=functools.partial(function, **resources) if resources else function,
            attempt=context.run_id,
            progress=_report_progress(context),
            observe=functools.partial(_observe, context),
            options={**options, "retry_failed": config.retry_failed},
            **facts,
        )
        ((output, manager),) = output_contexts(context.get_step_execution_context())
        if not hasattr(manager, "plan_computation"):
            raise dg.DagsterInvalidDefinitionError(
                f"{context.asset_key.to_user_string()} computes columns of a Lance table, and its IO manager is a "
                f"{type(manager).__name__}: set io_manager_key to the key of a LanceIOManager"
            )
        if config.dry_run or is_tagged(context.op_execution_context, _DRY_RUN_TAG):
            _observe(context, manager.plan_computation(output, value))
        else:
            yield dg.Output(value)

    asset: Any = dg.asset(
        output_required=False,  # of a dry run
        code_version=facts["code_version"],
        required_resource_keys={*more_resources, *parameters},
        **named,
    )
    definition: dg.AssetsDefinition = asset(compute)
    return definition


@dataclass(frozen=True)
class _SentResource:
    """A resource for other processes, which cannot be pickled, and is made of its fields as this is unpickled."""

    resource: Any

    def __reduce__(self) -> tuple[Any, ...]:
        """The resource itself."""
        return _make_resource, (type(self.resource), dict(self.resource))


def _make_resource(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    resource = kind(**fields)
    resource.setup_for_execution(dg.build_init_resource_context())
    return resource


def _report_progress(context: dg.AssetExecutionContext) -> "Callable[[ComputeProgress], None]":
    """Report the progress as observations of the asset, some times a minute."""
    reported = [time.monotonic()]

    def report(progress: "ComputeProgress") -> None:
        if time.monotonic() - reported[0] < _SECONDS:
            return
        reported[0] = time.monotonic()
        entries = {
            "lance/rows_done": progress.rows_done,
            "lance/rows_left": progress.rows_due - progress.rows_done,
            "lance/rows_failed": progress.rows_failed,
            "lance/rows_per_second": progress.rows_per_second,
        }
        _observe(context, entries)

    return report


def _observe(context: dg.AssetExecutionContext, entries: Mapping[str, Any]) -> None:
    """Report an observation of the asset, which Dagster stores at once."""
    partition = context.partition_key if context.has_partition_key else None
    context.log_event(dg.AssetObservation(context.asset_key, metadata=entries, partition=partition))
