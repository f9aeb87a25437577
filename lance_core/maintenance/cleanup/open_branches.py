"""Finds what the promotion of open branches needs of the versions that a cleanup removes.

    main      3 4 5 6 7 8          a branch was forked from 4; a cleanup removes 3 5 6 7
    stored    5 6 7                their transactions (`commit.history`); the files of the versions go
    kept      deletion files       of the fragments that a compaction since then replaced: they say which rows it moved

A branch is open until its promotion has marked it, or until it is deleted. Its own commits since the fork are stored as
well when it is cleaned up itself: they say which slices and keys it filled. Of a promoted branch its own commits since
the promotion are stored, so that one that only maintenance has changed can begin again, and those commits of its parent
that can have taken the promotion back.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lance_core.commit.history import list_removed_versions, load_transactions, removed_key
from lance_core.commit.proofs import changes_rows
from lance_core.maintenance.cleanup.references import References
from lance_core.maintenance.cleanup.referred import VersionReferences
from lance_core.store import ObjectStore
from lance_core.table.manifest.file_references import FileReferences
from lance_core.table.operations import Rewrite, UnknownOperation
from lance_core.table.paths import is_detached
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.refs.promotion.record import MARK_BRANCH_VERSION, MARK_VERSION, is_promoted, may_take_back


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchNeeds:
    """What open branches need of versions that are or were removed.

    Attributes:
        transactions: The transactions to store before their versions are removed.
        files: The files that stay: stored transactions, and deletion files.
        stored: All stored transactions.
    """

    transactions: Mapping[int, Transaction]
    files: References
    stored: References

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        branch: str | None,
        referred: VersionReferences,
        manifests: Mapping[int, FileReferences],
        selected: Collection[int],
        expected: Mapping[int, Transaction],
    ) -> BranchNeeds:
        """Find what branches need.

        Args:
            store: The store of the branch that is cleaned up.
            branch: Its name; None for main.
            referred: The branches of the table.
            manifests: All versions of the branch.
            selected: The versions to remove.
            expected: The transactions of versions that are not committed yet.
        """
        forks = (
            int(ref.metadata.get(MARK_BRANCH_VERSION, ref.parent_version)) if is_promoted(ref) else ref.parent_version
            for name, ref in referred.branches.items()
            if branch == name or (branch == ref.parent_branch and not is_promoted(ref))
        )
        since, stored = min(forks, default=sys.maxsize), list_removed_versions(store)
        readable = {version for version, manifest in manifests.items() if not (is_detached(version) or manifest.fault)}
        present, removed, added = (
            {version for version in versions if version > since}
            for versions in (readable - expected.keys(), stored, expected)
        )
        commits = load_transactions(store, present, removed) | {version: expected[version] for version in added}
        marks = (
            int(ref.metadata[MARK_VERSION])
            for ref in referred.branches.values()
            if branch == ref.parent_branch and is_promoted(ref)
        )
        published = min(marks, default=sys.maxsize)
        present, removed = (
            {version for version in versions if published < version <= since}
            for versions in (readable.intersection(selected) - expected.keys(), stored)
        )
        commits |= {
            version: transaction
            for version, transaction in load_transactions(store, present, removed).items()
            if may_take_back(transaction)
        }
        files = References({removed_key(version) for version in commits.keys() & stored})
        for transaction in commits.values():
            operation = transaction.operation
            for group in operation.groups if isinstance(operation, Rewrite) else ():
                files.files |= {old.deletion_file.key(old.id) for old in group.old_fragments if old.deletion_file}
        new = {
            version: transaction
            for version, transaction in commits.items()
            if version in selected and version not in stored and not isinstance(transaction.operation, UnknownOperation)
        }
        return cls(transactions=new, files=files, stored=References({removed_key(version) for version in stored}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCommit:
    """A commit whose version was removed.

    Attributes:
        operation: The name of its operation, such as "Append".
        properties: Its transaction properties.
        changes_rows: Whether it may have changed rows or columns.
    """

    operation: str
    properties: Mapping[str, str]
    changes_rows: bool


def removed_commits(dataset: Handle) -> dict[int, RemovedCommit]:
    """The commits of removed versions of a branch that are still known, by version: those since its fork or promotion.

    Args:
        dataset: The branch.

    Examples:
        >>> maintenance.removed_commits(lance.write_dataset({"id": [1, 2, 3]}, "t.lance"))
        {}
    """
    store = dataset.snapshot.store
    return {
        version: RemovedCommit(
            operation=made_by.operation.name, properties=made_by.properties, changes_rows=changes_rows(made_by)
        )
        for version, made_by in load_transactions(store, (), list_removed_versions(store)).items()
    }
