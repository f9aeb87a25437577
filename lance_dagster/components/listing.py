"""Components that list the tables below a root; the list is state of the component, where Dagster has such.

    state    [{"path": "nyc/flights.lance", "uri": "s3://bucket/nyc/flights.lance", "other_paths": []}, ...], as JSON

`dg utils refresh-defs-state` writes it, and so does `dagster dev` when it starts; the processes that load the code
location read it. Without it, and with a Dagster that has no state of components, they list the root themselves.
"""

import json
import logging
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from lance_dagster.health.lake import Listing
from lance_dagster.tables.location import resolved_options

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

    storage_options: dict[str, str] = Field(default={}, repr=False)
    namespace: dict[str, str] = Field(
        default={},
        repr=False,
        description='Properties of a namespace that locates the tables, such as {impl: rest, uri: "https://..."}. Take '
        "secrets from {{ env.NAME }}.",
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

    def read_listing(self, state_path: Path | None) -> Listing | None:
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
