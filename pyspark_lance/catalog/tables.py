"""Finds the Lance table, branch or version that a name in an SQL statement stands for.

    lake.nyc.flights         row nyc$flights of {root}/__manifest, else {root}/nyc/flights.lance
    lake.flights             row flights, else {root}/flights.lance
    lance.`/data/t.lance`    that path, with the storage options of the catalog whose root is the closest one above it
    ... @july                the tag or the branch july; @v3 is version 3

A table with exactly the given name is preferred. If there is none and `spark.sql.caseSensitive` is false, all tables of
the catalog are listed and their names are compared without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import lance_core
from lance_core import LanceDataset
from lance_core.catalog import (
    DELIMITER,
    Listing,
    Namespace,
    check_listed,
    free_location,
    has_table,
    read_listing,
    unused_location,
)
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, VersionNotFoundError
from lance_core.maintenance import find_tables
from pyspark_lance.catalog.registry import PATHS, Catalog, catalogs_of
from pyspark_lance.engine.sessions import reject_memory
from pyspark_lance.lazy import SparkSession
from pyspark_lance.types.column_names import case_sensitive

_SUFFIX: Final = ".lance"
_OPS: Final = "_ops"
"""The folder in which `lance_dagster` keeps the outputs of ops; listings leave it out."""
_SEGMENT: Final = re.compile(r"[\w=@+-][\w=@+.-]{0,199}")
"""The folder names that are valid on every store and in every URI."""
_VERSION: Final = re.compile(r"[vV](\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """The name of a table as a statement spells it.

    Attributes:
        parts: The catalog, the schemas and the table; `lance` and the path.
        ref: A branch, a tag, or `v` and a number; None for the latest version of the main branch.
    """

    parts: tuple[str, ...]
    ref: str | None = None

    def __str__(self) -> str:
        return ".".join(self.parts) + ("" if self.ref is None else f"@{self.ref}")

    @property
    def last(self) -> str:
        """The name by which the columns of the table are qualified."""
        return self.parts[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """The location of a table, and how its catalog lists it.

    Attributes:
        uri: The table.
        storage_options: Credentials and options of the storage.
        object_id: The name in the root's manifest table; None if it does not list the table.
        catalog: The catalog; None for a path that is below the root of no catalog.
        path: The path relative to the catalog's root; None without a catalog.
        is_named: Whether the table was found by a name, not by its path.
        new_id: The id under which a table is listed once it exists; None for that of its path, or if it is listed.
    """

    uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    object_id: str | None = None
    catalog: Catalog | None = None
    path: str | None = None
    is_named: bool = False
    new_id: str | None = None

    @property
    def listing_id(self) -> str | None:
        """The id by which the root's manifest table lists the table, or would; None for a table found by its path."""
        if self.object_id is not None or not self.is_named or self.path is None:
            return self.object_id
        if self.new_id is not None:
            return self.new_id
        return self.path.removesuffix(_SUFFIX).replace("/", DELIMITER)

    def declared(self) -> CatalogTable:
        """This location, after a namespace of others has declared the table that it lacks, and so given its URI."""
        if self.uri or self.catalog is None or self.new_id is None:
            return self
        path = self.new_id.split(DELIMITER)
        return _described(self.catalog, path, Namespace(self.catalog.namespace).declare(path))

    def check_still_listed(self) -> None:
        """Check that a table that was changed is still the one of its id, if its catalog lists it.

        Raises:
            DatasetNotFoundError: The id has no table any more, or another one.
        """
        if self.catalog is not None and self.object_id is not None:
            root, options, namespace = self.catalog.root, self.catalog.storage_options, self.catalog.namespace
            check_listed(self.uri, self.object_id, root_uri=root, storage_options=options, namespace=namespace)

    def hides(self, dataset: LanceDataset) -> bool:
        """Whether a table at this location is hidden, because it was deregistered from its catalog."""
        return self.is_named and self.object_id is None and dataset.is_deregistered

    def open(self) -> LanceDataset:
        """The latest version, whose blobs are read as descriptions.

        Raises:
            DatasetNotFoundError: The URI holds no table.
        """
        scans = {"blob_handling": "blobs_descriptions"}
        return lance_core.dataset(self.uri, storage_options=self.storage_options, default_scan_options=scans)


class TableFinder:
    """Finds the tables of one statement; the manifest table of each catalog is read at most once.

    Attributes:
        spelled: The names of the tables that were looked for, without branches, by their URIs.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spelled: dict[str, str] = {}
        self._spark = spark
        self._catalogs = catalogs_of(spark)
        self._manifests: dict[str, Listing] = {}

    @cached_property
    def _exact(self) -> bool:
        return case_sensitive(self._spark)

    def _is(self, name: str, other: str) -> bool:
        return name == other if self._exact else name.lower() == other.lower()

    def names_catalog(self, part: str) -> bool:
        """Whether the first part of a name is that of a catalog of Lance tables."""
        return self._is(part, PATHS) or self.catalog(part) is not None

    def catalog(self, part: str) -> Catalog | None:
        """The registered catalog of a name."""
        catalog = self._catalogs.get(part.lower())
        return catalog if catalog is not None and self._is(part, catalog.name) else None

    def locate(self, name: TableName) -> CatalogTable:
        """The location of an existing table, or the location at which a table of that name would be created.

        Raises:
            InvalidInputError: The name cannot be that of a table, or could stand for two tables.
        """
        location = self._locate(name)
        self.spelled[location.uri] = ".".join(name.parts)
        return location

    def _locate(self, name: TableName) -> CatalogTable:
        if self._is(name.parts[0], PATHS):
            return self._at_path(name)
        catalog = self.catalog(name.parts[0])
        if catalog is None:
            raise InvalidInputError(
                f"{name} is not a Lance table: {name.parts[0]!r} is no registered catalog; register_catalog adds it"
            )
        path = name.parts[1:]
        if not path:
            raise InvalidInputError(f"{name} is a catalog, not a table")
        for segment in path:
            if not _SEGMENT.fullmatch(segment):
                raise InvalidInputError(
                    f"{name}: {segment!r} cannot be a folder: use 1 to 200 letters, digits and _=@+.-, with no dot at"
                    " the beginning"
                )
        if catalog.namespace is not None:
            return self._in_namespace(catalog, Namespace(catalog.namespace), path)
        return self._listed(catalog, path) or self._unlisted(catalog, path)

    def _in_namespace(self, catalog: Catalog, namespace: Namespace, path: Sequence[str]) -> CatalogTable:
        """The location of a table of a namespace of others; without a URI if it has no such table."""
        try:
            return _described(catalog, path, namespace.describe(path))
        except DatasetNotFoundError:
            alike = [] if self._exact else [listed for listed in namespace.list_ids() if self._is_id(listed, path)]
        if len(alike) > 1:
            raise InvalidInputError(f"{catalog.name}.{'.'.join(path)} could be any of {alike}: spell it exactly")
        if alike:
            return _described(catalog, alike[0], namespace.describe(alike[0]))
        return CatalogTable(uri="", catalog=catalog, is_named=True, new_id=DELIMITER.join(path))

    def _is_id(self, table_id: Sequence[str], path: Sequence[str]) -> bool:
        return self._is(DELIMITER.join(table_id), DELIMITER.join(path))

    def locate_new_table(self, name: TableName) -> tuple[CatalogTable, bool]:
        """The location of a table that a statement creates, and whether a table already exists there.

        A table that a namespace of others does not have has no URI until `declared` is called.

        Raises:
            DatasetExistsError: The name is that of a namespace, or of a table that was deregistered.
        """
        location = self.locate(name)
        if not location.uri:
            return location, False
        if location.catalog is not None and location.listing_id in self._manifest(location.catalog).namespaces:
            raise DatasetExistsError(f"{name} is a namespace in the manifest table of {location.catalog.root}")
        if location.catalog is not None and location.path is not None and location.new_id is not None:
            root, options = location.catalog.root, location.catalog.storage_options
            folder = unused_location(root, location.new_id, location.path, storage_options=options)
            location = replace(location, path=folder, uri=location.catalog.below(folder))
        try:
            dataset = location.open()
        except DatasetNotFoundError:
            return location, False
        if location.hides(dataset):
            raise DatasetExistsError(f"{name} was deregistered; its data still exists, as lance.`{location.uri}`")
        return location, True

    def exists_error(self, name: TableName, location: CatalogTable) -> DatasetExistsError:
        """The error of a statement that would create a table which already exists."""
        message = f"{name} already exists, at {location.uri}"
        catalog = location.catalog
        if catalog is not None and location.is_named and location.object_id is None and self._manifest(catalog).is_kept:
            message += "; its catalog does not list it: CREATE TABLE IF NOT EXISTS lists it"
        return DatasetExistsError(message)

    def _at_path(self, name: TableName) -> CatalogTable:
        if len(name.parts) != 2:
            raise InvalidInputError(f"{name}: a path is one name in backticks, lance.`/data/t.lance`")
        uri = name.parts[1].rstrip("/")
        reject_memory(uri)
        place = _place(uri)
        roots = {_place(catalog.root): catalog for catalog in reversed(self._catalogs.values()) if catalog.root}
        above = [root for root in roots if place.startswith(f"{root}/")]
        if not above:
            return CatalogTable(uri=uri)
        closest = max(above, key=len)
        owner, path = roots[closest], place[len(closest) + 1 :]
        return CatalogTable(uri=uri, storage_options=owner.storage_options, catalog=owner, path=path)

    def _listed(self, catalog: Catalog, path: Sequence[str]) -> CatalogTable | None:
        """The location of a listed or existing table; None if no table has the name."""
        object_id = DELIMITER.join(path)
        listed_paths = self._manifest(catalog).tables
        plain = "/".join(path) + _SUFFIX
        options = catalog.storage_options
        if object_id in listed_paths:
            return _named(catalog, listed_paths[object_id], object_id)
        is_taken = plain in listed_paths.values()
        if self._exact or (not is_taken and has_table(catalog.below(plain), storage_options=options)):
            return None
        alike: dict[str, str | None] = {
            path_of_id: listed_id for listed_id, path_of_id in listed_paths.items() if self._is(listed_id, object_id)
        }
        for table in find_tables(catalog.root, storage_options=options):
            if table.object_id is None and self._is(table.path, plain):
                alike[table.path] = None
        if len(alike) > 1:
            raise InvalidInputError(
                f"{catalog.name}.{'.'.join(path)} could be any of {sorted(alike)} in {catalog.root}: spell it exactly"
                " as one of them"
            )
        return next((_named(catalog, *match) for match in alike.items()), None)

    def _unlisted(self, catalog: Catalog, path: Sequence[str]) -> CatalogTable:
        """The location of a table that is not listed: its folder, or, where a manifest table is kept, a new one.

        It is its folder there too if the table exists and is not listed under another name.
        """
        location, listing = _named(catalog, "/".join(path) + _SUFFIX), self._manifest(catalog)
        is_taken = location.path in listing.tables.values()
        if not listing.is_kept or (not is_taken and has_table(location.uri, storage_options=catalog.storage_options)):
            return location
        object_id = DELIMITER.join(path)
        return replace(_named(catalog, free_location(object_id, listing)), new_id=object_id)

    def _manifest(self, catalog: Catalog) -> Listing:
        """The tables and namespaces that the root's manifest table lists."""
        if catalog.namespace is not None:
            return Listing()
        if catalog.name not in self._manifests:
            self._manifests[catalog.name] = read_listing(catalog.root, storage_options=catalog.storage_options)
        return self._manifests[catalog.name]

    def tables(self, catalog: Catalog) -> list[tuple[str, ...]]:
        """The names of all tables of a catalog, without the catalog, in ascending order."""
        if catalog.namespace is not None:
            tables = find_tables(storage_options=catalog.storage_options, namespace=catalog.namespace)
            return sorted(tuple(name.split("/")) for table in tables for name in table.names)
        names = {tuple(listed_id.split(DELIMITER)) for listed_id in self._manifest(catalog).tables}
        below = find_tables(catalog.root, storage_options=catalog.storage_options)
        names |= {tuple(table.name.split("/")) for table in below if table.object_id is None}
        return sorted(name for name in names if name[0] != _OPS)

    def open(self, name: TableName) -> LanceDataset:
        """The version that a name stands for.

        Raises:
            DatasetNotFoundError: There is no table of the name; the message has the name and the location.
            VersionNotFoundError: The table has no such branch, tag or version.
            InvalidInputError: The table has a branch and a tag of that name.
        """
        scans = {"blob_handling": "blobs_descriptions"}
        dataset = open_listed(name, self.locate(name), default_scan_options=scans)
        return dataset if name.ref is None else at_ref(dataset, name)

    def target(self, name: TableName) -> tuple[LanceDataset, CatalogTable]:
        """The latest version of a table or a branch, to be changed, and the table's location.

        Raises:
            DatasetNotFoundError: There is no table of the name.
            InvalidInputError: The name is that of a tag or a version.
        """
        location = self.locate(name)
        dataset = open_listed(name, location)
        if name.ref in (None, "main"):
            return dataset, location
        if name.ref not in dataset.branches.list():
            raise InvalidInputError(f"{name}: {name.ref!r} is not a branch of the table; only branches can be changed")
        return dataset.checkout_version((name.ref, None)), location


def _named(catalog: Catalog, path: str, object_id: str | None = None) -> CatalogTable:
    return CatalogTable(
        uri=catalog.below(path),
        storage_options=catalog.storage_options,
        object_id=object_id,
        catalog=catalog,
        path=path,
        is_named=True,
    )


def _described(catalog: Catalog, path: Sequence[str], described: tuple[str, Mapping[str, str]]) -> CatalogTable:
    """The location that a namespace of others gives for the id of a table."""
    location, vended = described
    return CatalogTable(
        uri=lance_core.canonical_uri(location),
        storage_options={**(catalog.storage_options or {}), **vended} or None,
        object_id=DELIMITER.join(path),
        catalog=catalog,
        is_named=True,
    )


def open_listed(name: TableName, location: CatalogTable, **options: Any) -> LanceDataset:
    """The latest version of a table that its catalog lists.

    Raises:
        DatasetNotFoundError: There is no table at the location, or it was deregistered.
    """
    spelled = ".".join(name.parts)
    if not location.uri:
        raise DatasetNotFoundError(f"there is no table {spelled}: the namespace of its catalog has none")
    try:
        dataset = lance_core.dataset(location.uri, storage_options=location.storage_options, **options)
    except DatasetNotFoundError:
        raise DatasetNotFoundError(f"there is no table {spelled}: {location.uri} holds none") from None
    if location.hides(dataset):
        raise DatasetNotFoundError(
            f"there is no table {spelled}: it was deregistered; its data still exists, as lance.`{location.uri}`"
        )
    return dataset


def at_ref(dataset: LanceDataset, name: TableName) -> LanceDataset:
    """The version of a table that the part of a name after the @ stands for."""
    ref = name.ref or ""
    is_tag, is_branch = ref in dataset.tags.list(), ref == "main" or ref in dataset.branches.list()
    if is_tag and is_branch:
        raise InvalidInputError(f"{name}: the table has a branch and a tag {ref!r}; rename one of them")
    if is_tag:
        return dataset.checkout_version(ref)
    if is_branch:
        return dataset.checkout_version((ref, None))
    number = _VERSION.fullmatch(ref)
    if number is None:
        raise VersionNotFoundError(f"{name}: the table has no branch or tag {ref!r}; version 3 is written @v3")
    return dataset.checkout_version(int(number[1]))


def _place(uri: str) -> str:
    """A path or URI without its query, in the spelling that all paths and URIs of the same folder have."""
    return lance_core.canonical_uri(uri.partition("?")[0]).rstrip("/")
