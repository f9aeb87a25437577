"""What a commit has read of its table: the latest version, and the transactions since the change was computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from lance_core.commit.handler import Clock
from lance_core.commit.records import Change
from lance_core.commit.relation import carries_on
from lance_core.commit.versions import (
    Listed,
    already_exists,
    load_following,
    load_latest,
    load_manifest,
    load_transaction,
)
from lance_core.errors import HistoryGapError, IncompatibleConflictError, InvalidInputError, VersionNotFoundError
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Clone
from lance_core.table.transaction import Transaction
from lance_core.threads import ThreadPool

__all__ = ["TableState"]

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
    listing: Future[Listed] | None = None

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
            self.latest = load_following(self.store, before, listed=listed, winning_manifest=self.winning_manifest)

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
                raise already_exists(self.store.root) from None
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
