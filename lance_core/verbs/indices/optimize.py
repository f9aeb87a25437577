"""Optimize indices: add the fragments that no segment covers, and merge segments without reading covered rows again.

Entries of fragments that were deleted, or whose values were rewritten, are dropped: no older segment may keep entries
of a fragment that a new segment covers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from pyroaring import BitMap

from lance_core.errors import IndexNotFoundError, InvalidInputError, UnsupportedError
from lance_core.index.derived_zones import Replaced, derive_zones
from lance_core.index.kinds.registry import KINDS, Content, Kind, is_supported
from lance_core.index.kinds.zonemap import ZoneMap
from lance_core.index.query.rows import U64s, View
from lance_core.index.selection.candidates import view_of
from lance_core.retry import CONFLICT_RETRIES
from lance_core.schema import arrow_type_of
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import CreateIndex, RewriteGroup
from lance_core.table.reuse import trimmed, without_moved
from lance_core.verbs.context.handle import Snapshot, retry_on_latest
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files
from lance_core.verbs.indices.build import IndexedField, build, indexed_field
from lance_core.verbs.indices.create import write_segment
from lance_core.verbs.scan.read_fragment import count_file_rows


def optimize_indices(
    snapshot: Snapshot,
    *,
    num_indices_to_merge: int | None = None,
    index_names: Collection[str] | None = None,
    retrain: bool = False,
    conflict_retries: int = CONFLICT_RETRIES,
    replaced: Sequence[RewriteGroup] = (),
    properties: Mapping[str, str] | None = None,
) -> Manifest:
    """Bring indices up to date in one version; no version is committed if there is nothing to do.

    Args:
        snapshot: The version.
        num_indices_to_merge: How many of the last segments are merged, together with the fragments that no segment
            covers; 0 writes a new segment for these fragments, None means 1.
        index_names: Names of the indices; None for all that this library can build.
        retrain: Rebuild each index as one segment.
        conflict_retries: How often everything is repeated after a conflict with another commit.
        replaced: Groups of fragments that a compaction has just replaced; the new ones may lack ids.
        properties: Properties of the transaction.

    Raises:
        NotFoundError: An index of `index_names` does not exist.
        UnsupportedError: An index of `index_names` is of a kind that this library cannot build.
        InvalidInputError: `num_indices_to_merge` is negative.
    """
    if num_indices_to_merge is not None and num_indices_to_merge < 0:
        raise InvalidInputError(f"num_indices_to_merge must be at least 0, not {num_indices_to_merge}")
    merged = 1 if num_indices_to_merge is None else num_indices_to_merge

    def attempt(base: Snapshot) -> Manifest:
        groups = _group_segments(base.manifest, index_names)
        with collecting_files(base) as files:
            changes = [_Optimizer(files, group, replaced).run(merged, retrain=retrain) for group in groups]
            new = tuple(index for added, _ in changes for index in added)
            dropped = tuple(index for _, removed in changes for index in removed)
            new, dropped = _with_trimmed_moves(base.manifest, new, dropped)
            if not new and not dropped:
                return base.manifest
            return files.commit(CreateIndex(new_indices=new, removed_indices=dropped), properties=properties)

    return retry_on_latest(snapshot, attempt, conflict_retries=conflict_retries)


def expected_changes(
    snapshot: Snapshot, index_names: Collection[str] | None, unwritten: Collection[UUID] = (), num_merged: int = 1
) -> tuple[tuple[IndexMetadata, ...], tuple[IndexMetadata, ...]]:
    """The segments that `optimize_indices` would write and remove; nothing is written, and the new ones have no files.

    Args:
        snapshot: The version.
        index_names: Names of the indices; None for all that this library can build.
        unwritten: Ids of segments that an earlier call returned: without files, they count as if they had entries for
            the fragments that they cover.
        num_merged: How many of the last segments are merged.

    Raises:
        NotFoundError: An index of `index_names` does not exist.
        UnsupportedError: An index of `index_names` is of a kind that this library cannot build.
    """
    new, dropped = list[IndexMetadata](), list[IndexMetadata]()
    for group in _group_segments(snapshot.manifest, index_names):
        choice = _SegmentChoice(snapshot, group, unwritten).merging(num_merged)
        if choice is None:
            continue
        for covered in [*(fragments for _, fragments in choice.left), choice.covered]:
            bitmap, version = covered.serialize(), snapshot.manifest.version
            segment = replace(group[-1], uuid=uuid4(), fragment_bitmap=bitmap, dataset_version=version, files=())
            new.append(segment)
        dropped += choice.dropped
    return _with_trimmed_moves(snapshot.manifest, tuple(new), tuple(dropped))


def _with_trimmed_moves(
    manifest: Manifest, new: tuple[IndexMetadata, ...], dropped: tuple[IndexMetadata, ...]
) -> tuple[tuple[IndexMetadata, ...], tuple[IndexMetadata, ...]]:
    """The segments to add and to remove, with the fragment reuse index trimmed to the moves still needed by indices."""
    after = (*(index for index in manifest.indices if index not in dropped), *new)
    left = trimmed(after)
    added = tuple(index for index in left if index not in after)
    return (*new, *added), (*dropped, *(index for index in after if index not in left))


def uncovered_fragments(manifest: Manifest, segments: Sequence[IndexMetadata]) -> list[int]:
    """Ids of the fragments that no segment covers."""
    covered = BitMap().union(*(without_moved(manifest.indices, segment) for segment in segments))
    return [i for i in manifest.fragments.ids if i not in covered]


def _group_segments(manifest: Manifest, names: Collection[str] | None) -> list[list[IndexMetadata]]:
    """The segments of each index that this library can build, in order of the names.

    System indices, such as the fragment reuse index, are listed like others, and hold no entries to build.
    """
    system = {index.name for index in manifest.indices if index.is_system}
    names = None if names is None else [name for name in names if name not in system]
    groups: dict[str, list[IndexMetadata]] = {}
    for index in manifest.indices:
        if not index.is_system and (names is None or index.name in names):
            groups.setdefault(index.name, []).append(index)
    for name in names or ():
        if name not in groups:
            raise IndexNotFoundError(f"Lance index not found: name={name}; list_indices() lists those of the table")
    supported_groups = {
        name: group for name, group in groups.items() if all(is_supported(index, manifest.schema) for index in group)
    }
    for name in names or ():
        if name not in supported_groups:
            index = groups[name][0]
            types = {key: arrow_type_of(node) for key, node in manifest.schema.by_id().items() if key in index.fields}
            on = ", ".join(map(str, types.values()))
            raise UnsupportedError(f"optimizing the index {name!r} of type {index.kind} on {on} is not supported")
    return [group for _, group in sorted(supported_groups.items())]


def _view_of_live_rows(snapshot: Snapshot) -> View:
    """The view of the fragments with the row ids of live rows only: an updated row has its id in another place."""
    view = view_of(snapshot.manifest)
    if not view.has_row_ids:
        return view

    def live_ids(place: int) -> U64s:
        ids, deletions = view.ids_of(place), snapshot.deletions(snapshot.manifest.fragments[place])
        return ids if deletions is None else ids[deletions.live_rows(len(ids))]

    return replace(view, row_ids=live_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Which segments of an index are merged into one.

    Attributes:
        merged: The segments that are merged.
        covered: The fragments that the new segment covers.
        left: The segments of `stale` that still cover fragments, each with these fragments.
        stale: Segments that are not merged, but lose entries.
    """

    merged: Sequence[IndexMetadata]
    covered: BitMap
    left: Sequence[tuple[IndexMetadata, BitMap]] = field(default=())
    stale: Sequence[IndexMetadata] = ()

    @property
    def dropped(self) -> list[IndexMetadata]:
        """The segments that are replaced."""
        return [*self.merged, *self.stale]


@dataclass(frozen=True, slots=True)
class _SegmentChoice:
    """Chooses which segments of one index are merged.

    Attributes:
        snapshot: The version.
        segments: The segments of the index.
        unwritten: Segments that have no files, as they are only expected.
    """

    snapshot: Snapshot
    segments: Sequence[IndexMetadata]
    unwritten: Collection[UUID] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the index."""
        return KINDS[self.segments[0].kind]

    @property
    def field(self) -> IndexedField:
        """The indexed field."""
        return indexed_field(self.snapshot.manifest.schema, self.segments[0].fields[0])

    def merging(self, num_merged: int) -> _Choice | None:
        """Choose to merge the last segments with the uncovered fragments; None if there is nothing to do."""
        snapshot, segments = self.snapshot, self.segments
        live = BitMap(snapshot.manifest.fragments.ids)
        missing = BitMap(uncovered_fragments(snapshot.manifest, segments))
        merged = segments[len(segments) - min(num_merged, len(segments)) :]
        is_readable = all(map(self._is_readable, merged))
        if not missing and len(merged) < 2 and is_readable:
            return None
        # A segment that is kept must have no entries of fragments that the new segment covers.
        other_segments = [segment for segment in segments if segment not in merged]
        stale = [segment for segment in other_segments if missing and self._has_entries(segment, missing)]
        left = [(segment, without_moved(snapshot.manifest.indices, segment) & live) for segment in stale]
        covered = missing.union(*(without_moved(snapshot.manifest.indices, segment) & live for segment in merged))
        return _Choice(
            merged=merged,
            covered=covered,
            left=[(segment, fragments) for segment, fragments in left if fragments],
            stale=stale,
        )

    def _is_readable(self, index: IndexMetadata) -> bool:
        """Whether the files of a segment can be read; true for segments that are not written yet."""
        return index.uuid in self.unwritten or self.snapshot.indices.try_read(index, self.field.type) is not None

    def _has_entries(self, index: IndexMetadata, fragments: BitMap) -> bool:
        """Whether a segment may have entries of some fragments."""
        if index.uuid in self.unwritten:
            return bool((index.covered_fragments() or BitMap()) & fragments)

        def has_entries(content: Content) -> bool:
            content_fragments = content.fragments()
            return content_fragments is None or not fragments.isdisjoint(content_fragments)

        return self.snapshot.indices.try_use(index, self.field.type, has_entries) is not False


@dataclass(slots=True)
class _Optimizer:
    """Brings one index up to date.

    Attributes:
        files: Collects the new files.
        segments: The segments of the index.
        replaced: See `optimize_indices`.
    """

    files: UncommittedFiles
    segments: Sequence[IndexMetadata]
    replaced: Sequence[RewriteGroup] = ()

    def run(self, num_merged: int, *, retrain: bool) -> tuple[list[IndexMetadata], list[IndexMetadata]]:
        """Write new segments, and return these and the segments that they replace."""
        choice = _SegmentChoice(self.files.snapshot, self.segments)
        if retrain:
            return [self._write_segment([], BitMap(self.files.snapshot.manifest.fragments.ids))], list(self.segments)
        chosen = choice.merging(num_merged)
        if chosen is None:
            return [], []
        new = [self._write_segment([segment], fragments) for segment, fragments in chosen.left]
        return [*new, self._write_segment(chosen.merged, chosen.covered)], chosen.dropped

    @property
    def _kind(self) -> Kind:
        return KINDS[self.segments[0].kind]

    @property
    def _field(self) -> IndexedField:
        return indexed_field(self.files.snapshot.manifest.schema, self.segments[0].fields[0])

    def _write_segment(self, merged: Sequence[IndexMetadata], covered: BitMap) -> IndexMetadata:
        """Write a segment over some live fragments, from entries of merged segments; other fragments are read."""
        snapshot, kind, field = self.files.snapshot, self._kind, self._field
        view = _view_of_live_rows(snapshot)
        contents, merged_fragments = self._keep_contents(merged, view)
        last = self.segments[-1]
        parameters = dict(kind.parameters)
        for segment in self.segments:
            content = snapshot.indices.try_read(segment, field.type)
            if content is not None:
                parameters |= content.parameters()
        for zones in self._derive_zones(merged, covered - merged_fragments):
            contents.append(zones)
            merged_fragments |= zones.fragments()
        missing = covered - merged_fragments
        fragments = [fragment for fragment_id in missing if (fragment := snapshot.manifest.fragments.get(fragment_id))]
        contents.append(build(snapshot, field, kind, parameters, fragments))
        content = kind.merge(contents, parameters)
        return write_segment(self.files, kind, content, last.name, field, covered, last.details)

    def _keep_contents(self, merged: Sequence[IndexMetadata], view: View) -> tuple[list[Any], BitMap]:
        """The entries of segments that are still valid, and their fragments; each fragment's entries are taken once."""
        snapshot, contents, merged_fragments = self.files.snapshot, list[Any](), BitMap()
        for segment in merged:
            if view.has_row_ids and segment.kind == "BTree" and segment.holds_row_ids:
                continue  # an older BTREE holds row ids, and new ones hold addresses
            # A fragment that replaces others according to the reuse index has no entries of its own.
            fragments = without_moved(snapshot.manifest.indices, segment) - merged_fragments
            choose = partial(_choose_entries, fragments=fragments, view=view)
            chosen = snapshot.indices.try_use(segment, self._field.type, choose)
            if chosen is not None:  # rows of a segment that cannot be read are read again
                contents.append(chosen[0])
                merged_fragments |= chosen[1]
        return contents, merged_fragments

    def _derive_zones(self, merged: Sequence[IndexMetadata], missing: BitMap) -> Iterator[ZoneMap]:
        """Yield zone maps of fragments that a compaction wrote, from the zones of the fragments that it replaced."""
        if self._kind is not KINDS["ZoneMap"] or not self.replaced:
            return
        snapshot = self.files.snapshot
        places = {f.files[0].path: f for i in missing if (f := snapshot.manifest.fragments.get(i)) and f.files}
        for group in self.replaced:
            new_fragments = [places.get(f.files[0].path) if f.files else None for f in group.new_fragments]
            if not new_fragments or any(f is None or f.deletion_file is not None for f in new_fragments):
                continue
            moves = Replaced(
                [
                    (fragment.id, count_file_rows(snapshot, fragment), snapshot.deleted_rows(fragment))
                    for fragment in group.old_fragments
                ],
                [(fragment.id, fragment.physical_rows) for fragment in new_fragments if fragment is not None],
            )
            for segment in merged:
                content = snapshot.indices.try_read(segment, self._field.type)
                segment_fragments = without_moved(snapshot.manifest.indices, segment)
                if isinstance(content, ZoneMap) and all(
                    fragment.id in segment_fragments for fragment in group.old_fragments
                ):
                    zones = derive_zones(content, moves)
                    if zones is not None:
                        yield zones
                        break


def _choose_entries(content: Content, fragments: BitMap, view: View) -> tuple[Content, BitMap]:
    """The entries of a segment for those of some fragments that it has, and these fragments."""
    entries = content.fragments()
    chosen = view.covered(fragments if entries is None else fragments & entries)
    return content.of_fragments(view, chosen), BitMap(view.ids[np.flatnonzero(chosen)].tolist())
