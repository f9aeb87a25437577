"""Compare a branch with the version that it was forked from, by the manifests of both ends.

    fork   the parent's version that the branch began with      fragments 0 1 2 3
    head   the branch's latest version                          fragments 0 1'  3 4 5

    removed   2       added   4 5       updated   1 -> 1' (a deletion file, or columns in other files)

A branch begins as a shallow clone: its manifest refers to the parent's files by a base path, and to its own files
without one. A fragment of the branch is a fragment of the parent if both have the same id and share a file. If they
have the same id and share no file (an overwrite may use ids again), the fragment counts as removed and added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyroaring import BitMap

from lance_core.commit.versions import load_latest, load_manifest
from lance_core.errors import IncompatibleConflictError, InvalidInputError, VersionNotFoundError
from lance_core.schema import Schema
from lance_core.store import canonical_uri
from lance_core.table.fragment import TOMBSTONE, Fragment
from lance_core.table.idempotency import is_of_commits
from lance_core.table.index import RECORD_PREFIX
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.refs import MAIN, BranchRef
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.references import TableRefs, load_branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch and both ends of it.

    Attributes:
        name: Its name.
        ref: Its reference file: parent, fork version, lineage.
        parent: The parent's fork version, in the parent's store.
        head: The branch's latest version, in the branch's store.
    """

    name: str
    ref: BranchRef
    parent: Snapshot
    head: Snapshot

    @property
    def fork_version(self) -> int:
        """Version of the parent that the branch began with."""
        return self.ref.parent_version

    @property
    def parent_name(self) -> str:
        """The parent, for messages."""
        return self.ref.parent_branch or MAIN

    @property
    def base_id(self) -> int:
        """The base path by which the branch finds its parent's files: the one that the clone added.

        This library's clones add it with the next id, pylance's with the first free id.
        """
        parent_ids = {base.id for base in self.parent.manifest.base_paths}
        added = [
            base.id for base in self.head.manifest.base_paths if base.is_dataset_root and base.id not in parent_ids
        ]
        usual = max(parent_ids, default=-1) + 1
        first = next(number for number in range(len(parent_ids) + 1) if number not in parent_ids)
        return first if usual not in added and first in added else usual

    def as_seen(self, fragment: Fragment) -> Fragment:
        """A fragment of the parent as recorded in the branch's first manifest."""
        return _add_base(fragment, {None: self.base_id})

    def as_parents(self, fragment: Fragment) -> Fragment:
        """A fragment of the branch as the parent will record it, after the branch's own files were copied there."""
        return _add_base(fragment, {self.base_id: None})

    def check_fork(self) -> None:
        """Check that the branch began with the version that the parent has under that number.

        If the dataset was dropped and created again, an old handle can create a branch of the old dataset in the new
        one: `create_branch` checks for that only where the check costs no request.

        Raises:
            IncompatibleConflictError: The branch refers to files of the parent that the version does not have.
        """
        parent_paths = {file.path for fragment in self.parent.manifest.fragments for file in fragment.files}
        for fragment in self.head.manifest.fragments:
            for file in fragment.files:
                if file.base_id == self.base_id and file.path not in parent_paths:
                    raise IncompatibleConflictError(
                        f"branch {self.name!r} refers to {file.path}, which version {self.fork_version} of "
                        f"{self.parent_name} does not have: the dataset was dropped and made again before an old "
                        f"handle created the branch; branches.delete({self.name!r}) removes it"
                    )

    def check_bases(self, latest: Manifest) -> None:
        """Check that the parent has the branch's base paths, so that it finds the files in other places.

        Raises:
            InvalidInputError: The branch has a base path that the parent lacks.
        """
        parent_uris = {base.id: canonical_uri(base.path) for base in latest.base_paths}
        for base in self.head.manifest.base_paths:
            if base.id != self.base_id and parent_uris.get(base.id) != canonical_uri(base.path):
                raise InvalidInputError(
                    f"branch {self.name!r} has the base path {base.path!r} (id {base.id}), which {self.parent_name} "
                    "does not have: deep_clone the branch, or write its rows without target_bases"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchChanges:
    """The fragments that a branch changed, as the manifest of the fork or of the branch records them.

    Attributes:
        removed: The parent's fragments that were deleted.
        updated: The parent's fragments that changed, each with its current record.
        added: New fragments.
    """

    removed: tuple[Fragment, ...]
    updated: tuple[tuple[Fragment, Fragment], ...]
    added: tuple[Fragment, ...]

    @classmethod
    def of(cls, branch: Branch) -> BranchChanges:
        """Compare both ends of a branch."""
        head = branch.head.manifest.fragments
        removed, updated, matched_ids = [], [], set()
        for before in branch.parent.manifest.fragments:
            after = head.get(before.id)
            if after is None or not _is_same(branch.as_seen(before), after):
                removed.append(before)
                continue
            matched_ids.add(before.id)
            if _extract_content(branch.as_seen(before)) != _extract_content(after):
                updated.append((before, after))
        added = tuple(fragment for fragment in head if fragment.id not in matched_ids)
        return cls(removed=tuple(removed), updated=tuple(updated), added=added)

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.removed or self.updated or self.added)

    @property
    def rows_added(self) -> int:
        """Rows in new fragments, including rows that were only moved there."""
        return sum(fragment.num_rows for fragment in self.added)

    @property
    def rows_removed(self) -> int:
        """Rows of the parent that were deleted from their fragments."""
        lost = sum(before.num_rows - after.num_rows for before, after in self.updated)
        return lost + sum(fragment.num_rows for fragment in self.removed)

    def rows_taken(self, branch: Branch) -> dict[int, BitMap]:
        """Offsets of the rows that were deleted from updated fragments, by fragment."""
        rows_by_fragment = {}
        for before, after in self.updated:
            rows_by_fragment[before.id] = branch.head.deleted_rows(after) - branch.parent.deleted_rows(before)
        return rows_by_fragment


def load_branch_ends(table: TableRefs, name: str) -> Branch:
    """Read a branch's reference, its latest version, and the version that it was forked from.

    Raises:
        VersionNotFoundError: There is no such branch.
        IncompatibleConflictError: The fork version was deleted, or another one has its number.
    """
    ref = load_branch(table.root, name)
    store, parent = table.store_of(name), table.store_of(ref.parent_branch)
    head = load_latest(store)
    if head is None:
        raise VersionNotFoundError(
            f"branch {name!r} has a reference, but no version: branches.delete({name!r}) removes the rest"
        )
    try:
        fork = load_manifest(parent, ref.parent_version)
    except VersionNotFoundError as error:
        raise IncompatibleConflictError(
            f"version {ref.parent_version} of {ref.parent_branch or MAIN}, which branch {name!r} was forked from, was "
            "deleted, so what the branch changed is not known: read the branch and write its rows instead"
        ) from error
    options = table.root.options
    branch = Branch(name=name, ref=ref, parent=Snapshot(parent, fork, options), head=Snapshot(store, head, options))
    branch.check_fork()
    return branch


def describe_changes_left_behind(branch: Branch) -> tuple[str, ...]:
    """The changes that a promotion leaves on the branch, such as those of configuration, metadata and indices."""
    before, after = branch.parent.manifest, branch.head.manifest
    maps = (
        ("configuration", before.config, after.config),
        ("table metadata", before.table_metadata, after.table_metadata),
        ("schema metadata", before.schema.metadata, after.schema.metadata),
        ("index", _read_indices(before), _read_indices(after)),
    )
    changes = [
        f"{what} {key!r} ({'added' if key not in old else 'removed' if key not in new else 'changed'})"
        for what, old, new in maps
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not (what == "configuration" and _is_kept_by_verbs(key))
    ]
    names = (before.schema.names, after.schema.names)
    if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
        changes.append("the order of columns")
    return tuple(changes)


def _is_kept_by_verbs(key: str) -> bool:
    """Whether an entry of the configuration is written by commits or maintenance, and not by users."""
    return is_of_commits(key) or key.startswith(RECORD_PREFIX)


def describe_extended_indices(branch: Branch) -> tuple[str, ...]:
    """The indices of both ends of which the branch has further segments, for its own rows, or of vectors other ones."""
    before, after = branch.parent.manifest, branch.head.manifest
    old, kinds = {index.uuid for index in before.indices}, _read_indices(before)
    names = {index.name for index in after.indices if index.uuid not in old and not index.is_system}
    same = sorted(name for name in names if kinds.get(name) == _read_indices(after)[name])
    details = {(index.name, index.details) for index in before.indices}
    # Details of scalar kinds also count what an extension changes.
    changed = {index.name for index in after.indices if index.is_vector and (index.name, index.details) not in details}
    return tuple(f"index {name!r} ({'changed' if name in changed else 'extended'})" for name in same)


def _read_indices(manifest: Manifest) -> dict[str, object]:
    """Each index with its fields, regardless of the fragments that it covers."""
    return {index.name: (index.fields, index.details_type_url) for index in manifest.indices if not index.is_system}


def columns_of(schema: Schema) -> dict[str, list[tuple[object, ...]]]:
    """Each column with its definition."""
    return {
        top.name: [
            (node.id, parent, node.name, node.logical_type, node.nullable, dict(node.metadata))
            for node, parent in top.walk()
        ]
        for top in schema.fields
    }


def _add_base(fragment: Fragment, change: dict[int | None, int | None]) -> Fragment:
    deletion = fragment.deletion_file
    return replace(
        fragment,
        files=tuple(replace(file, base_id=change.get(file.base_id, file.base_id)) for file in fragment.files),
        deletion_file=deletion and replace(deletion, base_id=change.get(deletion.base_id, deletion.base_id)),
    )


def _is_same(before: Fragment, after: Fragment) -> bool:
    """Whether two fragments of one id hold the same rows: they have as many rows, and share a file with a column."""
    files = {(file.path, file.base_id) for file in before.files}
    shared = any(
        (file.path, file.base_id) in files and any(field != TOMBSTONE for field in file.fields) for file in after.files
    )
    return shared and before.physical_rows == after.physical_rows


def _extract_content(fragment: Fragment) -> tuple[object, ...]:
    """The parts of a fragment's record that change with its content, without sizes and row versions."""
    deletion = fragment.deletion_file
    files = tuple((f.path, f.base_id, f.fields, f.column_indices) for f in fragment.files)
    return files, deletion and (deletion.file_type, deletion.read_version, deletion.id, deletion.base_id)
