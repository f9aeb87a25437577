"""A few values of one mini-block chunk, cut out where they lie.

flat                 |v0|v1|v2|...               the bytes of the value
inline_bitpacking    two words of a FastLanes block, shifted and masked
byte_stream_split    byte b of value i stands at b * values + i
rle                  the run that the value lies in
variable             between two offsets
fsst                 the codes between two offsets, expanded
general              one of the above, once the chunk is decompressed

All compute the value from its place; none looks at the others. `picked` does the same for many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_core.encoding.compression import decode_per_value
from lance_core.encoding.compression.fastlanes import BLOCK_VALUES, packed_bytes, places_of
from lance_core.encoding.compression.flat import flat_bits
from lance_core.encoding.compression.general import decompressor
from lance_core.encoding.compression.variable import offset_bits
from lance_core.encoding.datablock import VariableBlock, offsets_of
from lance_core.encoding.page import BytesLike
from lance_core.errors import CorruptFileError

__all__ = ["Cut", "cutter"]

Cut: TypeAlias = Callable[[Sequence[memoryview], int, Sequence[int]], list[BytesLike]]
"""From the value buffers of a chunk, the number of its values, and ascending places among them to the bytes of these.

Values of varying length are one piece each. Values of one width stand back to back in all pieces together, those of
one bit as a byte each. A run of places is a `range`.
"""

_SOME: Final = 8
"""From so many packed values of a chunk on, they are unpacked together."""


def cutter(encoding: CompressiveEncoding, num_buffers: int) -> tuple[Cut, int] | None:
    """How values are cut out of chunks, and their bits, 0 for varying length; None if that is not offered.

    Args:
        encoding: How the values are compressed.
        num_buffers: Value buffers of a chunk.

    Raises:
        CorruptFileError: No value has such a width.
        UnsupportedError: The description holds what is not known.
    """
    name = encoding.WhichOneof("compression")
    if num_buffers != (2 if name == "rle" else 1):
        return None
    if name == "flat":
        bits = flat_bits(encoding)
        return (_flag if bits == 1 else _flat(bits // 8)), bits
    if name == "variable":
        return _variable(offset_bits(encoding) // 8), 0
    if name == "byte_stream_split":
        bits = flat_bits(encoding.byte_stream_split.values)
        return (_split(bits // 8), bits) if bits % 8 == 0 else None
    if name == "inline_bitpacking":
        bits = encoding.inline_bitpacking.uncompressed_bits_per_value
        is_plain = bits in (8, 16, 32, 64) and not encoding.inline_bitpacking.HasField("values")
        return (_packed(bits), bits) if is_plain else None
    if name == "rle":
        bits = flat_bits(encoding.rle.values)
        is_plain = bits in (8, 16, 32, 64) and flat_bits(encoding.rle.run_lengths) == 8
        return (_runs(bits // 8), bits) if is_plain else None
    if name == "fsst":
        inner = cutter(encoding.fsst.values, 1)
        return (_expanded(encoding, inner[0]), 0) if inner is not None and inner[1] == 0 else None
    if name == "general":
        inner = cutter(encoding.general.values, num_buffers)
        return (_decompressed(encoding, inner[0]), inner[1]) if inner is not None else None
    return None


def _short() -> CorruptFileError:
    return CorruptFileError("a chunk is too short for the values it should hold")


def _flat(width: int) -> Cut:
    def cut(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
        data = buffers[0]
        if count * width > len(data):
            raise _short()
        if isinstance(places, range) or places[-1] - places[0] + 1 == len(places):
            return [data[places[0] * width : (places[-1] + 1) * width]]
        return [data[place * width : (place + 1) * width] for place in places]

    return cut


def _flag(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
    data = buffers[0]
    if (count + 7) // 8 > len(data):
        raise _short()
    if isinstance(places, range):
        first = places.start // 8
        bits = np.unpackbits(np.frombuffer(data[first : (places.stop + 7) // 8], np.uint8), bitorder="little")
        return [bits[places.start - first * 8 : places.stop - first * 8].tobytes()]
    return [bytes([data[place >> 3] >> (place & 7) & 1 for place in places])]


def _split(width: int) -> Cut:
    def cut(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
        data = buffers[0]
        end = count * width
        if end > len(data):
            raise _short()
        if isinstance(places, range):
            planes = np.frombuffer(data[:end], np.uint8).reshape(width, count)
            return [planes[:, places.start : places.stop].T.tobytes()]
        return [bytes(data[place:end:count]) for place in places]

    return cut


def _packed(bits: int) -> Cut:
    size, dtype = bits // 8, np.dtype(f"<u{bits // 8}")

    def cut(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
        data = buffers[0]
        width = int.from_bytes(data[:size], "little")
        if count > BLOCK_VALUES:
            raise CorruptFileError(f"{count} values in a bit-packed chunk of {BLOCK_VALUES}")
        if width > bits:
            raise CorruptFileError(f"values of {bits} bits packed in {width}")
        if len(data) < size + packed_bytes(width):
            raise CorruptFileError("a bit-packed chunk is shorter than its width says")
        if not width:
            return [bytes(size * len(places))]
        word, following, shift, back = places_of(width, bits)
        mask = (1 << width) - 1
        if len(places) >= _SOME:
            words = np.frombuffer(data[size : size + packed_bytes(width)], dtype)
            at: Any = slice(places.start, places.stop) if isinstance(places, range) else np.array(places)
            found = (words[word[at]] >> shift[at] | words[following[at]] << back[at]) & dtype.type(mask)
            return [found.tobytes()]
        values = []
        for place in places:
            low, high = (int(first[place] + 1) * size for first in (word, following))
            value = int.from_bytes(data[low : low + size], "little") >> int(shift[place])
            value |= int.from_bytes(data[high : high + size], "little") << int(back[place])
            values.append((value & mask).to_bytes(size, "little"))
        return values

    return cut


def _runs(width: int) -> Cut:
    def cut(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
        values, lengths = buffers
        if len(values) != len(lengths) * width:
            raise CorruptFileError("chunks with more run values than run lengths, or fewer")
        ends = np.cumsum(np.frombuffer(lengths, np.uint8), dtype=np.int64)
        if not ends.size or int(ends[-1]) < count:
            raise CorruptFileError(f"{ends.size} runs do not hold {count} values")
        if isinstance(places, range):
            runs = np.searchsorted(ends, np.arange(places.start, places.stop), side="right")
            return [np.frombuffer(values, f"V{width}")[runs].tobytes()]
        numbers = np.searchsorted(ends, places, side="right").tolist()
        return [values[number * width : (number + 1) * width] for number in numbers]

    return cut


def _variable(width: int) -> Cut:
    def cut(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
        data = buffers[0]
        size = len(data)
        if (count + 1) * width > size:
            raise _short()
        found = []
        for place in places:
            at = place * width
            start = int.from_bytes(data[at : at + width], "little")
            end = int.from_bytes(data[at + width : at + 2 * width], "little")
            if not start <= end <= size:
                raise CorruptFileError("the offsets of a chunk point outside of it")
            found.append(data[start:end])
        return found

    return cut


def _expanded(encoding: CompressiveEncoding, inner: Cut) -> Cut:
    def cut(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
        codes = inner(buffers, count, places)
        offsets = offsets_of(np.fromiter(map(len, codes), np.int64, len(codes)))
        data = np.frombuffer(b"".join(codes), np.uint8)
        block = decode_per_value(encoding, VariableBlock(offsets=offsets, data=data, num_values=len(codes)))
        assert isinstance(block, VariableBlock)
        ends = block.offsets.tolist()
        whole = block.data.tobytes()
        return [whole[start:end] for start, end in pairwise(ends)]

    return cut


def _decompressed(encoding: CompressiveEncoding, inner: Cut) -> Cut:
    def cut(buffers: Sequence[memoryview], count: int, places: Sequence[int]) -> list[BytesLike]:
        data = np.frombuffer(buffers[0], np.uint8)
        plain = decompressor(encoding, data.size)(data)
        return inner([memoryview(plain), *buffers[1:]], count, places)  # type: ignore[arg-type]

    return cut
