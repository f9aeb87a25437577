"""The configuration of one run of a maintenance job."""

from typing import Any

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.tables.refs import ChosenTables

__all__ = ["MaintenanceConfig"]


class PolicyOverrides(dg.Config):
    """Fields of the policy that one run changes."""

    model_config = ConfigDict(extra="forbid")

    target_rows_per_fragment: int | None = None
    target_bytes_per_fragment: int | None = None
    max_bytes_per_file: int | None = None
    materialize_deletions_threshold: float | None = None
    cleanup_older_than: str | None = Field(default=None, description='Such as "7d"; "never" for no limit of age.')
    retain_versions: int | None = None
    refresh_indices: bool | None = None
    delete_rate_limit: int | None = None
    delete_concurrency: int | None = None
    receipts_older_than: str | None = Field(default=None, description='Such as "1y"; "never" for no limit of age.')


class BudgetOverrides(dg.Config):
    """Limits of one run."""

    model_config = ConfigDict(extra="forbid")

    max_bytes_rewritten: int | None = None
    max_duration: str | None = Field(default=None, description='Such as "2h".')
    max_tables: int | None = None


class MaintenanceConfig(ChosenTables):
    """The configuration of one run of a maintenance job."""

    dry_run: bool | None = Field(default=None, description="Only report what would be done.")
    policy: PolicyOverrides = Field(default=PolicyOverrides(), description="Fields of the policy for this run.")

    budget: BudgetOverrides = Field(default=BudgetOverrides(), description="Limits for this run.")

    def limits(self) -> dict[str, Any]:
        """The limits that are set."""
        return {name: value for name, value in self.budget.model_dump().items() if value is not None}

    def overrides(self) -> dict[str, Any]:
        """The fields of the policy that are set."""
        given = {**self.policy.model_dump(), "dry_run": self.dry_run}
        return {name: value for name, value in given.items() if value is not None}
