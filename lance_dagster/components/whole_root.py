"""Definitions that components make for the tables below a root: external assets, and health checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from lance_dagster.checks.health import build_lance_health_checks
from lance_dagster.health.lake import lance_external_assets
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.tables.refs import TableLike


def build_definitions_of_root(
    listed_assets: Sequence[TableLike],
    policy: LanceMaintenancePolicy,
    lake: Mapping[str, Any],
    *,
    health_checks: bool,
    external_assets: bool,
    storage_options: Mapping[str, str],
    schema: str | None,
    io_manager_key: str,
) -> dg.Definitions:
    """The external assets and health checks of tables, which are listed when the code location is loaded.

    Args:
        listed_assets: The assets that the YAML lists.
        policy: The thresholds of the checks.
        lake: The arguments of the builders that choose tables below a root; without a root, only `known` is checked.
        health_checks: Whether to check the tables.
        external_assets: Whether to declare external assets for tables that are not in `known`.
        storage_options: The options by which the root is reached.
        schema: The IO manager's `schema`, by which the tables of `known` are located.
        io_manager_key: The resource that knows where the tables are.
    """
    place: dict[str, Any] = {"storage_options": storage_options, "schema": schema} if lake.get("root") else {}
    checks: list[dg.AssetChecksDefinition] = []
    assets: list[dg.AssetSpec] = []
    if health_checks:
        checks = build_lance_health_checks(listed_assets, policy, io_manager_key=io_manager_key, **lake, **place)
    if external_assets:
        assets = lance_external_assets(lake["root"], lake["include"], lake["exclude"], known=listed_assets, **place)
    return dg.Definitions(assets=assets, asset_checks=checks)
