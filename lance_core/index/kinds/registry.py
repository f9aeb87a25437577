"""The registry of scalar index kinds, by type of details: how each kind is read, built, merged and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, Self

import pyarrow as pa
from pyroaring import BitMap

from lance_core._proto.table_pb2 import ZoneMapIndexDetails
from lance_core.errors import CorruptFileError
from lance_core.extension_types import is_variable_list
from lance_core.file import DataFileReader
from lance_core.index.kinds import bitmap, bloom, btree, row_sets, zonemap
from lance_core.index.kinds.files import metadata_of, open_file, read_columns, read_table, write_table
from lance_core.index.query.conditions import Test
from lance_core.index.query.rows import Bools, Candidates, IndexedRows, Ints, U64s, View
from lance_core.index.query.values import combine_to_array, is_ordered
from lance_core.schema import Schema, arrow_type_of
from lance_core.store import ObjectStore
from lance_core.table.index import IndexFile, IndexMetadata


class Content(Protocol):
    """The content of a segment."""

    @property
    def nbytes(self) -> int:
        """Approximate memory size."""
        ...

    def fits(self, kind: pa.DataType) -> bool:
        """Whether the content is an index of values of a type."""
        ...

    def answer(self, test: Test, truth: bool, view: View, covered: Bools) -> Candidates | None:
        """The rows for which a test can be true, or false; None if the index cannot answer it.

        Args:
            test: A test of the field.
            truth: The result of the test.
            view: The fragments of a version.
            covered: The fragments that the segment is trusted for; all rows of others can match.

        Raises:
            CorruptFileError: The content contradicts the fragments.
        """
        ...

    def of_fragments(self, view: View, chosen: Bools) -> Self:
        """The part of the content that is about some fragments."""
        ...

    def statistics(self) -> dict[str, object]:
        """Counters, under pylance's names."""
        ...

    def fragments(self) -> BitMap | None:
        """The fragments that have entries; None if the entries are by row id."""
        ...

    def parameters(self) -> Mapping[str, int | float]:
        """Its build parameters."""
        ...


class Builder(Protocol):
    """Builds the content of a segment from rows."""

    def add(self, fragment_id: int, num_rows: int, parts: Iterable[IndexedRows]) -> None:
        """Add a fragment: its id, its number of physical rows, and its live rows."""
        ...

    def finish(self) -> Any:
        """The content."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """The record of a written segment for the manifest.

    Attributes:
        files: Its files.
        details: Serialized details.
        index_version: Version of the index's own format.
    """

    files: tuple[IndexFile, ...]
    details: bytes = b""
    index_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTarget:
    """The target of a new segment.

    Attributes:
        store: The dataset's store.
        prefix: Start of the keys of its files.
        data_storage_version: Version of the dataset's files.
        stable_row_ids: Whether rows have stable ids.
        before: Details of the replaced record.
    """

    store: ObjectStore
    prefix: str
    data_storage_version: str
    stable_row_ids: bool
    before: bytes = b""

    def put(self, name: str, table: pa.Table, buffers: Mapping[str, bytes] | None = None) -> IndexFile:
        """Write a file; see `write_table`."""
        return write_table(self.store, f"{self.prefix}{name}", table, self.data_storage_version, buffers or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of index.

    Attributes:
        name: Its name in `create_scalar_index`.
        type_url: Type of the details of a record.
        versions: Versions of it that are read.
        parameters: Its parameters with their defaults: whole numbers of at least 1, or probabilities between 0 and 1.
        accepts: (type) -> whether values of the type can be indexed.
        read: (store, prefix of the segment's keys, record, type of the values) -> its content.
        build: (type of the values, parameters, whether rows have stable ids) -> a builder.
        merge: (contents, at least one, parameters) -> the merged content.
        write: (content, target) -> the record of the written segment.
    """

    name: str
    type_url: str
    versions: frozenset[int]
    accepts: Callable[[pa.DataType], bool]
    read: Callable[[ObjectStore, str, IndexMetadata, pa.DataType], Content]
    build: Callable[[pa.DataType, Mapping[str, Any], bool], Builder]
    merge: Callable[[Sequence[Any], Mapping[str, Any]], Any]
    write: Callable[[Any, SegmentTarget], SegmentRecord]
    parameters: Mapping[str, int | float] = field(default_factory=dict)


def _read_zone_map(store: ObjectStore, prefix: str, index: IndexMetadata, _: pa.DataType) -> Content:
    return zonemap.ZoneMap.from_table(*read_table(store, prefix, zonemap.FILE, index))


def _write_zone_map(zones: zonemap.ZoneMap, target: SegmentTarget) -> SegmentRecord:
    # Without a bitmap of nulls, pylance reads the rows to find those that are null.
    details = ZoneMapIndexDetails(
        rows_per_zone=zones.rows_per_zone,
        use_seeds=ZoneMapIndexDetails.FromString(target.before).use_seeds,
        has_null_bitmap=False,
    )
    file = target.put(zonemap.FILE, zones.to_table())
    return SegmentRecord(files=(file,), details=details.SerializeToString())


def _read_bitmap(
    store: ObjectStore, prefix: str, index: IndexMetadata, _: pa.DataType, *, of_lists: bool = False
) -> Content:
    reader = open_file(store, prefix, bitmap.FILE, index)
    keys = read_columns(reader, ["keys"])

    def load(numbers: Ints) -> list[bytes]:
        bitmaps = read_columns(reader, ["bitmaps"], numbers).column("bitmaps").to_pylist()
        return [data if data is not None else row_sets.encode({}) for data in bitmaps]

    size = reader.metadata.size_bytes
    column = keys.column("keys")
    whole = combine_to_array(column)
    content = bitmap.BitmapIndex(keys=whole, load=load, size=size, by_id=index.holds_row_ids)
    return replace(content, null_lists=_read_null_lists(reader)) if of_lists else content


def _read_null_lists(reader: DataFileReader) -> row_sets.RowSet:
    """The rows whose list is null, from the buffer that the metadata names."""
    string = metadata_of(reader).get(bitmap.NULL_LISTS_KEY, "")
    if not string.isdecimal() or not 0 < int(string) < len(reader.metadata.global_buffers):
        raise CorruptFileError("a LABEL_LIST without a record of its null lists")
    return row_sets.decode(bytes(reader.read_global_buffer(int(string))))


def _write_bitmap(content: bitmap.BitmapIndex, target: SegmentTarget) -> SegmentRecord:
    return SegmentRecord(files=(target.put(bitmap.FILE, content.to_table()),))


def _write_label_list(content: bitmap.BitmapIndex, target: SegmentTarget) -> SegmentRecord:
    buffers = {bitmap.NULL_LISTS_KEY: row_sets.encode(content.null_lists or {})}
    return SegmentRecord(files=(target.put(bitmap.FILE, content.to_table(), buffers),), index_version=1)


def _is_list_of_ordered(kind: pa.DataType) -> bool:
    return is_variable_list(kind) and is_ordered(kind.value_type)


def _read_btree(store: ObjectStore, prefix: str, index: IndexMetadata, _: pa.DataType) -> Content:
    table, metadata = read_table(store, prefix, btree.LOOKUP_FILE, index)
    reader = open_file(store, prefix, btree.DATA_FILE, index)

    # pylance up to 0.30 gave the column another name.
    name = btree.OLD_IDS if btree.OLD_IDS in reader.schema.names else btree.IDS

    def load(rows: Ints) -> tuple[pa.Array, U64s]:
        page = read_columns(reader, ["values", name], rows).combine_chunks()
        values, ids = page.column("values"), page.column(name)
        return values.chunk(0) if values.num_chunks else pa.nulls(0, values.type), ids.to_numpy()

    return btree.from_lookup(table, metadata, reader.num_rows, load, by_id=index.holds_row_ids)


def _write_btree(content: btree.BTree, target: SegmentTarget) -> SegmentRecord:
    files = (target.put(btree.DATA_FILE, content.data_table()), target.put(btree.LOOKUP_FILE, content.lookup_table()))
    return SegmentRecord(files=files, index_version=int(target.stable_row_ids))


def _read_bloom(store: ObjectStore, prefix: str, index: IndexMetadata, kind: pa.DataType) -> Content:
    return bloom.BloomFilter.from_table(*read_table(store, prefix, bloom.FILE, index), kind)


def _write_bloom(content: bloom.BloomFilter, target: SegmentTarget) -> SegmentRecord:
    # Like a zone map, the file has no bitmap of nulls.
    return SegmentRecord(files=(target.put(bloom.FILE, content.to_table()),))


KINDS: Final[Mapping[str, Kind]] = {
    "ZoneMap": Kind(
        name="ZONEMAP",
        type_url="/lance.table.ZoneMapIndexDetails",
        versions=frozenset({0}),
        parameters={"rows_per_zone": zonemap.DEFAULT_ROWS_PER_ZONE},
        accepts=is_ordered,
        read=_read_zone_map,
        build=lambda kind, parameters, _: zonemap.ZoneBuilder(kind, parameters["rows_per_zone"]),
        merge=lambda maps, parameters: zonemap.ZoneMap.concat(maps, **parameters),
        write=_write_zone_map,
    ),
    "Bitmap": Kind(
        name="BITMAP",
        type_url="/lance.table.BitmapIndexDetails",
        versions=frozenset({0}),
        accepts=is_ordered,
        read=_read_bitmap,
        build=lambda kind, _, stable: bitmap.BitmapBuilder(kind, by_id=stable),
        merge=lambda contents, _: bitmap.BitmapIndex.concat(contents),
        write=_write_bitmap,
    ),
    "BTree": Kind(
        name="BTREE",
        type_url="/lance.table.BTreeIndexDetails",
        versions=frozenset({0, 1}),
        parameters={"zone_size": btree.DEFAULT_PAGE_ROWS},
        accepts=is_ordered,
        read=_read_btree,
        build=lambda kind, parameters, _: btree.BTreeBuilder(kind, parameters["zone_size"]),
        merge=lambda contents, parameters: btree.BTree.concat(contents, parameters["zone_size"]),
        write=_write_btree,
    ),
    "LabelList": Kind(
        name="LABEL_LIST",
        type_url="/lance.table.LabelListIndexDetails",
        # In version 0 the entries of lists with nulls are unreliable.
        versions=frozenset({1}),
        accepts=_is_list_of_ordered,
        read=partial(_read_bitmap, of_lists=True),
        build=lambda kind, _, stable: bitmap.LabelBuilder(kind, by_id=stable),
        merge=lambda contents, _: bitmap.BitmapIndex.concat(contents),
        write=_write_label_list,
    ),
    "BloomFilter": Kind(
        name="BLOOMFILTER",
        type_url="/lance.index.pb.BloomFilterIndexDetails",
        versions=frozenset({0}),
        parameters={"number_of_items": bloom.DEFAULT_ITEMS, "probability": bloom.DEFAULT_PROBABILITY},
        accepts=bloom.accepts,
        read=_read_bloom,
        build=lambda kind, sizes, _: bloom.BloomBuilder(kind, sizes["number_of_items"], sizes["probability"]),
        merge=lambda contents, sizes: bloom.BloomFilter.concat(
            contents, items=sizes["number_of_items"], probability=sizes["probability"]
        ),
        write=_write_bloom,
    ),
}

BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS.values()}


def is_known(index: IndexMetadata) -> bool:
    """Whether an index is of a kind, and a version, that is read and written here, on a column of whatever type."""
    kind = KINDS.get(index.kind)
    return kind is not None and (index.index_version or 0) in kind.versions and len(index.fields) == 1


def is_supported(index: IndexMetadata, schema: Schema) -> bool:
    """Whether an index is of a kind and a version that is read and written here for its column.

    Pylance builds indices on further columns, such as a BTREE on `fixed_size_binary`, or a ZONEMAP on a struct.
    """
    if not is_known(index):
        return False
    for node, parent in schema.walk():
        if node.id == index.fields[0]:
            return _has_one_value(schema, parent) and KINDS[index.kind].accepts(arrow_type_of(node))
    return False


def _has_one_value(schema: Schema, field_id: int) -> bool:
    """Whether a field and those that it lies in are structs, so that the fields in it have one value in each row."""
    parents = {node.id: (node.logical_type, parent) for node, parent in schema.walk()}
    while field_id in parents:
        kind, field_id = parents[field_id]
        if kind != "struct":
            return False
    return True
