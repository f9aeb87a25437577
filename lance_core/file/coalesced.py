"""Several small data files read as one, so that their pages are decoded together.

Most of the cost of decoding a small page is independent of its bytes, so that columns of many small files are decoded
much faster together. Pages of 2.1 and 2.2 files refer to no other part of their file, so that concatenated files can be
read as one file:

    bytes    | file 0         | file 1   | file 2       |      file i begins at the sum of the earlier sizes
    column   | its pages of 0 | of 1     | of 2         |
    rows     | rows of 0      | of 1     | of 2         |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from lance_core.encoding.page import ByteRange, BytesLike, PageInfo
from lance_core.errors import InvalidInputError
from lance_core.file.metadata import ColumnList, ColumnPages, FileMetadata
from lance_core.file.reader import DataFileReader
from lance_core.schema import Schema
from lance_core.schema.field import is_any_blob


def can_coalesce(schema: Schema) -> bool:
    """Whether columns can be read from coalesced files.

    Blobs cannot, because their descriptors are positions in their own file; dictionaries cannot, because they would be
    merged.
    """
    fields = [field for field, _ in schema.walk()]
    return not any(is_any_blob(field) or field.logical_type.startswith("dict:") for field in fields)


def coalesce(readers: Sequence[DataFileReader]) -> DataFileReader:
    """A reader of the rows of several files, in order.

    Args:
        readers: The files, of one version from 2.1 on, with the same columns.

    Raises:
        InvalidInputError: The files differ in version or number of columns, or are older than 2.1.
    """
    metadata = [reader.metadata for reader in readers]
    first = metadata[0]
    if not first.version.has_levels or {(m.version, len(m.columns)) for m in metadata} != {
        (first.version, len(first.columns))
    }:
        raise InvalidInputError(
            "files of different versions or numbers of columns, or older than 2.1, cannot be coalesced"
        )
    starts = [0, *accumulate(part.size_bytes for part in metadata)]
    columns = ColumnList(
        len(first.columns), lambda index: _coalesce_pages([part.columns[index] for part in metadata], starts)
    )
    whole = FileMetadata(
        version=first.version,
        schema=first.schema,
        num_rows=sum(part.num_rows for part in metadata),
        size_bytes=starts[-1],
        columns=columns,
        global_buffers=(),
    )
    store: Any = _CoalescedStore(readers, starts)
    return DataFileReader(store, f"{len(readers)} files", whole)


def _coalesce_pages(parts: Sequence[ColumnPages], starts: Sequence[int]) -> ColumnPages:
    firsts = [0, *accumulate(len(part.messages) for part in parts)]
    return _CoalescedPages(
        messages=(),
        num_items=np.concatenate([part.num_items for part in parts]),
        size=starts[-1],
        column=parts[0].column,
        read=parts[0].read,
        parts=tuple(parts),
        firsts=tuple(firsts),
        starts=tuple(starts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CoalescedPages(ColumnPages):
    """The pages of a column in all the files.

    Attributes:
        parts: The pages of each file.
        firsts: Number of the first page of each file.
        starts: First byte of each file.
    """

    parts: tuple[ColumnPages, ...]
    firsts: tuple[int, ...]
    starts: tuple[int, ...]

    def page(self, index: int, first_row: int, num_rows: int, base: int = 0) -> PageInfo:
        """One page, as `ColumnPages.page`."""
        part = bisect_right(self.firsts, index) - 1
        return self.parts[part].page(index - self.firsts[part], first_row, num_rows, base + self.starts[part])


class _CoalescedStore:
    """A store with the one method that a reader with metadata calls: reading ranges of the coalesced files."""

    def __init__(self, readers: Sequence[DataFileReader], starts: Sequence[int]) -> None:
        self._readers = readers
        self._starts = starts

    def get_ranges(self, _key: str, ranges: Sequence[ByteRange]) -> Sequence[BytesLike]:
        """Read ranges, each within one file; the key is ignored."""
        by_file: dict[int, list[int]] = {}
        for position, (start, _) in enumerate(ranges):
            file = min(bisect_right(self._starts, start), len(self._readers)) - 1
            by_file.setdefault(file, []).append(position)
        pieces: list[BytesLike] = [b""] * len(ranges)
        for file, positions in by_file.items():
            base = self._starts[file]
            file_ranges = [(ranges[position][0] - base, ranges[position][1] - base) for position in positions]
            answers = self._readers[file].fetch(file_ranges)
            for position, answer in zip(positions, answers, strict=True):
                pieces[position] = answer
        return pieces
