"""The commit loop: judges, rebases, applies and puts a transaction, and repeats this if another writer committed first.

    latest manifest -> transactions since the read version -> verdicts -> rebased transaction
        -> next manifest -> conditional put -> committed, or back to the start after a pause

When writers collide, one of them has committed. The first attempts follow each other without a pause, because a writer
that pauses rarely commits beside writers that do not. Later attempts wait for a random time of up to 2^n slots, a slot
being a little longer than one attempt, so that many writers spread out. The loop raises if a version since the read
version is missing from the history, or was not made from the version before it: what was changed is then unknown.
For the same reason the writer checks the history after its put (`commit.handler`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from lance_core.commit.attempts import check_concurrent_attempts
from lance_core.commit.claims import keeping
from lance_core.commit.conflict import AffectedRows, Verdict, judge
from lance_core.commit.handler import Clock, VersionWriter
from lance_core.commit.proofs import TableState, find_proven, proof_of
from lance_core.commit.rebase import Prepare, Rebased, rebase, reject_replaced_columns
from lance_core.commit.records import Change, Commit, Committed, Lost, Outcome, Unknown, committed_or_raise
from lance_core.commit.repair import repaired
from lance_core.commit.versions import (
    VersionListing,
    check_identity,
    load_manifest,
    make_already_exists_error,
    raise_if_dropped,
    reject_inside_dataset,
)
from lance_core.errors import (
    CommitConflictError,
    CorruptFileError,
    DatasetExistsError,
    IncompatibleConflictError,
    InvalidInputError,
    LanceError,
    OutcomeUnknownError,
    RetryableConflictError,
    SupersededError,
    UnsupportedError,
)
from lance_core.retry import backoff
from lance_core.store import ObjectStore, make_durable, remove_leftovers
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import ApplyContext, Clone, Overwrite, Restore, UnknownOperation
from lance_core.table.paths import DETACHED_BIT, Naming, TableFormat, is_detached
from lance_core.table.transaction import Transaction
from lance_core.table.watermarks import reject_moved
from lance_core.threads import ThreadPool

Listener: TypeAlias = Callable[[ObjectStore, Manifest], None]
"""A function of the dataset's store and the committed version."""

LISTENERS: Final[dict[str, Listener]] = {}
"""The listeners, each by the key of the configuration that asks for it."""

NextChange: TypeAlias = Callable[[Change, Manifest, CommitConflictError | DatasetExistsError], Change | Committed]
"""Computes a change again on the latest version, given the change before and its conflict, which it may raise.

It returns an earlier commit if that is kept in place of the change.
"""

_logger = logging.getLogger(__name__)

_MAX_PAUSE_S = 5.0

_HASTY = 12
"""Number of attempts that follow each other without a pause."""

_MAX_AHEAD_NS = 3600 * 10**9
"""If the clock of another writer is ahead by less than this, the next version gets a time after that version."""

_MAX_CHANGES = 20
"""How often a change is computed, the first time included."""

_MAX_UNSEEN = 4
"""How often a put may report that a version exists while a listing does not show it."""


def commit(
    store: ObjectStore,
    transaction: Transaction,
    *,
    base: Manifest | None = None,
    options: Commit | None = None,
    affected_rows: AffectedRows | None = None,
    source: Manifest | None = None,
    prepare: Prepare | None = None,
    new_files: Iterable[str] = (),
    table_format: TableFormat | None = None,
) -> Committed:
    """Commit a transaction as the next version, and raise the error of one that was lost; see `commit_change`.

    Args:
        store: The dataset's store.
        transaction: The change; this and the further arguments are the fields of `Change`.
        base: The version that it was computed from.
        options: How to commit.
        affected_rows: The rows that a Delete or Update removes.
        source: The manifest that a Clone copies.
        prepare: Completes the transaction in each attempt.
        new_files: Keys of the files that it refers to.
        table_format: The format of a dataset that is created.

    Raises:
        CommitConflictError: The transaction is a strict Overwrite (`Commit.max_retries`), and another writer has
            committed since its read version.
        RetryableConflictError: Another writer's commit requires that the whole operation is repeated. If an earlier
            attempt of the same write made that commit, the error is an `EarlierAttemptCommittedError`.
        SupersededError: A later attempt of the same write has committed.
        CorruptFileError: A listing of `_versions` contradicts the files in it.
        IncompatibleConflictError: Another writer's commit is incompatible with this one, the history has a gap, or the
            dataset was dropped and created again since `base` was read.
        InvalidInputError: The operation does not fit the version that it would follow.
        DatasetExistsError: The transaction would create a dataset that exists, or whose files were deleted while an
            external manifest store still has its versions.
        DatasetNotFoundError: The operation needs a dataset and there is none, or the dataset of `base` was dropped.
        ObjectNotFoundError: A new file was deleted, such as by a cleanup.
        VersionNotFoundError: A cleanup has removed, or is removing, the version that is restored.
        UnsupportedError: The operation is not known, or a version that is read, followed, restored or cloned has
            feature flags that are not known.
        OutcomeUnknownError: The store failed, and whether the version was committed is not known.
    """
    change = Change(
        transaction=transaction,
        base=base,
        affected_rows=affected_rows,
        new_files=tuple(new_files),
        prepare=prepare,
        source=source,
        table_format=table_format or TableFormat(),
    )
    return committed_or_raise(commit_change(store, change, options=options))


def commit_change(
    store: ObjectStore,
    change: Change,
    *,
    options: Commit | None = None,
    next_change: NextChange | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Commit a change as the next version; no error is raised.

    Args:
        store: The dataset's store.
        change: The change.
        options: How to commit.
        next_change: Computes the change again on the latest version if it cannot follow that. None: it is lost then.
        dry_run: Stop before the put. The manifest of the result is in no version then.
    """
    options = options if options is not None else Commit()
    writer = VersionWriter(store=store, naming=change.table_format.naming, durable=options.durable, change=change)
    work = _CommitLoop(
        options=options,
        next_change=next_change,
        dry_run=dry_run,
        change=change,
        writer=writer,
        state=TableState(store=store, change=change),
    )
    operation = change.transaction.operation
    try:
        with keeping(store, operation.version) if isinstance(operation, Restore) else nullcontext():
            done = work.detached() if options.detached else work.run()
    except OutcomeUnknownError as error:
        dropped = None if store.put_is_a_request else work.find_drop(error.__cause__)  # as no put can arrive later
        if dropped is not None:
            return Lost(error=work.end(dropped), change=work.change)
        return Unknown(error=error)  # the transaction file may be in use
    except LanceError as error:
        return Lost(error=work.end(error), change=work.change)
    except BaseException as error:  # noqa: BLE001 - an interruption, which the caller raises
        return Unknown(error=error) if writer.has_begun else Lost(error=error, change=work.change)
    if not (done.deduplicated or options.detached or dry_run):
        _notify(store, done.manifest)
    return done


def on_commit(key: str, listener: Listener) -> None:
    """Register a function that this process calls after each commit of a version whose configuration has a key.

    The commit loop must not import the packages above it; they register their functions here, such as automatic
    cleanup.
    """
    LISTENERS[key] = listener


def _notify(store: ObjectStore, manifest: Manifest) -> None:
    """Call the listeners that the configuration asks for, in any order.

    An error of a listener is logged and not raised: the version is committed, and must not look failed to the caller.
    """
    for key in LISTENERS.keys() & manifest.config.keys():
        try:
            LISTENERS[key](store, manifest)
        except Exception:
            _logger.exception(
                "version %d of %s is committed, but a listener of commits failed", manifest.version, store.root
            )


@dataclass(slots=True, kw_only=True)
class _CommitLoop:
    """One commit: how it is made, and the three things that its attempts change.

    Attributes:
        options: How to commit.
        next_change: Computes the change again on the latest version.
        dry_run: Whether to stop before the put.
        change: The change, as it was computed last.
        writer: Writes the versions that are tried.
        state: What was read of the table.
    """

    options: Commit
    next_change: NextChange | None
    dry_run: bool
    change: Change
    writer: VersionWriter
    state: TableState

    @property
    def store(self) -> ObjectStore:
        """The dataset's store."""
        return self.writer.store

    def run(self) -> Committed:
        """Try until the change is committed, an earlier commit of the same write is found, or an error is raised."""
        self._check()
        state, slot_s, attempt, unseen = self.state, 0.0, 0, 0
        until, changes_left = time.monotonic() + self.options.timeout_s, _MAX_CHANGES - 1
        self.store.prepare_commits()
        state.look()
        while True:
            began, attempt = time.monotonic(), attempt + 1
            step: Committed | Rebased | None
            try:
                if attempt > max(self.options.max_retries, 1) or (attempt > 1 and began > until):
                    raise self._outrun(attempt - 1)
                step = self._find_earlier() or self._rebase()
            except (CommitConflictError, DatasetExistsError) as conflict:
                step = self._compute_again(conflict, changes_left)
                changes_left, attempt = changes_left - 1, 0
            if isinstance(step, Committed):
                return replace(step, change=self.change)
            if step is None:
                continue
            committed = self._put_rebased(step)
            if committed is not None:
                _logger.debug("committed version %d of %s in attempt %d", committed.version, self.store.root, attempt)
                return Committed(manifest=committed, transaction=step.transaction, attempts=attempt, change=self.change)
            slot_s = slot_s or 1.1 * (time.monotonic() - began)
            before, state.winning_manifest = state.latest, self.writer.winning_manifest
            state.look(backoff(max(attempt - _HASTY, 0), first=slot_s, longest=_MAX_PAUSE_S))
            unseen = unseen + 1 if _number(before) == _number(state.latest) else 0
            if unseen == _MAX_UNSEEN:
                raise self._unseen()

    def detached(self) -> Committed:
        """Commit a version that follows the read version and is not part of the history."""
        self._check()
        base, transaction = self.change.base, self.change.transaction
        if base is None or base.version != transaction.read_version:
            base = load_manifest(self.store, transaction.read_version)
        else:
            check_identity(self.store, base, latest=base.version)
        self._use_names_of(base)
        if self.writer.naming is not Naming.V2:
            raise InvalidInputError(
                f"{self.store.root}: detached commits need V2 manifest names; migrate_manifest_paths_v2 renames the "
                "manifests"
            )
        reject_replaced_columns(self.store, self.change.transaction, base, self.change.base, {})
        while True:
            manifest = self._next(transaction, base, random.getrandbits(63) | DETACHED_BIT)
            committed = self.writer.put(manifest, transaction) or self.writer.resolve_outcome()
            if committed is not None:
                return Committed(manifest=committed, transaction=transaction, attempts=1, change=self.change)

    def end(self, error: LanceError) -> LanceError:
        """Remove what was written for a change that is lost, apart from its new files, and return why it is lost."""
        self.writer.discard()
        remove_leftovers(self.store, self.change.written)
        return self.find_drop(error) or error

    def find_drop(self, error: BaseException | None) -> LanceError | None:
        """The clearer error where a file is missing because its dataset was dropped or recreated; else None."""
        opened = self.state.latest or self.change.base
        if opened is None or not isinstance(error, LanceError):
            return None
        try:
            raise_if_dropped(self.store, opened, error)
        except LanceError as clearer:
            return clearer
        return None

    def _check(self) -> None:
        operation = self.change.transaction.operation
        if isinstance(operation, UnknownOperation):
            raise UnsupportedError(
                f"{self.store.root}: an operation {operation.described} cannot be committed, since it is not known "
                "here; commit it with the library that made it"
            )
        if self.change.base is not None:
            self.change.base.check_writable()
        elif self.state.creates and not (isinstance(operation, Clone) and operation.branch_name):
            reject_inside_dataset(self.store)

    def _compute_again(self, conflict: CommitConflictError | DatasetExistsError, changes_left: int) -> Committed | None:
        """Compute the change again on the latest version, or return an earlier commit that is kept in its place.

        Raises:
            CommitConflictError, DatasetExistsError: The conflict stays.
        """
        latest, before = self.state.latest, self.change
        exists = isinstance(conflict, DatasetExistsError) and not self.state.creates
        is_final = exists or isinstance(conflict, SupersededError) or not changes_left
        if is_final or latest is None or self.next_change is None:
            raise conflict
        if latest.version == before.transaction.read_version:
            raise conflict  # the conflict is in the change itself
        remove_leftovers(self.store, before.written)
        computed = self.next_change(before, latest, conflict)
        if isinstance(computed, Committed):
            return computed
        self.change = self.writer.change = computed
        self.state.begin(computed)
        return None

    def _find_earlier(self) -> Committed | None:
        """Find a commit of the same write; else read what others have committed since the read version."""
        options, state = self.options, self.state
        latest = state.latest
        if latest is not None:
            proven = find_proven(self.store, latest, options, self.change.fills)
            if proven is not None:
                return proven
            reject_moved(latest.config, self.change.transaction.properties, self.store.root)
            if state.creates and options.idempotency_key is None:
                raise make_already_exists_error(self.store.root)
        state.read_since(options.checked_through)
        duplicate = self._duplicate(latest)
        if duplicate is None and options.write_attempt is not None:
            check_concurrent_attempts(options.write_attempt, self.store.root, state.transactions, self.change.replaces)
        return duplicate

    def _put_rebased(self, rebased: Rebased) -> Manifest | None:
        """Try to follow the latest version; None if another writer committed that version first."""
        latest = self.state.latest
        try:
            make_durable(self.store, rebased.written)
            manifest = self._next(rebased.transaction, latest, self._version_after(latest))
            if self.dry_run:
                remove_leftovers(self.store, rebased.written)
                return manifest
            looked = self.state.looked
            committed = self._put(manifest, rebased.transaction)
            if committed is not None and not self.writer.is_in_history(committed, latest, looked):
                if latest is not None or self.options.idempotency_key is not None:
                    raise self._taken_away(committed.version)
                committed = None  # the next attempt finds the dataset that others have created
        except OutcomeUnknownError:
            raise
        except LanceError:
            remove_leftovers(self.store, rebased.written)
            raise
        if committed is None:
            remove_leftovers(self.store, rebased.written)
        return committed

    def _put(self, manifest: Manifest, transaction: Transaction) -> Manifest | None:
        """Put a version; None if another writer committed that version first.

        After a lost put the loop needs a listing and the manifest in the version's place. Other writers can commit
        while both are read; where each read is a request, both are therefore read in parallel.
        """
        self._use_names_of(self.state.latest)
        committed = self.writer.put(manifest, transaction)
        if committed is not None or not self.store.put_is_a_request:
            return committed or self.writer.resolve_outcome()
        self.state.looked = Clock.now()
        with ThreadPool(1) as pool:
            self.state.listing = pool.submit(VersionListing.of, self.store)
            return self.writer.resolve_outcome()

    def _use_names_of(self, latest: Manifest | None) -> None:
        """Name manifests as an existing dataset does."""
        if latest is not None and latest.location is not None:
            self.writer.naming = latest.location.naming

    def _taken_away(self, version: int) -> RetryableConflictError:
        """The error of a version that was put under a number that cleanup had freed: its files must not be used again.

        A cleanup that has read the version treats its files as those of an old version, and may remove them at any
        time.
        """
        return RetryableConflictError(
            f"Retryable commit conflict: {self.store.root}: version {version} was committed and cleaned up by others"
            " while this version was written; nothing of this write was committed: repeat it"
        )

    def _outrun(self, attempts: int) -> RetryableConflictError:
        return RetryableConflictError(
            f"Retryable commit conflict: {self.store.root}: Failed to commit the transaction after "
            f"{attempts} attempts: other writers committed first each time"
        )

    def _duplicate(self, latest: Manifest | None) -> Committed | None:
        """The commit since the read version with the same `idempotency_key`, or of this very attempt; else None."""
        if latest is None:
            return None
        key, value = self.options.idempotency_key or ("", None)
        for version, transaction in sorted(self.state.transactions.items()):
            # An attempt that finds its own transaction was committed, and the answer was lost.
            is_own = self.options.write_attempt is not None and transaction.uuid == self.change.transaction.uuid
            if is_own or (value is not None and transaction.properties.get(key) == value):
                manifest = latest if version == latest.version else load_manifest(self.store, version)
                return Committed(
                    manifest=manifest, transaction=transaction, attempts=int(is_own), deduplicated=not is_own
                )
        return None

    def _judge(self) -> None:
        """Raise the conflict if the transaction cannot follow a version that was committed since its read version."""
        if self.state.latest is None:
            return
        if self.state.creates:
            raise make_already_exists_error(self.store.root)
        earlier, pending = self.state.since_read, self.change.transaction
        strict = self.options.max_retries == 0 and isinstance(pending.operation, Overwrite)
        if strict and earlier:
            raise CommitConflictError(
                f"Commit conflict for version {max(earlier)}: Failed to commit the transaction after 0 retries"
            )
        name = pending.operation.name
        for version, other in earlier.items():
            verdict = judge(pending, other, self.change.affected_rows or {})
            if verdict is Verdict.RETRYABLE:
                raise RetryableConflictError(
                    f"Retryable commit conflict for version {version} of {self.store.root}: This {name} transaction "
                    f"was preempted by concurrent transaction {other.operation.name} at version {version}. Please "
                    "retry."
                )
            if verdict is Verdict.INCOMPATIBLE:
                raise IncompatibleConflictError(
                    f"Incompatible transaction: This {name} transaction is incompatible with concurrent transaction "
                    f"{other.operation.name} at version {version} of {self.store.root}."
                )
        reject_replaced_columns(self.store, self.change.transaction, self.state.latest, self.change.base, earlier)

    def _rebase(self) -> Rebased:
        """Fit the transaction to the latest version, if it can follow that, and let the caller complete it."""
        self._judge()
        change, latest = self.change, self.state.latest
        if latest is None:
            return Rebased(transaction=change.transaction)
        committed = list(self.state.since_read.values())
        rebased = rebase(self.store, change.transaction, latest, committed, change.affected_rows or {})
        if change.prepare is None:
            return rebased
        try:
            prepared = change.prepare(rebased.transaction, latest)
        except LanceError:
            remove_leftovers(self.store, rebased.written)
            raise
        return Rebased(transaction=prepared.transaction, written=(*rebased.written, *prepared.written))

    def _version_after(self, latest: Manifest | None) -> int:
        if latest is not None:
            if is_detached(latest.version + 1):
                raise CorruptFileError(f"{self.store.root}: no version can follow number {latest.version}")
            return latest.version + 1
        operation = self.change.transaction.operation
        return operation.ref_version if isinstance(operation, Clone) else 1

    def _unseen(self) -> CorruptFileError:
        version = self._version_after(self.state.latest)
        return CorruptFileError(
            f"{self.store.root}: the manifest of version {version} exists, but can be neither listed nor read, so "
            "nothing can be committed. Remove the object under its name below _versions/"
        )

    def _next(self, transaction: Transaction, latest: Manifest | None, version: int) -> Manifest:
        operation, source = transaction.operation, self.change.source
        if isinstance(operation, Restore):
            source = load_manifest(self.store, operation.version)
        proof = None if is_detached(version) else proof_of(transaction, latest, self.change, self.options)
        context = ApplyContext(version=version, table_format=self.change.table_format, source=source, proof=proof)
        manifest = transaction.apply(latest, context, _time_after(latest))
        if latest is None or not latest.is_early:
            return manifest
        return repaired(self.store, manifest, latest)


def _time_after(latest: Manifest | None) -> int:
    """The time of a new version: now, or just after the latest version if the clock of that writer was a bit ahead.

    Times therefore ascend where the clocks of writers differ by less than an hour, as ages and look-ups by time expect.
    """
    now = time.time_ns()
    if latest is not None and now <= latest.timestamp_ns < now + _MAX_AHEAD_NS:
        return latest.timestamp_ns + 1
    return now


def _number(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.version
