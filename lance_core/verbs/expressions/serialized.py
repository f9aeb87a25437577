"""Read and rewrite Arrow expressions by the entries of their serialized form.

Arrow serializes an expression as the metadata of an IPC file: a list of `call`, `literal`, `field_ref`, `options` and
`end` entries, where literals and options are numbers of columns of its only batch; `nested_field_ref: n` stands before
the n parts of a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.extension_types import exported_metadata
from lance_core.verbs.expressions.printed import format_expr

Entry: TypeAlias = tuple[bytes, bytes]
Node: TypeAlias = "Entry | list[Any]"
"""An entry, or the entries of a part of an expression, in nested lists."""

_POSITIONS: Final = (b"literal", b"options")


@dataclass(frozen=True, slots=True)
class Pieces:
    """A serialized expression.

    Attributes:
        entries: Its entries.
        columns: The values of its literals and options, arrays of one value each.
    """

    entries: list[Entry]
    columns: list[pa.Array]

    def after(self, number: int) -> list[Entry]:
        """The entries, with their literals and options renumbered to follow `number` other columns."""
        return [(key, str(int(value) + number).encode() if key in _POSITIONS else value) for key, value in self.entries]


def serialize(expression: pc.Expression, run: Callable[..., Any] = lambda function: function()) -> pa.Buffer:
    """The serialized form of an expression.

    Args:
        expression: The expression.
        run: Calls the function that serializes it; `in_deep_thread` for an expression of many levels.

    Raises:
        InvalidInputError: The expression refers to a column by its position, which Arrow does not serialize.
    """
    try:
        _, (buffer,) = run(expression.__reduce__)
    except pa.ArrowNotImplementedError as error:
        what = f"the expression {format_expr(expression)} refers to a column by its position"
        raise InvalidInputError(f"{what}; use its name instead: {error}") from error
    return buffer


def parse_serialized(buffer: pa.Buffer) -> Pieces:
    """Parse a serialized expression into its entries and the values of its literals and options."""
    reader = pa.ipc.open_file(buffer)
    columns = reader.get_batch(0).columns if reader.num_record_batches else []
    return Pieces(list(exported_metadata(reader.schema)), list(columns))


def deserialize(node: Node, columns: list[pa.Array]) -> pc.Expression:
    """Build an expression from its entries; the numbers of literals and options are positions in `columns`."""
    schema = pa.schema(
        [pa.field(str(position), column.type) for position, column in enumerate(columns)],
        metadata=pa.KeyValueMetadata(flatten(node)),
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema) if columns else _nothing(schema))
    return pc.Expression._deserialize(sink.getvalue())  # noqa: SLF001 - what pickle calls


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    """A row without columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([]))).replace_schema_metadata(schema.metadata)


def flatten(node: Node) -> list[Entry]:
    """The entries of a nested list, in order."""
    entries: list[Entry] = []
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, tuple):
            entries.append(part)
        else:
            stack.extend(reversed(part))
    return entries
