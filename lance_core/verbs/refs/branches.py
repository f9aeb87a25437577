"""Branches: lines of versions that begin as a copy of a version, without copying files.

    tree/<branch>/_versions/<fork version>.manifest     a Clone, whose files are at the parent's root
    tree/<branch>/data/, _deletions/, _transactions/    the files that the branch writes
    _refs/branches/<branch>.json                        the reference, which makes the branch visible; written last

A tag on the fork version keeps that version from cleanup: other libraries compare URIs as strings to find the versions
that branches need, and delete a version if its URI is spelled differently.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from lance_core.arguments import checked_methods
from lance_core.commit.loop import commit
from lance_core.commit.versions import load_latest, reject_dropped_dataset
from lance_core.errors import (
    AlreadyExistsError,
    CorruptFileError,
    DatasetExistsError,
    InvalidInputError,
    LanceError,
    OutcomeUnknownError,
    StoreError,
    VersionNotFoundError,
)
from lance_core.store import ObjectStore, delete_durably, find_manifest_table, remove_leftovers, replace_durably
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Clone
from lance_core.table.paths import BRANCHES_PREFIX, branch_ref_key, branch_root, tag_ref_key
from lance_core.table.refs import (
    BranchRef,
    TagRef,
    check_branch_name,
    check_known_branch_name,
    name_in_tag,
    new_identifier,
)
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.references import (
    Reference,
    TableRefs,
    load_branch,
    put_reference,
    read_branches,
    read_tags,
    reject_torn,
    remove_misnamed,
    report_torn,
)
from lance_core.verbs.refs.branch_diff import BranchDiff, branch_diff
from lance_core.verbs.refs.promotion.promote import Promotion, promote
from lance_core.verbs.refs.promotion.record import (
    PROMOTED_FROM_KEY,
    is_promotion_tag,
    read_commits_between,
    reject_taken_back,
)
from lance_core.verbs.refs.sweep import (
    FORK_TAG_PREFIX,
    FORKED_KEY,
    ORPHAN_AGE,
    Sweep,
    find_last_commit,
    find_orphans,
    find_stale,
    is_made_tag,
)
from lance_core.verbs.refs.tags import manifest_size, parse_order, write_tag

_logger = logging.getLogger(__name__)

Names = list[str]
Ordered = list[tuple[str, dict[str, Any]]]


@checked_methods
class Branches:
    """The branches of a dataset, except main. They are shared by all handles.

    Args:
        table: Where references are resolved.
        moved: Called with the version that a promotion made on the handle's branch.
    """

    def __init__(self, table: TableRefs, moved: Callable[[Manifest], None] | None = None) -> None:
        self._refs = table
        self._moved = moved

    def list(self) -> dict[str, dict[str, Any]]:
        """All branches by name: parent, lineage, fork version, time, size of the first manifest, metadata.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> branch = table.create_branch("fix")
            >>> sorted(table.branches.list())
            ['fix']
        """
        return {name: _describe(ref) for name, ref in sorted(self._load())}

    def list_ordered(self, order: str | None = None) -> Ordered:
        """All branches by fork version, then name.

        Args:
            order: "asc" or "desc"; None for "desc".

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> branch = table.create_branch("fix")
            >>> [name for name, _ in table.branches.list_ordered("asc")]
            ['fix']
        """
        sign = parse_order(order)
        references = sorted(self._load(), key=lambda pair: (sign * pair[1].parent_version, pair[0]))
        return [(name, _describe(ref)) for name, ref in references]

    def _load(self) -> builtins.list[tuple[str, BranchRef]]:
        refs, torn = read_branches(self._refs.root)
        report_torn(torn.values())
        if not refs and not torn:
            reject_dropped_dataset(self._refs.root)  # raises if the dataset was dropped
        return [*refs.items()]

    def replace_metadata(self, branch: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a branch.

        Raises:
            VersionNotFoundError: There is no such branch.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> branch = table.create_branch("fix")
            >>> table.branches.replace_metadata("fix", {"owner": "data"})
            >>> table.branches.list()["fix"]["metadata"]
            {'owner': 'data'}
        """
        self._refs.reject_successor()
        old = load_branch(self._refs.root, branch)
        replace_durably(self._refs.root, branch_ref_key(branch), replace(old, metadata=dict(metadata)).to_bytes())

    def diff(self, name: str, *, partition_by: Sequence[str] | None = None) -> BranchDiff:
        """The changes of a branch since it was forked: fragments, rows, partitions, columns.

        Manifests are compared; data is read only with `partition_by`.

        Args:
            name: The branch.
            partition_by: Columns whose values identify partitions: they are read for all changed rows, and removed and
                added rows are counted by partition. None reports the partitions that the branch's commits name.

        Raises:
            VersionNotFoundError: There is no such branch.
            IncompatibleConflictError: The fork version was deleted.
            SchemaError: There is no such column.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.create_branch("fix").insert(pa.table({"id": [4]}))
            >>> table.branches.diff("fix").rows
            RowChanges(at_fork=3, on_branch=4, added=1, removed=0)
        """
        return branch_diff(self._refs, name, partition_by)

    def promote(
        self,
        name: str,
        *,
        version: int | None = None,
        branch_id: str | None = None,
        tag: str | bool = True,
        commit_message: str | None = None,
        transaction_properties: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> Promotion:
        """Commit the changes of a branch to its parent, in one version; the branch keeps its rows and files.

        The branch's own files are copied; object storage copies them itself. Commits of others to the parent since the
        fork are kept: appends, changes of other rows, and compactions. A second promotion of the same version of the
        branch commits nothing. A handle on the parent moves to the new version.

        Configuration, metadata and indices that the branch changed stay on the branch: the result and a warning in the
        log name them.

        Args:
            name: The branch.
            version: The version of the branch whose rows are promoted, such as the one that was checked; None for its
                latest. Versions of maintenance since then do not count.
            branch_id: The UUID of the branch, the last of its `branch_identifier`, so that no later branch of the name
                is promoted in its place; None for any.
            tag: Name of a tag for the new version; True for `promoted.<branch>.<id>`, False for none.
            commit_message: Message of the commit.
            transaction_properties: Transaction properties of the commit, besides those of the branch's commits.
            dry_run: Whether only to find out if the branch can be promoted now: the same errors are raised, and nothing
                is committed or tagged. The result's `version` is then the parent's latest. The files are copied, as
                conflicts are found by them; a promotion uses the copies, and cleanup removes those that none uses.

        Raises:
            VersionNotFoundError: There is no such branch.
            BranchConflictError: The parent changed the same rows or columns, or filled the same partition, since the
                fork, or it is not known whether it did; or the branch overwrote a table without rows, which has rows of
                others now.
            RetryableConflictError: The rows of the branch have changed since `version`, the branch was created again,
                or other writers committed during each attempt.
            IncompatibleConflictError: The fork version was deleted.
            SchemaError: The branch dropped or changed columns, or added columns that cannot be null.
            InvalidInputError: The tag exists, the branch was promoted and changed since then, or the parent lacks a
                base path of the branch.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.create_branch("fix").insert(pa.table({"id": [4]}))
            >>> table.branches.promote("fix").version
            2
            >>> lance.dataset("t.lance").count_rows()
            4
        """
        self._refs.reject_successor()
        done, latest = promote(
            self._refs,
            name,
            version=version,
            branch_id=branch_id,
            tag=tag,
            commit_message=commit_message,
            transaction_properties=transaction_properties,
            dry_run=dry_run,
        )
        if not dry_run and self._moved is not None and latest.branch == self._refs.branch:
            self._moved(latest)
        return done

    def check_promotion(self, name: str, version: int) -> None:
        """Check that this branch, or main, has the rows of a promotion, or newer ones: no undo or restore followed it.

        Args:
            name: The branch that was promoted; it may have been discarded since.
            version: The version that the promotion made.

        Raises:
            BranchConflictError: The rows were taken back, or may have been; the message names the version.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.create_branch("fix").insert(pa.table({"id": [4]}))
            >>> table.branches.check_promotion("fix", table.branches.promote("fix").version)
        """
        store = self._refs.store_of(self._refs.branch)
        latest = load_latest(store)
        assert latest is not None
        commits = read_commits_between(store, version - 1, latest.version)
        reject_taken_back(store, latest, name, version, commits, getattr(commits.get(version), "operation", None))

    def discard(self, name: str) -> bool:
        """Delete a branch with all its files; a missing branch is not an error.

        Returns:
            Whether there was a branch, or anything left of one.

        Raises:
            InvalidInputError: Another branch was forked from this branch, or a tag names one of its versions.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> branch = table.create_branch("fix")
            >>> table.branches.discard("fix"), table.branches.discard("fix")
            (True, False)
        """
        try:
            self.delete(name)
        except VersionNotFoundError:
            return False
        return True

    def last_commit(self, name: str) -> datetime:
        """When a branch was last committed to, or created: the later of the writer's time and the storage's.

        Args:
            name: The branch.

        Raises:
            VersionNotFoundError: There is no such branch.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> branch = table.create_branch("fix")
            >>> table.branches.last_commit("fix") >= branch.timestamp
            True
        """
        return find_last_commit(self._refs, name, load_branch(self._refs.root, name))

    def orphans(self, older_than: timedelta = ORPHAN_AGE) -> Names:
        """Names of branches that do not exist, of which files or automatic tags are left.

        Their creation or removal was interrupted, or another library removed them and left the tags.

        Args:
            older_than: Leave out names below which a file was written within this time, as these may be branches that
                are being created.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.branches.orphans()
            []
        """
        refs, torn = read_branches(self._refs.root)
        return find_orphans(self._refs, {*refs, *torn}, older_than)

    def sweep(self, older_than: timedelta, *, dry_run: bool = False) -> Sweep:
        """Discard branches whose last commit is older than some time, and orphans of that age.

        A branch is kept if another branch was forked from it, or if a tag names one of its versions.

        Args:
            older_than: The time since the last commit of a branch, or the last write of an orphan.
            dry_run: Only report what would be removed.

        Raises:
            CorruptFileError: The file of a branch or tag is torn, so it is not known which branches are needed.

        Examples:
            >>> from datetime import timedelta
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.branches.sweep(timedelta(days=7), dry_run=True)
            Sweep(stale=(), orphans=(), kept={})
        """
        self._refs.reject_successor()
        refs, torn = read_branches(self._refs.root)
        reject_torn(torn.values())
        stale, reasons = find_stale(self._refs, refs, older_than)
        orphans = find_orphans(self._refs, refs.keys(), older_than)
        for name in () if dry_run else (*stale, *orphans):
            self.discard(name)
        return Sweep(stale=tuple(stale), orphans=tuple(orphans), kept=reasons)

    def delete(self, branch: str) -> None:
        """Remove a branch with its versions and the files that it wrote.

        If the branch's folder is a symbolic link, only the link is removed. Remains of an interrupted creation or
        removal are removed as well, and so is a branch whose file is torn. A file with a name that no branch can have,
        such as a copy, is removed alone. Rows of the branch in an external manifest store are deleted after the files.
        Tags that were created automatically are removed with the branch: by its fork, by promotions from or to it, and
        by readers of its changes.

        Raises:
            VersionNotFoundError: There is no such branch.
            InvalidInputError: Another branch was forked from this branch, or a tag names one of its versions.
            UnsupportedError: The latest version of the branch has feature flags that are not known.
            CorruptFileError: The file of another branch or of a tag is torn, and may refer to this branch.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> branch = table.create_branch("fix")
            >>> table.branches.delete("fix")
            >>> table.branches.list()
            {}
        """
        self._refs.reject_successor()
        root = self._refs.root
        if remove_misnamed(root, BRANCHES_PREFIX, branch):
            return
        check_known_branch_name(branch)
        refs, torn = read_branches(root)
        tags, torn_tags = read_tags(root)
        (report_torn if branch in torn else reject_torn)([*torn.values(), *torn_tags])
        branch_ref = refs.pop(branch, None)
        own_tags = [name for name, tag in tags.items() if _is_removed_with(name, tag, branch, branch_ref)]
        table = find_manifest_table(self._refs.store_of(branch))
        has_rows = table is not None and table.latest() is not None
        exists = branch_ref is not None or branch in torn
        other_branches = {*refs, *torn} - {branch}
        if not exists and not (has_rows or own_tags or _list_files_of_branch(root, branch, other_branches)):
            reject_dropped_dataset(root)
            raise VersionNotFoundError(f"Ref not found error: Branch {branch} does not exist in the table {root.root}")
        _reject_referenced(branch, branch_ref, refs, tags)
        if branch_ref is not None:
            _check_deletable(self._refs.store_of(branch))
        delete_durably(root, branch_ref_key(branch))
        if branch_ref is not None:
            self._look_again(branch, branch_ref)
        if not root.remove_link(branch_root(branch)):
            for error in root.delete_many(_list_files_of_branch(root, branch, other_branches)).values():
                raise error
            root.remove_empty_folders(branch_root(branch))
        if table is not None:
            table.clear()
        for tag in own_tags:
            delete_durably(root, tag_ref_key(tag))

    def _look_again(self, branch: str, branch_ref: BranchRef) -> None:
        """Look for branches and tags that were made while a branch was hidden; later ones find that it was deleted."""
        root = self._refs.root
        refs, torn = read_branches(root)
        tags, _ = read_tags(root)
        try:
            _reject_referenced(branch, branch_ref, {name: ref for name, ref in refs.items() if name != branch}, tags)
            reject_torn(message for name, message in torn.items() if name != branch)
        except LanceError:
            with contextlib.suppress(AlreadyExistsError):  # `ensure` has found the branch without its reference
                put_reference(root, branch_ref_key(branch), branch_ref.to_bytes())
            raise


def create_branch(table: TableRefs, branch: str, reference: Reference, opened: Manifest) -> Manifest:
    """Begin a branch at a version, and return the branch's first version.

    Args:
        table: Where references are resolved.
        branch: Name of the branch.
        reference: Where the branch begins.
        opened: The version of the handle, which is not read again.

    Raises:
        InvalidInputError: The name is not allowed, or the branch exists.
        VersionNotFoundError: There is no such version.
        DatasetNotFoundError: The dataset was dropped.
        IncompatibleConflictError: The dataset was dropped and created again.
        DatasetExistsError: Files of an unfinished or removed branch of that name are left.
    """
    check_branch_name(branch)
    fork = table.resolve(reference)
    is_opened = (fork.branch, fork.version) == (opened.branch, opened.version)
    if not (is_opened and fork.store.put_is_a_request):  # there `write_tag` looks at the version, at no further request
        table.reject_successor()
    source = opened if is_opened else fork.manifest()
    source.check_writable()
    parent = None if fork.branch is None else load_branch(table.root, fork.branch)
    ref = BranchRef(
        parent_version=source.version,
        parent_branch=fork.branch,
        identifier=new_identifier(parent, source.version),
        created_at=int(time.time()),
    )
    tag = _fork_tag(branch, ref)
    write_tag(table, tag, fork.branch, source, {FORKED_KEY: branch})
    try:
        operation = Clone(
            is_shallow=True,
            ref_version=source.version,
            ref_path=fork.store.root,
            ref_name=fork.branch,
            branch_name=branch,
        )
        transaction = Transaction(read_version=source.version, operation=operation)
        first = commit(table.store_of(branch), transaction, source=source).manifest
    except DatasetExistsError as error:
        remove_leftovers(table.root, [tag_ref_key(tag)])
        if any(table.root.list(branch_ref_key(branch), limit=1)):
            raise InvalidInputError(
                f"Ref conflict error: branch {branch} already exists in the table {table.root.root}"
            ) from error
        raise DatasetExistsError(
            f"Ref conflict error: files of an unfinished or removed branch {branch} are left: "
            f"branches.delete({branch!r}) removes them"
        ) from error
    except OutcomeUnknownError:
        raise  # the branch may exist, and needs the tag
    except LanceError:
        remove_leftovers(table.root, [tag_ref_key(tag)])
        raise
    try:
        _register_branch(table, branch, replace(ref, manifest_size=manifest_size(first)), first)
    except InvalidInputError:  # for other errors the tag stays: `ensure` finishes the creation
        remove_leftovers(table.root, [tag_ref_key(tag)])
        raise
    if fork.branch is not None:
        _reject_deleted_parent(table, fork.branch, branch)
    return first


def _reject_deleted_parent(table: TableRefs, parent: str, branch: str) -> None:
    """Give up a new branch whose parent was deleted meanwhile: the deletion looks for branches before it removes files.

    Raises:
        VersionNotFoundError: The parent was deleted.
        OutcomeUnknownError: The branch was created, and whether its parent was deleted is not known.
    """
    try:
        load_branch(table.root, parent)
    except VersionNotFoundError:
        Branches(table).discard(branch)
        raise
    except StoreError as error:
        raise OutcomeUnknownError(
            f"branch {branch} was created; whether its parent {parent} was deleted meanwhile is not known: {error}; "
            f"if branches.list() names {parent}, the branch is right; otherwise discard it"
        ) from error


def _reject_referenced(
    branch: str, branch_ref: BranchRef | None, refs: Mapping[str, BranchRef], tags: Mapping[str, TagRef]
) -> None:
    """Make sure that no other branch was forked from a branch that is to be deleted, and that no tag names it.

    Raises:
        InvalidInputError: There is such a branch or tag.
    """
    children = [
        name
        for name, ref in sorted(refs.items())
        if ref.parent_branch == branch or (branch_ref is not None and ref.descends_from(branch_ref))
    ]
    if children:
        raise InvalidInputError(
            f"Ref conflict error: Branch {branch} is referenced by the branches {', '.join(children)}, which were"
            f" forked from it, can not delete; branches.delete({children[0]!r}) deletes the first of them"
        )
    named = [
        name
        for name, tag in tags.items()
        if tag.branch == branch and not _is_removed_with(name, tag, branch, branch_ref)
    ]
    if named:
        raise InvalidInputError(
            f"Ref conflict error: Branch {branch} is referenced by the tags {', '.join(named)}, can not delete;"
            f" tags.delete({named[0]!r}) deletes the first of them"
        )


def _check_deletable(store: ObjectStore) -> None:
    """Check that the latest version of a branch has no unknown feature flags; it may be one that cannot be read.

    Raises:
        UnsupportedError: The latest version has unknown feature flags.
    """
    try:
        latest = load_latest(store)
    except CorruptFileError as error:
        _logger.warning("%s: its latest version cannot be read: %s", store.root, error)
        return
    if latest is not None:
        latest.check_writable()


def _register_branch(table: TableRefs, branch: str, ref: BranchRef, first: Manifest) -> None:
    """Write the reference of a branch whose first version exists.

    Raises:
        InvalidInputError: A reference of that name exists, and is of another branch, whose files were deleted.
    """
    try:
        put_reference(table.root, branch_ref_key(branch), ref.to_bytes())
    except AlreadyExistsError as error:
        existing_ref = load_branch(table.root, branch)
        if (existing_ref.parent_version, existing_ref.parent_branch) == (ref.parent_version, ref.parent_branch):
            return  # another process found the version and finished the creation
        if first.location is not None:
            remove_leftovers(table.store_of(branch), [first.location.key])
        raise InvalidInputError(
            f"Ref conflict error: branch {branch} already exists, but its files were deleted: "
            f"branches.delete({branch!r}) removes the rest"
        ) from error


def _list_files_of_branch(root: ObjectStore, branch: str, other_branches: Iterable[str]) -> list[str]:
    """Keys below a branch's root, except those of branches below that root, such as `a/b` below `a`."""
    other_roots = tuple(f"{branch_root(name)}/" for name in other_branches if name.startswith(f"{branch}/"))
    return [meta.key for meta in root.list_owned(f"{branch_root(branch)}/") if not meta.key.startswith(other_roots)]


def _is_removed_with(name: str, tag: TagRef, branch: str, branch_ref: BranchRef | None) -> bool:
    """Whether a tag is removed with a branch.

    The tag is removed if it keeps the branch's fork version, or a version of the branch that a reader has consumed; if
    a promotion from or to the branch created it automatically; or if it keeps the fork version of a branch of that name
    that another library has deleted.
    """
    is_made_on_it = tag.branch == branch and is_made_tag(name, tag)
    is_of_promotion = is_promotion_tag(name, tag) and tag.metadata[PROMOTED_FROM_KEY] == branch
    return is_made_on_it or is_of_promotion or _keeps_fork_of(name, tag, branch, branch_ref)


def _keeps_fork_of(name: str, tag: TagRef, branch: str, branch_ref: BranchRef | None) -> bool:
    """Whether a tag keeps the version that a branch was forked from."""
    is_its_fork_tag = branch_ref is not None and name == _fork_tag(branch, branch_ref)
    return is_its_fork_tag or (name.startswith(FORK_TAG_PREFIX) and tag.metadata.get(FORKED_KEY) == branch)


def _fork_tag(branch: str, ref: BranchRef) -> str:
    """Name of the tag that keeps the version that a branch was forked from."""
    unique = ref.identifier[-1][1][:8] if ref.identifier else "unknown"
    return f"{FORK_TAG_PREFIX}{name_in_tag(branch)}.{unique}"


def _describe(ref: BranchRef) -> dict[str, Any]:
    return {
        "parent_branch": ref.parent_branch,
        "branch_identifier": [tuple(pair) for pair in ref.identifier],
        "parent_version": ref.parent_version,
        "create_at": ref.created_at,
        "manifest_size": ref.manifest_size,
        "metadata": dict(ref.metadata),
    }
