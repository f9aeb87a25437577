"""Finds branches whose file in `_refs/branches/` is missing although something refers to the branch."""

from __future__ import annotations

from collections.abc import Iterator

from lance_core.errors import CorruptFileError
from lance_core.store import ObjectStore
from lance_core.table.paths import branch_ref_key
from lance_core.verbs.context.references import read_branches, read_tags
from lance_core.verbs.refs.sweep import is_made_tag

__all__ = ["missing_branches"]


def missing_branches(root: ObjectStore) -> Iterator[tuple[str, str]]:
    """Yield the key of the file of each branch that is missing, and who needs it.

    A deletion is rejected while another branch or a tag refers to the branch, so that the file was lost. What was made
    with the branch, such as the tag of its fork, goes with it.

    Args:
        root: The store of the dataset.
    """
    try:
        tags, _ = read_tags(root)
        branches, torn = read_branches(root)
    except CorruptFileError:
        return  # `reference_problems` names the invalid file; what it refers to is unknown until it is mended
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
        if branch is not None and branch not in branches and branch not in torn:
            key = branch_ref_key(branch)
            yield key, f"{root.root}/{key}: this file is missing, and {reason}"
