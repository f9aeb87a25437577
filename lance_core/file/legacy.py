"""0.1 data files ("legacy").

    pages                   per batch, per field, back to back
    dictionary values       once per dictionary field
    page table              (i64 position, i64 elements) per field id and batch, ids from the lowest to the highest
    statistics              pages and page table of the statistics (see `statistics`), optional
    u32 length, Manifest    the schema of the file, optional
    u32 length, Metadata    batch offsets and the positions of the parts above
    footer, 16 bytes        i64 position of the length of the Metadata, u16 0, u16 2, "LANC"

A reader begins with the footer, which has the position of the Metadata; the Metadata has those of the other parts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from lance_core._proto import file_pb2, table_pb2
from lance_core.encoding.concatenate import concatenate, index_capacity, move_nulls_to_indices, prune_dictionaries
from lance_core.encoding.datablock import ascends
from lance_core.encoding.legacy.decoder import PageTable, read_dictionary_values, read_field
from lance_core.encoding.legacy.encoder import (
    EncodedFieldPage,
    encode_batch,
    encode_page,
    is_null_stored,
    make_null_error,
)
from lance_core.encoding.page import ByteRange, RowRuns, Steps, lock_step, run_steps
from lance_core.errors import CorruptFileError, SchemaError, UnsupportedError
from lance_core.file.column import Fetch, PageTask
from lance_core.file.metadata import FileVersion
from lance_core.file.statistics import StatisticsCollector
from lance_core.schema import Field, Schema, arrow_type_of, schema_from_protobuf, schema_to_protobuf
from lance_core.schema.library import LIBRARY, LIBRARY_VERSION
from lance_core.store import ObjectStore

_FOOTER: Final = struct.Struct("<qHH4s")
_BATCH_ROWS: Final = 8192
# Rows per task.
_TASK_ROWS: Final = 64 * 1024


class LegacyFileWriter:
    """Writes batches of columns into a 0.1 file.

    Args:
        store: The store of the file.
        key: The file's key.
        schema: The columns.
        kinds: Their Arrow types.

    Attributes:
        sink: The target of the bytes.

    Raises:
        UnsupportedError: A dictionary is nested in another type, or JSON in a list.
        CorruptFileError: Two fields have the same id.
    """

    def __init__(self, store: ObjectStore, key: str, schema: Schema, kinds: Sequence[pa.DataType]) -> None:
        for top in schema.fields:
            for field, _ in top.walk():
                if field is not top and field.logical_type.startswith("dict:"):
                    raise UnsupportedError(
                        f"field {field.name!r}: a 0.1 file cannot hold a dictionary inside of another type"
                    )
                if field.logical_type != "struct" and any(child.logical_type == "json" for child in field.children):
                    raise UnsupportedError(
                        f"field {field.name!r}: a 0.1 file cannot hold JSON inside of a list, which other readers fail "
                        "on: write version 2.2"
                    )
        self._schema = schema
        self._kinds = kinds
        self._collected: list[list[pa.Array]] = [[] for _ in schema.fields]
        self._rows_collected = 0
        self._batch_offsets = [0]
        self._pages: dict[int, list[tuple[int, int]]] = {field.id: [] for field, _ in schema.walk()}
        self._dictionaries: dict[int, Any] = {}
        self._statistics = StatisticsCollector(schema)
        self.position = 0
        self.sink = store.open_writer(key)

    def write(self, columns: Sequence[Sequence[pa.Array]], num_rows: int) -> None:
        """Append rows: for each column its arrays."""
        for collected, arrays in zip(self._collected, columns, strict=True):
            collected.extend(arrays)
        self._rows_collected += num_rows
        if self._rows_collected >= _BATCH_ROWS:
            self._flush(_BATCH_ROWS)

    def finish(self) -> None:
        """Write the remaining rows and the metadata."""
        self._flush(1)
        fields = self._with_dictionaries()
        metadata = file_pb2.Metadata(batch_offsets=self._batch_offsets)
        metadata.page_table_position = self._write_table(self._pages)
        self._write_statistics(metadata)
        # This is not the version of a dataset: pylance writes 1 into every file.
        manifest = table_pb2.Manifest(fields=fields, version=1)
        manifest.writer_version.library, manifest.writer_version.version = LIBRARY, LIBRARY_VERSION
        manifest.data_format.file_format = "lance"
        manifest.data_format.version = FileVersion.V0_1.value
        metadata.manifest_position = self._write_message(manifest.SerializeToString())
        position = self._write_message(metadata.SerializeToString())
        major, minor = FileVersion.V0_1.footer_numbers
        self._write(_FOOTER.pack(position, major, minor, b"LANC"))

    def dictionaries(self) -> dict[int, pa.Array]:
        """The dictionaries of the file, by field id; a manifest has to repeat them."""
        return {field_id: encoder.values() for field_id, encoder in self._dictionaries.items()}

    def _flush(self, least: int) -> None:
        """Write whole batches until fewer than `least` rows are left."""
        if self._rows_collected < max(least, 1):
            return
        columns = [pa.chunked_array(arrays, kind) for arrays, kind in zip(self._collected, self._kinds, strict=True)]
        start = 0
        while self._rows_collected - start >= least and start < self._rows_collected:
            rows = min(_BATCH_ROWS, self._rows_collected - start)
            for field, column in zip(self._schema.fields, columns, strict=True):
                self._write_field(field, concatenate(column.slice(start, rows).chunks))
            start += rows
            self._batch_offsets.append(self._batch_offsets[-1] + rows)
        self._collected = [column.slice(start).chunks for column in columns]
        self._rows_collected -= start

    def _write_field(self, field: Field, array: Any) -> None:
        self._statistics.add(field, array)
        if pa.types.is_dictionary(array.type):
            array = self._dictionaries.setdefault(field.id, _FileDictionary(field)).map(array)
        missing = {f.id for f, _ in field.walk()}
        for page in encode_batch(field, array):
            self._pages[page.field.id].append((self._write_page(page), page.length))
            missing.discard(page.field.id)
        for field_id in missing:
            self._pages[field_id].append((0, 0))

    def _write_page(self, page: EncodedFieldPage) -> int:
        position = self.position
        self._write(page.data)
        if page.offsets is None:
            return position
        offsets_at = self.position
        self._write((page.offsets + position).view(np.uint8))
        return offsets_at

    def _with_dictionaries(self) -> list[file_pb2.Field]:
        """Write the dictionaries, and return the fields of the file with the positions of their dictionaries."""
        fields = schema_to_protobuf(self._schema, legacy=True)
        for wire in fields:
            if wire.id in self._dictionaries:
                values = self._dictionaries[wire.id].values()
                wire.dictionary.offset = self._write_page(encode_page(self._schema.fields[0], values))
                wire.dictionary.length = len(values)
        return fields

    def _write_table(self, pages: Mapping[int, Sequence[tuple[int, int]]]) -> int:
        num_batches = len(self._batch_offsets) - 1
        first, last = min(pages, default=0), max(pages, default=-1)
        none = [(0, 0)] * num_batches
        if any(len(each) != num_batches for each in pages.values()):
            raise SchemaError(
                "two fields have the same id, so that a file of version 0.1 cannot list their pages separately"
            )
        table = np.array([pages.get(field_id, none) for field_id in range(first, last + 1)], "<i8")
        position = self.position
        self._write(table.ravel().view(np.uint8))
        return position

    def _write_statistics(self, metadata: file_pb2.Metadata) -> None:
        schema = self._statistics.schema()
        if not schema.fields or len(self._batch_offsets) == 1:
            return
        pages = {field.id: [(0, 0)] for field, _ in schema.walk()}
        for page in self._statistics.pages(schema):
            pages[page.field.id] = [(self._write_page(page), page.length)]
        metadata.statistics.schema.extend(schema_to_protobuf(schema, legacy=True))
        metadata.statistics.fields.extend(pages)
        table = np.array([pages[field_id] for field_id in pages], "<i8")
        metadata.statistics.page_table_position = self.position
        self._write(table.ravel().view(np.uint8))

    def _write_message(self, message: bytes) -> int:
        position = self.position
        self._write(struct.pack("<I", len(message)))
        self._write(message)
        return position

    def _write(self, data: Any) -> None:
        self.sink.write(data)
        self.position += memoryview(data).nbytes


class _FileDictionary:
    """The only dictionary of a column in a 0.1 file, which grows with the values of each batch.

    It begins with the dictionary of the dataset, which readers may use for all files. Empty strings are null in it,
    because readers read them as null.
    """

    def __init__(self, field: Field) -> None:
        kind: Any = arrow_type_of(field)
        self._name, self._index_type = field.name, kind.index_type
        values = field.dictionary_values
        self._values = pa.array([], kind.value_type) if values is None else values

    def values(self) -> pa.Array:
        """All values so far."""
        return self._values

    def map(self, array: Any) -> pa.Array:
        """Values as indices into the dictionary of the file; null is one of its values, as indices cannot be null.

        Raises:
            SchemaError: The values are too many, or a null has no value that is read as null.
        """
        array = move_nulls_to_indices(array)
        if array.null_count and not is_null_stored(array.type.value_type):
            raise make_null_error(self._name, array.type)
        new = self._new_values(array)
        if len(self._values) + len(new) > index_capacity(self._index_type):
            array = prune_dictionaries(array)
            new = self._new_values(array)
            if len(self._values) + len(new) > index_capacity(self._index_type):
                raise SchemaError(
                    f"column {self._name!r}: all files of a dataset of version 0.1 share one dictionary, whose indices "
                    f"({self._index_type}) cannot count all values; write the column as plain values, or write a "
                    "dataset of a later version"
                )
        self._values = pa.concat_arrays([self._values, new])
        table_indices = pa.compute.index_in(_replace_empty_with_null(array.dictionary), value_set=self._values)
        indices = table_indices.take(array.indices)
        if array.null_count:
            null = pa.compute.index_in(pa.nulls(1, self._values.type), value_set=self._values)[0]
            indices = indices.fill_null(null)
        return pa.DictionaryArray.from_arrays(indices.cast(self._index_type), self._values)

    def _new_values(self, array: Any) -> pa.Array:
        """The values of an array that the dictionary lacks; also null, if a row is null."""
        values = _replace_empty_with_null(array.dictionary)
        if array.null_count:
            values = pa.concat_arrays([values, pa.nulls(1, values.type)])
        return values.filter(pa.compute.invert(pa.compute.is_in(values, value_set=self._values))).unique()


def _replace_empty_with_null(values: Any) -> pa.Array:
    """The values as they will be read: empty strings or bytes as null."""
    kind = values.type
    strings = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    if kind not in strings:
        return values
    return pa.compute.replace_with_mask(
        values, pa.compute.equal(pa.compute.binary_length(values), 0), pa.scalar(None, kind)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyFileReader:
    """A reader of a 0.1 file; created by `open`.

    Attributes:
        key: The file, for messages.
        schema: The file's own schema; None if it records none.
        batch_offsets: First row of each batch, and the number of rows.
        raw_table: The page table: shape (ids from the lowest to the highest, batches, 2), the last axis being position
            and length.
        first_id: The lowest field id in the file.
        size: Size of the file.
    """

    key: str
    schema: Schema | None
    batch_offsets: npt.NDArray[np.int64]
    raw_table: npt.NDArray[np.int64]
    first_id: int
    size: int

    @classmethod
    def open(cls, store: ObjectStore, key: str, tail: memoryview, size: int) -> LegacyFileReader:
        """Read the metadata of a file.

        Args:
            store: The store of the file.
            key: Its key.
            tail: The end of the file, at least 16 bytes.
            size: Size of the file.

        Raises:
            CorruptFileError: The file does not follow the format.
        """
        if len(tail) < _FOOTER.size:
            raise CorruptFileError(f"{len(tail)} bytes are too short for a data file")
        position = _FOOTER.unpack(tail[-_FOOTER.size :])[0]
        source = _LegacyBytes(store, key, tail, size)
        metadata = source.message(position, file_pb2.Metadata)
        schema = None
        if metadata.manifest_position:
            manifest = source.message(metadata.manifest_position, table_pb2.Manifest)
            schema = schema_from_protobuf(manifest.fields, {}) if manifest.fields else None
        offsets = np.array(metadata.batch_offsets, np.int64)
        if not offsets.size or int(offsets[0]) != 0 or not ascends(offsets):
            raise CorruptFileError("the batch offsets do not ascend from 0")
        ids = [field.id for field, _ in schema.walk()] if schema is not None else []
        num_batches = offsets.size - 1
        table = metadata.page_table_position
        # Without a schema the table ends where the next part of the file begins.
        count = max(ids) - min(ids) + 1 if ids else (position - table) // max(16 * num_batches, 1)
        if count < 0 or count > 2**20:
            raise CorruptFileError(f"a page table of {count} fields")
        raw = np.frombuffer(source.get(table, table + 16 * num_batches * count), "<i8")
        return cls(
            key=key,
            schema=schema,
            batch_offsets=offsets,
            raw_table=raw.reshape(count, num_batches, 2),
            first_id=min(ids, default=-1),
            size=size,
        )

    @property
    def num_rows(self) -> int:
        """Rows in the file."""
        return int(self.batch_offsets[-1])

    def read_dictionaries(self, fetch: Fetch) -> dict[int, pa.Array]:
        """The values of the dictionary fields, by field id."""
        dictionaries = {}
        for field, _ in self.schema.walk() if self.schema is not None else ():
            if field.dictionary is not None and field.logical_type.startswith("dict:"):
                kind: Any = arrow_type_of(field)
                table = PageTable(pages={}, dictionaries={}, size=self.size)
                dictionaries[field.id] = run_steps(
                    read_dictionary_values(kind.value_type, table, *field.dictionary), fetch
                )
        return dictionaries

    def tasks(self, field: Field, columns: Mapping[int, int], runs: RowRuns) -> Iterator[PageTask]:
        """Tasks that read the wanted rows of a top-level field.

        Args:
            field: The field.
            columns: Field ids that the file has according to the manifest, and their positions among its fields.
            runs: The wanted rows.
        """
        table = self._page_table(field, columns)
        width = sum(1 for _ in field.walk()) * 8
        pending: list[tuple[int, int, int]] = []
        rows = 0
        for batch, start, end in self._divide_by_batch(runs):
            pending.append((batch, start, end))
            rows += end - start
            if rows >= _TASK_ROWS:
                yield self._make_task(field, table, pending, rows * width)
                pending, rows = [], 0
        if pending:
            yield self._make_task(field, table, pending, rows * width)

    def _divide_by_batch(self, runs: RowRuns) -> Iterator[tuple[int, int, int]]:
        """The wanted rows as (batch, first row in the batch, end)."""
        bounds = self.batch_offsets
        for start, end in zip(runs.starts.tolist(), runs.ends.tolist(), strict=True):
            batch = int(np.searchsorted(bounds, start, side="right")) - 1
            while start < end:
                base, limit = int(bounds[batch]), int(bounds[batch + 1])
                stop = min(end, limit)
                if stop > start:
                    yield batch, start - base, stop - base
                start, batch = stop, batch + 1  # noqa: PLW2901 - walks through the run

    def _make_task(self, field: Field, table: PageTable, parts: list[tuple[int, int, int]], num_bytes: int) -> PageTask:
        where = f"{self.key}: column {field.name!r}, batches {parts[0][0]} to {parts[-1][0]}"
        steps = _read_parts(field, table, list(parts))
        num_rows = sum(end - start for _, start, end in parts)
        return PageTask(where, steps, num_rows, num_bytes, is_whole=len(parts) == 1 or num_rows >= _TASK_ROWS)

    def _page_table(self, field: Field, columns: Mapping[int, int]) -> PageTable:
        first = self.first_id if self.first_id >= 0 else min(columns, default=0)
        fields_by_id = {} if self.schema is None else self.schema.by_id()
        own_ids = self._find_own_ids(columns)
        dictionaries, pages = {}, {}
        for f, _ in field.walk():
            field_id = own_ids.get(f.id, f.id)
            if 0 <= field_id - first < self.raw_table.shape[0]:
                pages[f.id] = self.raw_table[field_id - first]
            described = fields_by_id.get(field_id, f).dictionary
            if described is not None:
                dictionaries[f.id] = described
        return PageTable(pages=pages, dictionaries=dictionaries, size=self.size)

    def _find_own_ids(self, columns: Mapping[int, int]) -> dict[int, int]:
        """The file's own ids of the fields that it has according to the manifest.

        Repairs of early datasets, and an overwrite that does not reuse field ids, give new ids to fields of older
        files. Then fields are matched by position: pylance assigns the lowest id of the file to the first field.
        """
        file_ids = [] if self.schema is None else [field.id for field, _ in self.schema.walk()]
        present = {i: place for i, place in columns.items() if i >= 0 and place < len(file_ids)}
        for order in (file_ids, sorted(file_ids)):
            if len({i - order[place] for i, place in present.items()}) <= 1:
                return {i: order[place] for i, place in present.items()}
        return {i: i if set(present) <= set(file_ids) else file_ids[place] for i, place in present.items()}


def _read_parts(field: Field, table: PageTable, parts: Sequence[tuple[int, int, int]]) -> Steps[pa.Array]:
    return concatenate((yield from lock_step([read_field(field, table, *part) for part in parts])))


class _LegacyBytes:
    """Bytes of a file whose tail has been read."""

    def __init__(self, store: ObjectStore, key: str, tail: memoryview, size: int) -> None:
        self._store = store
        self._key = key
        self._tail = tail
        self._size = size

    def get(self, start: int, end: int) -> Any:
        first: ByteRange = (start, end)
        if not 0 <= start <= end <= self._size:
            raise CorruptFileError(f"bytes {first} of a file of {self._size}")
        base = self._size - len(self._tail)
        return self._tail[start - base : end - base] if start >= base else self._store.get_range(self._key, start, end)

    def message(self, position: int, kind: Any) -> Any:
        """A message with its length before it."""
        (length,) = struct.unpack("<I", self.get(position, position + 4))
        try:
            return kind.FromString(bytes(self.get(position + 4, position + 4 + length)))
        except DecodeError as error:
            raise CorruptFileError(f"the {kind.__name__} message cannot be parsed") from error
