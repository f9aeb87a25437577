"""The version of a table that is the newest as a step starts, from which on other writes overlap the step's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lance_core

_PROMOTED: Final = "lance.promoted_branch_version"
"""Entry of a branch's metadata: its version that was promoted."""


def newest_version(main: lance_core.LanceDataset | None, branch: str | None) -> int:
    """The newest version of a table, or of its branch; 0 if there is no table.

    A branch that does not exist, or was promoted and has no changes since, will be forked from main.

    Args:
        main: The newest version of main; None if there is no table.
        branch: The branch; None for main.
    """
    if main is None:
        return 0
    branches = {} if branch is None else main.branches.list()
    if branch is None or branch not in branches:
        return main.version
    newest = main.checkout_version((branch, None)).version
    return main.version if branches[branch]["metadata"].get(_PROMOTED) == str(newest) else newest
