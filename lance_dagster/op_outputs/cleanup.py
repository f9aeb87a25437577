"""Removal of outputs of ops (`store`) that no run can load any more.

The folder {root_uri}/_ops/{run} is kept

- while a run of the same chain of re-executions is not finished, because a re-execution loads the outputs of steps that
  it does not repeat. A run without an event for the age of the policy, but at least a day, counts as killed, because
  Dagster never finishes such a run.
- until the age of the policy has passed since the run ended, or since its newest output if the instance does not know
  the run or its end.
- for ever if the instance does not know the run, as another instance may know it, except with `unknown_runs`.

Uncommitted files of a killed op are removed with the outputs of its run. They are kept if the instance does not know
the run, because it may still be writing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import DatasetNotFoundError
from lance_core.times import ago
from lance_dagster._context.roots import UNFINISHED
from lance_dagster._context.runs import is_silent
from lance_dagster.tables.location import below_root
from lance_dagster.tables.names import RESERVED_FOLDER
from lance_dagster.tables.refs import TableRoot

_RUNS_AT_A_TIME = 100
_SILENT = timedelta(days=1)


@dataclass(slots=True, kw_only=True)
class OpOutputs:
    """The op outputs that a cleanup removed.

    Attributes:
        runs: The number of runs whose outputs were removed, or in a dry run would be.
        tables: The number of tables of these runs.
        bytes: The bytes of the files of the tables' newest versions.
        kept_runs: The number of runs whose outputs are kept.
    """

    runs: int = 0
    tables: int = 0
    bytes: int = 0
    kept_runs: int = 0


def clean_op_outputs(
    instance: dg.DagsterInstance, root: TableRoot, age: timedelta | None, *, dry_run: bool, unknown_runs: bool = False
) -> OpOutputs:
    """Remove the outputs of ops of runs that ended longer ago than an age.

    Args:
        instance: The instance that records the runs.
        root: The root of the tables.
        age: The time for which outputs are kept; None keeps all outputs.
        dry_run: Whether only to count.
        unknown_runs: Whether outputs of runs that the instance does not know are removed as well.
    """
    done = OpOutputs()
    if age is None or not root.root_uri:  # without a root no output of an op can be stored
        return done
    folder = below_root(root.root_uri, RESERVED_FOLDER)
    names = _by_run(lance_core.list_tables(folder, storage_options=root.options))
    uncommitted = _by_run(lance_core.list_tables(folder, storage_options=root.options, unfinished=True))
    for run in uncommitted:
        names.setdefault(run, [])
    records = _records(instance, [_plain(run) for run in names])
    busy = _busy_roots(instance, max(age, _SILENT))
    before = ago(age)
    for run, tables in names.items():
        record = records.get(_plain(run))
        if not unknown_runs if record is None else _root(record.dagster_run) in busy:
            done.kept_runs += 1
            continue
        uris = [below_root(root.root_uri, f"{RESERVED_FOLDER}/{table}") for table in tables]
        datasets = list(_open(uris, root))
        if (record is None and run in uncommitted) or _ended(record, datasets) > before:
            done.kept_runs += 1
            continue
        left = [below_root(root.root_uri, f"{RESERVED_FOLDER}/{table}") for table in uncommitted.get(run, ())]
        done.runs += bool(datasets or left)
        done.tables += len(datasets) + len(left)
        done.bytes += sum(dataset.total_bytes for dataset in datasets)
        if not dry_run:
            # With a version, uncommitted files become a table, which can be dropped like the others.
            nothing = pa.table({"nothing": pa.nulls(0)})
            datasets += [lance_core.write_dataset(nothing, uri, storage_options=root.options) for uri in left]
            _remove(datasets, below_root(root.root_uri, f"{RESERVED_FOLDER}/{run}"), root)
    return done


def _ended(record: dg.RunRecord | None, tables: Sequence[lance_core.LanceDataset]) -> datetime:
    """When a run ended, or when its newest output was written; the far past if neither is known."""
    if record is not None and record.end_time is not None:
        return datetime.fromtimestamp(record.end_time, UTC)
    if tables:
        return max(table.timestamp for table in tables)
    return datetime.min.replace(tzinfo=UTC) if record is None else record.update_timestamp.replace(tzinfo=UTC)


def _by_run(tables: Sequence[str]) -> dict[str, list[str]]:
    """Tables by the name of the folder of their run."""
    tables_by_run: dict[str, list[str]] = {}
    for table in tables:
        tables_by_run.setdefault(table.split("/")[0], []).append(table)
    return tables_by_run


def _plain(segment: str) -> str:
    """The name from which a folder's name was encoded; see `store`."""
    return re.sub(rb"=([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), segment.encode()).decode(
        errors="replace"
    )


def _records(instance: dg.DagsterInstance, runs: Sequence[str]) -> dict[str, dg.RunRecord]:
    """The instance's records of runs."""
    records = {}
    for start in range(0, len(runs), _RUNS_AT_A_TIME):
        runs_filter = dg.RunsFilter(run_ids=list(runs[start : start + _RUNS_AT_A_TIME]))
        records.update({record.dagster_run.run_id: record for record in instance.get_run_records(filters=runs_filter)})
    return records


def _busy_roots(instance: dg.DagsterInstance, silent: timedelta) -> set[str]:
    """The root runs of chains of re-executions with an unfinished run."""
    records = instance.get_run_records(filters=dg.RunsFilter(statuses=UNFINISHED))
    return {_root(record.dagster_run) for record in records if not is_silent(instance, record, silent)}


def _root(run: dg.DagsterRun) -> str:
    return run.root_run_id or run.run_id


def _open(uris: Sequence[str], root: TableRoot) -> Iterator[lance_core.LanceDataset]:
    for uri in uris:
        with suppress(DatasetNotFoundError):  # another cleanup is running, or only folders are left
            yield lance_core.dataset(uri, storage_options=root.options)


def _remove(tables: Sequence[lance_core.LanceDataset], run_folder: str, root: TableRoot) -> None:
    for table in tables:
        with suppress(DatasetNotFoundError):  # another cleanup is running
            lance_core.LanceDataset.drop(table.uri, storage_options=root.options)
    # On object storage there are no folders, and no local folder has this name.
    for folder, _, _ in os.walk(run_folder.removeprefix("file://"), topdown=False):
        with suppress(OSError):  # not empty, or deleted by another process
            os.rmdir(folder)  # noqa: PTH106 - as walk gives it
