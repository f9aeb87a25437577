"""The handlers of pyarrow tables, record batches and readers; a reader is written and loaded as a stream.

pyarrow datasets and DuckDB relations have handlers here as well, and are written as streams of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads

from lance_core import WriteResult
from lance_core.errors import UnsupportedError
from lance_core.extension_types import empty_table
from lance_dagster.handlers.arrow_write import check_arrow, write_arrow
from lance_dagster.handlers.base import LanceTypeHandler, ReadRequest, WriteRequest
from lance_dagster.handlers.changes import read_changes, split_table

if TYPE_CHECKING:
    from lance_dagster.tables.settings import TableSettings


class PyArrowHandler(LanceTypeHandler):
    """`pa.Table`, `pa.RecordBatch`, `pa.RecordBatchReader`."""

    loads_changes = True

    def arrow_schema(self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> pa.Schema:
        """The schema of the value."""
        return value.schema

    def check(self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader, request: WriteRequest) -> bool:
        """Check tables and batches; a reader is not checked, because its batches come only once."""
        return isinstance(value, pa.RecordBatchReader) or check_arrow([value], value.schema, request)

    def write(
        self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader, request: WriteRequest
    ) -> WriteResult | None:
        """Write the value; a reader is consumed batch by batch."""
        batches = value if isinstance(value, pa.RecordBatchReader) else [value]
        return write_arrow(batches, value.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """Load a table, or a value of the annotated class."""
        if request.load_as is not None and issubclass(request.load_as, pa.RecordBatchReader):
            if request.changes is not None:
                return read_table(request).to_reader()
            return request.dataset.scanner(**request.scan).to_reader()
        return _as_wanted(read_table(request), request.load_as)

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:
        """A table without rows, or a value of the annotated class."""
        del table
        empty = empty_table(schema)
        if load_as is not None and issubclass(load_as, pa.RecordBatchReader):
            return empty.to_reader()
        return _as_wanted(empty, load_as)

    def split_changes(self, value: Any, key: Sequence[str]) -> tuple[LanceTypeHandler, Any, Any]:
        """The changed rows and the deleted keys as tables; a reader is consumed."""
        table = value.read_all() if isinstance(value, pa.RecordBatchReader) else pa.table(value)
        return (self, *split_table(table, key))


class DatasetHandler(LanceTypeHandler):
    """`pyarrow.dataset.Dataset`: written batch by batch; loaded, it holds the rows in memory."""

    loads_changes = True

    def split_changes(self, value: Any, key: Sequence[str]) -> tuple[LanceTypeHandler, Any, Any]:
        """The changed rows and the deleted keys as tables."""
        return PyArrowHandler().split_changes(value.to_table(), key)

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The schema of the dataset."""
        return value.schema

    def check(self, value: Any, request: WriteRequest) -> bool:
        """Check the rows by a scan of the dataset."""
        return check_arrow(value.to_batches(), value.schema, request)

    def write(self, value: Any, request: WriteRequest) -> WriteResult | None:
        """Write the rows as they are scanned."""
        return write_arrow(value.to_batches(), value.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """Load the rows."""
        return _in_memory(read_table(request))

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:
        """A dataset without rows."""
        del table, load_as
        return _in_memory(empty_table(schema))


class DuckDBHandler(LanceTypeHandler):
    """Relations of DuckDB: written batch by batch as they are computed; loaded, they hold the rows in memory."""

    loads_changes = True

    def split_changes(self, value: Any, key: Sequence[str]) -> tuple[LanceTypeHandler, Any, Any]:
        """The changed rows and the deleted keys as tables."""
        return PyArrowHandler().split_changes(_reader(value), key)

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The columns, without computing the relation."""
        return _reader(value.limit(0)).schema

    def write(self, value: Any, request: WriteRequest) -> WriteResult | None:
        """Write the rows as they are computed."""
        reader = _reader(value)
        return write_arrow(reader, reader.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """Load the rows into DuckDB's default connection."""
        return _relation(read_table(request))

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:
        """A relation without rows."""
        del table, load_as
        return _relation(empty_table(schema))


def _reader(relation: Any) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(relation)
    except pa.ArrowInvalid as error:  # a type is nested deeper than Arrow's C interface allows
        raise UnsupportedError(f"the relation cannot be converted to Arrow batches: {error}") from error


def _as_wanted(table: pa.Table, load_as: type | None) -> pa.Table | pa.RecordBatch:
    if load_as is not None and issubclass(load_as, pa.RecordBatch):
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else _empty_batch(table.schema)
    return table


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def _in_memory(table: pa.Table) -> Any:
    return pads.dataset(table)


def _relation(table: pa.Table) -> Any:
    import duckdb

    return duckdb.from_arrow(table)


def read_table(request: ReadRequest) -> pa.Table:
    """The rows and columns of a read request as one Arrow table."""
    return read_changes(request) if request.changes is not None else request.dataset.to_table(**request.scan)
