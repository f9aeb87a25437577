"""Writes a version: its transaction file, manifest and hint; then checks that it became part of the history.

    local disk, memory   `_transactions/<read version>-<uuid>.txn`, the manifest, on a disk the hint
    everything else      the manifest alone, in one request

The manifest holds the transaction in any case, and readers look for it there first. Where a transaction file would cost
a request before every commit, the manifest names no file and sets feature flag 32, as the format provides: pylance
checks its commits against such versions, lists their transactions and cleans them up; writers that know transaction
files only do not commit to such a dataset.

The manifest's conditional put is the commit. If the put fails, everything written before it is garbage; everything
written after it only saves time. The answer to the put can be lost, and the next put then finds the writer's own
manifest. An object that exists already is therefore read back, and counts as another writer's only if its transaction
has another uuid. Once an answer was lost, every error leaves the outcome open: the files of the commit must not be
removed, as the put may still arrive.

If the store's options carry a commit lock, the lock is held around the put. The put stays conditional, so that writers
without the lock do no harm.

A version can be put under a number that cleanup had freed:

    look at the latest version N  ->  put N + 1 unless it exists  ->  look again

A put of N + 1 also succeeds if other writers have committed N + 1 and later versions meanwhile, and cleanup has removed
their N + 1. No later version was made from the version that was put, so this version must not be acknowledged. The
latest version is never cleaned up: if the second look finds no version above N + 1, the put is part of the history.
Otherwise the version above shows whether it was made from this N + 1.

The second look is always made where it costs no request. On object storage it is made if the first look is more than
`LOOK_AGAIN_AFTER` old, and cleanup keeps younger versions there for a few times as long. An external index that gives
no number twice needs no second look.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from lance_core.commit.records import Change
from lance_core.commit.relation import Relation, holds_change, relation, replaces_content
from lance_core.commit.versions import VersionListing, find_manifest, load_transaction, locate_latest
from lance_core.errors import (
    AlreadyExistsError,
    DatasetExistsError,
    LanceError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
)
from lance_core.store import ExternallyCommittedStore, ObjectStore, naming_after, remove_leftovers, sync_names
from lance_core.table.flags import NO_TRANSACTION_FILES
from lance_core.table.manifest.manifest import Manifest, ManifestLocation
from lance_core.table.paths import HINT_KEY, Naming, data_key, is_detached, manifest_key, transaction_key
from lance_core.table.transaction import Transaction

LOOK_AGAIN_AFTER: Final = timedelta(minutes=1)
"""If the latest version was looked for longer ago than this, a put on object storage is followed by a second look."""

_logger = logging.getLogger(__name__)

# The put is idempotent, same key and same bytes, so that it is safe to repeat after an unknown outcome.
_PUT_ATTEMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A moment by two clocks: the monotonic clock stops while a machine sleeps, and the wall clock can be set.

    Attributes:
        monotonic_s: Seconds since some start.
        wall_ns: Nanoseconds since the epoch.
    """

    monotonic_s: float
    wall_ns: int

    @classmethod
    def now(cls) -> Clock:
        """The present moment."""
        return cls(monotonic_s=time.monotonic(), wall_ns=time.time_ns())

    def age(self) -> timedelta:
        """How long ago the moment was, by the clock that shows the longer time."""
        now = Clock.now()
        passed = max(now.monotonic_s - self.monotonic_s, (now.wall_ns - self.wall_ns) / 1e9)
        return timedelta(seconds=passed)


@dataclass(slots=True, kw_only=True)
class VersionWriter:
    """Writes the files of one commit, over all its attempts.

    Attributes:
        store: The dataset's store.
        naming: Scheme of manifest names.
        durable: Whether a version must survive a power loss once it is committed.
        change: The change that is put: the put waits for its files.
        winning_manifest: The other writer's manifest under the key of the last `put`, once `resolve_outcome` has read
            it.
        has_begun: Whether a put has begun: after an interruption, the version may exist.
    """

    store: ObjectStore
    naming: Naming
    durable: bool
    change: Change
    winning_manifest: Manifest | None = None
    has_begun: bool = False
    _began_ns: int = 0  # when the last `put` began to give the version its name, since the epoch
    _transaction_file: str = ""
    _record: bytes = b""
    _answer_lost: bool = False
    _unresolved: tuple[Manifest, str] | None = None

    def put(self, manifest: Manifest, transaction: Transaction) -> Manifest | None:
        """Try to commit a version.

        Args:
            manifest: The manifest of the new version.
            transaction: The transaction that made the version.

        Returns:
            The manifest with its location; None if a version of that number exists. Then `resolve_outcome` finds out
            who committed it.

        Raises:
            DatasetExistsError: An external index still has the versions of a dataset whose files were deleted.
            OutcomeUnknownError: The store failed, and whether the version was committed is not known.
        """
        record = transaction.to_bytes()
        if not self.store.put_is_a_request:
            self._put_transaction_file(transaction, record)
        else:
            flags = manifest.writer_flags | NO_TRANSACTION_FILES
            manifest = replace(manifest, transaction_file="", writer_flags=flags)
        key = manifest_key(manifest.version, self.naming)
        data = manifest.to_bytes(record)
        self.winning_manifest, self._unresolved = None, None
        lock = self.store.options.commit_lock
        with ExitStack() as held:
            if lock is not None:
                try:
                    held.enter_context(lock(manifest.version))
                except BaseException:  # the user's lock failed before the put
                    self.discard()
                    raise
            location = self._put_manifest(key, data, transaction.uuid)
        manifest = replace(manifest, transaction_bytes=record)
        if location is None:
            self._unresolved = manifest, transaction.uuid
            return None
        return self._committed(manifest, location)

    def resolve_outcome(self) -> Manifest | None:
        """Find out who committed the version that the last `put` found under its key.

        Returns:
            The manifest with its location if this writer committed it, and only the storage's answer was lost; None if
            another writer committed that version first.

        Raises:
            OutcomeUnknownError: The store failed, and which writer committed the version is not known.
        """
        if self._unresolved is None:
            return None
        manifest, uuid = self._unresolved
        key = manifest_key(manifest.version, self.naming)
        try:
            existing = self._read(key)
        except ObjectNotFoundError as error:
            if self._answer_lost:
                # The version was this writer's or another's, and was cleaned up.
                raise self._unknown(key, uuid) from error
            return None  # another writer's version, which was cleaned up
        except StoreError as error:
            raise self._unknown(key, uuid) from error
        if not _is_of(existing, uuid):
            self.winning_manifest = existing
            return None
        assert existing.location is not None, "the manifest was read from its location"
        return self._committed(manifest, existing.location)

    def _committed(self, manifest: Manifest, location: ManifestLocation) -> Manifest:
        if not is_detached(manifest.version):
            self._put_hint(manifest.version)
        return replace(manifest, location=location)

    def is_in_history(self, written: Manifest, base: Manifest | None, looked: Clock) -> bool:
        """Whether the version that was put last is part of the history; otherwise the version is removed.

        Args:
            written: The version, with its location.
            base: The version that it was made from; None for the first one of a dataset.
            looked: When the writer looked for the latest version, before the put.

        Raises:
            OutcomeUnknownError: The history does not show whether the version is part of it.
        """
        store = self.store
        if isinstance(store, ExternallyCommittedStore) and store.table.gives_numbers_once:
            return True
        if store.put_is_a_request and looked.age() < LOOK_AGAIN_AFTER:
            return True
        try:
            is_there = self._found_in_history(written, base)
            if not is_there and written.location is not None:
                store.delete(written.location.key)
        except OutcomeUnknownError:
            raise
        except LanceError as error:
            raise self._overtaken(written, str(error)) from error
        if not is_there:
            _logger.info(
                "version %d of %s was put under a number that cleanup had freed, and was removed",
                written.version,
                store.root,
            )
        return is_there

    def _found_in_history(self, written: Manifest, base: Manifest | None) -> bool:
        """Whether the version is part of the history; raises OutcomeUnknownError if the listing does not show it."""
        store = self.store
        listed = VersionListing.of(store)
        if listed.latest is None:
            return True  # the version was part of the history, and the dataset was dropped since
        if listed.latest[0] <= written.version and not store.put_is_a_request:
            # A listing of a folder may leave out files that are removed or added while it is made.
            again = locate_latest(store)
            if again is not None and again[0] > written.version:
                listed = VersionListing.of(store)
        above = sorted(version for version in listed.seen if version > written.version)
        if not above:
            return not _was_dropped(store, written, base, listed)
        following = find_manifest(store, written.version + 1)
        later_versions = [
            other
            for other in (following or find_manifest(store, above[0]), find_manifest(store, above[-1]))
            if other is not None
        ]
        if any(holds_change(other, written, base) for other in later_versions):
            return True
        made_by = load_transaction(store, following) if following is not None else None
        if following is not None and made_by is not None:
            verdict = relation(written, following, made_by)
            if verdict is not Relation.UNKNOWN:
                return verdict is Relation.FOLLOWS
        if any(self._was_there_before(other, written, listed) for other in later_versions):
            return False
        if following is not None and made_by is not None and replaces_content(written, following, made_by):
            return True
        raise self._overtaken(
            written, f"version {above[-1]} does not show whether it was made from version {written.version}"
        )

    def _was_there_before(self, other: Manifest, written: Manifest, listed: VersionListing) -> bool:
        """Whether a later version is older than the put; then another version had its number before the put."""
        if not self.store.put_is_a_request and 0 < other.timestamp_ns < self._began_ns:
            return True  # both times are by the clock of this machine
        later, earlier = (listed.seen.get(version.version) for version in (other, written))
        if later is None or earlier is None or later.modified is None or earlier.modified is None:
            return False
        return later.modified < earlier.modified  # both times are by the clock of the storage

    def discard(self) -> None:
        """Remove the transaction file of a commit; to be called only if the commit certainly failed."""
        if self._transaction_file:
            remove_leftovers(self.store, [transaction_key(self._transaction_file)])
            self._transaction_file = ""

    def _put_transaction_file(self, transaction: Transaction, record: bytes) -> None:
        if self._transaction_file == transaction.file_name and self._record == record:
            return
        if self._transaction_file != transaction.file_name:
            self.discard()
        self.store.put(transaction_key(transaction.file_name), record)
        self._transaction_file, self._record = transaction.file_name, record

    def _put_manifest(self, key: str, data: bytes, uuid: str) -> ManifestLocation | None:
        """Put the manifest; None if a manifest of this version exists, which may be this writer's own."""
        location = ManifestLocation(key=key, size_bytes=len(data), naming=self.naming)
        self._began_ns, self._answer_lost = 0, False
        store = naming_after(self.store, self._before_naming)
        for _ in range(_PUT_ATTEMPTS):
            try:
                return replace(location, e_tag=store.put_if_absent(key, data, durable=self.durable))
            except OutcomeUnknownError:
                self._answer_lost = True
            except LanceError as error:
                if isinstance(error, AlreadyExistsError) and not isinstance(error, DatasetExistsError):
                    return None
                if self._answer_lost:  # an earlier put may still arrive, although this one failed
                    raise self._unknown(key, uuid) from error
                raise
            try:
                existing = self._read(key)
            except ObjectNotFoundError:
                continue  # the lost put may still arrive, so only the same bytes may be put under this key
            except LanceError as error:
                raise self._unknown(key, uuid) from error
            if not _is_of(existing, uuid):
                return None
            self._make_name_durable(key)
            return location
        raise self._unknown(key, uuid)

    def _make_name_durable(self, key: str) -> None:
        """Sync the manifest to disk after a put that wrote it, but did not report success."""
        if not self.durable:
            return
        try:
            sync_names(self.store, [key])
        except StoreError as error:
            raise OutcomeUnknownError(f"{self.store.root}/{key}: is there, and may not be on disk: {error}") from error

    def _before_naming(self) -> None:
        self.change.wait_for_files(self.store)
        self.has_begun = True
        self._began_ns = self._began_ns or time.time_ns()  # of the first put, which may be the one that commits

    def _unknown(self, key: str, uuid: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.store.root}/{key}: the storage did not answer. The version was committed if its manifest has "
            f"transaction {uuid}"
        )

    def _overtaken(self, written: Manifest, reason: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.store.root}: version {written.version} was put, but other writers and a cleanup were active "
            f"meanwhile, and whether the version is part of the history is not known: {reason}. Open the dataset again "
            "and check whether it has the change before you repeat it"
        )

    def _read(self, key: str) -> Manifest:
        data, meta = self.store.read(key)
        location = ManifestLocation(key=key, size_bytes=len(data), naming=self.naming, e_tag=meta.e_tag)
        return Manifest.from_bytes(data, location)

    def _put_hint(self, version: int) -> None:
        """Write the version hint for local readers; object stores are listed instead."""
        if not self.store.is_local:
            return
        try:
            # The old hint is deleted first, as a file system writes a file that replaces another one to disk at once.
            # Without a hint readers list the versions.
            self.store.delete(HINT_KEY)
            self.store.put(HINT_KEY, json.dumps({"version": version}, separators=(",", ":")).encode())
        except LanceError as error:
            # The version is committed: a hint that is missing or old must not make it look failed.
            _logger.debug("the version hint of %s was not written: %s", self.store.root, error)


def _is_of(manifest: Manifest, uuid: str) -> bool:
    """Whether a version was made by a transaction."""
    if manifest.transaction_bytes is not None:
        return Transaction.from_bytes(manifest.transaction_bytes).uuid == uuid
    return manifest.transaction_file.endswith(f"-{uuid}.txn")


def _was_dropped(store: ObjectStore, written: Manifest, base: Manifest | None, listed: VersionListing) -> bool:
    """Whether the dataset of the version was dropped; another dataset may have been created in its place."""
    if base is None or base.version in listed.seen:
        return False
    written_files = {file.path for fragment in written.fragments for file in fragment.files if file.base_id is None}
    for fragment in base.fragments:
        for file in fragment.files:
            if file.base_id is None and file.path in written_files:
                try:
                    store.head(data_key(file.path))
                except ObjectNotFoundError:
                    return True
                return False
    return False
