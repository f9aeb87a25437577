"""Files of tables that are well-formed and say what is not so: one function per kind of file.

manifest         its message, its index section, its inline transaction
transaction      the message
data, index      the footer, the descriptor, the columns and the pages that they describe; all of it of 0.1
deletion         offsets as Arrow and as a bitmap
ref, hint        JSON
"""

import json
import struct

import numpy as np
import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pyroaring import BitMap

from lance_core._proto import encodings_v2_0_pb2, encodings_v2_1_pb2, file2_pb2, file_pb2, table_pb2, transaction_pb2
from lance_core.table.manifest.manifest import message_range

NUMBERS = (
    *(0, 1, 2, 3, 5, 7, 20, 64, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63),
    *(2**64 - 1, -1, -2, -(2**31), -(2**63)),
)
TEXTS = (
    *("", "x", "..", "../../x", "/etc/passwd", "\x00", "é" * 300, "int32", "struct", "list", "list.struct", "null"),
    *("decimal:128:0:999", "decimal:256:70:-5", "fixed_size_list:float:4294967295", "fixed_size_binary:999999999"),
    *("timestamp:us:Mars/Base", "timestamp:xs:-", "dict:string:int8:false", "duration:s", "time32:ns", "extension"),
    *("fixed_size_list:lance.bfloat16:3", "large_list", "map", "map.struct", "halffloat", "blob", "json"),
)
_U64 = struct.Struct("<Q")
_FOOTER = struct.Struct("<QQQIIHH4s")


def lied(data, key, rng):
    """The file with a lie in it; None if it is of no kind that is known here."""
    if key.endswith(".txn"):
        return _message(transaction_pb2.Transaction, data, rng)
    if key.endswith(".manifest"):
        return _manifest(data, rng)
    if key.startswith("_deletions/") or "/_deletions/" in key:
        return _deletion(key, rng)
    if key.endswith(".json"):
        return _json(data, rng)
    if key.endswith(".lance"):
        return _legacy(data, rng) if data[-6:-4] == b"\x02\x00" and data[-8:-6] == b"\0\0" else _data_file(data, rng)
    return None


def _message(kind, data, rng, times=1):
    message = kind.FromString(data)
    for _ in range(times):
        mutate(message, rng)
    return message.SerializeToString()


def _sized(data):
    return struct.pack("<I", len(data)) + data


def _manifest(data, rng):
    """The lie is in the message, or in a section, which is then put before the message."""
    start, end = message_range(memoryview(data))
    message = table_pb2.Manifest.FromString(data[start:end])
    before, kind = data[: start - 4], rng.random()
    if kind < 0.2 and message.HasField("index_section"):
        section = _section(data, message.index_section)
        message.index_section = len(before)
        before += _sized(_message(table_pb2.IndexSection, section, rng, rng.randint(1, 2)))
    elif kind < 0.35 and message.HasField("transaction_section"):
        section = _section(data, message.transaction_section)
        message.transaction_section = len(before)
        before += _sized(_message(transaction_pb2.Transaction, section, rng, rng.randint(1, 2)))
    else:
        for _ in range(rng.randint(1, 3)):
            mutate(message, rng)
    return before + _sized(message.SerializeToString()) + _U64.pack(len(before)) + data[end + 8 :]


def _section(data, position):
    (length,) = struct.unpack_from("<I", data, position)
    return data[position + 4 : position + 4 + length]


def _deletion(key, rng):
    offsets = [rng.choice((0, 1, 5, 19, 20, 21, 39, 40, 2**16, 2**31, 2**32 - 1)) for _ in range(rng.randint(0, 30))]
    if key.endswith(".bin"):
        rows = BitMap(offsets)
        if rng.random() < 0.2:
            rows |= BitMap(range(rng.choice((0, 19, 2**31)), 2**32 - 1)) if rng.random() < 0.5 else BitMap(range(2**20))
            rows.run_optimize()
        return rows.serialize()
    kind = rng.choice((pa.uint32(), pa.uint32(), pa.int64(), pa.string(), pa.null(), pa.list_(pa.uint32())))
    column = pa.array([None if pa.types.is_null(kind) else offsets for _ in range(2)]) if (
        pa.types.is_list(kind) or pa.types.is_null(kind)
    ) else pa.array(offsets, pa.int64()).cast(kind, safe=False)  # fmt: skip
    if rng.random() < 0.2:
        column = pa.concat_arrays([column, pa.nulls(rng.randint(1, 3), column.type)])
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field(rng.choice(("row_id", "row_id", "x")), column.type)])
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, "zstd", "lz4")))
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for _ in range(rng.choice((0, 1, 1, 1, 3))):
            writer.write_batch(pa.record_batch([column], schema=schema))
    return sink.getvalue().to_pybytes()


def _json(data, rng):
    record = json.loads(data)
    spots = [*_json_spots(record)]
    values = (
        None,
        True,
        [],
        {},
        [[1, "x"]],
        0.5,
        1e308,
        rng.choice(NUMBERS),
        rng.choice(TEXTS),
        "2026-99-01T00:00:00Z",
    )
    if not spots or rng.random() < 0.05:
        return json.dumps(rng.choice(values)).encode()
    owner, place = rng.choice(spots)
    if rng.random() < 0.2:
        del owner[place]
    elif isinstance(owner, dict) and rng.random() < 0.1:
        owner[rng.choice(TEXTS)] = rng.choice(values)
    else:
        owner[place] = rng.choice(values)
    return json.dumps(record).encode()


def _json_spots(record):
    for place, value in list(record.items() if isinstance(record, dict) else enumerate(record)):
        yield record, place
        if isinstance(value, dict | list):
            yield from _json_spots(value)


def _legacy(data, rng):
    """The message at the end, or numbers of the page table."""
    start, end = message_range(memoryview(data))
    message = file_pb2.Metadata.FromString(data[start:end])
    if rng.random() < 0.5 and message.page_table_position < start:
        at = message.page_table_position + 8 * rng.randrange(max((start - 4 - message.page_table_position) // 8, 1))
        number = (rng.choice(NUMBERS) % 2**64).to_bytes(8, "little")
        return data[:at] + number + data[at + 8 :]
    mutate(message, rng)
    before = data[: start - 4]
    return before + _sized(message.SerializeToString()) + _U64.pack(len(before)) + data[end + 8 :]


def _data_file(data, rng):
    """Everything behind the pages is laid out again, so that lies of any length fit."""
    footer = list(_FOOTER.unpack(data[-40:]))
    columns, column_table, buffer_table, num_buffers, num_columns = footer[:5]
    ranges = np.frombuffer(data, "<u8", 2 * num_columns, column_table).reshape(-1, 2).tolist()
    messages = [data[at : at + size] for at, size in ranges]
    buffers = np.frombuffer(data, "<u8", 2 * num_buffers, buffer_table).reshape(-1, 2).tolist()
    body, kind = data[:columns], rng.random()
    if kind < 0.25:
        at, size = buffers[0]
        descriptor = _message(file_pb2.FileDescriptor, data[at : at + size], rng, rng.randint(1, 2))
        buffers[0] = [len(body), len(descriptor)]
        body += descriptor
    elif kind < 0.8 and messages:
        number = rng.randrange(len(messages))
        messages[number] = _column(messages[number], rng)
    tables = []
    start = len(body)
    for message in messages:
        tables.append([len(body), len(message)])
        body += message
    if kind >= 0.8:
        table = rng.choice([part for part in (tables, buffers) if part])
        rng.choice(table)[rng.randrange(2)] = rng.choice(NUMBERS)
    table_at = len(body)
    body += b"".join(_U64.pack(n % 2**64) for entry in tables for n in entry)
    buffers_at = len(body)
    body += b"".join(_U64.pack(n % 2**64) for entry in buffers for n in entry)
    parts = [start, table_at, buffers_at, num_buffers, num_columns, *footer[5:7]]
    if kind >= 0.95:
        place = rng.randrange(7)
        parts[place] = rng.choice(NUMBERS) % (2**64 if place < 3 else 2**32 if place < 5 else 2**16)
    return body + _FOOTER.pack(*parts, b"LANC")


def _column(data, rng):
    """The metadata of a column; half of the lies are in the description of a page."""
    message = file2_pb2.ColumnMetadata.FromString(data)
    if rng.random() < 0.5 or not message.pages:
        mutate(message, rng)
        return message.SerializeToString()
    page = rng.choice(message.pages)
    wrapped = AnyMessage.FromString(page.encoding.direct.encoding)
    kind = encodings_v2_1_pb2.PageLayout if "21" in wrapped.type_url else encodings_v2_0_pb2.ArrayEncoding
    wrapped.value = _message(kind, wrapped.value, rng, rng.randint(1, 2))
    page.encoding.direct.encoding = wrapped.SerializeToString()
    return message.SerializeToString()


def mutate(message, rng):
    """Change one value somewhere in a message."""
    spots = [*_spots(message)]
    if not spots:
        return
    owner, field, index = rng.choice(spots)
    try:
        if field is None:
            if rng.random() < 0.2:
                del owner[index]
            else:
                owner[index] = rng.choice(TEXTS) if isinstance(owner[index], str) else rng.randbytes(5)
        elif index is None:
            if rng.random() < 0.1:
                owner.ClearField(field.name)
            else:
                setattr(owner, field.name, _other(field, getattr(owner, field.name), rng))
        elif rng.random() < 0.2:
            del getattr(owner, field.name)[index]
        elif isinstance(getattr(owner, field.name)[index], Message):
            getattr(owner, field.name).append(getattr(owner, field.name)[index])
        else:
            getattr(owner, field.name)[index] = _other(field, getattr(owner, field.name)[index], rng)
    except (ValueError, TypeError, OverflowError):
        return  # the type does not hold it


def _spots(message):
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from ((value, None, key) for key in value if not isinstance(value[key], Message))
            continue
        if field.label == FieldDescriptor.LABEL_REPEATED:
            for index, item in enumerate(value):
                yield message, field, index
                if isinstance(item, Message):
                    yield from _spots(item)
        elif isinstance(value, Message):
            yield from _spots(value)
        else:
            yield message, field, None


def _other(field, value, rng):
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        if value and rng.random() < 0.5:
            changed = bytearray(value)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        return rng.choice((b"", b"\xff" * 5, bytes(40), rng.randbytes(12)))
    if field.type not in (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_DOUBLE) and rng.random() < 0.3:
        return value + rng.choice((-1, 1, 2, 7, 64))
    return rng.choice(NUMBERS)
