"""The plan of a cleanup: the versions and the files to remove.

    version    removed if it is older than the handle's version and all selectors take it (an age counts from the commit
               of the version, as in pylance, or of the next one), unless
               - it is tagged, `in_use` names it, or it is being restored,
               - a branch was forked from it and still refers to files of it,
               - a reader of changes has not consumed it yet (`change_readers`), or
               - it lies on object storage and is younger than five minutes: a slow writer that read the latest
                 version before the cleanup could commit under the number of a removed version (`commit.handler`)
    file       removed if a removed version refers to it and no other version does, be it a version of this branch,
               a detached version, or a version of another branch that refers to the file by a base path, and no open
               branch needs it for its promotion (`open_branches`);
               also removed if no version refers to it and it is older than seven days: a younger file may belong to
               a write that has not committed yet

A version whose manifest is torn has the time of that file, and is selected like others. While it stays, files that
are not younger than its manifest stay as well, as it may refer to them. If the newest version is torn, nothing is
removed.

Cleanup never touches unknown files, other base paths, `tree/`, files behind a symbolic link, or `_refs/` except for
staging files. A version whose manifest lies behind a symbolic link is kept.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from lance_core.commit.claims import CLAIM_AGE
from lance_core.commit.handler import LOOK_AGAIN_AFTER
from lance_core.commit.versions import check_identity
from lance_core.errors import CorruptFileError, DatasetNotFoundError, InvalidInputError, StoreError
from lance_core.maintenance.cleanup.change_readers import keep_for_change_readers
from lance_core.maintenance.cleanup.listed_versions import load_all, make_restless_error
from lance_core.maintenance.cleanup.open_branches import BranchNeeds
from lance_core.maintenance.cleanup.references import References
from lance_core.maintenance.cleanup.referred import VersionReferences
from lance_core.store import ExternallyCommittedStore, ObjectMeta, ObjectStore
from lance_core.table.manifest.file_references import FileReferences
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import (
    CLAIMS_PREFIX,
    DATA_PREFIX,
    DELETIONS_PREFIX,
    INDICES_PREFIX,
    REFS_PREFIX,
    TRANSACTIONS_PREFIX,
    VERSIONS_PREFIX,
    is_detached,
    parse_manifest_key,
)
from lance_core.table.refs import TagRef
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.references import dataset_store, report_torn, store_of_branch
from lance_core.verbs.refs.clones import is_clone_tag
from lance_core.verbs.refs.sweep import is_fork_tag

_logger = logging.getLogger(__name__)

UNVERIFIED_AGE: Final = timedelta(days=7)
"""Age from which an unreferenced file may be removed: no running write can still commit it."""

YOUNG_AGE: Final = 5 * LOOK_AGAIN_AFTER
"""Versions below this age stay on object storage unless `delete_unverified` is set."""

_CLOCK_SKEW: Final = timedelta(hours=1)
"""By how much a clock can differ from the storage's: most storage rejects requests from 15 minutes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """Which versions to remove; a version must satisfy all that are set.

    Attributes:
        before: Committed before this time.
        replaced_before: Followed by a newer version before this time; see `list_replacement_times`.
        retain_versions: Not among this number of newest versions.
        versions: One of these version numbers.
        in_use: Versions to keep, by the name of their user.
        delete_unverified: Remove files that nothing refers to, and versions on object storage, whatever their age. Only
            safe if no other process uses the dataset.
        error_if_tagged: Raise if a tagged version is selected, rather than keep it.
        keep_forks: Keep a version that a branch was forked from while the branch refers to files of it. If false, only
            these files are kept.
        keep_for_change_readers: Keep the versions that readers of changes have not consumed yet; see `change_readers`.
        counted_until: The latest version that counts in the statistics. Later versions, which the caller itself has
            committed, do not count, nor do files that only they refer to. None counts all.
        ignored_tags: Tags that keep no version: the caller removes them before the cleanup.
    """

    before: datetime | None = None
    replaced_before: datetime | None = None
    retain_versions: int | None = None
    versions: frozenset[int] | None = None
    in_use: Mapping[str, int] = field(default_factory=dict)
    delete_unverified: bool = False
    error_if_tagged: bool = True
    keep_forks: bool = True
    keep_for_change_readers: bool = True
    counted_until: int | None = None
    ignored_tags: frozenset[str] = frozenset()

    def takes(self, manifest: FileReferences, newest: Collection[int], replaced: datetime | None = None) -> bool:
        """Whether the selectors take a version.

        Args:
            manifest: The version.
            newest: The newest versions that are retained.
            replaced: When the version stopped being the newest; None for the newest.
        """
        if self.before is not None and manifest.timestamp >= self.before:
            return False
        if self.replaced_before is not None and (replaced is None or replaced >= self.replaced_before):
            return False
        if manifest.version in newest:
            return False
        return self.versions is None or manifest.version in self.versions

    def counts(self, version: int) -> bool:
        """Whether a version counts in the statistics."""
        return self.counted_until is None or version <= self.counted_until or is_detached(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file to remove.

    Attributes:
        path: Its key below the root.
        kind: "manifest", "data", "transaction", "deletion", "index" or "temporary".
        unverified: Whether no version refers to it.
        size_bytes: Its size.
        is_counted: Whether it counts in the statistics; see `Selectors.counted_until`.
    """

    path: str
    kind: str
    unverified: bool
    size_bytes: int
    is_counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencedBranch:
    """A branch that was forked from this one.

    Attributes:
        name: Its name.
        referenced_version: Version that it was forked from.
        cleanup_candidate: Whether the selectors take that version.
    """

    name: str
    referenced_version: int
    cleanup_candidate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """The versions and files to remove.

    Attributes:
        read_version: Version of the handle.
        files: The files, in the order in which they are removed; manifests come last.
        branches: Branches that were forked from this one.
        warnings: Versions that are kept although selected, and why.
        versions: The versions that are removed, including expected versions that are not committed yet.
        torn: A line for each version whose manifest cannot be read, whether it is removed or stays.
        transactions: The transactions of removed versions that open branches need, to be stored; see `open_branches`.
        referred: What referred to versions.
        newest: The newest version.
    """

    read_version: int
    files: tuple[Candidate, ...]
    branches: tuple[ReferencedBranch, ...]
    warnings: tuple[str, ...]
    versions: frozenset[int] = frozenset()
    torn: tuple[str, ...] = ()
    transactions: Mapping[int, Transaction] = field(default_factory=dict)
    referred: VersionReferences
    newest: int


def plan_cleanup(
    store: ObjectStore,
    current: Manifest,
    selectors: Selectors,
    *,
    expected: Sequence[tuple[FileReferences, Transaction]] = (),
) -> CleanupPlan:
    """Find the versions and files to remove.

    Args:
        store: The store of the dataset, or of a branch.
        current: The handle's version; it and newer ones are kept.
        selectors: Which older versions to remove.
        expected: Versions that are not committed yet, each with its transaction: the cleanup is planned as if they
            followed the latest one.

    Raises:
        InvalidInputError: A tagged version is selected, and `error_if_tagged` is set.
        DatasetNotFoundError: The dataset was dropped.
        IncompatibleConflictError: The dataset was dropped and created again since the handle was opened.
        RetryableConflictError: Other writers and cleanups replace versions faster than they can be read.
    """
    removable: dict[str, ObjectMeta] = {}
    main = dataset_store(store, current.branch)
    referred = VersionReferences.read(main, store)

    def listing() -> dict[str, ObjectMeta]:
        nonlocal removable
        removable = {meta.key: meta for meta in store.list_owned(VERSIONS_PREFIX)}
        return removable or {meta.key: meta for meta in store.list(VERSIONS_PREFIX)}

    oldest_latest = 1 if is_detached(current.version) else current.version
    listed, manifests = load_all(store, listing, at_least=oldest_latest)
    numbers = sorted(version for version in manifests if not is_detached(version))
    _check_same(store, current, listed, numbers)
    if numbers[-1] < oldest_latest:
        raise make_restless_error(store)
    if manifests[numbers[-1]].fault:  # what it needs is unknown, and is what readers need next
        raise CorruptFileError(manifests[numbers[-1]].fault)
    latest, newest = current.version, numbers[-1]
    expected_transactions = {}
    for version_files, transaction in expected:
        latest = numbers[-1] + 1
        numbers.append(latest)
        manifests[latest] = replace(version_files, version=latest)
        expected_transactions[latest] = transaction
    selected = _select_versions(manifests if removable else {}, numbers, latest, selectors)
    if referred.torn:
        return _plan_to_keep_everything(current, referred, newest)
    tags = {name: ref for name, ref in referred.tags.items() if name not in selectors.ignored_tags}
    warnings = _keep_young(store, selected, manifests, listed, selectors) + _keep_restored(referred, selected)
    warnings += _keep_named(tags, current.branch, selected, selectors)
    if selectors.keep_for_change_readers:
        warnings += keep_for_change_readers(tags, current.branch, selected, manifests)
    borrowed, branches = _find_branch_needs(
        main, referred, current.branch, manifests, selected, keep_forks=selectors.keep_forks
    )
    needs = BranchNeeds.of(store, current.branch, referred, manifests, selected, expected_transactions)
    survey = _decide_about_files(manifests, selected, [*borrowed, needs.files], selectors)
    survey.removable.update([needs.stored])
    torn = [
        *survey.warnings(),
        *(f"{manifests[n].fault}; it is removed" for n in sorted(selected) if manifests[n].fault),
    ]
    files = [*survey.files(store), *survey.temporary(removable.values()), *survey.claims(store)]
    if current.branch is None and not store.put_is_a_request:  # object storage has no staging files
        files += survey.temporary(store.list_owned(REFS_PREFIX))
    files += _list_manifests_to_remove(removable.values(), selected, selectors)
    return CleanupPlan(
        read_version=current.version,
        files=tuple(files),
        branches=tuple(branches),
        warnings=(*warnings, *torn),
        versions=frozenset(selected),
        torn=tuple(torn),
        transactions=needs.transactions,
        referred=referred,
        newest=newest,
    )


def list_replacement_times(committed: Mapping[int, datetime]) -> dict[int, datetime]:
    """When each version but the newest stopped being the newest: at the commit of the next version that exists.

    If clocks of writers differ so that the next version seems older, the version's own time counts.

    Args:
        committed: The times of the versions' commits.

    Examples:
        >>> first, second = datetime(2026, 1, 1), datetime(2026, 2, 1)
        >>> list_replacement_times({1: first, 2: second})[1] == second
        True
    """
    return {
        version: max(committed[version], committed[following]) for version, following in pairwise(sorted(committed))
    }


def _select_versions(
    manifests: Mapping[int, FileReferences], numbers: Sequence[int], latest: int, selectors: Selectors
) -> set[int]:
    """The versions that the selectors take, before tags, users and branches keep some of them."""
    newest = numbers[-selectors.retain_versions :] if selectors.retain_versions else []
    replaced = list_replacement_times(
        {number: manifests[number].timestamp for number in numbers if number in manifests}
    )
    return {
        version
        for version, manifest in manifests.items()
        if (version < latest and selectors.takes(manifest, newest, replaced.get(version)))
        or (is_detached(version) and selectors.versions is not None and version in selectors.versions)
    }


def _decide_about_files(
    manifests: Mapping[int, FileReferences],
    selected: Container[int],
    borrowed: Sequence[References],
    selectors: Selectors,
) -> _FileDecisions:
    """Divide the files of all versions into those that a kept version refers to and those of removed versions only."""
    kept_files, removable, counted = References(), References(), References()
    kept_files.update(borrowed)
    torn = [manifest for version, manifest in manifests.items() if manifest.fault and version not in selected]
    torn += [manifest for needed in borrowed for manifest in needed.torn]
    for version, manifest in manifests.items():
        (removable if version in selected else kept_files).add(manifest)
        if version in selected and selectors.counts(version):
            counted.add(manifest)
    now = datetime.now(UTC)
    return _FileDecisions(
        kept_files=kept_files, removable=removable, counted=counted, selectors=selectors, now=now, torn=torn
    )


def _list_manifests_to_remove(
    listed: Iterable[ObjectMeta], selected: set[int], selectors: Selectors
) -> Iterator[Candidate]:
    """The manifests to remove, oldest first, so that an interrupted cleanup removes the oldest versions."""
    names = {name.version: meta for meta in listed if (name := parse_manifest_key(meta.key)) is not None}
    for version in sorted(selected & names.keys()):
        meta = names[version]
        is_counted = selectors.counts(version)
        yield Candidate(path=meta.key, kind="manifest", unverified=False, size_bytes=meta.size, is_counted=is_counted)


def _plan_to_keep_everything(current: Manifest, referred: VersionReferences, newest: int) -> CleanupPlan:
    """The plan that removes nothing: a tag or branch file that cannot be read may need any version or file."""
    report_torn(referred.torn)
    warnings = tuple(f"everything is kept, as a torn reference may need it: {message}" for message in referred.torn)
    return CleanupPlan(
        read_version=current.version, files=(), branches=(), warnings=warnings, referred=referred, newest=newest
    )


def _check_same(store: ObjectStore, current: Manifest, listed: Mapping[str, ObjectMeta], numbers: list[int]) -> None:
    """Check that the versions are those of the dataset that the handle was opened on."""
    if not numbers:
        raise DatasetNotFoundError(f"{store.root}: the dataset was dropped after it was opened")
    shown = listed.get(current.location.key) if current.location is not None else None
    location = replace(current.location, e_tag=shown.e_tag) if current.location is not None and shown else None
    check_identity(store, current, latest=numbers[-1], location=location)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileDecisions:
    """Decides which files to remove, by the versions that refer to a file and by its age.

    The files of a torn version that stays are unknown: files that are not younger than its manifest are kept.
    """

    kept_files: References
    removable: References
    counted: References
    selectors: Selectors
    now: datetime
    torn: Sequence[FileReferences]

    def warnings(self) -> list[str]:
        """The torn versions that stay, and the files that stay with them."""
        return [
            f"{manifest.fault}; files that are not younger than it are kept, as it may need them"
            for manifest in self.torn
        ]

    def files(self, store: ObjectStore) -> Iterator[Candidate]:
        """The files to remove other than manifests, in the order in which they are removed."""
        needed_until = max((manifest.timestamp.timestamp() for manifest in self.torn), default=0.0)
        for prefix, kind, pattern in _KINDS:
            for meta in store.list_owned(prefix):
                owner = _find_owner(meta.key, pattern)
                if owner is None or self.kept_files.holds(owner) or meta.modified <= needed_until:
                    continue
                verified = self.removable.holds(owner)
                if verified or self._is_stale(meta):
                    is_counted = not verified or self.counted.holds(owner)
                    yield Candidate(
                        path=meta.key, kind=kind, unverified=not verified, size_bytes=meta.size, is_counted=is_counted
                    )

    def temporary(self, metas: Iterable[ObjectMeta]) -> Iterator[Candidate]:
        """Staging files of commits, and of tags and branches, that were not finished."""
        for meta in metas:
            name = meta.key.rpartition("/")[2]
            if _TEMPORARY.search(name) and self._is_stale(meta):
                yield Candidate(path=meta.key, kind="temporary", unverified=True, size_bytes=meta.size)

    def claims(self, store: ObjectStore) -> Iterator[Candidate]:
        """Claims that do not count any more."""
        for meta in store.list_owned(CLAIMS_PREFIX):
            if self.now - datetime.fromtimestamp(meta.modified, UTC) > CLAIM_AGE:
                yield Candidate(path=meta.key, kind="temporary", unverified=True, size_bytes=meta.size)

    def _is_stale(self, meta: ObjectMeta) -> bool:
        age = self.now - datetime.fromtimestamp(meta.modified, UTC)
        return self.selectors.delete_unverified or age > UNVERIFIED_AGE


# Group 1 is the name of the file that must be referred to; a file of blobs belongs to its data file, and the
# staging file of a write (`<name>#<random>`) to the file that it would have become.
_KINDS: Final[tuple[tuple[str, str, re.Pattern[str]], ...]] = (
    (
        TRANSACTIONS_PREFIX,
        "transaction",
        re.compile(r"_transactions/([^/]+\.txn|\.conditional-put-[0-9a-f]+|removed/\d+)"),
    ),
    (DATA_PREFIX, "data", re.compile(r"data/([^/]+\.lance)|data/([^/]+)/[^/]+\.blob")),
    (INDICES_PREFIX, "index", re.compile(r"_indices/([0-9a-f-]{36}/.+)")),
    (DELETIONS_PREFIX, "deletion", re.compile(r"_deletions/([^/]+\.(?:arrow|bin))")),
)
_TEMPORARY: Final = re.compile(r"^\.tmp|\.manifest[#-]|\.json#")
_STAGING: Final = re.compile(r"(.*)#[0-9A-Za-z]+")


def _find_owner(key: str, pattern: re.Pattern[str]) -> str | None:
    """The key that must be referred to for a file to be kept; None for a file of an unknown kind."""
    staged = _STAGING.fullmatch(key)
    if staged is not None:
        # Never referred to under this name.
        return key if pattern.fullmatch(staged[1]) else None
    match = pattern.fullmatch(key)
    if match is None:
        return None
    if match.lastindex == 2:
        return f"{DATA_PREFIX}{match[2]}.lance"
    return key


def _keep_young(
    store: ObjectStore,
    selected: set[int],
    manifests: Mapping[int, FileReferences],
    listed: Mapping[str, ObjectMeta],
    selectors: Selectors,
) -> list[str]:
    """Keep versions so young that a slow writer on object storage may still believe that their numbers are unused."""
    if not store.put_is_a_request or selectors.delete_unverified:
        return []
    if isinstance(store, ExternallyCommittedStore) and store.table.gives_numbers_once:
        return []
    names = {parse_manifest_key(key): meta for key, meta in listed.items()}
    written = {name.version: datetime.fromtimestamp(meta.modified, UTC) for name, meta in names.items() if name}
    since, age, reason = datetime.now(UTC) - YOUNG_AGE, YOUNG_AGE, ""
    times = {
        version: max(manifests[version].timestamp, written.get(version, manifests[version].timestamp))
        for version in selected
        if not is_detached(version)
    }
    young = {version for version, moment in times.items() if moment > since}
    if any(since - _CLOCK_SKEW < times[version] for version in times.keys() - young):
        clock = _read_clock(store)
        if clock is None:
            age, reason = YOUNG_AGE + _CLOCK_SKEW, ", and its clock cannot be read without rights to write"
        since = min(since, (datetime.now(UTC) - _CLOCK_SKEW if clock is None else clock) - YOUNG_AGE)
        young |= {version for version in times.keys() & written.keys() if written[version] > since}
    if not young:
        return []
    selected -= young
    minutes = age // timedelta(minutes=1)
    warning = (
        f"{len(young)} version(s), {min(young)} to {max(young)}, are kept: versions of the last {minutes} minutes stay "
        f"on object storage, as a slow writer could commit under their numbers again{reason}; delete_unverified=True "
        "removes them if no other process uses the dataset"
    )
    return [warning]


def _read_clock(store: ObjectStore) -> datetime | None:
    """The time by the storage's clock, as of a file that is written; None if none can be.

    A file that may not be deleted stays until a cleanup with the right to delete removes it as unreferenced.
    """
    key = f"{CLAIMS_PREFIX}clock-{uuid.uuid4().hex}.json"
    try:
        store.put(key, b"{}")
        time = datetime.fromtimestamp(store.head(key).modified, UTC)
    except StoreError as error:  # a plan can be made with rights to read only
        _logger.info("%s: the clock of the storage cannot be read: %s", store.root, error)
        return None
    try:
        store.delete(key)
    except StoreError as error:
        _logger.warning("%s: %s cannot be deleted: %s", store.root, key, error)
    return time


def _keep_restored(referred: VersionReferences, selected: set[int]) -> list[str]:
    """Keep the versions that are being restored; returns the warnings about them."""
    restored = sorted(selected & referred.in_use)
    selected -= referred.in_use
    return [f"version {version} is kept: it is being restored" for version in restored]


def _keep_named(tags: Mapping[str, TagRef], branch: str | None, selected: set[int], selectors: Selectors) -> list[str]:
    """Keep the versions that are tagged or in use; returns the warnings about them."""
    warnings = []
    tagged: dict[int, list[str]] = {}
    named: dict[int, list[str]] = {}  # tags made by users; tags of forks and shallow clones raise no error
    for name, ref in tags.items():
        if ref.branch == branch and ref.version in selected:
            tagged.setdefault(ref.version, []).append(name)
            if not (is_fork_tag(name, ref) or is_clone_tag(name, ref)):
                named.setdefault(ref.version, []).append(name)
    if named and selectors.error_if_tagged:
        names = sorted(name for names in named.values() for name in names)
        raise InvalidInputError(
            f"Cleanup error: {len(named)} tagged version(s) have been marked for cleanup (tags: {', '.join(names)}); "
            "set error_if_tagged_old_versions=False to keep them"
        )
    for version, names in sorted(tagged.items()):
        selected.discard(version)
        warnings.append(f"version {version} is kept: it is tagged {', '.join(sorted(names))}")
    for name, version in sorted(selectors.in_use.items()):
        if version in selected:
            selected.discard(version)
            warnings.append(f"version {version} is kept: it is in use by {name}")
    return warnings


def _find_branch_needs(
    main: ObjectStore,
    referred: VersionReferences,
    branch: str | None,
    manifests: Mapping[int, FileReferences],
    selected: set[int],
    *,
    keep_forks: bool,
) -> tuple[Sequence[References], list[ReferencedBranch]]:
    """The files that branches use outside of their own roots, and the branches forked from this one.

    With `keep_forks`, the version that a branch was forked from is removed from `selected` while the branch still
    refers to files of it.
    """
    borrowed, forked = [], []
    for name, ref in referred.branches.items():
        if name == branch:
            continue
        needed = _find_borrowed_files(store_of_branch(main, name))
        borrowed.append(needed)
        if ref.parent_branch != branch:
            continue
        version = ref.parent_version
        forked.append(ReferencedBranch(name=name, referenced_version=version, cleanup_candidate=version in selected))
        if version in selected and keep_forks:
            version_files = References()
            version_files.add_borrowed(manifests[version], all_files=True)
            if needed.shares(version_files) or (manifests[version].fault and needed.files):
                selected.discard(version)
    return borrowed, forked


def _find_borrowed_files(store: ObjectStore) -> References:
    """The files that all versions of a branch refer to by base paths."""
    result = References()
    _, manifests = load_all(store, lambda: {meta.key: meta for meta in store.list(VERSIONS_PREFIX)})
    for manifest in manifests.values():
        result.add_borrowed(manifest)
        if manifest.fault:
            result.torn.append(manifest)
    return result
