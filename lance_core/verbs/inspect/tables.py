"""Find the Lance tables below a folder or a prefix of an object store: in folders `*.lance`, and in its `__manifest`.

On object storage the keys are read in ascending order, one page per request, and keys that are not needed are skipped:

    nyc/flights.lance/.lance-deregistered                the table is left out: its catalog does not list it any more
    nyc/flights.lance/_indices/...  _transactions/...    skipped; takes a request if the keys exceed the page
    nyc/flights.lance/_versions/...                      read: the versions, newest first
    nyc/flights.lance/data/...  tree/...                 skipped; takes a request if the keys exceed the page

The locations that a manifest table names are read in the same way, whatever the names of their folders.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Final

from lance_core.arguments import checked
from lance_core.errors import DatasetNotFoundError, InvalidInputError, LanceError
from lance_core.store import Namespace, ObjectStore, StorageOptions, canonical_uri, escaped_path, open_store, uri_below
from lance_core.store.local import store_error
from lance_core.table.paths import VERSIONS_PREFIX, is_detached, parse_manifest_key
from lance_core.verbs.inspect.listing import (
    DELIMITER,
    MANIFEST_TABLE,
    SUFFIX,
    read_listing,
)

_logger = logging.getLogger(__name__)

_AFTER_EVERYTHING: Final = "\U0010ffff"
DEREGISTERED: Final = ".lance-deregistered"
"""The file by which a directory namespace marks a table that it does not list any more; its data stays."""
_PAGE: Final = 1000
"""Keys that a request lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table that a listing shows.

    Attributes:
        path: Its path relative to the root, such as "nyc/flights.lance"; of a table that a manifest table lists at
            another location, the parts of its id, such as "nyc/flights", with ".lance" if its id ends with that.
        uri: Its URI.
        ids: Its ids, each as its parts, in their order; empty if the manifest table does not list it; None for the
            manifest table itself, and where there is none.
        other_paths: The paths of its further ids, in the order of the ids.
        storage_options: The options by which it is opened; None for none. They are secrets, and in no repr.
        versions: The numbers of its versions in ascending order, as the listing shows them; None where they are not
            listed with it: on a local disk, and where manifests are recorded elsewhere.
        problem: Why the namespace gives no usable location of the table, whose URI cannot be opened; None if it does.
    """

    path: str
    uri: str
    ids: tuple[tuple[str, ...], ...] | None = None
    other_paths: tuple[str, ...] = ()
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    versions: tuple[int, ...] | None = None
    problem: str | None = None

    @property
    def object_id(self) -> str | None:
        """Its id in the manifest table, such as "nyc$flights", the first of several; None if it is not listed there."""
        return DELIMITER.join(self.ids[0]) if self.ids else None

    @property
    def name(self) -> str:
        """The path without the suffix, by which globs, policies and reports name the table."""
        return self.path.removesuffix(SUFFIX)

    @property
    def names(self) -> tuple[str, ...]:
        """The name, and those of its further ids: globs and policies can use any of them."""
        return tuple(path.removesuffix(SUFFIX) for path in (self.path, *self.other_paths))


@checked
def list_tables(
    root_uri: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None, unfinished: bool = False
) -> list[str]:
    """Find the tables below a root: folders called `*.lance` that have versions and are not deregistered.

    The tables that a directory namespace lists in the root's `__manifest` are found as well, by the parts of their ids,
    unless they were declared and have no version; `maintenance.find_tables` has their URIs.
    On a local disk only `_versions` is listed of a table, up to its first version. Links to folders are followed,
    unless they lead back to a folder above them. If a folder cannot be read, the log names it, and the tables below it
    are left out.
    On object storage a request lists 1,000 keys, and the files of a table are skipped: most tables cost less than a
    request, none more than two.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`.
        storage_options: Credentials and options of the storage, under object_store's names.
        unfinished: Whether to list instead the folders that have files but no version: their writer has not committed
            yet, or was killed before its first commit.

    Returns:
        Paths relative to the root, such as "nyc/flights.lance", in ascending order, escaped as in `canonical_uri` on
        object storage; empty if the root does not exist, as object storage does not distinguish that from a root
        without tables. A table at another location than the path of its id has that path without suffix,
        "nyc/flights", and does not join to the root.

    Raises:
        InvalidInputError: The root is a local file.
        UnsupportedError: The namespace of the root keeps the versions of its tables in its manifest table.

    Examples:
        >>> written = lance.write_dataset({"id": [1]}, "lake/public/t.lance")
        >>> lance.list_tables("lake")
        ['public/t.lance']
    """
    tables = _find(root_uri, storage_options, most_versions=1)
    return [table.path for table, has_versions in tables if has_versions is not unfinished and not _is_manifest(table)]


@checked
def find_tables(
    root_uri: str | PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> list[FoundTable]:
    """Find the tables below a root as `list_tables` does, with their URIs, and the versions where the listing has them.

    Args:
        root_uri: A folder, or a URI such as `s3://bucket/path`.
        storage_options: Credentials and options of the storage, under object_store's names.
        namespace: Properties of a namespace of others, such as `{"impl": "rest", "uri": "https://..."}`, whose tables
            are found in place of those below a root, by the parts of their ids.

    Returns:
        The tables in ascending order of their paths; empty if the root does not exist.

    Raises:
        InvalidInputError: The root is a local file, or there is neither a root nor a namespace.
        StoreError: The namespace did not answer.

    Examples:
        >>> written = lance.write_dataset({"id": [1]}, "lake/public/t.lance")
        >>> [one.path for one in maintenance.find_tables("lake")]
        ['public/t.lance']
    """
    if namespace is not None:
        tables = find_in_namespace(namespace, storage_options)
        for table in tables:
            if table.problem is not None:
                _logger.warning("%s is left out: %s", table.name, table.problem)
        return [table for table in tables if table.problem is None]
    if root_uri is None:
        raise InvalidInputError("find_tables needs the root_uri of a folder, or the properties of a namespace")
    return [table for table in find_with_manifest(root_uri, storage_options) if not _is_manifest(table)]


def find_in_namespace(properties: Mapping[str, Any], storage_options: Mapping[str, str] | None) -> list[FoundTable]:
    """The tables of a namespace of others that have a version, and those of which it gives no usable location."""
    namespace, tables = Namespace(properties), dict[str, FoundTable]()
    for table_id in sorted(namespace.list_ids()):
        path = _path_of_parts(table_id)
        try:
            location, vended = namespace.describe(table_id)
            options = {**(storage_options or {}), **vended} or None
            uri = canonical_uri(location)
            if uri in tables:
                first = tables[uri]
                tables[uri] = replace(first, other_paths=(*first.other_paths, path), ids=(*(first.ids or ()), table_id))
            elif any(parse_manifest_key(meta.key) for meta in open_store(location, options).list(VERSIONS_PREFIX)):
                tables[uri] = FoundTable(path=path, uri=uri, ids=(table_id,), storage_options=options)
        except DatasetNotFoundError:  # dropped meanwhile
            continue
        except LanceError as error:
            next(namespace.list_ids(), None)  # where it does not answer at all, there is no point in asking for others
            tables[path] = FoundTable(path=path, uri=f"namespace:/{path}", ids=(table_id,), problem=str(error))
    return sorted(tables.values(), key=lambda table: table.path)


def find_with_manifest(root_uri: str | PathLike[str], storage_options: Mapping[str, str] | None) -> list[FoundTable]:
    """The tables below a root, and its manifest table, if it has one, under the path "__manifest"."""
    return [table for table, has_versions in _find(root_uri, storage_options) if has_versions]


def _is_manifest(table: FoundTable) -> bool:
    return table.path == MANIFEST_TABLE


def _find(
    root_uri: str | PathLike[str], storage_options: Mapping[str, str] | None, most_versions: int | None = None
) -> list[tuple[FoundTable, bool]]:
    """The tables below a root by their paths, and the manifest table, each with whether it has versions.

    Folders whose name the manifest table gives to a table at another location are left out, and logged.

    Args:
        root_uri: The root.
        storage_options: The options by which it is reached.
        most_versions: The most versions to read per table; None for all.
    """
    store = open_store(root_uri, StorageOptions(storage_options))
    if store.is_local and os.path.isfile(store.root):  # noqa: PTH113 - as scandir gives it
        raise InvalidInputError(f"{store.root} is a file: give the folder that the tables are in")
    listing = read_listing(root_uri, storage_options=storage_options)
    ids = defaultdict[str, list[str]](list)
    for object_id, location in sorted(listing.tables.items()):
        ids[location].append(object_id)
    listed = {*ids, *([MANIFEST_TABLE] if listing.is_kept else [])}
    shows_versions = not store.is_local and store.data_root == store.root
    if store.is_local:
        versions_by_location: Iterable[tuple[str, bool, tuple[int, ...] | None]] = (
            (location, has_versions, None) for location, has_versions in _walk(store.root, "", listed)
        )
    else:
        versions_by_location = (
            (location, bool(keys), _parse_numbers(keys) if shows_versions and most_versions is None else None)
            for location, keys in _read_keys(store, listed, most_versions if shows_versions else 1)
        )
    tables = []
    for location, has_versions, versions in versions_by_location:
        plain_path = location if store.is_local else escaped_path(location)
        paths = [_path_of_id(listed_id, location, plain_path) for listed_id in ids.get(location, ())] or [plain_path]
        if location not in ids and location.removesuffix(SUFFIX).replace("/", DELIMITER) in listing.tables:
            _logger.warning(
                "%s is left out: the manifest table lists its name at another location; register it under another id",
                uri_below(root_uri, location),
            )
            continue
        table = FoundTable(
            path=paths[0],
            uri=uri_below(root_uri, location),
            ids=None
            if not listing.is_kept or location == MANIFEST_TABLE
            else tuple(tuple(listed_id.split(DELIMITER)) for listed_id in ids.get(location, ())),
            other_paths=tuple(paths[1:]),
            storage_options=storage_options,
            versions=versions,
        )
        tables.append((table, has_versions))
    return sorted(tables, key=lambda pair: pair[0].path)


def _path_of_id(object_id: str, location: str, plain_path: str) -> str:
    """The path of a table by an id: that of its folder, if the id names the folder, else the parts of the id."""
    if location == object_id.replace(DELIMITER, "/") + SUFFIX and {"/", "%"}.isdisjoint(object_id):
        return plain_path
    return _path_of_parts(object_id.split(DELIMITER))


def _path_of_parts(parts: Iterable[str]) -> str:
    """The path of an id, whose name is the id: that of `x.lance` is not that of `x`."""
    path = "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)
    return path + SUFFIX if path.endswith(SUFFIX) else path


def _parse_numbers(keys: list[str]) -> tuple[int, ...] | None:
    """The version numbers in keys of manifests; None if no version can be opened by its number."""
    parsed = [parse_manifest_key(key) for key in keys]
    numbers = sorted({name.version for name in parsed if name is not None and not is_detached(name.version)})
    return tuple(numbers) or None


def _walk(
    folder: str, prefix: str, listed: Collection[str], above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, bool]]:
    """Yield the tables below a folder, and whether each has versions.

    A link to a folder above it is not followed, as the walk would never end. If a folder other than the root cannot be
    read, the log names it.

    Args:
        folder: The folder.
        prefix: Its path below the root, with a slash at its end; empty for the root.
        listed: The locations of tables that the manifest table lists.
        above: The folders above it, each as its device and inode number.
    """
    try:
        status = os.stat(folder)  # noqa: PTH116 - as scandir gives it
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not prefix:
            raise store_error(folder, error) from error
        _logger.warning("%s cannot be listed, so tables below it are left out: %s", folder, error.strerror)
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    for entry in entries:
        if not _is_folder(entry):
            continue
        if (location := prefix + entry.name) in listed or entry.name.endswith(SUFFIX):
            if location not in listed and os.path.lexists(os.path.join(entry.path, DEREGISTERED)):  # noqa: PTH118 - as scandir gives it
                continue
            yield location, _has_versions(os.path.join(entry.path, VERSIONS_PREFIX))  # noqa: PTH118 - as scandir gives it
        else:
            yield from _walk(entry.path, f"{location}/", listed, above | {identity})


def _has_versions(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(parse_manifest_key(VERSIONS_PREFIX + entry.name) is not None for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # as for a folder of tables: it may be a table
        _logger.warning("%s cannot be listed, so whether it has versions is not known: %s", folder, error.strerror)
        return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link to itself, or to a folder without permission


def _read_keys(
    store: ObjectStore, listed: Collection[str], most_versions: int | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the tables of a store, in the order of the keys, each with the keys of its versions.

    Args:
        store: The store.
        listed: The locations of tables that the manifest table lists.
        most_versions: The most keys of versions to read per table; None for all.
    """
    keys = _Keys(store)
    while keys.current is not None:
        table = _find_table(keys.current, listed)
        if table is None:
            keys.skip(keys.current)
            continue
        if table not in listed and keys.has(f"{table}/{DEREGISTERED}", table):
            keys.skip(f"{table}/{_AFTER_EVERYTHING}")
            continue
        folder, versions = f"{table}/{VERSIONS_PREFIX}", list[str]()
        keys.skip(folder)
        while keys.current is not None and keys.current.startswith(folder) and len(versions) != most_versions:
            versions.append(keys.current.removeprefix(f"{table}/"))
            keys.skip(keys.current)
        yield table, versions
        keys.skip(f"{table}/{_AFTER_EVERYTHING}")


def list_folders(root_uri: str | PathLike[str], storage_options: Mapping[str, str] | None) -> Iterator[str]:
    """Yield the names of the folders in a root, which exists."""
    store = open_store(root_uri, StorageOptions(storage_options))
    if store.is_local:
        yield from [entry.name for entry in list(os.scandir(store.root)) if _is_folder(entry)]
        return
    keys = _Keys(store)
    while keys.current is not None:
        folder, slash, _ = keys.current.partition("/")
        if slash:
            yield folder
        keys.skip(f"{folder}/{_AFTER_EVERYTHING}" if slash else keys.current)


def _find_table(key: str, listed: Collection[str]) -> str | None:
    """The outermost table that a key lies in; None if it lies in none."""
    parts = key.split("/")
    folders = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return next((folder for folder in folders if folder.endswith(SUFFIX) or folder in listed), None)


class _Keys:
    """Reads the keys of a store in ascending order, and can skip ranges of keys."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._listing, self._taken = store.list(""), 0
        self.current = self._next_key()

    def skip(self, last: str) -> None:
        """Go to the first key after `last`; if it is not on the current page, begin a new listing there."""
        while self.current is not None and self.current <= last:
            if self._taken % _PAGE == 0:
                self._listing, self._taken = self._store.list("", start_after=last), 0
            self.current = self._next_key()

    def has(self, key: str, table: str) -> bool:
        """Skip to a key in the folder of a table that begins with a dot, and return whether it exists."""
        while self.current is not None and self.current.startswith(f"{table}/.") and self.current < key:
            self.skip(self.current)
        return self.current == key

    def _next_key(self) -> str | None:
        meta = next(self._listing, None)
        self._taken += 1
        return None if meta is None else meta.key
