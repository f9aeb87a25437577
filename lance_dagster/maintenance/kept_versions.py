"""Checks whether a cleanup that is due would remove something: all old versions may still be needed.

Versions of Dagster's events and tagged versions are known to be kept. If the table has incremental readers or branches,
or its oldest version is some minutes old, the cleanup itself is planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from lance_core.maintenance import explain_cleanup_old_versions
from lance_dagster.lineage.reader_tags import expired
from lance_dagster.maintenance.steps import (
    MaintenancePlan,
    cleanup_selectors,
    expired_version,
    removed,
    with_cleanup_of,
)

if TYPE_CHECKING:
    import lance_core

__all__ = ["without_idle_cleanup"]

_YOUNG: Final = timedelta(minutes=10)
"""Age up to which only a plan of the cleanup shows whether a version is too young to be removed."""


def without_idle_cleanup(
    dataset: lance_core.LanceDataset, plan: MaintenancePlan, in_use: Mapping[str, int] | None
) -> MaintenancePlan:
    """The plan without its cleanup if that would remove nothing; else with the bytes that the cleanup would remove.

    Args:
        dataset: The table at the version that was surveyed.
        plan: The plan of its survey.
        in_use: Further versions that the cleanup keeps, by a description of their use.
    """
    if not plan.cleanup_due:
        return plan
    return with_cleanup_of(_oldest_to_go(dataset, plan, in_use), dataset, plan)


def _oldest_to_go(
    dataset: lance_core.LanceDataset, plan: MaintenancePlan, in_use: Mapping[str, int] | None
) -> lance_core.LanceDataset | None:
    """The oldest version that the cleanup would remove; None if it would remove nothing."""
    policy, ignored = plan.policy, frozenset(expired(dataset))
    tags = [tag for name, tag in dataset.tags.list().items() if name not in ignored and tag["branch"] == dataset.branch]
    protected_versions = {*(in_use or {}).values(), *(tag["version"] for tag in tags)}
    numbers = [version["version"] for version in dataset.version_refs()]
    free = [number for number in numbers[: -max(1, policy.retain_versions or 1)] if number not in protected_versions]
    if not free:
        return None
    oldest = expired_version(dataset, [free[0], numbers[numbers.index(free[0]) + 1]], policy)
    if oldest is None:
        return None
    is_young = oldest.timestamp > datetime.now(UTC) - _YOUNG
    if not is_young and not dataset.readers.list() and not dataset.branches.list():
        return oldest
    selectors = replace(cleanup_selectors(plan, in_use), ignored_tags=ignored)
    removed_numbers = removed(explain_cleanup_old_versions(dataset, selectors).stats)
    return oldest if any(removed_numbers.values()) else None
