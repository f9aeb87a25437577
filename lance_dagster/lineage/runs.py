"""Lineage: the runs that made versions of tables, and the versions that they read, from the tables alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import lance_core
from lance_core.errors import DatasetNotFoundError, LanceError
from lance_core.maintenance import find_tables as find_tables_below
from lance_dagster.lineage.history import TableVersion, input_record, read_history
from lance_dagster.properties import ROOT_RUN_ID, split_values
from lance_dagster.tables.names import RESERVED

_SHOWN: Final = 5
_AHEAD: Final = 32
"""The number of versions that are read at once, because all of them are needed."""


def find_tables(
    root_or_table: str, storage_options: Mapping[str, str] | None, namespace: Mapping[str, str] | None = None
) -> list[tuple[lance_core.LanceDataset, str | None]]:
    """The table at a URI, or all tables below it but outputs of ops and the log of maintenance; and their names.

    The name is the path below the root, or the id, with slashes between its parts; None for the table at a URI.

    Args:
        root_or_table: The URI; of a namespace the id of a table, or a prefix of ids; empty for all tables.
        storage_options: The options by which the storage is reached.
        namespace: The properties of a namespace of others, whose tables are looked at; None for none.

    Raises:
        DatasetNotFoundError: There is no table at the URI or below it.
    """
    if namespace is not None:
        name = root_or_table.strip("/")
        listed = find_tables_below(storage_options=storage_options, namespace=namespace)
        chosen = [table for table in listed if not name or any(f"{n}/".startswith(f"{name}/") for n in table.names)]
        if not chosen:
            raise DatasetNotFoundError(f"the namespace has no table {name or 'with a version'}, and none below it")
        return [(lance_core.dataset(each.uri, storage_options=each.storage_options), each.name) for each in chosen]
    try:
        return [(lance_core.dataset(root_or_table, storage_options=storage_options), None)]
    except DatasetNotFoundError:
        tables = find_tables_below(root_or_table, storage_options=storage_options)
    tables = [table for table in tables if not table.path.startswith(RESERVED)]
    if not tables:
        raise DatasetNotFoundError(
            f"there is no Lance table at {root_or_table}, and none below it; give the URI of a table or of its root"
        )
    return [(lance_core.dataset(each.uri, storage_options=storage_options), each.name) for each in tables]


class NoSuchRunError(LanceError, LookupError):
    """No commit names a run whose id begins with a string, or several runs have such an id."""

    code = "no-such-run"


def find_run(tables: Iterable[lance_core.LanceDataset], beginning: str, *, label: str) -> str:
    """The id of a run that begins with a string, among the runs that commits of tables and branches name.

    Args:
        tables: The tables whose history is searched.
        beginning: The id, or a prefix of it that no other run has.
        label: The tables, for messages.

    Raises:
        NoSuchRunError: No run has such an id, or several runs have.
    """
    tables, run_ids = list(tables), set[str]()
    for table in tables:
        for branch in open_branches(table):
            for commit in read_history(branch, count_changes=False, ahead=_AHEAD):
                roots = split_values(commit.properties.get(ROOT_RUN_ID))
                runs = {run for run in (*commit.writers, commit.committed_by, *roots) if run is not None}
                if beginning in runs:
                    return beginning
                run_ids |= {run for run in runs if beginning and run.startswith(beginning)}
    if len(run_ids) == 1:
        return run_ids.pop()
    if run_ids:
        listed = ", ".join(sorted(run_ids)[:_SHOWN])
        raise NoSuchRunError(f"several runs begin with {beginning!r}: {listed}; give more of the id")
    raise NoSuchRunError(f"no such run: no commit of {label} names a run {beginning!r}{_cleaned_up(tables)}")


def _cleaned_up(tables: Iterable[lance_core.LanceDataset]) -> str:
    """For messages: the tables whose versions were cleaned up, so that their runs are unknown."""
    oldest = {table.root_uri: table.version_refs()[0]["version"] for table in tables}
    cleaned = [f"{uri} before {version}" for uri, version in sorted(oldest.items()) if version > 1]
    return f"; versions were cleaned up, with the names of their runs: {', '.join(cleaned)}" if cleaned else ""


def open_branches(table: lance_core.LanceDataset) -> Iterator[lance_core.LanceDataset]:
    """The newest version of main and of each branch."""
    yield table
    for name in sorted(table.branches.list()):
        yield table.checkout_version((name, None))


def lineage(
    tables: list[lance_core.LanceDataset],
    *,
    run_id: str | None = None,
    version: int | None = None,
    asset: str | None = None,
) -> list[dict[str, Any]]:
    """Facts about versions, oldest first within each table and branch.

    Args:
        tables: The tables; their branches are searched, too.
        run_id: Only versions that this run wrote or promoted, or that a run did whose root run it is.
        version: Only this version.
        asset: Only versions that were made for this asset.
    """
    facts = []
    for table in tables:
        for branch in open_branches(table):
            selected_commits = [
                commit
                for commit in read_history(branch, count_changes=False, ahead=_AHEAD)
                if (run_id is None or commit.is_of(run_id))
                and version in (None, commit.version)
                and (asset is None or asset in commit.assets)
            ]
            facts += [_entry(table, commit) for commit in reversed(selected_commits)]
    return facts


def versions_of_run(branch: lance_core.LanceDataset, run_id: str) -> list[TableVersion]:
    """The versions of a branch in which a run changed rows, oldest first."""
    newest_first = [
        commit
        for commit in read_history(branch, count_changes=False, ahead=_AHEAD)
        if commit.changes_rows and run_id in (*commit.writers, commit.committed_by)
    ]
    return newest_first[::-1]


def without_changes(branches: Iterable[lance_core.LanceDataset], run_id: str) -> str:
    """The reason why a run changed no rows: its commits are maintenance, or its re-executions wrote instead.

    Args:
        branches: The newest versions of main and of branches.
        run_id: The run.
    """
    reexecutions: dict[str, None] = {}
    for branch in branches:
        for commit in read_history(branch, count_changes=False, ahead=_AHEAD):
            if commit.changes_rows and run_id in split_values(commit.properties.get(ROOT_RUN_ID)):
                reexecutions |= dict.fromkeys([commit.run_id] if commit.run_id is not None else commit.writers)
    if reexecutions:
        return f"run {run_id} wrote nothing itself; undo run {' or '.join(reexecutions)}, which re-executed it"
    return f"run {run_id} changed no rows of these tables: its commits are maintenance"


def _entry(table: lance_core.LanceDataset, version: TableVersion) -> dict[str, Any]:
    return {
        "table": table.root_uri,
        "asset": version.asset,
        "branch": version.branch or "main",
        "version": version.version,
        "operation": version.operation,
        "run_id": version.run_id,
        "time": version.time.isoformat(),
        "partitions": version.partitions,
        "inputs": [input_record(read) for read in version.inputs],
    }
