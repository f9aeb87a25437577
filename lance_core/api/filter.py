"""Filters: Arrow expressions over the columns of a dataset."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import exported_metadata

__all__ = ["check_filter", "columns_of", "matching"]


def check_filter(filter_: object) -> pc.Expression | None:
    """The filter, if it is one that is offered.

    Raises:
        UnsupportedError: It is SQL text.
        InvalidInputError: It is something else.
    """
    if filter_ is None or isinstance(filter_, pc.Expression):
        return filter_
    if isinstance(filter_, str):
        raise UnsupportedError("filters as SQL text are not offered; pass a pyarrow.compute expression")
    raise InvalidInputError(f"a filter is a pyarrow.compute expression, not {type(filter_).__name__}")


def columns_of(expression: pc.Expression) -> list[str]:
    """Names of the top-level columns that an expression refers to, in order of first use.

    Arrow serializes an expression as the metadata of an (otherwise dull) IPC file: a list of
    `call`, `literal`, `field_ref` and `end` entries; `nested_field_ref: n` stands before the n parts of a path.
    """
    _, (buffer,) = expression.__reduce__()
    names: dict[str, None] = {}
    parts_left = 0
    for key, value in exported_metadata(pa.ipc.open_file(buffer).schema):
        if key == b"nested_field_ref":
            parts_left = -int(value)  # negative until its first part was seen
        elif key == b"field_ref":
            if parts_left <= 0:
                names.setdefault(value.decode())
            parts_left = max(abs(parts_left) - 1, 0)
    return list(names)


def matching(batch: pa.RecordBatch, expression: pc.Expression) -> pa.Array:
    """For each row whether the expression is true; null counts as false.

    Raises:
        InvalidInputError: The expression does not fit the columns.
    """
    from pyarrow import acero  # noqa: PLC0415 - it imports pandas

    try:
        project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"]))
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
        table = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
        raise InvalidInputError(f"filter {expression}: {error}") from error
    keep = table.column("keep")
    if not pa.types.is_boolean(keep.type):
        raise InvalidInputError(f"filter {expression} gives {keep.type}, not true or false")
    return pc.fill_null(keep, False).combine_chunks()
