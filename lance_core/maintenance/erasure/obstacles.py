"""Finds the obstacles to an erasure: tags, branches, clones and users that need a version which holds the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Protocol

import pyarrow.compute as pc

from lance_core.commit import load_manifest
from lance_core.encoding.levels.paths import is_blob_v2
from lance_core.encoding.structural.blob import BlobKind
from lance_core.maintenance.erasure.condition import ErasureCondition, stored_rows
from lance_core.maintenance.erasure.report import ErasureFinding, HoldingVersion
from lance_core.maintenance.erasure.survey import ErasureSurvey, Line
from lance_core.table.refs import BranchRef, TagRef
from lance_core.verbs.context.references import TableRefs
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.refs.clones import Clones, is_clone_tag
from lance_core.verbs.refs.readers import READER_KEY, is_reader_tag
from lance_core.verbs.refs.sweep import FORKED_KEY, find_orphans, is_fork_tag
from lance_core.verbs.rows.removal import each_matching
from lance_core.verbs.scan.blob_view import described_columns

__all__ = ["find_obstacles", "holding_versions", "is_needless_fork_tag", "released_branches", "released_readers"]


class _Allowed(Protocol):
    """The options that limit an erasure."""

    @property
    def retag(self) -> bool: ...
    @property
    def release_branches(self) -> bool: ...
    @property
    def drop_indices(self) -> bool: ...
    @property
    def in_use(self) -> Mapping[str, int]: ...


def find_obstacles(
    table: TableRefs, facts: ErasureSurvey, tags: Mapping[str, TagRef], refs: Mapping[str, BranchRef], allowed: _Allowed
) -> tuple[tuple[ErasureFinding, ...], tuple[str, ...]]:
    """The obstacles to an erasure, and the roots of all known clones.

    Args:
        table: The references of the dataset.
        facts: The survey of the dataset.
        tags: All tags.
        refs: All branches.
        allowed: The options of the erasure.
    """
    clones = Clones(table).list()
    obstacles = [*_tagged(facts, tags, allowed), *_used(facts, allowed), *_renamed(facts), *_with_external_blobs(facts)]
    if not allowed.release_branches:
        obstacles += [*_forked(facts, refs, allowed), *_begun(facts, tags, refs, allowed)]
    for name in find_orphans(table, refs.keys(), timedelta(0)):
        message = f"no reference names the branch: remove its files by branches.discard({name!r})"
        obstacles.append(ErasureFinding(kind="orphan branch", path=name, message=message))
    return tuple(obstacles), tuple(sorted({clone["uri"] for clone in clones.values()}))


def _tagged(facts: ErasureSurvey, tags: Mapping[str, TagRef], allowed: _Allowed) -> Iterator[ErasureFinding]:
    lines = {line.branch: line for line in facts.lines}
    for name, ref in sorted(tags.items()):
        line = lines.get(ref.branch)
        if line is None or ref.version not in line.going(drops=allowed.drop_indices) or is_reader_tag(name, ref):
            continue
        where = f"version {line.name}:{ref.version}, which holds the rows"
        if is_clone_tag(name, ref):
            clone = ref.metadata["lance.clone"]
            message = (
                f"the clone {clone} refers to files of {where}: erase there, or drop the clone; then "
                f"clones.release({clone!r})"
            )
            yield ErasureFinding(kind="clone", path=clone, message=message)
        elif not is_fork_tag(name, ref) and not allowed.retag:
            message = f"the tag names {where}: retag moves it to the version after the erasure"
            yield ErasureFinding(kind="tag", path=name, message=message)


def _used(facts: ErasureSurvey, allowed: _Allowed) -> Iterator[ErasureFinding]:
    for name, number in sorted(allowed.in_use.items()):
        if number in facts.lines[0].going(drops=allowed.drop_indices):
            message = f"version main:{number}, which holds the rows, is in use by {name}: let it finish, then erase"
            yield ErasureFinding(kind="in use", path=name, message=message)


def _renamed(facts: ErasureSurvey) -> Iterator[ErasureFinding]:
    for line in facts.lines:
        for columns in line.latest.renamed:
            message = (
                f"live rows match by columns that have another name in an older version, {columns}: erase by the "
                "present names first, or remove that version if these rows are to stay"
            )
            yield ErasureFinding(kind="renamed", path=f"{line.name}:{line.latest.number}", message=message)


def _with_external_blobs(facts: ErasureSurvey) -> Iterator[ErasureFinding]:
    """The branches with rows that refer to blobs by URI; an erasure does not remove the objects at these URIs."""
    for line in facts.lines:
        if line.latest.fragments and _has_external_blobs(facts.condition, line):
            message = (
                "rows refer to blobs by URI, and an erasure does not remove such objects: remove the objects, delete "
                "the rows and compact (materialize_deletions_threshold=0), then erase"
            )
            yield ErasureFinding(kind="blobs", path=line.name, message=message)


def _has_external_blobs(condition: ErasureCondition, line: Line) -> bool:
    """Whether stored rows that match, deleted rows included, refer to blobs by URI.

    If the condition cannot be evaluated in the latest version, all rows count as matching.
    """
    manifest = load_manifest(line.store, line.latest.number)
    columns = described_columns(manifest)
    blobs = [field.name for field in manifest.schema.fields if is_blob_v2(field)]
    if columns is None or not blobs:
        return False
    held = [fragment for fragment in manifest.fragments if fragment.id in line.latest.fragments]
    source = stored_rows(Snapshot(line.store, manifest, line.store.options), held)
    where = condition.of(columns) if line.latest.columns else pc.scalar(True)
    conditions = [where & (pc.field(name, "kind") == BlobKind.EXTERNAL.value) for name in blobs]
    return any(len(rows) for blob_condition in conditions for _, rows in each_matching(source, blob_condition, columns))


def _forked(facts: ErasureSurvey, refs: Mapping[str, BranchRef], allowed: _Allowed) -> Iterator[ErasureFinding]:
    for name in sorted(released_branches(facts, refs, allowed)):
        parent = refs[name].parent_branch or "main"
        message = (
            f"it was forked from {parent}:{refs[name].parent_version}, which holds the rows: promote or discard the "
            "branch, or set release_branches, which removes that version; the branch cannot be promoted after that"
        )
        yield ErasureFinding(kind="branch", path=name, message=message)


def _begun(
    facts: ErasureSurvey, tags: Mapping[str, TagRef], refs: Mapping[str, BranchRef], allowed: _Allowed
) -> Iterator[ErasureFinding]:
    """The branches whose creation began on a version that has to be removed, and was not finished."""
    going = {line.branch: line.going(drops=allowed.drop_indices) for line in facts.lines}
    for name, ref in sorted(tags.items()):
        if is_fork_tag(name, ref) and ref.metadata[FORKED_KEY] not in refs and ref.version in going.get(ref.branch, ()):
            message = (
                f"its creation on {ref.branch or 'main'}:{ref.version}, which holds the rows, was not finished: let it "
                f"finish, or remove what is left of it by tags.delete({name!r}) if it was interrupted"
            )
            yield ErasureFinding(kind="branch", path=ref.metadata[FORKED_KEY], message=message)


def is_needless_fork_tag(name: str, tag: TagRef, refs: Mapping[str, BranchRef]) -> bool:
    """Whether a tag was made for the fork of a branch, and names a version that the branch was not forked from.

    Such a branch was released: it cannot be promoted even while the tag exists.
    """
    if not is_fork_tag(name, tag) or tag.metadata[FORKED_KEY] not in refs:
        return False
    fork = refs[tag.metadata[FORKED_KEY]]
    return (fork.parent_branch, fork.parent_version) != (tag.branch, tag.version)


def released_branches(facts: ErasureSurvey, refs: Mapping[str, BranchRef], allowed: _Allowed) -> set[str]:
    """The branches whose fork version still exists and has to be removed."""
    lines: dict[str | None, Line] = {line.branch: line for line in facts.lines}
    names = set()
    for name, ref in refs.items():
        parent = lines.get(ref.parent_branch)
        if parent is not None and ref.parent_version in parent.going(drops=allowed.drop_indices):
            names.add(name)
    return names


def released_readers(facts: ErasureSurvey, tags: Mapping[str, TagRef], allowed: _Allowed) -> set[str]:
    """The readers of changes that hold a version which has to be removed."""
    going = {line.branch: line.going(drops=allowed.drop_indices) for line in facts.lines}
    return {
        ref.metadata[READER_KEY]
        for name, ref in tags.items()
        if is_reader_tag(name, ref) and ref.version in going.get(ref.branch, ())
    }


def holding_versions(facts: ErasureSurvey, tags: Mapping[str, TagRef]) -> tuple[HoldingVersion, ...]:
    """The versions that hold rows or traces of them."""
    result = []
    for line in facts.lines:
        for number, version in sorted(line.versions.items()):
            if not version.reasons:
                continue
            named = sorted(name for name, ref in tags.items() if (ref.branch, ref.version) == (line.branch, number))
            result.append(
                HoldingVersion(
                    branch=line.name,
                    version=number,
                    is_latest=number == line.latest.number,
                    fragments=len(version.fragments),
                    reasons=tuple(sorted(version.reasons)),
                    tags=tuple(named),
                )
            )
    return tuple(result)
