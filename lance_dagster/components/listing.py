"""Components that list the tables below a root; the list is state of the component, where Dagster has such.

    state    [{"path": "nyc/flights.lance", "uri": "s3://bucket/nyc/flights.lance", "other_paths": []}, ...], as JSON

`dg utils refresh-defs-state` writes it, and so does `dagster dev` when it starts; the processes that load the code
location read it. Without it, and with a Dagster that has no state of components, they list the root themselves.
"""

import json
import logging
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from lance_dagster.checks.health import build_checks_of_tables, build_lance_health_checks, list_checked_tables
from lance_dagster.health.lake import Listing, build_external_assets, make_lake
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.tables.location import resolved_options
from lance_dagster.tables.refs import TableLike, table_refs

_FIELDS: Final = ("path", "uri", "other_paths")

HAS_STATE = hasattr(dg, "StateBackedComponent")

if TYPE_CHECKING:
    from dagster import StateBackedComponent as _Component
else:
    _Component = dg.StateBackedComponent if HAS_STATE else dg.Component

if HAS_STATE:
    from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig

_log = logging.getLogger(__name__)


class ListingComponent(_Component, dg.Model, dg.Resolvable):
    """A component whose definitions are those of the tables below a root."""

    storage_options: dict[str, str] = Field(
        default={}, repr=False, description="Options by which the storage is reached. Take secrets from {{ env.NAME }}."
    )
    namespace: dict[str, str] = Field(
        default={},
        repr=False,
        description='Properties of a namespace that locates the tables, such as {impl: rest, uri: "https://..."}. Take '
        "secrets from {{ env.NAME }}.",
    )
    io_manager_key: str = Field(default="io_manager", description="Key of the IO manager.")
    default_schema: str | None = Field(
        default=None, description="Folder of the tables of assets whose metadata names none."
    )
    include: Sequence[str] = Field(default=(), description='Globs of tables below the root, such as "nyc/*".')
    exclude: Sequence[str] = Field(default=(), description="Globs of tables to leave out.")
    policies: dict[str, Any] | None = Field(
        default=None, description="Fields of the policy by folder or path below the root; false: not maintained."
    )
    health_checks: bool = Field(
        default=False,
        description="Check the health of the tables, including those that are below the root when this is loaded.",
    )
    external_assets: bool = Field(
        default=False,
        description="Declare external assets for tables that are below the root when this is loaded and not listed.",
    )
    if HAS_STATE:
        defs_state: ResolvedDefsStateConfig = Field(
            default=DefsStateConfigArgs.local_filesystem(),
            description="Where the list of tables for health_checks and external_assets is kept; "
            "dg utils refresh-defs-state writes it.",
        )

    @property
    @abstractmethod
    def listed_root(self) -> str | None:
        """The URI of the root whose tables are listed, or what its namespace is called; None if none are."""

    @abstractmethod
    def build_defs_from_state(self, context: dg.ComponentLoadContext | None, state_path: Path | None) -> dg.Definitions:
        """The definitions, by the list of tables in a file; None lists them now."""

    @property
    def defs_state_config(self) -> Any:
        """Where Dagster keeps the list."""
        return DefsStateConfig.from_args(self.defs_state, default_key=f"{type(self).__name__}[{self.listed_root}]")

    def write_state_to_path(self, state_path: Path) -> None:
        """Write the list of tables; without any that are listed it is empty."""
        from lance_core.maintenance.routine.maintain import find_chosen_tables  # noqa: PLC0415 - code locations load without it

        root = self.listed_root
        options, namespace = resolved_options(self.storage_options), dict(self.namespace) or None
        listed = find_chosen_tables(root, (), (), options, namespace) if root else []
        tables = [table for table in listed if table.problem is None]
        state_path.write_text(json.dumps([{name: getattr(table, name) for name in _FIELDS} for table in tables]))

    def build_defs(self, context: dg.ComponentLoadContext | None) -> dg.Definitions:
        """The definitions, by the list of tables in the component's state; without a context they are listed now."""
        if HAS_STATE and self.listed_root is not None and context is not None:
            return super().build_defs(context)
        return self.build_defs_from_state(context, None)

    def choice(self) -> dict[str, Any]:
        """The arguments of the builders that choose tables below the root."""
        return {"include": self.include, "exclude": self.exclude, "policies": self.policies}

    def build_listed_definitions(
        self,
        assets: Sequence[TableLike],
        policy: LanceMaintenancePolicy,
        root: str | bool | None,
        state_path: Path | None,
    ) -> dg.Definitions:
        """The health checks and external assets of tables.

        Args:
            assets: The assets that the YAML lists.
            policy: The thresholds of the checks.
            root: The root below which tables are listed; without one only the assets are checked.
            state_path: The file with the tables below the root; None lists them now.
        """
        checks: list[dg.AssetChecksDefinition] = []
        external: list[dg.AssetSpec] = []
        options, schema, key = self.storage_options, self.default_schema, self.io_manager_key
        listing = self._read_listing(state_path)
        below = make_lake(**self.choice(), root=root, namespace=self.namespace, policy=policy, listing=listing)
        if self.health_checks and below is None:
            checks = build_lance_health_checks(assets, policy, io_manager_key=key)
        elif self.health_checks and below is not None:
            tables = list_checked_tables(below, table_refs(assets), policy, options, schema)
            checks = build_checks_of_tables(tables, io_manager_key=key)
        if self.external_assets and below is not None:
            external = build_external_assets(below, assets, storage_options=options, schema=schema)
        return dg.Definitions(assets=external, asset_checks=checks)

    def _read_listing(self, state_path: Path | None) -> Listing | None:
        """The list of tables in a file; None if they have to be listed now, as there is no file."""
        if state_path is not None:
            listing: Listing = json.loads(state_path.read_text())
            return listing
        if HAS_STATE and self.listed_root is not None:
            _log.warning(
                "the tables of %s are listed by each process that loads the code location: run dg utils "
                "refresh-defs-state, which keeps the list",
                self.listed_root,
            )
        return None
