"""Facts of Dagster contexts about run, step and code location; and metadata that only the step can record.

This is the only module that reads `step_context`, which Dagster gives to IO managers but does not document.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import dagster as dg

try:  # Dagster raises this class, which has no public name, where a context lacks the requested attribute.
    from dagster._check import CheckError
except ImportError:
    CheckError = dg.DagsterError  # type: ignore[misc, assignment]

ABSENT = (CheckError, dg.DagsterError)
"""The exceptions of a context without a code location (a job that runs by itself) or without the time of a tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run, its step if one is known, and the instance that has their records.

    Attributes:
        run_id: The run.
        root_run_id: The first run of a chain of re-executions; the run itself when it is the first.
        parent_run_id: The run that this one re-executes.
        job_name: Its job.
        step_key: The step inside the run.
        attempt: 0 for the first attempt of the step in this run, then 1, 2, ...
        tags: The run's tags.
        number: The run's number in the instance, which grows with each run; 0 if the instance has no record of the run.
        evaluates_checks: Whether the step has results of asset checks.
        instance: The Dagster instance; None if it is not known.
    """

    run_id: str
    root_run_id: str
    parent_run_id: str | None = None
    job_name: str | None = None
    step_key: str | None = None
    attempt: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    evaluates_checks: bool = False
    instance: dg.DagsterInstance | None = field(default=None, repr=False, compare=False)

    @property
    def step(self) -> tuple[str, str] | None:
        """The run and its step; None if no step is known."""
        return None if self.step_key is None else (self.run_id, self.step_key)

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt, in this run or in an earlier run of the chain, may have committed already."""
        return self.attempt > 0 or self.parent_run_id is not None or self.root_run_id != self.run_id

    @property
    def backfill_id(self) -> str | None:
        """The backfill that launched the run."""
        return self.tags.get("dagster/backfill")

    def record(self, run_id: str) -> dg.RunRecord | None:
        """The instance's record of a run; None if it has none."""
        return None if self.instance is None else self.instance.get_run_record_by_id(run_id)

    def created_at(self, run_id: str) -> datetime | None:
        """When a run was created; None if the instance has no record of it."""
        record = self.record(run_id)
        return None if record is None else record.create_timestamp.replace(tzinfo=UTC)

    def succeeded(self, run_id: str) -> bool:
        """Whether a run succeeded; False if the instance has no record of it."""
        record = self.record(run_id)
        return record is not None and record.dagster_run.status is dg.DagsterRunStatus.SUCCESS

    def ended(self, run_id: str) -> bool:
        """Whether a run has ended; True if the instance has no record of it."""
        record = self.record(run_id)
        return record is None or record.dagster_run.is_finished


def run_facts(context: dg.OutputContext | dg.InputContext) -> RunFacts | None:
    """The facts of an input's or output's step; None for an input outside of a run, or an output built by hand."""
    step = _step(context)
    if step is None:
        return None
    record = step.instance.get_run_record_by_id(step.run_id)
    return replace(
        facts_of(step.dagster_run if record is None else record.dagster_run, step.instance),
        run_id=step.run_id,
        step_key=step.step.key,
        attempt=int(getattr(step, "previous_attempt_count", 0)),
        number=0 if record is None else int(record.storage_id),
        evaluates_checks=evaluates_checks(step),
    )


def evaluates_checks(step: Any) -> bool:
    """Whether a step, given by its context, has results of asset checks."""
    outputs = getattr(getattr(step, "step", None), "step_outputs", ())
    return any(getattr(output.properties, "asset_check_key", None) is not None for output in outputs)


def facts_of(run: dg.DagsterRun, instance: dg.DagsterInstance | None) -> RunFacts:
    """The facts of a run, without its step."""
    tags = dict(run.tags)
    parent = run.parent_run_id or tags.get("dagster/parent_run_id")
    return RunFacts(
        run_id=run.run_id,
        root_run_id=run.root_run_id or tags.get("dagster/root_run_id") or parent or run.run_id,
        parent_run_id=parent,
        job_name=run.job_name,
        tags=tags,
        instance=instance,
    )


def tag_run(context: dg.OutputContext | dg.InputContext, tags: Mapping[str, str]) -> None:
    """Add tags to the run, unless it has them already."""
    step = _step(context)
    if step is not None and not tags.items() <= dict(step.dagster_run.tags).items():
        step.instance.add_run_tags(step.run_id, dict(tags))


def output_name(context: dg.OutputContext) -> str:
    """The output's name; "result", Dagster's own default, in a context that was built without one."""
    try:
        return context.name
    except dg.DagsterInvariantViolationError:
        return "result"


def defined_metadata(context: dg.OutputContext) -> Mapping[str, Any]:
    """The definition metadata of an output.

    For an asset that a graph computes, these are the asset's metadata and that of the op's output with its value;
    Dagster itself ignores the output's metadata if the asset has any.
    """
    step = _step(context)
    node = getattr(step, "node_handle", None)
    if node is None or getattr(node, "parent", None) is None:
        return context.definition_metadata
    return {**(context.op_def.output_def_named(context.name).metadata or {}), **context.definition_metadata}


def partitions_of_asset(context: dg.OutputContext) -> dg.PartitionsDefinition | None:
    """The partitions of an output's asset, also in a run that names no partition; None if the asset has none."""
    try:
        return context.asset_partitions_def
    except ABSENT:
        return None


def run_time_metadata(context: dg.OutputContext) -> Mapping[str, Any]:
    """The metadata that the body of an asset or op gave an output, with the value or through the context."""
    try:
        output_metadata = dict(context.output_metadata or {})
    except dg.DagsterInvariantViolationError:
        return {}
    step = _step(context)
    if step is not None and context.has_asset_key and hasattr(step, "get_asset_metadata"):
        return {**(step.get_asset_metadata(context.asset_key) or {}), **output_metadata}
    return output_metadata


def metadata_of_asset(context: dg.OutputContext, asset_key: dg.AssetKey) -> Mapping[str, Any]:
    """The definition metadata of another asset of an output's code location; empty if the asset is not known."""
    return getattr(find_asset(_graph_of_step(context), asset_key), "metadata", None) or {}


def other_assets(context: dg.OutputContext) -> dict[dg.AssetKey, Mapping[str, Any]]:
    """The definition metadata of the other assets of an output's code location; empty if they are not known."""
    graph = _graph_of_step(context)
    keys = () if graph is None else graph.get_all_asset_keys() - {context.asset_key}
    return {key: graph.get(key).metadata or {} for key in keys}


def downstream_keys(
    context: dg.OutputContext | dg.OpExecutionContext | dg.AssetExecutionContext, asset_key: dg.AssetKey
) -> tuple[dg.DagsterInstance, list[dg.AssetKey]] | None:
    """The assets of the code location downstream of a given asset, and the instance; None if they are not known."""
    step: Any = _step(context) if isinstance(context, dg.OutputContext) else context
    try:
        graph = _graph_of_step(context) if isinstance(context, dg.OutputContext) else step.repository_def.asset_graph
    except ABSENT:
        return None
    asset = find_asset(graph, asset_key)
    return None if asset is None else (step.instance, sorted(asset.child_keys))


def input_annotation(context: dg.InputContext) -> object:
    """The type that the input is annotated with; None in a context that was built without one."""
    try:
        return context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:
        return None


def type_metadata(context: dg.InputContext | dg.OutputContext) -> Mapping[str, Any]:
    """The metadata of the Dagster type of an input or output; none in a context built without one."""
    try:
        return context.dagster_type.metadata
    except dg.DagsterInvariantViolationError:
        return {}


def process_executor(context: dg.OutputContext | dg.InputContext) -> str | None:
    """The name of the run's executor if it runs each step in a process of its own; None if it does not."""
    step = _step(context)
    executor = getattr(getattr(step, "job_def", None), "executor_def", None)
    if step is None or executor is None:
        return None
    config = (step.dagster_run.run_config.get("execution") or {}).get("config") or {"multiprocess": {}}
    needs = {getattr(requirement, "value", "") for requirement in executor.get_requirements(config)}
    return str(executor.name) if "PERSISTENT_OUTPUTS" in needs else None


def provenance_of_output(context: dg.OutputContext) -> dict[str, str]:
    """The tags by which Dagster would record the code version and the inputs of an output; empty outside of a step."""
    step = _step(context)
    layer = getattr(getattr(step, "job_def", None), "asset_layer", None)
    look_up = getattr(step, "maybe_fetch_and_get_input_asset_version_info", None)
    if step is None or layer is None or look_up is None:
        return {}
    node = layer.get(context.asset_key)
    tags = {"dagster/code_version": node.code_version or step.run_id, "dagster/data_version_is_user_provided": "true"}
    for key in node.parent_keys:
        version_info = look_up(key)
        version = None if version_info is None else version_info.data_version
        tags[f"dagster/input_data_version/{key.to_user_string()}"] = "INITIAL" if version is None else version.value
        pointer = None if version_info is None else version_info.storage_id
        tags[f"dagster/input_event_pointer/{key.to_user_string()}"] = str(pointer) if pointer else "NULL"
    return tags


def is_own_upstream(context: dg.InputContext) -> bool:
    """Whether the input of a step is an asset that the step itself writes."""
    step = _step(context)
    assets = getattr(step, "assets_def", None)
    return assets is not None and context.asset_key in assets.keys


def can_subset(context: dg.InputContext) -> bool:
    """Whether the step of an input writes assets of which a run may choose some."""
    return bool(getattr(getattr(_step(context), "assets_def", None), "can_subset", False))


def is_fan_in(context: dg.InputContext) -> bool:
    """Whether the input is a list that Dagster puts together, one value per source."""
    return _sources(context) is not None


def is_list_of_assets(context: dg.InputContext) -> bool:
    """Whether the input is a list of several assets: Dagster asks for the first asset each time."""
    return len(_sources(context) or ()) > 1 and context.has_asset_key


def _sources(context: dg.InputContext) -> Sequence[Any] | None:
    """The sources of an input that Dagster puts together as a list; None for any other input."""
    step = _step(context)
    try:
        source = step.step.step_input_named(context.name).source if step is not None else None
    except (AttributeError, KeyError, dg.DagsterInvariantViolationError, CheckError):
        return None
    return None if hasattr(source, "source_to_load_from") else getattr(source, "sources", None)


def find_instance(context: dg.InputContext) -> dg.DagsterInstance | None:
    """The instance of an input that is loaded outside of a run; None without one."""
    with suppress(*ABSENT):
        return context.instance
    return None


def is_external(context: dg.InputContext) -> bool:
    """Whether nothing in the code location materializes the asset of an input; True if that is not known."""
    return not getattr(find_asset(_graph_of_step(context), context.asset_key), "is_materializable", False)


def set_data_version(context: dg.OutputContext, version: str) -> None:
    """Set the asset's data version; one that the asset's body returns wins. Without a step nothing is set."""
    step = _step(context)
    if step is not None and hasattr(step, "set_data_version"):
        step.set_data_version(context.asset_key, dg.DataVersion(version))


def add_metadata(
    context: dg.OutputContext, entries: Mapping[str, Any], by_partition: Mapping[str, Mapping[str, Any]]
) -> None:
    """Attach metadata to the events of an output; entries that the asset's body gave are kept.

    Args:
        context: The output.
        entries: The entries of all events of the output.
        by_partition: All entries of the event of each partition, keyed by partition, in the order in which they are to
            be shown. With a step that can report them, they replace `entries`.
    """
    step = _step(context)
    body_keys = _given_keys(context)
    if step is None or not by_partition or not hasattr(step, "add_asset_metadata"):
        context.add_output_metadata({key: value for key, value in entries.items() if key not in body_keys})
        return
    body_keys |= set(step.get_asset_metadata(context.asset_key) or ())
    for partition_key, partition_entries in by_partition.items():
        partition_keys = body_keys | set(step.get_asset_metadata(context.asset_key, partition_key) or ())
        new = {key: value for key, value in partition_entries.items() if key not in partition_keys}
        step.add_asset_metadata(new, asset_key=context.asset_key, partition_key=partition_key)


AnyContext = (
    dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.SensorEvaluationContext
)
"""The contexts that know the definitions of their code location."""


def asset_definition(
    context: AnyContext, asset_key: dg.AssetKey
) -> tuple[Mapping[str, Any] | None, dg.PartitionsDefinition[Any] | None]:
    """The definition metadata and the partitions of an asset; None for each that the code location does not have."""
    definition: Any = None
    with suppress(*ABSENT, AttributeError):
        definition = context.repository_def.assets_defs_by_key.get(asset_key)  # type: ignore[union-attr]
    if definition is not None:
        return definition.metadata_by_key.get(asset_key), definition.specs_by_key[asset_key].partitions_def
    asset = find_asset(asset_graph(getattr(context, "job_def", None)), asset_key)
    return (None, None) if asset is None else (asset.metadata, asset.partitions_def)


def known_assets(
    context: AnyContext,
) -> list[tuple[dg.AssetKey, Mapping[str, Any], dg.PartitionsDefinition[Any] | None]]:
    """The assets of the code location, with metadata and partitions; empty if the code location is not known."""
    keys: list[dg.AssetKey] = []
    with suppress(*ABSENT, AttributeError):
        keys = sorted(context.repository_def.assets_defs_by_key)  # type: ignore[union-attr]
    graph = None if keys else asset_graph(getattr(context, "job_def", None))
    keys = keys if graph is None else sorted(graph.get_all_asset_keys())
    defined = ((key, *asset_definition(context, key)) for key in keys)
    return [(key, metadata or {}, partitions_def) for key, metadata, partitions_def in defined]


def is_external_asset(context: AnyContext, asset_key: dg.AssetKey) -> bool | None:
    """Whether the code location has an asset but does not materialize it; None if the asset is not known."""
    asset = find_asset(graph_of(context), asset_key)
    return None if asset is None else not asset.is_materializable


def asset_graph(job: Any) -> Any:
    """The assets of the code location that a job comes from; None if they are not known."""
    graph: Any = getattr(getattr(job, "asset_layer", None), "asset_graph", None)
    return getattr(graph, "source_asset_graph", graph)  # a job's own graph has only the assets of the job


def graph_of(context: AnyContext) -> Any:
    """The assets of the code location of a context; None if they are not known."""
    graph: Any = None
    with suppress(*ABSENT, AttributeError):
        graph = context.repository_def.asset_graph  # type: ignore[union-attr]
    return asset_graph(getattr(context, "job_def", None)) if graph is None else graph


def find_asset(graph: Any, asset_key: dg.AssetKey) -> Any:
    """An asset of a graph; None without a graph, or if the graph lacks the asset."""
    return graph.get(asset_key) if graph is not None and graph.has(asset_key) else None


def _graph_of_step(context: dg.OutputContext | dg.InputContext) -> Any:
    return asset_graph(getattr(_step(context), "job_def", None))


def run_partition_keys(
    context: dg.AssetCheckExecutionContext, partitions_def: dg.PartitionsDefinition[Any] | None
) -> list[str] | None:
    """The partitions of the run that a check is part of; None if the run or the asset has no partitions."""
    # Only newer versions of Dagster have partitions on a check's context; all have them on the context of its op.
    run: Any = context if hasattr(context, "has_partition_key") else context.op_execution_context
    if partitions_def is None or not (run.has_partition_key or run.has_partition_key_range):
        return None
    return list(run.partition_keys)


def _given_keys(context: dg.OutputContext) -> set[str]:
    """The keys of the metadata that the asset's body gave its output."""
    try:
        return set(context.output_metadata or ())
    except dg.DagsterInvariantViolationError:
        return set()


def _step(context: dg.OutputContext | dg.InputContext) -> Any | None:
    try:
        return context.step_context
    except dg.DagsterInvariantViolationError:
        return _step_of_body() if isinstance(context, dg.InputContext) else None


def _step_of_body() -> Any | None:
    """The context of the step whose body loads an asset itself; None outside of a body.

    The context of an input that `context.load_asset_value` builds has no step. In a thread that the body has started,
    the step is that of the execution context whose method is being called.
    """
    try:
        return dg.OpExecutionContext.get().get_step_execution_context()
    except (dg.DagsterInvariantViolationError, AttributeError):  # no body, or one that a test calls directly
        pass
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - Dagster hands a thread the context in no other way
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, dg.OpExecutionContext):
            return caller.get_step_execution_context()
        frame = frame.f_back
    return None


def job_of_step(context: dg.InputContext | dg.OutputContext) -> Any:
    """The definition of the job that loads an input or writes an output; None outside of a step."""
    return getattr(_step(context), "job_def", None)


def outputs_of_step(context: dg.InputContext) -> list[tuple[dg.OutputContext, Any]]:
    """The context and the IO manager of each asset that the step of an input writes; empty outside of a step."""
    step = _step(context)
    return [] if step is None else output_contexts(step)


def output_contexts(step: Any) -> list[tuple[dg.OutputContext, Any]]:
    """The context and the IO manager of each asset that a step writes.

    Args:
        step: Dagster's context of the step.
    """
    # Dagster has no public interface for the outputs of a step.
    from dagster._core.execution.plan.outputs import StepOutputHandle  # noqa: PLC0415, TID251 - see above

    handles = [
        StepOutputHandle(step.step.key, output.name) for output in step.step.step_outputs if output.properties.asset_key
    ]
    return [(step.get_output_context(handle), step.get_io_manager(handle)) for handle in handles]
