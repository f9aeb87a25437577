"""`build_lance_health_checks`: whether tables need maintenance, by the thresholds of a policy."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster.checks.table_check import Finding, describe_missing_table, open_and_record_read
from lance_dagster.health.lake import Lake, build_external_asset, join_shared, list_tables_when_loaded, make_lake
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.tables.names import mapping_key
from lance_dagster.tables.refs import TableLike, TableRef, known_refs, table_ref, table_refs, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import MaintenancePolicy

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
"""Parts of keys of which Dagster makes the names of inputs."""


def build_lance_health_checks(  # noqa: PLR0913 - each is a choice of its own, most by keyword only
    assets: Iterable[TableLike] | TableLike = (),
    policy: LanceMaintenancePolicy | None = None,
    *,
    root: str | bool | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    policies: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    schema: str | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
    namespace: Mapping[str, Any] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Checks that fail if a table needs maintenance, by fragments, deleted rows, versions and indices.

    Args:
        assets: Assets, specs or keys.
        policy: The thresholds; by default those of `LanceMaintenancePolicy()`. An asset's metadata `lance/maintenance`
            changes them.
        root: The URI of a root. The tables that are below it when the code location is loaded are checked, too; their
            assets are those of `lance_external_assets` with the same arguments. True is rejected, because the root of
            the IO manager is not known while a code location is loaded.
        include: As in `build_maintenance_job`.
        exclude: As in `build_maintenance_job`.
        policies: As in `build_maintenance_job`; with a root there are no checks of tables that are left alone.
        storage_options: The options by which the root is reached; values can be `EnvVar`.
        schema: The IO manager's `schema`, by which the tables of assets below the root are located.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the tables are.
        namespace: As in `lance_external_assets`.

    Raises:
        DagsterInvalidDefinitionError: The root is no URI, there are arguments for tables below a root but no root, or
            a policy is invalid.

    Examples:
        >>> checks = lance_dagster.build_lance_health_checks(["nyc/flights"])
        >>> sorted(key.name for check in checks for key in check.check_keys)
        ['lance_deleted_fraction', 'lance_small_fragments', 'lance_uncovered_indices', 'lance_versions']
    """
    chosen = LanceMaintenancePolicy() if policy is None else policy
    choice = {"include": include, "exclude": exclude, "policies": policies, "namespace": namespace}
    label = "build_lance_health_checks"
    pairs = choose_checked_tables(label, table_refs(assets), chosen, storage_options, schema, root=root, **choice)
    return build_checks_of_tables(pairs, severity, io_manager_key)


def choose_checked_tables(
    label: str,
    refs: Sequence[TableRef],
    policy: LanceMaintenancePolicy,
    storage_options: Mapping[str, Any] | None,
    schema: str | None,
    **lake_arguments: Any,
) -> list[tuple[TableRef, LanceMaintenancePolicy]]:
    """The assets and the tables below a root that a builder checks, each with the policy for its path.

    Args:
        label: The builder, for messages.
        refs: The assets.
        policy: The policy.
        storage_options: The options by which the root is reached.
        schema: The IO manager's `schema`.
        **lake_arguments: Arguments of `make_lake`.

    Raises:
        DagsterInvalidDefinitionError: An argument is invalid.
    """
    lake = make_lake(policy=policy, **lake_arguments)
    if lake is None and (storage_options or schema):
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: storage_options and schema are for the tables below a root, and root is not given; leave them "
            "out, as the IO manager locates the tables of assets"
        )
    for ref in refs:
        apply_own_policy(policy, ref)
    if lake is None:
        return [(ref, policy) for ref in refs]
    return list_checked_tables(lake, refs, policy, storage_options, schema, label)


def build_checks_of_tables(
    tables: Iterable[tuple[TableRef, LanceMaintenancePolicy]],
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """The health checks of tables, each with its policy."""
    return [_build_health_check(ref, table_policy, severity, io_manager_key) for ref, table_policy in tables]


def list_checked_tables(
    lake: Lake,
    refs: Sequence[TableRef],
    policy: LanceMaintenancePolicy,
    storage_options: Mapping[str, Any] | None,
    schema: str | None,
    label: str = "build_lance_health_checks",
) -> list[tuple[TableRef, LanceMaintenancePolicy]]:
    """The given assets and the tables below a root, except those left alone, with the policy for the path of each."""
    tables = list_tables_when_loaded(lake, refs, storage_options=storage_options, schema=schema, label=label)
    places = {table.ref.name: table for table in tables}
    asset_names = {ref.name for ref in refs}
    other_refs = []
    for other in tables:
        if other.ref.name in asset_names:
            continue
        if not all(map(_NAME.fullmatch, other.ref.key.path)):
            _log.warning("%s has no health checks: checks of Dagster cannot have its name in theirs", other.uri)
            continue
        other_refs.append(table_ref(build_external_asset(other, storage_options)))
    pairs = []
    for ref in (*refs, *other_refs):
        table, by_place = places.get(ref.name), None
        table_policy = policy_of(policy, ref.metadata, label=f"asset {ref.name}")
        if table is not None:
            table_policy, by_place = lake.policy(policy, table, table.ref), lake.policy(policy, table, None)
        if table_policy is not None:
            pairs.append((ref, by_place or policy))
    return pairs


def apply_own_policy(policy: LanceMaintenancePolicy, ref: TableRef) -> LanceMaintenancePolicy:
    """The policy as the metadata of an asset change it; they do not exclude it from checks."""
    return policy_of(policy, ref.metadata, label=f"asset {ref.name}") or policy


def fit_policy(
    context: dg.AssetCheckExecutionContext,
    policy: LanceMaintenancePolicy,
    ref: TableRef,
    dataset: "lance_core.LanceDataset",
    io_manager_key: str,
    refs: Sequence[TableRef] = (),
) -> "MaintenancePolicy":
    """The policy for a table, without indices on columns that it lacks, unless an asset of the table declares them.

    Args:
        context: The context of the check.
        policy: The policy of the checks.
        ref: The asset that is checked.
        dataset: The table.
        io_manager_key: The resource that knows where tables are.
        refs: Further assets, beside those of the code location, that may share the table.
    """
    from lance_core.maintenance import without_missing_columns  # noqa: PLC0415 - heavy imports

    root = table_root(getattr(context.resources, io_manager_key))
    all_refs = [*known_refs(context), *(each.resolved(context) for each in refs)]
    ref = join_shared(root, ref.resolved(context), all_refs)
    core_policy = apply_own_policy(policy, ref).to_core()
    is_own = apply_own_policy(LanceMaintenancePolicy(), ref).indices is not None
    return core_policy if is_own else without_missing_columns(dataset, core_policy)


def _limits(policy: LanceMaintenancePolicy) -> dict[str, tuple[str, float, str]]:
    """The metadata key of the number that each check compares, its limit, and what it counts, by the check's name."""
    return {
        "lance_small_fragments": ("lance/small_fragments", policy.max_small_fragments, "small fragments to merge"),
        "lance_deleted_fraction": ("lance/deleted_fraction", policy.materialize_deletions_threshold, "deleted rows"),
        "lance_versions": ("lance/versions_total", policy.max_versions, "versions"),
        "lance_uncovered_indices": (
            "lance/index_unindexed_fraction",
            0 if policy.refresh_indices else 1,
            "rows that an index does not cover",
        ),
    }


def _build_health_check(
    ref: TableRef, policy: LanceMaintenancePolicy, severity: dg.AssetCheckSeverity, io_manager_key: str
) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(name, asset=ref.key, description=f"Not too many {what} in the table.")
        for name, (_, _, what) in _limits(policy).items()
    ]

    @dg.multi_asset_check(
        name=f"lance_health_{mapping_key(ref.name)}",
        specs=specs,
        required_resource_keys={io_manager_key},
        can_subset=True,
    )
    def health(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        from lance_core.maintenance import survey_declared  # noqa: PLC0415 - heavy imports
        from lance_core.maintenance.routine.health import measure  # noqa: PLC0415 - heavy imports at first use

        asset_policy = apply_own_policy(policy, ref.resolved(context))
        limits = {
            name: limit
            for name, limit in _limits(asset_policy).items()
            if dg.AssetCheckKey(ref.key, name) in context.selected_asset_check_keys
        }
        dataset = open_and_record_read(context, ref, io_manager_key)
        if dataset is None:
            finding = describe_missing_table(context, ref, severity)
            yield from (finding.to_result(severity, check_name=name, asset_key=ref.key) for name in limits)
            return
        core_policy = fit_policy(context, policy, ref, dataset, io_manager_key)
        measured_health, declared = measure(dataset, core_policy), survey_declared(dataset, core_policy)
        actions = [] if declared is None else declared.actions
        missing = [each.name for each in actions if declared and each.name not in declared.facts.present]
        numbers = measured_health.metadata() | ({"lance/index_unindexed_fraction": 1.0} if missing else {})
        # Small fragments that maintenance cannot merge do not call for maintenance.
        counted = {**numbers, "lance/small_fragments": measured_health.mergeable_fragments}
        for name, (key, limit, what) in limits.items():
            value = counted.get(key, 0)
            description = f"{what}: {value:.4g}, the limit is {limit:.4g}"
            if missing and key == "lance/index_unindexed_fraction":
                description += f"; there is no index {', '.join(missing)}, which is declared"
            finding = Finding(value <= limit, description, {**numbers, "lance/limit": limit})
            yield finding.to_result(severity, check_name=name, asset_key=ref.key)

    return health
