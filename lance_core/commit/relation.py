"""Checks whether a version was made from the version before it, by both manifests and the transaction.

Cleanup frees the numbers of the versions that it removes. A writer that was slow between finding the latest version and
its put can take such a number: its version then precedes later versions that were never made from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from itertools import chain
from typing import NamedTuple, TypeAlias

from lance_core.commit.conflict import affected_fragments
from lance_core.table.fragment import Fragment
from lance_core.table.idempotency import is_of_commits
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import (
    Append,
    CreateIndex,
    Delete,
    Operation,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    Update,
    UpdateBases,
    UpdateConfig,
)
from lance_core.table.operations.base import ApplyContext
from lance_core.table.row_changes import ROWS_KEY
from lance_core.table.transaction import Transaction

_Files: TypeAlias = tuple[tuple[str, ...], str | None]
"""Paths of the data files of a fragment, and the key of its deletion file."""


class _FieldFact(NamedTuple):
    """The type of a field."""

    id: int
    logical_type: str
    nullable: bool
    metadata: frozenset[tuple[str, bytes]]


class Relation(Enum):
    """What the manifests of two versions with consecutive numbers show."""

    FOLLOWS = "the later one was made from the earlier one, or from a version with the same effect"
    CONTRADICTS = "the later one was not made from the earlier one"
    UNKNOWN = "they do not show whether the later one was made from the earlier one"


def relation(before: Manifest, after: Manifest, made_by: Transaction) -> Relation:
    """Return whether the later of two versions with consecutive numbers can have been made from the earlier one.

    Args:
        before: The earlier one.
        after: The later one.
        made_by: The transaction of the later one.
    """
    operation = made_by.operation
    changed = _changed(operation)
    if changed is None:
        return Relation.UNKNOWN
    if not isinstance(operation, UpdateConfig) and _settings(before) != _settings(after):
        return Relation.CONTRADICTS
    if _columns(before) != _columns(after):
        return Relation.CONTRADICTS
    if isinstance(operation, Append | ReserveFragments | UpdateConfig) and not _index_ids(before) <= _index_ids(after):
        return Relation.CONTRADICTS
    return Relation.FOLLOWS if _explained(before, after, *changed) else Relation.CONTRADICTS


def carries_on(before: Manifest, after: Manifest, made_by: Transaction) -> bool:
    """Whether a version can have been made from the version before it, by the content of both.

    The times of commit show nothing: they are by the clocks of two writers.
    """
    return relation(before, after, made_by) is not Relation.CONTRADICTS


def holds_change(later: Manifest, version: Manifest, base: Manifest | None) -> bool:
    """Whether a later version has what a version added to its base version, and has not what it removed.

    One new file is enough, as file names are random. All else has to be there, as two writers can add it in one way. A
    dropped column is missing by its name: the next column may have its id, if no data file names that.
    """
    before = _facts(base) if base is not None else frozenset()
    after, newest = _facts(version), _facts(later)
    ids = {fact.id for fact in after if isinstance(fact, _FieldFact)}
    added = after - before
    removed = {fact for fact in before - after if not isinstance(fact, _FieldFact) or fact.id in ids}
    if any(isinstance(fact, str) for fact in added & newest):
        return True
    if base is not None and not added and not removed and _next_id(base) == _next_id(version):
        # A delete of no rows has had its effect, if the proof that a retry would look for is there.
        return all(
            value in (base.config.get(key), later.config.get(key))
            for key, value in version.config.items()
            if key != ROWS_KEY
        )
    return added <= newest and removed.isdisjoint(newest) and _next_id(version) <= _next_id(later)


def replaces_content(before: Manifest, after: Manifest, made_by: Transaction) -> bool:
    """Whether an operation hides whether it was made from the version before it, and all that it keeps is there.

    Args:
        before: The earlier one of two versions with consecutive numbers.
        after: The later one.
        made_by: The transaction of the later one.
    """
    operation = made_by.operation
    if isinstance(operation, Project):  # the columns that it drops
        return _facts(operation.apply(before, ApplyContext(version=after.version))) == _facts(after)
    return isinstance(operation, Overwrite | Restore)


def _next_id(manifest: Manifest) -> int:
    return 0 if manifest.max_fragment_id is None else manifest.max_fragment_id + 1


def _changed(operation: Operation) -> tuple[frozenset[int], int] | None:
    """Ids of the fragments that an operation changes or removes, and how many it adds; None if it may change any."""
    match operation:
        case Append():
            added = len(operation.fragments)
        case Update():
            added = len(operation.new_fragments)
        case Rewrite():
            added = sum(len(group.new_fragments) for group in operation.groups if not group.is_in_place)
        case CreateIndex() | Delete() | ReserveFragments() | UpdateConfig() | UpdateBases():
            added = 0
        case _:
            return None
    return affected_fragments(operation), added


def _explained(before: Manifest, after: Manifest, touched: Collection[int], added: int) -> bool:
    """Whether the operation between two versions explains every difference between their fragments."""
    old, new = _differing(before, after), _differing(after, before)
    if len(new.keys() - old.keys()) != added:
        return False
    return all(number in touched or new.get(number) == files for number, files in old.items())


def _differing(left: Manifest, right: Manifest) -> Mapping[int, _Files]:
    """The files of the fragments that differ from those of another version in any byte, by fragment id."""
    left_bytes, right_bytes = left.fragments.raw, right.fragments.raw
    differing = {right_bytes[place] for place in right_bytes.differing(left_bytes)}
    fragments = (
        left.fragments[place] for place in left_bytes.differing(right_bytes) if left_bytes[place] not in differing
    )
    return {fragment.id: _files(fragment) for fragment in fragments}


def _files(fragment: Fragment) -> _Files:
    deletions = fragment.deletion_file
    return tuple(file.path for file in fragment.files), None if deletions is None else deletions.key(fragment.id)


def _facts(manifest: Manifest) -> frozenset[object]:
    """What a version has: names of files and indices as strings, and settings, columns and base paths."""
    names = (name for paths, deletions in map(_files, manifest.fragments) for name in (*paths, deletions))
    maps = enumerate((*_settings(manifest), manifest.schema.metadata))
    settings = ((place, *entry) for place, entries in maps for entry in entries.items())
    fields = list(manifest.schema.walk())
    names_of_fields = ((node.name, parent) for node, parent in fields)
    columns = (
        _FieldFact(node.id, node.logical_type, node.nullable, frozenset(node.metadata.items())) for node, _ in fields
    )
    further_facts = chain(settings, names_of_fields, columns, manifest.base_paths)
    return frozenset(name for name in names if name is not None) | _index_ids(manifest) | frozenset(further_facts)


def _settings(manifest: Manifest) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Configuration and table metadata, without the proofs and watermarks that commits of any operation maintain."""
    return {key: value for key, value in manifest.config.items() if not is_of_commits(key)}, manifest.table_metadata


def _columns(manifest: Manifest) -> Mapping[int, str]:
    return {node.id: node.name for node, _ in manifest.schema.walk()}


def _index_ids(manifest: Manifest) -> frozenset[str]:
    return frozenset(str(index.uuid) for index in manifest.indices)
