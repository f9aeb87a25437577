"""Verbs that change columns, in a new version; the handle moves to it."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from lance_core.api.handle import Handle
from lance_core.api.schema_evolution import add_null_columns, fields_of

__all__ = ["EvolvingVerbs"]


class EvolvingVerbs(Handle):
    """What a dataset offers to change its columns. The handle moves to the version that was made."""

    def add_columns(self, transforms: pa.Field | pa.Schema | Iterable[pa.Field]) -> None:
        """Add columns that are null in all rows, in a new version; this handle moves to it.

        Raises:
            SchemaError: A column exists, or does not allow nulls.
            UnsupportedError: Columns with values are asked for.
        """
        self._manifest = add_null_columns(self.source, fields_of(transforms))
