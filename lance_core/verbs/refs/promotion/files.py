"""Copy the files that a branch wrote to its parent for a promotion: data files, sidecars and deletion files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lance_core.schema.field import is_blob_v2
from lance_core.store import ObjectStore, remove_leftovers
from lance_core.table.fragment import Fragment
from lance_core.table.paths import DATA_PREFIX, branch_root, data_key
from lance_core.threads import ThreadPool
from lance_core.verbs.refs.changes import Branch, BranchChanges

COPIES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFiles:
    """Files below a branch's root that get the same names below its parent's.

    Attributes:
        root: The store of the dataset's root, below which branch and parent lie.
        source: Prefix of the branch's keys.
        target: Prefix of the parent's keys; empty for main.
        keys: Keys of the files, relative to either prefix.
        num_bytes: Bytes of the data files, as far as the manifest records them.
    """

    root: ObjectStore
    source: str
    target: str
    keys: tuple[str, ...]
    num_bytes: int

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, root: ObjectStore, branch: Branch, changes: BranchChanges) -> BranchFiles:
        """Find the files of a branch that its promotion has to copy."""
        source = f"{branch_root(branch.name)}/"
        parent = branch.ref.parent_branch
        changed = [*changes.added, *(after for _, after in changes.updated)]
        own_files = {file.path: file for fragment in changed for file in fragment.files if file.base_id is None}
        keys = [data_key(path) for path in own_files]
        if any(is_blob_v2(node) for node, _ in branch.head.manifest.schema.walk()):
            folders = {data_key(path).removesuffix(".lance") for path in own_files}
            keys += [key for key in _list_keys(root, source, DATA_PREFIX) if key.rpartition("/")[0] in folders]
        keys += [_deletion_key(after) for _, after in changes.updated if _has_own_deletions(after)]
        return cls(
            root=root,
            source=source,
            target="" if parent is None else f"{branch_root(parent)}/",
            keys=tuple(keys),
            num_bytes=sum(file.file_size_bytes for file in own_files.values()),
        )

    def copy(self) -> None:
        """Copy the files; object storage copies them itself."""
        if not self.keys:
            return
        with ThreadPool(COPIES_AT_ONCE) as pool:
            for _ in pool.map(lambda key: self.root.copy(self.source + key, self.target + key), self.keys):
                pass

    def discard(self) -> None:
        """Delete the copies."""
        remove_leftovers(self.root, [self.target + key for key in self.keys])


def _list_keys(root: ObjectStore, prefix: str, folder: str) -> Iterator[str]:
    for meta in root.list(prefix + folder):
        yield meta.key.removeprefix(prefix)


def _has_own_deletions(fragment: Fragment) -> bool:
    return fragment.deletion_file is not None and fragment.deletion_file.base_id is None


def _deletion_key(fragment: Fragment) -> str:
    assert fragment.deletion_file is not None
    return fragment.deletion_file.key(fragment.id)
