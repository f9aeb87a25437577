"""Evaluate a filter in stages: columns of cheap conditions are read first, others for the rows that still match.

A condition on a dictionary-encoded column is evaluated once per dictionary entry rather than once per row. The column
is read as a dictionary array, whatever its type in the table, and only the rows that match are decoded to
plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.schema import Field, Schema, schema_to_arrow
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.expressions.arrow import columns_of, matching, matching_all
from lance_core.verbs.scan.projection import rows_without_columns
from lance_core.verbs.scan.read_fragment import OpenFiles, Rows, open_file, resolve_files_of_fields

Found = tuple[pa.RecordBatch, Rows, pa.Array]
"""Rows, their offsets in the fragment, and a mask of those that match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Conditions that AND joins, in the order in which they are evaluated.

    Attributes:
        schema: The columns of the first conditions, all of fixed width.
        first: The conditions on these columns.
        then: The other conditions.
        row_bytes: About how many bytes a row of `schema` has.
    """

    schema: Schema
    first: tuple[pc.Expression, ...]
    then: tuple[pc.Expression, ...]
    row_bytes: int


def stages_of(filter_columns: Schema, conditions: Sequence[pc.Expression]) -> Stages | None:
    """Choose the conditions to evaluate first: all that use only columns of fixed width.

    If all conditions are such, the first one is chosen, and those that use no other columns.

    Args:
        filter_columns: The columns of all conditions.
        conditions: The conditions, in the order in which they were written.

    Returns:
        The stages; None if no conditions or all conditions would come first.
    """
    widths = {field.name: fixed_width(field.type) for field in schema_to_arrow(filter_columns)}
    names = [set(columns_of(condition)) for condition in conditions]
    cheap = [used for used in names if used and all(widths.get(name) for name in used)]
    if not cheap:
        return None
    lead = cheap[0] if len(cheap) == len(names) else set().union(*cheap)
    first = tuple(c for c, used in zip(conditions, names, strict=True) if used and used <= lead)
    then = tuple(c for c, used in zip(conditions, names, strict=True) if not used or not used <= lead)
    if not then:
        return None
    schema = Schema(fields=tuple(f for f in filter_columns.fields if f.name in lead))
    return Stages(schema=schema, first=first, then=then, row_bytes=sum(widths[name] for name in lead))


def fixed_width(kind: pa.DataType) -> int:
    """Bytes of a value of a type of fixed width; 0 for other types."""
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return -(-int(kind.bit_width) // 8)
    return 0


def zipped_columns(
    first: Iterable[Found], other_columns: Iterator[tuple[pa.RecordBatch, Rows]], schema: pa.Schema
) -> Iterator[Found]:
    """Join the columns of two reads of the same rows, whose batches may differ in length.

    Args:
        first: Some columns.
        other_columns: Other columns of the same rows, in the same order.
        schema: The columns of the result.
    """
    waiting: pa.RecordBatch | None = None
    for batch, where, mask in first:
        position = 0
        while position < batch.num_rows:
            if waiting is None or not waiting.num_rows:
                waiting, _ = next(other_columns)
            count = min(waiting.num_rows, batch.num_rows - position)
            part = slice(position, position + count)
            joined = _join_columns(batch.slice(position, count), waiting.slice(0, count), schema)
            yield joined, where[part], mask.slice(position, count)
            waiting, position = waiting.slice(count), position + count


def _join_columns(batch: pa.RecordBatch, other_batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    other_names = set(other_batch.schema.names)
    columns = [(other_batch if field.name in other_names else batch).column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class BufferedRows:
    """Keeps the columns of matching rows that were read for the filter, until the other columns are read.

    Args:
        schema: The columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._position = 0
        self.num_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep these rows."""
        self._batches.append(batch)
        self.num_bytes += batch.nbytes

    def table(self) -> pa.Table:
        """All kept rows, in the chunks in which they were read."""
        return pa.Table.from_batches(self._batches, schema=self._schema)

    def put_back(self, rows: pa.Table, other_columns: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The next kept rows, joined with their other columns.

        Args:
            rows: All kept rows, with one chunk in each column.
            other_columns: The other columns of the next rows.
            schema: The columns of the result.
        """
        part = rows.slice(self._position, other_columns.num_rows)
        self._position += other_columns.num_rows
        batches = part.to_batches()
        return _join_columns(
            batches[0] if batches else pa.RecordBatch.from_pylist([], part.schema), other_columns, schema
        )


def rows_in_mask(batch: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    """The rows of a batch for which the mask is true; a batch without columns keeps its number of rows."""
    if mask.true_count == len(mask):
        return batch
    if batch.num_columns:
        return batch.filter(mask)
    return rows_without_columns(mask.true_count)


_STRINGS: Final = frozenset({"string", "large_string", "binary", "large_binary"})


def with_dictionaries(
    snapshot: Snapshot, fragment: Fragment, schema: Schema, opened: OpenFiles
) -> tuple[Schema, set[str]]:
    """The columns to read, with dictionary types for strings stored as dictionaries, and the names of those columns."""
    names = {field.name for field in schema.fields if field.logical_type in _STRINGS and not field.metadata}
    if not names:
        return schema, names
    strings = Schema(fields=tuple(field for field in schema.fields if field.name in names))
    stored: set[str] = set()
    for file, file_schema, columns in resolve_files_of_fields(fragment, strings):
        reader = open_file(snapshot, file, opened)
        stored.update(field.name for field in file_schema.fields if reader.has_dictionary(columns[field.id]))
    fields = tuple(_as_dictionary(field) if field.name in stored else field for field in schema.fields)
    return replace(schema, fields=fields), stored


def _as_dictionary(field: Field) -> Field:
    return replace(field, logical_type=f"dict:{field.logical_type}:uint32:false")


def matching_entries(
    batch: pa.RecordBatch, conditions: Sequence[pc.Expression], names: set[str], mask: pa.Array | None = None
) -> pa.Array:
    """For each row, whether all conditions are true; conditions on a single dictionary column are evaluated first.

    Args:
        batch: The rows.
        conditions: The conditions, at least one.
        names: Names of the columns that were read as dictionaries.
        mask: The rows for which the result may be true; None for all.

    Raises:
        InvalidInputError: A condition fails for some value, or does not fit the columns.
    """
    rest: list[pc.Expression] = []
    for condition in conditions:
        used = columns_of(condition)
        entry_matches = _of_entries(batch, condition, used[0]) if len(used) == 1 and used[0] in names else None
        if entry_matches is None:
            rest.append(condition)
        else:
            mask = entry_matches if mask is None else pc.and_(mask, entry_matches)
    if not rest:
        assert mask is not None
        return mask
    used_later = {name for condition in rest for name in columns_of(condition)}
    return matching_all(decoded(batch, names & used_later), rest, mask)


def _of_entries(batch: pa.RecordBatch, condition: pc.Expression, name: str) -> pa.Array | None:
    """For each row, whether its entry meets a condition; None if an entry, which may be in no row, raises an error."""
    column = batch.column(name)
    entries = pa.concat_arrays([column.dictionary, pa.nulls(1, column.type.value_type)])
    try:
        answers = matching(pa.RecordBatch.from_arrays([entries], [name]), condition)
    except InvalidInputError:
        return None
    indices = column.indices
    if indices.null_count:
        indices = indices.fill_null(len(entries) - 1)
    return answers.take(indices)


def decoded(batch: pa.RecordBatch, names: set[str]) -> pa.RecordBatch:
    """The batch with some dictionary columns decoded to plain values."""
    for name in names & set(batch.schema.names):
        index = batch.schema.get_field_index(name)
        column = batch.column(index)
        plain = column.dictionary_decode()
        batch = batch.set_column(index, batch.schema.field(index).with_type(plain.type), plain)
    return batch
