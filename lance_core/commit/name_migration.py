"""From the old names of manifests to the new ones, which sort newest first."""

from __future__ import annotations

from lance_core.commit.versions import locate_latest
from lance_core.store import ObjectStore
from lance_core.table.paths import VERSIONS_PREFIX, Naming, manifest_key, parse_manifest_key

__all__ = ["migrate_to_v2_names"]


def migrate_to_v2_names(store: ObjectStore) -> int:
    """Give all manifests their new names; nobody else may write or read meanwhile.

    The newest comes first: readers take the first new name for the latest version, so that a run that was cut short
    leaves a dataset that can be read, and can be run again.

    Returns:
        How many were renamed.
    """
    if locate_latest(store) is None:
        return 0
    names = [(meta.key, parse_manifest_key(meta.key)) for meta in store.list(VERSIONS_PREFIX)]
    old = [(name.version, key) for key, name in names if name is not None and name.naming is Naming.V1]
    for version, key in sorted(old, reverse=True):
        store.copy(key, manifest_key(version, Naming.V2))
        store.delete(key)
    return len(old)
