"""Reads Arrow files (deletion files) whose declared sizes are within limits, before any buffer is decompressed.

A few bytes of zstd can expand to gigabytes, and pyarrow allocates the size in the first eight bytes of a compressed
buffer. The flatbuffers of the messages were verified when pyarrow read them; these are the offsets that matter here:

    Message      header (field 2) -> RecordBatch
    RecordBatch  length i64 (field 0), buffers: vector of offset i64, length i64 (field 2), compression (field 3)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from lance_core.errors import CorruptFileError

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
