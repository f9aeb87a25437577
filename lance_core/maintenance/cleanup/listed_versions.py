"""Reads all versions of a dataset for a cleanup, and marks those whose manifests are torn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from lance_core.errors import CorruptFileError, ObjectNotFoundError, RetryableConflictError
from lance_core.store import ObjectMeta, ObjectStore
from lance_core.table.manifest.file_references import FileReferences
from lance_core.table.paths import is_detached, parse_manifest_key
from lance_core.threads import ThreadPool

_MOST_LISTINGS: Final = 100
_LOW_LISTINGS: Final = 3

READ_AHEAD: Final = 16
"""Manifests that are read in parallel from object storage."""


def load_all(
    store: ObjectStore, listing: Callable[[], dict[str, ObjectMeta]], *, at_least: int = 1
) -> tuple[dict[str, ObjectMeta], dict[int, FileReferences]]:
    """List the versions and read their manifests, ascending; versions that are removed meanwhile are left out.

    If the newest listed version vanishes, a newer version was committed since, which may need all files that the other
    versions refer to: the listing is too old and is repeated. A listing may also leave out versions that are added or
    removed while it runs. So it is repeated as well if it has no versions, or if its newest version is below
    `at_least`; the third such listing is accepted. A torn version has a `fault`, and no references.

    Args:
        store: The store.
        listing: Lists the files of versions.
        at_least: A version that is known to have existed.

    Raises:
        RetryableConflictError: The newest version is removed during each listing.
    """
    low = 0
    for _ in range(_MOST_LISTINGS):
        listed = listing()
        numbers = [name.version for key in listed if (name := parse_manifest_key(key)) is not None]
        manifests = _load_listed(store, listed)
        newest = max((number for number in numbers if not is_detached(number)), default=None)
        is_low = newest is None or newest < at_least
        low += is_low
        if low == _LOW_LISTINGS or (newest in manifests and not is_low):
            return listed, manifests
    raise make_restless_error(store)


def make_restless_error(store: ObjectStore) -> RetryableConflictError:
    """The error of a dataset whose versions are replaced faster than they can be read."""
    return RetryableConflictError(
        f"{store.root}: versions are committed and cleaned up faster than they can be read; nothing was removed"
    )


def _load_listed(store: ObjectStore, listed: Mapping[str, ObjectMeta]) -> dict[int, FileReferences]:

    def load(pair: tuple[int, str]) -> FileReferences | None:
        version, key = pair
        try:
            manifest = FileReferences.from_bytes(store.get(key), key)
        except ObjectNotFoundError:
            return None
        except CorruptFileError as error:
            return torn(version, key, str(error))
        return manifest if manifest.version == version else torn(version, key, f"it holds version {manifest.version}")

    def torn(version: int, key: str, error: str) -> FileReferences:
        written = datetime.fromtimestamp(listed[key].modified, UTC)
        fault = f"version {version} of {store.root} cannot be read: {error}"
        return FileReferences(version=version, timestamp=written, raw_fragments=(), fault=fault)

    ordered = sorted((name.version, key) for key in listed if (name := parse_manifest_key(key)) is not None)
    if not store.put_is_a_request:
        loaded = [load(pair) for pair in ordered]
    else:
        with ThreadPool(READ_AHEAD) as pool:
            loaded = list(pool.map(load, ordered))
    return {manifest.version: manifest for manifest in loaded if manifest is not None}
