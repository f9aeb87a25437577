"""Records that the ops of a maintenance job exchange: the survey of `plan`, and the outcome of each rewrite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_dagster.health.policy import LanceMaintenancePolicy

if TYPE_CHECKING:
    from lance_dagster.maintenance.steps import MaintenanceOutcome

__all__ = ["RewriteOutcome", "Survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The result of `plan`; each table is in one of the lists, and in a dry run also under its expected outcome.

    Attributes:
        policy: The policy of the job, as changed by the configuration of the run.
        due: The tables to work on.
        healthy: The tables for which nothing is due.
        absent: The tables that do not exist.
        left_alone: The tables that their metadata or policy excludes.
        dry_run: The tables of a dry run.
        put_off: The tables whose work is all put off, with the reason.
        partly_done: The tables whose work a dry run would do in part, with the reason for the rest.
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
    """The outcome of one call of the op `rewrite`.

    Attributes:
        asset: The asset of the table.
        results: The results of the rewrites, as JSON.
        error: The error; None if the op did not fail.
        seconds: The time that the op took.
        put_off: The number of rewrites that were not begun because the deadline of the run had passed.
        is_damaged: Whether a file of the table is missing or corrupt.
    """

    asset: str
    results: list[str] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0
    put_off: int = 0
    is_damaged: bool = False
