"""Build segments of an index in several processes, and commit them as one index.

    every worker   build_segment(its fragments)     a folder _indices/<uuid>/, to which no version refers
    the driver     merge_segments(some segments)    one more of these folders, if fewer segments are wanted
    the driver     commit_segments(all segments)    one version

Cleanup removes folders to which no version refers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyroaring import BitMap

from lance_core.commit.conflict import Verdict, judge
from lance_core.commit.versions import load_manifest, load_transaction
from lance_core.errors import (
    IncompatibleConflictError,
    InvalidInputError,
    RetryableConflictError,
    UnsupportedError,
    VersionNotFoundError,
)
from lance_core.index.kinds.registry import KINDS, Kind
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import CreateIndex, Merge, Update
from lance_core.table.reuse import without_fragments, without_moved, without_replaced
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files
from lance_core.verbs.indices.build import IndexedField, build, indexed_field
from lance_core.verbs.indices.create import index_name, kind_and_parameters, target_field, write_segment

_HARMLESS: Final = (Verdict.COMPATIBLE, Verdict.REBASABLE)


def build_segment(
    snapshot: Snapshot,
    column: str | Sequence[str],
    index_type: Any,
    name: str | None,
    *,
    fragment_ids: Iterable[int],
    key: uuid.UUID | None = None,
    may_exist: bool = False,
    arguments: Mapping[str, Any],
) -> IndexMetadata:
    """Write a segment over some fragments; nothing is committed.

    Args:
        snapshot: The version.
        column: As in `create_scalar_index`.
        index_type: As in `create_scalar_index`.
        name: As in `create_scalar_index`.
        fragment_ids: The fragments.
        key: The uuid of the segment, which names its folder; a new one by default.
        may_exist: Whether there may be an index of that name already.
        arguments: Parameters of the kind.

    Raises:
        SchemaError: There is no such column, or the kind does not fit it.
        InvalidInputError: There is no such kind, parameter or fragment, or the name is in use.
        UnsupportedError: Indices of that kind are not built.
    """
    kind, parameters = kind_and_parameters(index_type, arguments)
    field = target_field(snapshot, column, kind)
    name = index_name(snapshot.manifest, field, kind, name, replace=may_exist)
    chosen = BitMap(fragment_ids)
    unknown = chosen - BitMap(snapshot.manifest.fragments.ids)
    if unknown:
        raise InvalidInputError(f"version {snapshot.manifest.version} has no fragment {unknown[0]}")
    fragments = [fragment for fragment in snapshot.manifest.fragments if fragment.id in chosen]
    with collecting_files(snapshot) as files:
        content = build(snapshot, field, kind, parameters, fragments)
        return write_segment(files, kind, content, name, field, chosen, key=key)


def merge_segments(snapshot: Snapshot, segments: Sequence[IndexMetadata]) -> IndexMetadata:
    """Write one segment with the entries of several segments, whose files stay; nothing is committed.

    Raises:
        InvalidInputError: No segment is given, or the segments do not belong to one index.
        UnsupportedError: Indices of that kind are not built.
        CorruptFileError: A segment cannot be read.
        IncompatibleConflictError: The table was dropped and created again since the segments were built.
    """
    kind, field = _check_segments(snapshot, segments)
    _check_versions(snapshot, segments)
    contents = [snapshot.indices.read(segment, field.type) for segment in segments]
    parameters = {**kind.parameters, **contents[0].parameters()}
    covered = BitMap().union(*(segment.covered_fragments() or BitMap() for segment in segments))
    with collecting_files(snapshot) as files:
        return write_segment(
            files,
            kind,
            kind.merge(contents, parameters),
            segments[0].name,
            field,
            covered,
            segments[0].details,
            version=min(segment.dataset_version for segment in segments),
        )


def commit_segments(
    snapshot: Snapshot, name: str, column: str | Sequence[str], segments: Sequence[IndexMetadata]
) -> Manifest:
    """Commit segments as a new index, or add them to an index; they replace segments whose fragments they cover.

    Args:
        snapshot: The version to commit on, not older than the segments.
        name: Name of the index; the segments may have been built with another name.
        column: The indexed column.
        segments: The segments, of one kind and field; no two of them may cover the same fragment.

    Raises:
        SchemaError: There is no such column.
        InvalidInputError: The segments are of different kinds or fields, the index of that name is on another field, or
            the segments cover only some of the fragments of one of its segments.
        UnsupportedError: Indices of that kind are not built.
        RetryableConflictError: Rows or values that a segment covers have changed since it was built.
        IncompatibleConflictError: The table was dropped and created again since the segments were built.
    """
    kind, field = _check_segments(snapshot, segments)
    _check_versions(snapshot, segments)
    if target_field(snapshot, column, kind).node.id != field.node.id:
        raise InvalidInputError(f"index {name!r}: the segments are on column {field.path!r}, not on {column!r}")
    current = _without_changed(snapshot, [replace(segment, name=name) for segment in segments])
    removed = _find_replaced(snapshot.manifest, name, kind, field, current)
    files = UncommittedFiles(snapshot)  # the segments' files are not added: they stay for another attempt
    try:
        return files.commit(CreateIndex(new_indices=tuple(current), removed_indices=tuple(removed)))
    except RetryableConflictError as error:
        raise RetryableConflictError(f"index {name!r}: {error}") from error


def _check_versions(snapshot: Snapshot, segments: Sequence[IndexMetadata]) -> None:
    """Check that segments were built on this table, not on a dropped table with the same fragment ids."""
    manifests = {snapshot.manifest.version: snapshot.manifest}
    for segment in segments:
        number = segment.dataset_version
        if segment.created_at_ms is None or number > snapshot.manifest.version:
            continue
        if number not in manifests:
            try:
                manifests[number] = load_manifest(snapshot.store, number)
            except VersionNotFoundError:
                continue  # cleaned up since
        if manifests[number].timestamp_ns // 1_000_000 > segment.created_at_ms:
            raise IncompatibleConflictError(
                f"{snapshot.store.root}: version {number} is younger than segment {segment.uuid}, which was built on "
                "it: the table was dropped and made again meanwhile, or the clocks of two machines differ. Build the "
                "segments again"
            )


def _check_segments(snapshot: Snapshot, segments: Sequence[IndexMetadata]) -> tuple[Kind, IndexedField]:
    """The kind and the field that all segments have, if they can be one index."""
    if not segments:
        raise InvalidInputError("at least one index segment is needed")
    first, seen, keys = segments[0], BitMap(), set[uuid.UUID]()
    for segment in segments:
        if (segment.kind, segment.fields) != (first.kind, first.fields):
            raise InvalidInputError(
                f"the segments are of {first.kind} on fields {list(first.fields)}"
                f" and of {segment.kind} on fields {list(segment.fields)}; an index has segments of one kind and field"
            )
        if segment.uuid in keys:
            raise InvalidInputError(f"segment {segment.uuid} is given twice")
        covered = segment.covered_fragments() or BitMap()
        if covered & seen:
            raise InvalidInputError(f"fragment {(covered & seen)[0]} is in two of the segments")
        keys.add(segment.uuid)
        seen |= covered
    if first.kind not in KINDS or len(first.fields) != 1:
        raise UnsupportedError(f"segments of type {first.kind} on fields {list(first.fields)} are not supported")
    return KINDS[first.kind], indexed_field(snapshot.manifest.schema, first.fields[0])


def _without_changed(snapshot: Snapshot, segments: Sequence[IndexMetadata]) -> list[IndexMetadata]:
    """The segments, without fragments whose values were rewritten since they were built.

    Raises:
        InvalidInputError: The segments were built on a later version.
        RetryableConflictError: A commit since then moved rows that they cover, or changed them in another way.
    """
    oldest, last = min(segment.dataset_version for segment in segments), snapshot.manifest.version
    if oldest > last:
        raise InvalidInputError(
            f"the segments were built on version {oldest}, and this is version {last}: open the latest version"
        )
    current = tuple(segments)
    for version in range(oldest + 1, last + 1):
        manifest = load_manifest(snapshot.store, version)
        committed = load_transaction(snapshot.store, manifest)
        mine = tuple(segment for segment in current if segment.dataset_version < version)
        pending = Transaction(read_version=version - 1, operation=CreateIndex(new_indices=mine))
        if committed is None or not (
            isinstance(committed.operation, CreateIndex) or judge(pending, committed) in _HARMLESS
        ):
            raise RetryableConflictError(
                f"index {segments[0].name!r}: version {version} moved or changed rows that segments of version {oldest}"
                " cover; build the segments again"
            )
        if isinstance(committed.operation, Update) and committed.operation.fields_modified:
            changed = {fragment.id for fragment in committed.operation.updated_fragments}
            mine = without_fragments(mine, manifest.schema.with_ancestors(committed.operation.fields_modified), changed)
        elif isinstance(committed.operation, Merge):
            before = load_manifest(snapshot.store, version - 1).fragments
            mine = without_replaced(mine, before, manifest.fragments, manifest.schema)
        fresh = {segment.uuid: segment for segment in mine}
        current = tuple(fresh.get(segment.uuid, segment) for segment in current)
    return list(current)


def _find_replaced(
    manifest: Manifest, name: str, kind: Kind, field: IndexedField, segments: Sequence[IndexMetadata]
) -> list[IndexMetadata]:
    """The segments of an index that new segments replace, because the new segments cover the same fragments."""
    indices = [index for index in manifest.indices if index.name == name]
    index_name(manifest, field, kind, name, replace=True)
    live = BitMap(manifest.fragments.ids)
    covered = BitMap().union(*(segment.covered_fragments() or BitMap() for segment in segments)) & live
    if any(index.kind != segments[0].kind for index in indices):
        if covered != live:
            raise InvalidInputError(
                f"the index {name!r} is of type {indices[0].kind}; segments of type {segments[0].kind} replace it only"
                f" if they cover all fragments, and fragment {(live - covered)[0]} is missing"
            )
        return indices
    removed = []
    for index in indices:
        part = without_moved(manifest.indices, index) & live
        if part <= covered:
            removed.append(index)
        elif part & covered:
            raise InvalidInputError(
                f"segment {index.uuid} of the index {name!r} covers fragment {(part & covered)[0]} as the new segments"
                f" do, and fragment {(part - covered)[0]}, which they do not cover; build segments that cover both"
            )
    return removed
