"""What writers of files do before rows are encoded: a plan for the columns, checks of values, and copies of some.

`write_plan` computes the plan of a schema once for all its files.

`check_utf8` rejects strings that are not UTF-8: readers reject a whole page in which there is one.

Arrow makes such strings where bytes are reinterpreted, for example by readers of files whose encoding was guessed. The
bytes of a chunk are checked at once, which takes a fraction of the time of checking each string: if they are UTF-8, and
no string begins within a character, every string is UTF-8. Strings of ASCII take a thirtieth of the time again.

`check_nulls` rejects nulls in fields that are not nullable, at every level of nesting.

Buffers the rows of columns until they fill a page, and limits the memory that buffered rows hold.

A slice holds the whole memory of its array. A column of a batch of another library may hold the memory of the batch:

    memory of a batch     |id|label|image .....................................|
                           ^^ is buffered for a page of megabytes, and holds the memory of the images, although these
                              are written already

Therefore columns that are narrow compared with the others are copied after some megabytes of rows, most of which are
written by then. Wide columns are not copied: they hold little more memory than their buffered rows and soon fill pages.

Arrow's allocator keeps freed memory for about a second, in which a stream yields many batches. Therefore it is asked to
release unused memory to the system after every few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from lance_core.encoding.choosing.options import Packable, check_writable, read_encoding_options
from lance_core.encoding.concatenate import concatenate
from lance_core.encoding.repdef import has_nulls_inside
from lance_core.encoding.repeat import Leaf, leaf_of
from lance_core.errors import SchemaError, UnsupportedError
from lance_core.extension_types import is_any_list
from lance_core.file.metadata import FileVersion
from lance_core.schema import Field, Schema, schema_to_arrow
from lance_core.schema.field import column_fields, is_blob, is_blob_v2, layer_kind, plain_columns

_SHOWN: Final = 40
_FIRST_NOT_ASCII: Final = 0x80
_FIRST_OF_SEVERAL: Final = 0xC0
"""Bytes between these two continue a character."""


def has_strings(kind: pa.DataType) -> bool:
    """Whether values of a type are strings, or have strings in them."""
    if pa.types.is_dictionary(kind):
        return has_strings(kind.value_type)
    return _is_string(kind) or any(has_strings(kind.field(index).type) for index in range(kind.num_fields))


def checked_strings(name: str, array: pa.Array, first_row: int) -> pa.Array:
    """The values of a column, whose strings must be UTF-8; bytes that no value has are left out if they are not.

    Args:
        name: The column.
        array: Some of its values.
        first_row: Number of the first value, for the message.

    Raises:
        SchemaError: A string is not UTF-8; the message names column and row.
    """
    if _is_all_valid(array):
        return array
    for row, value in enumerate(array):
        try:
            value.as_py()
        except UnicodeDecodeError as error:
            shown = error.object if len(error.object) <= _SHOWN else error.object[:_SHOWN] + b"..."
            raise SchemaError(
                f"column {name!r}: row {first_row + row} has a string that is not UTF-8: {shown!r}; decode it by "
                "the encoding that it has, or store the column as binary"
            ) from None
    return _drop_hidden(array)


def check_utf8(rows: pa.RecordBatch | pa.Table, first_row: int = 0) -> None:
    """Make sure that the strings of rows are UTF-8.

    Args:
        rows: The rows.
        first_row: Number of the first one, for the message.

    Raises:
        SchemaError: A string is not UTF-8; the message names column and row.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if has_strings(column.type):
            row = first_row
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                checked_strings(name, chunk, row)
                row += len(chunk)


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_all_valid(array: Any) -> bool:
    """Whether all bytes that would be stored are UTF-8, also those of nulls."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _is_all_valid(array.dictionary)
    if _is_string(kind):
        return _is_utf8(array)
    if pa.types.is_struct(kind):
        return all(_is_all_valid(array.field(index)) for index, child in enumerate(kind) if has_strings(child.type))
    if pa.types.is_map(kind):
        return all(_is_all_valid(part) for part in (array.keys, array.items) if has_strings(part.type))
    return not has_strings(kind) or _is_all_valid(array.flatten())


def _is_utf8(array: Any) -> bool:
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return True
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    bounds = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    used = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    if not used.size or int(used.max()) < _FIRST_NOT_ASCII:
        return True
    first = used[bounds[:-1][bounds[:-1] < bounds[-1]] - bounds[0]]
    if ((first >= _FIRST_NOT_ASCII) & (first < _FIRST_OF_SEVERAL)).any():
        return False
    ends = pa.array([0, used.size], pa.int64()).buffers()[1]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(used)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _drop_hidden(array: Any) -> pa.Array:
    """The array without bytes that no value has, such as those of nulls and of unused items of a dictionary."""
    kind = array.type
    if not has_strings(kind) or pa.types.is_fixed_size_list(kind):
        return array
    if pa.types.is_dictionary(kind):
        return array.dictionary_decode().dictionary_encode().cast(kind)
    if pa.types.is_struct(kind):
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(
            [_drop_hidden(child) for child in array.flatten()], fields=list(kind), mask=mask
        )
    array = array.take(pa.array(np.arange(len(array))))
    if _is_string(kind):
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[_drop_hidden(array.values)])


def check_nulls(field: Field, array: pa.Array) -> None:
    """Make sure that values are null only where nulls are allowed; values below a null struct are not checked.

    Args:
        field: A top-level field.
        array: Values of its Arrow type.

    Raises:
        SchemaError: A value is null where nulls are not allowed.
    """
    if not field.nullable and array.null_count:
        raise SchemaError(f"column {field.name!r} is not nullable, but the data has nulls in it")
    if has_strict_items(field):
        _check_items(array, field.name)


def has_strict_items(field: Field) -> bool:
    """Whether a field below this one is not nullable, besides the entries and keys of maps, which are never null."""
    if field.logical_type == "map":
        key, value = field.children[0].children
        return not value.nullable or has_strict_items(key) or has_strict_items(value)
    return any(not child.nullable or has_strict_items(child) for child in field.children)


def _check_items(array: pa.Array, name: str) -> None:
    """Check the children of a type: Arrow's cast accepts null items in a list that must not have them."""
    kind = array.type
    if pa.types.is_struct(kind):
        # Flattened children are null where the struct is null, so that inner levels know the outer nulls.
        for index, (child, values) in enumerate(zip(kind, array.flatten(), strict=True)):
            if not child.nullable and has_nulls_inside(array, index):
                raise SchemaError(
                    f"column {name!r}: field {child.name!r} is not nullable, but the data has nulls in it"
                )
            _check_items(values, name)
    elif pa.types.is_map(kind):
        # As lists of structs, which can be flattened: maps cannot.
        entries = array.values
        lists: Any = pa.Array.from_buffers(
            pa.list_(entries.type), len(array), array.buffers()[:2], offset=array.offset, children=[entries]
        )
        _check_items(lists, name)
    elif is_any_list(kind):
        _check_item(kind.value_field, array.flatten(), name)


def _check_item(field: pa.Field, items: pa.Array, name: str) -> None:
    if not field.nullable and items.null_count:
        raise SchemaError(f"column {name!r}: items of the list are not nullable, but the data has nulls in it")
    _check_items(items, name)


_PACKABLE: Final = {
    FileVersion.V2_0: Packable(lists=True, strings=False),
    FileVersion.V2_1: Packable(lists=False, strings=False),
    FileVersion.V2_2: Packable(lists=True, strings=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnWritePlan:
    """The plan for writing one top-level field.

    Attributes:
        field: The field.
        target: The Arrow type that is written.
        first_column: Number of its first column in the file.
        is_checked: Whether values have to be checked for nulls that are not allowed.
        has_strings: Whether values are strings or have strings in them, which have to be UTF-8.
        is_blob: Whether payloads are stored outside of the pages.
        leaf: The memory layout of the values, if the field is a single column of numbers or strings without metadata;
            else None.
    """

    field: Field
    target: pa.DataType
    first_column: int
    is_checked: bool
    has_strings: bool
    is_blob: bool
    leaf: Leaf | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritePlan:
    """The plan for writing files of a schema and a version.

    Attributes:
        arrow_schema: The types that are written.
        columns: One plan per top-level field.
        fields: The fields that have columns, in their order.
        field_ids: Their ids.
    """

    arrow_schema: pa.Schema
    columns: tuple[ColumnWritePlan, ...]
    fields: tuple[Field, ...]
    field_ids: tuple[int, ...]


def write_plan(schema: Schema, version: FileVersion) -> FileWritePlan:
    """The plan for a schema.

    Raises:
        UnsupportedError: The version cannot store the schema.
        InvalidInputError: The metadata of a field requests an impossible encoding.
    """
    name = f"plan {version.value}"
    plan: FileWritePlan | None = schema.memo.get(name)
    if plan is None:
        plan = schema.memo[name] = _compute(schema, version)
    return plan


def columns_of(schema: Schema, version: FileVersion) -> list[Field]:
    """The fields that have columns in a file of that version."""
    if version.has_levels:
        return column_fields(schema)
    return [field for top in schema.fields for field in plain_columns(top)]


def _compute(schema: Schema, version: FileVersion) -> FileWritePlan:
    _check_blobs(schema, version)
    for field, _ in schema.walk():
        read_encoding_options(field)
        check_writable(field, _PACKABLE.get(version), version.value)
    arrow_schema = schema_to_arrow(schema)
    columns: list[ColumnWritePlan] = []
    fields: list[Field] = []
    for field, target in zip(schema.fields, arrow_schema.types, strict=True):
        plan = ColumnWritePlan(
            field=field,
            target=target,
            first_column=len(fields),
            is_checked=not field.nullable or has_strict_items(field),
            has_strings=has_strings(target),
            is_blob=any(is_blob(node) or is_blob_v2(node) for node, _ in field.walk()),
            leaf=leaf_of(target) if version.has_levels and not field.children and not field.metadata else None,
        )
        columns.append(plan)
        fields += columns_of(Schema(fields=(field,)), version)
    field_ids = tuple(field.id for field in fields)
    return FileWritePlan(arrow_schema=arrow_schema, columns=tuple(columns), fields=tuple(fields), field_ids=field_ids)


def _check_blobs(schema: Schema, version: FileVersion) -> None:
    """Make sure that blobs of 2.2 are in a 2.2 file, and that others are top-level columns.

    The reference library reads the blobs that it writes inside of structs, but not plain bytes in their place.
    """
    for top in schema.fields:
        for field, _ in top.walk():
            if is_blob(field) and field is not top and version is not FileVersion.V0_1:
                raise UnsupportedError(
                    f"field {field.name!r} of column {top.name!r}: blobs of 2.0 and 2.1 inside of other types "
                    "cannot be written; write rows of this table with pylance, or to a new table of version 2.2"
                )
            is_map = field.logical_type == "map"
            has_blobs = any(is_blob_v2(node) for node, _ in field.walk())
            if has_blobs and (is_map or layer_kind(field) == "fixed_size_list"):
                kind, other = ("map", "list of structs") if is_map else ("fixed size list", "list of any length")
                raise UnsupportedError(
                    f"field {field.name!r} of column {top.name!r}: blobs cannot be inside of a {kind}; use a {other}"
                )
            if is_blob_v2(field) and version is not FileVersion.V2_2:
                raise UnsupportedError(f"column {top.name!r}: blobs of 2.2 cannot be stored in a {version.value} file")


_PASSED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rows between two checks of the columns."""
_TIMES: Final = 4
"""A column is copied if all rows since the last check are larger than its buffered rows by this factor."""
_LARGEST_COPY: Final = 2**30
_RETURNED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rows after which unused memory is released to the system."""

_Rows = TypeVar("_Rows", bound="pa.RecordBatch | pa.Table")


class Collected:
    """The rows of one top-level field that are not encoded yet.

    Args:
        plan: How the field is written.
    """

    __slots__ = ("_num_checked", "arrays", "num_bytes", "plan", "unchecked_bytes")

    def __init__(self, plan: ColumnWritePlan) -> None:
        self.plan = plan
        self.arrays: list[pa.Array] = []
        self.num_bytes = 0
        self._num_checked = 0
        self.unchecked_bytes = 0

    def add(self, array: pa.Array, num_bytes: int) -> None:
        """Add rows of about `num_bytes` bytes."""
        self.arrays.append(array)
        self.num_bytes += num_bytes
        self.unchecked_bytes += num_bytes

    def take(self) -> list[pa.Array]:
        """Remove and return all buffered rows."""
        arrays, self.arrays = self.arrays, []
        self.num_bytes = self._num_checked = self.unchecked_bytes = 0
        return arrays

    def copy_if_small(self, passed: int) -> None:
        """Copy the rows since the last call if they are small compared with `passed`, the bytes of all rows since."""
        if self.unchecked_bytes * _TIMES < passed and self.unchecked_bytes < _LARGEST_COPY:
            added = self.arrays[self._num_checked :]
            if added:
                self.arrays[self._num_checked :] = [_copy_rows(added)]
        self._num_checked = len(self.arrays)
        self.unchecked_bytes = 0


class Releaser:
    """Limits the memory that buffered rows hold to about their own size.

    Args:
        columns: All columns of a file.
    """

    __slots__ = ("_columns", "_next_look", "_passed")

    def __init__(self, columns: Sequence[Collected]) -> None:
        self._columns = columns
        self._passed = 0
        self._next_look = _PASSED_BYTES

    def passed(self, num_bytes: int) -> None:
        """Account for rows of `num_bytes` bytes that were added, or written, since the last call."""
        self._passed += num_bytes
        if self._passed < self._next_look:
            return
        if 2 * sum(column.unchecked_bytes for column in self._columns) > self._passed:
            self._next_look = self._passed + _PASSED_BYTES
            return
        for column in self._columns:
            column.copy_if_small(self._passed)
        self._passed, self._next_look = 0, _PASSED_BYTES


def one_by_one(batches: Iterable[_Rows]) -> Iterator[_Rows]:
    """The batches of a stream; no batch is held here while the next one is created.

    The memory of earlier batches is free if the caller also drops each batch before it requests the next one.
    """
    passed = 0
    for batch in batches:
        passed += batch.nbytes
        yield batch
        del batch
        if passed >= _RETURNED_BYTES:
            passed = 0
            pa.default_memory_pool().release_unused()


def _copy_rows(arrays: Sequence[Any]) -> pa.Array:
    """The rows in new memory; dictionary arrays keep sharing a common dictionary."""
    if len(arrays) == 1:
        return pa.concat_arrays([arrays[0].slice(0, 0), arrays[0]])
    return concatenate(arrays)
