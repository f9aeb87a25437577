"""Compare the rows of two versions by their manifests and deletion files: no data file is read.

    stable row ids   inserted   only the later version has the id
                     deleted    only the earlier version has the id
                     updated    both have the id, with different `_row_last_updated_at_version`, or in a fragment with
                                other columns of the same names, or with restored columns
    without          the same, with the first address of each row as its id (`row_moves`); updates raise an error

Fragments that both versions record in the same bytes are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lance_core.errors import CorruptFileError
from lance_core.row_addresses import bitmaps_by_fragment, find_positions, fragment_ids_of, make_row_addresses
from lance_core.table.fragment import Fragment
from lance_core.table.paths import origin_of
from lance_core.table.rowids import U64Array, decode_row_ids_of, decode_versions
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.delta.row_moves import RowMoves
from lance_core.verbs.delta.version_of_branch import BranchHistory
from lance_core.verbs.rows.removal import RowsByFragment
from lance_core.verbs.scan.read_fragment import count_file_rows

_READ_AHEAD = 8
"""Deletion files that are read in parallel."""

_Ids = Callable[[Snapshot, Fragment], U64Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifferences:
    """The rows that differ between two versions, as offsets by fragment id.

    Attributes:
        inserted: Rows of the later version.
        deleted: Rows of the earlier version.
        updated: Rows of the later version that the earlier one has with other values.
        outdated: Rows of the earlier version that the later one has with other values.
        deleted_ids: The stable row ids of the deleted rows, ascending.
        updates: The ids of the updated rows, their addresses in the later version, and in the earlier one, and the
            versions that updated them last.
        inserted_in: The inserted rows by the version that added them, in tables without stable row ids; else empty.
    """

    inserted: RowsByFragment
    deleted: RowsByFragment
    updated: RowsByFragment
    outdated: RowsByFragment
    deleted_ids: U64Array
    updates: tuple[U64Array, U64Array, U64Array, U64Array]
    inserted_in: Mapping[int, RowsByFragment]


@dataclass(frozen=True, slots=True)
class RowSide:
    """The live rows of one version in the fragments that differ from those of the other, by ascending id."""

    ids: U64Array
    addresses: U64Array
    updated: U64Array


def row_differences(
    begin: Snapshot | None, end: Snapshot, history: BranchHistory, renewed: Sequence[int] = ()
) -> RowDifferences:
    """Compare two versions.

    Args:
        begin: The earlier version; None for no rows.
        end: The later version.
        history: The versions in between.
        renewed: Ids of fragments of the later version whose rows got other values without being updated.

    Raises:
        VersionNotFoundError: A version in between was cleaned up, and the table has no stable row ids.
        UnsupportedError: A version in between updated rows, and the table has no stable row ids.
        CorruptFileError: A fragment has no row ids, although the table has stable row ids.
    """
    stable = end.manifest.uses_stable_row_ids and (begin is None or begin.manifest.uses_stable_row_ids)
    ids: _Ids = stable_ids
    moves: RowMoves | None = None
    if not stable:
        moves = RowMoves(begin)
        moves.follow(end, history)
        ids = moves.ids
    before = row_side(begin, None if renewed else end, ids) if begin is not None else _build_side(end, (), ids)
    after = row_side(end, None if renewed else begin, ids)
    partners, lost = find_positions(before.ids, after.ids), find_positions(after.ids, before.ids) < 0
    changed = partners >= 0
    if stable and begin is not None and len(before.ids):
        is_renewed = np.isin(fragment_ids_of(after.addresses), [*renewed, *_find_replaced_files(begin, end)])
        changed &= (after.updated != before.updated[partners]) | is_renewed
    else:
        changed[:] = False
    updates = after.ids[changed], after.addresses[changed], before.addresses[partners[changed]], after.updated[changed]
    return RowDifferences(
        inserted=bitmaps_by_fragment(after.addresses[partners < 0]),
        deleted=bitmaps_by_fragment(before.addresses[lost]),
        updated=bitmaps_by_fragment(updates[1]),
        outdated=bitmaps_by_fragment(updates[2]),
        deleted_ids=before.ids[lost],
        updates=updates,
        inserted_in={} if moves is None else _by_version(moves, after, partners < 0),
    )


def _find_replaced_files(begin: Snapshot, end: Snapshot) -> Iterator[int]:
    """Yield the ids of fragments with other values of a column, for which no update of rows is recorded.

    An Update of fragments whose columns `update_columns` has written again, by either library, records none.
    """
    fields = begin.manifest.schema.by_id().keys() & end.manifest.schema.by_id().keys()
    same_raw = set(begin.manifest.fragments.raw)
    for place, raw in enumerate(end.manifest.fragments.raw):
        if raw in same_raw:
            continue
        fragment = end.manifest.fragments[place]
        earlier = begin.manifest.fragments.get(fragment.id)
        if earlier is None or earlier.last_updated_at_versions != fragment.last_updated_at_versions:
            continue
        origins = {field: origin_of(file.path) for file in earlier.files for field in file.fields if field in fields}
        now = [(field, origin_of(file.path)) for file in fragment.files for field in file.fields]
        if any(origins.get(field, origin) != origin for field, origin in now):
            yield fragment.id


def with_updates(differences: RowDifferences, ids: U64Array) -> RowDifferences:
    """The differences with only those updated rows whose ids are given."""
    mask = np.isin(differences.updates[0], ids)
    ids, later, earlier, versions = differences.updates
    updates = ids[mask], later[mask], earlier[mask], versions[mask]
    return replace(
        differences, updated=bitmaps_by_fragment(updates[1]), outdated=bitmaps_by_fragment(updates[2]), updates=updates
    )


def row_side(snapshot: Snapshot, other: Snapshot | None, ids: _Ids) -> RowSide:
    """The live rows of a version in the fragments that another one does not record in the same bytes.

    Args:
        snapshot: The version.
        other: The other version; None for no fragments.
        ids: Returns the ids of all rows of a fragment: stable row ids, or first addresses.
    """
    other_raw = set(other.manifest.fragments.raw) if other is not None else set[bytes]()
    fragments = snapshot.manifest.fragments
    places = [place for place, raw in enumerate(fragments.raw) if raw not in other_raw]
    return _build_side(snapshot, [fragments[place] for place in places], ids)


def _by_version(moves: RowMoves, side: RowSide, inserted: npt.NDArray[np.bool_]) -> dict[int, RowsByFragment]:
    addresses, versions = side.addresses[inserted], moves.versions(side.ids[inserted])
    return {number: bitmaps_by_fragment(addresses[versions == number]) for number in np.unique(versions).tolist()}


def _build_side(snapshot: Snapshot, fragments: Sequence[Fragment], ids: _Ids) -> RowSide:
    parts = list(_live_rows(snapshot, fragments, ids))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.zeros(0, np.uint64)] * 3
    order = np.argsort(columns[0], kind="stable")
    return RowSide(*(column[order] for column in columns))


def _live_rows(
    snapshot: Snapshot, fragments: Sequence[Fragment], ids: _Ids
) -> Iterator[tuple[U64Array, U64Array, U64Array]]:
    """Yield ids, addresses and versions of the live rows of each fragment."""
    with ThreadPool(_READ_AHEAD) as pool:
        for fragment, deletions in zip(fragments, pool.map(snapshot.deletions, fragments), strict=True):
            num_rows = count_file_rows(snapshot, fragment)
            offsets = np.arange(num_rows)
            if deletions is not None:
                offsets = offsets[deletions.live_rows(num_rows)]
            yield (
                ids(snapshot, fragment)[offsets],
                make_row_addresses(fragment.id, offsets),
                _decode_updated(fragment, num_rows)[offsets],
            )


def stable_ids(snapshot: Snapshot, fragment: Fragment) -> U64Array:
    """The stable row ids of all rows of a fragment, deleted ones included.

    Raises:
        CorruptFileError: The fragment has no row ids.
    """
    ids = decode_row_ids_of(fragment)
    if ids is None:
        raise CorruptFileError(
            f"{snapshot.store.root}: fragment {fragment.id} of version {snapshot.manifest.version} has no row ids"
        )
    return ids


def _decode_updated(fragment: Fragment, num_rows: int) -> U64Array:
    """The version in which each row changed last; 1 where the table records none."""
    data = fragment.last_updated_at_versions
    return np.ones(num_rows, np.uint64) if data is None else decode_versions(data, num_rows)
