"""Finds the obstacles to an erasure, which `erase` reports before it removes anything.

Tags, branches and clones that keep a version with the rows, runs that still read one (`ErasureOptions.in_use`),
orphaned branches, columns that were renamed, and blobs outside of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

import pyarrow.compute as pc

from lance_core.encoding.structural.blob import BlobKind
from lance_core.maintenance.erasure.report import ErasureFinding, ErasureOptions
from lance_core.maintenance.erasure.survey import ErasureSurvey, SurveyedVersion
from lance_core.maintenance.verify.index_values import open_stored_rows
from lance_core.schema.field import is_blob_v2
from lance_core.table.refs import BranchRef
from lance_core.verbs.context.references import TableRefs
from lance_core.verbs.refs.clones import CLONE_KEY, is_clone_tag
from lance_core.verbs.refs.readers import is_reader_tag
from lance_core.verbs.refs.sweep import find_orphans, is_fork_tag
from lance_core.verbs.rows.removal import each_matching
from lance_core.verbs.scan.projection import described_columns


def find_obstacles(table: TableRefs, facts: ErasureSurvey, options: ErasureOptions) -> Iterator[ErasureFinding]:
    """Yield the obstacles to an erasure.

    Args:
        table: The references of the dataset.
        facts: The survey of the dataset.
        options: The options of the erasure.
    """
    removed = facts.removed(drops=options.drop_indices)
    yield from _find_tags(facts, options, removed)
    for name, number in sorted(options.in_use.items()):
        if number in removed[None]:
            message = f"version main:{number}, which holds the rows, is in use by {name}: let it finish, then erase"
            yield ErasureFinding(kind="in use", path=name, message=message)
    for name in () if options.release_branches else find_forks(facts.refs, removed):
        message = (
            f"it was forked from {facts.refs[name].parent_branch or 'main'}:{facts.refs[name].parent_version}, which "
            "holds the rows: promote or discard the branch, or set release_branches, which removes that version; the "
            "branch cannot be promoted after that"
        )
        yield ErasureFinding(kind="branch", path=name, message=message)
    for name in find_orphans(table, facts.refs.keys(), timedelta(0)):
        message = f"no reference names the branch: remove its files by branches.discard({name!r})"
        yield ErasureFinding(kind="orphan branch", path=name, message=message)
    for version in facts.latest():
        yield from _find_renamed(facts, version)
        if _has_external_blobs(facts, version):
            message = (
                "rows refer to blobs by URI, and an erasure does not remove such objects: remove the objects, delete "
                "the rows and compact (materialize_deletions_threshold=0), then erase"
            )
            yield ErasureFinding(kind="blobs", path=version.branch_label, message=message)


def find_forks(refs: Mapping[str, BranchRef], versions: Mapping[str | None, Collection[int]]) -> list[str]:
    """Find the branches that were forked from one of some versions.

    Args:
        refs: All branches.
        versions: Numbers of versions, by branch; None is main.
    """
    return sorted(name for name, ref in refs.items() if ref.parent_version in versions.get(ref.parent_branch, ()))


def _find_tags(
    facts: ErasureSurvey, options: ErasureOptions, removed: Mapping[str | None, Collection[int]]
) -> Iterator[ErasureFinding]:
    """The tags of versions that have to be removed, but those of readers and of the forks of branches."""
    for name, ref in sorted(facts.tags.items()):
        if ref.version not in removed.get(ref.branch, ()) or is_reader_tag(name, ref):
            continue
        where = f"version {ref.branch or 'main'}:{ref.version}, which holds the rows"
        if is_clone_tag(name, ref):
            clone = ref.metadata[CLONE_KEY]
            remedy = f"erase there, or drop the clone; then clones.release({clone!r})"
            message = f"the clone {clone} refers to files of {where}: {remedy}"
            yield ErasureFinding(kind="clone", path=clone, message=message)
        elif not options.retag and not is_fork_tag(name, ref):
            message = f"the tag names {where}: retag moves it to the version after the erasure"
            yield ErasureFinding(kind="tag", path=name, message=message)


def _find_renamed(facts: ErasureSurvey, version: SurveyedVersion) -> Iterator[ErasureFinding]:
    """Yield a finding for each set of columns of a version by which live rows match, if one was renamed since."""
    fields = version.manifest.schema.by_id()
    for names, columns in version.columns.items():
        renamed = [f"{name!r} (now {fields[key].name!r})" for key, name in sorted(names) if fields[key].name != name]
        if not renamed or not any(facts.counts.get((piece.files, names)) for piece in version.pieces):
            continue
        if facts.condition.count_live(version.source.at(replace(version.manifest, schema=columns))):
            message = (
                f"live rows match by columns that have another name in an older version, {', '.join(renamed)}: erase "
                "by the present names first, or remove that version if these rows are to stay"
            )
            yield ErasureFinding(kind="renamed", path=f"{version.branch_label}:{version.number}", message=message)


def _has_external_blobs(facts: ErasureSurvey, version: SurveyedVersion) -> bool:
    """Whether stored rows that match, deleted rows included, refer to blobs by URI.

    If the condition cannot be evaluated in the latest version, all rows of fragments that can hold a row count.
    """
    manifest, columns = version.manifest, described_columns(version.manifest)
    blobs = [field.name for field in manifest.schema.fields if is_blob_v2(field)]
    held = facts.held_fragments(version)
    if columns is None or not blobs or not held:
        return False
    whole = open_stored_rows(version.source, [piece.fragment for piece in version.pieces if piece.fragment.id in held])
    where = facts.condition.build_over(columns) if facts.condition.columns(manifest) is not None else pc.scalar(True)
    conditions = [where & (pc.field(name, "kind") == BlobKind.EXTERNAL.value) for name in blobs]
    return any(len(rows) for condition in conditions for _, rows in each_matching(whole, condition, columns))
