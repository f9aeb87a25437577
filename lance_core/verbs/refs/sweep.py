"""Find branches to discard: stale branches, and remains of branches whose creation or removal was interrupted.

stale     a branch whose latest commit is old, without forks and without tags
orphan    files below tree/<name>/, or tags that were created with the branch, without _refs/branches/<name>.json, all
          of them old
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from lance_core.commit.versions import load_latest
from lance_core.errors import ObjectNotFoundError
from lance_core.table.paths import (
    DELETIONS_PREFIX,
    INDICES_PREFIX,
    TRANSACTIONS_PREFIX,
    TREE_PREFIX,
    VERSIONS_PREFIX,
    branch_root,
)
from lance_core.table.refs import BranchRef, TagRef, is_branch_name
from lance_core.times import ago
from lance_core.verbs.context.references import TableRefs, read_tags
from lance_core.verbs.refs.promotion.record import PROMOTED_FROM_KEY, is_promotion_tag
from lance_core.verbs.refs.readers import is_reader_tag
from lance_core.verbs.refs.tags import load_tags

FORK_TAG_PREFIX: Final = "fork."
"""Start of the names of tags that keep fork versions; the branch and its identifier follow."""

FORKED_KEY: Final = "lance.branch"
"""In the metadata of such a tag: the branch."""

ORPHAN_AGE: Final = timedelta(hours=1)
"""Age at which files without a reference count as remains: the creation of a branch takes only seconds."""

_FOLDERS: Final = (VERSIONS_PREFIX, TRANSACTIONS_PREFIX, DELETIONS_PREFIX, INDICES_PREFIX, "data/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The result of a sweep: what was removed, or would be.

    Attributes:
        stale: Names of stale branches.
        orphans: Names of branches that do not exist, of which files or tags are left.
        kept: Stale branches that are kept, each with the reason.
    """

    stale: tuple[str, ...]
    orphans: tuple[str, ...]
    kept: Mapping[str, str]


def find_stale(
    table: TableRefs, refs: Mapping[str, BranchRef], older_than: timedelta
) -> tuple[list[str], dict[str, str]]:
    """The branches without a commit for some time, children first, and branches that must be kept, with the reasons."""
    limit = ago(older_than)
    tagged = {ref.branch for name, ref in load_tags(table).items() if not is_made_tag(name, ref)}
    stale: list[str] = []
    reasons: dict[str, str] = {}
    for name in sorted(refs, key=lambda name: (-len(refs[name].identifier), name)):
        if find_last_commit(table, name, refs[name]) >= limit:
            continue
        children = sorted(
            other
            for other, ref in refs.items()
            if other not in stale and (ref.parent_branch == name or ref.descends_from(refs[name]))
        )
        if children:
            reasons[name] = f"{children[0]} was forked from it"
        elif name in tagged:
            reasons[name] = "a tag names one of its versions"
        else:
            stale.append(name)
    return stale, reasons


def is_made_tag(name: str, tag: TagRef) -> bool:
    """Whether a fork, a promotion or a reader of changes created a tag, which is useless without its branch.

    A tag for a clone does not count: another dataset needs it.
    """
    return is_fork_tag(name, tag) or is_reader_tag(name, tag) or is_promotion_tag(name, tag)


def branch_of_made_tag(name: str, tag: TagRef) -> str | None:
    """The branch without which an automatic tag is useless; None for other tags, and for readers of main."""
    if is_fork_tag(name, tag):
        return tag.metadata[FORKED_KEY]
    if is_promotion_tag(name, tag):
        return tag.metadata[PROMOTED_FROM_KEY]
    return tag.branch if is_reader_tag(name, tag) else None


def is_fork_tag(name: str, tag: TagRef) -> bool:
    """Whether a tag was created with a branch, to keep the version that the branch was forked from."""
    return name.startswith(FORK_TAG_PREFIX) and FORKED_KEY in tag.metadata


def find_orphans(table: TableRefs, refs: Collection[str], older_than: timedelta) -> list[str]:
    """Names without a branch, below `tree/` or in tags that were created with it, all of them old."""
    newest: dict[str, float] = {}
    branch_roots = {branch_root(name) + "/" for name in refs}
    for meta in table.root.list(TREE_PREFIX):
        if any(
            meta.key.startswith(root + folder) for root in _find_roots(meta.key, branch_roots) for folder in _FOLDERS
        ):
            continue
        name = _find_name(meta.key)
        if name is not None and name not in refs:
            newest[name] = max(newest.get(name, 0.0), meta.modified)
    for tag_name, tag in read_tags(table.root)[0].items():
        name = branch_of_made_tag(tag_name, tag)
        if name is not None and name not in refs and tag.created_at is not None:
            created = datetime.fromisoformat(tag.created_at).timestamp()
            newest[name] = max(newest.get(name, 0.0), created)
    limit = time.time() - older_than.total_seconds()
    return sorted(name for name, modified in newest.items() if modified <= limit)


def find_last_commit(table: TableRefs, name: str, ref: BranchRef) -> datetime:
    """When a branch was last committed to, or created: the first version has the time of its source.

    The clock of a writer can be behind, so the time of the manifest's file counts if it is later.
    """
    created = datetime.fromtimestamp(ref.created_at, UTC)
    store = table.store_of(name)
    latest = load_latest(store)
    if latest is None or latest.location is None:
        return created
    try:
        stored = store.head(latest.location.key).modified
    except ObjectNotFoundError:
        return datetime.now(UTC)  # a version was committed meanwhile, and this one cleaned up
    return max(created, latest.timestamp, datetime.fromtimestamp(stored, UTC))


def _find_roots(key: str, names: set[str]) -> Iterator[str]:
    """Yield the roots of branches below which a key lies."""
    position = key.find("/", len(TREE_PREFIX))
    while position >= 0:
        if key[: position + 1] in names:
            yield key[: position + 1]
        position = key.find("/", position + 1)


def _find_name(key: str) -> str | None:
    """The name of the branch that a key would belong to; None if the key is not in a folder of a dataset."""
    path = key.removeprefix(TREE_PREFIX)
    for folder in _FOLDERS:
        name, separator, _ = path.rpartition("/" + folder) if folder == "data/" else path.partition("/" + folder)
        if separator and is_branch_name(name):
            return name
    return None
