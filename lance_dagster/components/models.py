"""The fields of the components' YAML."""

from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.maintenance.budget import LanceMaintenanceBudget

__all__ = ["BudgetFields", "MaintenanceFields", "PolicyFields"]


class PolicyFields(dg.Model, dg.Resolvable):
    """Fields of a `LanceMaintenancePolicy`; those that are left out keep its defaults."""

    model_config = ConfigDict(extra="forbid")

    target_rows_per_fragment: int | None = Field(default=None, description="Fragments with fewer rows are merged.")
    target_bytes_per_fragment: int | None = Field(
        default=None, description="Fragments with as many bytes are large enough."
    )
    max_bytes_per_file: int | None = Field(default=None, description="Bytes after which a new file is started.")
    materialize_deletions_threshold: float | None = Field(
        default=None, description="Rewrite a fragment if more than this share of its rows is deleted."
    )
    cleanup_older_than: str | None = Field(default=None, description='Such as "7d"; "never" for no limit of age.')
    retain_versions: int | None = Field(default=None, description="How many of the newest versions stay.")
    refresh_indices: bool | None = Field(default=None, description="Extend indices to rows that they miss.")
    delete_rate_limit: int | None = Field(default=None, description="Files that cleanup deletes per second, at most.")
    delete_concurrency: int | None = Field(default=None, description="Requests of deletions at a time.")
    receipts_older_than: str | None = Field(
        default=None, description='Rows of the log of maintenance are deleted after this; "never" for no limit.'
    )
    max_parallel_tasks: int | None = Field(default=None, description="Rewrites that run at a time.")
    dry_run: bool | None = Field(default=None, description="Only report what would be done.")
    max_small_fragments: int | None = Field(default=None, description="More of them, and a table needs maintenance.")
    max_versions: int | None = Field(default=None, description="More of them, and a table needs maintenance.")

    def overrides(self) -> dict[str, Any]:
        """The fields that are set."""
        values = {name: getattr(self, name) for name in PolicyFields.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    def policy(self, where: str) -> LanceMaintenancePolicy:
        """The policy itself.

        Raises:
            DagsterInvalidDefinitionError: A value means nothing.
        """
        return LanceMaintenancePolicy().changed(self.overrides(), where=where)


class BudgetFields(dg.Model, dg.Resolvable):
    """Fields of a `LanceMaintenanceBudget`; those that are left out set no limit."""

    model_config = ConfigDict(extra="forbid")

    max_bytes_rewritten: int | None = Field(default=None, description="Bytes that all rewrites of a run read, at most.")
    max_duration: str | None = Field(default=None, description='No rewrite or step begins after this, such as "2h".')
    max_tables: int | None = Field(default=None, description="Tables that a run works on, at most.")

    def limits(self, where: str) -> LanceMaintenanceBudget:
        """The budget itself.

        Raises:
            DagsterInvalidDefinitionError: A limit means nothing.
        """
        try:
            return LanceMaintenanceBudget(**self.model_dump())
        except ValueError as error:
            raise dg.DagsterInvalidDefinitionError(f"{where}: {error}") from error


class MaintenanceFields(PolicyFields):
    """A policy, and the schedule and settings of its job."""

    cron_schedule: str | None = Field(default=None, description='When, such as "0 3 * * *"; by hand if left out.')
    sensor: bool = Field(default=False, description="Run for tables that pass a threshold.")
    job_name: str = Field(default="lance_maintenance", description="Name of the job.")
    engine: Literal["process", "spark"] = Field(default="process", description="What rewrites.")
    budget: BudgetFields = Field(default=BudgetFields(), description="What a run may cost at most.")
