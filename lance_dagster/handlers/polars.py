"""The handler of polars frames; a lazy frame is collected when it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.errors import SchemaError, UnsupportedError
from lance_core.extension_types import explain_polars_rejection, to_polars
from lance_dagster.handlers.base import WriteRequest
from lance_dagster.handlers.pyarrow import ArrowHandler

if TYPE_CHECKING:
    import polars as pl


class PolarsHandler(ArrowHandler):
    """`polars.DataFrame` and `polars.LazyFrame`."""

    def arrow_schema(self, value: pl.DataFrame | pl.LazyFrame) -> pa.Schema:
        """The Arrow types to which polars' columns are converted."""
        empty: pl.DataFrame = value.collect_schema().to_frame()
        return _to_arrow(empty).schema

    def check(self, value: pl.DataFrame | pl.LazyFrame, request: WriteRequest) -> bool:
        """Check a frame as an Arrow table; a lazy frame is not computed for the check."""
        import polars as pl

        return isinstance(value, pl.LazyFrame) or super().check(value, request)

    def to_arrow(self, value: pl.DataFrame | pl.LazyFrame) -> pa.Table:
        """The frame as an Arrow table; a lazy frame is collected."""
        return _to_arrow(value.lazy().collect())

    def from_arrow(self, table: pa.Table, load_as: type | None) -> pl.DataFrame | pl.LazyFrame:
        """A frame; a lazy frame of the rows if the input is annotated as one."""
        import polars as pl

        frame = to_polars(table)
        return frame.lazy() if load_as is not None and issubclass(load_as, pl.LazyFrame) else frame


def _to_arrow(frame: pl.DataFrame) -> pa.Table:
    """The frame as an Arrow table without string views, which Lance does not store."""
    import polars as pl

    reason = explain_polars_rejection(frame.schema.items())
    if reason is not None:
        raise SchemaError(reason)
    try:
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    except pa.ArrowInvalid as error:  # a type is nested deeper than Arrow's C interface allows
        raise UnsupportedError(f"the frame cannot be converted to an Arrow table: {error}") from error
