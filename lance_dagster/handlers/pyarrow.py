"""The handlers of pyarrow tables, record batches and readers; a reader is written and loaded as a stream.

pyarrow datasets and DuckDB relations have handlers here as well, and are written as streams of batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

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


Rows: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader


class ArrowHandler(LanceTypeHandler):
    """The base of handlers whose values are written as Arrow batches, and made from an Arrow table when loaded."""

    loads_changes = True

    @abstractmethod
    def to_arrow(self, value: Any) -> Rows:
        """The rows of a value; as a reader if they are not in memory, so that they are not checked before a write."""

    @abstractmethod
    def from_arrow(self, table: pa.Table, load_as: type | None) -> Any:
        """A value of the annotated class, or of the handler's usual one for None."""

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The schema of the rows."""
        return self.to_arrow(value).schema

    def check(self, value: Any, request: WriteRequest) -> bool:
        """Check rows that are in memory; a reader is not checked, because its batches come only once."""
        rows = self.to_arrow(value)
        return isinstance(rows, pa.RecordBatchReader) or check_arrow([rows], rows.schema, request)

    def write(self, value: Any, request: WriteRequest) -> WriteResult | None:
        """Write the rows; a reader is consumed batch by batch."""
        rows = self.to_arrow(value)
        return write_arrow(rows if isinstance(rows, pa.RecordBatchReader) else [rows], rows.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """Load the rows, and convert them."""
        return self.from_arrow(read_table(request), request.load_as)

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:
        """A value without rows."""
        del table
        return self.from_arrow(empty_table(schema), load_as)

    def split_changes(self, value: Any, key: Sequence[str]) -> tuple[LanceTypeHandler, Any, Any]:
        """The changed rows and the deleted keys as Arrow tables; a reader is consumed."""
        rows = self.to_arrow(value)
        table = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else pa.table(rows)
        return (PyArrowHandler(), *split_table(table, key))


class PyArrowHandler(ArrowHandler):
    """`pa.Table`, `pa.RecordBatch`, `pa.RecordBatchReader`."""

    def to_arrow(self, value: Rows) -> Rows:
        """The value itself."""
        return value

    def from_arrow(self, table: pa.Table, load_as: type | None) -> Any:
        """The table, or its rows as a reader or as one batch."""
        if load_as is not None and issubclass(load_as, pa.RecordBatchReader):
            return table.to_reader()
        if load_as is not None and issubclass(load_as, pa.RecordBatch):
            batches = table.combine_chunks().to_batches()
            arrays = [pa.nulls(0, kind) for kind in table.schema.types]
            return batches[0] if batches else pa.RecordBatch.from_arrays(arrays, schema=table.schema)
        return table

    def load(self, request: ReadRequest) -> Any:
        """Load a value of the annotated class; a reader reads as it is consumed."""
        is_stream = request.load_as is not None and issubclass(request.load_as, pa.RecordBatchReader)
        if is_stream and request.changes is None:
            return request.dataset.scanner(**request.scan).to_reader()
        return super().load(request)


class DatasetHandler(ArrowHandler):
    """`pyarrow.dataset.Dataset`: written batch by batch; loaded, it holds the rows in memory."""

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The schema of the dataset."""
        return value.schema

    def to_arrow(self, value: Any) -> Rows:
        """A scan of the dataset."""
        return value.scanner().to_reader()

    def check(self, value: Any, request: WriteRequest) -> bool:
        """Check the rows by a scan of the dataset."""
        return check_arrow(value.to_batches(), value.schema, request)

    def from_arrow(self, table: pa.Table, load_as: type | None) -> Any:
        """A dataset of the rows."""
        del load_as
        return pads.dataset(table)


class DuckDBHandler(ArrowHandler):
    """Relations of DuckDB: written batch by batch as they are computed; loaded, they hold the rows in memory."""

    def arrow_schema(self, value: Any) -> pa.Schema:
        """The columns, without computing the relation."""
        return _reader(value.limit(0)).schema

    def check(self, value: Any, request: WriteRequest) -> bool:
        """Check nothing: a relation is computed only once."""
        del value, request
        return True

    def to_arrow(self, value: Any) -> Rows:
        """The rows as they are computed."""
        return _reader(value)

    def from_arrow(self, table: pa.Table, load_as: type | None) -> Any:
        """A relation in DuckDB's default connection."""
        import duckdb

        del load_as
        return duckdb.from_arrow(table)


def _reader(relation: Any) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(relation)
    except pa.ArrowInvalid as error:  # a type is nested deeper than Arrow's C interface allows
        raise UnsupportedError(f"the relation cannot be converted to Arrow batches: {error}") from error


def read_table(request: ReadRequest) -> pa.Table:
    """The rows and columns of a read request as one Arrow table."""
    return read_changes(request) if request.changes is not None else request.dataset.to_table(**request.scan)
