"""What refers to versions of a table: tags, branches, and claims of restores; see `commit.claims`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lance_core.commit.claims import list_claims
from lance_core.commit.versions import latest_version
from lance_core.store import ObjectMeta, ObjectStore
from lance_core.table.paths import BRANCHES_PREFIX, TAGS_PREFIX
from lance_core.table.refs import BranchRef, TagRef
from lance_core.verbs.context.references import read_branches, read_tags


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReferences:
    """The tags, branches and claims of restores that keep versions, as a cleanup read them.

    Attributes:
        files: The files that hold it.
        tags: All tags by name.
        branches: All branches by name.
        torn: A message for each tag or branch whose file is torn.
        in_use: Versions of the branch that are being restored.
    """

    files: frozenset[ObjectMeta]
    tags: Mapping[str, TagRef]
    branches: Mapping[str, BranchRef]
    torn: tuple[str, ...]
    in_use: frozenset[int]

    @classmethod
    def read(cls, root_store: ObjectStore, branch_store: ObjectStore) -> VersionReferences:
        """Read what refers to versions. Versions are listed after that: a restore commits before it drops its claim.

        Args:
            root_store: The store of the dataset.
            branch_store: The store of the branch.
        """
        files = _list_reference_files(root_store, branch_store)
        tags, torn_tags = read_tags(root_store)
        branches, torn_branches = read_branches(root_store)
        return cls(
            files=files,
            tags=tags,
            branches=branches,
            torn=(*torn_tags, *torn_branches.values()),
            in_use=frozenset(list_claims(branch_store, "use")),
        )

    def is_current(self, main: ObjectStore, store: ObjectStore, newest: int) -> bool:
        """Whether the same tags, branches and claims still exist, and `newest` is still the newest version.

        Args:
            main: The store of the dataset.
            store: The store of the branch.
            newest: The newest version of the branch that was listed.
        """
        return _list_reference_files(main, store) == self.files and latest_version(store) == newest


def _list_reference_files(main: ObjectStore, store: ObjectStore) -> frozenset[ObjectMeta]:
    claims = list_claims(store, "use").values()
    return frozenset((*main.list(TAGS_PREFIX), *main.list(BRANCHES_PREFIX), *claims))
