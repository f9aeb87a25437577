"""The tables of namespaces: a service, or the `__manifest` of the root, names the location of each table.

    shop/orders        row shop$orders of {root_uri}/__manifest
                       else {root_uri}/shop/orders.lance, if that table exists, and no other row names it
                       else a new folder, which a write declares in the manifest table before its first version

A namespace of others gives the storage options of a table as well. In a root without a manifest table, a table is where
the names of its folders say (`location`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from lance_dagster.tables.location import NO_LOCATION, TableLocation

if TYPE_CHECKING:
    import lance_core
    from lance_core.catalog import Listing


class Root(Protocol):
    """The parts of a `TableRoot` that locate tables."""

    @property
    def root_uri(self) -> str:
        """The folder of the tables; empty for none."""

    @property
    def options(self) -> Mapping[str, str] | None:
        """The options by which it is reached."""

    @property
    def namespace(self) -> Mapping[str, str]:
        """The properties of a namespace of others; empty for none."""


def read_listing(root: Root) -> Listing:
    """What the manifest table of a root lists; see `lance_core.catalog.read_listing`."""
    from lance_core import catalog  # noqa: PLC0415 - code locations load without it

    return catalog.read_listing(root.root_uri, storage_options=root.options)


def resolve_location(location: TableLocation, root: Root, listing: Listing | None) -> TableLocation:
    """The location that a namespace names for a table, if there is one.

    Args:
        location: The location by the names of folders.
        root: The root.
        listing: What the manifest table lists; None to read it, and to look whether an unlisted table exists.
    """
    from lance_core import catalog  # noqa: PLC0415 - code locations load without it
    from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

    if location.path is None:
        return location
    object_id = catalog.DELIMITER.join((*location.schema.split("/"), location.table))
    if root.namespace:
        try:
            described = catalog.Namespace(root.namespace).describe(object_id.split(catalog.DELIMITER))
        except DatasetNotFoundError:
            uri = NO_LOCATION + object_id.replace(catalog.DELIMITER, "/")
            return replace(location, uri=uri, unlisted_id=object_id)
        return _at(location, described, root)
    current = read_listing(root) if listing is None else listing
    if not current.is_kept:
        return location
    path = current.tables.get(object_id)
    if path is not None:
        return replace(location, uri=catalog.uri_below(root.root_uri, path))
    is_taken = location.path in current.tables.values()
    if is_taken or (listing is None and not catalog.has_table(location.uri, storage_options=root.options)):
        path = catalog.free_location(object_id, current)
        location = replace(location, path=path, uri=catalog.uri_below(root.root_uri, path))
    return replace(location, unlisted_id=object_id)


def follow_id(location: TableLocation, root: Root, table_name: str, listing: Listing | None) -> TableLocation:
    """The location that the manifest table of the root has now for the id of an external asset.

    The asset names the URI that the id had when the code location was loaded; others may have given the id to another
    table since. A URI that is not below the root stays.

    Args:
        location: The location by the asset's `lance/uri`.
        root: The root.
        table_name: The id, parts joined by dots, as `dagster/table_name` has it.
        listing: What the manifest table lists; None to read it.
    """
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it

    folder, uri = canonical_uri(root.root_uri).rstrip("/") + "/", canonical_uri(location.uri)
    if root.namespace or not uri.startswith(folder):
        return location
    tables = (read_listing(root) if listing is None else listing).tables
    path = tables.get(table_name.replace(".", catalog.DELIMITER))
    if path is not None:
        return replace(location, uri=catalog.uri_below(root.root_uri, path))
    is_renamed = any(canonical_uri(catalog.uri_below(root.root_uri, each)) == uri for each in tables.values())
    return replace(location, uri=NO_LOCATION + table_name.replace(".", "/")) if is_renamed else location


def declare_location(location: TableLocation, root: Root) -> TableLocation:
    """The location of a table that is about to be written, after its id is listed by the namespace.

    If another writer has listed the id meanwhile, the location is the one that it chose.

    Raises:
        DatasetExistsError: A namespace has the id of the table.
    """
    if location.unlisted_id is None or location.path is None:
        return location
    from lance_core import catalog  # noqa: PLC0415 - code locations load without it

    if root.namespace:
        declared = catalog.Namespace(root.namespace).declare(location.unlisted_id.split(catalog.DELIMITER))
        return _at(location, declared, root)
    root_uri, object_id, options = root.root_uri, location.unlisted_id, root.options
    path = catalog.unused_location(root_uri, object_id, location.path, storage_options=options)
    location = replace(location, path=path, uri=catalog.uri_below(root_uri, path))
    listed_path = catalog.declare(root_uri, object_id, path, storage_options=options)
    uri = location.uri if listed_path is None else catalog.uri_below(root_uri, listed_path)
    return replace(location, uri=uri, unlisted_id=None)


def _at(location: TableLocation, described: tuple[str, Mapping[str, str]], root: Root) -> TableLocation:
    from lance_core import canonical_uri  # noqa: PLC0415 - code locations load without it

    uri, vended = described
    return replace(location, uri=canonical_uri(uri), own_options={**(root.options or {}), **vended}, unlisted_id=None)


def open_below(root: Root, uri: str, table_name: str) -> lance_core.LanceDataset | None:
    """The table at a URI, if the root or its namespace has it; None if it does not exist, or is of another root.

    Args:
        root: The root.
        uri: The URI of the table.
        table_name: Its name, as `dagster/table_name` has it.
    """
    import lance_core  # noqa: PLC0415 - code locations load without it
    from lance_core import catalog  # noqa: PLC0415 - code locations load without it
    from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

    place, options = lance_core.canonical_uri(uri), dict(root.options or {})
    try:
        if root.namespace:
            location, vended = catalog.Namespace(root.namespace).describe(table_name.split("."))
            is_here, options = lance_core.canonical_uri(location) == place, {**options, **vended}
        else:
            is_here = place.startswith(lance_core.canonical_uri(root.root_uri).rstrip("/") + "/")
        return lance_core.dataset(place, storage_options=options or None) if is_here else None
    except DatasetNotFoundError:
        return None


def name_below(root_uri: str, table_uri: str, storage_options: Mapping[str, str] | None) -> str | None:
    """The name of a table below a root, parts joined by slashes, by its canonical URI; None if it is not below it."""
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it

    folder = canonical_uri(root_uri).rstrip("/") + "/"
    if not table_uri.startswith(folder):
        return None
    for object_id, path in catalog.read_listing(root_uri, storage_options=storage_options).tables.items():
        if canonical_uri(catalog.uri_below(root_uri, path)) == table_uri:
            return object_id.replace(catalog.DELIMITER, "/")
    return table_uri.removeprefix(folder).removesuffix(".lance")
