"""Checks that each version of the history can be read, and can have been made from the version before it.

A writer that does not check the history after its commit can have committed a version under a number that cleanup
had freed. No later version was made from such a version: its rows were never part of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lance_core.commit.relation import carries_on
from lance_core.commit.versions import find_naming_faults, list_version_locations, load_manifest, load_transaction
from lance_core.errors import CorruptFileError, UnsupportedError, VersionNotFoundError
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.threads import ThreadPool

READ_AHEAD: Final = 16
"""Manifests that are read in parallel."""

_WINDOW: Final = 128
"""Manifests that are held in memory at a time."""


def find_history_problems(store: ObjectStore) -> Iterator[tuple[int, str, str]]:
    """Yield the number, the manifest key and the fault of each version that is torn, named twice or not of the history.

    Versions that were cleaned up, and versions with unknown features, are skipped.

    Args:
        store: The store of the dataset, or of a branch.
    """
    located = list(list_version_locations(store))
    yield from find_naming_faults(store, located)
    versions = sorted({version for version, _ in located})
    with ThreadPool(READ_AHEAD) as pool:
        before: Manifest | None = None
        for start in range(0, len(versions), _WINDOW):
            for after in pool.map(lambda version: _load(store, version), versions[start : start + _WINDOW]):
                if isinstance(after, _Torn):
                    yield after.version, "", after.fault
                elif after is not None:
                    if before is not None and not _can_follow(store, before, after):
                        yield before.version, _key(before), _find_fault(before, after)
                    before = after


def _can_follow(store: ObjectStore, before: Manifest, after: Manifest) -> bool:
    if after.version > before.version + 1:
        return True  # what was in between is not known
    made_by = load_transaction(store, after)
    return made_by is None or carries_on(before, after, made_by)


@dataclass(frozen=True, slots=True)
class _Torn:
    """A version whose manifest cannot be read."""

    version: int
    fault: str


def _load(store: ObjectStore, version: int) -> Manifest | _Torn | None:
    try:
        return load_manifest(store, version)
    except CorruptFileError as error:
        return _Torn(version, f"{error}; cleanup_old_versions(versions=[{version}]) removes the version")
    except (VersionNotFoundError, UnsupportedError):
        return None  # removed by a cleanup, or of a later writer


def _key(manifest: Manifest) -> str:
    return "" if manifest.location is None else manifest.location.key


def _find_fault(before: Manifest, after: Manifest) -> str:
    return (
        f"version {after.version} was not made from it: it was committed under a number that cleanup had freed, and "
        f"its change was never part of the table; cleanup_old_versions(versions=[{before.version}]) removes it"
    )
