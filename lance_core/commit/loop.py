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
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

from lance_core.commit.attempts import check_concurrent_attempts
from lance_core.commit.claims import keeping
from lance_core.commit.conflict import AffectedRows, Verdict, judge
from lance_core.commit.handler import Clock, VersionWriter
from lance_core.commit.listeners import LISTENERS
from lance_core.commit.proofs import (
    committed_batch,
    known_idempotent_commit,
    proof_of,
    reject_later_attempt,
    reject_later_fill,
)
from lance_core.commit.rebase import Rebased, rebase
from lance_core.commit.records import CommitOptions, Committed
from lance_core.commit.relation import carries_on
from lance_core.commit.repair import repaired
from lance_core.commit.replaced_columns import reject_replaced_columns
from lance_core.commit.versions import (
    Listed,
    already_exists,
    check_identity,
    explain_missing,
    load_following,
    load_latest,
    load_manifest,
    load_transaction,
)
from lance_core.errors import (
    CommitConflictError,
    CorruptFileError,
    HistoryGapError,
    IncompatibleConflictError,
    InvalidInputError,
    LanceError,
    OutcomeUnknownError,
    RetryableConflictError,
    UnsupportedError,
    VersionNotFoundError,
)
from lance_core.retry import backoff
from lance_core.store import ObjectStore, make_durable, remove_leftovers
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import ApplyContext, Clone, Overwrite, Restore, UnknownOperation
from lance_core.table.paths import DETACHED_BIT, Naming, is_detached
from lance_core.table.transaction import Transaction, is_early
from lance_core.table.unread_files import unread_files
from lance_core.table.watermarks import reject_moved
from lance_core.threads import ThreadPool

__all__ = ["Prepare", "commit"]

Prepare: TypeAlias = Callable[[Transaction, Manifest], Rebased]
"""Completes a transaction with facts of the version that it will follow, such as fragment ids."""

_logger = logging.getLogger(__name__)

_MAX_PAUSE_S = 5.0

_HASTY = 12
"""Number of attempts that follow each other without a pause."""

_READS_AT_A_TIME = 8

_MAX_AHEAD_NS = 3600 * 10**9
"""If the clock of another writer is ahead by less than this, the next version gets a time after that version."""

_MAX_UNSEEN = 4
"""How often a put may report that a version exists while a listing does not show it."""


def commit(
    store: ObjectStore,
    transaction: Transaction,
    *,
    base: Manifest | None = None,
    options: CommitOptions | None = None,
    affected_rows: AffectedRows | None = None,
    source: Manifest | None = None,
    prepare: Prepare | None = None,
    ready: Callable[[], None] | None = None,
) -> Committed:
    """Commit a transaction as the next version.

    Args:
        store: The dataset's store.
        transaction: The change. `read_version` 0 creates the dataset.
        base: A manifest that was read before; it is not read again if it still is the latest.
        options: How to commit.
        affected_rows: The rows that a Delete or Update removes; with them it can follow others on the same fragment.
        source: The manifest that a Clone copies.
        prepare: Completes the transaction; is called in each attempt with the transaction and the version to follow.
        ready: Waits until the files that the transaction refers to are durable; is called before the version is put.

    Raises:
        CommitConflictError: The transaction is a strict Overwrite (`CommitOptions.max_retries`), and another writer has
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
        VersionNotFoundError: A cleanup has removed, or is removing, the version that is restored.
        UnsupportedError: The operation is not known, or a version that is read, followed, restored or cloned has
            feature flags that are not known.
        OutcomeUnknownError: The store failed, and whether the version was committed is not known.
    """
    if isinstance(transaction.operation, UnknownOperation):
        raise UnsupportedError(
            f"{store.root}: an operation {transaction.operation.described} cannot be committed, since it is not known "
            "here; commit it with the library that made it"
        )
    if base is not None:
        base.check_writable()
    work = _CommitLoop(
        store=store,
        original=transaction,
        base=base,
        options=options if options is not None else CommitOptions(),
        affected_rows=affected_rows or {},
        source=source,
        prepare=prepare,
        ready=ready,
    )
    operation = transaction.operation
    with keeping(store, operation.version) if isinstance(operation, Restore) else nullcontext():
        if work.options.detached:
            return work.detached()
        done = work.run()
    if not done.deduplicated:
        _notify(store, done.manifest)
    return done


def _notify(store: ObjectStore, manifest: Manifest) -> None:
    """Call the listeners for commits, in the order in which they registered.

    An error of a listener is logged and not raised: the version is committed, and must not look failed to the caller.
    """
    for listener in LISTENERS:
        try:
            listener(store, manifest)
        except Exception:
            _logger.exception(
                "version %d of %s is committed, but a listener of commits failed", manifest.version, store.root
            )


@dataclass(slots=True, kw_only=True)
class _CommitLoop:
    """One call of `commit`."""

    store: ObjectStore
    original: Transaction
    base: Manifest | None
    options: CommitOptions
    affected_rows: AffectedRows
    source: Manifest | None
    prepare: Prepare | None
    ready: Callable[[], None] | None
    seen: dict[int, Transaction] = field(default_factory=dict)
    winning_manifest: Manifest | None = None
    listing: Future[Listed] | None = None
    slot_s: float = 0.0
    looked: Clock = field(default_factory=Clock.now)
    before: Manifest | None = None

    def run(self) -> Committed:
        # `retrying` would compute the change again; this loop rebases the same change and puts it again.
        started = time.monotonic()
        self.store.prepare_commits()
        self.looked = Clock.now()
        latest = load_latest(self.store) if self.base is None else load_following(self.store, self.base)
        writer = self._writer(latest)
        unseen = 0
        try:
            for attempt in range(1, max(self.options.max_retries, 1) + 1):
                committed = self._attempt(writer, latest, attempt)
                if committed is not None:
                    return committed
                if time.monotonic() - started > self.options.timeout_s:
                    break
                before, self.winning_manifest = latest, writer.winning_manifest
                latest = self._look_again(latest, attempt)
                unseen = unseen + 1 if _number(before) == _number(latest) else 0
                if unseen == _MAX_UNSEEN:
                    raise self._unseen(latest)
        except OutcomeUnknownError:
            raise  # the transaction file may be in use
        except LanceError as error:
            writer.discard()
            if latest is not None:
                explain_missing(self.store, latest, error)
            raise
        writer.discard()
        raise RetryableConflictError(
            f"Retryable commit conflict: {self.store.root}: Failed to commit the transaction after "
            f"{attempt} attempts: other writers committed first each time"
        )

    def _look_again(self, latest: Manifest | None, attempt: int) -> Manifest | None:
        """Read the latest manifest after a lost attempt; after many lost attempts, pause before that."""
        pause = backoff(max(attempt - _HASTY, 0), first=self.slot_s, longest=_MAX_PAUSE_S)
        time.sleep(pause)
        listing, self.listing = self.listing, None
        listed = listing.result() if listing is not None and not pause else None
        if listed is None:
            self.looked = Clock.now()
        if latest is None:
            return load_latest(self.store, self.winning_manifest)
        return load_following(self.store, latest, listed=listed, winning_manifest=self.winning_manifest)

    def _put(self, writer: VersionWriter, manifest: Manifest, transaction: Transaction) -> Manifest | None:
        """Put a version; None if another writer committed that version first.

        After a lost put the loop needs a listing and the manifest in the version's place. Other writers can commit
        while both are read; where each read is a request, both are therefore read in parallel.
        """
        committed = writer.put(manifest, transaction)
        if committed is not None or not self.store.put_is_a_request:
            return committed or writer.resolve_outcome()
        self.looked = Clock.now()
        with ThreadPool(1) as pool:
            self.listing = pool.submit(Listed.of, self.store)
            return writer.resolve_outcome()

    def detached(self) -> Committed:
        """Commit a version that follows the read version and is not part of the history."""
        base = self.base
        if base is None or base.version != self.original.read_version:
            base = load_manifest(self.store, self.original.read_version)
        else:
            check_identity(self.store, base, latest=base.version)
        writer = self._writer(base)
        if writer.naming is not Naming.V2:
            raise InvalidInputError(
                f"{self.store.root}: detached commits need V2 manifest names; migrate_manifest_paths_v2 renames the "
                "manifests"
            )
        self._reject_replaced_columns(base, {})
        while True:
            version = random.getrandbits(63) | DETACHED_BIT
            manifest = self._next(self.original, base, version)
            committed = writer.put(manifest, self.original) or writer.resolve_outcome()
            if committed is not None:
                return Committed(manifest=committed, transaction=self.original, attempts=1)

    def _writer(self, latest: Manifest | None) -> VersionWriter:
        location = latest.location if latest is not None else None
        naming = location.naming if location is not None else self.options.table_format.naming
        return VersionWriter(store=self.store, naming=naming, durable=self.options.durable, ready=self.ready)

    def _attempt(self, writer: VersionWriter, latest: Manifest | None, attempt: int) -> Committed | None:
        """Try to follow the latest version; None if another writer committed that version first."""
        began = time.monotonic()
        proven = self._proven(latest)
        if proven is not None:
            return proven
        if latest is not None and self._creates and self.options.idempotency_key is None:
            raise already_exists(self.store.root)
        self._load_since(latest)
        duplicate = self._duplicate(latest)
        if duplicate is not None:
            return duplicate
        if self.options.write_attempt is not None:
            check_concurrent_attempts(self.options.write_attempt, self.store.root, self.seen)
        self._judge(latest)
        rebased = self._rebased(latest)
        try:
            make_durable(self.store, rebased.written)
            manifest = self._next(rebased.transaction, latest, self._version_after(latest))
            looked = self.looked
            committed = self._put(writer, manifest, rebased.transaction)
            if committed is not None and not writer.is_in_history(committed, latest, looked):
                if latest is not None or self.options.idempotency_key is not None:
                    raise self._taken_away(committed.version)
                committed = None  # the next attempt finds the dataset that others have created
            self.slot_s = self.slot_s or 1.1 * (time.monotonic() - began)
        except OutcomeUnknownError:
            raise
        except LanceError:
            remove_leftovers(self.store, rebased.written)
            raise
        if committed is None:
            remove_leftovers(self.store, rebased.written)
            return None
        _logger.debug("committed version %d of %s in attempt %d", committed.version, self.store.root, attempt)
        return Committed(manifest=committed, transaction=rebased.transaction, attempts=attempt)

    def _taken_away(self, version: int) -> RetryableConflictError:
        """The error of a version that was put under a number that cleanup had freed: its files must not be used again.

        A cleanup that has read the version treats its files as those of an old version, and may remove them at any
        time.
        """
        return RetryableConflictError(
            f"Retryable commit conflict: {self.store.root}: version {version} was committed and cleaned up by others"
            " while this version was written; nothing of this write was committed: repeat it"
        )

    def _proven(self, latest: Manifest | None) -> Committed | None:
        """The commit of the same write that the latest version's proofs show; proofs outlive its version."""
        options = self.options
        if latest is None:
            return None
        if options.write_attempt is not None:
            reject_later_attempt(latest, options.write_attempt, self.store.root)
            if options.fills is not None:
                reject_later_fill(self.store, latest, options.write_attempt, options.fills)
        proven = None
        if options.idempotency_key is not None:
            proven = known_idempotent_commit(self.store, latest, options.idempotency_key)
        if proven is None and options.stream_batch is not None:
            proven = committed_batch(latest, options.stream_batch)
        if proven is None:
            reject_moved(latest.config, self.original.properties, self.store.root)
        return proven

    def _load_since(self, latest: Manifest | None) -> None:
        """Read the transactions of all versions since the read version, or since `checked_through` if it is older."""
        if latest is None:
            return
        read_version = self.original.read_version
        if read_version > latest.version:
            raise InvalidInputError(
                f"{self.store.root}: the transaction was made from version {read_version}, but the latest version is "
                f"{latest.version}"
            )
        looked = self.options.checked_through
        first = read_version if looked is None or self._creates else min(looked, read_version)
        self._read(range(first + 1, latest.version + 1), latest)
        for version in range(first + 1, latest.version + 1):
            if isinstance(self.seen[version].operation, Clone) and not self._creates:
                raise IncompatibleConflictError(
                    f"Incompatible transaction: {self.store.root} was dropped and made again, at version {version}, "
                    f"since version {read_version} was read"
                )

    @property
    def _since_read(self) -> dict[int, Transaction]:
        """The transactions of the versions since the read version, by version."""
        return {
            version: transaction for version, transaction in self.seen.items() if version > self.original.read_version
        }

    def _read(self, versions: range, latest: Manifest) -> None:
        """Read and check the transactions of versions; in parallel where each read is a request."""
        unseen = [version for version in versions if version not in self.seen]
        if len(unseen) > 1 and self.store.put_is_a_request:
            with ThreadPool(_READS_AT_A_TIME) as pool:
                recorded = list(pool.map(lambda version: self._recorded(version, latest), unseen))
            for manifest, transaction in recorded:
                self._see(manifest, transaction)
            return
        for version in unseen:
            self._see(*self._recorded(version, latest))

    def _see(self, manifest: Manifest, transaction: Transaction) -> None:
        """Keep the transaction of a version, after a check that it can have been made from the version before it.

        Raises:
            HistoryGapError: The version was not made from the version before it.
        """
        before, self.before = self.before or self.base, manifest
        follows = before is not None and before.version == manifest.version - 1
        if before is not None and follows and not carries_on(before, manifest, transaction):
            raise HistoryGapError(
                f"Incompatible transaction: version {manifest.version} of {self.store.root} was not made from version "
                f"{before.version}, which was put under a number that cleanup had freed, so what was changed since "
                f"version {self.original.read_version} is not known. `lance verify` names such versions"
            )
        self.seen[manifest.version] = transaction

    def _recorded(self, version: int, latest: Manifest) -> tuple[Manifest, Transaction]:
        loaded = [
            manifest
            for manifest in (latest, self.winning_manifest)
            if manifest is not None and manifest.version == version
        ]
        try:
            manifest = loaded[0] if loaded else load_manifest(self.store, version)
        except VersionNotFoundError:
            if self._creates:
                raise already_exists(self.store.root) from None
            raise HistoryGapError(
                f"Incompatible transaction: version {version} is missing from the history since version "
                f"{self.original.read_version} of {self.store.root}, so what it changed is not known"
            ) from None
        transaction = load_transaction(self.store, manifest)
        if transaction is None:
            raise IncompatibleConflictError(
                f"Incompatible transaction: version {version} of {self.store.root} records no transaction, so what it "
                "changed is not known"
            )
        return manifest, transaction

    @property
    def _creates(self) -> bool:
        return self.original.read_version == 0 or isinstance(self.original.operation, Clone)

    def _duplicate(self, latest: Manifest | None) -> Committed | None:
        """The commit since the read version with the same `idempotency_key`, or of this very attempt; else None."""
        if latest is None:
            return None
        key, value = self.options.idempotency_key or ("", None)
        for version in sorted(self.seen):
            transaction = self.seen[version]
            if self.options.write_attempt is not None and transaction.uuid == self.original.uuid:  # an answer was lost
                manifest = latest if version == latest.version else load_manifest(self.store, version)
                return Committed(manifest=manifest, transaction=transaction, attempts=1)
            if value is not None and transaction.properties.get(key) == value:
                manifest = latest if version == latest.version else load_manifest(self.store, version)
                return Committed(manifest=manifest, transaction=transaction, attempts=0, deduplicated=True)
        return None

    def _judge(self, latest: Manifest | None) -> None:
        """Raise the conflict if the transaction cannot follow a version that was committed since its read version."""
        if latest is None:
            return
        if self._creates:
            raise already_exists(self.store.root)
        earlier = self._since_read
        strict = self.options.max_retries == 0 and isinstance(self.original.operation, Overwrite)
        if strict and earlier:
            raise CommitConflictError(
                f"Commit conflict for version {max(earlier)}: Failed to commit the transaction after 0 retries"
            )
        name = self.original.operation.name
        for version, other in earlier.items():
            verdict = judge(self.original, other, self.affected_rows)
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
        self._reject_replaced_columns(latest, earlier)

    def _reject_replaced_columns(self, latest: Manifest, earlier: dict[int, Transaction]) -> None:
        """Reject new data files whose columns were replaced since they were written."""
        unread = unread_files(self.original.operation, latest)
        if unread:
            reject_replaced_columns(self.store, unread, self.original, latest, self.base, earlier)

    def _rebased(self, latest: Manifest | None) -> Rebased:
        if latest is None:
            return Rebased(transaction=self.original)
        rebased = rebase(self.store, self.original, latest, list(self._since_read.values()), self.affected_rows)
        if self.prepare is None:
            return rebased
        try:
            prepared = self.prepare(rebased.transaction, latest)
        except LanceError:
            remove_leftovers(self.store, rebased.written)
            raise
        return Rebased(transaction=prepared.transaction, written=(*rebased.written, *prepared.written))

    def _version_after(self, latest: Manifest | None) -> int:
        if latest is not None:
            if is_detached(latest.version + 1):
                raise CorruptFileError(f"{self.store.root}: no version can follow number {latest.version}")
            return latest.version + 1
        operation = self.original.operation
        return operation.ref_version if isinstance(operation, Clone) else 1

    def _unseen(self, latest: Manifest | None) -> CorruptFileError:
        version = self._version_after(latest)
        return CorruptFileError(
            f"{self.store.root}: the manifest of version {version} exists, but can be neither listed nor read, so "
            "nothing can be committed. Remove the object under its name below _versions/"
        )

    def _next(self, transaction: Transaction, latest: Manifest | None, version: int) -> Manifest:
        operation = transaction.operation
        source = self.source
        if isinstance(operation, Restore):
            source = load_manifest(self.store, operation.version)
        context = ApplyContext(
            version=version,
            table_format=self.options.table_format,
            source=source,
            proof=None if is_detached(version) else proof_of(transaction, latest, self.options),
        )
        manifest = transaction.apply(latest, context, _time_after(latest))
        if latest is None or not is_early(latest.writer_version):
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
