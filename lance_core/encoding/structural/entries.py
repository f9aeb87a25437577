"""Finds the entries of full-zip pages: where each entry starts, by the form of the entries.

In pages with lists, or with values of varying width, an entry has to be read to find the start of the next one. The
docstring of `fullzip` shows the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from lance_core.encoding.compression.chunks import Counts
from lance_core.encoding.page import Bytes
from lance_core.encoding.repdef import Layer, Mask, slot_levels
from lance_core.errors import CorruptFileError

_FEW_ROWS: Final = 16
"""Up to this many rows are read one by one: a step of array operations takes as long as about twenty entries."""


def control_bytes(bits_rep: int, bits_def: int) -> int:
    """Bytes of a control word."""
    bits = bits_rep + bits_def
    if bits == 0:
        return 0
    return 1 if bits <= 8 else 2 if bits <= 16 else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryForm:
    """The form of the entries of a page."""

    layers: tuple[Layer, ...]
    bits_rep: int
    bits_def: int
    size: int
    """Bytes of a fixed width value, or of a length."""
    is_variable: bool

    @property
    def width(self) -> int:
        """Bytes of a control word."""
        return control_bytes(self.bits_rep, self.bits_def)

    @property
    def last_present(self) -> int:
        """The highest definition of an entry that has a value."""
        return 0 if self.is_variable else slot_levels(self.layers)


def find_entries(form: EntryForm, data: Bytes, row_starts: Counts, row_ends: Counts) -> Counts:
    """The start of every entry of some rows, in ascending order.

    Many rows are read in parallel: the first entries of all rows, then the second ones, and so on, each step with a
    few array operations. When few, longer rows are left, each of them is read to its end.

    Args:
        form: The form of the entries; they have a control word.
        data: The page's bytes.
        row_starts: The start of each row; a row has at least one entry.
        row_ends: The end of each row.

    Raises:
        CorruptFileError: Entries do not end where their row ends.
    """
    if row_starts.size and bool((row_starts >= row_ends).any()):
        raise CorruptFileError("a row has no entry")
    entry_starts = []
    at, ends = row_starts, row_ends
    while at.size > _FEW_ROWS:
        entry_starts.append(at)
        at = at + _read_sizes(form, data, at)
        if bool((at > ends).any()):
            raise CorruptFileError("an entry ends after its row")
        going_on = at < ends
        at, ends = at[going_on], ends[going_on]
    for start, end in zip(at.tolist(), ends.tolist(), strict=True):
        entry_starts.append(np.array(_walk(form, data.data, start, end), np.int64))
    return np.sort(np.concatenate(entry_starts)) if entry_starts else row_starts


def gather_integers(data: Bytes, starts: Counts, width: int) -> Counts:
    """The unsigned integers of `width` bytes at some positions.

    Raises:
        CorruptFileError: An integer ends after the data.
    """
    numbers = np.zeros(starts.size, np.int64)
    if starts.size and int(starts.max()) + width > data.size:
        raise CorruptFileError("an entry ends after the page")
    for byte in range(width):
        numbers |= data[starts + byte].astype(np.int64) << (8 * byte)
    return numbers


def _read_sizes(form: EntryForm, data: Bytes, starts: Counts) -> Counts:
    """Sizes of the entries that begin at `starts`, at least 1 each."""
    words = gather_integers(data, starts, form.width)
    present: Mask = words & ((1 << form.bits_def) - 1) <= form.last_present
    sizes = np.full(starts.size, form.width, np.int64)
    sizes[present] += form.size
    if form.is_variable:
        lengths = gather_integers(data, starts[present] + form.width, form.size)
        if lengths.size and (int(lengths.min()) < 0 or int(lengths.max()) > data.size):
            raise CorruptFileError("a value is longer than its page")
        sizes[present] += lengths
    return sizes


def _walk(form: EntryForm, data: memoryview, start: int, end: int) -> list[int]:
    """The starts of the entries of one row."""
    width, mask, last_present = form.width, (1 << form.bits_def) - 1, form.last_present
    entry_starts = []
    while start < end:
        entry_starts.append(start)
        value = start + width
        word = int.from_bytes(data[start:value], "little")
        if word & mask > last_present:
            start = value
        elif form.is_variable:
            start = value + form.size + int.from_bytes(data[value : value + form.size], "little")
        else:
            start = value + form.size
    if start > end:
        raise CorruptFileError("an entry ends after its row")
    return entry_starts
