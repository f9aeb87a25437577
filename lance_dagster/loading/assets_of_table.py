"""The assets that share a table: a job logs events for all of them.

assets of the job            all assets that the job names for the table
of this code location        assets whose location is the table
of other code locations      assets whose newest event names the table, and assets that the table's commits or columns
                             name, unless their newest event names another table
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import dagster as dg

import lance_core
from lance_core.errors import LanceError
from lance_dagster.handlers.arrow_schema import owners
from lance_dagster.properties import ASSET_KEY, properties_of, split_values
from lance_dagster.tables.refs import TableRef, TableRoot, known_refs
from lance_dagster.tables.write_events import find_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

_AHEAD: Final = 32
"""The number of versions that are read at once, because all of them are needed."""


def assets_of_table(
    context: dg.OpExecutionContext, root: TableRoot, dataset: lance_core.LanceDataset, named: Sequence[TableRef]
) -> list[TableRef]:
    """The assets that share a table, the named ones first; the head of the module describes how they are found.

    An asset without an event and without a definition in this code location is left out, because an event would add it
    to Dagster's catalog. The references of assets of other code locations have neither metadata nor partitions.

    Args:
        context: The context of the op.
        root: The root of the IO manager.
        dataset: The newest version of the table.
        named: The assets that the job names for the table.
    """
    uri = lance_core.canonical_uri(dataset.root_uri)
    defined = {ref.key: ref for ref in known_refs(context)}
    refs_by_key, root = {ref.key: ref for ref in named}, root.with_listing()
    for key, ref in defined.items():
        if key not in refs_by_key and _located(root, ref) == uri:
            refs_by_key[key] = ref
    recorded = _recorded_uris(context.instance)
    written = {*owners(dataset.schema).values(), *_writers(dataset)}
    for key, place in recorded.items():
        if key in refs_by_key or key in defined:
            continue
        if place == uri or (place is None and key.to_user_string() in written):
            refs_by_key[key] = TableRef(key=key)
    return list(refs_by_key.values())


def _located(root: TableRoot, ref: TableRef) -> str | None:
    """The URI of an asset's table; None if it cannot be located, or if the asset stands for a branch."""
    try:
        location = root.locate(ref)
        return None if location.branch is not None else lance_core.canonical_uri(location.uri)
    except (dg.DagsterInvalidDefinitionError, LanceError):
        return None


def _recorded_uris(instance: dg.DagsterInstance) -> dict[dg.AssetKey, str | None]:
    """The assets with events, each with the table that its newest materialization names, by one query."""
    uris: dict[dg.AssetKey, str | None] = {}
    for record in instance.get_asset_records():
        event = record.asset_entry.last_materialization
        materialization = None if event is None else event.asset_materialization
        uris[record.asset_entry.asset_key] = (
            None if materialization is None else _canonical(find_entry(materialization.metadata, "dagster/uri"))
        )
    return uris


def _canonical(value: object) -> str | None:
    try:
        return lance_core.canonical_uri(value) if isinstance(value, str) else None
    except LanceError:
        return None


def _writers(dataset: lance_core.LanceDataset) -> Iterator[str]:
    for _, transaction in dataset.history(ahead=_AHEAD):
        yield from split_values(properties_of(transaction).get(ASSET_KEY))
