"""Plans the read of an input: the version, rows and columns of its table.

version   lance/version, lance/tag or lance/as_of of the input's metadata; else by the IO manager's `read`
rows      the partitions that Dagster asks for, and lance/filter
columns   the metadata `columns`, in that order
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core.errors import DatasetNotFoundError, IncompatibleConflictError, VersionNotFoundError
from lance_dagster._context import steps
from lance_dagster._context.definitions import list_partitions_to_read
from lance_dagster._context.steps import RunFacts
from lance_dagster.events.published import find_published_partitions
from lance_dagster.handlers import Loading
from lance_dagster.handlers import input_selection as selection
from lance_dagster.handlers.base import ChangesPart, ChangesRequest, ReadRequest
from lance_dagster.handlers.changes import has_changes
from lance_dagster.handlers.input_selection import MissingInputError
from lance_dagster.handlers.lance import LanceDatasetHandler
from lance_dagster.lineage.history import undo_after
from lance_dagster.lineage.input_parts import digest_of_rows
from lance_dagster.lineage.step_inputs import remember_changes
from lance_dagster.lineage.watermarks import UnreadRange
from lance_dagster.loading.changes import CHANGES, ChangeRange, plan_changes_of_input
from lance_dagster.loading.recorded_versions import equal_version, recorded_version
from lance_dagster.tables.branch_policy import tag_run_with_branch
from lance_dagster.tables.location import TableLocation, open_table
from lance_dagster.tables.names import plain_metadata
from lance_dagster.tables.partitions import make_slices
from lance_dagster.tables.refs import as_moment, branch_for_reading
from lance_dagster.tables.settings import INPUT_PINS, TableSettings, check_input

_KEYS_SHOWN = 3


def plan_reads(
    context: dg.InputContext,
    facts: RunFacts | None,
    location: TableLocation,
    settings: TableSettings,
    loading: Loading,
    *,
    label: str,
    upstream: Mapping[str, object],
) -> dict[str | None, ReadRequest] | None:
    """Plan the reads of an input: a request per partition key if its annotation is a list or dict, else one for None.

    Args:
        context: The context of the input, whose definition metadata is used.
        facts: The run that loads the input; None outside of a run.
        location: The location of the input's table.
        settings: The IO manager's settings.
        loading: The handler and the type of the input.
        label: The input, for messages.
        upstream: The definition metadata of the upstream asset.

    Returns:
        One read per partition key, or one read under None; None if the table does not exist and need not exist.

    Raises:
        DagsterInvalidDefinitionError: The input's metadata or type is invalid.
        MissingInputError: The table does not exist, or the partitions were never written.
        LanceError: The version or a column does not exist.
    """
    metadata = {key: plain_metadata(value) for key, value in context.definition_metadata.items()}
    check_input(metadata, label)
    keys = sorted(context.asset_partition_keys) if context.has_asset_partitions else None
    is_per_partition = _loads_per_partition(context, loading, keys, label)
    if (opened := _open_if_exists(context, facts, location, settings, metadata, loading, label)) is None:
        return None
    dataset, columns_of = opened, partial(_choose_columns, context, loading, metadata, upstream, label)
    input_filter = selection.parse_filter(metadata.get("lance/filter"), dataset, label)

    def filter_of_keys(partitions: Sequence[str] | None) -> pc.Expression | None:
        return partition_filter(context, partitions, upstream.get("partition_expr"), dataset.schema)

    def filter_of(partitions: Sequence[str] | None) -> pc.Expression | None:
        return _and(filter_of_keys(partitions), input_filter)

    def has_unread(unread: UnreadRange, partition: str | None, key: Sequence[str], readers: Sequence[str]) -> bool:
        partitions = None if partition is None else [partition]
        schema, columns = unread.dataset.schema, columns_of(unread.dataset.schema)
        updates_of = selection.choose_counted_columns(
            columns, selection.split_key(key, columns, schema) or (), schema, readers
        )
        return has_changes(unread.dataset, unread.begin, filter_of(partitions), updates_of)

    changes = None
    if CHANGES in metadata:
        definition = None if keys is None else context.asset_partitions_def
        digest = digest_of_rows(metadata.get("lance/filter"), upstream.get("partition_expr"), definition)
        instance = None if facts is None else facts.instance
        keys_of = partial(list_partitions_to_read, steps.job_of_step(context), instance, context.asset_key)
        changes = plan_changes_of_input(context, facts, dataset, has_unread, keys_of, digest, label)
        dataset = changes.dataset
    schema, columns = dataset.schema, columns_of(dataset.schema)
    if keys is not None and metadata.get("lance/missing") != "empty" and (changes is None or changes.is_first):
        reads_all = changes is not None and None in changes.begins.values()
        rows = None if reads_all else filter_of_keys(keys)
        _check_partitions_exist(context, facts, dataset, rows, label, optional=loading.optional)
    if changes is not None and facts is not None:
        remember_changes(facts.step, changes.consumed)

    def build_request(partitions: Sequence[str] | None) -> ReadRequest:
        return ReadRequest(
            dataset=dataset,
            columns=columns,
            filter=filter_of(partitions),
            table=settings,
            load_as=loading.load_as,
            filtered=input_filter is not None,
            changes=None if changes is None else _build_changes_request(changes, filter_of, schema, columns),
        )

    return {key: build_request([key]) for key in keys or ()} if is_per_partition else {None: build_request(keys)}


def _choose_columns(
    context: dg.InputContext,
    loading: Loading,
    metadata: Mapping[str, object],
    upstream: Mapping[str, object],
    label: str,
    schema: pa.Schema,
) -> list[str] | None:
    """The columns that an input loads, of a version with the given columns; None for all columns."""
    columns = selection.parse_columns(metadata.get("columns"), schema, label)
    if columns is None and not isinstance(loading.handler, LanceDatasetHandler):
        return selection.columns_of_asset(context.asset_key, upstream, schema, label)
    return columns


def _loads_per_partition(context: dg.InputContext, loading: Loading, keys: Sequence[str] | None, label: str) -> bool:
    """Whether an input is one value per partition.

    Raises:
        DagsterInvalidDefinitionError: The input is a list of several assets; it is one value per partition, and the
            asset has no partitions; or it asks for changes and cannot be incremental.
    """
    if steps.is_list_of_assets(context):
        raise dg.DagsterInvalidDefinitionError(
            f"{label} is a list of several assets, for each of which Dagster asks for the first asset; give the op one "
            "input per asset"
        )
    several = loading.by_partition or (loading.as_list and not steps.is_fan_in(context))
    if several and keys is None:
        raise dg.DagsterInvalidDefinitionError(
            f"{label} is annotated as a {'dict' if loading.by_partition else 'list'}, one value per partition, but the "
            "asset has no partitions"
        )
    if CHANGES in context.definition_metadata:
        _check_changes(context, loading, label, several=several)
    return several


def _check_changes(context: dg.InputContext, loading: Loading, label: str, *, several: bool) -> None:
    """Reject an input that cannot be incremental, before anything is read.

    Raises:
        DagsterInvalidDefinitionError: The type of the input, or its asset, does not support changes.
    """
    if steps.is_own_upstream(context):
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {CHANGES} is not for an asset's own table, which each of its runs changes. Remove the "
            "entry; then the input is the rows of the partitions that its partition mapping names"
        )
    if several:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {CHANGES} is not for an input with one value per partition; annotate the input as one "
            "frame or table, which has the changes of all partitions of the run"
        )
    if not loading.handler.loads_changes:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {CHANGES} is for frames and tables, and {type(loading.handler).__name__} cannot load "
            "changes; annotate the input as a pyarrow.Table, or as a frame of Spark, pandas, polars or DuckDB"
        )


def _build_changes_request(
    changes: ChangeRange,
    filter_of: Callable[[Sequence[str] | None], pc.Expression | None],
    schema: pa.Schema,
    columns: Sequence[str] | None,
) -> ChangesRequest:
    """The changes to read: one part for each version up to which partitions of the input were consumed."""
    parts = tuple(ChangesPart(begin_version=begin, filter=filter_of(keys)) for begin, keys in changes.begins.items())
    key = selection.split_key(changes.key, columns, schema)
    return ChangesRequest(
        parts=parts,
        key=key or (),
        splits_updates=key is None,
        updates_of=selection.choose_counted_columns(columns, key or (), schema, changes.readers),
        counts=changes.consumed.counts,
    )


def _check_partitions_exist(
    context: dg.InputContext,
    facts: RunFacts | None,
    dataset: lance_core.LanceDataset,
    rows: pc.Expression | None,
    label: str,
    *,
    optional: bool,
) -> None:
    """Reject an input none of whose partitions was ever written, and an optional input without partitions.

    An input that others write, or that is an earlier partition of the asset itself, is rejected only if it is optional.
    If some partitions were never written, the log names them.

    Raises:
        MissingInputError: None of the partitions was ever written, or an optional input has no partitions.
    """
    keys = sorted(context.asset_partition_keys)
    if not keys:
        if optional and (rows is not None or not dataset.count_rows()):
            raise MissingInputError(f"{label}: no partition of it maps to that of this run")
        return
    instance = steps.find_instance(context) if facts is None else facts.instance
    if facts is not None and not optional and (steps.is_own_upstream(context) or steps.is_external(context)):
        return
    branch = dataset.branch
    written = find_published_partitions(instance, context.asset_key, keys, branch=branch) if instance else set()
    if not written and not dataset.count_rows(filter=rows):
        raise MissingInputError(
            f"{label}: partition {_format_keys(keys)} was never materialized, and {dataset.uri} has no row of it; "
            "materialize it first, annotate the input as Optional to get None, or give it the metadata lance/missing: "
            f"empty{'' if instance else '. Without an instance, partitions without rows are not known: pass instance='}"
        )
    if len(keys) > 1 and not steps.is_external(context):
        never = sorted(set(keys) - written)
        if never:
            context.log.warning(
                "%s: %d of %d partitions were never materialized (%s); rows that the table has of them are loaded, "
                "too. To expect missing partitions, give the input the metadata lance/missing: empty",
                label,
                len(never),
                len(keys),
                _format_keys(never),
            )


def _format_keys(keys: Sequence[str]) -> str:
    return ", ".join(map(repr, keys[:_KEYS_SHOWN])) + (" ..." if len(keys) > _KEYS_SHOWN else "")


def _open_if_exists(
    context: dg.InputContext,
    facts: RunFacts | None,
    location: TableLocation,
    settings: TableSettings,
    metadata: dict[str, object],
    loading: Loading,
    label: str,
) -> lance_core.LanceDataset | None:
    """Open the table at the version that pins choose, else on the run's branch, else by `read` of the IO manager.

    Returns:
        The table; None if it does not exist and need not exist.

    Raises:
        MissingInputError: The table does not exist, and the run asks for rows of it or the input is optional.
    """
    options = location.options(settings.storage_options)
    pins = [pin for pin in INPUT_PINS if metadata.get(pin) is not None]
    try:
        branch = tag_run_with_branch(settings.branching, facts)
        if location.branch is not None:
            return _open_own_branch(location, options, metadata)
        if not pins and branch is not None:
            return branch_for_reading(location.uri, branch, facts, context.asset_key, options)
        if not pins:
            if settings.reads_materialized:
                return _open_materialized(context, location, options, label)
            return open_table(location.uri, storage_options=options)
        value = metadata[pins[0]]
        if pins[0] == "lance/as_of":
            return open_table(location.uri, asof=as_moment(value), storage_options=options)
        assert isinstance(value, int | str)  # check_input rejects other values
        return open_table(location.uri, version=value, storage_options=options)
    except DatasetNotFoundError as error:
        requires_rows = not context.has_asset_partitions or bool(context.asset_partition_keys)
        if not loading.optional and (steps.is_own_upstream(context) or not requires_rows):
            return None
        is_newer = isinstance(error.__cause__, VersionNotFoundError)  # than a run on a branch reads it
        said = f"{label}: {error}" if is_newer else f"{label} has no table at {location.uri}; materialize it first"
        raise MissingInputError(
            f"{said}, annotate the input as Optional to get None, or give it the metadata lance/missing: empty"
        ) from error


def _open_own_branch(
    location: TableLocation, options: dict[str, str] | None, metadata: dict[str, object]
) -> lance_core.LanceDataset:
    """The table of an asset that stands for a branch, whatever branch the run is on; a tag names its own branch."""
    version, tag, moment = (metadata.get(pin) for pin in INPUT_PINS)
    if tag is not None:
        return open_table(location.uri, version=cast("str", tag), storage_options=options)
    branch_version = (location.branch, cast("int | None", version))
    opened = open_table(location.uri, version=branch_version, storage_options=options)
    return opened if moment is None else opened.checkout_version(opened.version_as_of(as_moment(moment)))


def _open_materialized(
    context: dg.InputContext, location: TableLocation, options: dict[str, str] | None, label: str
) -> lance_core.LanceDataset:
    """The table at the version that Dagster recorded last, or at a later undo of a change that this version has."""
    dataset = open_table(location.uri, storage_options=options)
    partitions = list(context.asset_partition_keys) if context.has_asset_partitions else None
    try:
        version = recorded_version(context.instance, context.asset_key, dataset, partitions)
    except IncompatibleConflictError as error:
        raise IncompatibleConflictError(
            f'{label}: {error}. Materialize the asset again, or set read="latest" on the IO manager to read other rows'
        ) from error
    if version is None or version == dataset.version:
        return dataset
    undo = undo_after(dataset, version)
    if undo is not None:
        context.log.warning(
            "%s: version %d, which Dagster recorded last, has changes that version %d undid; version %d is read",
            label,
            version,
            undo,
            undo,
        )
    version_to_read = version if undo is None else undo
    try:
        return dataset.checkout_version(version_to_read)
    except VersionNotFoundError as error:
        equal = equal_version(dataset, version_to_read)
        if equal is None:
            raise VersionNotFoundError(
                f"{label}: version {version_to_read} of {location.uri}, which Dagster recorded last, was removed by a "
                "cleanup or an erasure, and later versions may have other rows. Materialize the asset again, or set "
                'read="latest" on the IO manager (or metadata lance/version, lance/tag or lance/as_of on this input). '
                "A maintenance job with the same IO manager keeps such versions, and an erasure job reports the new one"
            ) from error
        context.log.info("%s: version %d was cleaned up; %d has the same rows", label, version_to_read, equal.version)
        return equal


def partition_filter(
    context: dg.InputContext, keys: Sequence[str] | None, partition_expr: object, schema: pa.Schema
) -> pc.Expression | None:
    """The condition of the rows of partitions; None for an asset without partitions, and false for no partitions."""
    if keys is None:
        return None
    if not keys:
        return pc.scalar(False)
    return make_slices(context.asset_key, context.asset_partitions_def, keys, partition_expr, schema).expression(schema)


def _and(first: pc.Expression | None, second: pc.Expression | None) -> pc.Expression | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second
