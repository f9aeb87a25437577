"""Finds versions with missing files: a cleanup that is killed can leave the manifest of a version without its files."""

from __future__ import annotations

from dataclasses import dataclass, field

from lance_core.errors import ObjectNotFoundError
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import DATA_PREFIX, DELETIONS_PREFIX, data_key

__all__ = ["FolderFiles"]


@dataclass(slots=True)
class FolderFiles:
    """The data and deletion files below the root of a branch.

    Attributes:
        store: The store of the branch.
        present: The keys of files that are there.
        missing: The keys of files that are not.
    """

    store: ObjectStore
    present: set[str] = field(init=False)
    missing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """List the files."""
        self.present = {meta.key for prefix in (DATA_PREFIX, DELETIONS_PREFIX) for meta in self.store.list(prefix)}

    def lack(self, manifest: Manifest) -> bool:
        """Whether a file that a version has below this root is missing."""
        return any(self._is_missing(key) for key in _own_keys(manifest))

    def _is_missing(self, key: str) -> bool:
        if key in self.present:
            return False
        if key not in self.missing:
            # Written since the listing, or missing.
            try:
                self.store.head(key)
            except ObjectNotFoundError:
                self.missing.add(key)
            else:
                self.present.add(key)
        return key in self.missing


def _own_keys(manifest: Manifest) -> set[str]:
    keys = {data_key(file.path) for fragment in manifest.fragments for file in fragment.files if file.base_id is None}
    deletions = [(fragment.id, fragment.deletion_file) for fragment in manifest.fragments]
    return keys | {file.key(number) for number, file in deletions if file is not None and file.base_id is None}
