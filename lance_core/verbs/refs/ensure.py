"""Open a branch, or create it if it does not exist, while other processes may do the same.

The process that puts the first manifest creates the branch; the reference file makes the branch visible. A process that
finds the manifest without the reference writes the reference itself, from the fork in the manifest, as the creator may
have died.
"""

from __future__ import annotations

import time
from typing import Final

from lance_core.commit.versions import list_versions, load_latest, load_manifest, load_transaction
from lance_core.errors import AlreadyExistsError, DatasetExistsError, InvalidInputError, NotFoundError
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Clone, CreateIndex, ReserveFragments, Restore, Rewrite, UpdateConfig
from lance_core.table.paths import branch_ref_key
from lance_core.table.refs import BranchRef, check_known_branch_name, new_identifier
from lance_core.table.transaction import REVERTS_KEY, Transaction
from lance_core.verbs.context.references import Reference, TableRefs, load_branch, put_reference
from lance_core.verbs.refs.branches import Branches, create_branch
from lance_core.verbs.refs.promotion.record import MARK_BRANCH_VERSION, find_equal_version, read_commits_between
from lance_core.verbs.refs.tags import manifest_size

ATTEMPTS: Final = 3

_ADDS_NO_ROW: Final = (CreateIndex, ReserveFragments, Restore, Rewrite, UpdateConfig)


def ensure_branch(
    table: TableRefs, branch: str, reference: Reference, opened: Manifest, *, renew_promoted: bool = False
) -> Manifest:
    """The latest version of a branch, which is created if it does not exist.

    Args:
        table: Where references are resolved.
        branch: The name of the branch.
        reference: Where the branch begins if it is created.
        opened: The version of the handle.
        renew_promoted: Whether a branch that was promoted, and has no changes since, is deleted and created again.

    Raises:
        InvalidInputError: The name is not allowed.
        VersionNotFoundError: There is no such version.
        DatasetExistsError: Files are left of a removed branch of that name.
    """
    check_known_branch_name(branch)
    table.reject_successor()
    for attempt in range(ATTEMPTS):
        latest = load_latest(table.store_of(branch))
        if latest is not None:
            ref = _register_clone(table, branch)
            if not renew_promoted or not _is_spent(table.store_of(branch), ref, latest):
                return latest
            Branches(table).delete(branch)
        try:
            return create_branch(table, branch, reference, opened)
        except (InvalidInputError, DatasetExistsError):  # another process created it first
            if attempt + 1 == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _is_spent(store: ObjectStore, ref: BranchRef, latest: Manifest) -> bool:
    """Whether a branch was promoted, and all its rows since then are on its parent.

    Maintenance adds no rows, and neither does a commit that reverts others: it restores rows of earlier versions.
    """
    marked = ref.metadata.get(MARK_BRANCH_VERSION, "")
    if not marked.isdecimal():
        return False
    promoted = find_equal_version(latest, int(marked))
    if promoted == latest.version:
        return True
    since = read_commits_between(store, promoted, latest.version)
    return len(since) == latest.version - promoted and all(map(_adds_nothing, since.values()))


def _adds_nothing(transaction: Transaction) -> bool:
    return isinstance(transaction.operation, _ADDS_NO_ROW) or REVERTS_KEY in transaction.properties


def _register_clone(table: TableRefs, branch: str) -> BranchRef:
    """The reference of a branch, which is written if there is none."""
    try:
        return load_branch(table.root, branch)
    except NotFoundError:
        ref = _build_reference(table, branch)
    try:
        put_reference(table.root, branch_ref_key(branch), ref.to_bytes())
    except AlreadyExistsError:
        return load_branch(table.root, branch)
    return ref


def _build_reference(table: TableRefs, branch: str) -> BranchRef:
    """The reference of a branch that has one version, the clone that it begins with."""
    store = table.store_of(branch)
    versions = list_versions(store)
    first = load_manifest(store, versions[0])
    transaction = load_transaction(store, first)
    operation = transaction.operation if transaction is not None else None
    if len(versions) > 1 or not isinstance(operation, Clone):
        raise DatasetExistsError(
            f"Ref conflict error: files of a removed branch {branch} are left: branches.delete({branch!r}) removes them"
        )
    parent = None if operation.ref_name is None else load_branch(table.root, operation.ref_name)
    return BranchRef(
        parent_version=operation.ref_version,
        parent_branch=operation.ref_name,
        identifier=new_identifier(parent, operation.ref_version),
        created_at=int(time.time()),
        manifest_size=manifest_size(first),
    )
