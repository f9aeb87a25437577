"""Which rows a replacement of slices takes away: whole fragments, and deletion vectors for those that it cuts.

Only the columns that tell the slices apart are read. A fragment that holds one slice is a constant page there, so that
looking at it costs little more than its footer.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap

from lance_core.api.read import physical_rows, read_fragment
from lance_core.api.removal import Removal, bitmap_of, each_fragment, remove_rows
from lance_core.api.slices import Slices
from lance_core.api.source import Source
from lance_core.api.staged import Staged
from lance_core.table.fragment import Fragment

__all__ = ["remove_slices"]


def remove_slices(source: Source, slices: Slices, files: Staged) -> Removal:
    """Find the rows of the slices and write the deletion files that hide those of cut fragments.

    Args:
        source: The version.
        slices: What goes.
        files: Takes note of the files that are written.

    Raises:
        SchemaError, InvalidInputError: The slices cannot be told apart in this dataset.
    """
    return remove_rows(source, each_fragment(source, lambda fragment: _rows_of(source, fragment, slices)), files)


def _rows_of(source: Source, fragment: Fragment, slices: Slices) -> BitMap:
    """The live rows of a fragment that lie in the slices."""
    num_rows = physical_rows(source, fragment)
    deletions = source.deletions(fragment)
    schema = source.manifest.schema.project(slices.columns)
    found, position = BitMap(), 0
    for batch in read_fragment(source, fragment, schema, range(num_rows)):
        found |= bitmap_of(np.flatnonzero(slices.assign(batch) >= 0) + position)
        position += batch.num_rows
    return found if deletions is None else found - deletions.bitmap
