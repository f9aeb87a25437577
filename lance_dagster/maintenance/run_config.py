"""The configuration of one run of a maintenance job."""

from typing import Any

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.maintenance.budget import LanceMaintenanceBudget
from lance_dagster.tables.arguments import with_fields_of
from lance_dagster.tables.refs import ChosenTables


@with_fields_of(
    LanceMaintenancePolicy,
    without=(
        *("max_parallel_tasks", "dry_run", "max_small_fragments", "max_versions"),
        *("indices", "index_memory", "index_timeout"),
    ),
)
class PolicyOverrides(dg.Config):
    """Fields of the policy that one run changes."""

    model_config = ConfigDict(extra="forbid")


@with_fields_of(LanceMaintenanceBudget)
class BudgetOverrides(dg.Config):
    """Limits of one run."""

    model_config = ConfigDict(extra="forbid")


class MaintenanceConfig(ChosenTables):
    """The configuration of one run of a maintenance job."""

    dry_run: bool | None = Field(default=None, description="Report only what would be done.")
    policy: PolicyOverrides = Field(default=PolicyOverrides(), description="Fields of the policy for this run.")

    budget: BudgetOverrides = Field(default=BudgetOverrides(), description="Limits for this run.")

    def limits(self) -> dict[str, Any]:
        """The limits that are set."""
        return {name: value for name, value in self.budget.model_dump().items() if value is not None}

    def overrides(self) -> dict[str, Any]:
        """The fields of the policy that are set."""
        fields = {**self.policy.model_dump(), "dry_run": self.dry_run}
        return {name: value for name, value in fields.items() if value is not None}
