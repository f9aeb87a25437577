"""The location of an asset's table.

    {root_uri}/{schema}/{table}.lance

`table` is the last part of the asset key, or the metadata entry `table`. `schema` is, in this order: the metadata
entry `schema`, the `schema` of the IO manager, the part of the asset key before the last, "public". These are the
rules of Dagster's own database IO managers, so assets move over unchanged.

A table that others write can be anywhere: the metadata entry `lance/uri` of its asset names it, and `lance/branch` the
branch of it that the asset is. Storage options of its own are secrets, which no metadata may hold: the process that
defines the asset remembers them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import dagster as dg

__all__ = [
    "OWN_BRANCH_KEY",
    "TableLocation",
    "checked_root",
    "locate_table",
    "refuse_credentials",
    "remember_options",
    "resolved_options",
]

OWN_BRANCH_KEY = "lance/branch"

_own_options: dict[tuple[str, str], Mapping[str, Any]] = {}
"""Storage options of tables that others write, by asset and URI; values can be `EnvVar`."""

# One folder name on every store and in every URI: no separators, no query, no escape, nothing hidden, no "..".
_SEGMENT = re.compile(r"[\w=@+-][\w=@+.-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """The location of one table.

    Attributes:
        uri: The URI of the Lance dataset.
        schema: The folder that it is in.
        table: Its name, without the suffix.
        branch: The branch that the asset is, of a table that others write; None for main.
        own_options: Storage options of such a table, which take the place of the IO manager's; None without any.
    """

    uri: str
    schema: str
    table: str
    branch: str | None = None
    own_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def options(self, usual: Mapping[str, str] | None) -> dict[str, str] | None:
        """The storage options to reach it: its own, or else the usual ones."""
        return dict(usual or {}) or None if self.own_options is None else resolved_options(self.own_options)

    @property
    def name(self) -> str:
        """`schema.table`, as Dagster's `dagster/table_name` shows it."""
        return f"{self.schema}.{self.table}"


def checked_root(root_uri: Any) -> Any:
    """Check a configured root, and return it; an environment variable is checked once it has a value.

    Raises:
        DagsterInvalidDefinitionError: it is empty, which would be the file system's root, has no slash behind its
            scheme, or holds credentials, which would show in the UI, in events and in errors.
    """
    if isinstance(root_uri, dg.EnvVar) or not isinstance(root_uri, str):
        return root_uri
    if not root_uri.strip():
        raise dg.DagsterInvalidDefinitionError(
            'root_uri is empty, and tables would be put below the root of the file system; name a folder, "." for the '
            "working directory, or an object-store prefix"
        )
    place, _, query = root_uri.partition("?")
    parts = urlsplit(place)
    if parts.scheme and not place[len(parts.scheme) + 1 :].startswith("/"):
        raise dg.DagsterInvalidDefinitionError(
            f"root_uri {place!r} has a scheme and no slash behind it: it is {parts.scheme}:/... or {parts.scheme}://...;"
            f" a local folder of that name is ./{place}"
        )
    refuse_credentials("root_uri", root_uri)
    if query and parts.scheme != "s3+ddb":
        raise dg.DagsterInvalidDefinitionError(
            f"root_uri {place!r} has a query (after the ?); settings of the storage belong to storage_options"
        )
    return root_uri


def refuse_credentials(what: str, uri: str) -> None:
    """Make sure that a URI names no user or password.

    Raises:
        DagsterInvalidDefinitionError: It does; the error does not repeat them.
    """
    parts = urlsplit(uri.partition("?")[0])
    user, at, host = parts.netloc.rpartition("@")
    is_container = parts.scheme in ("abfs", "abfss", "adl") and ":" not in user
    if at and not is_container:
        raise dg.DagsterInvalidDefinitionError(
            f"{what} holds credentials (before the @ of {host!r}), and it is shown in the UI, in events and in errors; "
            "give them as storage_options, each an EnvVar"
        )


def locate_table(
    root_uri: str, asset_key: dg.AssetKey, metadata: Mapping[str, object], *, default_schema: str | None
) -> TableLocation:
    """Find the table of an asset.

    Args:
        root_uri: The folder or object-store prefix that all tables are in.
        asset_key: The asset.
        metadata: Its definition metadata; `schema` and `table` are used.
        default_schema: The IO manager's schema, if it has one.

    Raises:
        DagsterInvalidDefinitionError: a name cannot be a folder name everywhere, or `checked_root` refuses the root.
    """
    path = asset_key.path
    schema = _text(metadata, "schema") or default_schema or (path[-2] if len(path) > 1 else "public")
    table = _text(metadata, "table") or path[-1]
    for segment in (schema, table):
        if not _SEGMENT.fullmatch(segment):
            raise dg.DagsterInvalidDefinitionError(
                f"asset {asset_key.to_user_string()}: {segment!r} cannot be a folder name in {root_uri!r}: only "
                'letters, digits and "_=@+.-" are allowed, and no "." in front. Give the asset the metadata "schema" '
                'or "table" with a name that can.'
            )
    elsewhere = _text(metadata, "lance/uri")
    if elsewhere is not None:
        refuse_credentials(f"asset {asset_key.to_user_string()}: its metadata lance/uri", elsewhere)
        return TableLocation(
            uri=elsewhere.rstrip("/"),
            schema=schema,
            table=table,
            branch=_text(metadata, OWN_BRANCH_KEY),
            own_options=_own_options.get((asset_key.to_user_string(), elsewhere)),
        )
    place, mark, query = checked_root(root_uri).partition("?")
    return TableLocation(uri=f"{place.rstrip('/')}/{schema}/{table}.lance{mark}{query}", schema=schema, table=table)


def remember_options(asset_key: dg.AssetKey, uri: str, options: Mapping[str, Any]) -> None:
    """Reach the table of an asset with storage options of its own, whoever opens it in this process."""
    _own_options[asset_key.to_user_string(), uri] = dict(options)


def resolved_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Storage options with the values of environment variables."""
    return {name: value.get_value() or "" if isinstance(value, dg.EnvVar) else value for name, value in options.items()}


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    """A text entry of definition metadata, given plain or as Dagster's text value."""
    value = metadata.get(key)
    if isinstance(value, dg.TextMetadataValue):
        value = value.text
    return value if isinstance(value, str) and value else None
