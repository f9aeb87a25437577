"""Writing a version: transaction file, manifest, hint.

    local disk, memory   `_transactions/<read version>-<uuid>.txn`, the manifest, on a disk the hint
    everything else      the manifest alone, in one request

The transaction lies in the manifest in any case, and readers look for it there first. Where a file of its own would
cost a request before every commit, the manifest names none and says so by flag 32, as the format provides: pylance
judges its commits by such versions, lists their transactions and cleans them up, and writers that know transaction
files only keep away.

The manifest's conditional put is the commit; everything before it is garbage if it fails, everything after it is a
convenience. The answer to that put can be lost, and a retry then meets the writer's own manifest, so an object that
exists already is read back and its transaction's uuid compared before it counts as another writer's. Once an answer was
lost, every error leaves the outcome open: the files of the commit must not be removed, as the put may still arrive.

If the store's options carry a commit lock it is held around the put. The put stays conditional, so that writers without
the lock do no harm.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from lance_core.errors import (
    AlreadyExistsError,
    DatasetExistsError,
    LanceError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
)
from lance_core.store import ObjectStore, naming_after, sync_names
from lance_core.table.flags import NO_TRANSACTION_FILES
from lance_core.table.manifest.manifest import Manifest, ManifestLocation
from lance_core.table.paths import HINT_KEY, Naming, is_detached, manifest_key, transaction_key
from lance_core.table.transaction import Transaction

__all__ = ["VersionWriter"]

_logger = logging.getLogger(__name__)

# The put is idempotent, same key and same bytes, so that it is safe to repeat after an unknown outcome.
_PUT_ATTEMPTS = 4


@dataclass(slots=True, kw_only=True)
class VersionWriter:
    """Writes the files of one commit, over all its attempts.

    Attributes:
        store: The dataset's store.
        naming: Scheme of manifest names.
        durable: Whether a version must survive a power loss once it is committed.
        ready: Waits until the files that a version refers to are durable.
        winning_manifest: The other writer's manifest in the place of the last `put`, once `resolve_outcome` has read
            it.
        began_ns: When the last `put` began to give the version its name, nanoseconds since the epoch.
    """

    store: ObjectStore
    naming: Naming
    durable: bool
    ready: Callable[[], None] | None = None
    winning_manifest: Manifest | None = None
    began_ns: int = 0
    _transaction_file: str = ""
    _record: bytes = b""
    _answer_lost: bool = False
    _unresolved: tuple[Manifest, str] | None = None

    def put(self, manifest: Manifest, transaction: Transaction) -> Manifest | None:
        """Try to commit a version.

        Args:
            manifest: The manifest of the new version.
            transaction: What made it.

        Returns:
            The manifest with its location; None if there is such a version: `resolve_outcome` finds
            out whose.

        Raises:
            DatasetExistsError: The versions of a dataset whose files are gone are still known to an external index.
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
                except BaseException:  # whatever a lock of the user raises, nothing was put
                    self.discard()
                    raise
            location = self._put_manifest(key, data, transaction.uuid)
        manifest = replace(manifest, transaction_bytes=record)
        if location is None:
            self._unresolved = manifest, transaction.uuid
            return None
        return self._committed(manifest, location)

    def resolve_outcome(self) -> Manifest | None:
        """Find out which writer committed the version that stood in the place of the last `put`.

        Returns:
            The manifest with its location if it is this writer's own, and the answer was lost; None if another writer
            committed that version first.

        Raises:
            OutcomeUnknownError: The store failed, and which writer committed the version is not known.
        """
        if self._unresolved is None:
            return None
        manifest, uuid = self._unresolved
        key = manifest_key(manifest.version, self.naming)
        try:
            found = self._read(key)
        except ObjectNotFoundError as error:
            if self._answer_lost:
                raise self._unknown(key, uuid) from error  # one of the two was committed, and is cleaned up already
            return None  # another's, and cleaned up already
        except StoreError as error:
            raise self._unknown(key, uuid) from error
        if not _is_of(found, uuid):
            self.winning_manifest = found
            return None
        assert found.location is not None, "it was read from there"
        return self._committed(manifest, found.location)

    def _committed(self, manifest: Manifest, location: ManifestLocation) -> Manifest:
        if not is_detached(manifest.version):
            self._put_hint(manifest.version)
        return replace(manifest, location=location)

    def discard(self) -> None:
        """Remove the files of a commit; only to be called when it certainly failed."""
        if self._transaction_file:
            try:
                self.store.delete(transaction_key(self._transaction_file))
            except StoreError as error:
                # Cleanup finds it later; the caller's error matters more.
                _logger.debug("transaction file %s was left behind: %s", self._transaction_file, error)
            self._transaction_file = ""

    def _put_transaction_file(self, transaction: Transaction, record: bytes) -> None:
        if self._transaction_file == transaction.file_name and self._record == record:
            return
        if self._transaction_file != transaction.file_name:
            self.discard()
        self.store.put(transaction_key(transaction.file_name), record)
        self._transaction_file, self._record = transaction.file_name, record

    def _put_manifest(self, key: str, data: bytes, uuid: str) -> ManifestLocation | None:
        """Put the manifest; None if there is one, this writer's own or another's."""
        location = ManifestLocation(key=key, size_bytes=len(data), naming=self.naming)
        self.began_ns, self._answer_lost = 0, False
        store = naming_after(self.store, self._before_naming)
        for _ in range(_PUT_ATTEMPTS):
            try:
                return replace(location, e_tag=store.put_if_absent(key, data, durable=self.durable))
            except OutcomeUnknownError:
                self._answer_lost = True
            except LanceError as error:
                if isinstance(error, AlreadyExistsError) and not isinstance(error, DatasetExistsError):
                    return None
                if self._answer_lost:  # an earlier put may still arrive, whatever became of this one
                    raise self._unknown(key, uuid) from error
                raise
            try:
                found = self._read(key)
            except ObjectNotFoundError:
                continue  # not there yet: it may still arrive, so only the same bytes may be put under this key
            except LanceError as error:
                raise self._unknown(key, uuid) from error
            if not _is_of(found, uuid):
                return None
            self._make_name_durable(key)
            return location
        raise self._unknown(key, uuid)

    def _make_name_durable(self, key: str) -> None:
        """Make sure that a manifest is on disk that was found there after a put which reported no success."""
        if not self.durable:
            return
        try:
            sync_names(self.store, [key])
        except StoreError as error:
            raise OutcomeUnknownError(f"{self.store.root}/{key}: is there, and may not be on disk: {error}") from error

    def _before_naming(self) -> None:
        if self.ready is not None:
            self.ready()
        self.began_ns = self.began_ns or time.time_ns()  # of the first attempt: it may be the one that commits

    def _unknown(self, key: str, uuid: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.store.root}/{key}: the storage did not answer; whether the version was committed shows in "
            f"transaction {uuid}"
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
            # A file system writes a file at once that replaces another: without a hint readers list the versions.
            self.store.delete(HINT_KEY)
            self.store.put(HINT_KEY, json.dumps({"version": version}, separators=(",", ":")).encode())
        except LanceError as error:
            # The version is committed: a hint that is missing or old must not make it look failed.
            _logger.debug("the version hint of %s was not written: %s", self.store.root, error)


def _is_of(found: Manifest, uuid: str) -> bool:
    """Whether a version was made by a transaction."""
    if found.transaction_bytes is not None:
        return Transaction.from_bytes(found.transaction_bytes).uuid == uuid
    return found.transaction_file.endswith(f"-{uuid}.txn")
