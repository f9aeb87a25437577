"""Row columns: no data file stores them, but scans can return them and filters can use them.

_rowid                        stable row id where the dataset has them, else the row address
_rowaddr                      fragment id << 32 | row offset in the fragment
_rowoffset                    position among the live rows of the dataset, from 0
_row_created_at_version       version in which the row was added
_row_last_updated_at_version  version in which the row was last changed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import CorruptFileError
from lance_core.row_addresses import row_addresses
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array, decode_row_ids, decode_versions
from lance_core.verbs.scan.read_fragment import Rows

__all__ = [
    "CREATED_AT",
    "ROW_ADDRESS",
    "ROW_COLUMNS",
    "ROW_ID",
    "ROW_OFFSET",
    "UPDATED_AT",
    "RowColumns",
    "row_field",
    "rows_at",
    "with_row_columns",
]

ROW_ID: Final = "_rowid"
ROW_ADDRESS: Final = "_rowaddr"
ROW_OFFSET: Final = "_rowoffset"
CREATED_AT: Final = "_row_created_at_version"
UPDATED_AT: Final = "_row_last_updated_at_version"

ROW_COLUMNS: Final = (ROW_ID, ROW_ADDRESS, ROW_OFFSET, CREATED_AT, UPDATED_AT)

_FIRST_VERSION: Final = 1
"""The version of all rows in a dataset that does not record the versions of rows."""


def row_field(name: str) -> pa.Field:
    """The Arrow field of one of `ROW_COLUMNS`."""
    return pa.field(name, pa.uint64())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """The row columns of one fragment.

    Attributes:
        fragment: The fragment.
        names: The wanted row columns, in order.
        num_rows: Physical rows of the fragment.
        live: Which physical rows are alive; None for all.
        rows_before: Live rows of the dataset before this fragment.
    """

    fragment: Fragment
    names: Sequence[str]
    num_rows: int
    live: npt.NDArray[np.bool_] | None
    rows_before: int

    def values(self) -> Sequence[tuple[str, Callable[[Rows], U64Array]]]:
        """Each name with a function that returns the values for some physical rows."""
        return [(name, self._column(name)) for name in self.names]

    def _column(self, name: str) -> Callable[[Rows], U64Array]:
        if name == ROW_OFFSET:
            return self._offsets()
        stored = {
            ROW_ID: (self.fragment.row_ids, decode_row_ids),
            CREATED_AT: (self.fragment.created_at_versions, decode_versions),
            UPDATED_AT: (self.fragment.last_updated_at_versions, decode_versions),
        }
        data, decode = stored.get(name, (None, decode_row_ids))
        if data is not None:
            # Datasets with these columns always record the number of rows.
            num_rows = self.fragment.physical_rows
            numbers = decode(data, num_rows)
            if len(numbers) != num_rows:
                raise CorruptFileError(
                    f"fragment {self.fragment.id}: has {name} for {len(numbers)} rows, the manifest says {num_rows}"
                )
            return lambda rows: numbers[_as_selection(rows)]
        if name in (CREATED_AT, UPDATED_AT):
            return lambda rows: np.full(len(rows), _FIRST_VERSION, np.uint64)
        return self._addresses

    def _addresses(self, rows: Rows) -> U64Array:
        where = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
        return row_addresses(self.fragment.id, where)

    def _offsets(self) -> Callable[[Rows], U64Array]:
        alive = np.ones(self.num_rows, np.bool_) if self.live is None else self.live
        # The position of a deleted row is the number of live rows before it.
        positions = (np.cumsum(alive) - alive + self.rows_before).astype(np.uint64)
        return lambda rows: positions[_as_selection(rows)]


def with_row_columns(
    batch: pa.RecordBatch,
    added: Sequence[tuple[str, Callable[[Rows], U64Array]]],
    where: Rows,
    live: npt.NDArray[np.bool_] | None,
) -> pa.RecordBatch:
    """The batch with row columns; if `live` is given, ids and addresses of deleted rows are null."""
    if not added:
        return batch
    columns, fields = list(batch.columns), list(batch.schema)
    for name, values in added:
        dead = ~rows_at(live, where) if live is not None and name in (ROW_ID, ROW_ADDRESS) else None
        columns.append(pa.array(values(where), pa.uint64(), mask=dead))
        fields.append(row_field(name))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))


def rows_at(mask: npt.NDArray[np.bool_], where: Rows) -> npt.NDArray[np.bool_]:
    """The entries of a mask of all physical rows for some rows."""
    return mask[_as_selection(where)]


def _as_selection(rows: Rows) -> slice | npt.NDArray[np.int64]:
    return slice(rows.start, rows.stop) if isinstance(rows, range) else rows
