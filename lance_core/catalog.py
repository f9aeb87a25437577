"""The public module of directory namespaces: roots whose `__manifest` table names their tables.

A row is written by one merge on its id, so that of several writers of an id one wins, and is deleted before the files
of its table. In a root without a manifest table, none is created.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, count
from os import PathLike, fspath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import checked
from lance_core.dataset.lance_dataset import LanceDataset, dataset
from lance_core.errors import CommitConflictError, DatasetExistsError, DatasetNotFoundError
from lance_core.retry import retrying
from lance_core.store import Namespace, StorageOptions, check_id, open_store, uri_below
from lance_core.verbs.inspect.listing import (
    DELIMITER,
    MANIFEST_TABLE,
    SUFFIX,
    Listing,
    check_ids,
    check_listed,
    check_location,
    plain_location,
    read_listing,
    reject_managed,
)
from lance_core.verbs.inspect.tables import list_folders

__all__ = [
    "DELIMITER",
    "MANIFEST_TABLE",
    "SUFFIX",
    "Listing",
    "Namespace",
    "check_ids",
    "check_listed",
    "declare",
    "deregister",
    "free_location",
    "has_table",
    "new_location",
    "read_listing",
    "register",
    "unused_location",
    "uri_below",
]

_RETRIES: Final = 50
"""Many, because pylance rewrites the whole manifest table in each commit, which conflicts with every concurrent one."""


@checked
def declare(
    root_uri: str | PathLike[str],
    object_id: str,
    location: str,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> str | None:
    """Add a table and its namespaces to the manifest table of a root, in one commit; existing rows stay.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`.
        object_id: The id of the table, its parts joined by `$`.
        location: The path of the table relative to the root, if its id is not listed yet.
        storage_options: Credentials and options of the storage, under object_store's names.

    Returns:
        The location that the manifest table has for the id; None without a manifest table, where nothing is done.

    Raises:
        InvalidInputError: The location is not below the root, is reserved, or is inside another table, or a part of the
            id is blank, or has control characters.
        CorruptFileError: A row of the manifest table has such a location.
        DatasetExistsError: A namespace has the id, or another id is listed with the location, with one inside it, or
            with the folder by which other clients open an id of the root.
        CommitConflictError: Every attempt conflicted with another writer of the manifest table.
        UnsupportedError: The namespace keeps the versions of its tables in its manifest table.

    Examples:
        >>> from lance_core import catalog
        >>> catalog.declare("lake", "nyc$flights", catalog.new_location("nyc$flights"))
    """
    check_location(location)
    parts = object_id.split(DELIMITER)
    check_id(parts)
    listed = _open(root_uri, storage_options)
    if listed is None:
        return None
    tables = read_listing(root_uri, storage_options=storage_options).tables
    folder = plain_location(location)
    for other, place in tables.items():  # of an id that is listed there, others stand for the same table
        if other != object_id and tables.get(object_id) != folder and f"{place}/".startswith(f"{folder}/"):
            raise DatasetExistsError(
                f"{fspath(root_uri)}: {place} is the table {other}; deregister that id first, or use another location"
            )
    check_location(location, tables.values())
    _reject_folder_of_id(root_uri, object_id, tables)
    ids = [DELIMITER.join(parts[:end]) for end in range(1, len(parts) + 1)]
    columns: dict[str, list[str | None]] = {
        "object_id": [*ids],
        "object_type": [*["namespace"] * len(parts[1:]), "table"],
        "location": [*[None] * len(parts[1:]), location],
    }
    _change(listed, lambda table: _insert(table, columns), lambda: _require(root_uri, storage_options))
    current = _require(root_uri, storage_options)
    rows = current.to_table(columns=["object_type", "location"], filter=pc.field("object_id") == object_id)
    row = next(iter(rows.to_pylist()), {"object_type": "table", "location": location})  # dropped meanwhile
    if row["object_type"] != "table":
        raise DatasetExistsError(f"{object_id} is a {row['object_type']} in the manifest table of {fspath(root_uri)}")
    return str(row["location"])


@checked
def new_location(object_id: str, number: int = 0) -> str:
    """Return a folder for a new table, as pylance names it: one folder, as pylance cannot drop tables in nested ones.

    Two writers of an id get the same folder. Ids of tables in the root keep the folder's usual name.

    Args:
        object_id: The id of the table, its parts joined by `$`.
        number: Which folder: 0 for the usual one, others where that belongs to another table.

    Examples:
        >>> from lance_core import catalog
        >>> catalog.new_location("flights"), catalog.new_location("nyc$flights")[8:]
        ('flights.lance', '_nyc$flights')
    """
    if DELIMITER not in object_id and not number:
        return object_id + SUFFIX
    name = f"{object_id}#{number}" if number else object_id
    return f"{hashlib.sha256(name.encode()).hexdigest()[:8]}_{object_id}"


@checked
def free_location(object_id: str, listing: Listing) -> str:
    """Return the first folder of `new_location` that is listed for no other table.

    A table that had the id before can have the usual folder, and another id by now.

    Args:
        object_id: The id of the table, which the manifest table does not list.
        listing: What the manifest table lists.

    Examples:
        >>> from lance_core import catalog
        >>> catalog.free_location("flights", catalog.read_listing("lake"))
        'flights.lance'
    """
    listed = set(listing.tables.values())
    return next(location for location in map(partial(new_location, object_id), count()) if location not in listed)


@checked
def unused_location(
    root_uri: str | PathLike[str],
    object_id: str,
    location: str,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> str:
    """Return a location for a table that is about to be created, or is there but not listed.

    It is another one than `location` where this has files but no table, as of a table that others are dropping: what is
    written there would be removed with them.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`.
        object_id: The id of the table.
        location: The location to use, as by `free_location`.
        storage_options: Credentials and options of the storage, under object_store's names.

    Raises:
        DatasetExistsError: A table of the id was deregistered, and is in a folder that a client of another kind has
            named; or another id is listed with the folder by which other clients open an id of the root.

    Examples:
        >>> from lance_core import catalog
        >>> catalog.unused_location("lake", "flights", "flights.lance")
        'flights.lance'
    """
    listing = read_listing(root_uri, storage_options=storage_options)
    _reject_folder_of_id(root_uri, object_id, listing.tables)
    further_locations = (new_location(object_id, number) for number in count(1))
    unused = next(
        each for each in chain([location], further_locations) if _is_unused(uri_below(root_uri, each), storage_options)
    )
    if listing.is_kept and not has_table(uri_below(root_uri, unused), storage_options=storage_options):
        _reject_deregistered(root_uri, object_id, listing.tables, storage_options)
    return unused


def _reject_folder_of_id(root_uri: str | PathLike[str], object_id: str, tables: Mapping[str, str]) -> None:
    """Reject an id of the root whose folder has another id: pylance opens the folder, whatever location is listed."""
    for other, location in tables.items():
        if location == object_id + SUFFIX and DELIMITER not in object_id and object_id not in tables:
            raise DatasetExistsError(
                f"{fspath(root_uri)}: {location} is the table {other}, which other clients would open as {object_id}: "
                "give the new table another name"
            )


def _reject_deregistered(
    root_uri: str | PathLike[str],
    object_id: str,
    tables: Mapping[str, str],
    storage_options: Mapping[str, str] | None,
) -> None:
    """Reject an id of which a table is there, not listed, in a folder with any hash: those of other clients differ."""
    folder_of_id, listed = re.compile(f"[0-9a-f]{{8}}_{re.escape(object_id)}"), set(tables.values())
    for folder in list_folders(root_uri, storage_options):
        uri = uri_below(root_uri, folder)
        if folder_of_id.fullmatch(folder) and folder not in listed and has_table(uri, storage_options=storage_options):
            remedy = f"lance_core.catalog.register({fspath(root_uri)!r}, {object_id!r}, {folder!r})"
            raise DatasetExistsError(
                f"{uri} is a table that was deregistered as {object_id}: list it again by {remedy}, or drop it by "
                f"lance_core.LanceDataset.drop({uri!r})"
            )


def _is_unused(uri: str, storage_options: Mapping[str, str] | None) -> bool:
    is_empty = next(iter(open_store(uri, StorageOptions(storage_options)).list("")), None) is None
    return is_empty or has_table(uri, storage_options=storage_options)


@checked
def has_table(uri: str, *, storage_options: Mapping[str, str] | None = None) -> bool:
    """Return whether there is a table at a URI.

    Args:
        uri: The URI.
        storage_options: Credentials and options of the storage, under object_store's names.

    Examples:
        >>> from lance_core import catalog
        >>> catalog.has_table("lake/flights.lance")
        False
    """
    try:
        dataset(uri, storage_options=storage_options)
    except DatasetNotFoundError:
        return False
    return True


@checked
def register(
    root_uri: str | PathLike[str],
    object_id: str,
    location: str,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Add an existing table to the manifest table of a root, as `declare` does.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`; without a manifest table nothing is done.
        object_id: The id of the table, its parts joined by `$`.
        location: The path of the table relative to the root.
        storage_options: Credentials and options of the storage, under object_store's names.

    Raises:
        InvalidInputError: The location or the id is one that `declare` rejects.
        DatasetNotFoundError: There is no table at the location.
        DatasetExistsError: Another table, or a namespace, has the id, or another id is listed with the location.
        CommitConflictError: Every attempt conflicted with another writer of the manifest table.
        UnsupportedError: The namespace keeps the versions of its tables in its manifest table.

    Examples:
        >>> from lance_core import catalog
        >>> table = lance.write_dataset({"id": [1]}, "lake/nyc/flights.lance")
        >>> catalog.register("lake", "nyc$flights", "nyc/flights.lance")
    """
    check_location(location)
    uri = uri_below(root_uri, location)
    if _open(root_uri, storage_options) is not None and not has_table(uri, storage_options=storage_options):
        raise DatasetNotFoundError(f"{uri} has no table: write it first, or declare the id {object_id}")
    listed = declare(root_uri, object_id, location, storage_options=storage_options)
    if listed not in (None, location):
        raise DatasetExistsError(
            f"{object_id} in {fspath(root_uri)} was created by another writer meanwhile, at {listed}"
        )


@checked
def deregister(
    root_uri: str | PathLike[str],
    location: str,
    *,
    missing_ok: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Remove a table from the manifest table of a root; its files stay.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`; without a manifest table nothing is done.
        location: The path of the table relative to the root.
        missing_ok: Whether nothing is done where no table is listed at the location.
        storage_options: Credentials and options of the storage, under object_store's names.

    Raises:
        DatasetNotFoundError: No table is listed at the location.
        CommitConflictError: Every attempt conflicted with another writer of the manifest table.
        UnsupportedError: The namespace keeps the versions of its tables in its manifest table.

    Examples:
        >>> from lance_core import catalog
        >>> catalog.deregister("lake", "nyc/flights.lance")
    """
    listed = _open(root_uri, storage_options)
    if listed is None:
        return
    is_table = pc.field("object_type") == "table"
    spellings = {place or "" for place in listed.to_table(["location"], is_table)["location"].to_pylist()}
    same = [place for place in spellings if location in (place, plain_location(place))]
    if not same and not missing_ok:
        raise DatasetNotFoundError(
            f"{fspath(root_uri)} lists no table at {location!r}: give the path below the root, which "
            "lance_core.catalog.read_listing has for each id"
        )
    is_it = pc.field("location").isin(same)
    if not location:
        is_it |= pc.field("location").is_null()
    if same:
        _change(listed, lambda table: table.delete(is_table & is_it), lambda: _require(root_uri, storage_options))


def _change(listed: LanceDataset, change: Callable[[LanceDataset], object], reopen: Callable[[], LanceDataset]) -> None:
    retrying(
        listed,
        lambda table, _: change(table),
        lambda _, __: reopen(),
        conflict_retries=_RETRIES,
        is_retryable=lambda error: isinstance(error, CommitConflictError),
    )


def _insert(listed: LanceDataset, columns: Mapping[str, list[str | None]]) -> None:
    """Insert the rows whose ids are missing; columns that other tools have added to the manifest table are null."""
    num_rows = len(columns["object_id"])
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(num_rows, field.type)
        for field in listed.schema
    ]
    rows = pa.Table.from_arrays(arrays, schema=listed.schema)
    listed.merge_insert("object_id").when_not_matched_insert_all().execute(rows)


def _open(root_uri: str | PathLike[str], storage_options: Mapping[str, str] | None) -> LanceDataset | None:
    try:
        return _require(root_uri, storage_options)
    except DatasetNotFoundError:
        return None


def _require(root_uri: str | PathLike[str], storage_options: Mapping[str, str] | None) -> LanceDataset:
    listed = dataset(uri_below(root_uri, MANIFEST_TABLE), storage_options=storage_options)
    reject_managed(root_uri, listed.metadata)
    return listed
