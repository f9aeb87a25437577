"""TBLPROPERTIES of a new table: those that determine how it is stored, and its configuration.

    embedding.arrow.fixed-size-list.size = 128    a vector            data_storage_version = 2.2     the file version
    payload.lance.compression = zstd              an encoding         enable_stable_row_ids = true   row ids
    anything else                                 the table's configuration

SHOW CREATE TABLE prints the same properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.types.spark_types import VECTOR_WIDTH
from pyspark_lance.writing.options import PARTITIONED_BY, stored_partition_by

COMMENT: Final = "comment"
"""Key of the metadata of a column, or of the configuration of a table, with its comment."""
_INTERNAL: Final = "lance-dagster."
"""The beginning of the keys that lance_core, lance_dagster and pyspark_lance keep in a table's configuration."""
_VECTOR: Final = f".{VECTOR_WIDTH}"
_ENCODED: Final = ".lance."
"""Between a column and a request for its encoding, which becomes metadata of the field."""
_FORMAT: Final = ("data_storage_version", "file_format_version")
_WHOLE: Final = (re.compile(r"\d+"), "a whole number, such as 3")
_PART: Final = (re.compile(r"\d*\.?\d+"), "a number, such as 0.5")
_CODECS: Final = (re.compile("none|lz4|zstd"), "none, lz4 or zstd")
_ENCODINGS: Final = {
    "compression": (re.compile("none|lz4|zstd|fsst"), "none, lz4, zstd or fsst"),
    "compression-level": _WHOLE,
    "structural-encoding": (re.compile("miniblock|fullzip"), "miniblock or fullzip"),
    "bss": (re.compile("on|off|auto"), "on, off or auto"),
    "rle-threshold": _PART,
    "dict-divisor": _WHOLE,
    "dict-size-ratio": _PART,
    "dict-max-size": _WHOLE,
    "dict-values-compression": _CODECS,
    "dict-values-compression-level": _WHOLE,
    "minichunk-size": _WHOLE,
}
"""The requests for encodings: the pattern of the values, and the values in words."""
_METADATA: Final = "lance-encoding:"
"""Before a request for an encoding, in the metadata of a field."""
_STABLE: Final = "enable_stable_row_ids"


class TableProperties:
    """The properties of a new table.

    Attributes:
        widths: Items of vectors, by column.
        encodings: Metadata that requests encodings, by column.
        version: The file version; None for the default.
        stable: Whether rows have stable ids.
        config: The configuration of the table.
        partitions: The columns of PARTITIONED BY.

    Args:
        properties: What the statement says.
        partitioned_by: The columns of PARTITIONED BY.
        has_query: Whether the statement has a query.
    """

    def __init__(self, properties: Mapping[str, str], partitioned_by: Sequence[str], *, has_query: bool) -> None:
        properties = dict(properties)
        self.widths: dict[str, int] = {}
        for key in [key for key in properties if key.endswith(_VECTOR)]:
            width = properties.pop(key)
            if not width.isdecimal():
                raise InvalidInputError(f"TBLPROPERTIES: {key} must be a number of items, not {width!r}")
            self.widths[key.removesuffix(_VECTOR)] = int(width)
        self.encodings: dict[str, dict[str, str]] = {}
        for key in [key for key in properties if _ENCODED in key]:
            column, _, option = key.rpartition(_ENCODED)
            value = properties.pop(key)
            if option not in _ENCODINGS:
                raise InvalidInputError(f"TBLPROPERTIES: {key}: {option!r} is none of {', '.join(_ENCODINGS)}")
            pattern, words = _ENCODINGS[option]
            if not pattern.fullmatch(value.lower()):
                raise InvalidInputError(f"TBLPROPERTIES: {key} is {value!r}, and must be {words}")
            self.encodings.setdefault(column, {})[f"{_METADATA}{option}"] = value
        self.version = _file_version(properties)
        stable = properties.pop(_STABLE, "false")
        if stable.lower() not in ("true", "false"):
            raise InvalidInputError(f"TBLPROPERTIES: {_STABLE} is {stable!r}, and must be true or false")
        self.stable = stable.lower() == "true"
        if self.stable and has_query:
            raise InvalidInputError(f"TBLPROPERTIES: {_STABLE} needs a table that is created with columns, then filled")
        self.partitions = partitioned_by
        if partitioned_by:
            properties[PARTITIONED_BY] = stored_partition_by(partitioned_by)
        self.config = properties

    def find_dropped_keys(self, config: Mapping[str, str]) -> list[str]:
        """Find the keys of a table's configuration that a statement which replaces the table does not give again."""
        new_keys = self.config.keys()
        return [key for key in config if (_is_own(key) or key == PARTITIONED_BY) and key not in new_keys]


def properties_of(dataset: LanceDataset) -> dict[str, str]:
    """The configuration of a table, without what lance_core, lance_dagster and pyspark_lance keep there."""
    return {key: value for key, value in sorted(dataset.config().items()) if _is_own(key)}


def _is_own(key: str) -> bool:
    return not key.startswith(_INTERNAL)


def _file_version(properties: dict[str, str]) -> str | None:
    """Take the file version out of the properties, which have two names for it."""
    file_versions = {key: properties.pop(key) for key in _FORMAT if key in properties}
    if len(set(file_versions.values())) > 1:
        both = " and ".join(f"{key} = {value!r}" for key, value in file_versions.items())
        raise InvalidInputError(f"TBLPROPERTIES: {both} both name the version of the file format: leave one out")
    return next(iter(file_versions.values()), None)


def format_properties(dataset: LanceDataset) -> dict[str, str]:
    """The TBLPROPERTIES that give a new table the storage format of this table; its configuration is left out."""
    properties: dict[str, str] = {}
    for field in dataset.schema:
        if pa.types.is_fixed_size_list(field.type):
            properties[f"{field.name}{_VECTOR}"] = str(field.type.list_size)
        for key, value in (field.metadata or {}).items():
            option = key.decode().removeprefix(_METADATA)
            if key.decode().startswith(_METADATA) and option in _ENCODINGS:
                properties[f"{field.name}{_ENCODED}{option}"] = value.decode()
    properties[_FORMAT[0]] = dataset.data_storage_version
    if dataset.has_stable_row_ids:
        properties[_STABLE] = "true"
    return properties


def with_encodings(schema: pa.Schema, encodings: Mapping[str, Mapping[str, str]]) -> pa.Schema:
    """The columns with the encodings that are requested for them.

    Raises:
        SchemaError: There is no such column.
    """
    unknown = set(encodings) - set(schema.names)
    if unknown:
        raise SchemaError(f"TBLPROPERTIES: there are no columns {sorted(unknown)}; the columns are {schema.names}")
    for name, metadata in encodings.items():
        index = schema.names.index(name)
        field = schema.field(index)
        schema = schema.set(index, field.with_metadata({**(field.metadata or {}), **metadata}))
    return schema
