"""Ways to break a file: bytes that change anywhere, and descriptions that say something else."""

import struct

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from lance_core._proto import file2_pb2
from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding
from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.file.metadata import FOOTER_SIZE, Footer

# The largest number of a field; others are 32 bits wide.
_MOST = {
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
    FieldDescriptor.TYPE_INT64: 2**63 - 1,
}


def damaged(good, rng):
    """Some bytes set, copied over others, cut out, or the end cut off."""
    data = bytearray(good)
    # The metadata stands at the end, and damage to it does most harm.
    low = max(0, len(data) - 1200) if rng.random() < 0.6 else 0
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            break
        at = rng.randrange(low, len(data))
        kind = rng.random()
        if kind < 0.5:
            data[at] = rng.choice([0, 1, 2, 127, 128, 254, 255, rng.randrange(256)])
        elif kind < 0.7:
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.85:
            width = rng.choice([2, 4, 8])
            value = rng.choice([0, 1, len(data), 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1])
            data[at : at + width] = (value & ((1 << (8 * width)) - 1)).to_bytes(width, "little")
        elif kind < 0.95:
            source = rng.randrange(len(data))
            length = rng.randrange(1, 64)
            data[at : at + length] = data[source : source + length]
        else:
            del data[at : at + rng.randrange(1, 32)]
            low = min(low, max(len(data) - 1, 0))
    return bytes(data)


def misdescribed(good, rng):
    """A 2.x file whose metadata is well-formed, but has another number, or one message less or more, somewhere."""
    footer = Footer.from_bytes(good[-FOOTER_SIZE:])
    columns = []
    for index in range(footer.num_columns):
        start, size = struct.unpack_from("<QQ", good, footer.column_table + 16 * index)
        columns.append(file2_pb2.ColumnMetadata.FromString(good[start : start + size]))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        column = rng.choice(columns)
        if not column.pages or rng.random() < 0.25:
            _change(column, rng)
        else:
            _change_encoding(rng.choice(column.pages).encoding, rng)
    return _with_columns(good, footer, columns)


def misstated(good, kind, rng):
    """A message of some kind with another number, or one part less or more, somewhere."""
    message = kind.FromString(good)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        _change(message, rng)
    return message.SerializeToString()


def _change_encoding(encoding, rng):
    try:
        wrapped = AnyMessage.FromString(encoding.direct.encoding)
        kind = PageLayout if wrapped.type_url.endswith("PageLayout") else ArrayEncoding
        description = kind.FromString(wrapped.value)
    except DecodeError:
        # An earlier change has broken it.
        return
    _change(description, rng)
    wrapped.value = description.SerializeToString()
    encoding.direct.encoding = wrapped.SerializeToString()


def _with_columns(good, footer, columns):
    data = bytearray(good[: footer.column_metadata])
    table = b""
    for column in columns:
        message = column.SerializeToString()
        table += struct.pack("<QQ", len(data), len(message))
        data += message
    column_table = len(data)
    data += table
    buffer_table = len(data)
    data += good[footer.buffer_table : footer.buffer_table + 16 * footer.num_buffers]
    moved = Footer(
        column_metadata=footer.column_metadata,
        column_table=column_table,
        buffer_table=buffer_table,
        num_buffers=footer.num_buffers,
        num_columns=footer.num_columns,
        major=footer.major,
        minor=footer.minor,
    )
    return bytes(data + moved.to_bytes())


def _change(message, rng):
    """Change one thing in a message or in those within it."""
    places = _places(message)
    if not places:
        return
    owner, field, index = rng.choice(places)
    if index == "clear":
        owner.ClearField(field.name)
    elif index == "length":
        values = getattr(owner, field.name)
        if rng.random() < 0.5:
            del values[-1]
        else:
            values.append(values[0])
    elif index is None:
        setattr(owner, field.name, _other(getattr(owner, field.name), field, rng))
    else:
        values = getattr(owner, field.name)
        values[index] = _other(values[index], field, rng)


def _places(message):
    """What can be changed: the message, the field, and which of its values."""
    found = []
    present = {field.name: value for field, value in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        value = present.get(field.name)
        if field.is_repeated:
            if value:
                found.append((message, field, "length"))
            for index, one in enumerate(value or ()):
                found += _places(one) if field.message_type else [(message, field, index)]
        elif not field.message_type:
            found.append((message, field, None))
        elif value is not None:
            found += [*_places(value), (message, field, "clear")]
    return found


def _other(old, field, rng):
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not old
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(["", "zstd", "lz4"])
    if field.type == FieldDescriptor.TYPE_BYTES:
        data = bytearray(old)
        if data and rng.random() < 0.7:
            data[rng.randrange(len(data))] = rng.randrange(256)
            return bytes(data)
        return bytes(data[: rng.randrange(len(data) + 1)])
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.randrange(7)
    most = _MOST.get(field.type, 2**31 - 1)
    chosen = [0, 1, 2, 3, 7, 8, 16, 32, 64, 128, 255, 256, 4096, 65536, 2**31 - 1, 2**31, most]
    return min(rng.choice([*chosen, old + 1, max(old - 1, 0), old * 2, old // 2]), most)
