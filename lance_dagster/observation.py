"""Observable assets for tables that others write, and a sensor of others' commits."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import dagster as dg

from lance_dagster.tables.location import OWN_BRANCH_KEY, reject_credentials, remember_options, resolved_options
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, table_refs, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.lineage.history import TableVersion

__all__ = ["build_lance_observation_sensor", "observable_lance_asset"]

Report = Literal["observations", "materializations"]
"""How changes that others made are reported."""

_Event: TypeAlias = dg.AssetObservation | dg.AssetMaterialization

_DATA_VERSION_TAG = "dagster/data_version"
_MOST_PER_TICK = 50


def observable_lance_asset(
    key: TableLike,
    uri: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    branch: str | None = None,
    group_name: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    io_manager_key: str | None = None,
) -> dg.SourceAsset:
    """An asset whose table others write; observing it records its data version, rows and newest change.

    Maintenance of the table does not change the data version. `LanceIOManager` and sensors load the asset from this
    URI, on its branch and with its storage options. Maintenance and promotion leave the table alone, unless its
    metadata `lance/maintenance` asks for maintenance.

    Args:
        key: The asset's key.
        uri: The URI of the table.
        storage_options: Options by which the table is reached, in place of the IO manager's; values can be `EnvVar`.
            They are in no event and no metadata.
        branch: The branch to observe and to load; None for main.
        group_name: As for any Dagster asset.
        description: As for any Dagster asset.
        metadata: As for any Dagster asset.
        tags: As for any Dagster asset.
        automation_condition: When to observe the table, such as `AutomationCondition.on_cron("@hourly")`.
        io_manager_key: The IO manager that loads the asset as an input.

    Raises:
        DagsterInvalidDefinitionError: The URI holds credentials, which would show in the UI.

    Examples:
        >>> table = lance_dagster.observable_lance_asset("nyc/flights", "/lake/nyc/flights.lance")
        >>> table.key.to_user_string(), table.is_observable
        ('nyc/flights', True)
    """
    asset_key = table_refs([key])[0].key
    reject_credentials(f"asset {asset_key.to_user_string()}: its uri", uri)

    if storage_options is not None:
        remember_options(asset_key, uri, storage_options)
    table_metadata: dict[str, Any] = {"dagster/uri": uri, "lance/uri": uri}
    if branch is not None:
        table_metadata[OWN_BRANCH_KEY] = branch

    @dg.observable_source_asset(
        key=asset_key,
        group_name=group_name,
        description=description,
        metadata={**(metadata or {}), **table_metadata},
        tags={"dagster/kind/lance": "", **(tags or {})},
        automation_condition=automation_condition,
        io_manager_key=io_manager_key,
    )
    def observe(context: dg.OpExecutionContext) -> dg.ObserveResult:
        import lance_core  # noqa: PLC0415 - heavy imports at first use
        from lance_dagster.lineage.history import compute_data_version  # noqa: PLC0415 - heavy imports at first use
        from lance_dagster.lineage.table_life import observed_table_id  # noqa: PLC0415 - heavy imports at first use

        options = resolved_options(storage_options or {}) or None
        version = None if branch is None else (branch, None)
        dataset = lance_core.dataset(uri, version=version, storage_options=options)
        data_version = compute_data_version(dataset, table_id=observed_table_id(context.instance, asset_key, dataset))
        return dg.ObserveResult(data_version=dg.DataVersion(data_version), metadata=_table_metadata(dataset, uri))

    return observe


def _table_metadata(dataset: "lance_core.LanceDataset", uri: str) -> dict[str, Any]:
    from lance_dagster.events.materialization import column_schema  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.history import is_change_lost, read_history  # noqa: PLC0415 - heavy imports at first use

    entries: dict[str, Any] = {
        "dagster/row_count": dataset.count_rows(),
        "dagster/column_schema": column_schema(dataset.schema),
        "dagster/uri": uri,
        "lance/version": dataset.version,
        "lance/identity": dataset.identity,
        "lance/fragments": len(dataset.fragment_ids()),
    }
    change = next(
        (commit for commit in read_history(dataset) if commit.changes_rows and not commit.touches_no_rows), None
    )
    if change is not None and not is_change_lost(dataset, change.version):
        entries |= _change_metadata(change)
    return entries


def _change_metadata(change: "TableVersion") -> dict[str, Any]:
    optional_metadata = {
        "lance/operation": change.operation,
        "lance/commit_message": change.message,
        "lance/rows_added": change.rows_added,
        "lance/rows_removed": change.rows_removed,
        "dagster/last_updated_timestamp": dg.MetadataValue.timestamp(change.time),
    }
    return {name: value for name, value in optional_metadata.items() if value is not None}


def build_lance_observation_sensor(
    assets: Iterable[TableLike] | TableLike,
    *,
    name: str = "lance_observation_sensor",
    report: Report = "observations",
    io_manager_key: str = "io_manager",
    minimum_interval_seconds: int = 60,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Make a sensor that reports each version that others committed, once, as an event of the asset.

    An event has the operation, the commit message, the rows added and removed, and the time of the commit.
    Versions of Dagster runs are left out, because the runs report them, and so is maintenance. If the version that
    last changed rows was cleaned up before a tick saw it, the rows are reported as the table has them now. A tick reads
    at most fifty versions of a table, and the next tick continues; the first tick reads the newest versions.

    Materializations count for a `FreshnessPolicy` and wake `AutomationCondition.eager()` downstream, observations do
    neither. As both go by the time of the event, the first tick reports no version that a table has by then as a
    materialization.

    Args:
        assets: Assets, specs or keys; assets of `observable_lance_asset` are opened at their own URIs.
        name: Name of the sensor.
        report: "materializations" reports versions that changed rows as materializations; others stay observations.
        io_manager_key: The resource that knows where the tables are.
        minimum_interval_seconds: The shortest time between two ticks, in seconds.
        default_status: Whether the sensor runs as soon as it is deployed.

    Raises:
        DagsterInvalidDefinitionError: `report` is neither of its two values.

    Examples:
        >>> table = lance_dagster.observable_lance_asset("nyc/flights", "/lake/nyc/flights.lance")
        >>> lance_dagster.build_lance_observation_sensor([table]).name
        'lance_observation_sensor'
    """
    refs = table_refs(assets)
    if report not in get_args(Report):
        raise dg.DagsterInvalidDefinitionError(f"sensor {name}: report is one of {get_args(Report)}, not {report!r}")

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={io_manager_key},
        description=f"Observes commits of others to {len(refs)} Lance tables.",
    )
    def observed(context: dg.SensorEvaluationContext, **_resources: Any) -> dg.SensorResult | dg.SkipReason:
        root = table_root(getattr(context.resources, io_manager_key))
        seen: dict[str, int | list[Any]] = json.loads(context.cursor) if context.cursor else {}
        events: list[_Event] = []
        for ref in refs:
            after = seen.get(ref.name, 0 if report == "observations" else None)
            foreign, cursor = _foreign_versions(context, root, ref, after, report)
            events += foreign
            if cursor is not None:
                seen[ref.name] = cursor
        reason = None if events else f"nobody else committed to {len(refs)} tables"
        return dg.SensorResult(asset_events=events, cursor=json.dumps(seen), skip_reason=reason)

    return observed


def _foreign_versions(
    context: dg.SensorEvaluationContext, root: TableRoot, ref: TableRef, cursor: int | list[Any] | None, report: Report
) -> tuple[list[_Event], list[Any] | None]:
    """Events of a table, oldest first, and the newest version that was read as a cursor; None if none was read.

    Args:
        context: The context of the tick.
        root: The root of the tables.
        ref: The asset.
        cursor: The newest version that an earlier tick has read, its identity and branch; an early cursor is a number.
            None passes over the versions that the table has.
        report: How versions that changed rows are reported.
    """
    from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.history import read_history  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.table_life import has_version, observed_table_id  # noqa: PLC0415 - heavy imports

    resolved_ref = ref.resolved(context)
    after, identity, branch = cursor if isinstance(cursor, list) else (cursor, None, None)
    try:
        dataset = root.open_on(resolved_ref, root.branch_of_job(context)) or root.open_or_none(resolved_ref)
        if dataset is None:
            return [], [0, None, None] if after is None else None
        if after is None:
            return [], _cursor(dataset)
        # A table that was created again is read from its first version.
        identity = identity if branch == dataset.branch else None
        start = after if has_version(dataset, after, identity) else 0
        if start == dataset.version:
            return [], _cursor(dataset) if identity is None else None
        table_id = observed_table_id(context.instance, ref.key, dataset)
        if start and dataset.version - start > _MOST_PER_TICK:
            dataset = _at_end_of_tick(dataset, start)
        commits = list(islice(read_history(dataset, after=start), _MOST_PER_TICK))
        lost = list(_report_lost_change(context.instance, ref, dataset, start, table_id, report))
    except (LanceError, OSError) as error:  # the other tables are still reported; the next tick reads this one again
        context.log.warning("%s cannot be read: %s", ref.name, error)
        return [], None
    # A branch begins with a Clone.
    foreign = [
        commit
        for commit in commits
        if commit.run_id is None and not commit.is_maintenance and commit.operation != "Clone"
    ]
    return [*_events(ref, dataset, reversed(foreign), table_id, report), *lost], _cursor(dataset)


def _cursor(dataset: "lance_core.LanceDataset") -> list[Any]:
    return [dataset.version, dataset.identity, dataset.branch]


def _report_lost_change(
    instance: dg.DagsterInstance,
    ref: TableRef,
    dataset: "lance_core.LanceDataset",
    start: int,
    table_id: str | None,
    report: Report,
) -> Iterator[_Event]:
    """The event of rows whose newest change was cleaned up before a tick saw it, unless Dagster has its event."""
    from lance_dagster.lineage.history import compute_data_version, is_change_lost, last_data_change  # noqa: PLC0415 - heavy
    from lance_dagster.loading.recorded_versions import recorded_versions  # noqa: PLC0415 - heavy imports at first use

    changed = last_data_change(dataset)
    if is_change_lost(dataset, start) and changed > max(recorded_versions(instance, ref.key).values(), default=0):
        tags = {_DATA_VERSION_TAG: compute_data_version(dataset, changed, table_id)}
        yield _event_type(report)(ref.key, metadata=_table_metadata(dataset, dataset.uri), tags=tags)


def _event_type(report: Report) -> type[_Event]:
    return dg.AssetObservation if report == "observations" else dg.AssetMaterialization


def _at_end_of_tick(dataset: "lance_core.LanceDataset", after: int) -> "lance_core.LanceDataset":
    """The table at the last version that a tick reads after one that was reported; the next tick continues there."""
    later_versions = [ref["version"] for ref in dataset.version_refs() if ref["version"] > after]
    if len(later_versions) <= _MOST_PER_TICK:
        return dataset
    return dataset.checkout_version(later_versions[_MOST_PER_TICK - 1])


def _events(
    ref: TableRef,
    dataset: "lance_core.LanceDataset",
    versions: Iterable["TableVersion"],
    table_id: str | None,
    report: Report,
) -> Iterator[_Event]:
    from lance_dagster.lineage.history import format_data_version  # noqa: PLC0415 - heavy imports at first use

    for commit in versions:
        entries = {
            **_change_metadata(commit),
            "dagster/uri": dataset.uri,
            "dagster/row_count": commit.rows,
            "lance/version": commit.version,
            "lance/identity": commit.identity,
            "lance/fragments": commit.fragments,
        }
        tags, event_type = None, _event_type("observations")
        if commit.changes_rows and not commit.is_idle:
            event_type = _event_type("observations" if commit.touches_no_rows else report)
            tags = {_DATA_VERSION_TAG: format_data_version(dataset.root_uri, commit.version, commit.branch, table_id)}
        if commit.touches_no_rows or not commit.changes_rows:
            entries.pop("dagster/last_updated_timestamp", None)
        yield event_type(ref.key, metadata=entries, tags=tags)
