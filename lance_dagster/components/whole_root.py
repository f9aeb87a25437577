"""Definitions that components make for the tables below a root: external assets, and health checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from lance_dagster.checks.health import build_checks_of_tables, build_lance_health_checks, list_checked_tables
from lance_dagster.health.lake import Listing, build_external_assets, make_lake
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.tables.refs import TableLike, table_refs


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
    listing: Listing | None,
) -> dg.Definitions:
    """The external assets and health checks of tables.

    Args:
        listed_assets: The assets that the YAML lists.
        policy: The thresholds of the checks.
        lake: The arguments of the builders that choose tables below a root; without a root, only `known` is checked.
        health_checks: Whether to check the tables.
        external_assets: Whether to declare external assets for tables that are not in `known`.
        storage_options: The options by which the root is reached.
        schema: The IO manager's `schema`, by which the tables of `known` are located.
        io_manager_key: The resource that knows where the tables are.
        listing: The tables below the root; None lists them now.
    """
    checks: list[dg.AssetChecksDefinition] = []
    assets: list[dg.AssetSpec] = []
    below = make_lake(**lake, policy=policy, listing=listing)
    if health_checks and below is None:
        checks = build_lance_health_checks(listed_assets, policy, io_manager_key=io_manager_key)
    elif health_checks and below is not None:
        tables = list_checked_tables(below, table_refs(listed_assets), policy, storage_options, schema)
        checks = build_checks_of_tables(tables, io_manager_key=io_manager_key)
    if external_assets and below is not None:
        assets = build_external_assets(below, listed_assets, storage_options=storage_options, schema=schema)
    return dg.Definitions(assets=assets, asset_checks=checks)
