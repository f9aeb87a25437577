"""Cleanup: remove old versions and the files that only they need.

Data, indices and deletion files are removed first, then transactions, of which those that open branches need are stored
before (`open_branches`), and manifests last. An interrupted run leaves versions that are listed and cannot be read; the
next run finds the remaining files through their manifests.

The versions are claimed before anything is removed, and what refers to versions is read again after that, so that no
tag, branch, clone or restore of these versions is made meanwhile; see `commit.claims`.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import numpy as np

from lance_core.arguments import reject
from lance_core.commit.claims import VersionClaim
from lance_core.commit.history import store_removed_transaction
from lance_core.commit.versions import raise_if_dropped
from lance_core.errors import InvalidInputError, StoreError
from lance_core.maintenance.cleanup.copies import remove_unused_copies
from lance_core.maintenance.cleanup.plan import Candidate, CleanupPlan, ReferencedBranch, Selectors, plan_cleanup
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.threads import ThreadPool
from lance_core.times import ago
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import dataset_store

_logger = logging.getLogger(__name__)

AGES_FROM: Final = ("commit", "replacement")
DEFAULT_AGE: Final = timedelta(days=14)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
REMOTE_CONCURRENCY: Final = 32
"""Parallel deletions on object storage; on a local disk threads would only hinder each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupStats:
    """The result of a cleanup: what was removed, or would be.

    Attributes:
        bytes_removed: Bytes of all files.
        old_versions: Versions.
        data_files_removed: Data files and their files of blobs.
        transaction_files_removed: Transaction files.
        index_files_removed: Files of indices.
        deletion_files_removed: Deletion files.
        failed_deletes: Files that could not be deleted. If one of them is not a manifest, all versions stay listed for
            the next run.
        failures: One line for each of these files: its key, and the reason.
        torn_versions: One line for each version whose manifest cannot be read, whether it was removed or stays.
    """

    bytes_removed: int = 0
    old_versions: int = 0
    data_files_removed: int = 0
    transaction_files_removed: int = 0
    index_files_removed: int = 0
    deletion_files_removed: int = 0
    failed_deletes: int = 0
    failures: tuple[str, ...] = ()
    torn_versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupExplanation:
    """The effect that a cleanup would have.

    Attributes:
        read_version: Version of the handle.
        stats: What would be removed.
        candidate_files: The files, if they were asked for.
        candidate_files_truncated: Whether there are more.
        candidate_file_limit: The most files that are listed.
        referenced_branches: Branches that were forked from this one.
        warnings: Versions that are kept although selected, and why.
    """

    read_version: int
    stats: CleanupStats
    candidate_files: tuple[Candidate, ...] = ()
    candidate_files_truncated: bool = False
    candidate_file_limit: int = 1000
    referenced_branches: tuple[ReferencedBranch, ...] = ()
    warnings: tuple[str, ...] = ()


def select(
    older_than: timedelta | np.timedelta64 | None = None,
    retain_versions: int | None = None,
    *,
    versions: Sequence[int] | None = None,
    delete_unverified: bool | None = False,
    error_if_tagged_old_versions: bool | None = True,
    in_use: Mapping[str, int] | None = None,
    age_from: str = "commit",
    **unsupported_arguments: object,
) -> Selectors:
    """Selectors from pylance's arguments.

    Args:
        older_than: The age of the versions to remove.
        retain_versions: The number of newest versions to keep.
        versions: Only these versions.
        delete_unverified: Whether to remove files that nothing refers to, whatever their age.
        error_if_tagged_old_versions: Whether to raise if a tagged version is selected, rather than keep it.
        in_use: Versions to keep, by the name of their user.
        age_from: From when an age counts: "commit", as in pylance, or "replacement", when the version stopped being the
            newest.
        **unsupported_arguments: Arguments that are not offered.

    Raises:
        UnsupportedError: An argument is not offered.
        InvalidInputError: `versions` is empty, `retain_versions` is less than 1, or `age_from` is another word.

    Examples:
        >>> maintenance.select(retain_versions=3).retain_versions
        3
    """
    reject("cleanup_old_versions", unsupported_arguments)
    if isinstance(older_than, np.timedelta64):
        older_than = timedelta(microseconds=int(older_than / np.timedelta64(1, "us")))
    if older_than is None and retain_versions is None and versions is None:
        older_than = DEFAULT_AGE
    if retain_versions is not None and retain_versions < 1:
        raise InvalidInputError(f"retain_versions must be greater than 0, got {retain_versions}")
    if versions is not None and not versions:
        raise InvalidInputError("versions must not be empty when specified")
    if age_from not in AGES_FROM:
        raise InvalidInputError(f"age_from must be one of {', '.join(map(repr, AGES_FROM))}, not {age_from!r}")
    limit = ago(older_than) if older_than else None  # as in pylance, an age of zero is no condition
    return Selectors(
        before=limit if age_from == "commit" else None,
        replaced_before=limit if age_from == "replacement" else None,
        retain_versions=retain_versions,
        versions=frozenset(versions) if versions is not None else None,
        in_use=in_use or {},
        delete_unverified=bool(delete_unverified),
        error_if_tagged=error_if_tagged_old_versions is not False,
    )


def cleanup_old_versions(
    dataset: Handle,
    selectors: Selectors,
    *,
    delete_rate_limit: int | None = None,
    delete_concurrency: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    log_level: int = logging.WARNING,
) -> CleanupStats:
    """Remove old versions, and the files that only they need; the log has what `explain_cleanup_old_versions` warns of.

    Args:
        dataset: The handle; its version and newer ones are kept.
        selectors: Which versions to remove.
        delete_rate_limit: Most deletions per second.
        delete_concurrency: Most deletions at a time.
        progress: Is called with the number of files that were removed and the number of all files to remove.
        log_level: The level of the warnings: what runs by itself logs them as information.

    Raises:
        InvalidInputError: A limit is less than 1, or a tagged version is selected and `error_if_tagged` is set.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> maintenance.cleanup_old_versions(table, maintenance.select(retain_versions=1)).old_versions
        1
    """
    for name, value in (("delete_rate_limit", delete_rate_limit), ("delete_concurrency", delete_concurrency)):
        if value is not None and value < 1:
            raise InvalidInputError(f"{name} must be greater than 0, got {value}")
    store = dataset.snapshot.store
    plan, claim = _plan_and_claim(store, dataset.snapshot.manifest, selectors)
    for warning in plan.warnings:
        _logger.log(log_level, "cleanup of %s: %s", store.root, warning)
    remover = _Remover(
        store=store, pace=_Pace(delete_rate_limit), progress=progress, total=len(plan.files), claim=claim
    )
    workers = delete_concurrency or (REMOTE_CONCURRENCY if store.put_is_a_request else 1)
    removed = remover.remove([file for file in plan.files if file.kind not in ("transaction", "manifest")], workers)
    _store_transactions(store, plan)
    removed += remover.remove([file for file in plan.files if file.kind == "transaction"], workers)
    manifests = [file for file in plan.files if file.kind == "manifest"]
    # A version stays while its files exist: without its manifest nothing would refer to them.
    removed += remover.remove(manifests, workers) if not remover.failures else []
    if claim is not None and not (removed and remover.failures):
        claim.release()
    stats = replace(stats_of(removed, remover.failures), torn_versions=plan.torn)
    if dataset.branch is not None:
        return stats
    num_files, num_bytes, failures = remove_unused_copies(
        store, dataset.snapshot.manifest, of_any_age=selectors.delete_unverified
    )
    return replace(
        stats,
        bytes_removed=stats.bytes_removed + num_bytes,
        data_files_removed=stats.data_files_removed + num_files,
        failed_deletes=stats.failed_deletes + len(failures),
        failures=(*stats.failures, *failures),
    )


def _plan_and_claim(
    store: ObjectStore, current: Manifest, selectors: Selectors
) -> tuple[CleanupPlan, VersionClaim | None]:
    """The plan of a cleanup, whose versions are claimed; no claim if it removes no version."""
    plan = plan_cleanup(store, current, selectors)
    if not plan.versions:
        return plan, None
    claim = _write_claim(store, current, plan.versions)
    try:
        if not plan.referred.is_current(dataset_store(store, current.branch), store, plan.newest):
            plan = plan_cleanup(store, current, replace(selectors, versions=plan.versions))
    except BaseException:
        if claim is not None:
            claim.release()
        raise
    return plan, claim


def _write_claim(store: ObjectStore, current: Manifest, versions: frozenset[int]) -> VersionClaim | None:
    """The claim of a cleanup; None on a full disk, where cleanup is the remedy and others can write no references."""
    claim = VersionClaim(store=store, purpose="removal", versions=versions)
    try:
        claim.write()
    except StoreError as error:
        if error.errno not in _FULL:
            raise_if_dropped(store, current, error)
            raise
        _logger.warning("cleanup of %s: others cannot see which versions it removes: %s", store.root, error)
        return None
    return claim


def _store_transactions(store: ObjectStore, plan: CleanupPlan) -> None:
    """Store what open branches need; not on a disk that is still full, where cleanup is the remedy."""
    try:
        for version, transaction in plan.transactions.items():
            store_removed_transaction(store, version, transaction)
    except StoreError as error:
        if error.errno not in _FULL:
            raise
        _logger.warning(
            "cleanup of %s: what version %d changed is not stored, so that open branches cannot be promoted: %s",
            store.root,
            version,
            error,
        )


def explain_cleanup_old_versions(
    dataset: Handle, selectors: Selectors, *, include_files: bool = False, max_files: int = 1000
) -> CleanupExplanation:
    """Report what `cleanup_old_versions` would remove, and remove nothing.

    Args:
        dataset: The handle.
        selectors: Which versions to remove.
        include_files: Whether to list the files.
        max_files: Most files to list.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> explanation = maintenance.explain_cleanup_old_versions(table, maintenance.select(retain_versions=1))
        >>> explanation.stats.old_versions
        1
    """
    plan: CleanupPlan = plan_cleanup(dataset.snapshot.store, dataset.snapshot.manifest, selectors)
    listed = plan.files[:max_files] if include_files else ()
    return CleanupExplanation(
        read_version=plan.read_version,
        stats=replace(stats_of(plan.files), torn_versions=plan.torn),
        candidate_files=listed,
        candidate_files_truncated=include_files and len(plan.files) > max_files,
        candidate_file_limit=max_files,
        referenced_branches=plan.branches,
        warnings=plan.warnings,
    )


@dataclass(slots=True)
class _Pace:
    """Limits the rate of deletions."""

    per_second: int | None
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, deletions: int) -> None:
        """Wait until that number of deletions is allowed."""
        if self.per_second is None:
            return
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + deletions / self.per_second
        time.sleep(max(0.0, turn - now))


@dataclass(slots=True, kw_only=True)
class _Remover:
    """Deletes files and records the files that it could not delete."""

    store: ObjectStore
    pace: _Pace
    progress: Callable[[int, int], None] | None
    total: int
    claim: VersionClaim | None = None
    failures: list[str] = field(default_factory=list)
    done: int = 0

    def remove(self, files: Sequence[Candidate], workers: int) -> list[Candidate]:
        """Delete files; returns the files that were deleted."""
        size = min(self.store.keys_per_delete, self.pace.per_second or self.store.keys_per_delete)
        groups = [files[first : first + size] for first in range(0, len(files), size)]
        if workers <= 1 or len(groups) <= 1:
            return self._count_outcomes(groups, map(self._remove, groups))
        with ThreadPool(workers) as pool:
            return self._count_outcomes(groups, pool.map(self._remove, groups))

    def _count_outcomes(
        self, groups: Sequence[Sequence[Candidate]], outcomes: Iterable[Mapping[str, StoreError]]
    ) -> list[Candidate]:
        removed = []
        for group, errors in zip(groups, outcomes, strict=True):
            self.done += len(group)
            self.failures += [f"{path}: {error}" for path, error in errors.items()]
            removed += [file for file in group if file.path not in errors]
            if self.progress is not None:
                self.progress(self.done, self.total)
        return removed

    def _remove(self, group: Sequence[Candidate]) -> Mapping[str, StoreError]:
        self.pace.wait(len(group))
        if self.claim is not None:
            self.claim.renew()
        errors = self.store.delete_many([file.path for file in group])
        for path, error in errors.items():
            _logger.warning("%s/%s could not be removed: %s", self.store.root, path, error)
        for folder in {"/".join(file.path.split("/")[:2]) for file in group if file.kind == "index"}:
            self.store.remove_empty_folders(folder)  # no writer needs it, as each build has its own
        return errors


def stats_of(files: Iterable[Candidate], failures: Sequence[str] = ()) -> CleanupStats:
    """The statistics of a cleanup.

    Args:
        files: The files that were removed, or would be.
        failures: One line for each file that could not be removed.
    """
    counts: dict[str, int] = {}
    size = 0
    for file in files:
        if not file.is_counted:
            continue
        counts[file.kind] = counts.get(file.kind, 0) + 1
        size += file.size_bytes
    return CleanupStats(
        bytes_removed=size,
        old_versions=counts.get("manifest", 0),
        data_files_removed=counts.get("data", 0),
        transaction_files_removed=counts.get("transaction", 0),
        index_files_removed=counts.get("index", 0),
        deletion_files_removed=counts.get("deletion", 0),
        failed_deletes=len(failures),
        failures=tuple(failures),
    )
