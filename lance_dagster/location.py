"""Where the table of an asset is.

    {root_uri}/{schema}/{table}.lance

`table` is the last part of the asset key, or the metadata entry `table`. `schema` is, in this order: the metadata
entry `schema`, the `schema` of the IO manager, the part of the asset key before the last, "public". These are the
rules of Dagster's own database IO managers, so assets move over unchanged.

A table that others write can be anywhere: the metadata entry `lance/uri` of its asset names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

__all__ = ["TableLocation", "locate_table"]

# One folder name on every store and in every URI: no separators, no query, no escape, nothing hidden, no "..".
_SEGMENT = re.compile(r"[\w=@+-][\w=@+.-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """Where one table is.

    Attributes:
        uri: The URI of the Lance dataset.
        schema: The folder that it is in.
        table: Its name, without the suffix.
    """

    uri: str
    schema: str
    table: str

    @property
    def name(self) -> str:
        """`schema.table`, as Dagster's `dagster/table_name` shows it."""
        return f"{self.schema}.{self.table}"


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
        DagsterInvalidDefinitionError: a name cannot be a folder name everywhere.
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
        return TableLocation(uri=elsewhere.rstrip("/"), schema=schema, table=table)
    return TableLocation(uri=f"{root_uri.rstrip('/')}/{schema}/{table}.lance", schema=schema, table=table)


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    """A text entry of definition metadata, given plain or as Dagster's text value."""
    value = metadata.get(key)
    if isinstance(value, dg.TextMetadataValue):
        value = value.text
    return value if isinstance(value, str) and value else None
