"""The handler of Lance datasets: it writes the rows of a dataset, and loads a dataset at the pinned version.

A dataset allows what a frame does not: vector search, SQL by DuckDB or DataFusion, reading a few rows of many. It is
the whole table, whichever partitions the input maps to; the body of the asset selects rows and columns.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa

import lance_core
from lance_dagster.handlers.arrow_write import write_arrow
from lance_dagster.handlers.base import LanceTypeHandler, ReadRequest, WriteRequest


class LanceDatasetHandler(LanceTypeHandler):
    """`lance_core.LanceDataset`, and pylance's `lance.LanceDataset` if pylance is installed."""

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The schema of the dataset."""
        return value.schema

    def write(self, value: Any, request: WriteRequest) -> lance_core.WriteResult | None:
        """Write the rows of the version that the dataset is on."""
        if isinstance(value, lance_core.LanceDataset):
            reader = value.rows_to_write()
        else:
            reader = value.scanner(blob_handling="all_binary").to_reader()
        return write_arrow(reader, reader.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """The dataset at the pinned version.

        Raises:
            DagsterInvalidDefinitionError: The input's metadata selects columns or rows.
        """
        if request.columns is not None or request.filtered:
            raise dg.DagsterInvalidDefinitionError(
                f"an input of {request.dataset.uri} is a LanceDataset, the whole table, and has the metadata columns "
                "or lance/filter; select in the body of the asset, or annotate the input as a frame"
            )
        if request.load_as is None or issubclass(request.load_as, lance_core.LanceDataset):
            return request.dataset
        import lance  # noqa: PLC0415 - optional; the annotation has imported it

        options = request.table.options
        return lance.dataset(request.dataset.uri, version=request.dataset.version, storage_options=options)
