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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lance_core.commit import REPLACES_KEY, find_transaction, list_versions
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import KeyExistenceFilter, Update
from lance_core.table.refs import TagRef
from lance_core.table.transaction import COMMIT_MESSAGE_KEY, SLICE_NAMES_KEY, SLICES_KEY, TAKES_BACK_KEY, Transaction
from lance_core.table.watermarks import is_watermark
from lance_core.threads import ThreadPool
from lance_core.verbs.refs.changes import Branch
from lance_core.verbs.refs.removed_commits import removed_commits

__all__ = [
    "PROMOTED_FORK_KEY",
    "PROMOTED_FROM_KEY",
    "PROMOTED_IDENTITY_KEY",
    "PROMOTED_VERSION_KEY",
    "PROMOTION_TAG_PREFIX",
    "commits_between",
    "find_unknown_fill",
    "inserted_keys_of",
    "is_promotion_tag",
    "promotion_token",
    "properties_of_branch",
    "slice_names",
]

PROMOTED_FROM_KEY: Final = "promoted_from"
PROMOTED_VERSION_KEY: Final = "promoted_version"
PROMOTED_IDENTITY_KEY: Final = "promoted_identity"
PROMOTED_FORK_KEY: Final = "promoted_fork"
PROMOTION_TAG_PREFIX: Final = "promoted."
"""The beginning of the names of tags that promotions create automatically."""

_NOT_KEPT: Final = (COMMIT_MESSAGE_KEY, REPLACES_KEY, SLICES_KEY, SLICE_NAMES_KEY, TAKES_BACK_KEY)
"""The message is the promotion's own, and versions of the branch mean nothing on its parent."""

_NO_STRINGS: Final = "[]"
READ_AHEAD: Final = 8


def is_promotion_tag(name: str, tag: TagRef) -> bool:
    """Whether a promotion created a tag automatically, without a name from the caller."""
    return name.startswith(PROMOTION_TAG_PREFIX) and PROMOTED_FROM_KEY in tag.metadata


def promotion_token(branch: Branch, version: int) -> str:
    """An identifier of the promotion of one version of a branch; a later branch of the same name has another."""
    unique = branch.ref.identifier[-1][1] if branch.ref.identifier else f"{branch.name}:{branch.ref.created_at}"
    return f"{unique}@{version}"


def commits_between(store: ObjectStore, after: int, until: int) -> dict[int, Transaction]:
    """The transactions of the versions after `after` up to `until`, except versions that were cleaned up."""
    if until <= after:
        return {}
    versions = [version for version in list_versions(store) if after < version <= until]
    with ThreadPool(READ_AHEAD) as pool:
        transactions = list(pool.map(lambda version: find_transaction(store, version), versions))
    return {
        version: transaction
        for version, transaction in zip(versions, transactions, strict=True)
        if transaction is not None
    }


def properties_of_branch(branch: Branch, commits: Mapping[int, Transaction]) -> dict[str, str]:
    """The merged properties of the commits of a branch, of which versions may have been removed.

    Args:
        branch: The branch.
        commits: The commits since the fork, except for those whose versions were removed.
    """
    removed = {commit.version: commit.properties for commit in removed_commits(branch.ref.metadata).commits}
    properties = removed | {version: commit.properties for version, commit in commits.items()}
    return _merge_properties(properties[version] for version in sorted(properties))


def find_unknown_fill(branch: Branch, latest: Manifest) -> str | None:
    """The reason why it is not known whether the parent has filled a slice of the branch since the fork; None if it is.

    A version of the branch may have been removed of which no record says what it changed.

    Args:
        branch: The branch.
        latest: The parent's latest version.
    """
    head, record = branch.head.manifest.version, removed_commits(branch.ref.metadata)
    existing = set(list_versions(branch.head.store))
    versions = range(branch.fork_version + 1, head)
    unknown = [version for version in versions if version not in existing and not record.covers(version)]
    if not unknown:
        return None
    for version, commit in commits_between(branch.parent.store, branch.fork_version, latest.version).items():
        if SLICES_KEY in commit.properties:
            return f"version {unknown[0]} of the branch was removed, and may have filled what version {version} filled"
    return None


def _merge_properties(commits: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge the transaction properties of several commits into those of one."""
    values: dict[str, dict[str, None]] = {}
    slices: dict[str, str] = {}
    for properties in commits:
        slices |= slice_names(properties)
        for key, value in properties.items():
            if key not in _NOT_KEPT and not is_watermark(key):
                values.setdefault(key, {})[value] = None
    merged = {key: _merge_values(list(texts)) for key, texts in values.items()}
    if slices:
        ordered = sorted(slices, key=lambda digest: slices[digest])
        merged[SLICES_KEY] = json.dumps(ordered)
        merged[SLICE_NAMES_KEY] = json.dumps([slices[digest] for digest in ordered])
    return merged


def slice_names(properties: Mapping[str, str]) -> dict[str, str]:
    """The names of the slices that a commit filled, by their digests; the digest itself if the name is not known."""
    digests, names = _parse_strings(properties.get(SLICES_KEY)), _parse_strings(properties.get(SLICE_NAMES_KEY))
    return dict(zip(digests, names if len(names) == len(digests) else digests, strict=True))


def inserted_keys_of(commits: Iterable[Transaction]) -> KeyExistenceFilter | None:
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
