"""Models of fields that the YAML of both components has."""

from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.maintenance.budget import LanceMaintenanceBudget, checked_budget
from lance_dagster.tables.arguments import with_fields_of


@with_fields_of(LanceMaintenancePolicy)
class PolicyFields(dg.Model, dg.Resolvable):
    """Fields of a `LanceMaintenancePolicy`; by default each field has the policy's default."""

    model_config = ConfigDict(extra="forbid")

    def overrides(self) -> dict[str, Any]:
        """The fields that are set."""
        values = {name: getattr(self, name) for name in PolicyFields.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    def policy(self, label: str) -> LanceMaintenancePolicy:
        """The policy itself.

        Raises:
            DagsterInvalidDefinitionError: A value is invalid.
        """
        return LanceMaintenancePolicy().changed(self.overrides(), where=label)


@with_fields_of(LanceMaintenanceBudget)
class BudgetFields(dg.Model, dg.Resolvable):
    """Fields of a `LanceMaintenanceBudget`; a field that is left out sets no limit."""

    model_config = ConfigDict(extra="forbid")

    def limits(self, label: str) -> LanceMaintenanceBudget:
        """The budget itself.

        Raises:
            DagsterInvalidDefinitionError: A limit is invalid.
        """
        return checked_budget(self.model_dump(), label)


class MaintenanceFields(PolicyFields):
    """A policy, and the schedule and settings of its job."""

    cron_schedule: str | None = Field(
        default=None, description='Cron schedule of the job, such as "0 3 * * *"; without it the job has no schedule.'
    )
    sensor: bool = Field(default=False, description="Add a sensor that starts a run for tables that pass a threshold.")
    job_name: str = Field(default="lance_maintenance", description="Name of the job.")
    engine: Literal["process", "spark"] = Field(
        default="process", description="Where compaction runs: in the process of the op, or on Spark."
    )
    budget: BudgetFields = Field(default=BudgetFields(), description="Limits of a run.")
