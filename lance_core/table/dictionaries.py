"""Dictionaries of 0.1 datasets: their values are repeated at the start of every manifest.

    offset 0   values page of each dictionary field, one after the other, as in a 0.1 data file (see `encoding.legacy`):
               plain values, or the bytes of the values and then i64 offsets into the file

The field's `dictionary` has the position of the values, or of their offsets, and their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lance_core.encoding.legacy.decoder import PageTable, read_dictionary_values
from lance_core.encoding.legacy.encoder import encode_page
from lance_core.encoding.page import run_steps
from lance_core.errors import CorruptFileError
from lance_core.schema import Field, Schema, arrow_type_of


def encode_dictionaries(schema: Schema) -> tuple[bytes, Schema]:
    """The values pages of all dictionaries of a schema, and the schema with their positions.

    The pages must be at the start of the file. Fields without values stay as they are.
    """
    parts: list[bytes] = []
    position = 0

    def place(field: Field) -> Field:
        nonlocal position
        if field.dictionary_values is None:
            return field
        page = encode_page(field, field.dictionary_values)
        start = position
        parts.append(page.data.tobytes())
        position += page.data.nbytes
        if page.offsets is not None:
            parts.append((page.offsets + start).astype("<i8").tobytes())
            start, position = position, position + page.offsets.nbytes
        return replace(field, dictionary=(start, page.length))

    placed = map_fields(schema, place)
    return b"".join(parts), placed


def read_dictionaries(schema: Schema, view: memoryview) -> Schema:
    """The schema with the values of its dictionaries.

    Raises:
        CorruptFileError: The values end after the file, or do not follow the format.
    """

    def read(field: Field) -> Field:
        if field.dictionary is None or not field.logical_type.startswith("dict:"):
            return field
        kind: Any = arrow_type_of(field)
        position, count = field.dictionary
        if position < 0 or not 0 <= count <= len(view):
            raise CorruptFileError(
                f"field {field.name!r} has a dictionary of {count} values at byte {position} of {len(view)}"
            )
        table = PageTable(pages={}, dictionaries={}, size=len(view))
        steps = read_dictionary_values(kind.value_type, table, position, count)
        values = run_steps(steps, lambda ranges: [np.frombuffer(view[a:b], np.uint8) for a, b in ranges])
        return replace(field, dictionary_values=values)

    return map_fields(schema, read)


def map_fields(schema: Schema, change: Callable[[Field], Field]) -> Schema:
    """The schema with every field changed, children before their parents."""

    def changed(field: Field) -> Field:
        children = tuple(changed(child) for child in field.children)
        return change(field if children == field.children else replace(field, children=children))

    return replace(schema, fields=tuple(changed(field) for field in schema.fields))
