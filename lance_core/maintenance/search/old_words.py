"""Finds segments of full text by which pylance finds rows by their old words, after it has extended an index by itself.

A row that was set again keeps its id or address. A segment that had it before is to be built again once the index
covers the row again:

with stable row ids     it was built after the row was created, and before the row was changed
without                 the column of the fragment has a file in place of an earlier one, and the segment is older
of a migrated table     either; its migration counts as the creation of its rows, which are older

pylance keeps the lowest version, and old words, when it merges segments. That a segment was made after a version is
seen from the manifest of the version, which lacks it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from lance_core.commit.versions import find_manifest
from lance_core.maintenance.search.decide import PresentIndex, PresentSegment
from lance_core.row_addresses import make_row_address
from lance_core.table.fragment import TOMBSTONE, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.rowids import decode_versions, list_versions_of_rows
from lance_core.verbs.context.handle import Snapshot


def find_old_words(snapshot: Snapshot, index: PresentIndex, history: SegmentHistory) -> frozenset[str]:
    """The uuids of segments with old words of rows that the index has covered again.

    Args:
        snapshot: The version.
        index: An index of it.
        history: The earlier versions.
    """
    if index.kind != "FTS":
        return frozenset()
    old, migration = dict[str, PresentSegment](), find_migration(snapshot.manifest)
    # A segment that is in a version is in later ones: in order of changes, one manifest answers for most fragments.
    for fragment in sorted(snapshot.manifest.fragments, key=find_newest_change):
        for covering in index.segments:
            if fragment.id in covering.fragment_ids:
                segments = list[PresentSegment]()
                has_versions = (
                    fragment.created_at_versions is not None and fragment.last_updated_at_versions is not None
                )
                if not has_versions or find_oldest_creation(fragment) <= migration:
                    segments += _find_older(snapshot, index, fragment, covering, history)
                if has_versions:
                    segments += _find_between(index, fragment, covering, history, migration)
                if not any(each.rows for each in segments):  # a new segment needs rows
                    segments += [covering] * bool(segments)
                old |= {each.uuid: each for each in segments}
    return frozenset(old)


def find_migration(manifest: Manifest) -> int:
    """The version that rows of a migrated table have as that of their creation, of which they are older; otherwise 0.

    Args:
        manifest: The version.
    """
    if manifest.next_row_id < make_row_address(1, 0):  # ids from the creation of a table on count up from 0
        return 0
    creations = (find_oldest_creation(fragment) for fragment in manifest.fragments)
    return min((version for version in creations if version), default=0)


def find_oldest_creation(fragment: Fragment) -> int:
    """The version in which the oldest row of a fragment was created; 0 if it is not known."""
    creations = fragment.created_at_versions
    return 0 if creations is None else min(list_versions_of_rows(creations), default=0)


def find_newest_change(fragment: Fragment) -> int:
    """The version in which a row of a fragment was changed last; 0 if it is not known."""
    changes = fragment.last_updated_at_versions
    return 0 if changes is None else max(list_versions_of_rows(changes))


def _find_older(
    snapshot: Snapshot, index: PresentIndex, fragment: Fragment, covering: PresentSegment, history: SegmentHistory
) -> Iterator[PresentSegment]:
    """The segments with words that a fragment had, in place of which it has others."""
    fields = snapshot.manifest.schema.with_descendants(index.field_ids)
    if not fields.isdisjoint(fragment.files[0].fields) or not any(TOMBSTONE in file.fields for file in fragment.files):
        return
    older = [each for each in index.segments if _is_older(each, covering)]
    yield from older
    # Built again alone, an older one would be the newer one.
    if older or history.had_other_files(covering.version, fragment, fields):
        yield covering


def _is_older(segment: PresentSegment, other: PresentSegment) -> bool:
    if segment.version != other.version or segment.created_at_ms is None or other.created_at_ms is None:
        return segment.version < other.version
    return segment.created_at_ms < other.created_at_ms


def _find_between(
    index: PresentIndex, fragment: Fragment, covering: PresentSegment, history: SegmentHistory, migration: int
) -> Iterator[PresentSegment]:
    """The segments that had rows of a fragment between their creation and their last change."""
    assert fragment.created_at_versions is not None
    assert fragment.last_updated_at_versions is not None
    if fragment.created_at_versions == fragment.last_updated_at_versions:
        return
    segments = [each for each in index.segments if each.version < find_newest_change(fragment)]
    if not segments:
        return
    created = decode_versions(fragment.created_at_versions)
    created[created <= migration] = 0
    changed = decode_versions(fragment.last_updated_at_versions)
    is_set_again = changed > created
    late = is_set_again & (changed > covering.version)
    # Where the segment is from before the change, other columns were set in place.
    if late.any() and not history.is_made_after(covering, int(changed[late].min()), int(changed[late].max())):
        is_set_again &= ~late
    for each in segments:
        rows = created[is_set_again & (changed > each.version)]
        if len(rows) and (rows.min() <= each.version or history.is_made_after(each, int(rows.min()))):
            yield each


class SegmentHistory:
    """What manifests of earlier versions say about segments; each is read once, and only if others do not say it.

    Args:
        snapshot: The version.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._store, self._manifests = snapshot.store, dict[int, Manifest | None]()
        self._oldest_with, self._newest_without = dict[str, int](), dict[str, int]()

    def _find(self, version: int) -> Manifest | None:
        if version not in self._manifests:
            self._manifests[version] = find_manifest(self._store, version)
        return self._manifests[version]

    def find_fragment(self, version: int, fragment_id: int) -> Fragment | None:
        """A fragment of a version; None if the version was cleaned up."""
        manifest = self._find(version)
        return None if manifest is None else manifest.fragments.get(fragment_id)

    def is_made_after(self, segment: PresentSegment, *versions: int, otherwise: bool = False) -> bool:
        """Whether a segment was made after a version: the first of some that still exists.

        Args:
            segment: The segment.
            *versions: The versions.
            otherwise: The result if all were cleaned up.
        """
        for version in versions:
            if version >= self._oldest_with.get(segment.uuid, version + 1):
                return False
            if version <= self._newest_without.get(segment.uuid, version - 1):
                return True
            manifest = self._find(version)
            if manifest is not None:
                is_absent = all(str(index.uuid) != segment.uuid for index in manifest.indices)
                (self._newest_without if is_absent else self._oldest_with)[segment.uuid] = version
                return is_absent
        return otherwise

    def had_other_files(self, version: int, fragment: Fragment, fields: Container[int]) -> bool:
        """Whether a fragment had other files for some fields in a version that still exists.

        Args:
            version: The version.
            fragment: The fragment.
            fields: The ids of the fields.
        """
        manifest = self._find(version)
        earlier = [each for each in (manifest.fragments if manifest else ()) if each.id == fragment.id]
        return any(_list_files(each, fields) != _list_files(fragment, fields) for each in earlier)


def _list_files(fragment: Fragment, fields: Container[int]) -> list[str]:
    return [file.path for file in fragment.files if any(field in fields for field in file.fields)]
