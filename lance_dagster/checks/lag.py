"""`build_lance_lag_checks`: how far an asset with incremental inputs is behind them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster._context.definitions import list_partitions_to_read
from lance_dagster._context.steps import asset_graph, facts_of
from lance_dagster.checks.table_check import Finding, open_and_record_read, parse_limit, table_check
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, table_ref, table_refs, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.lineage.input_parts import InputPart


def build_lance_lag_checks(
    assets: Iterable[TableLike] | TableLike,
    max_age: str | timedelta = "1d",
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """Checks that assets consume the changes of their incremental inputs (`lance/changes`) within some time.

    The result has the number of changed rows that no run has read, the age of the first commit that no run has read,
    and the versions. For a partitioned asset only the partitions that it has materialized count, each with the rows of
    its partitions of the input. Changes that the input does not load do not count: rows that its `lance/filter`
    excludes, updates of columns that it does not load, and the asset's own columns. An asset passes if its inputs have
    not changed since its last run, however old that run is.

    Args:
        assets: Assets that have incremental inputs.
        max_age: How long changes may wait: a string such as "1d" or "36h", or a timedelta.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the tables are.

    Raises:
        ValueError: `max_age` is not a length of time.

    Examples:
        >>> checks = lance_dagster.build_lance_lag_checks(["captions"], "6h")
        >>> [key.name for check in checks for key in check.check_keys]
        ['lance_lag']
    """
    limit = parse_limit(max_age, least=timedelta(0))
    return [_build_lag_check(ref, limit, severity, io_manager_key) for ref in table_refs(assets)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lag:
    """The changes of an input that an asset has not consumed.

    Attributes:
        asset: The input.
        from_version: The version after which the next run reads; the earliest one of several partitions.
        to_version: The newest version of the input.
        rows: The changed rows that the next run reads, or the next two runs if a promotion ends the first one's range.
        age: The age of the first commit with such rows; 0 if there are none.
    """

    asset: str
    from_version: int
    to_version: int
    rows: int = 0
    age: timedelta = timedelta(0)

    def entry(self) -> dict[str, Any]:
        """The entry of the result's metadata."""
        return {
            "asset": self.asset,
            "from_version": self.from_version,
            "to_version": self.to_version,
            "rows_unread": self.rows,
            "lag_s": self.age.total_seconds(),
        }


def _build_lag_check(
    ref: TableRef, limit: timedelta, severity: dg.AssetCheckSeverity, io_manager_key: str
) -> dg.AssetChecksDefinition:
    description = f"The changes of the incremental inputs are consumed within {limit}."

    @table_check(ref, "lance_lag", description, severity, io_manager_key)
    def lag(context: dg.AssetCheckExecutionContext) -> Finding | None:
        from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use

        table = open_and_record_read(context, ref, io_manager_key)
        if table is None:
            return None
        asset_ref, root = ref.resolved(context), table_root(getattr(context.resources, io_manager_key))
        graph = asset_graph(context.job_def)
        inputs = [
            key
            for key in sorted(graph.get(ref.key).parent_keys)
            if table.watermarks(_name(asset_ref, key.to_user_string()))
        ]
        if not inputs:
            return Finding(True, f"asset {ref.name} has consumed no input by lance/changes so far")
        lags, problems = [], []
        for key in inputs:
            try:
                lags.append(_measure_lag(context, root, asset_ref, table, key))
            except LanceError as error:  # such as for a version that was deleted: the next run fails likewise
                problems.append(str(error))
        return _make_finding(lags, problems, limit)

    return lag


def _make_finding(lags: Sequence[_Lag], problems: Sequence[str], limit: timedelta) -> Finding:
    rows, age = sum(lag.rows for lag in lags), max((lag.age for lag in lags), default=timedelta(0))
    # If an input cannot be read, the number of unread rows is unknown.
    numbers = {} if problems else {"lance/rows_unread": rows, "lance/lag_s": age.total_seconds()}
    said = [*problems]
    if rows:
        oldest = timedelta(seconds=int(age.total_seconds()))
        said.append(f"{rows:,} changed rows wait for the next run, the first for {oldest}; the limit is {limit}")
    return Finding(
        passed=not problems and age <= limit,
        description="; ".join(said) or "all changes are consumed",
        metadata={**numbers, "lance/lag": [lag.entry() for lag in lags]},
    )


def _name(reader: TableRef, upstream: str) -> str:
    """The name of the watermarks of an input in the table of the asset that reads the input."""
    from lance_dagster.lineage.watermarks import watermark_name  # noqa: PLC0415 - heavy imports at first use

    return watermark_name(upstream, reader.name, reader.metadata or {})


def _measure_lag(
    context: dg.AssetCheckExecutionContext,
    root: TableRoot,
    reader: TableRef,
    table: "lance_core.LanceDataset",
    key: dg.AssetKey,
) -> _Lag:
    """The changes of an input that an asset has not consumed.

    Raises:
        VersionNotFoundError: The version that was consumed last was cleaned up, or the changes since are not known.
        IncompatibleConflictError: The input's table was created again, or another branch of it was consumed.
        DatasetNotFoundError: The input's table was dropped.
    """
    from lance_dagster.checks.unread_changes import UnreadChanges  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.watermarks import unread_by_key  # noqa: PLC0415 - heavy imports at first use

    upstream = table_ref(key).resolved(context)
    dataset = root.open_in_run(upstream, facts_of(context.run, context.instance))
    label = f"input {upstream.name} of asset {reader.name}"
    parts = _parts(context, reader, table, upstream, label)
    unread = unread_by_key(dataset, [(part.begin, part.key) for part in parts], label)
    unread_changes = [
        UnreadChanges.of(context, root, unread_range, (reader, upstream), keys)
        for ranges, keys in unread
        for unread_range in ranges
    ]
    waiting = [(changes, count) for changes in unread_changes if (count := changes.count())]
    begin = min((ranges[0].begin for ranges, _ in unread), default=dataset.version)
    lag = _Lag(asset=upstream.name, from_version=begin, to_version=dataset.version)
    if not waiting:
        return lag
    since = min(changes.since() for changes, _ in waiting)
    return replace(lag, rows=sum(count for _, count in waiting), age=datetime.now(UTC) - since)


def _parts(
    context: dg.AssetCheckExecutionContext,
    reader: TableRef,
    table: "lance_core.LanceDataset",
    upstream: TableRef,
    label: str,
) -> "list[InputPart]":
    """The parts by which the next run of each partition of an asset consumes an input.

    Raises:
        IncompatibleConflictError: Other rows were consumed than those that the input now selects.
    """
    from lance_dagster.checks.unread_changes import metadata_of_input  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.events.published import find_published_partitions  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.input_parts import digest_of_rows, input_parts, positions_by_partition  # noqa: PLC0415 - heavy imports at first use

    partitions: Sequence[str | None] = [None]
    if reader.partitions_def is not None:
        materialized = context.instance.get_materialized_partitions(reader.key)
        partitions = sorted(find_published_partitions(context.instance, reader.key, materialized, branch=table.branch))
    marks = table.watermarks(_name(reader, upstream.name))
    positions = positions_by_partition({part: watermark.position for part, watermark in marks.items()})
    metadata, digest = metadata_of_input(context, reader, upstream), None
    if metadata is not None:
        partition_expr = (upstream.metadata or {}).get("partition_expr")
        digest = digest_of_rows(metadata.get("lance/filter"), partition_expr, upstream.partitions_def)
    return [
        part
        for partition in partitions
        for part in input_parts(
            positions,
            partition,
            list_partitions_to_read(context.job_def, context.instance, upstream.key, reader.key, partition),
            digest,
            label,
        )
    ]
