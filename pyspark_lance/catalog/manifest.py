"""The manifest table of Lance's directory catalog, whose rows name the tables below a root.

    object_id       object_type    location             (metadata, base_objects, columns of extensions)
    nyc             namespace
    nyc$flights     table          nyc/flights.lance
    nyc$trips       table          1f0c93aa_nyc$trips

lance-spark, `lance.namespace.DirectoryNamespace` and other tools may read and write this table concurrently. A row is
written after the first version of its table, and deleted before the files of its table. A killed writer can therefore
leave a table without a row, which is still found at the path of its name, but never a row without a table. In a root
without a manifest table, no manifest table is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core import LanceDataset
from lance_core.errors import CommitConflictError, DatasetExistsError, DatasetNotFoundError, UnsupportedError
from pyspark_lance.catalog.registry import Catalog

DELIMITER: Final = "$"
_NAME: Final = "__manifest"
_MANAGED: Final = "table_version_management"
_RETRIES: Final = 50
"""Many, because pylance rewrites the whole manifest table in each commit, which conflicts with every concurrent one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The tables and namespaces that a manifest table lists.

    Attributes:
        tables: The paths of the tables relative to the root, by id.
        namespaces: The ids of the namespaces.
        is_kept: Whether there is a manifest table.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    is_kept: bool = False


def read_listing(catalog: Catalog) -> Listing:
    """Read the tables and namespaces that a catalog's manifest table lists; empty without a manifest table.

    Raises:
        UnsupportedError: The catalog keeps the versions of its tables in this table as well.
    """
    listed = _open(catalog)
    if listed is None:
        return Listing()
    is_listed = pc.field("object_type").isin(["table", "namespace"])
    rows = listed.to_table(columns=["object_id", "object_type", "location"], filter=is_listed).to_pylist()
    return Listing(
        tables={row["object_id"]: row["location"] for row in rows if row["object_type"] == "table"},
        namespaces=frozenset(row["object_id"] for row in rows if row["object_type"] == "namespace"),
        is_kept=True,
    )


def register(catalog: Catalog, object_id: str, location: str) -> None:
    """Add a table and its namespaces to the manifest table, in one commit; existing rows stay.

    Args:
        catalog: The catalog; without a manifest table nothing is done.
        object_id: The id of the table.
        location: The path of the table relative to the root.

    Raises:
        DatasetExistsError: Another table, or a namespace, has the id.
        CommitConflictError: Every attempt conflicted with another writer of the manifest table.
        UnsupportedError: The catalog keeps the versions of its tables in its manifest table.
    """
    listed = _open(catalog)
    if listed is None:
        return
    parts = object_id.split(DELIMITER)
    ids = [DELIMITER.join(parts[:end]) for end in range(1, len(parts) + 1)]
    columns: dict[str, list[str | None]] = {
        "object_id": [*ids],
        "object_type": [*["namespace"] * len(parts[1:]), "table"],
        "location": [*[None] * len(parts[1:]), location],
    }
    _change(catalog, listed, lambda table: _insert(table, columns))
    rows = _require(catalog).to_table(columns=["object_type", "location"], filter=pc.field("object_id") == object_id)
    for row in rows.to_pylist():
        if row["object_type"] != "table":
            raise DatasetExistsError(f"{object_id} is a {row['object_type']} in the manifest table of {catalog.root}")
        if row["location"] != location:
            raise DatasetExistsError(
                f"{object_id} in {catalog.root} was created by another writer meanwhile, at {row['location']}"
            )


def deregister(catalog: Catalog, location: str) -> None:
    """Remove a table from the manifest table.

    Args:
        catalog: The catalog; without a manifest table nothing is done.
        location: The path of the table relative to the root.

    Raises:
        CommitConflictError: Every attempt conflicted with another writer of the manifest table.
        UnsupportedError: The catalog keeps the versions of its tables in its manifest table.
    """
    listed = _open(catalog)
    is_it = (pc.field("object_type") == "table") & (pc.field("location") == location)
    if listed is not None and listed.count_rows(is_it):
        _change(catalog, listed, lambda table: table.delete(is_it))


def _change(catalog: Catalog, listed: LanceDataset, change: Callable[[LanceDataset], object]) -> None:
    lance_core.retrying(
        listed,
        lambda table, _: change(table),
        lambda _, __: _require(catalog),
        conflict_retries=_RETRIES,
        is_retryable=lambda error: isinstance(error, CommitConflictError),
    )


def _insert(listed: LanceDataset, columns: Mapping[str, list[str | None]]) -> None:
    """Insert the rows whose ids are missing; columns that other tools have added to the manifest table are null."""
    count = len(columns["object_id"])
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in listed.schema
    ]
    rows = pa.Table.from_arrays(arrays, schema=listed.schema)
    listed.merge_insert("object_id").when_not_matched_insert_all().execute(rows)


def _open(catalog: Catalog) -> LanceDataset | None:
    try:
        return _require(catalog)
    except DatasetNotFoundError:
        return None


def _require(catalog: Catalog) -> LanceDataset:
    listed = lance_core.dataset(catalog.below(_NAME), storage_options=catalog.storage_options)
    if str(listed.metadata.get(_MANAGED, "")).lower() == "true":
        raise UnsupportedError(
            f"catalog {catalog.name}: {catalog.root} keeps the versions of its tables in its manifest table"
            f" ({_MANAGED}), which this package cannot read"
        )
    return listed
