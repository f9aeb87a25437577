"""Loads one input of a step from its table.

asset -> location -> version -> slices + filter + columns -> handler
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_core.errors import DatasetNotFoundError, UnsupportedError
from lance_dagster._context.steps import RunFacts, input_annotation, is_fan_in, run_facts, type_metadata
from lance_dagster.handlers import Loading, default_load_type, find_handler_for_load
from lance_dagster.handlers.arrow_schema import known_schema
from lance_dagster.handlers.base import ReadRequest
from lance_dagster.handlers.changes import changes_schema
from lance_dagster.handlers.input_selection import MissingInputError
from lance_dagster.handlers.lance import LanceDatasetHandler
from lance_dagster.io_manager.ownership import check_ownership, reject_memory_of_another_process
from lance_dagster.lineage.check_reads import record_check_read
from lance_dagster.lineage.spark_columns import remember_frame
from lance_dagster.lineage.step_inputs import remember_input
from lance_dagster.lineage.watermarks import updates_unknown
from lance_dagster.loading.changes import CHANGES
from lance_dagster.loading.inputs import partition_filter, plan_reads
from lance_dagster.op_outputs.store import load_op_output
from lance_dagster.tables.branch_policy import BY_THREAD, reject_without_step, tag_run_with_branch
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.refs import TableRef
from lance_dagster.tables.settings import INPUT_PINS, TableSettings


def load_input(
    context: dg.InputContext, settings: TableSettings, created_in: dg.InitResourceContext | None = None
) -> Any:
    """Load an upstream asset: the partitions that Dagster asks for, of one version of its table.

    Args:
        context: The context of the input.
        settings: The settings of the IO manager.
        created_in: The context in which the IO manager was created.

    Raises:
        DagsterInvalidInvocationError: The run is on a branch, and its step is not known.
        DagsterInvariantViolationError: No handler loads the type of the input.
        LanceError: The table, the version or a column does not exist.
    """
    reject_memory_of_another_process(context, settings)
    asset = f"asset {context.asset_key.to_user_string()}" if context.has_asset_key else "no asset"
    label = f"input {_input_name(context)} ({asset})"
    type_handlers, facts = settings.type_handlers, run_facts(context)

    def find_loading() -> Loading:
        default = default_load_type(settings)
        return find_handler_for_load(input_annotation(context), default, label=label, type_handlers=type_handlers)

    if not context.has_asset_key:
        if context.upstream_output is None:
            raise dg.DagsterInvariantViolationError(
                f"{label} has no upstream output, and LanceIOManager loads only outputs; use another IO manager for it"
            )
        return load_op_output(
            context.upstream_output, facts, settings, find_loading, label, context.definition_metadata
        )
    reject_without_step(facts, created_in, settings.branching, f"{asset} is loaded", BY_THREAD)
    loading = find_loading()
    step = None if facts is None else facts.step
    upstream = context.upstream_output.definition_metadata if context.upstream_output is not None else {}
    location = settings.locate(TableRef(key=context.asset_key, metadata=upstream))
    settings = replace(settings, storage_options=location.options(settings.storage_options) or {})
    try:
        requests = plan_reads(context, facts, location, settings, loading, label=label, upstream=upstream)
    except MissingInputError as error:
        check_ownership(None, context.asset_key, upstream, settings, label)
        if plain_metadata(context.definition_metadata.get("lance/missing")) != "empty":
            return _missing(context, loading, error)
        requests = None
    if requests is None:
        check_ownership(None, context.asset_key, upstream, settings, label)
        context.log.info("%s: there are no rows to load from %s yet; the input is empty", label, location.uri)
        declared_schema = known_schema(upstream, type_metadata(context), label)
        return _empty(context, loading, declared_schema, settings)
    values, loads_whole_table = {}, isinstance(loading.handler, LanceDatasetHandler)
    _record_check_read(context, facts, settings, requests, upstream.get("partition_expr"))
    for key, request in requests.items():
        rows = None if loads_whole_table else request.filter
        name = f"{_input_name(context)}[{key if context.has_input_name else rows}]"  # a body may load several parts
        asset, attempt = context.asset_key.to_user_string(), 0 if facts is None else facts.attempt
        remember_input(step, asset, request.dataset, attempt=attempt, input_name=name, rows=rows)
        context.log.debug("%s: version %s of %s", label, request.dataset.version, location.uri)
        values[key] = _load(loading, request, label)
        if settings.derive_column_lineage:
            remember_frame(step, asset, values[key])
    if loading.by_partition:
        return values
    return values[None] if None in values else list(values.values())


def _record_check_read(
    context: dg.InputContext,
    facts: RunFacts | None,
    settings: TableSettings,
    requests: Mapping[str | None, ReadRequest],
    partition_expr: object,
) -> None:
    """Record what a step that evaluates checks reads; partitions are all rows if no row lies outside of them."""
    if facts is None or not facts.evaluates_checks:
        return
    if any(context.definition_metadata.get(pin) is not None for pin in INPUT_PINS):
        return
    dataset = next(iter(requests.values())).dataset if requests else None  # all are of one version
    if dataset is None or dataset.branch is None:
        return
    keys = list(context.asset_partition_keys) if context.has_asset_partitions else None
    rows = partition_filter(context, keys, partition_expr, dataset.schema)
    is_whole = dataset.count_rows(filter=rows) == dataset.count_rows()
    record_check_read(facts, tag_run_with_branch(settings.branching, facts), dataset, keys, is_whole=is_whole)


def _load(loading: Loading, request: ReadRequest, label: str) -> Any:
    """The value of a read.

    Raises:
        UnsupportedError: The input reads changes, and its table does not record which rows were updated.
    """
    try:
        return loading.handler.load(request)
    except UnsupportedError as error:
        if request.changes is None or request.dataset.has_stable_row_ids:
            raise
        raise updates_unknown(request.dataset.uri, label, error) from error


def _empty(context: dg.InputContext, loading: Loading, schema: pa.Schema, settings: TableSettings) -> Any:
    """The value of an input for which there is nothing to load."""
    if loading.by_partition:
        return {}
    if loading.as_list and not is_fan_in(context):
        return []
    if CHANGES in context.definition_metadata:
        schema = changes_schema(schema)
    return loading.handler.empty(schema, settings, loading.load_as)


def _missing(context: dg.InputContext, loading: Loading, error: MissingInputError) -> None:
    """None, for an optional input whose table or partitions were never written.

    Raises:
        DatasetNotFoundError: The input is not optional.
    """
    if not loading.optional:
        raise DatasetNotFoundError(str(error)) from None
    context.log.info("%s; the input is None", error)


def _input_name(context: dg.InputContext) -> str:
    return repr(context.name) if context.has_input_name else "without a name"
