"""Deletion vectors: the deleted rows of a fragment, and the two file formats for them.

    .arrow   Arrow IPC file, one column `row_id: uint32 not null`, ZSTD bodies; below 5000 rows
    .bin     portable 32-bit roaring bitmap; from 5000 rows on, and for merged vectors

Offsets count physical rows of the fragment from 0. Readers take either form at any size and in any order.

Arrow files are read only if their declared sizes are within limits, which is checked before a buffer is decompressed. A
few bytes of zstd can expand to gigabytes, and pyarrow allocates the size in the first eight bytes of a compressed
buffer. The flatbuffers of the messages were verified when pyarrow read them; these are the offsets that matter here:

    Message      header (field 2) -> RecordBatch
    RecordBatch  length i64 (field 0), buffers: vector of offset i64, length i64 (field 2), compression (field 3)
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError

BITMAP_THRESHOLD = 5000
"""Number of deleted rows from which a bitmap is written."""

_MOST_ROWS = 1 << 32
"""Most rows that offsets can name."""

_MOST_ARROW_ROWS = 1 << 24
"""Most rows of an Arrow file for a fragment of unknown size; writers use bitmaps for far fewer."""

_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])


class DeletionFileType(IntEnum):
    """Form of a deletion file; the values are the wire's."""

    ARROW = 0
    BITMAP = 1

    @property
    def suffix(self) -> str:
        """The extension of the file's name, without the dot."""
        return "arrow" if self is DeletionFileType.ARROW else "bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFile:
    """The deletion file of a fragment.

    Attributes:
        file_type: Its form.
        read_version: Read version of the deleting transaction.
        id: Random number that makes the name unique.
        num_deleted_rows: Deleted rows; 0 = unknown in files of 2023.
        base_id: Base path of the file; None for the dataset itself.
    """

    file_type: DeletionFileType
    read_version: int
    id: int
    num_deleted_rows: int
    base_id: int | None = None

    def key(self, fragment_id: int) -> str:
        """Key of the file below its root."""
        return f"_deletions/{fragment_id}-{self.read_version}-{self.id}.{self.file_type.suffix}"

    def to_protobuf(self) -> table_pb2.DeletionFile:
        """Return the message of the wire."""
        return table_pb2.DeletionFile(
            file_type=table_pb2.DeletionFile.DeletionFileType.ValueType(self.file_type),
            read_version=self.read_version,
            id=self.id,
            num_deleted_rows=self.num_deleted_rows,
            base_id=self.base_id,
        )

    @classmethod
    def from_protobuf(cls, message: table_pb2.DeletionFile) -> DeletionFile:
        """Build the record from its protobuf message.

        Raises:
            CorruptFileError: The form of the file is unknown.
        """
        if message.file_type not in list(map(int, DeletionFileType)):
            raise CorruptFileError(f"deletion file {message.id} has the unknown form {message.file_type}")
        return cls(
            file_type=DeletionFileType(message.file_type),
            read_version=message.read_version,
            id=message.id,
            num_deleted_rows=message.num_deleted_rows,
            base_id=message.base_id if message.HasField("base_id") else None,
        )


class DeletionVector:
    """An immutable set of row offsets.

    Args:
        rows: Offsets; a roaring bitmap is not copied.
    """

    __slots__ = ("bitmap",)

    def __init__(self, rows: BitMap | Iterable[int] = ()) -> None:
        # Others must not change it.
        self.bitmap: BitMap = rows if isinstance(rows, BitMap) else BitMap(rows)

    def __len__(self) -> int:
        return len(self.bitmap)

    def __contains__(self, offset: int) -> bool:
        return offset in self.bitmap

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeletionVector) and bool(self.bitmap == other.bitmap)

    def __hash__(self) -> int:
        return hash(self.bitmap.serialize())

    def __repr__(self) -> str:
        return f"DeletionVector({len(self)} rows)"

    def __or__(self, other: DeletionVector | BitMap) -> DeletionVector:
        return DeletionVector(self.bitmap | (other.bitmap if isinstance(other, DeletionVector) else other))

    def to_array(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """Return the offsets in ascending order."""
        return np.frombuffer(self.bitmap.to_array(), dtype=np.uint32) if self.bitmap else np.zeros(0, np.uint32)

    def live_rows(self, num_rows: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return, for each of `num_rows` rows, whether it is live.

        Raises:
            CorruptFileError: The number of rows is larger than a fragment can have.
        """
        if num_rows > _MOST_ROWS:
            raise CorruptFileError(f"the fragment has {num_rows} rows, more than the {_MOST_ROWS} that are possible")
        mask = np.ones(num_rows, dtype=np.bool_)
        mask[self.within(num_rows).to_array()] = False
        return mask

    def within(self, num_rows: int) -> DeletionVector:
        """Return the offsets below `num_rows`: a corrupt bitmap of a few bytes can hold billions of higher offsets."""
        if not self.bitmap or self.bitmap.max() < num_rows:
            return self
        return DeletionVector(self.bitmap & BitMap(range(num_rows)))

    def to_bytes(self, file_type: DeletionFileType | None = None) -> tuple[bytes, DeletionFileType]:
        """Return the bytes of a deletion file and its form.

        Args:
            file_type: The form; None lets the number of rows decide.
        """
        if file_type is None:
            file_type = DeletionFileType.BITMAP if len(self) >= BITMAP_THRESHOLD else DeletionFileType.ARROW
        if file_type is DeletionFileType.BITMAP:
            return self.bitmap.serialize(), file_type
        batch = pa.record_batch([pa.array(self.to_array(), pa.uint32())], schema=_SCHEMA)
        sink = pa.BufferOutputStream()
        # For a single column a thread saves no time.
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes(), file_type

    def to_file(self, read_version: int, file_type: DeletionFileType | None = None) -> tuple[DeletionFile, bytes]:
        """The record of a new deletion file, and its bytes.

        Args:
            read_version: The version whose rows are deleted.
            file_type: The form; None lets the number of rows decide.
        """
        data, form = self.to_bytes(file_type)
        record = DeletionFile(
            file_type=form, read_version=read_version, id=new_deletion_file_id(), num_deleted_rows=len(self)
        )
        return record, data

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, file_type: DeletionFileType, *, num_rows: int = 0, num_deleted: int = 0
    ) -> DeletionVector:
        """Read a deletion file.

        Args:
            data: The file.
            file_type: Its form.
            num_rows: Rows of the fragment; 0 if that is not known.
            num_deleted: Rows that the file is known to delete; 0 if that is not known.

        Raises:
            CorruptFileError: The bytes are not a deletion file of that form, or delete rows that do not exist.
        """
        if num_rows > _MOST_ROWS:
            raise CorruptFileError(f"the fragment has {num_rows} rows, more than the {_MOST_ROWS} that are possible")
        try:
            if file_type is DeletionFileType.BITMAP:
                rows = BitMap.deserialize(bytes(data))
            else:
                most = num_rows or _MOST_ARROW_ROWS
                column = read_within_limits(data, most, 16 * (most + 64)).column("row_id")
                if not pa.types.is_integer(column.type) or column.null_count:
                    raise CorruptFileError(f"column row_id has type {column.type} and {column.null_count} nulls")
                rows = BitMap(column.cast(pa.uint32()).to_numpy())
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError, struct.error) as error:
            raise CorruptFileError(f"not a deletion file of the form {file_type.suffix}: {error}") from error
        if num_rows and rows and rows.max() >= num_rows:
            raise CorruptFileError(f"deletes row {rows.max()} of {num_rows}")
        if num_deleted and len(rows) != num_deleted:
            raise CorruptFileError(f"deletes {len(rows)} rows, the manifest says {num_deleted}")
        return cls(rows)


def new_deletion_file_id() -> int:
    """Return a random number for the name of a deletion file, below 2^63 so that every reader can hold it."""
    return secrets.randbits(63)


_MAGIC = b"ARROW1\0\0"
_END = b"ARROW1"
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3


def read_within_limits(file: bytes | memoryview, max_rows: int, max_bytes: int) -> pa.Table:
    """Read an Arrow file whose declared sizes are within limits.

    Args:
        file: The file; the stream is read, and its footer ignored.
        max_rows: Most rows of all batches together.
        max_bytes: Most bytes of a batch's buffers.

    Raises:
        CorruptFileError: The bytes are not an Arrow file, or declare larger sizes.
        pyarrow.ArrowException: pyarrow cannot read the file.
    """
    if bytes(file[: len(_MAGIC)]) != _MAGIC:
        raise CorruptFileError("not an Arrow file")
    if bytes(file[-len(_END) :]) != _END:
        raise CorruptFileError("the Arrow file is truncated")
    start = len(_MAGIC)
    while bytes(file[start : start + 8]) == bytes(8):  # arrow-rs pads the magic to 64 bytes
        start += 8
    stream = pa.py_buffer(file).slice(start)
    rows = 0
    for message in _read_messages(stream):
        length, sizes = _declared_sizes(message)
        rows += length
        if min((length, *sizes)) < 0:  # a negative size would make room for a large one in the sum
            raise CorruptFileError(f"an Arrow batch declares {length} rows in buffers of {sizes} bytes")
        if rows > max_rows or sum(sizes) > max_bytes:
            raise CorruptFileError(
                f"an Arrow batch declares {length} rows, {rows} with the batches before it, in {sum(sizes)} bytes; at "
                f"most {max_rows} rows, and {max_bytes} bytes in a batch, are possible"
            )
    return pa.ipc.open_stream(stream).read_all()


def _read_messages(stream: pa.Buffer) -> Iterator[pa.Message]:
    """The record batch messages, which follow the schema message."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    kind = "schema"
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type != kind:
            raise CorruptFileError(f"the Arrow file has a message of the kind {message.type!r} instead of a {kind}")
        if kind == "record batch":
            yield message
        kind = "record batch"


def _declared_sizes(message: pa.Message) -> tuple[int, list[int]]:
    """The number of rows that a batch declares, and the size of each of its buffers after decompression."""
    data, body = memoryview(message.metadata), message.body
    batch = _follow_table(data, _find_field(data, struct.unpack_from("<I", data)[0], _HEADER))
    place = _find_field(data, batch, _LENGTH)
    length = struct.unpack_from("<q", data, place)[0] if place else 0
    place = _find_field(data, batch, _BUFFERS)
    buffers = []
    if place:
        place += struct.unpack_from("<I", data, place)[0]
        (count,) = struct.unpack_from("<I", data, place)
        buffers = [struct.unpack_from("<qq", data, place + 4 + 16 * index) for index in range(count)]
    if not _find_field(data, batch, _COMPRESSION) or body is None:
        return length, [size for _, size in buffers]
    held = memoryview(body)
    # The uncompressed size comes first; -1 marks a buffer that is not compressed.
    sizes = [struct.unpack_from("<q", held, offset)[0] if size >= 8 else 0 for offset, size in buffers]
    return length, [size if claimed == -1 else claimed for claimed, (_, size) in zip(sizes, buffers, strict=True)]


def _follow_table(data: memoryview, place: int) -> int:
    """Follow the offset at a position to a table; position 0 stands for no table."""
    if not place:
        raise CorruptFileError("an Arrow message has no header")
    return int(place + struct.unpack_from("<I", data, place)[0])


def _find_field(data: memoryview, table: int, field: int) -> int:
    """The position of a field of a table; 0 if the table lacks it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    slot = 4 + 2 * field
    if slot >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + slot)
    return table + offset if offset else 0
