"""The tables of namespaces: a service, or the `__manifest` of the root, names the location of each table.

    shop/orders        row shop$orders of {root_uri}/__manifest
                       of the key orders the row orders, or else public$orders where that names public/orders.lance,
                       in which a plain root has the table
                       else {root_uri}/shop/orders.lance, if that table exists, and no other row names it
                       else a new folder, which a write declares in the manifest table before its first version

A namespace of others gives the storage options of a table as well. In a root without a manifest table, a table is where
the names of its folders say (`location`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from lance_dagster.tables.location import NO_LOCATION, TableLocation

if TYPE_CHECKING:
    import lance_core
    from lance_core.catalog import Listing

_logger = logging.getLogger(__name__)


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

    def locate(self, table: str) -> TableLocation:
        """The location of a table by its name."""


def read_listing(root: Root) -> Listing:
    """What the manifest table of a root lists; see `lance_core.catalog.read_listing`."""
    from lance_core import catalog  # noqa: PLC0415 - code locations load without it

    return catalog.read_listing(root.root_uri, storage_options=root.options)


def ids_at(root_uri: str, uri: str, listing: Listing) -> list[str]:
    """The ids that a manifest table gives to the table at a canonical URI, in their order."""
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it

    tables = sorted(listing.tables.items())
    return [name for name, path in tables if canonical_uri(catalog.uri_below(root_uri, path)) == uri]


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
    object_id = location.object_id.replace("/", catalog.DELIMITER)
    if root.namespace:
        try:
            described = catalog.Namespace(root.namespace).describe(location.object_id.split("/"))
        except DatasetNotFoundError:
            return replace(location, uri=NO_LOCATION + location.object_id, unlisted_id=object_id)
        return _at(location, described, root)
    current = read_listing(root) if listing is None else listing
    if not current.is_kept:
        return location
    id_of_folder = location.path.removesuffix(catalog.SUFFIX).replace("/", catalog.DELIMITER)
    if object_id in current.tables:
        return _named(location, object_id, root, current.tables[object_id])
    if current.tables.get(id_of_folder) == location.path:
        return _named(location, id_of_folder, root, location.path)
    is_there = id_of_folder not in current.tables and location.path not in current.tables.values()
    if is_there and (listing is None or object_id != id_of_folder):
        is_there = catalog.has_table(location.uri, storage_options=root.options)
    if is_there:
        return replace(location, unlisted_id=id_of_folder)
    free = _named(location, object_id, root, catalog.free_location(object_id, current))
    return replace(free, unlisted_id=object_id, listed_id=None)


def _named(location: TableLocation, object_id: str, root: Root, path: str) -> TableLocation:
    from lance_core import catalog  # noqa: PLC0415 - code locations load without it

    schema = "/".join(object_id.split(catalog.DELIMITER)[:-1])
    uri = catalog.uri_below(root.root_uri, path)
    return replace(location, schema=schema, path=path, uri=uri, listed_id=object_id)


def follow_id(location: TableLocation, root: Root, name: str, listing: Listing | None) -> TableLocation:
    """The location that the manifest table of the root has now for the id of an external asset.

    The asset names the URI that the id had when the code location was loaded; others may have given the id to another
    table since, or have deregistered it. A URI that is not below the root stays, and so does a folder `name.lance`,
    which is a table without an id, too.

    Args:
        location: The location by the asset's `lance/uri`.
        root: The root.
        name: The id, parts joined by slashes.
        listing: What the manifest table lists; None to read it.
    """
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it

    folder, uri = canonical_uri(root.root_uri).rstrip("/") + "/", canonical_uri(location.uri)
    if root.namespace or not uri.startswith(folder):
        return location
    current = read_listing(root) if listing is None else listing
    object_id = catalog.DELIMITER.join(catalog.Namespace.parse_id(name))
    path = current.tables.get(object_id)
    if path is not None:
        return replace(location, uri=catalog.uri_below(root.root_uri, path))
    ids = ids_at(root.root_uri, uri, current)
    # A key is escaped as the folder of its table can be, and has a suffix where another asset has the name.
    if not {object_id, unquote(object_id), object_id.removesuffix(catalog.SUFFIX)}.isdisjoint(ids):
        return location
    is_own_folder = unquote(uri.removeprefix(folder)) in (unquote(name), unquote(name) + catalog.SUFFIX)
    is_taken_away = ids or (current.is_kept and not (is_own_folder and uri.endswith(catalog.SUFFIX)))
    return replace(location, uri=NO_LOCATION + name) if is_taken_away else location


def declare_location(location: TableLocation, root: Root) -> TableLocation:
    """The location of a table that is about to be written, after its id is listed by the namespace.

    If another writer has listed the id meanwhile, the location is the one that it chose.

    Raises:
        DatasetExistsError: A namespace has the id of the table, or a table of that id was deregistered or renamed, and
            other clients would mistake one for the other.
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
    location = location if listed_path is None else _named(location, object_id, root, listed_path)
    return replace(location, unlisted_id=None)


def check_still_listed(location: TableLocation, root: Root) -> None:
    """Check that a table that was written is still the one of its name; what does not answer is logged.

    Of a folder that had no id, others may have listed the name at another location meanwhile.

    Raises:
        DatasetNotFoundError: The name has no table any more, or another one.
    """
    from lance_core import catalog  # noqa: PLC0415 - code locations load without it
    from lance_core.errors import LanceError  # noqa: PLC0415 - code locations load without it

    if location.path is None:
        return
    try:
        now = root.locate(location.object_id)
    except LanceError as error:  # the version is committed
        _logger.warning("whether %s is still the table %s is not checked: %s", location.uri, location.name, error)
        return
    if now.uri != location.uri or (now.listed_id is None and location.listed_id is not None):
        table_id = now.listed_id or location.listed_id or now.unlisted_id or ""
        options, space = root.options, root.namespace or None
        catalog.check_listed(location.uri, table_id, root_uri=root.root_uri, storage_options=options, namespace=space)


def describe_return(root: Root, uri: str, name: str) -> str:
    """The remedy for a name that a table has lost, which is still at its location.

    Args:
        root: The root.
        uri: The canonical URI of the table.
        name: Its name, parts joined by slashes.
    """
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it

    object_id = name.replace("/", catalog.DELIMITER)
    folder = canonical_uri(root.root_uri).rstrip("/") + "/" if root.root_uri else uri
    if root.namespace or not uri.startswith(folder):
        return f"give this table the id {object_id} again in its namespace"
    path, listed = uri.removeprefix(folder), read_listing(root).tables
    in_way = [path] if path in listed.values() else []
    in_way += [listed[object_id]] if object_id in listed else []
    calls = [f'lance_core.catalog.deregister("{root.root_uri}", "{location}")' for location in in_way]
    calls += [f'lance_core.catalog.register("{root.root_uri}", "{object_id}", "{path}")']
    return f"give this table its id again, by {', then '.join(calls)}"


def _at(location: TableLocation, described: tuple[str, Mapping[str, str]], root: Root) -> TableLocation:
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it

    uri, vended = described
    options, listed_id = {**(root.options or {}), **vended}, location.object_id.replace("/", catalog.DELIMITER)
    return replace(location, uri=canonical_uri(uri), own_options=options, unlisted_id=None, listed_id=listed_id)


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


def name_below(
    root_uri: str,
    table_uri: str,
    storage_options: Mapping[str, str] | None,
    namespace: Mapping[str, str] | None = None,
) -> str | None:
    """The name of a table by its canonical URI, parts joined by slashes; None if neither root nor namespace has it."""
    from lance_core import canonical_uri, catalog  # noqa: PLC0415 - code locations load without it
    from lance_core.maintenance import find_tables  # noqa: PLC0415 - code locations load without it

    if namespace is not None:
        return next((table.name for table in find_tables(namespace=namespace) if table.uri == table_uri), None)
    folder = canonical_uri(root_uri).rstrip("/") + "/"
    if not table_uri.startswith(folder):
        return None
    for object_id in ids_at(root_uri, table_uri, catalog.read_listing(root_uri, storage_options=storage_options)):
        return object_id.replace(catalog.DELIMITER, "/")
    return table_uri.removeprefix(folder).removesuffix(".lance")
