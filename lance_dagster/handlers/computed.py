"""The handler of `RowsToCompute`: it computes the cells of the rows that are due, in the scope of the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core.errors import FailedRowsError, UnsupportedError
from lance_dagster.handlers.base import LanceTypeHandler, ReadRequest, WriteRequest
from lance_dagster.handlers.columns import columns_result, reopen_base
from lance_dagster.properties import ASSET_KEY
from lance_dagster.tables.location import below_root
from lance_dagster.tables.names import FAILED_FOLDER

_REASONS: Final = ("new", "inputs changed", "code changed", "failed")


class ComputedHandler(LanceTypeHandler):
    """`lance_dagster.computed.RowsToCompute`."""

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The columns that are set, and the row id by which rows are known."""
        computed = lance_core.computed_schema(self._name(value), value.inputs, value.columns)
        return pa.schema([pa.field("_rowid", pa.uint64()), *computed])

    def write(self, value: Any, request: WriteRequest) -> lance_core.WriteResult:
        """Compute the cells that are due, in as many commits as the asset asks for; a failed run is observed.

        Raises:
            Failure: The function failed on more rows than allowed, which a retry would not change; what
                was computed is committed.
        """
        dataset = reopen_base(request)
        failures_uri = below_root(request.table.root_uri, f"{FAILED_FOLDER}/{self._name(value)}.lance")
        begun, failure = time.monotonic(), None
        try:
            done = dataset.compute_columns(
                value.function,
                **self._arguments(value, request),
                failures_uri=failures_uri,
                attempt=value.attempt,
                progress=value.progress,
                cost_per_row=value.cost_per_row,
                executor=_executor(request) if value.engine == "spark" else None,
                transaction_properties=request.commit.properties,
                commit_message=request.commit.message,
                **value.options,
            )
        except FailedRowsError as error:
            done, failure = error.result, error
        state = self.arrow_schema(value).names[-1]
        is_failed = pc.field((state, "failed"))
        scope = is_failed if request.scope is None else is_failed & request.scope
        standing = dataset.count_rows(scope) if state in dataset.schema.names else 0
        entries: dict[str, Any] = {
            **describe_due_rows(done.rows_due, dataset),
            "lance/rows_failed": done.rows_failed,
            "lance/rows_failed_standing": standing,
            "lance/rows_staged_before": done.rows_staged_before,
            "lance/calls": done.calls,
            "lance/seconds": round(time.monotonic() - begun, 3),
        }
        if done.rows_failed or standing:
            entries["lance/failed_rows"] = failures_uri
        if value.cost_per_row is not None:
            entries["lance/cost"] = done.rows_called * value.cost_per_row
        if failure is not None:
            value.observe(entries)
            raise dg.Failure(str(failure), allow_retries=False) from failure
        result = lance_core.ColumnsResult(
            version=done.version,
            read_version=done.read_version,
            operation="Update" if done.commits else "",
            rows_updated=done.rows_computed,
            bytes_written=done.bytes_written,
        )
        written = columns_result(dataset, result, replace(request, commit=replace(request.commit, write_attempt=None)))
        return replace(written, entries=entries)

    def plan(self, value: Any, request: WriteRequest) -> dict[str, Any]:
        """The entries about the rows that `write` would compute, which nothing is called for."""
        dataset = reopen_base(request)
        due = dataset.count_due_rows(**self._arguments(value, request), retry_failed=value.options["retry_failed"])
        entries = describe_due_rows(due, dataset) | {"lance/staged": due.staged}
        if due.seconds is not None:
            entries["lance/expected_seconds"] = due.seconds
        if value.cost_per_row is not None:
            entries["lance/expected_cost"] = (due.total - due.staged) * due.calls_per_row * value.cost_per_row
        return entries

    def _arguments(self, value: Any, request: WriteRequest) -> dict[str, Any]:
        """The computation, and the rows that it looks at."""
        owner = {ASSET_KEY: request.commit.texts[ASSET_KEY]}
        columns = pa.schema([field.with_metadata({**(field.metadata or {}), **owner}) for field in value.columns])
        return {
            "inputs": value.inputs,
            "columns": columns,
            "name": self._name(value),
            "code_version": value.code_version,
            "where": request.scope,
        }

    def load(self, request: ReadRequest) -> Any:
        """Nothing is loaded as rows to compute.

        Raises:
            UnsupportedError: An input is annotated with the type.
        """
        raise UnsupportedError(f"an input of {request.dataset.uri} is annotated as RowsToCompute, which is an output")

    @staticmethod
    def _name(value: Any) -> str:
        return "/".join(value.asset.path)


def describe_due_rows(due: Mapping[str, int], dataset: lance_core.LanceDataset) -> dict[str, Any]:
    """The entries about rows that are due, with a number for each reason, which Dagster draws over time."""
    total = sum(due.values())
    return {
        "lance/rows_due": dg.MetadataValue.json(dict(due)),
        "lance/due": total,
        "lance/due_share": total / max(dataset.count_rows(), 1),
        **{f"lance/due_{reason.replace(' ', '_')}": due.get(reason, 0) for reason in _REASONS},
    }


def _executor(request: WriteRequest) -> Any:
    """Spark's executors, of the session of the IO manager."""
    import pyspark_lance  # noqa: PLC0415 - optional
    from lance_dagster.handlers.spark import session_of  # noqa: PLC0415 - optional

    return pyspark_lance.executor_of_calls(session_of(request.table))
