"""Reading the history of a dataset: which versions there are, their manifests and transactions.

The latest version is always found by listing, never by guessing the next number from one that is known: versions in
between can have been cleaned up, and a guess would take the gap for the end of the history. With V2 names the newest
version sorts first, so that the listing is one short request. Detached versions, hints and staging files are skipped.
"""

from collections.abc import Iterator
from datetime import datetime

from lance_core.errors import CorruptFileError, ObjectNotFoundError, VersionNotFoundError
from lance_core.store import ObjectMeta, ObjectStore
from lance_core.table.manifest import Manifest, ManifestLocation
from lance_core.table.operations import Clone
from lance_core.table.paths import (
    VERSIONS_PREFIX,
    Naming,
    is_detached,
    manifest_key,
    parse_manifest_key,
    transaction_key,
)
from lance_core.table.transaction import Transaction

__all__ = [
    "find_all_by_property",
    "find_by_property",
    "latest_version",
    "list_versions",
    "load_latest",
    "load_manifest",
    "load_transaction",
    "locate_latest",
]

# A few staging files of running commits can come before the newest manifest.
_SHORT_LISTING = 5


def locate_latest(store: ObjectStore) -> tuple[int, ManifestLocation] | None:
    """Find the latest version and where its manifest lies; None if there is no dataset."""
    for limit in (_SHORT_LISTING, None):
        count = 0
        best: tuple[int, ManifestLocation] | None = None
        for found in store.list(VERSIONS_PREFIX, limit=limit):
            count += 1
            located = _located(found)
            if located is None:
                continue
            if located[1].naming is Naming.V2:
                return located
            if best is None or located[0] > best[0]:
                best = located
        if limit is None or count < limit:
            return best
    return None


def latest_version(store: ObjectStore) -> int | None:
    """Return the number of the latest version; None if there is no dataset."""
    located = locate_latest(store)
    return None if located is None else located[0]


def load_latest(store: ObjectStore, known: Manifest | None = None) -> Manifest | None:
    """Read the latest manifest.

    Args:
        store: The dataset's store.
        known: A manifest that was read before; it is returned if it still is the latest.

    Returns:
        The manifest; None if there is no dataset.
    """
    while True:
        located = locate_latest(store)
        if located is None:
            return None
        version, location = located
        if known is not None and (known.version, known.location) == (version, location):
            return known
        try:
            return _read(store, location)
        except ObjectNotFoundError:
            # Removed since it was listed: the next listing shows what came after it.
            known = None


def load_manifest(store: ObjectStore, version: int) -> Manifest:
    """Read the manifest of a version, detached ones included.

    Raises:
        VersionNotFoundError: The dataset has no such version.
    """
    schemes = (Naming.V2,) if is_detached(version) else (Naming.V2, Naming.V1)
    for naming in schemes if version >= 0 else ():
        key = manifest_key(version, naming)
        try:
            data = store.get(key)
        except ObjectNotFoundError:
            continue
        manifest = Manifest.from_bytes(data, ManifestLocation(key=key, size_bytes=len(data), naming=naming))
        if manifest.version != version:
            raise CorruptFileError(f"{key}: holds version {manifest.version}")
        return manifest
    raise VersionNotFoundError(f"{store.root} has no version {version}")


def list_versions(store: ObjectStore) -> list[int]:
    """Return the versions that there are, in ascending order, without detached ones."""
    located = (_located(found) for found in store.list(VERSIONS_PREFIX))
    return sorted(found[0] for found in located if found is not None)


def load_transaction(store: ObjectStore, manifest: Manifest) -> Transaction | None:
    """Return the transaction that made a version; None if it was not recorded, or its file is gone."""
    if manifest.transaction_bytes is not None:
        return Transaction.from_bytes(manifest.transaction_bytes)
    if not manifest.transaction_file:
        return None
    try:
        return Transaction.from_bytes(store.get(transaction_key(manifest.transaction_file)))
    except ObjectNotFoundError:
        return None


def find_by_property(
    store: ObjectStore, key: str, value: str, *, newest: Manifest, not_before: datetime | None = None
) -> tuple[Manifest, Transaction] | None:
    """Find the newest version whose transaction has a property.

    Args:
        store: The dataset's store.
        key: The property.
        value: What it must be.
        newest: Where to start; older versions are read one after the other.
        not_before: Do not look at versions committed before this time; must be aware of its time zone.
    """
    for manifest in _backwards(store, newest):
        if not_before is not None and manifest.timestamp < not_before:
            return None
        transaction = load_transaction(store, manifest)
        if transaction is not None and transaction.properties.get(key) == value:
            return manifest, transaction
    return None


def find_all_by_property(
    store: ObjectStore, key: str, value: str, *, newest: Manifest, not_before: datetime | None = None
) -> tuple[dict[int, Transaction], list[int]]:
    """Find all versions whose transaction has a property.

    Args:
        store: The dataset's store.
        key: The property.
        value: What it must be.
        newest: Where to start; older versions are read one after the other.
        not_before: Do not look at versions committed before this time; must be aware of its time zone.

    Returns:
        The transactions by version, newest first, and the versions in between of which nothing is known any more.
    """
    found: dict[int, Transaction] = {}
    missing: list[int] = []
    expected = newest.version
    for manifest in _backwards(store, newest):
        missing.extend(range(expected, manifest.version, -1))
        expected = manifest.version - 1
        if not_before is not None and manifest.timestamp < not_before:
            return found, missing
        transaction = load_transaction(store, manifest)
        if transaction is None:
            missing.append(manifest.version)
        elif transaction.properties.get(key) == value:
            found[manifest.version] = transaction
        if transaction is not None and isinstance(transaction.operation, Clone):
            return found, missing  # a branch or a copy begins here
    missing.extend(range(expected, 0, -1))
    return found, missing


def _backwards(store: ObjectStore, newest: Manifest) -> Iterator[Manifest]:
    """The versions from one on, newest first; those that were cleaned up are left out."""
    yield newest
    for version in reversed(list_versions(store)):
        if version < newest.version:
            try:
                manifest = load_manifest(store, version)
            except VersionNotFoundError:
                continue
            yield manifest


def _located(found: ObjectMeta) -> tuple[int, ManifestLocation] | None:
    name = parse_manifest_key(found.key)
    if name is None or is_detached(name.version):
        return None
    return name.version, ManifestLocation(key=found.key, size_bytes=found.size, naming=name.naming)


def _read(store: ObjectStore, location: ManifestLocation) -> Manifest:
    return Manifest.from_bytes(store.get(location.key), location)
