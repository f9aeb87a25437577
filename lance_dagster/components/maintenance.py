"""`LanceMaintenanceComponent`: maintenance of tables as a job, with its schedule and sensor."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from lance_dagster.components.listing import ListingComponent
from lance_dagster.components.models import MaintenanceFields
from lance_dagster.components.yaml_keys import find_empty_lists, with_checked_keys
from lance_dagster.maintenance.job import build_maintenance_job
from lance_dagster.maintenance.schedule import build_maintenance_schedule
from lance_dagster.maintenance.sensor import build_maintenance_sensor
from lance_dagster.tables.names import checked_job_name
from lance_dagster.tables.refs import TableLike


class MaintenanceScaffoldParams(BaseModel):
    """The parameters of `dg scaffold`."""

    table: list[str] = Field(default=["schema/table"], description="Key of a table; can be repeated.")
    cron_schedule: str = Field(default="0 3 * * *", description="The cron schedule.")


class MaintenanceScaffolder(dg.Scaffolder[MaintenanceScaffoldParams]):
    """Writes a `defs.yaml`."""

    @classmethod
    def get_scaffold_params(cls) -> type[MaintenanceScaffoldParams]:
        """The class of the parameters."""
        return MaintenanceScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[MaintenanceScaffoldParams]) -> None:
        """Write the `defs.yaml` of a new component, with an example table."""
        params = request.params or MaintenanceScaffoldParams()
        attributes = {
            "tables": list(params.table),
            "maintenance": {
                "job_name": _job_name(request.target_path.name),  # differs from the name of a lakehouse's job
                "cron_schedule": params.cron_schedule,
                "cleanup_older_than": "7d",
            },
        }
        dg.scaffold_component(request, attributes)


def _job_name(folder: str) -> str:
    """The name of the maintenance job for the folder of a component."""
    return f"lance_maintenance_{re.sub(r'[^A-Za-z0-9_]', '_', folder)}"


@dg.scaffold_with(MaintenanceScaffolder)
class LanceMaintenanceComponent(ListingComponent):
    """Keeps Lance tables small and fast. Their IO manager is defined elsewhere in the project."""

    tables: Sequence[dg.ResolvedAssetKey] = Field(default=(), description="Keys of the assets.")
    root: bool | str | None = Field(
        default=None, description="True: all tables below the root of the IO manager; or the URI of another root."
    )
    maintenance: MaintenanceFields = Field(
        default=MaintenanceFields(), description="The policy, and the schedule and settings of the job."
    )

    @classmethod
    def model(cls) -> type[BaseModel]:
        """The model of the YAML: unknown keys, and keys without effect, are rejected by name."""
        return with_checked_keys(super().model(), cls, _find_idle_keys)

    @property
    def listed_root(self) -> str | None:
        """The URI of the root whose tables are listed; None if none are."""
        listed = f"the namespace of {self.maintenance.job_name}" if self.namespace else self.root
        return listed if isinstance(listed, str) and (self.health_checks or self.external_assets) else None

    def build_defs_from_state(self, context: dg.ComponentLoadContext | None, state_path: Path | None) -> dg.Definitions:
        """The job, schedule and sensor, and the external assets and checks, for which the tables are listed."""
        del context
        lake = {**self.choice(), "root": self.root, "namespace": self.namespace}
        definitions = build_maintenance_definitions(list(self.tables), self.maintenance, self.io_manager_key, lake)
        policy = self.maintenance.policy(f"component of job {self.maintenance.job_name}")
        declared = self.build_listed_definitions(list(self.tables), policy, self.root, state_path)
        return dg.Definitions.merge(definitions, declared)


def _find_idle_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of attributes whose keys are all known: keys and empty lists without effect."""
    yield from find_empty_lists(values, "tables")
    root = values.get("root")
    listing_keys = [key for key in ("health_checks", "external_assets") if values.get(key)]
    if root is True and listing_keys and not values.get("namespace"):
        yield (
            f"{listing_keys[0]} lists tables while the code location is loaded, when the root of the IO manager is "
            "unknown; give root its URI, such as root: s3://bucket/lake"
        )
    if values.get("external_assets") and not root:
        yield "external_assets does nothing without root; give it the URI of the tables"
    for key in ("storage_options", "default_schema"):
        if values.get(key) and not (root and listing_keys):
            yield f"{key} does nothing without root and health_checks or external_assets; the IO manager has its own"


def build_maintenance_definitions(
    tables: Sequence[TableLike], fields: MaintenanceFields, io_manager_key: str, lake: Mapping[str, Any] | None = None
) -> dg.Definitions:
    """The job, schedule and sensor of a component.

    Args:
        tables: The tables, by asset.
        fields: The policy, and the schedule and settings of the job.
        io_manager_key: The resource that knows where the tables are.
        lake: The arguments of the builders that choose tables below a root.
    """
    below = lake or {}
    checked_job_name(fields.job_name, "maintenance.job_name")
    label = f"component of job {fields.job_name}"
    policy = fields.policy(label)
    job = build_maintenance_job(
        tables,
        policy,
        budget=fields.budget.limits(label),
        name=fields.job_name,
        engine=fields.engine,
        io_manager_key=io_manager_key,
        **below,
    )
    timed: list[Any] = [build_maintenance_schedule(job, fields.cron_schedule)] if fields.cron_schedule else []
    sensors = (
        [build_maintenance_sensor(job, tables, policy, io_manager_key=io_manager_key, **below)] if fields.sensor else []
    )
    return dg.Definitions(jobs=[job], schedules=timed, sensors=sensors)
