"""`LanceLakehouseComponent`: a folder of Lance tables with its IO manager, checks, maintenance and branches."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from lance_dagster.branches.jobs import build_branch_jobs
from lance_dagster.branches.sensor import build_branch_sensor
from lance_dagster.checks.builders import (
    build_lance_drift_check,
    build_lance_integrity_checks,
    build_lance_primary_key_check,
)
from lance_dagster.checks.health import build_lance_health_checks
from lance_dagster.components.listing import ListingComponent
from lance_dagster.components.maintenance import build_maintenance_definitions
from lance_dagster.components.models import MaintenanceFields, PolicyFields
from lance_dagster.components.yaml_keys import find_empty_lists, with_checked_keys
from lance_dagster.io_manager.config import LanceIOManager
from lance_dagster.observation import Report, build_lance_observation_sensor
from lance_dagster.tables.branch_policy import BranchPolicy
from lance_dagster.tables.location import checked_root, locate_table
from lance_dagster.tables.refs import MAINTENANCE_KEY


class LakehouseTable(dg.Model, dg.Resolvable):
    """One table."""

    model_config = ConfigDict(extra="forbid")

    key: dg.ResolvedAssetKey = Field(description="Key of the asset, such as nyc/flights.")
    checks: Sequence[Literal["health", "integrity", "drift"]] = Field(default=(), description="Checks of the table.")
    primary_key: Sequence[str] = Field(
        default=(), description="Columns that a check requires to be unique and never null."
    )
    maintenance: PolicyFields | bool | None = Field(
        default=None,
        description="Fields that change the policy for this table; false: not maintained; true: maintained even if "
        "external.",
    )
    external: bool = Field(
        default=False, description="Others write the table: declare the asset, and report their commits."
    )

    def spec(self) -> dg.AssetSpec:
        """The spec of the asset, with its metadata about maintenance."""
        said = self.maintenance
        if said is None:
            said = not self.external  # others maintain the tables that they write
        value = (said.overrides() or True) if isinstance(said, PolicyFields) else said
        return dg.AssetSpec(self.key, metadata={MAINTENANCE_KEY: value}, kinds={"lance"})

    @property
    def is_foreign(self) -> bool:
        """Whether others write the table, and it is not to be maintained here."""
        return self.external and not self.maintenance


class BranchingFields(dg.Model, dg.Resolvable):
    """Which runs write to a branch of their tables."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["off", "per_run", "per_backfill", "from_tag", "env"] = Field(
        default="off", description="Which runs write to a branch."
    )
    name: str | None = Field(default=None, description="The tag, or the environment variable, that names the branch.")
    auto_promote: bool = Field(default=False, description="Promote branches whose runs succeeded.")

    def policy(self) -> BranchPolicy:
        """The policy of the IO manager."""
        return BranchPolicy(kind=self.mode, name=self.name)


class LakehouseScaffoldParams(BaseModel):
    """The parameters of `dg scaffold`."""

    root_uri: str = Field(default="lake", description="Folder or object-store prefix that holds the tables.")


class LakehouseScaffolder(dg.Scaffolder[LakehouseScaffoldParams]):
    """Writes a `defs.yaml`."""

    @classmethod
    def get_scaffold_params(cls) -> type[LakehouseScaffoldParams]:
        """The class of the parameters."""
        return LakehouseScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[LakehouseScaffoldParams]) -> None:
        """Write the `defs.yaml` of a new component, with an example table."""
        params = request.params or LakehouseScaffoldParams()
        attributes = {
            "root_uri": params.root_uri,
            "maintenance": {"cron_schedule": "0 3 * * *", "cleanup_older_than": "7d"},
            "tables": [{"key": "schema/table", "checks": ["health", "integrity"]}],
        }
        dg.scaffold_component(request, attributes)


@dg.scaffold_with(LakehouseScaffolder)
class LanceLakehouseComponent(ListingComponent):
    """A folder of Lance tables: the IO manager that stores assets in it, checks, maintenance and branches.

    The assets themselves are defined elsewhere in the project; `tables` adds checks and maintenance to them.
    """

    root_uri: str | None = Field(
        default=None,
        description="Folder or object-store prefix that holds the tables; with a namespace, outputs of ops and the log "
        "of maintenance alone.",
    )
    default_load_type: Literal["auto", "spark", "pandas", "polars", "pyarrow"] = Field(
        default="auto", description="The type as which an input without a type annotation is loaded."
    )
    ui_url: str | None = Field(default=None, description="URL of the Dagster UI, if it is not at the root of its host.")
    tables: Sequence[LakehouseTable] = Field(default=(), description="Tables with their checks and maintenance.")
    maintenance: MaintenanceFields | None = Field(
        default=None, description="Maintenance of the listed tables, except for external ones that do not ask for it."
    )
    all_tables: bool = Field(
        default=False, description="Maintain all tables below root_uri, whoever writes them; each run lists them."
    )
    branching: BranchingFields | None = Field(default=None, description="Which runs write to branches.")
    report: Report = Field(
        default="observations",
        description="How commits of others that changed rows of external tables are reported; freshness policies read "
        "materializations.",
    )

    @classmethod
    def model(cls) -> type[BaseModel]:
        """The model of the YAML: unknown keys, and keys without effect, are rejected by name."""
        return with_checked_keys(super().model(), cls, _find_idle_keys)

    @field_validator("root_uri")
    @classmethod
    def _check_root(cls, value: str | None) -> object:
        return checked_root(value)

    @property
    def listed_root(self) -> str | None:
        """The URI of the root whose tables are listed; None if none are."""
        listed = f"the namespace of {self.io_manager_key}" if self.namespace else self.root_uri
        return listed if self.health_checks or self.external_assets else None

    def build_defs_from_state(self, context: dg.ComponentLoadContext | None, state_path: Path | None) -> dg.Definitions:
        """The IO manager, and the definitions that `tables`, `maintenance` and `branching` ask for.

        Only `health_checks` and `external_assets` need the list of the tables below the root.
        """
        del context
        specs = [table.spec() for table in self.tables]
        _check_places(specs, self.default_schema)
        external = [spec for spec, table in zip(specs, self.tables, strict=True) if table.external]
        try:
            manager = LanceIOManager(
                root_uri=self.root_uri,
                namespace=self.namespace,
                storage_options=self.storage_options,
                schema=self.default_schema,
                default_load_type=self.default_load_type,
                ui_url=self.ui_url,
                branching=BranchPolicy.off() if self.branching is None else self.branching.policy(),
            )
        except ValidationError as error:
            (wrong, *_) = error.errors(include_input=False, include_url=False)
            place = ".".join(map(str, wrong["loc"]))
            raise dg.DagsterInvalidDefinitionError(f"LanceLakehouseComponent: {place}: {wrong['msg']}") from None
        key, sensor = self.io_manager_key, _name("lance_observation_sensor", self.io_manager_key)
        table_definitions = dg.Definitions(
            assets=external,
            asset_checks=[check for table in self.tables for check in self._build_checks(table)],
            sensors=[build_lance_observation_sensor(external, name=sensor, report=self.report, io_manager_key=key)]
            if external
            else [],
            resources={key: manager},
        )
        parts = [table_definitions]
        ours = [spec for spec, table in zip(specs, self.tables, strict=True) if not table.is_foreign]
        if self.maintenance is not None and (ours or self.all_tables):
            lake = {**self.choice(), "root": True}
            # With the whole root all specs are given: their metadata excludes tables that others write.
            below, named = (lake, specs) if self.all_tables else (None, ours)
            parts.append(build_maintenance_definitions(named, self.maintenance, self.io_manager_key, below))
        if self.health_checks or self.external_assets:
            policy = (self.maintenance or PolicyFields()).policy("maintenance")
            parts.append(self.build_listed_definitions(specs, policy, self.root_uri, state_path))
        if self.branching is not None and self.branching.mode != "off" and ours:
            parts.append(_build_branch_definitions(ours, self.branching, self.io_manager_key))
        return dg.Definitions.merge(*parts)

    def _build_checks(self, table: LakehouseTable) -> list[dg.AssetChecksDefinition]:
        key, spec, label = self.io_manager_key, table.spec(), f"table {table.key.to_user_string()}"
        policy = (self.maintenance or PolicyFields()).policy(label)
        checks: list[dg.AssetChecksDefinition] = []
        is_checked = self.health_checks and spec.metadata[MAINTENANCE_KEY] is not False  # by `build_listed_definitions`
        if "health" in table.checks and not is_checked:
            checks += build_lance_health_checks([spec], policy, io_manager_key=key)
        if "integrity" in table.checks:
            checks += build_lance_integrity_checks([spec], io_manager_key=key)
        if "drift" in table.checks:
            checks.append(build_lance_drift_check(spec, io_manager_key=key))
        if table.primary_key:
            checks.append(build_lance_primary_key_check(spec, list(table.primary_key), io_manager_key=key))
        return checks


def _check_places(specs: Sequence[dg.AssetSpec], default_schema: str | None) -> None:
    """Reject a table that is listed twice.

    Raises:
        DagsterInvalidDefinitionError: Two entries of `tables` are for the same table.
    """
    owners: dict[str, dg.AssetKey] = {}
    for spec in specs:
        location = locate_table("lake", spec.key, spec.metadata, default_schema=default_schema)
        if location.name in owners:
            raise dg.DagsterInvalidDefinitionError(
                f"tables: {owners[location.name].to_user_string()} and {spec.key.to_user_string()} are both the table "
                f"{location.name}; list it once"
            )
        owners[location.name] = spec.key


def _find_idle_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of attributes whose keys are all known: keys without effect."""
    yield from find_empty_lists(values, "tables")
    tables = values.get("tables") or ()
    branching = values.get("branching")
    if isinstance(branching, Mapping):
        yield from _find_idle_branching_keys(branching, has_tables=bool(tables))
    if not values.get("root_uri") and not values.get("namespace"):
        yield "root_uri is missing: give the folder of the tables, or a namespace that locates them"
    has_maintenance, whole = bool(values.get("maintenance")), bool(values.get("all_tables"))
    if has_maintenance and not values.get("root_uri"):
        yield "maintenance needs root_uri beside namespace, as its log is written below it"
    listing = [key for key in ("health_checks", "external_assets") if values.get(key)]
    if has_maintenance and not (tables or whole):
        yield "maintenance does nothing without tables; list them under tables, or set all_tables: true"
    if whole and not has_maintenance:
        yield "all_tables does nothing without maintenance; add maintenance, or leave all_tables out"
    if values.get("report") and not any(isinstance(table, Mapping) and table.get("external") for table in tables):
        yield "report does nothing without a table that is external: true"
    for key in ("include", "exclude", "policies"):
        if values.get(key) and not (whole or listing):
            yield f"{key} does nothing without all_tables: true, health_checks or external_assets"
    if isinstance(tables, list):
        has_branches = isinstance(branching, Mapping) and branching.get("mode", "off") != "off"
        listed = [(f"tables[{position}]", table) for position, table in enumerate(tables) if isinstance(table, Mapping)]
        yield from _find_idle_table_keys(listed, has_maintenance, has_branches=has_branches, of_all=listing)


def _find_idle_branching_keys(branching: Mapping[str, Any], *, has_tables: bool) -> Iterator[str]:
    mode = branching.get("mode", "off")
    if mode == "env" and not branching.get("name"):
        yield (
            "branching.name is missing: mode env needs the name of the environment variable that names the branch, "
            "such as name: LANCE_BRANCH"
        )
    if branching.get("name") is not None and mode not in ("from_tag", "env"):
        yield f"branching.name does nothing with mode {mode}; it is for from_tag and env"
    if branching.get("auto_promote") and mode == "off":
        yield "branching.auto_promote does nothing with mode off; choose another mode, or leave it out"
    elif branching.get("auto_promote") and not has_tables:
        yield "branching.auto_promote does nothing without tables; list them under tables"


def _find_idle_table_keys(
    tables: Sequence[tuple[str, Mapping[str, Any]]], is_maintained: bool, *, has_branches: bool, of_all: Sequence[str]
) -> Iterator[str]:
    for place, table in tables:
        yield from find_empty_lists(table, "checks", "primary_key", place=place)
        checked = "health" in (table.get("checks") or ())
        if isinstance(table.get("maintenance"), Mapping) and not (
            is_maintained or checked or "health_checks" in of_all
        ):
            yield (
                f"{place}.maintenance does nothing: give the lakehouse maintenance or health_checks, or the table the "
                "check health"
            )
        used = table.get("checks") or table.get("primary_key") or table.get("external")
        if not (used or has_branches or of_all or (is_maintained and table.get("maintenance") is not False)):
            yield (
                f"{place}.key does nothing: give the table checks, a primary_key or external: true, give the lakehouse "
                "maintenance or branching, or leave the table out; the tables of assets need not be listed"
            )


def _name(usual: str, io_manager_key: str) -> str:
    """A name that is unique among the lakehouses of a project, which differ in the key of the IO manager."""
    return usual if io_manager_key == "io_manager" else f"{usual}_{io_manager_key}"


def _build_branch_definitions(
    specs: Sequence[dg.AssetSpec], fields: BranchingFields, io_manager_key: str
) -> dg.Definitions:
    """The jobs that promote and discard branches, and the sensor that starts them."""
    promote, discard, branches = (
        _name(usual, io_manager_key) for usual in ("lance_promote", "lance_discard", "lance_branches")
    )
    jobs = build_branch_jobs(specs, io_manager_key=io_manager_key, promote_name=promote, discard_name=discard)
    sensor = build_branch_sensor(
        specs, jobs, name=branches, auto_promote=fields.auto_promote, io_manager_key=io_manager_key
    )
    return dg.Definitions(jobs=list(jobs), sensors=[sensor])
