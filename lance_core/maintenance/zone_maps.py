"""Builds zone maps on partition columns once a table has grown, and refreshes them when it has grown further.

Each change is a version of its own. Writers call `index_partitions` after their commits. Results of queries never
depend on zone maps, so a conflict with another process that builds them is not an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lance_core.errors import RetryableConflictError
from lance_core.index.kinds.registry import KINDS
from lance_core.schema import arrow_type_of
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.indices.create import create_scalar_index
from lance_core.verbs.indices.optimize import optimize_indices, uncovered_fragments

MAX_UNINDEXED_FRAGMENTS: Final = 64
"""The most fragments without a zone map; above this number a zone map is made or refreshed."""

ROWS_PER_ZONE: Final = 2**20
"""The default number of rows of a fragment, so that a fragment of one partition is one zone."""


def index_partitions(
    dataset: Handle,
    columns: Sequence[str],
    *,
    max_unindexed_fragments: int = MAX_UNINDEXED_FRAGMENTS,
    transaction_properties: Mapping[str, str] | None = None,
) -> list[str]:
    """Make or refresh zone maps on columns where more than `max_unindexed_fragments` fragments are not covered.

    Unknown columns, and columns of types without an order, are left alone. A conflict with a writer that also builds
    these zone maps is ignored.

    Args:
        dataset: The handle, which moves to the version that is made.
        columns: The columns, usually those by which the table is partitioned.
        max_unindexed_fragments: The most fragments that a zone map may leave uncovered.
        transaction_properties: Transaction properties of the commits.

    Returns:
        The names of the zone maps that were made or refreshed.

    Examples:
        >>> rows = {"day": ["2026-01-01", "2026-01-02"]}
        >>> table = lance.write_dataset(rows, "t.lance")
        >>> maintenance.index_partitions(table, ["day"], max_unindexed_fragments=0)
        ['day_idx']
    """
    lacking, stale = find_due_zone_maps(
        dataset.snapshot.manifest, columns, max_unindexed_fragments=max_unindexed_fragments
    )
    done = []
    for column in lacking:
        before = {index.uuid for index in dataset.snapshot.manifest.indices}
        arguments = {"rows_per_zone": ROWS_PER_ZONE}
        try:
            indexed = create_scalar_index(
                dataset.snapshot,
                [column],
                "ZONEMAP",
                None,
                replace=False,
                train=True,
                arguments=arguments,
                properties=transaction_properties,
            )
        except RetryableConflictError:
            continue
        dataset.move_to(indexed)
        done += [index.name for index in indexed.indices if index.uuid not in before]
    return [*done, *_refresh(dataset, stale, properties=transaction_properties)]


def find_due_zone_maps(
    manifest: Manifest, columns: Sequence[str], *, max_unindexed_fragments: int
) -> tuple[list[str], list[str]]:
    """The columns on which `index_partitions` makes zone maps, and the names of the zone maps that it refreshes."""
    lacking, stale = list[str](), list[str]()
    if len(manifest.fragments) <= max_unindexed_fragments:
        return lacking, stale
    for column in columns:
        zone_maps = _find_zone_maps(manifest, column)
        if zone_maps is None:
            continue
        name = zone_maps[0].name if zone_maps else None
        if (
            len(uncovered_fragments(manifest, [index for index in zone_maps if index.name == name]))
            <= max_unindexed_fragments
        ):
            continue
        if name is None:
            lacking.append(column)
        else:
            stale.append(name)
    return lacking, stale


def columns_without_zone_map(
    dataset: Handle, columns: Sequence[str], *, max_unindexed_fragments: int = MAX_UNINDEXED_FRAGMENTS
) -> list[str]:
    """The columns for which `index_partitions` would make a zone map; only the manifest is read.

    Args:
        dataset: The handle.
        columns: The columns.
        max_unindexed_fragments: The most fragments that a zone map may leave uncovered.

    Examples:
        >>> rows = {"day": ["2026-01-01", "2026-01-02"]}
        >>> table = lance.write_dataset(rows, "t.lance")
        >>> maintenance.columns_without_zone_map(table, ["day"], max_unindexed_fragments=0)
        ['day']
    """
    manifest = dataset.snapshot.manifest
    if len(manifest.fragments) <= max_unindexed_fragments:
        return []
    return [column for column in dict.fromkeys(columns) if _find_zone_maps(manifest, column) == []]


def _refresh(dataset: Handle, names: Sequence[str], properties: Mapping[str, str] | None = None) -> list[str]:
    if not names:
        return []
    try:
        refreshed = optimize_indices(dataset.snapshot, index_names=names, conflict_retries=0, properties=properties)
        dataset.move_to(refreshed)
    except RetryableConflictError:
        return []
    return list(names)


def _find_zone_maps(manifest: Manifest, column: str) -> list[IndexMetadata] | None:
    """The segments of zone maps on a column; None if the column can have no zone map."""
    field = next((field for field in manifest.schema.fields if field.name == column), None)
    if field is None or not KINDS["ZoneMap"].accepts(arrow_type_of(field)):
        return None
    return [index for index in manifest.indices if index.kind == "ZoneMap" and index.fields == (field.id,)]
