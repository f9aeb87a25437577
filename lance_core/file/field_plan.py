"""Plans the reading of 2.0 files: one whole top-level field at a time, in tasks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding
from lance_core.encoding.page import RowRuns
from lance_core.encoding.v2_0.fields import PlainColumn, read_field
from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.file.column import PageTask
from lance_core.file.metadata import ColumnPages
from lance_core.schema import Field
from lance_core.schema.field import plain_columns

_TASK_BYTES: Final = 4 * 1024 * 1024
_MAX_ROWS: Final = 1024 * 1024
_STRINGS: Final = ("string", "large_string", "binary", "large_binary")


class FieldPlan:
    """The plan for reading wanted rows of one top-level field of a 2.0 file.

    Args:
        key: The file, for messages.
        field: The field.
        file_columns: All columns of the file.
        indices: Field ids and their columns.
        num_rows: Rows in the file.

    Raises:
        InvalidInputError: A field is not in the file.
        CorruptFileError: The pages have more or fewer rows than the file.
    """

    def __init__(
        self, key: str, field: Field, file_columns: Sequence[ColumnPages], indices: Mapping[int, int], num_rows: int
    ) -> None:
        self._where = f"{key}: column {field.name!r}"
        self._field = field
        self._num_rows = num_rows
        self._columns: dict[int, PlainColumn] = {}
        self._num_bytes = 0
        for part in plain_columns(field):
            index = indices.get(part.id)
            if index is None or not 0 <= index < len(file_columns):
                raise InvalidInputError(f"{key}: column {part.name!r} (field {part.id}) is not in the file")
            column = _plain_column(file_columns[index])
            used = [file_columns[index]]
            if part.logical_type in _STRINGS and _holds_lists(column) and index + 1 < len(file_columns):
                column = replace(column, bytes_column=_plain_column(file_columns[index + 1]))
                used.append(file_columns[index + 1])
            self._columns[part.id] = column
            self._num_bytes += sum(sum(page.buffer_sizes) for pages in used for page in pages.messages)
        self._bounds = self._columns[field.id].bounds
        if int(self._bounds[-1]) != num_rows:
            raise CorruptFileError(
                f"column {field.name!r}: pages of {int(self._bounds[-1])} rows in a file of {num_rows}"
            )

    def tasks(self, runs: RowRuns) -> Iterator[PageTask]:
        """Tasks of about equal size: each reads a page of the field, a part of a page, or several small pages."""
        if not runs.count:
            return
        per_row = self._num_bytes / max(self._num_rows, 1)
        step = int(min(_MAX_ROWS, max(1024, _TASK_BYTES / max(per_row, 0.001))))
        pending: list[RowRuns] = []
        for start, end in self._row_windows(step):
            part = runs.clip(start, end)
            if not part.count:
                continue
            pending.append(part)
            if sum(p.count for p in pending) >= step // 2:
                yield self._make_task(pending, per_row)
                pending = []
        if pending:
            yield self._make_task(pending, per_row)

    def _row_windows(self, step: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows that end where pages end, none longer than `step`."""
        for start, end in zip(self._bounds[:-1].tolist(), self._bounds[1:].tolist(), strict=True):
            for first in range(start, end, step):
                yield first, min(first + step, end)

    def _make_task(self, parts: list[RowRuns], per_row: float) -> PageTask:
        rows = RowRuns(
            starts=np.concatenate([part.starts for part in parts]), ends=np.concatenate([part.ends for part in parts])
        )
        where = f"{self._where}, rows {int(rows.starts[0])} to {int(rows.ends[-1])}"
        steps = read_field(self._field, self._columns, rows)
        return PageTask(where, steps, rows.count, int(rows.count * per_row) + 1, is_whole=rows.is_one_run)


def _plain_column(pages: ColumnPages) -> PlainColumn:
    bounds = np.zeros(pages.num_items.size + 1, np.int64)
    np.cumsum(pages.num_items, out=bounds[1:])
    return PlainColumn(pages=pages, bounds=bounds, is_blob=pages.column.WhichOneof("column_encoding") == "blob")


def _holds_lists(column: PlainColumn) -> bool:
    """Whether a column is described as lists; all its pages have the same form."""
    if column.bounds.size == 1:
        return False
    encoding = column.pages.page(0, 0, int(column.bounds[1])).encoding
    return isinstance(encoding, ArrayEncoding) and encoding.WhichOneof("array_encoding") == "list"
