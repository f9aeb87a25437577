"""The log of maintenance: `{root}/_maintenance/log.lance`, to which each run appends its reports in one commit.

run_id, job, time          the run, and when it was recorded
table, uri                 the table: its name in the job, which can differ by job, and its URI, which identifies it
step                       one of `run.STEPS`, such as commit or clean_up; "table": the table as a whole
outcome                    of the table: done, partly done, put off, healthy, skipped or failed; null in rows of steps
version_before, version_after   of the step, or of all steps of the run
bytes_read, bytes_written  the bytes of the data files that were rewritten, and of those that replace them; for indices
                           the bytes by which they grew, and no bytes read
files_removed, bytes_removed    by cleanup
seconds                    the time that the step, or the table, took
reason                     why the table failed or was skipped, or what was put off; null if all was done
fragments, rows, deleted_rows, bytes, versions, unindexed   the table afterwards; null in rows of steps
index_work                 JSON: what was done for declared indices, with measured recall, its settings, rows and time;
                           null in rows of steps, and where nothing was done
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import DatasetNotFoundError
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.maintenance.routine.report import MaintenanceReport
from lance_core.maintenance.routine.run import finish
from lance_core.maintenance.routine.survey import survey_table
from lance_core.retry import CONFLICT_RETRIES, RETRY_TIMEOUT
from lance_core.store import canonical_uri
from lance_core.times import ago
from lance_core.verbs.columns.add import add_null_columns, lacking_fields
from lance_core.verbs.context.handle import Handle, resolve_target, retry_on_latest
from lance_core.verbs.rows.delete import delete_rows
from lance_core.verbs.scan.options import scan_options
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.write.write_version import WriteOptions, write_version

LOG_FOLDER: Final = "_maintenance"
"""The folder below a root that holds the log of maintenance."""

LOG_PATH: Final = f"{LOG_FOLDER}/log.lance"
LOG_WHOLE_TABLE: Final = "table"
"""The step of the row that sums up a table."""

LOG_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("job", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        *((name, pa.string()) for name in ("table", "uri", "step", "outcome")),
        *((name, pa.int64()) for name in ("version_before", "version_after", "bytes_read", "bytes_written")),
        *((name, pa.int64()) for name in ("files_removed", "bytes_removed")),
        ("seconds", pa.float64()),
        ("reason", pa.string()),
        *((name, pa.int64()) for name in ("fragments", "rows", "deleted_rows", "bytes", "versions")),
        ("unindexed", pa.float64()),
        ("index_work", pa.string()),
    ]
)


def append_log(
    root_uri: str,
    reports: Sequence[MaintenanceReport],
    policy: MaintenancePolicy,
    *,
    run_id: str,
    job: str,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Append the reports of a run to the log of a root in one commit, and keep the log itself small.

    Reports of dry runs, and of tables that were dropped before anything was done, are left out.

    Args:
        root_uri: The root below which the log is.
        reports: One report per table.
        policy: The policy by which the log is compacted, cleaned up and shortened.
        run_id: The run.
        job: The name of its job.
        storage_options: The options by which the root is reached.
    """
    common = {"time": datetime.now(UTC), "run_id": run_id, "job": job}
    logged = [report for report in reports if not (report.plan.policy.dry_run or report.outcome == "absent")]
    rows = [{**common, **row} for report in logged for row in _make_rows(report)]
    if not rows:
        return
    target = resolve_target(place_below(root_uri, LOG_PATH), storage_options)
    with contextlib.suppress(DatasetNotFoundError):
        _add_new_columns(Handle(target.uri, storage_options=storage_options))
    written = write_version(pa.Table.from_pylist(rows, schema=LOG_SCHEMA), None, target, WriteOptions.of("append", {}))
    log = Handle(written.uri, storage_options=written.options, manifest=written.base)
    _delete_old(log, policy.age_of_log)
    report = survey_table(log, policy.without_columns())
    if report.plan.problems or report.plan.cleanup_due:
        finish(report, lambda: log)


def _add_new_columns(log: Handle) -> None:
    """Add the columns that the log of an earlier release lacks."""
    fields = lacking_fields(log.snapshot.manifest.schema, LOG_SCHEMA)
    if fields:
        retry_on_latest(log.snapshot, lambda snapshot: add_null_columns(snapshot, fields))


def place_below(root_uri: str, path: str) -> str:
    """The URI of a path below a root; what follows a "?" in the root stays at the end."""
    place, mark, query = root_uri.partition("?")
    return f"{place.rstrip('/')}/{path}{mark}{query}"


def _make_rows(report: MaintenanceReport) -> Iterator[dict[str, Any]]:
    """The rows of a table: one for each step that changed something, and one for the table."""
    names = {"table": report.plan.table, "uri": canonical_uri(report.plan.uri)}
    yield from ({**names, **asdict(step)} for step in report.steps)
    before, after = report.plan.health, report.after or (None if report.was_dropped else report.plan.health)
    counts = {
        name: report.done.get(name, 0) for name in ("bytes_read", "bytes_written", "files_removed", "bytes_removed")
    }
    numbers = {} if after is None else {**after.numbers(), "unindexed": after.unindexed_fraction}
    yield {
        **names,
        **counts,
        **numbers,
        "step": LOG_WHOLE_TABLE,
        "outcome": report.outcome,
        "version_before": None if before is None else before.version,
        "version_after": report.version_after,
        "seconds": report.seconds,
        "reason": report.reason,
        "index_work": json.dumps(report.indices) if report.indices else None,
    }


def _delete_old(log: Handle, age: timedelta | None) -> None:
    """Delete rows older than `age` if they are more than a tenth of the log, because each deletion is a version."""
    if age is None:
        return
    old = f"time < timestamp '{ago(age).replace(tzinfo=None).isoformat(' ', 'seconds')}'"
    if read_log(log, ["time"], old).num_rows * 10 > read_log(log, ["time"]).num_rows:
        log.move_to(delete_rows(log.snapshot, old, conflict_retries=CONFLICT_RETRIES, retry_timeout=RETRY_TIMEOUT)[0])


def read_log(log: Handle, columns: Sequence[str] | None = None, condition: str | None = None) -> pa.Table:
    """Read rows of the log.

    Args:
        log: The log.
        columns: The columns; None for all.
        condition: An SQL expression; None for all rows.
    """
    manifest = log.snapshot.manifest
    options = scan_options(manifest, None if columns is None else list(columns), condition)
    return LanceScanner(log.snapshot, manifest.fragments, options).to_table()


def find_tables_put_off(log: Handle) -> set[str]:
    """The URIs of tables whose newest record has steps that were put off, but no failure."""
    records = read_log(log, ["uri", "time", "outcome", "reason"], f"step = '{LOG_WHOLE_TABLE}'")
    newest = records.group_by("uri").aggregate([("time", "max")]).rename_columns(["uri", "time"])
    last = records.join(newest, ["uri", "time"], join_type="inner")
    is_put_off = pc.and_(pc.is_valid(last["reason"]), pc.not_equal(last["outcome"], "failed"))
    return set(last["uri"].filter(is_put_off).to_pylist())
