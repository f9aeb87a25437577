"""Ownership of tables and columns: a write to a table or column of another asset is rejected.

Commits name the asset for which they were made. If an asset's table has commits of another asset, its write is rejected
before anything is written, unless its metadata `lance/shared_table` is True: several assets write to the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

import dagster as dg

import lance_core
from lance_core.errors import DatasetNotFoundError
from lance_dagster._context.steps import metadata_of_asset, other_assets, process_executor
from lance_dagster.handlers.arrow_schema import owners
from lance_dagster.handlers.base import ROW_NAMES
from lance_dagster.io_manager.output import TableOutput
from lance_dagster.lineage.history import owner_of, owning_commits, writers_of_rows
from lance_dagster.properties import ASSET_KEY, COLUMNS, SLICES, partition_names, properties_of, split_values
from lance_dagster.tables.location import SHARED_KEY, TABLE_KEY, is_shared, locate_table
from lance_dagster.tables.partitions import partition_columns
from lance_dagster.tables.refs import TableRef
from lance_dagster.tables.settings import OutputSettings, TableSettings

_MEMORY: Final = ("memory", "shared-memory")
_AHEAD: Final = 8
"""The number of versions that are read at once to find the commit that added a column."""
_OLD_PARTS: Final = 2
"""The number of last parts of a key by which earlier releases located tables."""


def _check_owner(
    dataset: lance_core.LanceDataset, asset_key: dg.AssetKey, metadata: Mapping[str, object], label: str
) -> None:
    """Reject a table that was written for another asset.

    Args:
        dataset: The newest version of the table.
        asset_key: The asset.
        metadata: Its definition metadata.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: The table was written for another asset.
    """
    if is_shared(metadata, label):
        return
    owner = owner_of(dataset)
    if owner is None or asset_key.to_user_string() in owner.assets:
        return
    raise dg.DagsterInvalidDefinitionError(
        f"{label}: the table {dataset.root_uri} belongs to asset {', '.join(owner.assets)}, which wrote version "
        f'{owner.version}. Give one of the assets the metadata "schema" or "table" with another table. If several '
        f'assets are meant to write to it, or the asset was renamed, give it the metadata {{"{SHARED_KEY}": True}}'
    )


def check_ownership(
    dataset: lance_core.LanceDataset | None,
    asset_key: dg.AssetKey,
    metadata: Mapping[str, object],
    settings: TableSettings,
    label: str,
) -> None:
    """Reject a table that belongs to another asset, and a missing table that an earlier release stored elsewhere.

    Raises:
        DagsterInvalidDefinitionError: The table was written for another asset; or it does not exist, and exists where
            an earlier release stored it.
    """
    if dataset is not None:
        _check_owner(dataset, asset_key, metadata, label)
    else:
        _check_old_place(asset_key, metadata, settings, label)


def check_still_owner(
    dataset: lance_core.LanceDataset, asset_key: dg.AssetKey, metadata: Mapping[str, object], label: str
) -> None:
    """Reject a table that was created for another asset while this asset wrote its first rows.

    Args:
        dataset: The version that was committed.
        asset_key: The asset.
        metadata: Its definition metadata.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: The table was created for another asset, and has the rows of both.
    """
    if dataset.version == 1 or is_shared(metadata, label):
        return
    asset = asset_key.to_user_string()
    for commit in owning_commits(dataset):
        if asset not in commit.assets:
            raise dg.DagsterInvalidDefinitionError(
                f"{label}: version {commit.version} of its table {dataset.root_uri} was written at the same time for "
                f"asset {', '.join(commit.assets)}, and version {dataset.version} has the rows of both. Give one of "
                'them the metadata "schema" or "table" with another table, drop this table, and materialize both again'
            )


def check_mode(settings: OutputSettings, metadata: Mapping[str, object], label: str) -> None:
    """Reject the write mode `columns` without `lance/table`, and `lance/table` with any other write mode.

    Raises:
        DagsterInvalidDefinitionError: Only one of the two is given.
    """
    if (settings.write_mode == "columns") == (TABLE_KEY in metadata):
        return
    if settings.write_mode == "columns":
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: write_mode columns needs the table whose columns are set: metadata "
            f'{{"{TABLE_KEY}": "key of the asset that writes its rows"}}'
        )
    raise dg.DagsterInvalidDefinitionError(
        f'{label}: metadata {TABLE_KEY} is for "lance/write_mode": "columns", not {settings.write_mode}; use the '
        'metadata "schema" and "table" to locate a table of its own'
    )


def check_column_owners(output: TableOutput) -> None:
    """Reject columns of the output that belong to another asset.

    Raises:
        DagsterInvalidDefinitionError: A column belongs to another asset, or a column asset sets a partition column.
    """
    if output.existing is None:
        return
    if output.sets_columns:
        _check_partition_columns(output, output.existing)
    if is_shared(output.metadata, output.label):
        return
    schema, asset = output.existing.schema, output.context.asset_key.to_user_string()
    owner_by_column, sets_columns = owners(schema), output.sets_columns
    names_of_rows = (*ROW_NAMES, *output.settings.row_key) if sets_columns else ()
    for name in [name for name in output.frame.names if name not in names_of_rows]:
        owner = owner_by_column.get(name)
        if owner == asset or name not in schema.names or (owner is None and not sets_columns):
            continue
        if owner is not None and not _has_added(output.existing, name, owner):
            if not sets_columns:
                continue
            owner = None
        whose = f"asset {owner}" if owner is not None else "the asset that writes the rows"
        raise dg.DagsterInvalidDefinitionError(
            f"{output.label}: column {name!r} of {output.location.uri} belongs to {whose}; return a frame without it, "
            f'or rename it. If both assets are meant to set it, give the asset the metadata {{"{SHARED_KEY}": True}}'
        )


def reject_rows_of_others(output: TableOutput) -> None:
    """Reject the overwrite of rows of other assets, which write to the table as well.

    Raises:
        DagsterInvalidDefinitionError: Another asset has rows of the partitions; or the asset has no partitions, so that
            it would delete the other assets' rows, or may.
    """
    if output.settings.write_mode != "overwrite" or not is_shared(output.metadata, output.label):
        return
    table, asset = output.existing, output.context.asset_key.to_user_string()
    if output.keys is not None:
        other = None if table is None else next(_find_writers_of_partitions(table, asset, {*output.keys}), None)
        slices = None if table is None or other is None else output.plan_slices(table.schema)
        if table is not None and slices is not None and table.count_rows(filter=slices.expression(table.schema)):
            raise dg.DagsterInvalidDefinitionError(
                f"{output.label}: asset {other} has written to the run's partitions of {output.location.uri} "
                f"({SHARED_KEY}), and write_mode overwrite replaces all their rows. Set lance/write_mode to append or "
                "merge, or give each asset partitions of its own, such as multi-partitions with a column that names "
                f"the asset. If asset {other} was renamed to this one, delete the rows of the partitions first"
            )
        return
    other_assets_of_table = {key.to_user_string(): None for key in _defined_for(output)}
    is_known = True
    if table is not None and table.count_rows():
        names, is_known = writers_of_rows(table)
        other_assets_of_table |= {name: None for name in names if name != asset}
    if other_assets_of_table:
        first = next(iter(other_assets_of_table))
        raise dg.DagsterInvalidDefinitionError(
            f"{output.label}: the table {output.location.uri} is shared with asset {', '.join(other_assets_of_table)} "
            f"({SHARED_KEY}), and write_mode overwrite replaces all its rows, as the asset has no partitions. Set "
            "lance/write_mode to append or merge, or give the asset partitions and partition_expr. If asset "
            f"{first} was renamed to this one, delete its rows first: "
            f"lance_core.dataset({output.location.uri!r}).delete('true')"
        )
    if not is_known:
        raise dg.DagsterInvalidDefinitionError(
            f"{output.label}: which assets wrote the rows of {output.location.uri} is not known, as versions were "
            f"cleaned up; it may be shared ({SHARED_KEY}), and write_mode overwrite replaces all its rows. Set "
            "lance/write_mode to append or merge, or delete the rows first: "
            f"lance_core.dataset({output.location.uri!r}).delete('true')"
        )


def _find_writers_of_partitions(table: lance_core.LanceDataset, asset: str, keys: set[str]) -> Iterator[str]:
    """The other assets that have written rows of some partitions since an asset replaced these, newest first."""
    for _, transaction in table.history(ahead=_AHEAD):
        properties = properties_of(transaction)
        writers, written = split_values(properties.get(ASSET_KEY)), {*partition_names(properties)}
        if COLUMNS not in properties and written & keys:
            yield from (writer for writer in writers if writer != asset)
        is_replaced = writers == [asset] and SLICES in properties
        keys = keys - written if is_replaced else keys
        if not keys or (transaction is not None and transaction.operation.name == "Overwrite"):
            return


def _defined_for(output: TableOutput) -> list[dg.AssetKey]:
    """The other assets of the code location that write rows to the table of an output."""
    keys, table = [], output.table.with_listing()
    for key, metadata in other_assets(output.context).items():
        if SHARED_KEY not in metadata or TABLE_KEY in metadata:
            continue
        location = table.locate(TableRef(key=key, metadata=metadata))
        if location.uri == output.location.uri:
            keys.append(key)
    return sorted(keys)


def _has_added(table: lance_core.LanceDataset, column: str, owner: str) -> bool:
    """Whether an asset has added a column that has the asset in its field's metadata, which copied rows keep, too.

    The result is True if the commit that added the column was cleaned up.
    """
    main = table if table.branch is None else table.checkout_version((None, None))
    line = main if owners(main.schema).get(column) == owner else table
    oldest, added = line.version + 1, None
    for handle, transaction in line.history(ahead=_AHEAD):
        if handle.version != oldest - 1:
            return True
        if owners(handle.schema).get(column) != owner:
            break
        oldest, added = handle.version, transaction
    else:
        if oldest > 1:
            return True
    if added is None:
        return True
    properties = properties_of(added)
    return added.operation.name != "Overwrite" and (ASSET_KEY not in properties or COLUMNS in properties)


def _check_partition_columns(output: TableOutput, table: lance_core.LanceDataset) -> None:
    """Reject a column asset that sets a partition column of its table, even if it may set columns of other assets.

    Raises:
        DagsterInvalidDefinitionError: The output has a partition column, so that rows would move to other partitions.
    """
    asset_key, context = output.context.asset_key, output.context
    named = {asset_key: output.metadata}
    if is_shared(output.metadata, output.label):  # otherwise `check_column_owners` rejects columns of the rows' asset
        makers = [dg.AssetKey.from_user_string(asset) for commit in owning_commits(table) for asset in commit.assets]
        named = {**{key: metadata_of_asset(context, key) for key in makers}, **named}
    columns = {
        column: key
        for key, metadata in named.items()
        for column in partition_columns(metadata.get("partition_expr"), table.schema, key)
    }
    for name in output.frame.names:
        if name in columns and name not in (*ROW_NAMES, *output.settings.row_key):
            raise dg.DagsterInvalidDefinitionError(
                f"{output.label}: column {name!r} of {output.location.uri} is a partition column of asset "
                f"{columns[name].to_user_string()}, and setting it would move rows to other partitions; return a frame "
                "without it"
            )


def _check_old_place(
    asset_key: dg.AssetKey, metadata: Mapping[str, object], settings: TableSettings, label: str
) -> None:
    """Reject an asset without a table if it has a table where earlier releases stored it.

    Raises:
        DagsterInvalidDefinitionError: The asset has a table there.
    """
    path = asset_key.path
    if len(path) <= _OLD_PARTS or settings.namespace:
        return
    new = locate_table(settings.root_uri, asset_key, metadata, default_schema=settings.schema)
    old = locate_table(settings.root_uri, asset_key, metadata, default_schema=settings.schema or path[-2])
    if new.uri == old.uri:
        return
    try:
        owner = owner_of(lance_core.dataset(old.uri, storage_options=settings.options))
    except DatasetNotFoundError:
        return
    if owner is not None and asset_key.to_user_string() in owner.assets:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: its rows are in {old.uri}, where an earlier release stored them, and its table is now "
            f'{new.uri}. Give the asset the metadata {{"schema": "{old.schema}"}}, or move the folder to the new table'
        )


def reject_memory_of_another_process(context: dg.OutputContext | dg.InputContext, settings: TableSettings) -> None:
    """Reject tables in memory if each step runs in a process, and so a memory, of its own.

    Raises:
        DagsterInvalidDefinitionError: The root is in memory, and the executor runs steps in other processes.
    """
    if urlsplit(settings.root_uri).scheme not in _MEMORY:
        return
    executor = process_executor(context)
    if executor is not None:
        raise dg.DagsterInvalidDefinitionError(
            f"root_uri {settings.root_uri!r} is the memory of one process, but the executor {executor!r} runs each "
            "step in a process of its own, so that other steps would find no table. Use in_process_executor "
            "(dg.Definitions(executor=dg.in_process_executor)), or a folder as root_uri"
        )
