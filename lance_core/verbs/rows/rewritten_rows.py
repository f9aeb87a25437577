"""Follow rows through a Rewrite: the live rows of a group's old fragments are the rows of its new fragments, in order.

old fragments   2: live 0 1 3    3: live 0 2        the rows 2/3 and 3/2
rank            0 1 2            3 4                the ranks 2 and 4
new fragments   9: rows 0 1 2 3      10: row 0      the rows 9/2 and 10/0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyroaring import BitMap

from lance_core.row_addresses import bitmap_of, offsets_of
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import RewriteGroup


def rewritten_rows(live: Sequence[BitMap], rows: Sequence[BitMap], sizes: Sequence[int]) -> list[BitMap] | None:
    """Find rows of a group's old fragments in its new ones.

    Args:
        live: The offsets of the live rows of each old fragment.
        rows: The offsets of the rows to find in each old fragment; deleted rows among them are skipped.
        sizes: The number of rows of each new fragment.

    Returns:
        The offsets of the rows in each new fragment; None if the new fragments do not have one row for each live row.
    """
    ends = np.cumsum([0, *sizes])
    starts = np.cumsum([0, *map(len, live)])
    if ends[-1] != starts[-1]:
        return None
    ranks = [
        np.searchsorted(offsets_of(alive), offsets_of(old_rows & alive)) + start
        for alive, old_rows, start in zip(live, rows, starts[:-1], strict=True)
    ]
    positions = np.concatenate(ranks) if ranks else np.empty(0, np.int64)
    parts = np.split(positions, np.searchsorted(positions, ends[1:-1]))
    return [bitmap_of(part - start) for part, start in zip(parts, ends[:-1], strict=False)]


def fragment_name(fragment: Fragment) -> str:
    """An identifier of a fragment in all versions: the name of its first data file, which is unique."""
    return fragment.files[0].path if fragment.files else f"fragment {fragment.id}"


def numbered_fragments(group: RewriteGroup, manifest: Manifest) -> list[Fragment] | None:
    """The new fragments of a group with the ids that they have in a version; None if the version lacks one of them."""
    by_name = {fragment_name(fragment): fragment for fragment in manifest.fragments}
    fragments = [by_name.get(fragment_name(fragment)) for fragment in group.new_fragments]
    return None if None in fragments else [fragment for fragment in fragments if fragment is not None]
