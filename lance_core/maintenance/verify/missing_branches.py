"""Finds branches whose file in `_refs/branches/` is missing although something refers to the branch."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from lance_core.store import ObjectStore
from lance_core.table.paths import branch_ref_key
from lance_core.table.refs import BranchRef, TagRef
from lance_core.verbs.refs.sweep import is_made_tag


def missing_branches(
    root: ObjectStore, tags: Mapping[str, TagRef], branches: Mapping[str, BranchRef], problems: Container[str]
) -> Iterator[tuple[str, str]]:
    """Yield the key of the file of each branch that is missing, and who needs it.

    A deletion is rejected while another branch or a tag refers to the branch, so that the file was lost. What was made
    with the branch, such as the tag of its fork, goes with it.

    Args:
        root: The store of the dataset.
        tags: Its valid tags, by name.
        branches: Its valid branches, by name.
        problems: The keys of files that are torn or invalid.
    """
    needs = [
        (tag.branch, f"the tag {name} names version {tag.version} of it; tags.delete({name!r}) gives that version up")
        for name, tag in tags.items()
        if not is_made_tag(name, tag)
    ]
    needs += [
        (ref.parent_branch, f"the branch {name} was forked from it; branches.discard({name!r}) gives that branch up")
        for name, ref in branches.items()
    ]
    for branch, reason in needs:
        key = "" if branch is None else branch_ref_key(branch)
        if branch is not None and branch not in branches and key not in problems:
            yield key, f"{root.root}/{key}: this file is missing, and {reason}"
