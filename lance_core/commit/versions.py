"""Reads the history of a dataset: which versions there are, their manifests and transactions.

The latest version is always found by listing, never by guessing the next number from one that is known: versions in
between can have been cleaned up, and a guess would take the gap for the end of the history. With V2 names the newest
version sorts first, so that the listing is one short request. Detached versions, hints and staging files are skipped.

A dataset can be dropped and created again at the same URI, and then has versions with the same numbers. Code that
continues from a version read before checks that it is still the same version (`reload_latest`): by the e-tag, which
the listing shows anyway, and if the e-tag is missing or differs, by the time and the transaction of the manifest.

`migrate_to_v2_names` gives the manifests of a dataset V2 names.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lance_core.errors import (
    CorruptFileError,
    DatasetExistsError,
    DatasetNotFoundError,
    IncompatibleConflictError,
    InvalidInputError,
    LanceError,
    ObjectNotFoundError,
    UnsupportedError,
    VersionNotFoundError,
)
from lance_core.store import ObjectMeta, ObjectStore, open_store, uris_above
from lance_core.table.manifest.manifest import Manifest, ManifestLocation
from lance_core.table.manifest.version_summary import VersionHeader
from lance_core.table.paths import (
    DATA_PREFIX,
    FOLDERS,
    VERSIONS_PREFIX,
    Naming,
    is_detached,
    manifest_key,
    parse_manifest_key,
    transaction_key,
)
from lance_core.table.transaction import Transaction

_Header = TypeVar("_Header", Manifest, VersionHeader)

# What one request of object storage lists at most.
_PAGE = 1000
# On disks the status of each file is a call; a version that was opened should be listed, although others followed.
_SHORT_LISTING = 20
# How often the latest manifest may be deleted between listing and reading it, each time by a cleanup.
_MAX_LISTINGS = 20


def locate_latest(
    store: ObjectStore, seen: dict[int, ManifestLocation] | None = None
) -> tuple[int, ManifestLocation] | None:
    """Find the latest version and the location of its manifest; None if there is no dataset.

    Args:
        store: The dataset's store.
        seen: Is filled with the versions that the listing shows: the latest ones at least.

    Raises:
        CorruptFileError: Two writers gave the latest number to different versions, one under each naming scheme.
    """
    locations, _ = _list_latest(store)
    if seen is not None:
        seen.update(locations)
    return max(locations.items(), key=lambda item: item[0], default=None)


def _list_latest(store: ObjectStore) -> tuple[dict[int, ManifestLocation], bool]:
    """List the latest versions under both naming schemes, and whether these are all versions.

    A dataset has both schemes after an interrupted migration, and after a commit of a writer that opened it before the
    migration: the highest number is the latest version, whatever its scheme.
    """
    limit = _PAGE if store.put_is_a_request else _SHORT_LISTING
    metas = list(store.list(VERSIONS_PREFIX, limit=limit))
    is_complete = len(metas) < limit
    if not is_complete and not _is_v2_only(store, metas):
        metas, is_complete = list(store.list(VERSIONS_PREFIX)), True
    schemes: dict[Naming, dict[int, ManifestLocation]] = {Naming.V1: {}, Naming.V2: {}}
    for version, location in filter(None, map(_parse_location, metas)):
        schemes[location.naming][version] = location
    locations = schemes[Naming.V1] | schemes[Naming.V2]
    latest = max(locations, default=None)
    if latest is not None and all(latest in versions for versions in schemes.values()):
        _check_same_manifest(store, latest)
    return locations, is_complete


def _is_v2_only(store: ObjectStore, page: Sequence[ObjectMeta]) -> bool:
    """Whether a dataset whose first page of names is full has V2 names only: V1 names sort on both sides of them."""
    located = [location for location in map(_parse_location, page) if location is not None]
    if not located or any(location.naming is Naming.V1 for _, location in located):
        return False
    return not any(map(_parse_location, store.list(VERSIONS_PREFIX, start_after=manifest_key(0), limit=1)))


def _check_same_manifest(store: ObjectStore, version: int) -> None:
    """Make sure that the two manifests of a number, one under each naming scheme, are the same."""
    keys = [manifest_key(version, naming) for naming in (Naming.V1, Naming.V2)]
    try:
        old, new = map(store.get, keys)
    except ObjectNotFoundError:
        return  # a migration has renamed one meanwhile, or a cleanup removed it
    if old != new:
        raise CorruptFileError(
            f"{store.root}: version {version} has two different manifests, {keys[0]} (naming scheme V1) and {keys[1]} "
            "(naming scheme V2), as two writers committed it under different schemes. Move the one that is not to "
            "count out of _versions, then run migrate_manifest_paths_v2"
        )


def latest_version(store: ObjectStore) -> int | None:
    """Return the number of the latest version; None if there is no dataset."""
    located = locate_latest(store)
    return None if located is None else located[0]


def make_already_exists_error(uri: str) -> DatasetExistsError:
    """The error of a write that would create a dataset at a URI that has a dataset already."""
    return DatasetExistsError(f"Dataset already exists: {uri}; mode 'append' adds to it, 'overwrite' replaces it")


def load_latest(store: ObjectStore, opened: Manifest | None = None) -> Manifest | None:
    """Read the latest manifest.

    Args:
        store: The dataset's store.
        opened: A manifest that was read before; it is returned if it still is the latest.

    Returns:
        The manifest; None if there is no dataset.
    """
    for _ in range(_MAX_LISTINGS):
        located = locate_latest(store)
        if located is None:
            return None
        version, location = located
        if opened is not None and (opened.version, opened.location) == (version, location):
            return opened
        try:
            return _read(store, version, location)
        except ObjectNotFoundError:
            # The version was removed after it was listed: the next listing shows a later one.
            opened = None
    raise _make_unreadable_error(store, location)


@dataclass(frozen=True, slots=True)
class VersionListing:
    """The latest versions of a dataset and the locations of their manifests, as one listing shows them.

    Attributes:
        latest: Number and location of the latest version; None if there is no dataset.
        seen: The versions that the listing shows, the latest ones at least.
    """

    latest: tuple[int, ManifestLocation] | None
    seen: Mapping[int, ManifestLocation]

    @classmethod
    def of(cls, store: ObjectStore) -> VersionListing:
        """List the versions of a dataset."""
        seen: dict[int, ManifestLocation] = {}
        return cls(locate_latest(store, seen), seen)


def reload_latest(
    store: ObjectStore,
    opened: Manifest,
    *,
    listed: VersionListing | None = None,
    winning_manifest: Manifest | None = None,
) -> Manifest:
    """Read the latest manifest of an opened dataset, after a check that it is still the same dataset.

    Args:
        store: The dataset's store.
        opened: The manifest that was read; it is returned if it still is the latest.
        listed: A listing that was made just now; None to make one.
        winning_manifest: Another manifest that was read; it is returned if the listing shows it as the latest.

    Raises:
        DatasetNotFoundError: The dataset was dropped.
        IncompatibleConflictError: The dataset was dropped and made again.
    """
    if listed is None and not store.put_is_a_request and _is_latest(store, opened):
        return opened
    for _ in range(_MAX_LISTINGS):
        listing, listed = listed or VersionListing.of(store), None
        if listing.latest is None:
            raise make_dropped_error(store)
        version, location = listing.latest
        check_identity(store, opened, latest=version, location=listing.seen.get(opened.version))
        if version == opened.version:
            return replace(opened, location=location)
        if winning_manifest is not None and winning_manifest.location == location and location.e_tag is not None:
            return winning_manifest
        try:
            return _read(store, version, location)
        except ObjectNotFoundError:
            continue  # the version was removed after it was listed: the next listing shows a later one
    raise _make_unreadable_error(store, location)


def _is_latest(store: ObjectStore, opened: Manifest) -> bool:
    """Whether a short listing shows a version as the latest, with its file unchanged."""
    location = opened.location
    return location is not None and location.e_tag is not None and locate_latest(store) == (opened.version, location)


def make_dropped_error(store: ObjectStore) -> DatasetNotFoundError:
    """The error of a dataset that was opened and has lost all its versions since."""
    return DatasetNotFoundError(f"{store.root}: the dataset was dropped after it was opened")


def _make_unreadable_error(store: ObjectStore, location: ManifestLocation) -> CorruptFileError:
    return CorruptFileError(
        f"{store.root}/{location.key}: the latest version is listed, but cannot be read: it does not exist"
    )


def check_identity(
    store: ObjectStore, opened: Manifest, *, latest: int, location: ManifestLocation | None = None
) -> None:
    """Make sure that the manifest of a version is still the manifest that was read, not that of a recreated dataset.

    A version that was cleaned up since then is assumed to be the same.

    Args:
        store: The dataset's store.
        opened: The manifest that was read.
        latest: Number of the latest version.
        location: The location of `opened` in a listing; None if no listing shows it.

    Raises:
        IncompatibleConflictError: The dataset was dropped and made again.
    """
    if opened.location is None or is_detached(opened.version):
        return
    if location is None:
        try:
            e_tag = store.head(opened.location.key).e_tag
        except ObjectNotFoundError:
            e_tag = None
    else:
        e_tag = location.e_tag
    if e_tag is not None and e_tag == opened.location.e_tag:
        return
    current = find_manifest(store, opened.version)
    is_same = latest > opened.version if current is None else identity_of(current) == identity_of(opened)
    if not is_same:
        raise _make_recreated_error(store, opened.version)


def check_identity_string(store: ObjectStore, manifest: Manifest, identity: str) -> None:
    """Make sure that a version belongs to the dataset that was read before, not to a recreated dataset.

    Args:
        store: The dataset's store.
        manifest: The version as it is now.
        identity: The value of `identity_of` when the version was read before.

    Raises:
        IncompatibleConflictError: The dataset was dropped and made again.
    """
    if identity_of(manifest) != identity:
        raise _make_recreated_error(store, manifest.version)


def identity_of(manifest: Manifest) -> str:
    """A short string that distinguishes versions of datasets at the same URI, by time and transaction."""
    made_by = manifest.transaction_bytes or b""
    digest = hashlib.sha256(f"{manifest.transaction_file}\0".encode() + bytes(made_by)).hexdigest()
    return f"{manifest.timestamp_ns}-{digest[:32]}"


def _make_recreated_error(store: ObjectStore, version: int) -> IncompatibleConflictError:
    return IncompatibleConflictError(
        f"{store.root}: version {version}, which was read before, no longer exists: the dataset was dropped and "
        "made again meanwhile. Open it again and repeat the operation"
    )


def load_manifest(store: ObjectStore, version: int) -> Manifest:
    """Read the manifest of a version, which can be detached.

    Raises:
        VersionNotFoundError: The dataset has no such version.
    """
    data, location = _read_version(store, version)
    manifest = Manifest.from_bytes(data, location)
    return _require_number(manifest, version, location)


def find_manifest(store: ObjectStore, version: int) -> Manifest | None:
    """Read the manifest of a version, which can be detached; None if the dataset has no such version."""
    try:
        return load_manifest(store, version)
    except VersionNotFoundError:
        return None


def load_version_header(store: ObjectStore, version: int) -> Manifest | VersionHeader:
    """Read the manifest of a version; for a version with unknown features only its number, time and transaction.

    Raises:
        VersionNotFoundError: The dataset has no such version.
    """
    data, location = _read_version(store, version)
    try:
        return _require_number(Manifest.from_bytes(data, location), version, location)
    except UnsupportedError:
        return _require_number(VersionHeader.from_bytes(data, location.key), version, location)


def _read_version(store: ObjectStore, version: int) -> tuple[bytes | memoryview, ManifestLocation]:
    schemes = (Naming.V2,) if is_detached(version) else (Naming.V2, Naming.V1)
    for naming in schemes if version >= 0 else ():
        key = manifest_key(version, naming)
        try:
            data, meta = store.read(key)
        except ObjectNotFoundError:
            continue
        return data, ManifestLocation(key=key, size_bytes=len(data), naming=naming, e_tag=meta.e_tag)
    raise VersionNotFoundError(f"{store.root} has no version {version}")


def _require_number(header: _Header, version: int, location: ManifestLocation) -> _Header:
    if header.version != version:
        raise CorruptFileError(f"{location.key}: holds version {header.version}")
    return header


def list_versions(store: ObjectStore) -> list[int]:
    """Return the numbers of all versions, in ascending order, without detached ones."""
    return sorted({version for version, _ in list_version_locations(store)})


def list_version_locations(store: ObjectStore) -> Iterator[tuple[int, ManifestLocation]]:
    """Yield the number of each version and the location of its manifest, in order of listing, without detached ones."""
    located = (_parse_location(info) for info in store.list(VERSIONS_PREFIX))
    return (location for location in located if location is not None)


def newest_versions(store: ObjectStore) -> Iterator[int]:
    """Yield the versions of an opened dataset, newest first, listing only as many as the caller asks for.

    With V1 manifest names all versions are listed.

    Raises:
        CorruptFileError: The latest number has two different manifests.
        DatasetNotFoundError: The dataset has no version any more.
    """
    locations, is_complete = _list_latest(store)
    if not locations:
        raise make_dropped_error(store)
    yield from sorted(locations, reverse=True)
    if not is_complete:
        older_metas = store.list(VERSIONS_PREFIX, start_after=manifest_key(min(locations)))
        yield from (version for version, _ in filter(None, map(_parse_location, older_metas)))


def existing_versions(store: ObjectStore) -> list[int]:
    """Return the numbers of all versions of an opened dataset, which must have at least one.

    Raises:
        DatasetNotFoundError: The dataset has no version any more.
    """
    versions = list_versions(store)
    if not versions:
        raise make_dropped_error(store)
    return versions


def reject_dropped_dataset(store: ObjectStore) -> None:
    """Make sure that an opened dataset still exists, after a file or version of it was not found.

    Raises:
        DatasetNotFoundError: The dataset has no version any more.
    """
    if locate_latest(store) is None:
        raise make_dropped_error(store)


def enclosing_datasets(store: ObjectStore) -> Iterator[tuple[ObjectStore, str]]:
    """Yield the datasets in whose folders a root lies, and its path below each.

    Storage is asked only about paths with the name of such a folder. Lakes often lie below a folder `data`, which
    counts only below a name that ends with `.lance`.

    Args:
        store: The store of the root.
    """
    for above, path in uris_above(store.root):
        folder = path.split("/", 1)[0] + "/"
        if folder in FOLDERS and (folder != DATA_PREFIX or above.endswith(".lance")):
            root = open_store(above, store.options)
            if locate_latest(root) is not None:
                yield root, path


def reject_inside_dataset(store: ObjectStore) -> None:
    """Make sure that a dataset is not created inside of another one.

    Args:
        store: The store of the new dataset.

    Raises:
        InvalidInputError: The root is in a folder of another dataset.
    """
    for root, path in enclosing_datasets(store):
        raise InvalidInputError(
            f"{store.root} is in the folder {path.split('/', 1)[0]!r} of the dataset {root.root}, which cleans it up; "
            f"create the dataset elsewhere, or a branch by create_branch. Nothing was written"
        )


def raise_if_dropped(store: ObjectStore, opened: Manifest, error: Exception) -> None:
    """Raise a clearer error if a file is missing because its dataset was dropped or recreated; else do nothing.

    Args:
        store: The dataset's store.
        opened: A manifest that was read before.
        error: The error that was raised since then.

    Raises:
        DatasetNotFoundError: The dataset was dropped.
        IncompatibleConflictError: The dataset was dropped and made again.
    """
    if not isinstance(error, ObjectNotFoundError) and getattr(error, "errno", None) != errno.ENOENT:
        return
    try:
        reload_latest(store, opened)
    except (DatasetNotFoundError, IncompatibleConflictError) as cause:
        raise cause from error
    except LanceError:
        return  # the first error matters more


def load_transaction(store: ObjectStore, manifest: Manifest | VersionHeader) -> Transaction | None:
    """Return the transaction that made a version; None if it was not recorded, or its file was deleted."""
    if manifest.transaction_bytes is not None:
        return Transaction.from_bytes(manifest.transaction_bytes)
    if not manifest.transaction_file:
        return None
    try:
        return Transaction.from_bytes(store.get(transaction_key(manifest.transaction_file)))
    except ObjectNotFoundError:
        return None


def _parse_location(meta: ObjectMeta) -> tuple[int, ManifestLocation] | None:
    name = parse_manifest_key(meta.key)
    if name is None or is_detached(name.version):
        return None
    location = ManifestLocation(
        key=meta.key, size_bytes=meta.size, naming=name.naming, e_tag=meta.e_tag, modified=meta.modified
    )
    return name.version, location


def _read(store: ObjectStore, version: int, location: ManifestLocation) -> Manifest:
    data, meta = store.read(location.key)
    # The e-tag of what was read: the manifest may have been written again since it was listed.
    location = replace(location, size_bytes=len(data), e_tag=meta.e_tag or location.e_tag)
    return _require_number(Manifest.from_bytes(data, location), version, location)


def migrate_to_v2_names(store: ObjectStore) -> int:
    """Rename all manifests to V2 names; no other process may read or write the dataset meanwhile.

    A migration that was interrupted can be run again. The newest manifest is renamed first, because other readers take
    the first V2 name for the latest version.

    Returns:
        The number of manifests that were renamed.

    Raises:
        CorruptFileError: A number has two different manifests; nothing is renamed.
    """
    names = [(meta.key, parse_manifest_key(meta.key)) for meta in store.list(VERSIONS_PREFIX)]
    old = [(name.version, key) for key, name in names if name is not None and name.naming is Naming.V1]
    keys = {key for key, _ in names}
    renamed = {version for version, _ in old if manifest_key(version) in keys}
    for version in renamed:
        _check_same_manifest(store, version)
    for version, key in sorted(old, reverse=True):
        if version not in renamed:
            store.copy(key, manifest_key(version, Naming.V2))
        store.delete(key)
    return len(old)


def find_naming_faults(
    store: ObjectStore, located: Iterable[tuple[int, ManifestLocation]]
) -> Iterator[tuple[int, str, str]]:
    """Yield the number, a manifest key and a message where manifests of one dataset follow both naming schemes.

    Args:
        store: The dataset's store.
        located: All versions, as `list_version_locations` gives them.
    """
    keys: dict[Naming, dict[int, str]] = {Naming.V1: {}, Naming.V2: {}}
    for version, location in located:
        keys[location.naming][version] = location.key
    if not all(keys.values()):
        return
    newest = max(keys[Naming.V1])
    message = (
        "manifests follow both naming schemes, V1 and V2, so that other readers fail or miss the newest version; "
        "migrate_manifest_paths_v2 gives all of them V2 names"
    )
    yield newest, keys[Naming.V1][newest], message
    for version in sorted(keys[Naming.V1].keys() & keys[Naming.V2].keys()):
        try:
            _check_same_manifest(store, version)
        except CorruptFileError as error:
            yield version, keys[Naming.V1][version], str(error)
