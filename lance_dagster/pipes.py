"""Commits of external processes, such as Spark jobs, that Dagster starts through Dagster Pipes.

    with open_dagster_pipes() as pipes:
        table = pyspark_lance.write(df, uri, transaction_properties=commit_properties(pipes)).dataset
        report_commit(pipes, table)

The commit then identifies its run like commits of `LanceIOManager`, and the materialization has the same entries. The
properties are for one write and its attempts: `lance_core.write_dataset` and `pyspark_lance.write` replace the commits
of earlier attempts of the step. If the orchestration code passes the extras of `LanceTableResource.pipes_extras()`,
this holds for re-executions of the run as well. The process needs `dagster-pipes`, but not Dagster
(`pip install 'lance-dagster[pipes]'`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lance_core
from lance_core.errors import InvalidInputError
from lance_dagster import properties as prop
from lance_dagster.events.layout import describe_columns, describe_version, split_entries
from lance_dagster.events.table_log import read_recent_versions, render_table_log
from lance_dagster.io_manager.process_attempts import EXTRAS_KEY, PipesAttemptProperties
from lance_dagster.lineage.history import compute_data_version, input_entry, input_record, read_history
from lance_dagster.tables.event_keys import COMMIT

if TYPE_CHECKING:
    from dagster_pipes import PipesContext

__all__ = ["commit_properties", "report_commit"]


def commit_properties(
    context: PipesContext, *, asset_key: str | None = None, inputs: Mapping[str, lance_core.LanceDataset] | None = None
) -> PipesAttemptProperties:
    """The transaction properties that identify the run of a commit, and the write of which it is an attempt.

    A step that writes to one asset's table by several commits must pass these properties only to the first: a second
    write with them counts as an attempt of the same write.

    Args:
        context: The result of `open_dagster_pipes` or `PipesContext.get()`.
        asset_key: The asset, parts joined by slashes; required if the session is for several assets.
        inputs: The tables that were read, each at its version, by asset key.

    Raises:
        InvalidInputError: The session is for several assets, and `asset_key` is not given.
    """
    asset = _asset(context, asset_key)
    optional_properties: dict[str, str | None] = {
        prop.RUN_ID: context.run_id,
        prop.JOB_NAME: context.job_name,
        prop.ASSET_KEY: asset,
        prop.ATTEMPT: str(context.retry_number),
        prop.CODE_VERSION: context.code_version_by_asset_key.get(asset) if asset and context.is_asset_step else None,
        **_partitions(context),
    }
    properties = {key: value for key, value in optional_properties.items() if value is not None}
    entries = {prop.INPUT_PREFIX + key: json.dumps(input_entry(table)) for key, table in (inputs or {}).items()}
    extras = context.extras.get(EXTRAS_KEY)
    return PipesAttemptProperties({**properties, **entries}, extras or {}, int(context.retry_number))


def report_commit(
    context: PipesContext,
    dataset: lance_core.LanceDataset,
    *,
    asset_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    ui_url: str = "",
) -> None:
    """Report a commit as the materialization of an asset.

    Args:
        context: The result of `open_dagster_pipes` or `PipesContext.get()`.
        dataset: The table at the version that was committed.
        asset_key: The asset; required if the session is for several assets.
        metadata: Further entries.
        ui_url: URL of the Dagster UI, if it is not at the root of its host; links to runs begin with it.

    Raises:
        InvalidInputError: The session is for several assets, and `asset_key` is not given.
    """
    entries = {**_entries(dataset, ui_url), **(metadata or {})}
    context.report_asset_materialization(
        metadata=entries, data_version=compute_data_version(dataset), asset_key=_asset(context, asset_key)
    )


def _entries(dataset: lance_core.LanceDataset, ui_url: str) -> dict[str, Any]:
    """The entries of the event, the same as in events of `LanceIOManager`."""
    versions, newest = read_recent_versions(dataset), next(read_history(dataset), None)
    created = newest is not None and newest.operation == "Overwrite" and newest.version == 1
    inputs = [input_record(input_table) for input_table in newest.inputs] if newest is not None else []
    columns = [
        {"name": name, "type": kind, "constraints": {"nullable": nullable}, "tags": dict(tags)}
        for name, kind, nullable, tags in describe_columns(dataset.schema)
    ]
    optional_entries: dict[str, Any] = {
        **describe_version(dataset),
        "lance/rows_written": newest.rows_added if newest is not None else None,
        "lance/rows_deleted": (newest.rows_removed or None) if newest is not None else None,
        "lance/operation": "Create" if created else newest.operation if newest is not None else None,
        "lance/branch": dataset.branch,
        "lance/published": None if dataset.branch is None else False,
        "lance/inputs": _typed("json", inputs) if inputs else None,
        "dagster/column_schema": _typed("table_schema", {"columns": columns}),
        "dagster/uri": dataset.uri,
        "lance/table_log": _typed("md", render_table_log(dataset, versions, ui_url=ui_url)),
        "lance/fragments": len(dataset.fragment_ids()),
    }
    shown, rest = split_entries({key: value for key, value in optional_entries.items() if value is not None})
    rest = {key: value["raw_value"] if isinstance(value, dict) else value for key, value in rest.items()}
    return {**shown, COMMIT: _typed("json", rest)}


def _typed(kind: str, value: Any) -> dict[str, Any]:
    """A metadata value with an explicit type, for Dagster Pipes."""
    return {"raw_value": value, "type": kind}


def _asset(context: PipesContext, asset_key: str | None) -> str | None:
    """The asset of a commit; None in an op without assets."""
    if asset_key is not None or not context.is_asset_step:
        return asset_key
    keys = list(context.asset_keys)
    if len(keys) != 1:
        raise InvalidInputError(f"the session is for the assets {', '.join(keys)}; name one by asset_key")
    return str(keys[0])


def _partitions(context: PipesContext) -> dict[str, str | None]:
    if not context.is_partition_step:
        return {}
    span = context.partition_key_range
    if span["start"] != span["end"]:
        return {prop.PARTITION_KEYS: json.dumps({"first": span["start"], "last": span["end"]})}
    keys = json.dumps([span["start"]])
    return {prop.PARTITION_KEYS: keys, prop.PARTITION_HASH: prop.hashed(keys)}
