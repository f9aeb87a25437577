"""Write rows into new fragments, each of which holds only rows of one slice, such as a partition.

batch --assign--> slice of each row --> one FragmentWriter per slice, several of them open at a time

Tasks of Spark and the Arrow handler of Dagster use it; `write_dataset` itself keeps one writer per file.

The plan of a file is computed from the schema once for all writers. The thread that writes encodes one file after the
other; the files are uploaded in parallel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.store import PendingWrites
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.uncommitted_files import remove_files
from lance_core.verbs.files.fragment_writer import FragmentWriter
from lance_core.verbs.pylance_types.fragments import FragmentMetadata

FINISHING_AT_A_TIME: Final = 8
"""The most files that are uploaded in parallel."""


class SliceWriter:
    """Writes each row with the `FragmentWriter` of its slice; nothing is committed.

    Args:
        new_writer: Makes the writer of a slice when its first row comes.
        assign: Gives the position of each row's slice, as `Slices.assign` does; None for one writer of all rows.
        max_open: Most slices that are written to at once; the least recently used one is finished first. None: no
            limit.
    """

    def __init__(
        self,
        new_writer: Callable[[], FragmentWriter],
        assign: Callable[[pa.RecordBatch | pa.Table], npt.NDArray[np.integer[Any]]] | None = None,
        *,
        max_open: int | None = None,
    ) -> None:
        self.rows: dict[int, int] = {}
        """Rows written, by position of their slice: -1 for rows in no slice; 0 for all rows if there are no slices."""
        self._new_writer = new_writer
        self._assign = assign
        self._max_open = max_open
        self._open: OrderedDict[int, FragmentWriter] = OrderedDict()
        self._writers: list[FragmentWriter] = []
        self._pending = PendingWrites()
        self._fragments: list[Fragment] = []
        self._template: FragmentWriter | None = None

    @property
    def num_rows(self) -> int:
        """Rows written so far."""
        return sum(self.rows.values())

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Write rows.

        Raises:
            SchemaError: The rows do not fit the schema, or lack a column of the slices.
            InvalidInputError: `assign` rejects a row.
        """
        if self._assign is None:
            self._write_to(0, batch)
            return
        for position, part in _split_rows(batch, self._assign(batch)):
            self._write_to(position, part)

    def finish(self) -> list[FragmentMetadata]:
        """Close all files, wait until they are durable, and return the fragments."""
        for position in list(self._open):
            self._finish(position)
        self._pending.wait()
        return [FragmentMetadata.from_record(record) for record in self._fragments]

    def discard(self) -> None:
        """Delete all files that were written; while an interruption is handled, for a short time only."""
        self._pending.stop()
        remove_files([file for writer in self._writers for file in writer.abandon()])

    def _write_to(self, position: int, part: pa.RecordBatch | pa.Table) -> None:
        if not part.num_rows:
            return
        writer = self._open.get(position)
        if writer is None:
            if self._max_open is not None and len(self._open) >= self._max_open:
                self._finish(next(iter(self._open)))
            if self._template is None:
                self._template = self._new_writer()
            writer = self._open[position] = self._template.another()
            self._writers.append(writer)
        self._open.move_to_end(position)
        # The bytes of a file are counted between batches.
        for batch in part.to_batches() if isinstance(part, pa.Table) else [part]:
            writer.write(batch)
        self.rows[position] = self.rows.get(position, 0) + part.num_rows

    def _finish(self, position: int) -> None:
        self._fragments += self._open.pop(position).finish_records(self._pending, requests=True)
        self._pending.wait(FINISHING_AT_A_TIME)


def _split_rows(batch: Any, positions: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of each slice in their order; rows are copied only if the slices are mixed.

    Args:
        batch: The rows.
        positions: The position of each row's slice.
    """
    if not len(positions):
        return
    starts = _run_starts(positions)
    if len(starts) > len(np.unique(positions)):
        order = np.argsort(positions, kind="stable")
        batch, positions = batch.take(pa.array(order)), positions[order]
        starts = _run_starts(positions)
    for start, end in zip(starts, [*starts[1:], len(positions)], strict=True):
        yield int(positions[start]), batch.slice(start, end - start)


def _run_starts(positions: npt.NDArray[np.integer[Any]]) -> list[int]:
    """The rows at which the position differs from that of the row before."""
    starts: list[int] = np.flatnonzero(np.diff(positions, prepend=positions[0] - 1)).tolist()
    return starts
