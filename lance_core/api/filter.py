"""Filters: SQL text or Arrow expressions over the columns of a dataset."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.schema import Schema, exported_metadata

__all__ = ["check_filter", "columns_of", "matching", "prepare"]


def check_filter(filter_: object, schema: Schema | pa.Schema) -> pc.Expression | None:
    """The filter as an expression over columns in storage types.

    Raises:
        InvalidInputError: It is no condition, or no filter at all.
        SchemaError: The SQL refers to a column that does not exist.
        UnsupportedError: The SQL uses something that is not known.
    """
    if filter_ is None or isinstance(filter_, pc.Expression):
        return filter_
    if isinstance(filter_, str):
        from lance_core.api.sql import parse_filter  # noqa: PLC0415 - it imports the SQL parser

        return parse_filter(filter_, schema)
    raise InvalidInputError(f"a filter is SQL text or a pyarrow.compute expression, not {type(filter_).__name__}")


def columns_of(expression: pc.Expression) -> list[str]:
    """Names of the top-level columns that an expression refers to, in order of first use.

    Arrow serializes an expression as the metadata of an (otherwise dull) IPC file: a list of
    `call`, `literal`, `field_ref` and `end` entries; `nested_field_ref: n` stands before the n parts of a path.
    """
    names: dict[str, None] = {}
    parts_left = 0
    for key, value in _entries(expression):
        if key == b"nested_field_ref":
            parts_left = -int(value)  # negative until its first part was seen
        elif key == b"field_ref":
            if parts_left <= 0:
                names.setdefault(value.decode())
            parts_left = max(abs(parts_left) - 1, 0)
    return list(names)


def prepare(expression: pc.Expression) -> None:
    """Make Arrow know the functions of ours that an expression calls: it may come from another process."""
    _, (buffer,) = expression.__reduce__()
    if b"lance." in memoryview(buffer).tobytes():
        from lance_core.api.sql.python_functions import register  # noqa: PLC0415 - it imports the SQL parser

        register(value.decode() for key, value in _entries(expression) if key == b"call")


def matching(batch: pa.RecordBatch, expression: pc.Expression) -> pa.Array:
    """For each row whether the expression is true; null counts as false.

    Raises:
        InvalidInputError: The expression does not fit the columns.
    """
    from pyarrow import acero  # noqa: PLC0415 - it imports pandas

    prepare(expression)
    try:
        project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"]))
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
        table = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"filter {expression}: {error}") from error
    keep = table.column("keep")
    if not pa.types.is_boolean(keep.type):
        raise InvalidInputError(f"filter {expression} gives {keep.type}, not true or false")
    return pc.fill_null(keep, False).combine_chunks()


def _entries(expression: pc.Expression) -> Iterator[tuple[bytes, bytes]]:
    """The serialized expression, see `columns_of`."""
    _, (buffer,) = expression.__reduce__()
    yield from exported_metadata(pa.ipc.open_file(buffer).schema)
