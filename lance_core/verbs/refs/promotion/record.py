"""The transaction properties of a promotion's commit: its origin, and the merged properties of the branch's commits.

promoted_from       name of the branch
promoted_version    the branch's version
promoted_identity   the identity of that version (`LanceDataset.identity`)
promoted_fork       the parent's version that the branch was forked from
lance.promotion     "<uuid of the branch>@<its version>": at most one version of the parent has it
lance.slices        all slices that the branch filled: two writers of one slice conflict (see `commit.conflict`)
<any other key>     from the branch's commits: one value unchanged, lists merged, several values as a JSON list
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lance_core.commit.attempts import REPLACES_KEY
from lance_core.commit.history import list_removed_versions, load_transactions
from lance_core.commit.proofs import changes_rows
from lance_core.commit.versions import list_versions
from lance_core.errors import BranchConflictError
from lance_core.store import ObjectStore
from lance_core.table.filled_slices import SLICE_NAMES_KEY, SLICES_KEY, FilledSlice, read_slices, slice_properties
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import KeyExistenceFilter, Operation, Overwrite, Restore, Update
from lance_core.table.refs import BranchRef, TagRef, check_tag_name
from lance_core.table.row_changes import RowChange
from lance_core.table.transaction import COMMIT_MESSAGE_KEY, REVERTS_KEY, Transaction
from lance_core.table.watermarks import is_watermark
from lance_core.verbs.refs.changes import Branch

PROMOTED_FROM_KEY: Final = "promoted_from"
PROMOTED_VERSION_KEY: Final = "promoted_version"
PROMOTED_IDENTITY_KEY: Final = "promoted_identity"
PROMOTED_FORK_KEY: Final = "promoted_fork"
PROMOTION_TAG_PREFIX: Final = "promoted."
"""The beginning of the names of tags that promotions create automatically."""

MARK_VERSION: Final = "lance.promoted_version"
MARK_BRANCH_VERSION: Final = "lance.promoted_branch_version"
"""In the metadata of a branch that was promoted: the version of its parent that has its rows, and its own version."""

_NOT_KEPT: Final = (COMMIT_MESSAGE_KEY, REPLACES_KEY, SLICES_KEY, SLICE_NAMES_KEY, REVERTS_KEY)
"""The message is the promotion's own, and versions of the branch mean nothing on its parent."""

_NO_STRINGS: Final = "[]"


def is_promotion_tag(name: str, tag: TagRef) -> bool:
    """Whether a promotion created a tag automatically, without a name from the caller."""
    return name.startswith(PROMOTION_TAG_PREFIX) and PROMOTED_FROM_KEY in tag.metadata


def is_promoted(ref: BranchRef) -> bool:
    """Whether a branch is marked as promoted."""
    return MARK_VERSION in ref.metadata


def promotion_token(branch: Branch, version: int) -> str:
    """An identifier of the promotion of one version of a branch; a later branch of the same name has another."""
    unique = branch.ref.identifier[-1][1] if branch.ref.identifier else f"{branch.name}:{branch.ref.created_at}"
    return f"{unique}@{version}"


def read_commits_between(store: ObjectStore, after: int, until: int) -> dict[int, Transaction]:
    """The transactions of the versions after `after` up to `until`, except those that are not known any more.

    They are known of versions that were cleaned up by this library while a branch was open (`commit.history`).
    """
    if until <= after:
        return {}
    present, removed = (
        {version for version in versions if after < version <= until}
        for versions in (list_versions(store), list_removed_versions(store))
    )
    return load_transactions(store, present, removed)


def promotion_tag(branch: Branch, tag: str | bool) -> str | None:
    """The tag on the version that a promotion makes; None for no tag.

    Args:
        branch: The branch.
        tag: Its name; True for a name made of the branch's, False for no tag.
    """
    if isinstance(tag, str):
        return check_tag_name(tag)
    if not tag:
        return None
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", branch.name).strip("-") or "branch"
    unique = branch.ref.identifier[-1][1][:8] if branch.ref.identifier else str(branch.ref.created_at)
    return f"{PROMOTION_TAG_PREFIX}{slug}.{unique}"


def reject_taken_back(
    parent: ObjectStore,
    latest: Manifest,
    branch: str,
    version: int,
    commits: Mapping[int, Transaction],
    operation: Operation | None,
) -> None:
    """Make sure that nobody took back the rows that a promotion added to the parent of a branch.

    A write that replaces all rows takes nothing back: it is newer than the promotion. Where a later commit is not
    known, fragments of the promotion have to be there.

    Args:
        parent: The store of the parent.
        latest: The parent's latest version.
        branch: The branch.
        version: The version of the parent that the promotion made.
        commits: The later commits of the parent; earlier ones do not matter.
        operation: What the promotion committed; None if that is not known.

    Raises:
        BranchConflictError: An undo or a restore removed the rows, or may have.
    """
    later = find_version_that_took_back(version, commits)
    is_newer = later is not None and isinstance(commits[later].operation, Overwrite)
    if later is not None and (not is_newer or REVERTS_KEY in commits[later].properties):
        raise BranchConflictError(
            f"the promotion of branch {branch!r}, version {version} of {parent.root}, was taken back by version "
            f"{later}: an undo or a restore. A branch is promoted once, and nothing was committed or "
            "discarded. Run again what wrote to the branch, which begins it again from the table as it is "
            "now, and promote that"
        )
    missing = [number for number in range(version + 1, latest.version + 1) if number not in commits]
    if missing and not _has_fragments_of(operation, latest):
        raise BranchConflictError(
            f"branch {branch!r} was promoted as version {version} of {parent.root}. Whether its rows were taken back "
            f"since is not known, as version {missing[0]} was cleaned up by another library. Nothing was committed or "
            "discarded. Compare the rows of both; where they are there, discard the branch by branches.discard"
        )


def _has_fragments_of(operation: Operation | None, latest: Manifest) -> bool:
    """Whether a version has a fragment that a promotion added or changed: an undo or a restore leaves none."""
    if not isinstance(operation, Update):
        return False
    paths = {file.path for fragment in latest.fragments for file in fragment.files}
    return any(file.path in paths for fragment in operation.new_fragments for file in fragment.files) or any(
        latest.fragments.get(fragment.id) == fragment for fragment in operation.updated_fragments
    )


def may_take_back(commit: Transaction) -> bool:
    """Whether a commit can remove the rows of earlier ones: an undo, a restore or an overwrite of the whole table."""
    return REVERTS_KEY in commit.properties or _replaces_all(commit)


def _replaces_all(commit: Transaction) -> bool:
    is_overwrite = isinstance(commit.operation, Overwrite) and SLICES_KEY not in commit.properties
    return is_overwrite or isinstance(commit.operation, Restore)


def find_version_that_took_back(version: int, commits: Mapping[int, Transaction]) -> int | None:
    """The version that undid a version, restored an older one or overwrote the table; None if the rows are there.

    Args:
        version: The version that added rows.
        commits: The later commits; earlier ones do not matter.
    """
    taken_back: int | None = None
    after: dict[int, int | None] = {version: None}
    for number in sorted(number for number in commits if number > version):
        operation, properties = commits[number].operation, commits[number].properties
        undone = properties.get(REVERTS_KEY, "").split(",")
        if isinstance(operation, Restore) and operation.version >= version:
            restored = max(earlier for earlier in after if earlier <= operation.version)  # others kept rows
            taken_back = after[restored]
        elif taken_back is not None:
            taken_back = None if str(taken_back) in undone else taken_back
        elif str(version) in undone or _replaces_all(commits[number]):
            taken_back = number
        after[number] = taken_back
    return taken_back


def merge_properties(commits: Iterable[Transaction]) -> dict[str, str]:
    """Merge the transaction properties of several commits into those of one."""
    values: dict[str, dict[str, None]] = {}
    slices: dict[str, FilledSlice] = {}
    for commit in commits:
        slices |= read_slices(commit.properties)
        for key, value in commit.properties.items():
            if key not in _NOT_KEPT and not is_watermark(key):
                values.setdefault(key, {})[value] = None
    merged = {key: _merge_values(list(texts)) for key, texts in values.items()}
    return merged | slice_properties(sorted(slices.values(), key=lambda part: part.name))


def merge_inserted_keys(commits: Iterable[Transaction]) -> KeyExistenceFilter | None:
    """The keys that commits inserted, so that a writer of the same keys conflicts; None if none are recorded.

    Lists of keys are merged. If a commit has a filter without a list of keys, the result contains any key.
    """
    filters = [
        commit.operation.inserted_rows
        for commit in commits
        if isinstance(commit.operation, Update) and commit.operation.inserted_rows is not None
    ]
    if not filters:
        return None
    exact = [key_filter.key_hashes for key_filter in filters if key_filter.key_hashes is not None]
    if len(exact) == len(filters) and len({key_filter.field_ids for key_filter in filters}) == 1:
        return KeyExistenceFilter(field_ids=filters[0].field_ids, key_hashes=frozenset[int]().union(*exact))
    return KeyExistenceFilter.for_any_key(filters[0].field_ids)


def _merge_values(values: Sequence[str]) -> str:
    if len(values) == 1:
        return values[0]
    lists = [_parse_strings(value) for value in values]
    if all(items or value == _NO_STRINGS for items, value in zip(lists, values, strict=True)):
        return json.dumps(sorted({item for items in lists for item in items}))
    return json.dumps(list(values))


def _parse_strings(value: str | None) -> list[str]:
    """The strings of a JSON list; an empty list for any other JSON."""
    try:
        content: Any = json.loads(value) if value else []
    except ValueError:
        return []
    return [str(item) for item in content] if isinstance(content, list) else []


def find_equal_version(head: Manifest, version: int) -> int:
    """The newest version that is recorded to have the rows of an earlier one, whose commits may be cleaned up."""
    row_change = RowChange.of(head.config)
    is_recorded = row_change is not None and row_change.version <= version
    return max(version, row_change.known_to) if row_change is not None and is_recorded else version


def find_change_after(branch: Branch, version: int, commits: Mapping[int, Transaction]) -> int | None:
    """The first version of a branch after another one that may have changed rows; None if only maintenance came."""
    head = branch.head.manifest
    if version > head.version:
        return version
    later = range(find_equal_version(head, version) + 1, head.version + 1)
    return next((at for at in later if at not in commits or changes_rows(commits[at])), None)
