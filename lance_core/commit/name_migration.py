"""Renames the manifests of a dataset from V1 names to V2 names, which sort newest first."""

from __future__ import annotations

from lance_core.commit.versions import locate_latest
from lance_core.store import ObjectStore
from lance_core.table.paths import VERSIONS_PREFIX, Naming, manifest_key, parse_manifest_key


def migrate_to_v2_names(store: ObjectStore) -> int:
    """Rename all manifests to V2 names; no other process may read or write the dataset meanwhile.

    The newest manifest is renamed first, because readers take the first V2 name for the latest version: a dataset whose
    migration was interrupted can still be read, and the migration can be run again.

    Returns:
        The number of manifests that were renamed.
    """
    if locate_latest(store) is None:
        return 0
    names = [(meta.key, parse_manifest_key(meta.key)) for meta in store.list(VERSIONS_PREFIX)]
    old = [(name.version, key) for key, name in names if name is not None and name.naming is Naming.V1]
    for version, key in sorted(old, reverse=True):
        store.copy(key, manifest_key(version, Naming.V2))
        store.delete(key)
    return len(old)
