"""The handler of `RowsToCompute`: it computes the cells of the rows that are due, in the scope of the run."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import UnsupportedError
from lance_dagster.handlers.base import LanceTypeHandler, ReadRequest, WriteRequest
from lance_dagster.handlers.columns import columns_result, reopen_base
from lance_dagster.properties import ASSET_KEY
from lance_dagster.tables.location import below_root
from lance_dagster.tables.names import FAILED_FOLDER


class ComputedHandler(LanceTypeHandler):
    """`lance_dagster.computed.RowsToCompute`."""

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The columns that are set, and the row id by which rows are known."""
        return pa.schema(
            [
                pa.field("_rowid", pa.uint64()),
                *lance_core.computed_schema(self._name(value), value.inputs, value.columns),
            ]
        )

    def write(self, value: Any, request: WriteRequest) -> lance_core.WriteResult:
        """Compute the cells that are due, in as many commits as the asset asks for.

        Raises:
            FailedRowsError: The function failed on more rows than allowed; the others are committed.
        """
        dataset = reopen_base(request)
        owner = {ASSET_KEY: request.commit.texts[ASSET_KEY]}
        columns = pa.schema([field.with_metadata({**(field.metadata or {}), **owner}) for field in value.columns])
        begun = time.monotonic()
        done = dataset.compute_columns(
            value.function,
            inputs=value.inputs,
            columns=columns,
            name=self._name(value),
            code_version=value.code_version,
            where=request.scope,
            failures_uri=below_root(request.table.root_uri, f"{FAILED_FOLDER}/{self._name(value)}.lance"),
            attempt=value.attempt,
            progress=value.progress,
            transaction_properties=request.commit.properties,
            commit_message=request.commit.message,
            **value.options,
        )
        calls = done.rows_computed - done.rows_staged_before
        entries: dict[str, Any] = {
            "lance/rows_due": dg.MetadataValue.json(done.rows_due),
            "lance/due": sum(done.rows_due.values()),
            "lance/rows_failed": done.rows_failed,
            "lance/rows_staged_before": done.rows_staged_before,
            "lance/calls": done.calls,
            "lance/seconds": round(time.monotonic() - begun, 3),
        }
        if value.cost_per_row is not None:
            entries["lance/cost"] = calls * value.cost_per_row
        result = lance_core.ColumnsResult(
            version=done.version,
            read_version=done.read_version,
            operation="Update" if done.commits else "",
            rows_updated=done.rows_computed,
            bytes_written=done.bytes_written,
        )
        written = columns_result(dataset, result, replace(request, commit=replace(request.commit, write_attempt=None)))
        return replace(written, entries=entries)

    def load(self, request: ReadRequest) -> Any:
        """Nothing is loaded as rows to compute.

        Raises:
            UnsupportedError: An input is annotated with the type.
        """
        raise UnsupportedError(f"an input of {request.dataset.uri} is annotated as RowsToCompute, which is an output")

    @staticmethod
    def _name(value: Any) -> str:
        return "/".join(value.asset.path)
