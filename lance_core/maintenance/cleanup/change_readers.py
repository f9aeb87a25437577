"""Keeps the versions that readers of changes have not consumed yet, in tables without stable row ids.

A reader of changes has a tag on the last version that it consumed. Without stable row ids, the changes since then are
computed from all later versions, which cleanup therefore keeps. With stable row ids, the tagged version and the latest
version are enough.
"""

from __future__ import annotations

from collections.abc import Mapping

from lance_core.table.manifest.file_references import FileReferences
from lance_core.table.paths import is_detached
from lance_core.table.refs import TagRef
from lance_core.verbs.refs.readers import READER_KEY, is_reader_tag


def keep_for_change_readers(
    tags: Mapping[str, TagRef], branch: str | None, removable: set[int], manifests: Mapping[int, FileReferences]
) -> list[str]:
    """Keep the versions that readers of changes need: remove them from `removable`.

    Args:
        tags: All tags.
        branch: The branch whose versions are cleaned up; None for main.
        removable: The versions to remove. The versions that readers need are removed from this set.
        manifests: All versions of the branch.

    Returns:
        Warnings that name the kept versions and their readers.
    """
    held = {name: ref for name, ref in tags.items() if ref.branch == branch and is_reader_tag(name, ref)}
    if not held:
        return []
    oldest = min(ref.version for ref in held.values())
    since = {version for version in manifests if version >= oldest and not is_detached(version)}
    needed = since & removable
    if not needed or all(manifests[version].uses_stable_row_ids or manifests[version].fault for version in since):
        return []
    removable -= needed
    readers = sorted({ref.metadata[READER_KEY] for ref in held.values()})
    warning = (
        f"{len(needed)} version(s), {min(needed)} to {max(needed)}, are kept: readers of changes ({', '.join(readers)})"
        f" have consumed the table up to version {oldest}, and without stable row ids they need all later versions"
    )
    return [warning]
