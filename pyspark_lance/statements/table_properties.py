"""TBLPROPERTIES of a new table: those that say how it is stored, and its configuration.

embedding.arrow.fixed-size-list.size = 128    a vector            data_storage_version = 2.2       the file version
payload.lance.compression = zstd              an encoding         enable_stable_row_ids = true     row ids
anything else                                 the table's configuration
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.statements import records
from pyspark_lance.statements.run_rows import PARTITIONED_BY
from pyspark_lance.types.spark_types import VECTOR_WIDTH

__all__ = ["TableProperties", "encoded"]

_VECTOR: Final = f".{VECTOR_WIDTH}"
_ENCODED: Final = ".lance."
"""Between a column and a request for its encoding, which becomes metadata of the field."""
_FORMAT: Final = ("data_storage_version", "file_format_version")
_WHOLE: Final = re.compile(r"\d+")
_PART: Final = re.compile(r"\d*\.?\d+")
_ENCODINGS: Final = {
    "compression": re.compile("none|lz4|zstd|fsst"),
    "compression-level": _WHOLE,
    "structural-encoding": re.compile("miniblock|fullzip"),
    "bss": re.compile("on|off|auto"),
    "rle-threshold": _PART,
    "dict-divisor": _WHOLE,
    "dict-size-ratio": _PART,
    "dict-max-size": _WHOLE,
    "dict-values-compression": re.compile("none|lz4|zstd"),
    "dict-values-compression-level": _WHOLE,
    "minichunk-size": _WHOLE,
}
"""The requests for encodings, and their values."""
_STABLE: Final = "enable_stable_row_ids"
_COMMENT: Final = "comment"


class TableProperties:
    """The properties of a new table.

    Attributes:
        widths: Items of vectors, by column.
        encodings: Metadata that requests encodings, by column.
        version: The file version; None for the default.
        stable: Whether rows have stable ids.
        config: The configuration of the table.
    """

    def __init__(self, statement: records.CreateTable) -> None:
        given = dict(statement.properties)
        self.widths: dict[str, int] = {}
        for key in [key for key in given if key.endswith(_VECTOR)]:
            width = given.pop(key)
            if not width.isdecimal():
                raise InvalidInputError(f"TBLPROPERTIES: {key} is a number of items, not {width!r}")
            self.widths[key.removesuffix(_VECTOR)] = int(width)
        self.encodings: dict[str, dict[str, str]] = {}
        for key in [key for key in given if _ENCODED in key]:
            column, _, option = key.rpartition(_ENCODED)
            value = given.pop(key)
            if option not in _ENCODINGS:
                raise InvalidInputError(f"TBLPROPERTIES: {key}: {option!r} is none of {', '.join(_ENCODINGS)}")
            if not _ENCODINGS[option].fullmatch(value.lower()):
                raise InvalidInputError(f"TBLPROPERTIES: {key} is {value!r}; possible is {_ENCODINGS[option].pattern}")
            self.encodings.setdefault(column, {})[f"lance-encoding:{option}"] = value
        self.version = next((given.pop(key) for key in _FORMAT if key in given), None)
        self.stable = given.pop(_STABLE, "false").lower() == "true"
        if self.stable and statement.query is not None:
            raise InvalidInputError(f"TBLPROPERTIES: {_STABLE} needs a table that is created with columns, then filled")
        if statement.comment is not None:
            given[_COMMENT] = statement.comment
        if statement.partitioned_by:
            given[PARTITIONED_BY] = ",".join(statement.partitioned_by)
        self.config = given


def encoded(schema: pa.Schema, encodings: Mapping[str, Mapping[str, str]]) -> pa.Schema:
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
