"""The fragment reuse index: a record of replaced fragments, for indices that were not rewritten with the fragments.

Its details, a FragmentReuseIndexDetails message, list per compaction the groups of fragments that were replaced:

    version { dataset_version, groups { changed_row_addrs, old_fragments, new_fragments } }

`changed_row_addrs` is a 64-bit roaring bitmap of the addresses (fragment id << 32 | row offset) that the group's rows
had; in ascending order they are the rows of the new fragments. Through this mapping an index that covers all old
fragments of a group covers its new ones.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Schema
from lance_core.table.fragment import TOMBSTONE, Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.index import FRAGMENT_REUSE_INDEX, IndexMetadata

DEFER_KEY: Final = "lance.compaction.defer_index_remap"
"""The entry of a table's configuration by which compactions record moves, as the reuse index of the table needs."""

_DETAILS_TYPE = "/lance.table.FragmentReuseIndexDetails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The rows that a compaction moved.

    Attributes:
        row_addrs: Their old addresses, as a serialized 64-bit roaring bitmap.
        old_fragments: The replaced fragments.
        new_fragments: The fragments that hold the rows now, in order, with ids.
    """

    row_addrs: bytes
    old_fragments: tuple[Fragment, ...]
    new_fragments: tuple[Fragment, ...]


def live_coverage(indices: Sequence[IndexMetadata]) -> Iterator[tuple[IndexMetadata, BitMap]]:
    """Yield the indices of columns, each with the fragments that it covers; an index without a bitmap covers none."""
    moves = [move for index in indices if index.name == FRAGMENT_REUSE_INDEX for move in _fragment_moves(index)]
    for index in indices:
        if index.is_system:
            continue
        covered = index.covered_fragments() or BitMap()
        for old, new in moves:
            if old <= covered:
                covered = (covered - old) | new
        yield index, covered


def without_moved(indices: Sequence[IndexMetadata], index: IndexMetadata) -> BitMap:
    """The fragments in an index's bitmap for which the index's files have entries.

    Any commit of pylance replaces old fragments by new ones in the bitmaps of indices, through the fragment reuse
    index, while the files of these indices keep the old addresses. Entries of zone maps and Bloom filters are never
    moved, so the result leaves out such new fragments. For other kinds the result is empty if the bitmap has such
    fragments. For every kind it is empty if the reuse index keeps its details in a file.
    """
    covered = index.covered_fragments() or BitMap()
    for reuse in indices:
        if reuse.name != FRAGMENT_REUSE_INDEX:
            continue
        details = _read_details(reuse)
        if details.WhichOneof("content") == "external":
            return BitMap()
        for version in details.inline.versions:
            if version.dataset_version < index.dataset_version:
                continue
            new = BitMap(f.id for group in version.groups for f in group.new_fragments)
            if not covered & new:
                continue  # unchanged: the files have entries for the fragments of the bitmap
            if index.kind not in ("ZoneMap", "BloomFilter"):
                return BitMap()  # some entries of the index may have been moved since
            covered = covered - new
    return covered


def can_record_moves(indices: Sequence[IndexMetadata]) -> bool:
    """Whether moves can be recorded: the fragment reuse index has inline details, or does not exist yet."""
    reuse = [index for index in indices if index.name == FRAGMENT_REUSE_INDEX]
    return all(_read_details(index).WhichOneof("content") != "external" for index in reuse)


def trimmed(indices: Sequence[IndexMetadata]) -> tuple[IndexMetadata, ...]:
    """The indices with the fragment reuse index reduced to moves that an index needs, or dropped if no move is needed.

    An index needs a move if it was built before the move, and its rows were in the old fragments, directly or through
    other moves. An index without a bitmap needs each move after it was built.
    """
    reuse = next((index for index in indices if index.name == FRAGMENT_REUSE_INDEX), None)
    if reuse is None or not can_record_moves([reuse]):
        return tuple(indices)
    details = _read_details(reuse)
    reached = [(index, _find_origins(index, details)) for index in indices if not index.is_system]
    needed = [
        version
        for version in details.inline.versions
        if any(
            index.dataset_version <= version.dataset_version
            and (origins is None or origins & BitMap(f.id for group in version.groups for f in group.old_fragments))
            for index, origins in reached
        )
    ]
    if len(needed) == len(details.inline.versions):
        return tuple(indices)
    other_indices = tuple(index for index in indices if index is not reuse)
    if not needed:
        return other_indices
    needed_details = table_pb2.FragmentReuseIndexDetails()
    needed_details.inline.versions.extend(needed)
    return (*other_indices, _reuse_index(needed_details, reuse.dataset_version))


def without_fragments(
    indices: Sequence[IndexMetadata], fields: Collection[int], fragment_ids: Iterable[int]
) -> tuple[IndexMetadata, ...]:
    """Remove fragments in which the values of some fields changed from the bitmaps of the indices on these fields.

    A bitmap that covers such a fragment through moves lists the new fragments from then on, as in commits of pylance.
    """
    removed = BitMap(fragment_ids)
    if not fields or not removed:
        return tuple(indices)
    changed = {
        index.uuid: replace(index, fragment_bitmap=(covered - removed).serialize())
        for index, covered in live_coverage(indices)
        if covered & removed and not {*index.fields, *index.covering_fields}.isdisjoint(fields)
    }
    return tuple(changed.get(index.uuid, index) for index in indices)


def without_replaced(
    indices: Sequence[IndexMetadata], before: FragmentList, after: FragmentList, schema: Schema
) -> tuple[IndexMetadata, ...]:
    """Remove each fragment whose indexed fields are stored in other files than before from the bitmaps of indices."""
    changed = {}
    for index, covered in live_coverage(indices):
        fields = schema.with_descendants((*index.fields, *index.covering_fields))
        replaced = BitMap(
            i for i in covered if _files_of_fields(before.get(i), fields) != _files_of_fields(after.get(i), fields)
        )
        if replaced:
            changed[index.uuid] = replace(index, fragment_bitmap=(covered - replaced).serialize())
    return tuple(changed.get(index.uuid, index) for index in indices)


def _files_of_fields(fragment: Fragment | None, fields: Collection[int]) -> set[tuple[int, str]]:
    files = fragment.files if fragment is not None else ()
    return {(f, file.path) for file in files for f in file.fields if f in fields and f != TOMBSTONE}


def retain_relevant(
    indices: Sequence[IndexMetadata], field_ids: Collection[int], fragment_ids: Iterable[int]
) -> tuple[IndexMetadata, ...]:
    """Drop the indices that no query can use any more.

    Dropped are indices on a deleted field, and segments that cover no live fragment, also not through moves. If no
    segment of a scalar index covers a live fragment, its oldest segment stays. A segment without a bitmap counts as one
    that covers none.
    """
    usable_indices = [index for index in indices if index.is_system or all(f in field_ids for f in index.fields)]
    if all(index.is_system for index in usable_indices):
        return tuple(usable_indices)
    live = BitMap(fragment_ids)
    by_name: dict[str, list[tuple[IndexMetadata, BitMap]]] = {}
    for index, covered in live_coverage(usable_indices):
        by_name.setdefault(index.name, []).append((index, covered))
    alive = {index.uuid for group in by_name.values() for index in _usable_segments(group, live)}
    return tuple(index for index in usable_indices if index.is_system or index.uuid in alive)


def _usable_segments(group: list[tuple[IndexMetadata, BitMap]], live: BitMap) -> list[IndexMetadata]:
    filled = [index for index, covered in group if covered & live]
    if filled:
        return filled
    oldest = min((index for index, _ in group), key=lambda index: index.dataset_version)
    return [] if oldest.is_vector else [oldest]


def _find_origins(index: IndexMetadata, details: table_pb2.FragmentReuseIndexDetails) -> BitMap | None:
    """All fragments that held rows of an index before or after some move; None if the index has no bitmap."""
    fragment_ids = index.covered_fragments()
    if fragment_ids is None:
        return None
    for version in reversed(details.inline.versions):
        for group in version.groups:
            if any(fragment.id in fragment_ids for fragment in group.new_fragments):
                fragment_ids |= BitMap(fragment.id for fragment in group.old_fragments)
    for version in details.inline.versions:  # a bitmap that no commit changed has only the oldest fragments
        for group in version.groups:
            if any(fragment.id in fragment_ids for fragment in group.old_fragments):
                fragment_ids |= BitMap(fragment.id for fragment in group.new_fragments)
    return fragment_ids


def find_broken_graphs(
    indices: Sequence[IndexMetadata], schema: Schema, find_fragment: Callable[[int, int], Fragment | None]
) -> set[str]:
    """The uuids of the segments of HNSW indices which pylance cannot search: recorded moves left out deleted rows.

    Their graphs still have these rows, and pylance rejects a graph of which rows have no vectors.

    Args:
        indices: All indices of a version.
        schema: Its schema.
        find_fragment: (version, id) -> the fragment in an earlier version; None if that was cleaned up.
    """
    reuse = next((index for index in indices if index.name == FRAGMENT_REUSE_INDEX), None)
    if reuse is None or not can_record_moves([reuse]):
        return set()
    details, broken = _read_details(reuse), set[str]()
    for index in indices:
        if "HNSW" not in index.kind:
            continue
        origins, graph = _find_origins(index, details), GraphEntries(indices, index.name, schema)
        if any(
            origins is None or each.id in origins or graph.may_have(each.id, partial(find_fragment, base))
            for base, each in _list_old_fragments(details)
            if each.num_deleted_rows and base >= index.dataset_version
        ):
            broken.add(str(index.uuid))
    return broken


def _list_old_fragments(
    details: table_pb2.FragmentReuseIndexDetails,
) -> Iterator[tuple[int, table_pb2.FragmentReuseIndexDetails.FragmentDigest]]:
    """The fragments that compactions replaced, each with the version before."""
    for version in details.inline.versions:
        yield from ((version.dataset_version, fragment) for group in version.groups for fragment in group.old_fragments)


class GraphEntries:
    """The fragments of which an HNSW index has entries: also of those that it no longer covers, as vectors were set.

    Args:
        indices: All indices of a version.
        name: The index.
        schema: The schema.
    """

    def __init__(self, indices: Sequence[IndexMetadata], name: str, schema: Schema) -> None:
        segments = [(index, covered) for index, covered in live_coverage(indices) if index.name == name]
        self._newest = max(BitMap().union(*(covered for _, covered in segments)), default=-1)
        self._fields = schema.with_descendants(segments[0][0].fields)

    def may_have(self, fragment_id: int, find_fragment: Callable[[int], Fragment | None]) -> bool:
        """Whether there may be entries of a fragment: new ones, of which there are none, have higher ids.

        Args:
            fragment_id: The fragment.
            find_fragment: Returns it by its id; None if it is no longer known.
        """
        if fragment_id <= self._newest:
            return True
        fragment = find_fragment(fragment_id)
        return fragment is None or all(self._fields.isdisjoint(file.fields) for file in fragment.files[:1])


def num_reuse_versions(index: IndexMetadata) -> int:
    """The number of compactions in the fragment reuse index.

    Raises:
        UnsupportedError: The index keeps its details in a file.
    """
    details = _read_details(index)
    if details.WhichOneof("content") == "external":
        raise UnsupportedError("reading a fragment reuse index whose details are in a file is not supported")
    return len(details.inline.versions)


def with_moves(
    indices: Sequence[IndexMetadata], moves: Sequence[Move], dataset_version: int
) -> tuple[IndexMetadata, ...]:
    """The indices with moves added to the fragment reuse index, which is created if there is none.

    Args:
        indices: All indices of a dataset.
        moves: The moved rows.
        dataset_version: The version before the moves.

    Raises:
        UnsupportedError: The index keeps its details in a file.
    """
    existing = next((index for index in indices if index.name == FRAGMENT_REUSE_INDEX), None)
    details = table_pb2.FragmentReuseIndexDetails() if existing is None else _read_details(existing)
    if details.WhichOneof("content") == "external":
        raise UnsupportedError("adding to a fragment reuse index whose details are in a file is not supported")
    version = details.inline.versions.add(dataset_version=dataset_version)
    for move in moves:
        version.groups.add(
            changed_row_addrs=move.row_addrs,
            old_fragments=[_digest(fragment) for fragment in move.old_fragments],
            new_fragments=[_digest(fragment) for fragment in move.new_fragments],
        )
    return (*(index for index in indices if index is not existing), _reuse_index(details, dataset_version))


def _reuse_index(details: table_pb2.FragmentReuseIndexDetails, dataset_version: int) -> IndexMetadata:
    """The record of a fragment reuse index."""
    covered = BitMap(
        f.id for version in details.inline.versions for group in version.groups for f in group.new_fragments
    )
    content = details.SerializeToString(deterministic=True)
    return IndexMetadata(
        # Derived from the content, so that the same commit creates the same manifest.
        uuid=uuid.UUID(bytes=hashlib.blake2b(content, digest_size=16).digest(), version=4),
        name=FRAGMENT_REUSE_INDEX,
        fields=(),
        dataset_version=dataset_version,
        fragment_bitmap=covered.serialize(),
        details_type_url=_DETAILS_TYPE,
        details=content,
        index_version=0,
    )


def _digest(fragment: Fragment) -> table_pb2.FragmentReuseIndexDetails.FragmentDigest:
    return table_pb2.FragmentReuseIndexDetails.FragmentDigest(
        id=fragment.id, physical_rows=fragment.physical_rows, num_deleted_rows=fragment.num_deleted_rows
    )


def _read_details(index: IndexMetadata) -> table_pb2.FragmentReuseIndexDetails:
    try:
        return table_pb2.FragmentReuseIndexDetails.FromString(index.details)
    except DecodeError as error:
        raise CorruptFileError("the details of the fragment reuse index cannot be parsed") from error


def _fragment_moves(index: IndexMetadata) -> list[tuple[BitMap, BitMap]]:
    """Old and new fragments of each group, oldest first; none if the details are in a file."""
    return [
        (BitMap(f.id for f in group.old_fragments), BitMap(f.id for f in group.new_fragments))
        for version in _read_details(index).inline.versions
        for group in version.groups
        if group.old_fragments
    ]
