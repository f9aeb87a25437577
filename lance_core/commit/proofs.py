"""What a commit reads of its table: the latest version, the transactions since the change was computed, and proofs.

Whether a write was committed already is shown by the proofs in the latest version, then by the history.
Proofs (`table.idempotency`) show a write even after its version was cleaned up. The history also shows writes that left
no proof: those of another library, and those whose caller set the property directly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final

from lance_core.commit.attempts import WriteAttempt, number_of, reject_later
from lance_core.commit.handler import Clock
from lance_core.commit.history import find_by_property, find_transaction
from lance_core.commit.records import Change, Commit, Committed
from lance_core.commit.relation import carries_on
from lance_core.commit.versions import (
    VersionListing,
    list_versions,
    load_latest,
    load_manifest,
    load_transaction,
    make_already_exists_error,
    reload_latest,
)
from lance_core.errors import (
    HistoryGapError,
    IncompatibleConflictError,
    InvalidInputError,
    UndecidedWriteError,
    VersionNotFoundError,
)
from lance_core.schema import Schema
from lance_core.store import ObjectStore
from lance_core.table.filled_slices import SLICES_KEY, read_slices
from lance_core.table.idempotency import CommitProof, CommittedAttempt, Proofs
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import (
    Append,
    Clone,
    CreateIndex,
    Delete,
    Overwrite,
    ReserveFragments,
    Rewrite,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMemWalState,
)
from lance_core.table.row_changes import ROWS_KEY, RowChange
from lance_core.table.transaction import REVERTS_KEY, Transaction
from lance_core.table.watermarks import is_watermark
from lance_core.threads import ThreadPool

_KEEPS_ROWS = (CreateIndex, ReserveFragments, Rewrite, UpdateBases, UpdateConfig, UpdateMemWalState)


def find_proven(
    store: ObjectStore, latest: Manifest, how: Commit, fills: tuple[str, ...] | None = None
) -> Committed | None:
    """Find the commit of the same write that the proofs of the latest version show; None if there is none.

    Args:
        store: The dataset's store.
        latest: The latest version.
        how: How the write is to be committed.
        fills: Identities of the slices whose rows it replaces; empty for all rows; None if it replaces none.

    Returns:
        The commit; if only the latest version shows it, that version without a transaction.

    Raises:
        SupersededError: A later attempt of the write, or a later write of the same rows, was committed.
        HistoryGapError: A version that may have filled the same rows was cleaned up, and is no longer recorded.
        UndecidedWriteError: A later batch of the stream was committed.
    """
    proofs = Proofs.of(latest.config)
    if how.write_attempt is not None:
        # A later attempt counts even if its version was cleaned up.
        fill = proofs.fill_of(how.write_attempt.token)
        for attempt in (*proofs.attempts_of(how.write_attempt.token), *(() if fill is None else (fill,))):
            reject_later(how.write_attempt, store.root, attempt.version, attempt.number, is_same_write=True)
        if fills is not None:
            _reject_later_fill(store, proofs, how.write_attempt, fills)
    version = None if how.idempotency_key is None else proofs.key(how.idempotency_key)
    if version is not None and how.idempotency_key is not None:
        committed = committed_version(store, latest, version)
        key, value = how.idempotency_key
        is_its_own = committed.transaction is not None and committed.transaction.properties.get(key) == value
        return committed if is_its_own else _adopted(latest, None)
    is_skipped = how.stream_batch and _skips_batch(proofs, store.root, how, *how.stream_batch)
    return _adopted(latest, None) if is_skipped else None


def _skips_batch(proofs: Proofs, root: str, how: Commit, stream: str, number: int) -> bool:
    """Whether a batch of a stream is the last one that was committed, or an older one that is to be left out.

    After a crash a stream repeats its last batch alone: an older number can stand for rows that were never committed.

    Raises:
        UndecidedWriteError: The batch is older than the last one, and the caller has not decided about it.
    """
    last_batch = proofs.streams.get(stream)
    if last_batch is None or last_batch.number <= number or how.undecided_batch != "error":
        last = -1 if last_batch is None else last_batch.number
        return last == number or (last > number and how.undecided_batch == "skip")
    raise UndecidedWriteError(
        f"whether the rows of batch {number} of stream {stream!r} were committed in {root} is not known: batch "
        f"{last_batch.number} is the last one, so that this is an older checkpoint, or another stream of that name. "
        "Nothing was written. If the table has the rows, leave them out with undecided_batch='skip', otherwise count "
        "from this batch on with undecided_batch='write' (option undecidedBatch of writeStream)"
    )


def committed_version(store: ObjectStore, latest: Manifest, version: int) -> Committed:
    """The commit that made a version; if it was cleaned up or has no transaction, the latest version without one."""
    try:
        manifest = latest if version == latest.version else load_manifest(store, version)
    except VersionNotFoundError:
        return _adopted(latest, None)
    transaction = load_transaction(store, manifest)
    return _adopted(latest if transaction is None else manifest, transaction)


def _adopted(manifest: Manifest, transaction: Transaction | None) -> Committed:
    return Committed(manifest=manifest, transaction=transaction, attempts=0, deduplicated=True)


def find_idempotent_commit(
    store: ObjectStore, newest: Manifest, idempotency_key: tuple[str, str], *, newer_than: int = 0
) -> Committed | None:
    """The commit that carries an idempotency key, by the proofs or by the history; None if there is no such commit.

    Args:
        store: The dataset's store.
        newest: The latest version.
        idempotency_key: Key and value of the transaction property that the write carries.
        newer_than: A version that is older than the write; it and older versions are not read.

    Raises:
        UndecidedWriteError: A version after `newer_than` was cleaned up, and the write may have made it.
    """
    committed = find_proven(store, newest, Commit(idempotency_key=idempotency_key))
    if committed is not None:
        return committed
    recorded = find_by_property(store, *idempotency_key, newest=newest, newer_than=newer_than)
    if recorded is not None:
        return _adopted(*recorded)
    forgotten = Proofs.of(newest.config).complete_after("keys") or 0
    if 0 < newer_than < forgotten:
        missing = set(range(newer_than + 1, forgotten + 1)).difference(list_versions(store))
        if missing:
            raise UndecidedWriteError(
                f"{store.root}: whether a write with {idempotency_key[0]}={idempotency_key[1]!r} was committed since "
                f"version {newer_than} is not known: version {max(missing)} was cleaned up, and its key is no longer "
                "recorded. Nothing was written. Check whether the table has the rows; to write them, give a later "
                "version at which the search ends, or another key"
            )
    return None


def attempts_of(latest: Manifest, write: WriteAttempt) -> tuple[CommittedAttempt, ...]:
    """The attempts of a write in the proofs of a version, oldest first."""
    return Proofs.of(latest.config).attempts_of(write.token)


def _reject_later_fill(store: ObjectStore, proofs: Proofs, write: WriteAttempt, slices: tuple[str, ...]) -> None:
    """Reject a write that replaces rows if a later write has filled the same rows since this one began."""
    if write.begun is None or write.conflict_policy != "later_wins":
        return
    for fill in proofs.fills:
        if fill.version <= write.begun or fill.number <= write.number:
            continue
        overlaps = fill.overlaps(slices)
        if overlaps is None:
            overlaps = _overlaps(_filled_by(store, fill.version, write), slices)
        if overlaps:
            reject_later(write, store.root, fill.version, fill.number, is_same_write=False)
    for version in range(write.begun + 1, (proofs.complete_after("fills") or 0) + 1) if write.begun else ():
        other = _filled_by(store, version, write)
        if _overlaps(other, slices):
            reject_later(write, store.root, version, number_of(other.properties), is_same_write=False)


def _filled_by(store: ObjectStore, version: int, write: WriteAttempt) -> Transaction:
    transaction = find_transaction(store, version)
    if transaction is None:
        raise HistoryGapError(
            f"{store.root}: version {version} was cleaned up, so it is not known whether a later write filled the same "
            f"rows since this one began, at version {write.begun}; do the write again"
        )
    return transaction


def _overlaps(other: Transaction, slices: tuple[str, ...]) -> bool:
    """Whether a commit filled the same rows as a write of slices, or of all rows if `slices` is empty."""
    filled = read_slices(other.properties)
    if filled:
        return not slices or not set(slices).isdisjoint(filled)
    return isinstance(other.operation, Overwrite)


def _row_change(transaction: Transaction, latest: Manifest | None) -> RowChange | None:
    """The last change of rows after a commit on top of a version; None if that is not known."""
    operation = transaction.operation
    first = operation.ref_version if isinstance(operation, Clone) else 1
    version = first if latest is None else latest.version + 1
    if latest is None or changes_rows(transaction, latest):
        return RowChange(version=version, known_to=version)
    change = RowChange.of(latest.config) if ROWS_KEY in latest.config else None
    if change is None or change.known_to == latest.version or latest.transaction_bytes is None:
        return None if change is None else change.kept_in(version, None)
    return change.kept_in(version, changes_rows(Transaction.from_bytes(latest.transaction_bytes)))


def changes_rows(transaction: Transaction, base: Manifest | None = None) -> bool:
    """Whether a commit changes rows or columns, rather than their place, indices or settings.

    Args:
        transaction: The commit.
        base: The version before; None if it is not known, so that an overwrite without rows counts as a change.
    """
    match transaction.operation:
        case Append(fragments=fragments):
            return bool(fragments)
        case Delete(updated_fragments=updated, deleted_fragment_ids=deleted):
            return bool(updated or deleted)
        case Update(new_fragments=new, updated_fragments=updated, removed_fragment_ids=removed):
            return bool(new or updated or removed)
        case Overwrite(fragments=fragments, schema=schema) if base is not None:
            is_empty = not any(fragment.num_rows for fragment in (*fragments, *base.fragments))
            return not is_empty or _columns(schema) != _columns(base.schema)
        case operation:
            return not isinstance(operation, _KEEPS_ROWS)


def _columns(schema: Schema) -> list[tuple[str, str, bool, int]]:
    """The columns of a schema, apart from the ids of fields."""
    return [(field.name, field.logical_type, field.nullable, len(field.children)) for field, _ in schema.walk()]


def _taken_back(transaction: Transaction) -> frozenset[int] | None:
    """The versions that a commit undoes; None if it replaces all rows."""
    if isinstance(transaction.operation, Overwrite):
        return None
    named = transaction.properties.get(REVERTS_KEY, "").split(",")
    return frozenset(int(number) for number in named if number.isdecimal())


def proof_of(transaction: Transaction, latest: Manifest | None, change: Change, how: Commit) -> CommitProof:
    """The proof that a commit leaves in the table, which identifies the commit after its version was cleaned up.

    An attempt that only replaces rows, all of them or those of its slices, is recorded as a fill: a repeated attempt
    has the same effect, whether the first one was committed or not, but an earlier one must not follow it.

    Args:
        transaction: The transaction of the change, after rebases.
        latest: The version that it follows.
        change: The change.
        how: How it is committed.
    """
    proof = CommitProof(
        idempotency_key=how.idempotency_key,
        batch=how.stream_batch,
        branch=change.branch,
        moves={key: value for key, value in transaction.properties.items() if is_watermark(key)},
        row_change=_row_change(transaction, latest),
        takes_back=_taken_back(transaction),
    )
    operation, write = transaction.operation, how.write_attempt
    fills = (isinstance(operation, Overwrite) and latest is not None) or SLICES_KEY in transaction.properties
    if write is None:
        return proof
    return replace(
        proof,
        attempt=write.token,
        adds=not fills or change.fills is None or write.outside_slices,
        fills=change.fills,
        number=write.number,
        note=write.note,
        replaces=(*write.earlier, *change.replaces),
    )


_READS_AT_A_TIME: Final = 8


@dataclass(slots=True, kw_only=True)
class TableState:
    """What a commit has read of the table, while other writers change it.

    Attributes:
        store: The dataset's store.
        change: The change that is to follow the latest version.
        latest: The latest version; None if there is no dataset.
        looked: When the latest version was looked for.
        transactions: The transactions of the versions since the change was computed.
        last_read: The version whose transaction was read last: the one after it must have been made from it.
        winning_manifest: The version that another writer committed in place of the last put, if it was read.
        listing: A listing that began after the last put was lost.
    """

    store: ObjectStore
    change: Change
    latest: Manifest | None = None
    looked: Clock = field(default_factory=Clock.now)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    last_read: Manifest | None = None
    winning_manifest: Manifest | None = None
    listing: Future[VersionListing] | None = None

    @property
    def creates(self) -> bool:
        """Whether the change makes a dataset."""
        return self.change.transaction.read_version == 0 or isinstance(self.change.transaction.operation, Clone)

    @property
    def since_read(self) -> dict[int, Transaction]:
        """The transactions of the versions since the read version, by version."""
        read_version = self.change.transaction.read_version
        return {version: other for version, other in self.transactions.items() if version > read_version}

    def begin(self, change: Change) -> None:
        """Begin again with another change, which was computed from the latest version."""
        self.change, self.transactions, self.last_read = change, {}, None
        if self.latest is None or (change.base is not None and change.base.version > self.latest.version):
            self.latest = change.base

    def look(self, pause: float = 0.0) -> None:
        """Read the latest version, after a pause of some seconds."""
        if pause:
            time.sleep(pause)
        listing, self.listing = self.listing, None
        listed = listing.result() if listing is not None and not pause else None
        if listed is None:
            self.looked = Clock.now()
        before = self.latest if self.latest is not None else self.change.base
        if before is None:
            self.latest = load_latest(self.store, self.winning_manifest)
        else:
            self.latest = reload_latest(self.store, before, listed=listed, winning_manifest=self.winning_manifest)

    def read_since(self, checked_through: int | None) -> None:
        """Read the transactions of all versions since the read version, or since an older one."""
        latest, read_version = self.latest, self.change.transaction.read_version
        if latest is None:
            return
        if read_version > latest.version:
            raise InvalidInputError(
                f"{self.store.root}: the transaction was made from version {read_version}, but the latest version is "
                f"{latest.version}"
            )
        first = read_version if checked_through is None or self.creates else min(checked_through, read_version)
        self._read([version for version in range(first + 1, latest.version + 1) if version not in self.transactions])
        for version in range(first + 1, latest.version + 1):
            if isinstance(self.transactions[version].operation, Clone) and not self.creates:
                raise IncompatibleConflictError(
                    f"Incompatible transaction: {self.store.root} was dropped and made again, at version {version}, "
                    f"since version {read_version} was read"
                )

    def _read(self, versions: Sequence[int]) -> None:
        """Read and check the transactions of versions; in parallel where each read is a request."""
        if len(versions) > 1 and self.store.put_is_a_request:
            with ThreadPool(_READS_AT_A_TIME) as pool:
                recorded = list(pool.map(self._load, versions))
            for manifest, transaction in recorded:
                self._add(manifest, transaction)
            return
        for version in versions:
            self._add(*self._load(version))

    def _add(self, manifest: Manifest, transaction: Transaction) -> None:
        """Add the transaction of a version, after a check that it can have been made from the version before it.

        Raises:
            HistoryGapError: The version was not made from the version before it.
        """
        before, self.last_read = self.last_read or self.change.base, manifest
        follows = before is not None and before.version == manifest.version - 1
        if before is not None and follows and not carries_on(before, manifest, transaction):
            raise HistoryGapError(
                f"Incompatible transaction: version {manifest.version} of {self.store.root} was not made from version "
                f"{before.version}, which was put under a number that cleanup had freed, so what was changed since "
                f"version {self.change.transaction.read_version} is not known. `lance verify` names such versions"
            )
        self.transactions[manifest.version] = transaction

    def _load(self, version: int) -> tuple[Manifest, Transaction]:
        loaded = [
            manifest
            for manifest in (self.latest, self.winning_manifest)
            if manifest is not None and manifest.version == version
        ]
        try:
            manifest = loaded[0] if loaded else load_manifest(self.store, version)
        except VersionNotFoundError:
            if self.creates:
                raise make_already_exists_error(self.store.root) from None
            raise HistoryGapError(
                f"Incompatible transaction: version {version} is missing from the history since version "
                f"{self.change.transaction.read_version} of {self.store.root}, so what it changed is not known"
            ) from None
        transaction = load_transaction(self.store, manifest)
        if transaction is None:
            raise IncompatibleConflictError(
                f"Incompatible transaction: version {version} of {self.store.root} records no transaction, so what it "
                "changed is not known"
            )
        return manifest, transaction
