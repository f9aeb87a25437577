"""The catalogs of a Spark application: names that stand for roots of tables.

    register_catalog(spark, "lake", "s3://bucket/lake", storage_options={...})
    lake.nyc.flights            ->   s3://bucket/lake/nyc/flights.lance

The storage options are kept in the memory of this process, not in Spark's settings, which its UI and event log show.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Final
from urllib.parse import urlsplit

from lance_core.catalog import Namespace, uri_below
from lance_core.errors import InvalidInputError
from pyspark_lance.engine.sessions import is_connect, reject_memory
from pyspark_lance.lazy import SparkSession

PATHS: Final = "lance"
"""The catalog whose tables are paths: lance.`s3://bucket/t.lance`."""
_RESERVED: Final = (PATHS, "spark_catalog", "system", "session", "global_temp")

_lock = threading.Lock()
_registered: dict[str, dict[str, Catalog]] = {}
"""The catalogs by application (or Connect session) and by name in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """A registered catalog: a name for a root folder of tables.

    Attributes:
        name: The first part of the names of its tables.
        root: The folder or object-store prefix; empty for a namespace.
        storage_options: Credentials and options of the storage.
        namespace: The properties of a namespace of others, which locates the tables; None for a root.
    """

    name: str
    root: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    namespace: Mapping[str, str] | None = field(default=None, repr=False)

    def below(self, path: str) -> str:
        """The URI of a path below the root."""
        return uri_below(self.root, path)


def register_catalog(
    spark: SparkSession,
    name: str,
    root: str | PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    namespace: Mapping[str, str] | None = None,
) -> None:
    """Give the tables below a root names, for `pyspark_lance.sql` and `LanceTable.forName`.

    `lake.nyc.flights` is the table `nyc/flights.lance` below the root of the catalog `lake`, as the IO manager of
    `lance_dagster` lays out its tables. Tables that the root's `__manifest` table lists (Lance's directory catalog) are
    found by the names that they have there. A name that was registered before gets the new root.

    Args:
        spark: A session of the application that uses the name; with Spark Connect, the session that uses it.
        name: The catalog: letters, digits and underscores, with no digit at the beginning.
        root: A folder or an object-store prefix. It need not exist yet. None with a namespace.
        storage_options: Credentials and options of the storage, by object_store's names. They are sent to the executors
            in pickled functions, and appear in no plan, setting or log.
        namespace: Properties of a namespace, such as `{"impl": "rest", "uri": "https://..."}`, in place of a root: it
            locates the tables, and `lake.shop.orders` has the id `["shop", "orders"]`.

    Raises:
        InvalidInputError: The name is reserved or has other characters, there are both a root and a namespace or
            neither, a property of the namespace is missing, or the root is empty, is in memory, or holds
            credentials.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "lake/nyc/flights.lance")
        >>> pyspark_lance.register_catalog(spark, "lake", "lake")
        >>> pyspark_lance.sql(spark, "select count(*) as rows from lake.nyc.flights").collect()
        [Row(rows=3)]
    """
    if not name.isascii() or not name.isidentifier():
        raise InvalidInputError(
            f"the name of a catalog has letters, digits and underscores only and begins with no digit, not {name!r}"
        )
    if name.lower() in _RESERVED:
        raise InvalidInputError(f"the name {name!r} is reserved: choose one other than {', '.join(_RESERVED)}")
    if (root is None) is (namespace is None):
        raise InvalidInputError("a catalog has a root or a namespace: give one of them")
    if namespace is not None:
        Namespace(namespace)  # mistakes in its properties are found here
    place = "" if root is None else fspath(root)
    if root is not None and not place.strip():
        raise InvalidInputError("the root of a catalog is empty; '.' is the working directory")
    reject_memory(place)
    user, at, host = urlsplit(place.partition("?")[0]).netloc.rpartition("@")
    if at and ":" in user:
        raise InvalidInputError(f"the root holds credentials before the @ of {host!r}: give them as storage_options")
    catalog = Catalog(
        name=name,
        root=place,
        storage_options=dict(storage_options) if storage_options else None,
        namespace=None if namespace is None else dict(namespace),
    )
    with _lock:
        _registered.setdefault(_application(spark), {})[name.lower()] = catalog


def catalogs_of(spark: SparkSession) -> dict[str, Catalog]:
    """The catalogs of a session's application, or of a Connect session, by name in lower case."""
    with _lock:
        return dict(_registered.get(_application(spark), {}))


def _application(spark: SparkSession) -> str:
    return str(spark.session_id if is_connect(spark) else spark.sparkContext.applicationId)  # type: ignore[attr-defined]  # Connect's
