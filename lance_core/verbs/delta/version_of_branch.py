"""Open an earlier version of a branch, whose history continues before the fork in the parent."""

from __future__ import annotations

from lance_core.errors import VersionNotFoundError
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import load_branch

__all__ = ["version_before"]


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
