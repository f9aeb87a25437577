"""Reads the history of a dataset: a summary of each version, and the search for a version by a transaction property.

Cleanup can remove versions meanwhile. Where a caller has to know that the result may be incomplete, the versions
without a known transaction are returned as well.

While a branch from before them is open, a cleanup stores the transactions of the versions that it removes:

    _transactions/removed/<version>     the `Transaction` message

A promotion judges the branch by every commit since its fork, as a commit does. It needs the transactions for that, not
the manifests or data files: a manifest without its files would be a version that both libraries list and neither can
read. pylance neither lists nor removes files of this folder.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from lance_core.commit.versions import (
    list_version_locations,
    load_manifest,
    load_transaction,
    load_version_header,
    make_dropped_error,
    newest_versions,
)
from lance_core.errors import CorruptFileError, DatasetNotFoundError, ObjectNotFoundError, VersionNotFoundError
from lance_core.store import ObjectStore, replace_durably
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.manifest.version_summary import FragmentCounter, VersionHeader, VersionSummary
from lance_core.table.operations import Clone, Delete
from lance_core.table.paths import TRANSACTIONS_PREFIX
from lance_core.table.transaction import Transaction
from lance_core.threads import ThreadPool

_logger = logging.getLogger(__name__)

_READS_AT_A_TIME = 8


def summaries(store: ObjectStore) -> Iterator[VersionSummary]:
    """Yield the summary of each version of an opened dataset, in ascending order, for a list of versions.

    The summary of a torn version has no counters.

    Raises:
        DatasetNotFoundError: The dataset has no version any more.
        VersionNotFoundError: A version was removed after it was listed.
    """
    located = dict(list_version_locations(store))
    if not located:
        raise make_dropped_error(store)
    counter = FragmentCounter()
    for version in sorted(located):
        try:
            summary = _summary(store, version, located[version].key, counter)
        except CorruptFileError as error:
            fault = f"{located[version].key}: {error}"
            _logger.warning("version %d of %s cannot be read: %s", version, store.root, fault)
            time_ns = int((located[version].modified or 0) * 1e9)
            summary = VersionSummary(version=version, timestamp_ns=time_ns, counters={}, fault=fault)
        yield summary


def _summary(store: ObjectStore, version: int, key: str, counter: FragmentCounter) -> VersionSummary:
    try:
        summary = VersionSummary.from_bytes(store.get(key), counter)
    except ObjectNotFoundError:
        raise VersionNotFoundError(f"{store.root} has no version {version}") from None
    if summary is None:
        header = load_version_header(store, version)
        counters = counter.totals(header.fragments.raw) if isinstance(header, Manifest) else {}
        return VersionSummary(version=header.version, timestamp_ns=header.timestamp_ns, counters=counters)
    if summary.version != version:
        raise CorruptFileError(f"holds version {summary.version}")
    return summary


def find_transaction(store: ObjectStore, version: int) -> Transaction | None:
    """Return the transaction that made a version; None if it was cleaned up for good, or records no transaction."""
    try:
        return load_transaction(store, load_manifest(store, version))
    except VersionNotFoundError:
        return load_removed_transaction(store, version)


def load_transactions(store: ObjectStore, present: Iterable[int], removed: Collection[int]) -> dict[int, Transaction]:
    """Return the transactions that made versions, ascending, without those that are not known.

    Args:
        store: The dataset's store.
        present: Versions that exist.
        removed: Removed versions whose transactions are stored; these count before a manifest that a slow writer put
            under such a number later.
    """

    def load(version: int) -> Transaction | None:
        return load_removed_transaction(store, version) if version in removed else find_transaction(store, version)

    numbers = sorted({*present, *removed})
    with ThreadPool(_READS_AT_A_TIME) as pool:
        loaded = list(pool.map(load, numbers) if store.put_is_a_request else map(load, numbers))
    return {version: read for version, read in zip(numbers, loaded, strict=True) if read is not None}


def find_by_property(
    store: ObjectStore,
    key: str,
    value: str,
    *,
    newest: Manifest,
    not_before: datetime | None = None,
    newer_than: int = 0,
) -> tuple[Manifest, Transaction] | None:
    """Find the newest version whose transaction has a property with a given value.

    Args:
        store: The dataset's store.
        key: The property.
        value: Its value.
        newest: The version to start from; older versions are read one after the other.
        not_before: Time at which to stop: versions committed earlier are ignored. It must have a time zone.
        newer_than: Version at which to stop: it and older versions are not read.

    Raises:
        UnsupportedError: The version that was found has unknown feature flags.
    """
    for manifest in _backwards(store, newest, newer_than):
        if not_before is not None and manifest.timestamp < not_before:
            return None
        transaction = load_transaction(store, manifest)
        if transaction is not None and transaction.properties.get(key) == value:
            full_manifest = manifest if isinstance(manifest, Manifest) else load_manifest(store, manifest.version)
            return full_manifest, transaction
    return None


def find_all_by_property(
    store: ObjectStore, key: str, value: str, *, newest: Manifest, not_before: datetime | None = None
) -> tuple[dict[int, Transaction], list[int]]:
    """Find all versions whose transaction has a property with a given value.

    Args:
        store: The dataset's store.
        key: The property.
        value: Its value.
        newest: The version to start from; older versions are read one after the other.
        not_before: Time at which to stop: versions committed earlier are ignored. It must have a time zone.

    Returns:
        The transactions by version, newest first, and the versions whose transactions are not known any more: they
        were cleaned up, or their manifests are torn.
    """
    transactions: dict[int, Transaction] = {}
    missing: list[int] = []
    expected = newest.version
    for manifest in _backwards(store, newest, skips_torn=True):
        missing.extend(range(expected, manifest.version, -1))
        expected = manifest.version - 1
        if not_before is not None and manifest.timestamp < not_before:
            return transactions, missing
        transaction = load_transaction(store, manifest)
        if transaction is None:
            missing.append(manifest.version)
        elif transaction.properties.get(key) == value:
            transactions[manifest.version] = transaction
        if transaction is not None and isinstance(transaction.operation, Clone):
            return transactions, missing  # a branch or a copy begins here
    missing.extend(range(expected, 0, -1))
    return transactions, missing


def _backwards(
    store: ObjectStore, newest: Manifest, newer_than: int = 0, *, skips_torn: bool = False
) -> Iterator[Manifest | VersionHeader]:
    """Versions from `newest` down to `newer_than`, which is excluded; versions that were cleaned up are skipped."""
    if newest.version <= newer_than:
        return
    yield newest
    for version in _newest_if_any(store):
        if version <= newer_than:
            return
        if version < newest.version:
            try:
                header = load_version_header(store, version)
            except VersionNotFoundError:
                continue
            except CorruptFileError:
                if skips_torn:
                    continue
                raise
            yield header


def _newest_if_any(store: ObjectStore) -> Iterator[int]:
    try:
        yield from newest_versions(store)
    except DatasetNotFoundError:
        return  # the dataset was dropped, or all its versions were removed


_FOLDER = f"{TRANSACTIONS_PREFIX}removed/"


def removed_key(version: int) -> str:
    """Return the key of the transaction of a removed version."""
    return f"{_FOLDER}{version}"


def list_removed_versions(store: ObjectStore) -> set[int]:
    """Return the removed versions whose transactions are stored."""
    names = (meta.key.removeprefix(_FOLDER) for meta in store.list(_FOLDER))
    return {int(name) for name in names if name.isascii() and name.isdecimal()}


def load_removed_transaction(store: ObjectStore, version: int) -> Transaction | None:
    """Read the transaction of a removed version; None if none is stored."""
    try:
        return Transaction.from_bytes(store.get(removed_key(version)))
    except ObjectNotFoundError:
        return None


def store_removed_transaction(store: ObjectStore, version: int, transaction: Transaction) -> None:
    """Store the transaction of a version that is about to be removed, without the text of a Delete's predicate."""
    operation = transaction.operation
    if isinstance(operation, Delete):  # for people only, and it may hold values that are to be forgotten
        operation = replace(operation, predicate="")
    replace_durably(store, removed_key(version), replace(transaction, operation=operation).to_bytes())
