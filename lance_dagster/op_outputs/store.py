"""Outputs of ops, which belong to no asset: frames that one op passes to the next.

    {root_uri}/_ops/{run}/{step}/{output}.lance      {output}.{mapping key}.lance of a dynamic output

    a frame            its rows
    any other value    one row with its pickle, as Dagster's own IO managers store it

The commit names the inputs of the step, `dagster.input.<asset>`, which a step that loads the output takes over.
Each output is a table of its own, which a retry of the step overwrites; maintenance removes the outputs of runs that
ended long ago (`cleanup`). Each byte of a character that a folder's name cannot have is written as "=" and two
hexadecimal digits.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetNotFoundError
from lance_dagster._context.steps import RunFacts, run_facts, run_time_metadata
from lance_dagster.handlers import LanceTypeHandler, Loading, find_handler_for_value
from lance_dagster.handlers.base import ReadRequest, WriteRequest
from lance_dagster.handlers.input_selection import parse_columns, parse_filter
from lance_dagster.lineage.step_inputs import input_properties, remember_inputs_of_op
from lance_dagster.properties import RUN_ID, STEP_KEY, properties_of
from lance_dagster.tables.location import below_root
from lance_dagster.tables.names import RESERVED_FOLDER, plain_metadata
from lance_dagster.tables.settings import (
    INPUT_KEYS_OF_ASSETS,
    INPUT_PINS,
    OUTPUT_KEYS,
    OutputSettings,
    TableSettings,
    check_input,
    reject_of_ops,
)

_PICKLED: Final = "__lance_dagster_pickle"
"""The only column of a table that holds a pickle."""


def store_op_output(context: dg.OutputContext, obj: Any, settings: TableSettings) -> None:
    """Write the output of an op.

    Raises:
        DagsterInvariantViolationError: The value is not a frame, and cannot be pickled.
    """
    label = f"output {context.name!r} of {context.step_key!r}"
    handler = _handler(obj, label, settings)
    if handler is None:
        obj, handler = _pickled(obj, label), find_handler_for_value(_EMPTY, label=label)
    uri = _uri(context, settings)
    output, facts = _settings(context, label), run_facts(context)
    inputs = input_properties(None if facts is None else facts.step)
    request = WriteRequest(
        uri=uri,
        mode="overwrite",
        existing=settings.open_uri(uri),
        slices=None,
        output=output,
        table=settings,
        commit=lance_core.Commit(
            message=output.commit_message,
            properties={RUN_ID: context.run_id, STEP_KEY: context.step_key, **inputs},
        ),
    )
    outcome = handler.write(obj, request)
    assert outcome is not None  # an output without rows is written
    rows = outcome.dataset.count_rows()
    context.add_output_metadata({"dagster/row_count": rows, "dagster/uri": uri})


def _settings(context: dg.OutputContext, label: str) -> OutputSettings:
    """The settings of the write, from the few entries of metadata that outputs of ops can have.

    Raises:
        DagsterInvalidDefinitionError: The metadata has another entry that looks like a setting.
    """
    settings = OutputSettings(schema_mode="overwrite")
    for metadata in (context.definition_metadata, run_time_metadata(context)):
        reject_of_ops(metadata, OUTPUT_KEYS, label=label)
        settings = settings.changed(metadata, label=label)
    return settings


_EMPTY: Final = pa.table({})


def _handler(obj: Any, label: str, settings: TableSettings) -> LanceTypeHandler | None:
    """The handler that writes a value as rows; None if the value is not a frame."""
    try:
        return find_handler_for_value(obj, label=label, type_handlers=settings.type_handlers)
    except dg.DagsterInvariantViolationError:
        return None


def _pickled(obj: Any, label: str) -> pa.Table:
    """A value as a table of one row.

    Raises:
        DagsterInvariantViolationError: The value cannot be pickled.
    """
    try:
        data = pickle.dumps(obj)
    except Exception as error:
        raise dg.DagsterInvariantViolationError(
            f"{label} is a {type(obj).__module__}.{type(obj).__qualname__}, which is no frame that LanceIOManager "
            f"stores and cannot be pickled: {error}. Use another IO manager, dg.Out(io_manager_key=...), or pass the "
            "values from which it is made"
        ) from error
    return pa.table({_PICKLED: pa.array([data], pa.large_binary())})


def load_op_output(
    context: dg.OutputContext,
    facts: RunFacts | None,
    settings: TableSettings,
    loading: Callable[[], Loading],
    label: str,
    metadata: Mapping[str, object],
) -> Any:
    """Load the output of an op.

    Args:
        context: The output that is loaded.
        facts: The run and the step that load it.
        settings: The settings of the IO manager.
        loading: Returns how the input is loaded; called only if the output was stored as rows.
        label: The input, for messages.
        metadata: The metadata of the input, whose entries `columns` and `lance/filter` are used.

    Raises:
        DatasetNotFoundError: The output was not stored.
        DagsterInvalidDefinitionError: The metadata has an unknown entry, one that chooses a version, or one that is for
            frames while the output is no frame.
    """
    metadata = {key: plain_metadata(value) for key, value in metadata.items()}
    check_input(metadata, label)
    pins = [pin for pin in INPUT_PINS if pin in metadata]
    if pins:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {pins[0]} is for inputs that are assets, and the output of an op has only one version; "
            "remove the entry"
        )
    for key in sorted(INPUT_KEYS_OF_ASSETS & metadata.keys()):
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {key} is for inputs that are assets, not for the output of an op; remove the entry"
        )
    uri = _uri(context, settings)
    dataset = settings.open_uri(uri)
    if dataset is None:
        raise DatasetNotFoundError(f"{label}: {context.step_key!r} of run {context.run_id} stored no table at {uri}")
    if facts is not None:
        inputs = properties_of(dataset.read_transaction(dataset.version))
        remember_inputs_of_op(facts.step, inputs, attempt=facts.attempt)
    if dataset.schema.names == [_PICKLED]:
        chosen = [key for key in ("columns", "lance/filter") if metadata.get(key) is not None]
        if chosen:
            raise dg.DagsterInvalidDefinitionError(
                f"{label}: metadata {chosen[0]} is for frames, and the output of {context.step_key!r} is no frame"
            )
        (data,) = dataset.to_table().column(_PICKLED).to_pylist()
        return pickle.loads(data)  # noqa: S301 - the run itself stored it, as with Dagster's own IO managers
    load_plan = loading()
    request = ReadRequest(
        dataset=dataset,
        columns=parse_columns(metadata.get("columns"), dataset.schema, label),
        filter=parse_filter(metadata.get("lance/filter"), dataset, label),
        table=settings,
        load_as=load_plan.load_as,
        filtered=metadata.get("lance/filter") is not None,
    )
    return load_plan.handler.load(request)


def _uri(context: dg.OutputContext, settings: TableSettings) -> str:
    run, step, name, *mapping_key = context.get_identifier()
    table = ".".join(map(_segment, [name, *mapping_key]))
    return below_root(settings.root_uri, f"{RESERVED_FOLDER}/{_segment(run)}/{_segment(step)}/{table}.lance")


def _segment(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", lambda match: "".join(f"={byte:02x}" for byte in match[0].encode()), name)
