"""Open earlier versions of a branch, whose history continues before the fork in the parent.

main      1  2  3  4
                |          the fork version is in both: main has the version that made it,
branch          3  4  5    the branch a clone, whose files are numbered as in the branch's later versions
"""

from __future__ import annotations

from functools import cached_property

from lance_core.commit.versions import existing_versions, load_transaction, load_version_header
from lance_core.errors import VersionNotFoundError
from lance_core.store import ObjectStore
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.context.references import load_branch


def version_before(dataset: Handle, version: int) -> Handle:
    """A handle on an earlier version of a branch; before the branch's fork, that is a version of its parent.

    Raises:
        VersionNotFoundError: The version was cleaned up.
    """
    branch: str | None = dataset.branch
    while True:
        try:
            return dataset.checkout_version((branch, version))
        except VersionNotFoundError:
            if branch is None:
                raise
            ref = load_branch(dataset._refs.root, branch)  # noqa: SLF001 - a handle of the same package
            if version >= ref.parent_version:
                raise
            branch = ref.parent_branch


class BranchHistory:
    """The commits of a branch; those up to the fork version, the fork version included, are its parent's.

    Args:
        dataset: A handle on the branch.
    """

    def __init__(self, dataset: Handle) -> None:
        self._dataset = dataset

    @cached_property
    def _forks(self) -> list[tuple[str | None, int]]:
        """The branch and those that it descends from, each with its fork version; main with 0."""
        forks: list[tuple[str | None, int]] = []
        branch = self._dataset.branch
        while branch is not None:
            ref = load_branch(self._dataset._refs.root, branch)  # noqa: SLF001 - a handle of the same package
            forks.append((branch, ref.parent_version))
            branch = ref.parent_branch
        return [*forks, (None, 0)]

    def store_of(self, version: int) -> ObjectStore:
        """The store of the branch that a version was committed to."""
        return self._store(next(branch for branch, fork in self._forks if version > fork))

    def committed(self, version: int) -> Snapshot:
        """A version on the branch that it was committed to.

        Raises:
            VersionNotFoundError: The version was cleaned up.
        """
        current = self._dataset.snapshot
        branch = next(branch for branch, fork in self._forks if version > fork)
        if (branch, version) == (self._dataset.branch, current.manifest.version):
            return current
        return self._dataset.checkout_version((branch, version)).snapshot

    def opened(self, version: int) -> Snapshot:
        """A version as the latest branch that has it records it: the fork version as the clone."""
        return version_before(self._dataset, version).snapshot

    def transaction(self, version: int) -> Transaction | None:
        """The transaction of a version; None if it records none.

        Raises:
            VersionNotFoundError: The version was cleaned up.
        """
        store = self.store_of(version)
        return load_transaction(store, load_version_header(store, version))

    def time_us(self, version: int) -> int | None:
        """When a version was committed, in microseconds since the epoch; None if it was cleaned up."""
        try:
            return load_version_header(self.store_of(version), version).timestamp_ns // 1000
        except VersionNotFoundError:
            return None

    def existing(self) -> set[int]:
        """The versions up to that of the handle that were not cleaned up."""
        versions, end = set[int](), self._dataset.version
        for branch, fork in self._forks:
            versions |= {version for version in existing_versions(self._store(branch)) if fork <= version <= end}
            end = fork
        return versions

    def _store(self, branch: str | None) -> ObjectStore:
        if branch == self._dataset.branch:
            return self._dataset.snapshot.store
        return self._dataset._refs.store_of(branch)  # noqa: SLF001 - a handle of the same package
