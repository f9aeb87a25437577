"""pandas frames. The index is not a column: an index with a name is refused rather than lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_core import WriteResult
from lance_core.errors import SchemaError
from lance_dagster.handlers.arrow_write import write_arrow
from lance_dagster.handlers.base import LanceTypeHandler, ReadRequest, WriteRequest
from lance_dagster.handlers.pyarrow import read_table

if TYPE_CHECKING:
    import pandas as pd

    from lance_dagster.settings import TableSettings

__all__ = ["PandasHandler"]


class PandasHandler(LanceTypeHandler):
    """`pandas.DataFrame`."""

    def arrow_schema(self, value: pd.DataFrame) -> pa.Schema:
        """The Arrow types that pandas' columns become."""
        _refuse_unstorable(value)
        return pa.Schema.from_pandas(value, preserve_index=False).remove_metadata()

    def write(self, value: pd.DataFrame, request: WriteRequest) -> WriteResult | None:
        """Write it by way of Arrow."""
        _refuse_unstorable(value)
        table = pa.Table.from_pandas(value, preserve_index=False).replace_schema_metadata(None)
        return write_arrow([table], table.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """Load a frame with a new range index."""
        return read_table(request).to_pandas()

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:
        """A frame without rows."""
        del table, load_as
        return schema.empty_table().to_pandas()


def _refuse_unstorable(frame: pd.DataFrame) -> None:
    named = [name for name in frame.index.names if name is not None]
    if named:
        raise SchemaError(f"the index {named} would be lost; make it a column with reset_index()")
    for name in frame.columns:
        if not isinstance(name, str):
            raise SchemaError(f"column {name!r} has a name that is not a text")
