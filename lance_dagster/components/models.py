"""The fields of the components' YAML."""

from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.health.policy import LanceMaintenancePolicy

__all__ = ["MaintenanceFields", "PolicyFields"]


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
            DagsterInvalidDefinitionError: a value means nothing.
        """
        return LanceMaintenancePolicy().changed(self.overrides(), where=where)


class MaintenanceFields(PolicyFields):
    """A policy, and the schedule and settings of its job."""

    cron_schedule: str | None = Field(default=None, description='When, such as "0 3 * * *"; by hand if left out.')
    sensor: bool = Field(default=False, description="Run for tables that pass a threshold.")
    job_name: str = Field(default="lance_maintenance", description="Name of the job.")
    engine: Literal["process", "spark"] = Field(default="process", description="What rewrites.")
