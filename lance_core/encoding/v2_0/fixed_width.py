"""Reads the numbers of 2.0 pages: values of a fixed width that are stored flat or bit-packed.

    flat                     bits_per_value bits per value, back to back; 1 bit: least significant first
    bitpacked                compressed bits per value, back to back across bytes, least significant first;
                             `signed`: the highest of the bits is the sign, which is extended
    bitpacked_for_non_neg    chunks of 1,024 values, each packed as FastLanes words (see `compression.fastlanes`); the
                             last chunk is padded with zeros
    constant                 one value, in the description

Writers of 2024 bit-packed integers; current versions do not.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding, Bitpacked, BitpackedForNonNeg, Buffer, Flat
from lance_core.encoding.compression import fastlanes
from lance_core.encoding.page import ByteRange, Bytes, PageInfo, RowRuns, Steps, as_bytes
from lance_core.errors import CorruptFileError, UnsupportedError

_WORD_BITS: Final = (8, 16, 32, 64)
_FORMS: Final = ("flat", "bitpacked", "bitpacked_for_non_neg", "constant")


def is_fixed_width(encoding: ArrayEncoding) -> bool:
    """Whether `read_fixed_width` supports the encoding."""
    return encoding.WhichOneof("array_encoding") in _FORMS


def value_bits(encoding: ArrayEncoding) -> int:
    """Bits per value in the result of `read_fixed_width`."""
    name = encoding.WhichOneof("array_encoding")
    if name == "flat":
        return encoding.flat.bits_per_value
    if name == "bitpacked":
        return encoding.bitpacked.uncompressed_bits_per_value
    if name == "bitpacked_for_non_neg":
        return encoding.bitpacked_for_non_neg.uncompressed_bits_per_value
    return len(encoding.constant.value) * 8


def read_fixed_width(page: PageInfo, encoding: ArrayEncoding, rows: RowRuns) -> Steps[Bytes]:
    """The bytes of some values, back to back; values of one bit are packed, least significant first.

    Raises:
        CorruptFileError: The bytes are too few, or a width is invalid.
        UnsupportedError: The values are compressed, or in a buffer of the column or of the file.
    """
    name = encoding.WhichOneof("array_encoding")
    if name == "flat":
        return (yield from _read_flat(page, encoding.flat, rows))
    if name == "bitpacked":
        return (yield from _read_bitpacked(page, encoding.bitpacked, rows))
    if name == "bitpacked_for_non_neg":
        return (yield from _read_chunks(page, encoding.bitpacked_for_non_neg, rows))
    if name == "constant" and encoding.constant.value:
        return np.tile(np.frombuffer(encoding.constant.value, np.uint8), rows.count)
    raise UnsupportedError(f"the 2.0 encoding {name} of values of a fixed width is not supported")


def buffer_range(page: PageInfo, buffer: Buffer) -> ByteRange:
    """The range of a buffer of a page.

    Raises:
        UnsupportedError: The buffer belongs to the column or the file.
    """
    if buffer.buffer_type != Buffer.page:
        raise UnsupportedError("buffers of a column or of the file are not supported")
    return page.buffer(buffer.buffer_index)


def _read_flat(page: PageInfo, flat: Flat, rows: RowRuns) -> Steps[Bytes]:
    start, end = buffer_range(page, flat.buffer)
    if flat.HasField("compression"):
        raise UnsupportedError(f"values of a fixed width compressed with {flat.compression.scheme!r} are not supported")
    bits = flat.bits_per_value
    if bits == 1:
        return (yield from read_bits(start, end, rows))
    if bits % 8 or bits == 0:
        raise UnsupportedError(f"flat values of {bits} bits")
    width = bits // 8
    if rows.count and int(rows.ends[-1]) * width > end - start:
        raise CorruptFileError(f"{end - start} bytes are too few for values of {width} bytes")
    return (yield from read_runs(start, rows.starts * width, rows.ends * width))


def read_runs(base: int, starts: Any, ends: Any) -> Steps[Bytes]:
    """Runs of bytes, back to back; positions count from `base`."""
    ranges = [(base + a, base + b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True) if b > a]
    if not ranges:
        return np.empty(0, np.uint8)
    answers = yield ranges
    return as_bytes(answers[0]) if len(answers) == 1 else np.concatenate([as_bytes(a) for a in answers])


def read_bits(start: int, end: int, rows: RowRuns, width: int = 1) -> Steps[Bytes]:
    """Values of `width` bits, back to back, as packed bits from the first value on."""
    first, last = rows.starts * width // 8, -(-rows.ends * width // 8)
    if rows.count and int(last[-1]) > end - start:
        raise CorruptFileError(f"{end - start} bytes are too few for {int(rows.ends[-1])} values of {width} bits")
    data = yield from read_runs(start, first, last)
    if rows.is_one_run and int(rows.starts[0]) * width % 8 == 0:
        return data
    bits = np.unpackbits(data, bitorder="little")
    lengths = (last - first) * 8
    shift = np.cumsum(lengths) - lengths - first * 8
    inside = RowRuns(starts=rows.starts * width + shift, ends=rows.ends * width + shift)
    return np.packbits(bits[inside.rows()], bitorder="little")


def _widths(compressed: int, uncompressed: int) -> np.dtype[Any]:
    if uncompressed not in _WORD_BITS or not 0 < compressed <= uncompressed:
        raise CorruptFileError(f"values of {uncompressed} bits packed into {compressed}")
    return np.dtype(f"<u{uncompressed // 8}")


def _read_bitpacked(page: PageInfo, packed: Bitpacked, rows: RowRuns) -> Steps[Bytes]:
    width = packed.compressed_bits_per_value
    dtype = _widths(width, packed.uncompressed_bits_per_value)
    start, end = buffer_range(page, packed.buffer)
    data = yield from read_bits(start, end, rows, width)
    bits = np.unpackbits(data, count=rows.count * width, bitorder="little").reshape(rows.count, width)
    wide: npt.NDArray[np.uint8] = np.zeros((rows.count, dtype.itemsize * 8), np.uint8)
    wide[:, :width] = bits
    if packed.signed:
        wide[:, width:] = bits[:, -1:]
    return np.packbits(wide, axis=1, bitorder="little").ravel()


def _read_chunks(page: PageInfo, packed: BitpackedForNonNeg, rows: RowRuns) -> Steps[Bytes]:
    width = packed.compressed_bits_per_value
    dtype = _widths(width, packed.uncompressed_bits_per_value)
    start, end = buffer_range(page, packed.buffer)
    if not rows.count:
        return np.empty(0, np.uint8)
    # Runs may share a chunk, which is read once.
    runs = zip(rows.starts.tolist(), rows.ends.tolist(), strict=True)
    chunks = np.unique(np.concatenate([np.arange(a // 1024, -(-b // 1024)) for a, b in runs]))
    size = fastlanes.packed_bytes(width)
    if (int(chunks[-1]) + 1) * size > end - start:
        raise CorruptFileError(f"{end - start} bytes are too few for {int(chunks[-1]) + 1} chunks of {size} bytes")
    data = yield from read_runs(start, chunks * size, (chunks + 1) * size)
    values = np.empty((chunks.size, fastlanes.BLOCK_VALUES), dtype)
    fastlanes.unpack(data.view(dtype).reshape(chunks.size, -1), width, values)
    row_numbers = rows.rows()
    return values[np.searchsorted(chunks, row_numbers // 1024), row_numbers % 1024].view(np.uint8)
