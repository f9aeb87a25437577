"""The handler of polars frames; a lazy frame is collected when it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_core import WriteResult
from lance_core.errors import UnsupportedError
from lance_core.extension_types import empty_table
from lance_dagster.handlers.arrow_write import check_arrow, write_arrow
from lance_dagster.handlers.base import LanceTypeHandler, ReadRequest, WriteRequest
from lance_dagster.handlers.pyarrow import PyArrowHandler, read_table

if TYPE_CHECKING:
    import polars as pl

    from lance_dagster.tables.settings import TableSettings


class PolarsHandler(LanceTypeHandler):
    """`polars.DataFrame` and `polars.LazyFrame`."""

    loads_changes = True

    def split_changes(
        self, value: pl.DataFrame | pl.LazyFrame, key: Sequence[str]
    ) -> tuple[LanceTypeHandler, Any, Any]:
        """The changed rows and the deleted keys as Arrow tables; a lazy frame is collected."""
        return PyArrowHandler().split_changes(_to_arrow(value.lazy().collect()), key)

    def arrow_schema(self, value: pl.DataFrame | pl.LazyFrame) -> pa.Schema:
        """The Arrow types to which polars' columns are converted."""
        empty: pl.DataFrame = value.collect_schema().to_frame()
        return _to_arrow(empty).schema

    def check(self, value: pl.DataFrame | pl.LazyFrame, request: WriteRequest) -> bool:
        """Check a frame as an Arrow table; a lazy frame is not computed for the check."""
        import polars as pl

        if isinstance(value, pl.LazyFrame):
            return True
        table = _to_arrow(value)
        return check_arrow([table], table.schema, request)

    def write(self, value: pl.DataFrame | pl.LazyFrame, request: WriteRequest) -> WriteResult | None:
        """Write the frame as an Arrow table; a lazy frame is collected."""
        table = _to_arrow(value.lazy().collect())
        return write_arrow([table], table.schema, request)

    def load(self, request: ReadRequest) -> Any:
        """Load a frame; a lazy frame of the loaded rows if the input is annotated as one."""
        return _from_arrow(read_table(request), request.load_as)

    def empty(self, schema: pa.Schema, table: TableSettings, load_as: type | None) -> Any:
        """A frame without rows."""
        del table
        return _from_arrow(empty_table(schema), load_as)


def _from_arrow(table: pa.Table, load_as: type | None) -> pl.DataFrame | pl.LazyFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    lazy = load_as is not None and issubclass(load_as, pl.LazyFrame)
    return frame.lazy() if lazy else frame


def _to_arrow(frame: pl.DataFrame) -> pa.Table:
    """The frame as an Arrow table without string views, which Lance does not store."""
    import polars as pl

    try:
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    except pa.ArrowInvalid as error:  # a type is nested deeper than Arrow's C interface allows
        raise UnsupportedError(f"the frame cannot be converted to an Arrow table: {error}") from error
