"""The location of an asset's table.

    asset key                 table
    ---------                 -----
    events                    {root_uri}/public/events.lance
    nyc/flights               {root_uri}/nyc/flights.lance
    team1/events/daily        {root_uri}/team1/events/daily.lance

In a namespace, the key `events` is the id `events` of its root.
The whole key is the path, so that assets with different keys have different tables. The last part of the key is the
table, unless the metadata entry `table` replaces it. The parts before it are the schema, unless the metadata entry
`schema` or, without one, the IO manager's argument `schema` replaces them.

An asset that owns columns of another asset's table names that table in the metadata entry `lance/table`: an asset key,
or `schema.table`.

A table that others write can be anywhere: the metadata entry `lance/uri` of its asset is the table's URI, and
`lance/branch` the table's branch. The storage options of such a table are secrets, which metadata must not hold; they
are kept in the memory of the process that defines the asset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import dagster as dg

from lance_dagster.tables.names import FAILED_FOLDER, LOG_FOLDER, RESERVED_FOLDER, plain_metadata

if TYPE_CHECKING:
    import lance_core

OWN_BRANCH_KEY = "lance/branch"

_own_options: dict[tuple[str, str], Mapping[str, Any]] = {}
"""Storage options of tables that others write, by asset and URI; values can be `EnvVar`."""

# A name that is one folder on every store and in every URI: no separator, query or escape, and no leading dot.
_SEGMENT = re.compile(r"[\w=@+-][\w=@+.-]{0,199}")
_SUFFIX: Final = ".lance"
NO_LOCATION: Final = "namespace:/"
"""The root of URIs that stand for the tables that a namespace does not have yet; nothing can be opened there."""

_DEFAULT_SCHEMA: Final = "public"
SHARED_KEY: Final = "lance/shared_table"
"""Definition metadata of an asset that shares its table with others."""


TABLE_KEY: Final = "lance/table"
_RESERVED_FOLDERS: Final = {
    RESERVED_FOLDER: "holds the outputs of ops",
    LOG_FOLDER: "holds the log of maintenance",
    FAILED_FOLDER: "holds the failed rows of computed columns",
}
"""Definition metadata of an asset that owns columns of another asset's table: that asset's key, or schema.table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """The location of one table.

    Attributes:
        uri: The URI of the Lance dataset.
        schema: The folder that it is in, with slashes if it is nested.
        table: Its name, without the suffix.
        branch: The branch that the asset stands for, of a table that others write; None for main.
        own_options: Storage options of a table that others write, which replace the IO manager's; None for the IO
            manager's.
        path: The path relative to the root; None for a table that others write.
        object_id: Its id in a namespace, the parts joined by slashes.
        unlisted_id: The id by which the manifest table of the root should list the table, and does not yet.
        listed_id: The id by which the namespace lists it, parts joined by `$`; None in a plain root.
    """

    uri: str
    schema: str
    table: str
    branch: str | None = None
    own_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    path: str | None = None
    object_id: str = ""
    unlisted_id: str | None = None
    listed_id: str | None = None

    def options(self, usual: Mapping[str, str] | None) -> dict[str, str] | None:
        """The storage options by which the table is opened: its own, or else the usual ones."""
        return dict(usual or {}) or None if self.own_options is None else resolved_options(self.own_options)

    @property
    def name(self) -> str:
        """`schema.table`, as Dagster's `dagster/table_name` shows it; dots join the parts of a nested schema."""
        return f"{self.schema.replace('/', '.')}.{self.table}".removeprefix(".")


def checked_root(root_uri: Any) -> Any:
    """Check a configured root, and return it; an environment variable is checked once it has a value.

    Raises:
        DagsterInvalidDefinitionError: The root is empty, which would be the file system's root, has no slash behind its
            scheme, or holds credentials, which would show in the UI, in events and in errors.
    """
    if isinstance(root_uri, dg.EnvVar) or not isinstance(root_uri, str):
        return root_uri
    if not root_uri.strip():
        raise dg.DagsterInvalidDefinitionError(
            'root_uri is empty, which would be the root of the file system; name a folder, "." for the working '
            "directory, or an object-store prefix"
        )
    place, _, query = root_uri.partition("?")
    parts = urlsplit(place)
    if parts.scheme and not place[len(parts.scheme) + 1 :].startswith("/"):
        raise dg.DagsterInvalidDefinitionError(
            f"root_uri {place!r} has no slash after its scheme: write {parts.scheme}:/... or {parts.scheme}://..., or "
            f"./{place} for a local folder of that name"
        )
    reject_credentials("root_uri", root_uri)
    if query and parts.scheme != "s3+ddb":
        raise dg.DagsterInvalidDefinitionError(
            f"root_uri {place!r} has a query (after the ?); pass settings of the storage as storage_options"
        )
    return root_uri


def reject_credentials(what: str, uri: str) -> None:
    """Reject a URI with a user or password.

    Raises:
        DagsterInvalidDefinitionError: The URI has one; the error does not repeat it.
    """
    parts = urlsplit(uri.partition("?")[0])
    user, at, host = parts.netloc.rpartition("@")
    is_container = parts.scheme in ("abfs", "abfss", "adl") and ":" not in user
    if at and not is_container:
        raise dg.DagsterInvalidDefinitionError(
            f"{what} holds credentials (before the @ of {host!r}), and the UI, events and errors would show them; "
            "pass them as storage_options, each an EnvVar"
        )


def locate_table(
    root_uri: str, asset_key: dg.AssetKey, metadata: Mapping[str, object], *, default_schema: str | None
) -> TableLocation:
    """Find the table of an asset.

    Args:
        root_uri: The folder or object-store prefix that all tables are in.
        asset_key: The asset.
        metadata: Its definition metadata; `schema`, `table`, `lance/table`, `lance/uri` and `lance/branch` are used.
        default_schema: The IO manager's schema, if it has one.

    Raises:
        DagsterInvalidDefinitionError: A name cannot be a folder name on every store, or is that of a folder with other
            contents; `checked_root` rejects the root; `lance/table` names no table; or `lance/uri` holds credentials.
    """
    if TABLE_KEY in metadata:
        return _locate_named(root_uri, asset_key, metadata, default_schema=default_schema)
    path = asset_key.path
    named = _string(metadata, "schema") or default_schema
    folders, table = [named] if named else path[:-1], _string(metadata, "table") or path[-1]
    object_id = "/".join((*folders, table))
    folders = folders or ([] if root_uri == NO_LOCATION else [_DEFAULT_SCHEMA])
    schema = "/".join(folders)
    elsewhere = _string(metadata, "lance/uri")
    if elsewhere is not None:
        reject_credentials(f"asset {asset_key.to_user_string()}: its metadata lance/uri", elsewhere)
        return TableLocation(
            uri=elsewhere.rstrip("/"),
            schema=schema,
            table=table,
            branch=_string(metadata, OWN_BRANCH_KEY),
            own_options=_own_options.get((asset_key.to_user_string(), elsewhere)),
        )
    for segment in (*folders, table):
        if not _SEGMENT.fullmatch(segment):
            raise dg.DagsterInvalidDefinitionError(
                f"asset {asset_key.to_user_string()}: {segment!r} cannot be a folder name in {root_uri!r}: only "
                'letters, digits and "_=@+.-" are allowed, at most 200, and no "." in front. Give the asset the '
                'metadata "schema" or "table" with such a name.'
            )
    reserved_folders = [segment for segment in folders if segment.endswith(_SUFFIX)] or (
        folders[:1] if not _RESERVED_FOLDERS.keys().isdisjoint(folders[:1]) else []
    )
    if reserved_folders:
        reason = _RESERVED_FOLDERS.get(reserved_folders[0], "is the name of a table")
        raise dg.DagsterInvalidDefinitionError(
            f"asset {asset_key.to_user_string()}: its table cannot be in the folder {reserved_folders[0]!r}, "
            f'which {reason}. Give the asset the metadata "schema" with another folder'
        )
    path = "/".join((*folders, table)) + _SUFFIX
    uri = below_root(root_uri, path)
    return TableLocation(uri=uri, schema=schema, table=table, path=path, object_id=object_id)


def _locate_named(
    root_uri: str, asset_key: dg.AssetKey, metadata: Mapping[str, object], *, default_schema: str | None
) -> TableLocation:
    """The table that the entry `lance/table` names."""
    owner: Any = plain_metadata(metadata[TABLE_KEY])
    label = f"asset {asset_key.to_user_string()}"
    key: dg.AssetKey | None = None
    if isinstance(owner, str) and "." in owner and "/" not in owner:
        schema, _, table = owner.rpartition(".")
        parts = [*schema.split("."), table]
        return locate_table(root_uri, dg.AssetKey(parts), {}, default_schema=None)
    if isinstance(owner, dg.AssetKey):  # which is a tuple as well
        key = owner
    elif isinstance(owner, list | tuple) and owner and all(isinstance(part, str) for part in owner):
        key = dg.AssetKey(list(owner))
    elif isinstance(owner, str) and owner:
        key = dg.AssetKey.from_user_string(owner)
    if key is None:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {TABLE_KEY} must be the key of the asset that owns the table, such as "
            f'"nyc/flights", or schema.table, not {owner!r}'
        )
    if key == asset_key:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata {TABLE_KEY} names the asset itself; name another asset, whose table gets the columns, "
            "or leave the entry out"
        )
    return locate_table(root_uri, key, {}, default_schema=default_schema)


def below_root(root_uri: str, path: str) -> str:
    """The URI of a path below the root of an IO manager.

    Raises:
        DagsterInvalidDefinitionError: There is no root, as beside a namespace; or `checked_root` rejects it.
    """
    if not root_uri:
        raise dg.DagsterInvalidDefinitionError(
            f"{path} is below root_uri, which is not given: outputs of ops and the log of maintenance need a folder; "
            'give the IO manager, or the resource, one beside its namespace, such as root_uri="s3://bucket/operations"'
        )
    place, mark, query = checked_root(root_uri).partition("?")
    return f"{place.rstrip('/')}/{path}{mark}{query}"


def open_table(uri: str, **choices: Any) -> lance_core.LanceDataset:
    """Open the table at a URI of a location; the choices are those of `lance_core.dataset`.

    Raises:
        DatasetNotFoundError: The table does not exist, or the namespace does not have it yet.
        VersionNotFoundError: The table has no such version.
    """
    import lance_core  # noqa: PLC0415 - code locations load without it

    reject_no_location(uri)
    return lance_core.dataset(uri, **choices)


def reject_no_location(uri: str) -> None:
    """Reject the URI that stands for a table which a namespace does not have yet.

    Raises:
        DatasetNotFoundError: The URI stands for such a table.
    """
    from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

    if uri.startswith(NO_LOCATION):
        name = uri.removeprefix(NO_LOCATION)
        raise DatasetNotFoundError(f"the namespace has no table {name}: materialize its asset, or create it there")


def remember_options(asset_key: dg.AssetKey, uri: str, options: Mapping[str, Any]) -> None:
    """Keep the storage options of an asset's table, for everything that opens the table in this process."""
    _own_options[asset_key.to_user_string(), uri] = dict(options)


def resolved_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Storage options with the values of environment variables."""
    return {name: value.get_value() or "" if isinstance(value, dg.EnvVar) else value for name, value in options.items()}


def is_shared(metadata: Mapping[str, object], label: str) -> bool:
    """Whether an asset's metadata says that other assets write to its table as well.

    Raises:
        DagsterInvalidDefinitionError: The entry is neither True nor False.
    """
    value = plain_metadata(metadata.get(SHARED_KEY, False))
    if not isinstance(value, bool):
        raise dg.DagsterInvalidDefinitionError(f"{label}: metadata {SHARED_KEY} must be True or False, not {value!r}")
    return value


def _string(metadata: Mapping[str, object], key: str) -> str | None:
    """A string in definition metadata, which is a plain string or a value of `dg.MetadataValue.text`."""
    value = plain_metadata(metadata.get(key))
    return value if isinstance(value, str) and value else None
