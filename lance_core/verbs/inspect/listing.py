"""The `__manifest` table of a directory namespace, whose rows name the tables below a root.

    object_id       object_type    location             (metadata, base_objects, columns of extensions)
    nyc             namespace
    nyc$flights     table          nyc/flights.lance
    nyc$trips       table          1f0c93aa_nyc$trips

LanceDB, lance-spark and `lance.namespace.DirectoryNamespace` read and write this table; a root without it is a plain
folder of tables. The location of a table is a path relative to the root. A row without a version at its location is a
table that was declared, but not created yet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final

import pyarrow.compute as pc

from lance_core.arguments import checked
from lance_core.errors import CorruptFileError, DatasetNotFoundError, InvalidInputError, LanceError, UnsupportedError
from lance_core.store import Namespace, canonical_uri, uri_below
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.scan.options import scan_options
from lance_core.verbs.scan.scanner import LanceScanner

_logger = logging.getLogger(__name__)

MANIFEST_TABLE: Final = "__manifest"
DELIMITER: Final = "$"
"""Joins the parts of an id in the manifest table."""
SUFFIX: Final = ".lance"
_RESERVED: Final = frozenset({MANIFEST_TABLE, "_maintenance", "_ops"})
"""The folders of a root that hold no tables of ids: its manifest table, the log of maintenance, and outputs of ops."""
_MANAGED: Final = "table_version_management"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The tables and namespaces that a manifest table lists.

    Attributes:
        tables: The locations of the tables, as paths relative to the root, by id.
        namespaces: The ids of the namespaces.
        is_kept: Whether there is a manifest table.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    is_kept: bool = False


@checked
def read_listing(root_uri: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> Listing:
    """Read which tables and namespaces the manifest table of a root lists; empty without a manifest table.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`.
        storage_options: Credentials and options of the storage, under object_store's names.

    Raises:
        UnsupportedError: The namespace keeps the versions of its tables in this table as well.
        CorruptFileError: The location of a table is not below the root, is reserved, or is inside another table.

    Examples:
        >>> from lance_core import catalog
        >>> catalog.read_listing("lake").is_kept
        False
    """
    try:
        listed = Handle(uri_below(root_uri, MANIFEST_TABLE), storage_options=storage_options)
    except DatasetNotFoundError:
        return Listing()
    manifest = listed.snapshot.manifest
    reject_managed(root_uri, manifest.table_metadata)
    is_listed = pc.field("object_type").isin(["table", "namespace"])
    options = scan_options(manifest, ["object_id", "object_type", "location"], is_listed)
    rows = LanceScanner(listed.snapshot, manifest.fragments, options).to_table().to_pylist()
    tables = {row["object_id"]: row["location"] or "" for row in rows if row["object_type"] == "table"}
    for object_id, location in tables.items():
        try:
            tables[object_id] = plain_location(location)
            check_location(tables[object_id], tables.values())
        except InvalidInputError as error:
            remedy = f"lance_core.catalog.deregister({os.fspath(root_uri)!r}, {location!r})"
            raise CorruptFileError(f"{listed.uri}: the table {object_id}: {error}; remove it: {remedy}") from None
    return Listing(
        tables=tables,
        namespaces=frozenset(row["object_id"] for row in rows if row["object_type"] == "namespace"),
        is_kept=True,
    )


@checked
def check_listed(
    uri: str,
    table_id: str | Sequence[str],
    *,
    root_uri: str | PathLike[str] = "",
    storage_options: Mapping[str, str] | None = None,
    namespace: Any = None,
) -> None:
    """Check that a table that was written is still the one of its id; what does not answer is logged.

    Args:
        uri: Where the table was written.
        table_id: Its id: the parts, or a string in which `$` joins them.
        root_uri: The root whose manifest table lists the id.
        storage_options: Credentials and options of the storage, under object_store's names.
        namespace: A client or the properties of a namespace of others, in place of the root.

    Raises:
        DatasetNotFoundError: The id has no table any more, or another one.

    Examples:
        >>> from lance_core import catalog
        >>> try:
        ...     catalog.check_listed("lake/nyc/flights.lance", "nyc$flights", root_uri="lake")
        ... except lance.errors.DatasetNotFoundError:
        ...     print("the root has no manifest table")
        the root has no manifest table
    """
    parts = tuple(table_id.split(DELIMITER) if isinstance(table_id, str) else table_id)
    try:
        tables = _locate_ids([parts], root_uri, storage_options, namespace)
    except LanceError as error:  # the version is committed
        _logger.warning("whether %s is still the table %s is not checked: %s", uri, ".".join(parts), error)
        return
    if parts not in tables or tables[parts][0] != canonical_uri(uri):
        raise DatasetNotFoundError(
            f"the change was committed to {uri}, but the table {'.'.join(parts)} was dropped or renamed in its "
            "namespace meanwhile: register this location there, or write the rows again"
        )


@checked
def check_ids(
    uri: str,
    ids: Sequence[Sequence[str]],
    *,
    root_uri: str | PathLike[str] = "",
    storage_options: Mapping[str, str] | None = None,
    namespace: Any = None,
    listing: Listing | None = None,
) -> dict[str, str] | None:
    """Check that a table still has the ids that a listing gave it, and no others: what was chosen by them holds.

    A namespace of others is asked for these ids alone.

    Args:
        uri: Where the table was listed.
        ids: Its ids, each as its parts; none of a folder that the manifest table of the root did not list.
        root_uri: The root whose manifest table lists the ids.
        storage_options: Credentials and options of the storage, under object_store's names.
        namespace: A client or the properties of a namespace of others, in place of the root.
        listing: What the manifest table lists now; None to read it.

    Returns:
        The storage options by which the table is opened; None for none.

    Raises:
        DatasetNotFoundError: An id has no table any more, or another one, or the table has further ids.

    Examples:
        >>> from lance_core import catalog
        >>> try:
        ...     catalog.check_ids("lake/nyc/flights.lance", [["nyc", "flights"]], root_uri="lake")
        ... except lance.errors.DatasetNotFoundError:
        ...     print("the root has no manifest table")
        the root has no manifest table
    """
    place, listed_ids = canonical_uri(uri), {tuple(table_id) for table_id in ids}
    tables = _locate_ids(listed_ids, root_uri, storage_options, namespace, listing)
    current_ids = {table_id for table_id, (location, _) in tables.items() if location == place}
    if not listed_ids:  # its folder is its name
        listed_ids = {
            table_id for table_id in tables if canonical_uri(uri_below(root_uri, "/".join(table_id) + SUFFIX)) == place
        }
    if current_ids != listed_ids:
        now = ", ".join(sorted(map(".".join, current_ids))) or "no id"
        raise DatasetNotFoundError(
            f"{uri} was listed as {', '.join(sorted(map('.'.join, listed_ids))) or 'a folder without an id'}, and has "
            f"{now} now: list the tables again"
        )
    return (
        next((options for location, options in tables.values() if location == place), dict(storage_options or {}))
        or None
    )


def _locate_ids(
    ids: Collection[tuple[str, ...]],
    root_uri: str | PathLike[str],
    storage_options: Mapping[str, str] | None,
    namespace: Any,
    listing: Listing | None = None,
) -> dict[tuple[str, ...], tuple[str, dict[str, str]]]:
    """The canonical location, and the storage options, of each id that has a table now; of a root, of all its ids."""
    options, tables = dict(storage_options or {}), dict[tuple[str, ...], tuple[str, dict[str, str]]]()
    if namespace is None:
        current = read_listing(root_uri, storage_options=storage_options) if listing is None else listing
        for object_id, path in current.tables.items():
            tables[tuple(object_id.split(DELIMITER))] = canonical_uri(uri_below(root_uri, path)), options
        return tables
    for table_id in ids:
        with contextlib.suppress(DatasetNotFoundError):
            location, vended = Namespace(namespace).describe(table_id)
            tables[table_id] = canonical_uri(location), {**options, **vended}
    return tables


def plain_location(location: str) -> str:
    """A location without empty parts and dots, as other tools may write them: "./a//b" is "a/b".

    pylance reads locations as URLs, which lose tabs and line breaks.
    """
    location = location.translate(dict.fromkeys(b"\t\n\r"))
    return posixpath.normpath(location) if location else location


def check_location(location: str | None, locations: Collection[str] = ()) -> None:
    """Check the location of a table, whose files a drop removes.

    Args:
        location: The location.
        locations: The locations of all tables; none may have this one inside it.

    Raises:
        InvalidInputError: The location is no path below the root, is reserved, or is inside another table.
    """
    parts = (location or "").rstrip("/").split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise InvalidInputError(f"the location {location!r} is no path below the root")
    if parts[0] in _RESERVED:
        raise InvalidInputError(f"the location {location!r} is in {parts[0]}, which is reserved")
    for depth in range(1, len(parts)):
        folder = "/".join(parts[:depth])
        if folder.endswith(SUFFIX) or folder in locations:
            raise InvalidInputError(f"the location {location!r} is inside the table at {folder!r}")


def reject_managed(root_uri: str | PathLike[str], metadata: Mapping[str, str]) -> None:
    """Reject a namespace that keeps the versions of its tables in its manifest table.

    Args:
        root_uri: The root.
        metadata: The metadata of the manifest table.

    Raises:
        UnsupportedError: The metadata says that the namespace keeps versions there.
    """
    if str(metadata.get(_MANAGED, "")).lower() == "true":
        raise UnsupportedError(
            f"{os.fspath(root_uri)} keeps the versions of its tables in its manifest table ({_MANAGED}), which this "
            "package cannot read: open its tables by the tool that wrote them"
        )
