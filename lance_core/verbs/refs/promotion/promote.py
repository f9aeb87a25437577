"""Promote a branch: commit its changes to its parent, in one version.

    1  compare     the branch's latest version with the fork version (`changes`), the schema, the parent's history
    2  copy        the branch's own data and deletion files, under the same names, into the parent
    3  commit      one Update, made from the fork version, so that changes of the same rows since then are conflicts;
                   made from the latest version if the parent was compacted or cleaned up, or other columns were added
                   or written (`rebase`). If the branch added columns, a Merge of the same changes (`added_columns`)
    4  tag, mark   tag the new version of the parent; record on the branch that it was promoted

All commits of the parent and of the branch since the fork must be known: cleanup by this library stores those that open
branches need (`commit.history`), and after a cleanup by another one nothing is guessed.

A promotion that dies between two steps can be repeated: files that are copied twice are the same, and the commit has
the branch's identity as its idempotency key. The branch keeps its own files and rows.

The parent assigns the ids. A new fragment gets the next fragment id of the version that the commit follows, and its
deletion file, which is named after the id, is rewritten. With stable row ids, rows of the fork version keep their ids,
and rows that were created on the branch get new ids: the parent may have given the branch's ids to other rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lance_core.commit.conflict import AffectedRows
from lance_core.commit.loop import commit_change
from lance_core.commit.proofs import changes_rows
from lance_core.commit.rebase import Rebased
from lance_core.commit.records import Change, Commit, Committed, committed_or_raise
from lance_core.commit.versions import find_manifest, identity_of, list_versions, load_latest
from lance_core.errors import (
    BranchConflictError,
    CommitConflictError,
    IncompatibleConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    RetryableConflictError,
    StoreError,
    VersionNotFoundError,
)
from lance_core.retry import retrying
from lance_core.store import replace_durably
from lance_core.table.filled_slices import SLICES_KEY
from lance_core.table.fragment import Fragment
from lance_core.table.idempotency import PromotedBranch, Proofs
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Operation, Overwrite, Update
from lance_core.table.operations.base import next_fragment_id
from lance_core.table.paths import branch_ref_key
from lance_core.table.refs import TagRef
from lance_core.table.transaction import COMMIT_MESSAGE_KEY, PROMOTION_KEY, Transaction
from lance_core.table.watermarks import differences
from lance_core.verbs.context.references import TableRefs, find_tag, load_branch
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.refs.changes import Branch, BranchChanges, describe_changes_left_behind, load_branch_ends
from lance_core.verbs.refs.promotion.added_columns import AddedColumns
from lance_core.verbs.refs.promotion.files import BranchFiles
from lance_core.verbs.refs.promotion.rebase import rebase_by_commits
from lance_core.verbs.refs.promotion.record import (
    MARK_BRANCH_VERSION,
    MARK_VERSION,
    PROMOTED_FORK_KEY,
    PROMOTED_FROM_KEY,
    PROMOTED_IDENTITY_KEY,
    PROMOTED_VERSION_KEY,
    find_change_after,
    merge_inserted_keys,
    merge_properties,
    promotion_tag,
    promotion_token,
    read_commits_between,
    reject_taken_back,
)
from lance_core.verbs.refs.promotion.update import assign_row_ids, build_promotion_update
from lance_core.verbs.refs.tags import write_tag

_logger = logging.getLogger(__name__)

REBASE_ATTEMPTS: Final = 5
"""How often a promotion is rebased when the parent is compacted meanwhile."""

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """The result of a promotion.

    Attributes:
        branch: The branch.
        branch_version: The version of the branch that was promoted.
        fork_version: Version of the parent that the branch was forked from.
        version: Version of the parent that now has the branch's rows.
        rows_added: Rows in new fragments, including rows that were only moved there.
        rows_removed: Rows that were deleted from the parent's fragments.
        fragments_added: New fragments.
        fragments_removed: Fragments that were removed.
        fragments_updated: Fragments that lost rows, or had columns rewritten.
        files_copied: Files that were copied into the parent.
        bytes_copied: Bytes of the copied files, as far as manifests record them.
        tag: Tag on the version; None without one.
        columns_added: Columns that the branch added.
        deduplicated: Whether nothing was committed: this version of the branch was promoted before, or has no changes.
        left_behind: Changes besides rows, which stay on the branch: configuration, metadata and indices.
    """

    branch: str
    branch_version: int
    fork_version: int
    version: int
    rows_added: int = 0
    rows_removed: int = 0
    fragments_added: int = 0
    fragments_removed: int = 0
    fragments_updated: int = 0
    files_copied: int = 0
    bytes_copied: int = 0
    tag: str | None = None
    columns_added: tuple[str, ...] = ()
    deduplicated: bool = False
    left_behind: tuple[str, ...] = ()


def promote(
    table: TableRefs,
    name: str,
    *,
    version: int | None = None,
    branch_id: str | None = None,
    tag: str | bool = True,
    commit_message: str | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> tuple[Promotion, Manifest]:
    """Commit the changes of a branch to its parent, in one version.

    Args:
        table: The references of the dataset.
        name: The branch.
        version: The version of the branch whose rows are promoted; None for its latest.
        branch_id: The identifier of the branch; None for any.
        tag: Name of the tag on the new version; True for a name made of the branch's, False for none.
        commit_message: Message of the commit.
        transaction_properties: Transaction properties; they replace those of the branch's commits with the same keys.
        dry_run: Whether to do everything but put the version, tag and mark.

    Returns:
        The result, and the parent's version that has the branch's rows. Changes left behind are also logged as a
        warning.

    Raises:
        VersionNotFoundError: There is no such branch.
        BranchConflictError: The parent changed the same rows, columns or slices since the fork, or it is not known
            whether it did; the message names the version.
        RetryableConflictError: Other writers committed during each attempt, or the rows of the branch have changed
            since `version`, or the branch was created again; it can be promoted again.
        OutcomeUnknownError: The storage failed during the commit, or after it, before the tag and the mark were there.
        IncompatibleConflictError: The fork version was deleted.
        SchemaError: The branch dropped or changed columns, or added columns that cannot be null.
        InvalidInputError: The tag exists, the branch was promoted and changed since then, or the parent lacks a base
            path of the branch.
        UnsupportedError: The branch, or the version that it was forked from, has feature flags that are not known.
    """
    branch = load_branch_ends(table, name)
    if branch_id not in (None, branch.ref.id):
        raise RetryableConflictError(
            f"branch {name!r} was deleted and created again since it was looked at. Nothing was committed; look at the "
            "branch as it is now, and promote that"
        )
    if version is not None:
        _check_rows_of(branch, version)
    for end in (branch.parent, branch.head):
        end.manifest.check_writable()
    work = _PromotionCall(
        table=table,
        branch=branch,
        changes=BranchChanges.of(branch),
        columns=AddedColumns.of(branch),
        commits=read_commits_between(branch.head.store, branch.fork_version, branch.head.manifest.version),
        tag=promotion_tag(branch, tag),
        extra=dict(transaction_properties or {}) | {COMMIT_MESSAGE_KEY: commit_message or f"Promote branch {name}"},
        dry_run=dry_run,
    )
    done, latest = work.run()
    if done.left_behind and not dry_run:
        _logger.warning("branch %r keeps changes that were not promoted: %s", name, ", ".join(done.left_behind))
    return done, latest


def _check_rows_of(branch: Branch, version: int) -> None:
    """Check that the branch has the rows of one of its versions: only maintenance has been committed since.

    Raises:
        RetryableConflictError: The branch has other rows, or it is not known whether it has.
    """
    head = branch.head.manifest.version
    changed = find_change_after(branch, version, read_commits_between(branch.head.store, version, head))
    if changed is not None:
        raise RetryableConflictError(
            f"branch {branch.name!r} was to be promoted as it was at version {version}, and its latest version is "
            f"{head}"
            + (f": version {changed} may have changed its rows" if version < head else "")
            + ". Nothing was committed; look at the latest version, and promote that"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromotionCall:
    """One call of `promote`; `commits` are those of the branch since the fork, by version."""

    table: TableRefs
    branch: Branch
    changes: BranchChanges
    columns: AddedColumns
    commits: Mapping[int, Transaction]
    tag: str | None
    extra: Mapping[str, str]
    dry_run: bool

    def run(self) -> tuple[Promotion, Manifest]:
        branch = self.branch
        tagged = self._find_tag()  # before the latest version, which then has the commit of whoever wrote the tag
        latest = self._load_latest()
        commits = self._load_commits(latest)
        promoted = self._find_promoted(latest, commits)
        committed = None if promoted is None else find_manifest(self.branch.parent.store, promoted)
        if committed is None and (promoted is not None or not self.has_changes):
            result = self._build_result(latest.version if promoted is None else promoted)
            return replace(result, deduplicated=True, tag=None), latest
        self._check_tag(tagged, committed)
        if committed is not None:
            if not self.dry_run:
                self._finish(committed)
            return replace(self._build_result(committed.version), deduplicated=True), committed
        branch.check_bases(latest)
        self._check_history(latest, commits)
        files = BranchFiles.of(self.table.root, branch, self.changes)
        files.copy()
        try:
            done = self._commit(latest)
        except BranchConflictError:
            # Each promotion of the branch copies to the same keys, and this conflict is final for all of them.
            latest = self._load_latest()
            promoted = self._find_promoted(latest, self._load_commits(latest))
            if promoted is None:
                files.discard()
                raise
            done = self._find_commit_of_another(promoted, latest)
        if self.dry_run:
            return self._build_result(latest.version), latest
        self._finish(done.manifest)
        result = replace(
            self._build_result(done.manifest.version), files_copied=len(files), bytes_copied=files.num_bytes
        )
        return replace(result, deduplicated=done.deduplicated), done.manifest

    @property
    def head_version(self) -> int:
        """The branch's version that is promoted."""
        return self.branch.head.manifest.version

    @property
    def has_changes(self) -> bool:
        """Whether the branch has other rows or columns than the fork version, and not only other files."""
        is_changed = find_change_after(self.branch, self.branch.fork_version, self.commits) is not None
        return is_changed and bool(self.changes or self.columns)

    @property
    def unknown(self) -> list[int]:
        """The versions of the branch of which nothing records what they changed."""
        return [at for at in range(self.branch.fork_version + 1, self.head_version + 1) if at not in self.commits]

    @property
    def token(self) -> str:
        """The identifier of this promotion in the parent's history."""
        return promotion_token(self.branch, self.head_version)

    def _load_latest(self) -> Manifest:
        """The parent's latest version."""
        latest = load_latest(self.branch.parent.store, self.branch.parent.manifest)
        assert latest is not None
        return latest

    def _has_manifests(self, latest: Manifest) -> bool:
        """Whether all versions of the parent since the fork exist."""
        since = range(self.branch.fork_version + 1, latest.version)  # the first and the last were read
        return not since or set(since) <= set(list_versions(self.branch.parent.store))

    def _load_commits(self, latest: Manifest) -> dict[int, Transaction]:
        """The commits of the parent since the fork, by version."""
        return read_commits_between(self.branch.parent.store, self.branch.fork_version, latest.version)

    def _check_history(self, latest: Manifest, commits: Mapping[int, Transaction]) -> None:
        """Check that each commit of the parent since the fork is known, and if one changed rows, each of the branch.

        Raises:
            BranchConflictError: A commit is not known.
        """
        name, fork = self.branch.parent_name, self.branch.fork_version
        missing = [version for version in range(fork + 1, latest.version + 1) if version not in commits]
        if not missing and self.unknown and any(map(changes_rows, commits.values())):
            name, missing = f"branch {self.branch.name!r}", self.unknown
        if missing:
            raise BranchConflictError(
                f"branch {self.branch.name!r} cannot be promoted: what its promotion could overwrite is not known, as "
                f"nothing records what {name} changed in version {', '.join(map(str, missing[:_SHOWN]))}"
                f"{' and others' if len(missing) > _SHOWN else ''}. The cleanup of another library, or of an older "
                "release of this one, removed it; this one's stores what open branches need. Nothing was written. "
                "Discard the branch, fork again and write again"
            )

    def _find_promoted(self, latest: Manifest, commits: Mapping[int, Transaction]) -> int | None:
        """The parent's version that an earlier promotion of these rows of the branch committed; None without one.

        The version may be cleaned up: then the mark on the branch, or the proof in the parent, shows it.

        Raises:
            InvalidInputError: The branch was promoted, and has other rows since.
            BranchConflictError: A later version of the parent took the promotion back, or may have.
        """
        branch, unique = self.branch, self.token.rpartition("@")[0]
        tokens = {version: transaction.properties.get(PROMOTION_KEY, "") for version, transaction in commits.items()}
        marks = branch.ref.metadata
        if {MARK_VERSION, MARK_BRANCH_VERSION} <= marks.keys():
            tokens.setdefault(int(marks[MARK_VERSION]), f"{unique}@{marks[MARK_BRANCH_VERSION]}")
        for version, token in tokens.items():
            unique_part, _, promoted = token.rpartition("@")
            if unique_part != unique:
                continue
            if find_change_after(branch, int(promoted), self.commits) is not None:
                raise InvalidInputError(
                    f"branch {branch.name!r} was promoted to version {version} of {branch.parent_name} when it was at "
                    f"version {promoted}, and has changed since: its version {self.head_version} cannot be promoted as "
                    "well. Fork a new branch and write the later changes there"
                )
            operation = build_promotion_update(branch, self.changes, None)
            reject_taken_back(branch.parent.store, latest, branch.name, version, commits, operation)
            return version
        return Proofs.of(latest.config).key((PROMOTION_KEY, self.token))

    def _commit(self, latest: Manifest) -> Committed:
        branch = self.branch
        commits = self.commits.values()
        inserted = None if self.unknown else merge_inserted_keys(commits)
        operation = self.columns.renumber(build_promotion_update(branch, self.changes, inserted))
        moves = differences(branch.parent.manifest.config, branch.head.manifest.config)
        properties = (
            merge_properties(commits)
            | moves
            | {
                PROMOTED_FROM_KEY: branch.name,
                PROMOTED_VERSION_KEY: str(self.head_version),
                PROMOTED_IDENTITY_KEY: identity_of(branch.head.manifest),
                PROMOTED_FORK_KEY: str(branch.fork_version),
                **self.extra,
                PROMOTION_KEY: self.token,
            }
        )
        transaction = Transaction(read_version=branch.fork_version, operation=operation, properties=properties)
        if not self._has_manifests(latest):
            return self._put_on_latest(transaction)
        try:
            return self._put(transaction, self.changes.rows_taken(branch), latest)
        except RetryableConflictError:
            return self._put_on_latest(transaction)
        except IncompatibleConflictError as error:
            if not self._has_manifests(self._load_latest()):  # a version was cleaned up since the check
                return self._put_on_latest(transaction)
            raise self._conflict_error(error) from error

    def _put_on_latest(self, transaction: Transaction) -> Committed:
        """Commit on top of the latest version, if it has the rows that the branch replaces unchanged."""
        return retrying(
            self._load_latest(),
            lambda latest, _: self._put_on(latest, transaction),
            lambda _before, _error: self._load_latest(),
            conflict_retries=REBASE_ATTEMPTS - 1,
            is_retryable=lambda error: not isinstance(error, BranchConflictError),
            exhausted=self._contention_error,
        )

    def _put_on(self, latest: Manifest, transaction: Transaction) -> Committed:
        commits = self._load_commits(latest)
        promoted = self._find_promoted(latest, commits)
        if promoted is not None:
            return self._find_commit_of_another(promoted, latest)
        self._check_history(latest, commits)
        branch = self.branch
        files = UncommittedFiles(branch.parent.with_manifest(latest))
        try:
            followed, affected = rebase_by_commits(
                branch, self.changes, self.columns, transaction, latest, commits, files
            )
        except RetryableConflictError as error:
            files.discard()
            raise self._conflict_error(error) from error
        try:
            done = self._put(followed, affected, latest)
        except CommitConflictError:
            files.discard()
            raise
        if self.dry_run:
            files.discard()
        return done

    def _find_commit_of_another(self, promoted: int, latest: Manifest) -> Committed:
        """The commit that another promotion of the branch made meanwhile; the latest version if it was cleaned up."""
        manifest = find_manifest(self.branch.parent.store, promoted) or latest
        return Committed(manifest=manifest, transaction=None, attempts=0, deduplicated=True)

    def _put(self, transaction: Transaction, affected: AffectedRows, base: Manifest) -> Committed:
        outcome = commit_change(
            self.branch.parent.store,
            Change(
                transaction=transaction,
                base=base,
                affected_rows=affected,
                prepare=self._prepare_fragments,
                branch=PromotedBranch(
                    config=self.branch.head.manifest.config,
                    fork_version=self.branch.fork_version,
                    fragments=tuple(fragment.id for fragment in self.changes.added),
                ),
            ),
            options=Commit(idempotency_key=(PROMOTION_KEY, self.token)),
            dry_run=self.dry_run,
        )
        return committed_or_raise(outcome)

    def _prepare_fragments(self, transaction: Transaction, latest: Manifest) -> Rebased:
        """Give the new fragments the next ids of the latest version, and write their deletion files."""
        operation = transaction.operation
        assert isinstance(operation, Update)
        if _has_rows(latest) and not _has_rows(self.branch.parent.manifest) and self._replaces_table():
            raise self._conflict_error(
                f"the branch replaced the whole table, which had no rows then, and version {latest.version} has rows "
                "of others"
            )
        if self.unknown:
            self._check_history(latest, self._load_commits(latest))
        written: list[str] = []
        numbered = []
        for number, (new, old) in enumerate(
            zip(operation.new_fragments, self.changes.added, strict=True), next_fragment_id(latest)
        ):
            fragment = replace(new, id=number)
            if old.deletion_file is not None:
                fragment = self._add_deletions(fragment, old, latest)
                assert fragment.deletion_file is not None
                written.append(fragment.deletion_file.key(number))
            numbered.append(fragment)
        if latest.uses_stable_row_ids:
            numbered = assign_row_ids(numbered, self.branch.parent.manifest.next_row_id, latest.next_row_id)
        changed: Operation = replace(operation, new_fragments=tuple(numbered))
        if self.columns:
            changed, files = self.columns.merge(replace(operation, new_fragments=tuple(numbered)), latest)
            for key, data in files.items():
                self.branch.parent.store.put(key, data)
            written += files
        return Rebased(transaction=replace(transaction, operation=changed), written=tuple(written))

    def _replaces_table(self) -> bool:
        """Whether the branch overwrote the whole table."""
        return any(
            isinstance(transaction.operation, Overwrite) and SLICES_KEY not in transaction.properties
            for transaction in self.commits.values()
        )

    def _add_deletions(self, fragment: Fragment, old: Fragment, latest: Manifest) -> Fragment:
        hidden = self.branch.head.deletions(old)
        assert hidden is not None
        file, data = hidden.to_file(latest.version)
        self.branch.parent.store.put(file.key(fragment.id), data)
        return replace(fragment, deletion_file=file)

    def _conflict_error(self, reason: CommitConflictError | str) -> BranchConflictError:
        """The error for a conflict; the reason names the version, and the fragments, columns or slices concerned."""
        branch = self.branch
        return BranchConflictError(
            f"branch {branch.name!r} cannot be promoted: since its version {branch.fork_version}, which the branch was "
            f"forked from, {branch.parent_name} has changed what the branch changed, or it is not known whether it "
            f"has: {reason}. Nothing was committed. Discard the branch, fork again and write again"
        )

    def _contention_error(self, attempts: int, error: CommitConflictError) -> RetryableConflictError:
        """The error after the last attempt, which keeps the copied files: a next promotion needs them again."""
        return RetryableConflictError(
            f"branch {self.branch.name!r} was not promoted: during each of {attempts} attempts another writer "
            f"committed to {self.branch.parent_name} ({error}). Nothing was committed; promote the branch again "
            "when fewer writers are active"
        )

    def _find_tag(self) -> TagRef | None:
        """The tag with the name of the one to be written; None without one."""
        return None if self.tag is None else find_tag(self.table.root, self.tag)

    def _check_tag(self, tag: TagRef | None, committed: Manifest | None) -> None:
        """Check, before anything is written, that the tag can be created.

        Raises:
            InvalidInputError: The tag names another version.
        """
        if tag is None:
            return
        if committed is None or (tag.version, tag.branch) != (committed.version, self.branch.ref.parent_branch):
            raise InvalidInputError(f"Ref conflict error: tag {self.tag} already exists, on version {tag.version}")

    def _finish(self, committed: Manifest) -> None:
        """Tag the version, and record on the branch that it was promoted.

        Raises:
            OutcomeUnknownError: The storage failed.
        """
        try:
            self._write_tag(committed)
            self._write_mark(committed)
        except StoreError as error:
            raise OutcomeUnknownError(
                f"branch {self.branch.name!r} is promoted as version {committed.version} of {self.branch.parent_name}, "
                f"but its tag or its mark is missing: {error}. Promote it again: that commits nothing, and writes both"
            ) from error

    def _write_tag(self, committed: Manifest) -> None:
        branch = self.branch
        if self.tag is not None:
            try:
                write_tag(self.table, self.tag, branch.ref.parent_branch, committed, {PROMOTED_FROM_KEY: branch.name})
            except InvalidInputError:
                self._check_tag(self._find_tag(), committed)  # an interrupted or concurrent promotion created it
            except VersionNotFoundError as error:  # the rows are promoted all the same, in the versions that follow it
                _logger.warning("branch %s is promoted, without the tag %s: %s", branch.name, self.tag, error)

    def _write_mark(self, committed: Manifest) -> None:
        branch = self.branch
        mark = {MARK_VERSION: str(committed.version), MARK_BRANCH_VERSION: str(self.head_version)}
        try:
            ref = load_branch(self.table.root, branch.name)  # others may have replaced its metadata meanwhile
        except VersionNotFoundError:
            return  # it was deleted meanwhile
        if ref.identifier == branch.ref.identifier and not mark.items() <= ref.metadata.items():
            marked = replace(ref, metadata={**ref.metadata, **mark})
            replace_durably(self.table.root, branch_ref_key(branch.name), marked.to_bytes())

    def _build_result(self, version: int) -> Promotion:
        changes = self.changes
        return Promotion(
            branch=self.branch.name,
            branch_version=self.head_version,
            fork_version=self.branch.fork_version,
            version=version,
            rows_added=changes.rows_added,
            rows_removed=changes.rows_removed,
            fragments_added=len(changes.added),
            fragments_removed=len(changes.removed),
            fragments_updated=len(changes.updated),
            tag=self.tag,
            columns_added=self.columns.names,
            left_behind=describe_changes_left_behind(self.branch),
        )


def _has_rows(manifest: Manifest) -> bool:
    return any(fragment.num_rows for fragment in manifest.fragments)
