"""The survey of a table: what is due by its policy, from the newest manifest and an old one; nothing is written.

A cleanup is due only if it would remove something: all old versions may still be needed. Versions that the caller
needs and tagged versions are known to be kept. If the table has incremental readers or branches, or its oldest version
is some minutes old, the cleanup itself is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lance_core.commit.versions import existing_versions
from lance_core.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_core.maintenance.cleanup.copies import list_unused_copies
from lance_core.maintenance.cleanup.plan import Selectors
from lance_core.maintenance.cleanup.run import CleanupStats, explain_cleanup_old_versions, select
from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.expected_versions import ExpectedVersions
from lance_core.maintenance.routine.ages import find_expiry, find_limit, find_old_fragments
from lance_core.maintenance.routine.declared import (
    DeclaredIndices,
    describe_problems,
    find_early_actions,
    find_stale_indices,
    survey_declared,
)
from lance_core.maintenance.routine.health import measure
from lance_core.maintenance.routine.indices import (
    choose_due_rewrites,
    count_saved_fragments,
    count_segments_to_merge,
    is_extended_here,
)
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.maintenance.routine.report import MaintenancePlan, MaintenanceReport
from lance_core.maintenance.zone_maps import columns_without_zone_map
from lance_core.times import ago
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.inspect.listing import MANIFEST_TABLE
from lance_core.verbs.refs.branches import Branches
from lance_core.verbs.refs.readers import Readers
from lance_core.verbs.refs.tags import Tags

READER_DAYS_KEY: Final = "lance-dagster.changes.days"
"""The entry of the table's configuration with the days after which the tag of a reader of changes expires."""

_READER_DAYS: Final = 30
_NAMESPACE_AGE: Final = timedelta(days=30)
_YOUNG: Final = timedelta(minutes=10)
"""Age up to which only a plan of the cleanup shows whether a version is too young to be removed."""

VersionsInUse = Callable[[], Mapping[str, int] | None]
"""Returns the versions that cleanup keeps for others, by a description of their use."""


def survey_table(
    dataset: Handle,
    policy: MaintenancePolicy,
    *,
    table: str | None = None,
    partition_columns: Sequence[str] = (),
    max_unindexed_fragments: int | None = None,
    versions: Sequence[int] | None = None,
    ids: Sequence[Sequence[str]] | None = None,
) -> MaintenanceReport:
    """Survey a table: its health, and the rewrites that are due; whether a cleanup is idle is not looked at.

    Args:
        dataset: The table.
        policy: The policy for the table.
        table: The name of the table; None for its URI.
        partition_columns: The columns by which the table is partitioned.
        max_unindexed_fragments: The most fragments that zone maps on these columns may leave uncovered; None if no zone
            maps are kept.
        versions: The existing versions in ascending order; None to list them.
        ids: The ids by which the policy was chosen; None if no namespace names the table.
    """
    policy = _keep_namespace_readable(dataset, policy)
    health, manifest = measure(dataset, policy, versions=versions), dataset.snapshot.manifest
    indexed_columns = [] if max_unindexed_fragments is None or not policy.refresh_indices else list(partition_columns)
    lacking = columns_without_zone_map(dataset, indexed_columns, max_unindexed_fragments=max_unindexed_fragments or 0)
    oldest = None
    if policy.cleans_up and health.versions > max(1, policy.retain_versions or 1):
        oldest = _find_expired(dataset, health.oldest, policy)
    declared = survey_declared(dataset, policy)
    stale = find_stale_indices(health, policy, declared)
    left = [name for name in stale if not is_extended_here(dataset, name)]
    expiry, move_before = find_expiry(dataset, policy), None
    if policy.age_of_files is not None and dataset.branch is None:
        move_before = find_limit(policy.age_of_files)
    old_fragments = find_old_fragments(dataset, policy, move_before)
    old_files = [file for fragment in old_fragments for file in fragment.files]
    options = policy.compaction_options(apart_fragment_ids=[fragment.id for fragment in old_fragments])
    row_ids_due = policy.stable_row_ids and not (dataset.has_stable_row_ids or dataset.branch)
    later = dataset
    if expiry is not None and expiry.whole:
        expected = ExpectedVersions(dataset)
        expected.delete(expiry.whole)
        later = expected.dataset
    tasks = list(Compaction.plan(later, options).tasks)
    due = [name for name in stale if name not in left]
    tasks, first, segments_first = _choose_rewrites(later, tasks, options, due, policy, declared)
    tasks = [replace(task, read_version=dataset.version) for task in tasks]
    if expiry is not None:  # what loses rows is rewritten after that
        tasks = [task for task in tasks if expiry.divided_ids.isdisjoint(task.fragment_ids)]
    if row_ids_due and not policy.dry_run:  # rewrites of rows without stable row ids could not be committed afterwards
        tasks, first, segments_first = [], {}, None
    plan = MaintenancePlan(
        table=dataset.uri if table is None else table,
        uri=dataset.uri,
        ids=ids,
        policy=policy,
        health=health,
        branch=dataset.branch,
        num_tasks=len(tasks),
        cleanup_due=oldest is not None,
        expired_bytes=_sum_bytes_left_behind(oldest, dataset),
        indices_due=bool(lacking or due or (declared is not None and declared.due)),
        indices_left=left,
        indices_missing=[] if declared is None else declared.missing,
        indices_first=first,
        segments_first=segments_first,
        row_ids_due=row_ids_due,
        expire_before=None if expiry is None else expiry.before,
        rows_to_expire=0 if expiry is None else expiry.num_rows,
        bytes_to_expire=0 if expiry is None else expiry.num_bytes,
        move_before=move_before,
        files_to_move=len(old_files),
        bytes_to_move=sum(file.file_size_bytes or 0 for file in old_files),
        copies_unused=move_before is not None and bool(list_unused_copies(dataset.snapshot.store, manifest)),
        partition_columns=indexed_columns,
        max_unindexed_fragments=max_unindexed_fragments or 0,
    )
    return MaintenanceReport(plan=plan, tasks=tasks, index_problems=describe_problems(declared))


def _choose_rewrites(
    dataset: Handle,
    tasks: list[CompactionTask],
    options: Mapping[str, Any],
    due: list[str],
    policy: MaintenancePolicy,
    declared: DeclaredIndices | None,
) -> tuple[list[CompactionTask], dict[str, int | None], str | None]:
    """The rewrites that are due, and what is done to indices before their commit.

    Segments are merged, and not extended alone, only if more fragments can be merged then.

    Returns:
        The rewrites; how many segments of lance_core's indices, and of undeclared ones, are merged with the rows that
        they miss, None for the default of the library that extends them; and whether segments of declared indices of
        pylance are extended or merged.
    """
    chosen: tuple[list[CompactionTask], dict[str, int | None], str | None] = tasks, {}, None
    names = [index.name for index in dataset.snapshot.manifest.indices]
    may_merge = policy.refresh_indices and (due or len(set(names)) < len(names))
    for what in ("extend", "merge"):
        merges, merge_counts = what == "merge", dict[str, int | None].fromkeys(due)
        early = [] if declared is None else find_early_actions(declared, policy, merges=merges)
        if merges and may_merge:
            own_actions = [] if declared is None else [n for n, each in declared.names.items() if each.needs_pylance]
            merge_counts |= count_segments_to_merge(dataset.snapshot, own_actions)
        if merge_counts or early:
            later, is_first = choose_due_rewrites(dataset, tasks, options, merge_counts, early)
            if is_first and (not merges or count_saved_fragments(later) > count_saved_fragments(chosen[0])):
                chosen = later, merge_counts, what if early else None
    return chosen


def _keep_namespace_readable(dataset: Handle, policy: MaintenancePolicy) -> MaintenancePolicy:
    """The policy, or for the manifest table of a directory namespace one that keeps versions for 30 days at least.

    A client of pylance that has the table open looks for the version after its own alone, and fails without it.
    """
    if not dataset.uri.partition("?")[0].endswith(f"/{MANIFEST_TABLE}"):
        return policy
    age = max(policy.age or _NAMESPACE_AGE, _NAMESPACE_AGE) if policy.cleans_up else None
    return replace(policy.without_columns(), cleanup_older_than=age, stable_row_ids=False)


def _find_expired(dataset: Handle, versions: Sequence[int], policy: MaintenancePolicy) -> Handle | None:
    """A version if it is too old, by the commit of the version that followed it; else None.

    Args:
        dataset: The table.
        versions: The number of the version, and that of the next version that exists.
        policy: The policy for the table.
    """
    try:
        version = dataset.checkout_version(versions[0])
        if policy.age is not None and version.timestamp >= ago(policy.age):
            return None  # it was replaced later than it was committed
        following = dataset.checkout_version(versions[1])
    except VersionNotFoundError:  # another cleanup is running
        return None
    except CorruptFileError:  # the cleanup names it, and knows its time
        return dataset
    replaced = max(version.timestamp, following.timestamp)
    return version if policy.age is None or replaced < ago(policy.age) else None


def _sum_bytes_left_behind(oldest: Handle | None, newest: Handle) -> int:
    """The bytes of the data files of a version that the newest one does not have."""
    if oldest is None:
        return 0
    newest_paths = {file.path for fragment in newest.snapshot.manifest.fragments for file in fragment.files}
    files = (file for fragment in oldest.snapshot.manifest.fragments for file in fragment.files)
    return sum(file.file_size_bytes or 0 for file in files if file.path not in newest_paths)


def drop_idle_cleanup(dataset: Handle, report: MaintenanceReport, versions_in_use: VersionsInUse) -> MaintenanceReport:
    """The report of a survey without its cleanup if that would remove nothing; else with the bytes that it removes.

    Args:
        dataset: The table at the version that was surveyed.
        report: The report of the survey.
        versions_in_use: Returns further versions that the cleanup keeps, by a description of their use.
    """
    if not report.plan.cleanup_due:
        return report
    oldest = _find_removable(dataset, report.plan, versions_in_use())
    plan = replace(report.plan, cleanup_due=oldest is not None, expired_bytes=_sum_bytes_left_behind(oldest, dataset))
    return replace(report, plan=plan)


def _find_removable(dataset: Handle, plan: MaintenancePlan, in_use: Mapping[str, int] | None) -> Handle | None:
    """The oldest version that the cleanup would remove; None if it would remove nothing."""
    policy, refs = plan.policy, dataset._refs  # noqa: SLF001 - same library
    readers = Readers(refs)
    ignored = frozenset(readers.list_older_than(find_reader_age(dataset)))
    tags = [tag for name, tag in Tags(refs).list().items() if name not in ignored and tag["branch"] == dataset.branch]
    protected_versions = {*(in_use or {}).values(), *(tag["version"] for tag in tags)}
    numbers = existing_versions(dataset.snapshot.store)
    free = [number for number in numbers[: -max(1, policy.retain_versions or 1)] if number not in protected_versions]
    if not free:
        return None
    oldest = _find_expired(dataset, [free[0], numbers[numbers.index(free[0]) + 1]], policy)
    if oldest is None:
        return None
    is_young = oldest.timestamp > datetime.now(UTC) - _YOUNG
    if not is_young and not readers.list() and not Branches(refs).list():
        return oldest
    selectors = replace(cleanup_selectors(plan, in_use), ignored_tags=ignored)
    removed_numbers = count_removed(explain_cleanup_old_versions(dataset, selectors).stats)
    return oldest if any(removed_numbers.values()) else None


def find_reader_age(dataset: Handle) -> timedelta:
    """The age at which the tag of a reader of changes expires.

    Raises:
        InvalidInputError: `lance-dagster.changes.days` is not a whole number.
    """
    value = dataset.config().get(READER_DAYS_KEY, str(_READER_DAYS))
    if not value.isdecimal():
        raise InvalidInputError(f"configuration {READER_DAYS_KEY} must be a number of days, not {value!r}")
    return timedelta(days=int(value))


def list_held_versions(dataset: Handle) -> dict[str, list[int]]:
    """The versions of a table's branch that incremental readers have tagged, by reader."""
    versions_by_reader: dict[str, list[int]] = {}
    for tag in sorted(Readers(dataset._refs).list().values(), key=lambda tag: tag["version"]):  # noqa: SLF001 - same library
        if tag["branch"] == dataset.branch:
            versions_by_reader.setdefault(tag["reader"], []).append(tag["version"])
    return versions_by_reader


def cleanup_selectors(plan: MaintenancePlan, in_use: Mapping[str, int] | None) -> Selectors:
    """The selectors of the versions that the cleanup of a plan removes, and of those that are counted."""
    policy = plan.policy
    selectors = select(
        policy.age, policy.retain_versions, error_if_tagged_old_versions=False, in_use=in_use, age_from="replacement"
    )
    return replace(selectors, counted_until=None if plan.health is None else plan.health.version)


def count_removed(stats: CleanupStats) -> dict[str, int]:
    """The numbers of versions, files and bytes that a cleanup removed."""
    other_files = stats.transaction_files_removed + stats.index_files_removed + stats.deletion_files_removed
    return {
        "versions_removed": stats.old_versions,
        "data_files_removed": stats.data_files_removed,
        "files_removed": stats.old_versions + stats.data_files_removed + other_files,
        "bytes_removed": stats.bytes_removed,
    }
