"""pyarrow tables, record batches and readers; a reader is written and loaded as a stream."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lance_dagster.handlers.arrow_write import write_arrow
from lance_dagster.handlers.base import LanceTypeHandler, ReadRequest, WriteOutcome, WriteRequest

__all__ = ["PyArrowHandler", "read_table"]


class PyArrowHandler(LanceTypeHandler):
    """`pa.Table`, `pa.RecordBatch`, `pa.RecordBatchReader`."""

    def arrow_schema(self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> pa.Schema:
        """The value's own."""
        return value.schema

    def write(
        self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader, request: WriteRequest
    ) -> WriteOutcome | None:
        """Write it; a reader is consumed batch by batch."""
        batches = value if isinstance(value, pa.RecordBatchReader) else [value]
        return write_arrow(batches, value.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """Load a table, or what the annotation names."""
        if request.load_as is not None and issubclass(request.load_as, pa.RecordBatchReader):
            return request.dataset.scanner(columns=request.columns, filter=request.filter).to_reader()
        table = read_table(request)
        if request.load_as is not None and issubclass(request.load_as, pa.RecordBatch):
            batches = table.combine_chunks().to_batches()
            return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
        return table


def read_table(request: ReadRequest) -> pa.Table:
    """The rows and columns of a read request as one Arrow table."""
    return request.dataset.to_table(columns=request.columns, filter=request.filter)
