"""What the ops of a maintenance job hand on beside tables: the survey of `plan`, and the outcome of each rewrite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_dagster.health.policy import LanceMaintenancePolicy

if TYPE_CHECKING:
    from lance_dagster.maintenance.steps import MaintenanceOutcome

__all__ = ["RewriteOutcome", "Survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What `plan` found; each table stands in one of the fields.

    Attributes:
        policy: The policy of the job, as the configuration of the run changes it.
        due: The tables to work on.
        healthy: Those for which nothing is due.
        absent: Those without a version.
        left_alone: Those that their metadata or policy excludes.
        dry_run: Those of which the run only reports what it would do.
        put_off: Those of which all work is put off, with the reason.
        partly_done: Those of which a dry run would do a part, with the reason for the rest.
        receipts: Rows for the log of maintenance, of tables that are not due.
    """

    policy: LanceMaintenancePolicy
    due: list[MaintenanceOutcome] = field(default_factory=list)
    healthy: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    dry_run: list[str] = field(default_factory=list)
    put_off: dict[str, str] = field(default_factory=dict)
    partly_done: dict[str, str] = field(default_factory=dict)
    receipts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOutcome:
    """What a task of `rewrite` gave.

    Attributes:
        asset: The table.
        results: The results of its rewrites, as JSON.
        error: Why it failed; None if it did not.
        seconds: How long it took.
        put_off: How many rewrites it did not begin, as the time of the run was up.
    """

    asset: str
    results: list[str] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0
    put_off: int = 0
