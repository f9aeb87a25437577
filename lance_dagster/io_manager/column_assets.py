"""Writes of column assets, which own columns of another asset's table; `ownership` checks the owners.

    column of the table       owner                                       recorded
    -------------------       -----                                       --------
    written with the rows     the asset that writes the rows              nowhere
    added by a column asset   that column asset                           in the metadata of the column's field

Commits of a column asset have the property `dagster.columns`, so that they do not count as writes of rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core.errors import DatasetNotFoundError, InvalidInputError, SchemaError, VersionNotFoundError
from lance_dagster.branches.writing import ensure_branch
from lance_dagster.events.materialization import column_schema
from lance_dagster.handlers import LanceTypeHandler
from lance_dagster.handlers import columns as column_writes
from lance_dagster.handlers.base import ROW_NAMES, WriteRequest
from lance_dagster.handlers.computed import ComputedHandler
from lance_dagster.io_manager.output import TableOutput
from lance_dagster.io_manager.ownership import check_column_owners
from lance_dagster.lineage.step_inputs import loaded_rows
from lance_dagster.properties import COLUMN_TYPE, COLUMNS
from lance_dagster.tables.location import TABLE_KEY
from lance_dagster.tables.names import plain_metadata


def reject_without_table(output: TableOutput) -> None:
    """Reject columns of a table that does not exist.

    Raises:
        DatasetNotFoundError: There is no table.
    """
    if output.existing is None:
        raise DatasetNotFoundError(
            f"there is no table at {output.location.uri}; materialize asset "
            f"{plain_metadata(output.metadata[TABLE_KEY])} first, which writes it"
        )


def check_still_column_owner(output: TableOutput, dataset: lance_core.LanceDataset) -> None:
    """Reject a column that another asset added at the same time.

    Raises:
        DagsterInvalidDefinitionError: Another asset has added the column, which now holds the values of both assets.
    """
    try:
        check_column_owners(replace(output, existing=dataset))
    except dg.DagsterInvalidDefinitionError as error:
        raise dg.DagsterInvalidDefinitionError(
            f"{error}. Both assets added it at the same time, and version {dataset.version} has the values of both: "
            "drop the column, and materialize both assets again"
        ) from error


def at_read_version(output: TableOutput) -> lance_core.LanceDataset:
    """The version whose rows the value identifies: the version of the step's input if it does so by row address.

    A `_rowid` counts as a row address in a table without stable row ids.

    Raises:
        SchemaError: The value identifies rows by address, and the step has not loaded the table on the same branch.
    """
    existing = output.existing
    assert existing is not None
    named = next((name for name in ROW_NAMES if name in output.frame.names), None)
    if named is None or (named == "_rowid" and existing.has_stable_row_ids):
        return existing
    read = _inputs_of_table(output, existing)
    if read and read[0].get("branch") == existing.branch:
        return existing.checkout_version((existing.branch, read[0]["version"]))
    if (
        read
        and existing.branch is not None
        and read[0].get("branch") is None
        and existing.version == read[0]["version"]
    ):
        return existing  # the branch was forked from that version, and has no commit yet
    raise SchemaError(
        f"column {named!r} of the output identifies rows of an unknown version: the step loads the table "
        f"{existing.root_uri} {'on another branch' if read else 'by no input'}. Drop the column, and identify rows by "
        "lance/key"
    )


def _inputs_of_table(output: TableOutput, table: lance_core.LanceDataset) -> list[dict[str, Any]]:
    """The versions of a table that the step has loaded as inputs."""
    return [table_input for table_input in output.inputs if table_input["uri"] == table.root_uri]


def _read_version(output: TableOutput) -> lance_core.LanceDataset | None:
    """The version of the table that the step has loaded, on the same branch; None if unknown or removed."""
    existing = output.existing
    assert existing is not None
    for table_input in _inputs_of_table(output, existing)[:1]:
        if table_input.get("branch") == existing.branch:
            with suppress(VersionNotFoundError):
                return existing.checkout_version((existing.branch, table_input["version"]))
    return None


def write_columns_of(output: TableOutput, handler: LanceTypeHandler, obj: Any) -> lance_core.WriteResult | None:
    """Set columns of the table of another asset.

    Rows that were deleted since the step read them are left out, as if they had been deleted after the write.
    """
    request = columns_request(output, handler)
    try:
        outcome = handler.write(obj, request)
    except InvalidInputError as error:
        if request.loaded is None or "of the scope" not in str(error):
            raise
        raise InvalidInputError(
            f"{error}. With lance/missing: null the scope has only rows that the inputs of the step have loaded; give "
            "the asset lance/missing: keep to set other rows, too"
        ) from error
    if isinstance(outcome, column_writes.ColumnsWritten) and outcome.left_out:
        assert request.read is not None
        output.context.log.warning(
            "%s: rows deleted since version %d of %s, which the step has read, are left out (at most %d keys)",
            output.label, request.read.version, output.uri, outcome.left_out,
        )  # fmt: skip
    return outcome


def columns_request(output: TableOutput, handler: LanceTypeHandler) -> WriteRequest:
    """The write that sets columns of the table of another asset."""
    read = _read_version(output)
    if not isinstance(handler, ComputedHandler):  # it finds its rows itself
        output = replace(output, existing=at_read_version(output))
    assert output.existing is not None
    slices, settings = output.plan_slices(output.existing.schema), output.settings
    if output.attempts.versions and settings.empty_output == "skip":
        settings = replace(settings, empty_output="write")  # so that values of earlier attempts are set to null
    request = output.write_request("columns", slices, settings)
    columns = {COLUMNS: json.dumps(column_writes.set_columns(output.frame.names, settings.row_key))}
    properties = {**(request.commit.properties or {}), **columns}
    request = request.with_attempt(earlier=output.attempts.versions, on_earlier_attempt=settings.on_earlier_attempt)
    return replace(request.changed_commit(properties=properties), read=read, loaded=_loaded_rows(output))


def _loaded_rows(output: TableOutput) -> pc.Expression | None:
    """The rows that may be set to null where the output lacks them: those that the step has loaded; None for all.

    Raises:
        DagsterInvalidDefinitionError: The step has loaded changes, which are no rows of a condition.
    """
    assert output.existing is not None
    uri = output.existing.root_uri
    if output.settings.missing != "null":
        return None
    for changes in output.changes:
        if changes.dataset.root_uri == uri and changes.begin_version > 0:
            raise dg.DagsterInvalidDefinitionError(
                f"{output.label}: its input loads changes of {uri} alone, and lance/missing: null would set the cells "
                "of all other rows to null; nothing was written. Give the asset the metadata lance/missing: keep"
            )
    return loaded_rows(output.step, uri)


def prepare_branch_for_columns(output: TableOutput, main: lance_core.LanceDataset | None) -> TableOutput:
    """Add columns that the table lacks to main, fork the branch, and return the output on it.

    Thus branches that are forked concurrently, and set the same new column, can all be promoted. If the branch exists
    already and lacks the column, the write adds it to the branch, and the promotion adds it to main.

    Args:
        output: The output.
        main: The newest version of main.

    Raises:
        DatasetNotFoundError: There is no table.
        SchemaError: The output or the table lacks the key.
    """
    reject_without_table(output)
    assert output.existing is not None
    key, table = (
        column_writes.choose_matching_columns(output.frame.names, output.settings.row_key),
        output.existing.schema,
    )
    if not {name.lower() for name in key} <= {name.lower() for name in (*table.names, *ROW_NAMES)}:  # Spark's names
        column_writes.key_fields(key, table)
    if output.branch is None:
        return output
    check_column_owners(output)
    assert main is not None
    request = replace(output, existing=main).write_request("columns", None, output.settings)
    stored = column_writes.align_columns_to_set(output.frame, request)
    if output.branch not in main.branches.list():
        _add(main, [field for field in stored if field.name not in main.schema.names])
    return replace(output, existing=ensure_branch(main, output.branch))


def _add(main: lance_core.LanceDataset, fields: Sequence[pa.Field]) -> None:
    if not fields:
        return
    said = f"without values: {', '.join(field.name for field in fields)}"
    schema = pa.schema([*main.schema, *fields])
    lance_core.commit_fragments(
        main, [], schema, add_columns=True, commit=lance_core.Commit(properties={COLUMN_TYPE: said})
    )
    main.checkout_latest()


def column_entries(output: TableOutput, outcome: lance_core.WriteResult) -> dict[str, Any]:
    """The entries of a materialization that are about columns."""
    before = () if output.existing is None else output.existing.schema.names
    names = column_writes.set_columns(output.frame.names, output.settings.row_key)
    added = [name for name in names if name not in before]
    nulled = (outcome.rows_updated or 0) - outcome.rows_written
    schema = outcome.dataset.schema
    asset_schema = pa.schema([field for field in schema if field.name in {*names, *output.settings.row_key}])
    entries: dict[str, Any] = {
        "lance/columns": dg.MetadataValue.json(names),
        "lance/rows_nulled": nulled,
        "dagster/column_schema": column_schema(asset_schema),
    }
    entries |= {"lance/columns_added": dg.MetadataValue.json(added)} if added else {}
    return entries | (dict(outcome.entries) if isinstance(outcome, column_writes.ColumnsWritten) else {})
