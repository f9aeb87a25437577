"""Asset checks on tables: integrity, primary key and drift; the other checks have modules of their own.

    build_lance_health_checks          lance_small_fragments  lance_deleted_fraction  lance_versions
                                       lance_uncovered_indices                                   warn  (`health`)
    build_lance_integrity_checks       lance_integrity: manifest, files and their sizes, rows    error
    build_lance_primary_key_check      lance_primary_key: unique, and never null                 error
    build_lance_drift_check            lance_drift: Dagster wrote and recorded the newest rows   warn
    build_lance_overdue_checks         lance_maintenance_overdue, by the log of maintenance      warn  (`overdue`)
    build_lance_missing_values_checks  lance_missing_values: the columns of an asset are set     warn (`missing_values`)
    build_lance_lag_checks             lance_lag: the changes of inputs are consumed in time     warn  (`lag`)
    build_lance_index_checks           lance_indices_declared  lance_indices_built  lance_indices_covered
                                       lance_index_recall  lance_index_age  lance_index_size     warn  (`indices`)
    build_lance_freshness_checks       lance_freshness: rows were written to main in time        warn  (`freshness`)

Numbers are metadata, so that Dagster plots them and its own checks of bounds can read them. A check locates the table
by the resource `io_manager`, opens the newest version, and loads nothing through the IO manager. In a run on a branch
it reads the branch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster._context.steps import run_partition_keys
from lance_dagster.checks.table_check import Finding, open_and_record_read, table_check
from lance_dagster.properties import BEGUN_EMPTY, COLUMN_TYPE
from lance_dagster.tables.refs import TableLike, TableRef, table_ref, table_refs
from lance_dagster.tables.write_events import read_write_events

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.lineage.history import TableVersion

_SHOWN = 20
_EVENTS = 100
"""The most events that are read to find the newest that names a version."""


def build_lance_integrity_checks(
    assets: Iterable[TableLike] | TableLike,
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    rows: bool = False,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """Checks that tables are complete.

    The manifest can be read, every file exists with its size and its rows, and the version of the last materialization
    has the number of rows that was recorded.

    Args:
        assets: Assets, specs or keys.
        severity: The severity of a failed check.
        blocking: Whether a failed check stops the assets downstream in the same run.
        rows: Whether all rows are read, which finds pages that cannot be decoded.
        io_manager_key: The resource that knows where the tables are.

    Examples:
        >>> checks = lance_dagster.build_lance_integrity_checks(["nyc/flights"])
        >>> [key.name for check in checks for key in check.check_keys]
        ['lance_integrity']
    """
    return [_build_integrity_check(ref, severity, blocking, io_manager_key, rows=rows) for ref in table_refs(assets)]


def _build_integrity_check(
    ref: TableRef, severity: dg.AssetCheckSeverity, blocking: bool, io_manager_key: str, *, rows: bool
) -> dg.AssetChecksDefinition:
    description = "The manifest can be read, all files exist, and the number of rows is the recorded one."

    @table_check(ref, "lance_integrity", description, severity, io_manager_key, blocking=blocking)
    def integrity(context: dg.AssetCheckExecutionContext) -> Finding | None:
        from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use

        try:
            dataset = open_and_record_read(context, ref, io_manager_key)
            if dataset is None:
                return None
            problems = [*_find_file_problems(dataset, rows=rows), *_find_row_problems(context, ref, dataset)]
            numbers = {
                "lance/version": dataset.version,
                "lance/fragments": len(dataset.fragment_ids()),
                "lance/rows": dataset.count_rows(),
            }
        except (LanceError, OSError) as error:
            problems, numbers = [f"{type(error).__name__}: {error}"], {}
        return Finding(
            passed=not problems,
            description="; ".join(problems[:_SHOWN]) or "the table is complete",
            metadata={**numbers, "lance/problems": len(problems)},
        )

    return integrity


def _find_file_problems(dataset: "lance_core.LanceDataset", *, rows: bool) -> Iterator[str]:
    from lance_core.maintenance.verify.files import verify  # noqa: PLC0415 - heavy imports at first use

    for problem in verify(dataset, rows=rows):
        label = "" if problem.fragment_id is None else f"fragment {problem.fragment_id}, "
        yield f"{label}{problem.path or 'manifest'} {problem.message}"
    listed = dataset.all_files().read_all()
    sizes = dict(zip(listed["path"].to_pylist(), listed["size_bytes"].to_pylist(), strict=True))
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            num_bytes, recorded_bytes = sizes.get(f"data/{file.path}"), file.file_size_bytes
            if num_bytes is not None and recorded_bytes and num_bytes != recorded_bytes:
                label = f"fragment {fragment.fragment_id}, {file.path}"
                yield f"{label} has {num_bytes} bytes, the manifest records {recorded_bytes}"


def _find_row_problems(
    context: dg.AssetCheckExecutionContext, ref: TableRef, dataset: "lance_core.LanceDataset"
) -> Iterator[str]:
    """Compare the number of rows of the version that Dagster recorded last with the recorded number."""
    from lance_core.errors import VersionNotFoundError  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.table_life import is_about_another  # noqa: PLC0415 - heavy imports at first use

    # Materializations that were reported by hand name no version.
    events = islice(read_write_events(context.instance, ref.key, _EVENTS), _EVENTS)
    event = next((event for event in events if event.version is not None), None)
    version, rows = (None, None) if event is None else (event.version, event.entry("dagster/row_count"))
    if event is None or version is None or not isinstance(rows, int) or event.branch != dataset.branch:
        return
    if is_about_another(event.data_version, dataset):
        yield (
            f"the last materialization made version {version}, which is not in the table: the table was dropped and"
            " made again, or an old version was restored and this one cleaned up"
        )
        return
    if version > dataset.version:
        yield f"the last materialization made version {version}, and the newest is {dataset.version}"
        return
    try:
        num_rows = dataset.checkout_version(version).count_rows()
    except VersionNotFoundError:
        return  # the version was cleaned up
    if num_rows != rows:
        yield f"version {version} has {num_rows} rows, the materialization recorded {rows}"


def build_lance_primary_key_check(
    asset: TableLike,
    columns: Sequence[str],
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    io_manager_key: str = "io_manager",
) -> dg.AssetChecksDefinition:
    """A check that the values of columns are different in each row, and never null.

    A run of partitions checks only the rows of these partitions, if `asset` is the asset itself or its spec, or
    `partitions_def` is given; the asset's metadata `partition_expr` names the partition column. Any other run checks
    all rows.

    Args:
        asset: The asset, its spec or key.
        columns: The columns of the key; only these are read.
        partitions_def: The asset's partitions. With them Dagster has a result of the check per partition, and runs the
            check only for partitions. This needs a version of Dagster whose checks can have partitions.
        severity: The severity of a failed check.
        blocking: Whether a failed check stops the assets downstream in the same run.
        io_manager_key: The resource that knows where the table is.

    Raises:
        ValueError: `columns` is empty or a string.

    Examples:
        >>> check = lance_dagster.build_lance_primary_key_check("nyc/flights", ["id"])
        >>> [key.name for key in check.check_keys]
        ['lance_primary_key']
    """
    names, ref = list(columns), table_ref(asset)
    if isinstance(columns, str) or not names:
        raise ValueError(f"columns must be a list of names, not {columns!r}")
    options: dict[str, Any] = {} if partitions_def is None else {"partitions_def": partitions_def}
    table_partitions = partitions_def or ref.partitions_def

    description = f"No two rows have the same {', '.join(names)}, and none is null."

    @table_check(ref, "lance_primary_key", description, severity, io_manager_key, blocking=blocking, **options)
    def primary_key(context: dg.AssetCheckExecutionContext) -> Finding | None:
        from lance_core.errors import CorruptFileError, ObjectNotFoundError, StoreError  # noqa: PLC0415 - heavy imports
        from lance_dagster.checks.uniqueness import count_duplicates  # noqa: PLC0415 - heavy imports

        keys = run_partition_keys(context, table_partitions)
        dataset = open_and_record_read(context, ref, io_manager_key, keys)
        if dataset is None:
            return None
        checked_ref = replace(ref.resolved(context), partitions_def=table_partitions)
        try:
            uniqueness = count_duplicates(dataset, names, checked_ref, keys)
        except (ObjectNotFoundError, CorruptFileError, StoreError) as error:
            return _report_unreadable(dataset, error)
        return Finding(
            passed=not uniqueness.duplicates and not uniqueness.nulls,
            description=uniqueness.summary,
            metadata={
                "lance/version": dataset.version,
                "lance/rows_checked": uniqueness.rows,
                "lance/duplicate_rows": uniqueness.duplicates,
                "lance/null_keys": uniqueness.nulls,
            },
        )

    return primary_key


def _report_unreadable(dataset: "lance_core.LanceDataset", error: Exception) -> Finding:
    """The finding of a check that cannot read the table: a file is missing or damaged, or the storage fails."""
    return Finding(
        passed=False,
        description=(
            f"the table cannot be read: {error}. `lance verify {dataset.uri}` lists all files that are missing or "
            "damaged; put them back, restore an older version (`lance restore`), or materialize the asset again"
        ),
        metadata={"lance/version": dataset.version, "lance/problems": 1},
    )


def build_lance_drift_check(
    asset: TableLike,
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
) -> dg.AssetChecksDefinition:
    """A check that Dagster wrote and recorded the newest rows.

    The check fails if, since the last write of a run, others changed the table, or if that write is not recorded in
    Dagster though its run has ended. Versions of maintenance do not count, whoever made them.

    Args:
        asset: The asset, its spec or key.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the table is.

    Examples:
        >>> check = lance_dagster.build_lance_drift_check("nyc/flights")
        >>> [key.name for key in check.check_keys]
        ['lance_drift']
    """
    ref = table_ref(asset)

    description = "Dagster wrote and recorded the newest rows."

    @table_check(ref, "lance_drift", description, severity, io_manager_key)
    def drift(context: dg.AssetCheckExecutionContext) -> Finding | None:
        from lance_dagster.lineage.history import read_history  # noqa: PLC0415 - heavy imports at first use

        dataset = open_and_record_read(context, ref, io_manager_key)
        if dataset is None:
            return None
        foreign, unreported = [], None
        for commit in read_history(dataset, count_changes=False):
            if COLUMN_TYPE in commit.properties or commit.properties.get(BEGUN_EMPTY[0]) == BEGUN_EMPTY[1]:
                continue
            if (commit.run_id or commit.undid) is not None and not commit.is_maintenance:
                unreported = _find_unreported_commit(context, ref, commit, dataset)
                break
            if not commit.is_maintenance and commit.operation != "Clone":  # a branch begins with a Clone
                foreign.append(commit)
        listed = ", ".join(f"{commit.version} ({commit.operation})" for commit in foreign[:_SHOWN])
        problems = [f"versions that Dagster did not write: {listed}"] if foreign else []
        problems += [unreported] if unreported else []
        return Finding(
            passed=not problems,
            description="; ".join(problems) or "Dagster wrote the newest rows",
            metadata={"lance/version": dataset.version, "lance/foreign_versions": len(foreign)},
        )

    return drift


def _find_unreported_commit(
    context: dg.AssetCheckExecutionContext, ref: TableRef, commit: "TableVersion", dataset: "lance_core.LanceDataset"
) -> str | None:
    """The problem with a version of main that a run or an undo made, if Dagster has no event of it; else None.

    A run that is under way, and one that the instance does not know, is no problem. A later version that changed rows
    and was cleaned up is one.
    """
    from lance_dagster.events.reporting import read_recorded_states  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.history import is_change_lost  # noqa: PLC0415 - heavy imports at first use

    if commit.branch is not None or (commit.assets and ref.name not in commit.assets):
        return None
    recorded_version = read_recorded_states(context.instance, ref.key, [], dataset)[None].version
    if is_change_lost(dataset, max(commit.version, recorded_version or 0)):
        return "who wrote the newest rows is not known, as their version was cleaned up"
    if recorded_version is not None and recorded_version >= commit.version:
        return None
    if commit.undid is not None:
        what = f"version {commit.version} undid run {commit.undid}"
        return f"{what}, which Dagster has not recorded: run build_undo_job's job for it"
    run_id = commit.committed_by or commit.run_id
    run = None if run_id is None or run_id == context.run.run_id else context.instance.get_run_by_id(run_id)
    if run is None or not run.is_finished:
        return None
    return f"version {commit.version} was committed by run {run_id}, which ended without reporting it"
