"""Which rows a replacement of slices takes away: whole fragments, and deletion vectors for those that it cuts.

Only the columns that tell the slices apart are read. A fragment that holds one slice is a constant page there, so that
looking at it costs little more than its footer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from pyroaring import BitMap

from lance_core.api.read import physical_rows, read_fragment
from lance_core.api.slices import Slices
from lance_core.api.source import Source
from lance_core.table.deletion import DeletionFile, DeletionVector, new_deletion_file_id
from lance_core.table.fragment import Fragment

__all__ = ["Removal", "remove_slices"]

READ_AHEAD: Final = 8
"""Fragments that are looked at side by side: each costs a round trip on object storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Rows that go.

    Attributes:
        removed_fragment_ids: Fragments none of whose rows is left.
        updated_fragments: Fragments with a new deletion file, which is written.
        affected_rows: Offsets of the rows that go, by fragment id.
        deletion_keys: Keys of the deletion files that were written.
    """

    removed_fragment_ids: tuple[int, ...]
    updated_fragments: tuple[Fragment, ...]
    affected_rows: Mapping[int, BitMap]
    deletion_keys: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        """How many rows go."""
        return sum(len(rows) for rows in self.affected_rows.values())


def remove_slices(source: Source, slices: Slices) -> Removal:
    """Find the rows of the slices and write the deletion files that hide those of cut fragments.

    Raises:
        SchemaError, InvalidInputError: The slices cannot be told apart in this dataset.
    """
    removed, updated, affected, keys = [], [], {}, []
    for fragment, live, gone in _affected(source, slices):
        affected[fragment.id] = gone
        if gone == live:
            removed.append(fragment.id)
        else:
            hidden = (source.deletions(fragment) or DeletionVector()) | gone
            file = _write_deletions(source, fragment, hidden)
            keys.append(file.key(fragment.id))
            updated.append(replace(fragment, deletion_file=file))
    return Removal(
        removed_fragment_ids=tuple(removed),
        updated_fragments=tuple(updated),
        affected_rows=affected,
        deletion_keys=tuple(keys),
    )


def _affected(source: Source, slices: Slices) -> Iterable[tuple[Fragment, BitMap, BitMap]]:
    """Fragments that lose rows, each with its live rows and those that go."""
    fragments = list(source.manifest.fragments)
    with ThreadPoolExecutor(READ_AHEAD) as pool:
        for fragment, (live, gone) in zip(
            fragments, pool.map(lambda one: _rows_of(source, one, slices), fragments), strict=True
        ):
            if gone:
                yield fragment, live, gone


def _rows_of(source: Source, fragment: Fragment, slices: Slices) -> tuple[BitMap, BitMap]:
    """The live rows of a fragment, and those of them that lie in the slices."""
    num_rows = physical_rows(source, fragment)
    deletions = source.deletions(fragment)
    live = BitMap(range(num_rows))
    if deletions is not None:
        live -= deletions.bitmap
    schema = source.manifest.schema.project(slices.columns)
    found, position = BitMap(), 0
    for batch in read_fragment(source, fragment, schema, range(num_rows)):
        found |= BitMap((np.flatnonzero(slices.assign(batch) >= 0) + position).astype(np.uint32))
        position += batch.num_rows
    return live, found & live


def _write_deletions(source: Source, fragment: Fragment, hidden: DeletionVector) -> DeletionFile:
    data, kind = hidden.to_bytes()
    file = DeletionFile(
        file_type=kind,
        read_version=source.manifest.version,
        id=new_deletion_file_id(),
        num_deleted_rows=len(hidden),
    )
    source.store.put(file.key(fragment.id), data)
    return file
