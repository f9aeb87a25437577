"""Outputs of ops, which belong to no asset: frames on their way from one op to the next.

    {root_uri}/_ops/{run}/{step}/{output}.lance      {output}.{mapping key}.lance of a dynamic output

    a frame            its rows
    anything else      one row with its pickle, as Dagster's own IO managers keep it

A table each, which a retry of the step writes again; maintenance removes those of runs that are long over
(`op_cleanup`). Characters of a name that a folder cannot have are written as "=" and two hexadecimal digits of each
byte.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any, Final

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetNotFoundError
from lance_dagster.handlers import LanceTypeHandler, Loading, handler_for_value
from lance_dagster.handlers.base import ReadRequest, WriteRequest
from lance_dagster.location import checked_root
from lance_dagster.names import RESERVED_FOLDER
from lance_dagster.settings import OutputSettings, TableSettings

__all__ = ["FOLDER", "below_root", "load_op_output", "store_op_output"]

FOLDER: Final = RESERVED_FOLDER
_PICKLED: Final = "__lance_dagster_pickle"
"""The only column of a table that holds a pickle."""


def store_op_output(context: dg.OutputContext, obj: Any, settings: TableSettings) -> None:
    """Write what an op gave.

    Raises:
        DagsterInvariantViolationError: the value is no frame, and cannot be pickled.
    """
    where = f"output {context.name!r} of {context.step_key!r}"
    handler = _handler(obj, where, settings)
    if handler is None:
        obj, handler = _pickled(obj, where), handler_for_value(_EMPTY, where=where)
    uri = _uri(context, settings)
    request = WriteRequest(
        uri=uri,
        mode="overwrite",
        existing=_open(uri, settings),
        slices=None,
        output=OutputSettings(schema_mode="overwrite"),
        table=settings,
        properties={"dagster.run_id": context.run_id, "dagster.step_key": context.step_key},
        write_try=None,
    )
    outcome = handler.write(obj, request)
    assert outcome is not None  # an output without rows is written
    rows = outcome.dataset.count_rows()
    context.add_output_metadata({"dagster/row_count": rows, "dagster/uri": uri})


_EMPTY: Final = pa.table({})


def _handler(obj: Any, where: str, settings: TableSettings) -> LanceTypeHandler | None:
    """What writes a value as rows; None for what is no frame."""
    try:
        return handler_for_value(obj, where=where, own=settings.type_handlers)
    except dg.DagsterInvariantViolationError:
        return None


def _pickled(obj: Any, where: str) -> pa.Table:
    """A value as a table of one row.

    Raises:
        DagsterInvariantViolationError: it cannot be pickled.
    """
    try:
        data = pickle.dumps(obj)
    except Exception as error:
        raise dg.DagsterInvariantViolationError(
            f"{where} is a {type(obj).__module__}.{type(obj).__qualname__}: no frame that LanceIOManager stores, and "
            f"it cannot be pickled: {error}. Give it another IO manager, dg.Out(io_manager_key=...), or hand on what "
            "it is made from"
        ) from error
    return pa.table({_PICKLED: pa.array([data], pa.large_binary())})


def load_op_output(
    context: dg.OutputContext, settings: TableSettings, loading: Callable[[], Loading], where: str
) -> Any:
    """Load the output of an op.

    Args:
        context: The output that is loaded.
        settings: The IO manager's.
        loading: Finds what the input is to be; asked for rows only.
        where: The input, for messages.

    Raises:
        DatasetNotFoundError: nothing was stored.
    """
    uri = _uri(context, settings)
    dataset = _open(uri, settings)
    if dataset is None:
        raise DatasetNotFoundError(f"{where}: {context.step_key!r} of run {context.run_id} stored no table at {uri}")
    if dataset.schema.names == [_PICKLED]:
        (data,) = dataset.to_table().column(_PICKLED).to_pylist()
        return pickle.loads(data)  # noqa: S301 - what the run itself has stored, as with Dagster's own IO managers
    wanted = loading()
    request = ReadRequest(dataset=dataset, columns=None, filter=None, table=settings, load_as=wanted.load_as)
    return wanted.handler.load(request)


def _uri(context: dg.OutputContext, settings: TableSettings) -> str:
    run, step, name, *mapping_key = context.get_identifier()
    table = ".".join(map(_segment, [name, *mapping_key]))
    return below_root(settings.root_uri, f"{FOLDER}/{_segment(run)}/{_segment(step)}/{table}.lance")


def below_root(root_uri: str, path: str) -> str:
    """The URI of a path below the root of an IO manager."""
    place, mark, query = checked_root(root_uri).partition("?")
    return f"{place.rstrip('/')}/{path}{mark}{query}"


def _segment(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: "".join(f"={byte:02x}" for byte in found[0].encode()), name)


def _open(uri: str, settings: TableSettings) -> lance_core.LanceDataset | None:
    try:
        return lance_core.dataset(uri, storage_options=dict(settings.storage_options) or None)
    except DatasetNotFoundError:
        return None
