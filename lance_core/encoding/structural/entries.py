"""Finding the entries of full-zip pages with lists: each entry tells where the next one begins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lance_core.encoding.compression.chunks import Counts
from lance_core.encoding.page import Bytes
from lance_core.errors import CorruptFileError

__all__ = ["find_entries"]


def find_entries(data: Bytes, row_starts: Counts, row_ends: Counts, sizes_at: Callable[[Counts], Counts]) -> Counts:
    """Where every entry of some rows begins, in ascending order.

    All rows are walked side by side: the first entries of all rows, then the second ones, and so on, each step being
    a few array operations. Rows that are much longer than the others are few, and their rest costs a step per entry.

    Args:
        data: The page's bytes.
        row_starts: Where each row begins; a row has at least one entry.
        row_ends: Where it ends.
        sizes_at: Sizes of the entries at some positions, at least 1 each.

    Raises:
        CorruptFileError: Entries do not end where their row ends.
    """
    found = [row_starts]
    at, ends = row_starts, row_ends
    if row_starts.size and bool((row_starts >= row_ends).any()):
        raise CorruptFileError("a row has no entry")
    while at.size:
        at = at + sizes_at(at)
        if bool((at > ends).any()):
            raise CorruptFileError("an entry ends after its row")
        going_on = at < ends
        at, ends = at[going_on], ends[going_on]
        found.append(at)
    del data
    return np.sort(np.concatenate(found)) if len(found) > 1 else row_starts
