"""Opens the store that serves a URI, by its scheme.

    /path, path, file:///path      LocalStore (also local:///path)
    memory://name/path             MemoryStore
    s3://bucket/path, s3a://...    S3Store (needs s3fs)
    s3+ddb://...?ddbTableName=T    S3Store, commits through DynamoDB (`store.external`)
    gs://..., az://..., abfss://...    CloudStore (needs obstore)
    <scheme>://...                 FsspecStore, for any other scheme that fsspec knows

With the storage option `manifest_store`, commits to any of these stores go through a database: `sqlite:///path` names a
file, `postgresql://user@host/name` a server.

One line in `_STORES` adds a store.
"""

from __future__ import annotations

# pathlib's resolve() follows symbolic links, which would change the URI.
# ruff: noqa: PTH100, PTH111
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

from lance_core.arguments import checked
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError
from lance_core.store.base import ObjectStore, escaped_path, unescaped_path
from lance_core.store.cloud import PLACES, CloudStore
from lance_core.store.dynamodb import DynamoDbTable
from lance_core.store.external import ExternallyCommittedStore, SqliteTable
from lance_core.store.fsspec import FsspecStore
from lance_core.store.local import LocalStore
from lance_core.store.memory import MemoryStore
from lance_core.store.options import OWN_OPTIONS, S3_OPTIONS, StorageOptions
from lance_core.store.postgres import PostgresTable
from lance_core.store.s3 import S3Store


@checked
def open_store(uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> ObjectStore:
    """Return the store of a URI; nothing is read or created.

    Args:
        uri: A path, or a URI of one of the schemes above.
        storage_options: Options under object_store's or s3fs's names; stores of local disks and memory ignore them,
            so that one set serves all stores of a dataset.

    Raises:
        InvalidInputError: The URI carries credentials or a query, or an option is not known.
        UnsupportedError: No store serves the scheme.
    """
    scheme, _ = split_uri(uri)
    make = _STORES.get(scheme, FsspecStore)
    options = storage_options if isinstance(storage_options, StorageOptions) else StorageOptions(storage_options)
    _check_own_options(options)
    store = make(canonical_uri(uri), options)
    database = options.get("manifest_store")
    if database is None:
        return store
    kind, path = split_uri(database)
    if kind == "sqlite":
        return ExternallyCommittedStore(store, SqliteTable(path, store.root))
    if kind in ("postgresql", "postgres"):
        return ExternallyCommittedStore(store, PostgresTable(database, store.root))
    raise InvalidInputError("storage option 'manifest_store' must be sqlite:///path or postgresql://host/name")


def open_base(path: str, root: str, options: Mapping[str, Any]) -> ObjectStore:
    """Return the store of a base path in a manifest.

    A manifest can come from an untrusted source, and opening a base path can send a request to a host that the manifest
    names, or run native code. Allowed are base paths of the dataset's own scheme, local disks, memory and the object
    storages, and those whose scheme is in the storage option `base_path_schemes`, a list separated by commas.

    Args:
        path: A path or URI.
        root: Root of the dataset whose manifest names the base path.
        options: Storage options of the dataset.

    Raises:
        UnsupportedError: The scheme is not allowed.
        CorruptFileError: The base path cannot be opened.
    """
    try:
        scheme = split_uri(path)[0]
        allowed = {*_BASE_SCHEMES, split_uri(root)[0], *options.get("base_path_schemes", "").lower().split(",")}
        if scheme not in allowed:
            raise UnsupportedError(
                f"{root}: the table keeps files at {scheme}://, which is not opened by default; to allow it, set the "
                f"storage option base_path_schemes={scheme}"
            )
        return open_store(path, options)
    except InvalidInputError as error:
        raise CorruptFileError(f"{root}: a base path of the manifest cannot be opened: {error}") from error


def open_object(
    uri: str, root: str, options: Mapping[str, Any], opened: dict[str, ObjectStore]
) -> tuple[ObjectStore, str]:
    """Return the store and the key of one object that a dataset refers to by its URI; the key has no percent-escapes.

    The schemes that are allowed are those of `open_base`.

    Args:
        uri: URI of the object.
        root: Root of the dataset.
        options: Storage options of the dataset.
        opened: The stores of earlier objects by their roots; a new store is added.

    Raises:
        UnsupportedError: The scheme is not allowed.
        CorruptFileError: The URI is invalid, or names no object.
    """
    try:
        place = canonical_uri(uri)
    except InvalidInputError as error:
        raise CorruptFileError(f"{root}: a URI of a blob cannot be opened: {error}") from error
    scheme, rest = split_uri(place)
    host, _, key = rest.partition("/")
    top = f"{scheme}://{host}" if scheme else "/"
    if not key:
        raise CorruptFileError(f"{root}: the URI of a blob names no object: {uri}")
    if top not in opened:
        opened[top] = open_base(top, root, options)
    # `canonical_uri` has resolved the escapes only in the URI of a local file.
    return opened[top], unescaped_path(key) if scheme else key


def split_uri(uri: str | os.PathLike[str]) -> tuple[str, str]:
    """Return scheme (empty for a path) and the rest of a URI; a single slash is allowed: `file:/path`.

    Raises:
        InvalidInputError: The URI is empty, has a character that no name can have, or has a scheme without a slash
            after it: `dbfs:path`.
    """
    string = os.fspath(uri)
    if not isinstance(string, str) or not string:
        raise InvalidInputError("a URI must be a non-empty string")
    _check_characters(string)
    scheme, separator, rest = string.partition("://")
    if separator and scheme.isascii() and "/" not in scheme:
        return scheme.lower(), rest
    one_slash = _ONE_SLASH.match(string)
    if one_slash:
        return one_slash.group(1).lower(), string[one_slash.end() :]
    no_slash = _NO_SLASH.match(string)
    if no_slash:
        name = no_slash.group(1)
        raise InvalidInputError(
            f"a URI of the scheme {name!r} needs a slash after the colon, as in {name}:/path or {name}://host/path; a "
            f"local file whose name begins with {name}: is given as ./{name}:..., or by its full path"
        )
    return "", string


@checked
def canonical_uri(uri: str | os.PathLike[str]) -> str:
    """Return the canonical spelling of a URI, in which URIs are stored and compared.

    Local paths are absolute, without scheme, `.` and `..`; other URIs have no slash at the end and no empty parts.
    Escapes of URIs are resolved, as pylance does; those stay that would be misread otherwise (`%25` before two
    hexadecimal digits, `%23`, `%3F`). A path without scheme is literal.

    Raises:
        InvalidInputError: The URI carries user information or a query, which can hold credentials, and URIs are
            written into manifests; or its escapes are no UTF-8, or name a control character; or it names no bucket,
            or is spelled as by other programs (`_OTHER_NAMES`).

    Examples:
        >>> lance.canonical_uri("s3a://lake//flights.lance/")
        's3://lake/flights.lance'
        >>> lance.canonical_uri("/lake/old/../flights.lance")
        '/lake/flights.lance'
        >>> lance.canonical_uri("s3://lake/new%20york.lance"), lance.canonical_uri("s3://lake/90%2525.lance")
        ('s3://lake/new york.lance', 's3://lake/90%2525.lance')
    """
    scheme, rest = split_uri(uri)
    if scheme == "":
        return os.path.abspath(os.path.expanduser(rest))
    if scheme in ("file", "local"):
        path = unquote(rest)
        _check_characters(path)
        return os.path.abspath("/" + path.removeprefix("localhost").lstrip("/"))
    if scheme in _OTHER_NAMES:
        raise InvalidInputError(f"there are no {scheme} URIs here: write {_OTHER_NAMES[scheme]}")
    host = rest.partition("/")[0]
    place = PLACES.get(_SPELLINGS.get(scheme, scheme).removesuffix("+ddb"))
    if not host and place is not None:
        raise InvalidInputError(f"{scheme} URIs must name a bucket or container: write {place}")
    if "@" in host and scheme not in _CONTAINER_SCHEMES:
        raise InvalidInputError(f"{scheme} URIs must not hold user information; pass storage_options")
    query = ""
    if scheme == "s3+ddb":
        rest, _, query = rest.partition("?")
        if not _DYNAMODB_QUERY.fullmatch(query):
            raise InvalidInputError("an s3+ddb URI must end with ?ddbTableName=<table>")
        query = "?" + query
    if "?" in rest or "#" in rest:
        raise InvalidInputError(
            f"{scheme} URIs must not hold a query or fragment; pass storage_options, such as azure_storage_sas_key, "
            "and write %3F and %23 for the characters ? and # of a name"
        )
    scheme = _SPELLINGS.get(scheme, scheme)
    host, slash, below = rest.partition("/")
    path = posixpath.normpath(host + slash + unescaped_path(below)).lstrip("/")
    if path in ("", ".") or path.startswith(".."):
        raise InvalidInputError(f"{scheme} URIs must name a folder below its root")
    host, slash, below = path.partition("/")
    return f"{scheme}://{host}{slash}{escaped_path(below)}{query}"


def join_uri(uri: str, path: str) -> str:
    """Return the URI of a path below another URI; a query stays at the end."""
    place, query = _split_query(uri)
    return f"{place}/{path}{query}"


def uri_below(root_uri: str | os.PathLike[str], path: str) -> str:
    """Return the URI of an unescaped path below a root, in the spelling of the root."""
    root = os.fspath(root_uri)
    return join_uri(root.rstrip("/"), escaped_path(path) if split_uri(root)[0] else path)


def uri_above(uri: str, path: str) -> str | None:
    """Return the inverse of `join_uri`: the URI above `path`; None if `uri` does not end with `path`."""
    place, query = _split_query(uri)
    above = place.removesuffix(f"/{path}")
    return None if above == place else above + query


def uris_above(uri: str) -> Iterator[tuple[str, str]]:
    """Yield each URI above a canonical one, the longest first, with the path that leads from it to the other."""
    place, query = _split_query(uri)
    scheme, separator, rest = place.rpartition("://")
    parts = rest.split("/")
    # A root in object storage is at least a folder of a bucket.
    first = 1 if not separator or scheme == "memory" else 2
    for count in range(len(parts) - 1, first - 1, -1):
        above = "/".join(parts[:count])
        if above:
            yield f"{scheme}{separator}{above}{query}", "/".join(parts[count:])


def _check_characters(string: str) -> None:
    """Reject characters that no file name can have, or that UTF-8, the encoding of manifests, cannot represent.

    Raises:
        InvalidInputError: The string has a NUL, or half of a surrogate pair.
    """
    if "\0" in string:
        raise InvalidInputError(f"a URI cannot contain a NUL character: {string!r}")
    if not string.isascii() and _SURROGATE.search(string):
        raise InvalidInputError(f"a URI must be valid Unicode, and {string!r} has half of a surrogate pair")


def _split_query(uri: str) -> tuple[str, str]:
    """A URI without its query, and the query that selects a database; only s3+ddb URIs have one."""
    place, mark, query = uri.partition("?") if split_uri(uri)[0] == "s3+ddb" else (uri, "", "")
    return place, mark + query


def _check_own_options(options: Mapping[str, str]) -> None:
    """Reject misspelled options of this library: ignoring them would change how commits are made.

    Raises:
        InvalidInputError: A key resembles an option of this library.
    """
    for key in options:
        if key not in OWN_OPTIONS and key not in S3_OPTIONS:
            near = get_close_matches(key.replace("-", "_"), OWN_OPTIONS, n=1, cutoff=0.75)
            if near:
                raise InvalidInputError(f"unknown storage option {key!r}: is {near[0]!r} meant?")


def _dynamodb_store(uri: str, options: StorageOptions) -> ObjectStore:
    place, _, query = uri.removeprefix("s3+ddb://").partition("?")
    table = DynamoDbTable(query.partition("=")[2], unescaped_path(place.partition("/")[2]), options)
    return ExternallyCommittedStore(_s3_store(f"s3://{place}", options), table, uri)


def _s3_store(root: str, options: StorageOptions) -> ObjectStore:
    """The store of S3 by the library that the storage option `s3_client` names."""
    library = options.get("s3_client", "s3fs")
    if library not in _S3_STORES:
        raise InvalidInputError(f"storage option 's3_client' is one of {', '.join(_S3_STORES)}, not {library!r}")
    return _S3_STORES[library](root, options)


_SURROGATE = re.compile("[\ud800-\udfff]")

# abfs://container@account.dfs.core.windows.net/path: the part before the @ is not a secret.
_CONTAINER_SCHEMES = ("abfs", "abfss")

_SPELLINGS = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}

_OTHER_NAMES = {
    **dict.fromkeys(("wasb", "wasbs", "adls", "azure"), PLACES["az"]),
    "r2": f"{PLACES['s3']}, with the storage option aws_endpoint",
    "onelake": "abfss://workspace@onelake.dfs.fabric.microsoft.com/path",
}
"""By schemes of other programs, how the place is written."""

# Hadoop's and Spark's spelling of a URI without a host. A single letter is a drive.
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_NO_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")

_BASE_SCHEMES = frozenset(
    {"", "file", "local", "memory", "s3", "s3a", "s3n", "s3+ddb", "gs", "gcs", "az", "abfs", "abfss", "adl"}
)

_DYNAMODB_QUERY = re.compile(r"ddbTableName=[A-Za-z0-9_.-]{1,255}")

_S3_STORES: dict[str, Callable[[str, StorageOptions], ObjectStore]] = {"s3fs": S3Store, "obstore": CloudStore}

_STORES: dict[str, Callable[[str, StorageOptions], ObjectStore]] = {
    "": LocalStore,
    "file": LocalStore,
    "local": LocalStore,
    "memory": MemoryStore,
    **dict.fromkeys(("s3", "s3a", "s3n"), _s3_store),
    "s3+ddb": _dynamodb_store,
    **dict.fromkeys(("gs", "gcs", "az", "abfs", "abfss"), CloudStore),
}
