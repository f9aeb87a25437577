"""The fragments that a task reads: their live rows, and the pages of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from lance_core.file.copy import PageSource
from lance_core.file.reader import DataFileReader
from lance_core.store import ObjectStore
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.scan.read_fragment import Opened, opened_reader, physical_rows

__all__ = ["SourceFragment", "cut", "open_fragment", "open_pages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFragment:
    """A fragment to read.

    Attributes:
        record: The fragment.
        num_rows: Rows in its files.
        live: Whether each of them is still there; None if all are.
        opened: Its files that are open, so that each is opened once.
    """

    record: Fragment
    num_rows: int
    live: npt.NDArray[np.bool_] | None
    opened: Opened = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_live(self) -> int:
        """Rows that are still there."""
        return self.num_rows if self.live is None else int(np.count_nonzero(self.live))

    def kept(self, numbers: U64Array) -> U64Array:
        """The numbers of the live rows, out of one for each row."""
        return numbers if self.live is None else numbers[self.live]


def open_fragment(source: Snapshot, record: Fragment) -> SourceFragment:
    """Look up which rows of a fragment are live."""
    num_rows = physical_rows(source, record)
    deletions = source.deletions(record)
    live = None if deletions is None else deletions.live_rows(num_rows)
    return SourceFragment(record=record, num_rows=num_rows, live=None if live is None or live.all() else live)


def open_pages(source: Snapshot, fragment: SourceFragment) -> PageSource:
    """Open the files of a fragment, to copy their pages; a later file wins over an earlier one."""
    columns: dict[int, tuple[ObjectStore, str, DataFileReader, int]] = {}
    for file in reversed(fragment.record.files):
        store, key = source.data_file(file)
        reader = opened_reader(source, file, fragment.opened)
        for field_id, column in file.columns():
            if field_id >= 0:
                columns.setdefault(field_id, (store, key, reader, column))
    return PageSource(num_rows=fragment.num_rows, keep=fragment.live, columns=columns)


def cut(sources: Sequence[PageSource], rows_per_file: int) -> Iterator[list[PageSource]]:
    """Share rows out to files of so many rows each: the sources of each file, with just its rows kept."""
    current: list[PageSource] = []
    room = rows_per_file
    for source in sources:
        start, left = 0, source.num_kept
        while left:
            count = min(room, left)
            current.append(_part(source, start, start + count))
            start, left, room = start + count, left - count, room - count
            if not room:
                yield current
                current, room = [], rows_per_file
    if current:
        yield current


def _part(source: PageSource, start: int, end: int) -> PageSource:
    """The rows from `start` to `end`, counted among those that are kept."""
    if start == 0 and end == source.num_kept:
        return source
    kept = np.arange(source.num_rows) if source.keep is None else np.flatnonzero(source.keep)
    keep = np.zeros(source.num_rows, np.bool_)
    keep[kept[start:end]] = True
    return replace(source, keep=keep)
