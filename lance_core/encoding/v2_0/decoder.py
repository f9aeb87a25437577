"""Reads the pages of 2.0 files.

    numbers           flat, bitpacked, bitpacked_for_non_neg, constant: see below
    nullable          no_nulls{values} | some_nulls{validity: one bit per value, values} | all_nulls
    binary            indices: u64 end of each value in `bytes`; a null has null_adjustment added to its end
    fixed_size_list   dimension * n items
    dictionary        indices, and the items; if the column is not of a dictionary type, 0 is null and 1 the first item
    packed_struct     rows of adjacent fields, one buffer
    fixed_size_binary strings of one length, stored flat, by value or byte by byte
    fsst              binary whose values are compressed with a symbol table

The other encodings of the message (block, inline_bitpacking, out_of_line_bitpacking, variable, rle, general_mini_block,
byte_stream_split, packed_struct_fixed_width_mini_block) are rejected by name: no release wrote them into 2.0 files.
Previews of 2.1 described their pages with this message between March and August 2025; no other release reads them.

Ranges of values are read directly: of flat values their bytes, of strings first their ends, then their bytes.

Numbers are values of a fixed width that are stored flat or bit-packed:

    flat                     bits_per_value bits per value, back to back; 1 bit: least significant first
    bitpacked                compressed bits per value, back to back across bytes, least significant first;
                             `signed`: the highest of the bits is the sign, which is extended
    bitpacked_for_non_neg    chunks of 1,024 values, each packed as FastLanes words (see `compression.fastlanes`); the
                             last chunk is padded with zeros
    constant                 one value, in the description

Writers of 2024 bit-packed integers; current versions do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.encodings_v2_0_pb2 import (
    ArrayEncoding,
    Binary,
    Bitpacked,
    BitpackedForNonNeg,
    Buffer,
    Dictionary,
    Flat,
    Nullable,
)
from lance_core._proto.encodings_v2_1_pb2 import (
    COMPRESSION_ALGORITHM_LZ4,
    COMPRESSION_ALGORITHM_ZSTD,
    BufferCompression,
    CompressiveEncoding,
)
from lance_core.encoding.compression import fastlanes
from lance_core.encoding.compression.general import Decompressor
from lance_core.encoding.compression.registry import decode_per_value
from lance_core.encoding.datablock import FixedWidthBlock, VariableBlock, block_to_array
from lance_core.encoding.page import ByteRange, Bytes, PageInfo, RowRuns, Steps, as_bytes
from lance_core.errors import CorruptFileError, UnsupportedError

_MAX_DEPTH: Final = 64
_MOST_PACKED_BITS: Final = 2**31
# Compressions of the bytes of strings. Releases before 0.31 wrote no size before the frames of zstd.
_SCHEMES: Final = {"zstd": COMPRESSION_ALGORITHM_ZSTD, "lz4": COMPRESSION_ALGORITHM_LZ4, "none": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """Decoded values of one encoding: an array without nulls, and the validity of each value."""

    array: pa.Array
    valid: npt.NDArray[np.bool_] | None


def decode_values(page: PageInfo, kind: pa.DataType, rows: RowRuns) -> Steps[pa.Array]:
    """Read values of a page of a column that is neither a list nor a struct of columns.

    Args:
        page: The page; its `encoding` is an `ArrayEncoding`.
        kind: The Arrow type of the column.
        rows: The wanted values.

    Returns:
        An array of the wanted values.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: An encoding is not known.
    """
    if not isinstance(page.encoding, ArrayEncoding):
        raise CorruptFileError("the page has no array encoding")
    values = yield from _decode(page, page.encoding, kind, rows, 0)
    return _add_nulls(values)


def _decode(page: PageInfo, encoding: ArrayEncoding, kind: pa.DataType, rows: RowRuns, depth: int) -> Steps[_Values]:
    name = encoding.WhichOneof("array_encoding")
    if depth > _MAX_DEPTH:
        raise CorruptFileError(f"encodings nest deeper than {_MAX_DEPTH}")
    if name == "nullable" or pa.types.is_null(kind):
        return (yield from _decode_nullable(page, encoding.nullable, kind, rows, depth))
    if is_fixed_width(encoding):
        data = yield from read_fixed_width(page, encoding, rows)
        block = FixedWidthBlock(data=data, bits_per_value=value_bits(encoding), num_values=rows.count)
        return _Values(array=block_to_array(block, kind), valid=None)
    if name == "fixed_size_binary":
        return (yield from _decode_fixed_size_binary(page, encoding, kind, rows))
    if name == "binary":
        return (yield from _decode_binary(page, encoding.binary, kind, rows))
    if name == "fsst":
        return (yield from _decode_binary(page, encoding.fsst.binary.binary, kind, rows, _describe_fsst(encoding)))
    if name == "fixed_size_list" and pa.types.is_fixed_size_list(kind):
        return (yield from _decode_fixed_size_list(page, encoding, kind, rows, depth))
    if name == "dictionary":
        return (yield from _decode_dictionary(page, encoding.dictionary, kind, rows, depth))
    if name == "packed_struct" and pa.types.is_struct(kind):
        return (yield from _decode_packed(page, encoding, kind, rows))
    raise UnsupportedError(f"the 2.0 encoding {name} of a column of type {kind} is not supported")


def _describe_fsst(encoding: ArrayEncoding) -> CompressiveEncoding:
    """The compression as versions from 2.1 on describe it."""
    described = CompressiveEncoding()
    described.fsst.symbol_table = encoding.fsst.symbol_table
    described.fsst.values.variable.offsets.flat.bits_per_value = 64
    return described


def _add_nulls(values: _Values) -> pa.Array:
    """The array with the nulls of its encoding."""
    if values.valid is None:
        return values.array
    array = values.array
    validity = pa.py_buffer(np.packbits(values.valid, bitorder="little"))
    if pa.types.is_dictionary(array.type):
        indices = pa.Array.from_buffers(array.type.index_type, len(array), [validity, array.indices.buffers()[1]])
        return pa.DictionaryArray.from_arrays(indices, array.dictionary)
    if pa.types.is_struct(array.type):
        children = [array.field(i) for i in range(array.type.num_fields)]
        return pa.Array.from_buffers(array.type, len(array), [validity], children=children)
    if pa.types.is_fixed_size_list(array.type):
        return pa.Array.from_buffers(array.type, len(array), [validity], children=[array.values])
    return pa.Array.from_buffers(array.type, len(array), [validity, *array.buffers()[1:]])


def _decode_nullable(
    page: PageInfo, nullable: Nullable, kind: pa.DataType, rows: RowRuns, depth: int
) -> Steps[_Values]:
    name = nullable.WhichOneof("nullability")
    if name == "all_nulls" or pa.types.is_null(kind):
        return _Values(array=pa.nulls(rows.count, kind), valid=None)
    if name == "no_nulls":
        return (yield from _decode(page, nullable.no_nulls.values, kind, rows, depth + 1))
    if name != "some_nulls":
        raise CorruptFileError("a nullable encoding of no kind")
    validity = nullable.some_nulls.validity
    if validity.WhichOneof("array_encoding") != "flat" or validity.flat.bits_per_value != 1:
        raise UnsupportedError("the validity is not a bitmap")
    bits = yield from read_fixed_width(page, validity, rows)
    valid = np.unpackbits(bits, count=rows.count, bitorder="little").view(np.bool_)
    values = yield from _decode(page, nullable.some_nulls.values, kind, rows, depth + 1)
    return _Values(array=values.array, valid=valid if values.valid is None else valid & values.valid)


def _decode_ends(page: PageInfo, encoding: ArrayEncoding, rows: RowRuns) -> Steps[tuple[Any, Any]]:
    """The ends of some values, and the end of the one before each run (0 before the first value)."""
    while encoding.WhichOneof("array_encoding") == "nullable":
        encoding = encoding.nullable.no_nulls.values
    if not is_fixed_width(encoding) or value_bits(encoding) not in (32, 64):
        raise UnsupportedError("the ends of values are not 32 or 64 bits wide")
    wider = RowRuns(starts=np.maximum(rows.starts - 1, 0), ends=rows.ends)
    raw = (yield from read_fixed_width(page, encoding, wider)).view(f"<u{value_bits(encoding) // 8}")
    lengths = wider.ends - wider.starts
    first = np.cumsum(lengths) - lengths
    if raw.size and int(raw.max()) >= 2**63:
        raise CorruptFileError("a value ends beyond any file")
    ends = raw.astype(np.int64)
    has_previous = rows.starts > 0
    previous = np.where(has_previous, ends[first] if ends.size else 0, 0)
    keep = np.ones(ends.size, np.bool_)
    keep[first[has_previous]] = False
    return ends[keep], previous


def read_ends(page: PageInfo, encoding: ArrayEncoding, adjustment: int, rows: RowRuns) -> Steps[tuple[Any, Any, Any]]:
    """Offsets of some values or lists.

    Args:
        page: The page.
        encoding: The description of the ends.
        adjustment: The number that is added to the end of a null.
        rows: The wanted values or lists.

    Returns:
        The start and end of each value or list, and whether it is valid.

    Raises:
        CorruptFileError: The ends do not ascend, or the adjustment is 0.
    """
    marked, previous = yield from _decode_ends(page, encoding, rows)
    valid = marked < adjustment
    if adjustment <= 0:
        raise CorruptFileError("the null adjustment of offsets is 0")
    ends = marked % adjustment
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1]
    lengths = rows.ends - rows.starts
    starts[np.cumsum(lengths) - lengths] = previous % adjustment
    if bool((ends < starts).any()):
        raise CorruptFileError("the ends of values do not ascend")
    return starts, ends, valid


def _decode_binary(
    page: PageInfo, binary: Binary, kind: pa.DataType, rows: RowRuns, compressed: CompressiveEncoding | None = None
) -> Steps[_Values]:
    if not rows.count:
        return _Values(array=pa.nulls(0, kind), valid=None)
    starts, ends, valid = yield from read_ends(page, binary.indices, binary.null_adjustment, rows)
    flat = _require_flat(binary.bytes)
    lengths = rows.ends - rows.starts
    first = np.cumsum(lengths) - lengths
    begin, end = starts[first], ends[first + lengths - 1]
    base, limit = buffer_range(page, flat.buffer)
    if flat.HasField("compression"):
        whole = yield from _read_compressed(base, limit, flat, int(end.max()))
        data = np.concatenate([whole[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)])
    else:
        if int(end.max()) > limit - base:
            raise CorruptFileError(f"values end at {int(end.max())}, there are {limit - base} bytes")
        data = yield from read_runs(base, begin, end)
    offsets = np.zeros(rows.count + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    block: Any = VariableBlock(offsets=offsets, data=data, num_values=rows.count)
    if compressed is not None:
        block = decode_per_value(compressed, block)
    return _Values(array=block_to_array(block, kind), valid=None if bool(valid.all()) else valid)


def _decode_fixed_size_binary(page: PageInfo, encoding: ArrayEncoding, kind: Any, rows: RowRuns) -> Steps[_Values]:
    """Strings or bytes of one length, stored as flat values of that many bytes, or of one byte each."""
    width = encoding.fixed_size_binary.byte_width
    inner = encoding.fixed_size_binary.bytes
    while inner.WhichOneof("array_encoding") == "nullable" and inner.nullable.HasField("no_nulls"):
        inner = inner.nullable.no_nulls.values
    if not is_fixed_width(inner) or not width:
        raise UnsupportedError("strings of a fixed size are not stored flat")
    if value_bits(inner) == 8:
        # Each byte is a value.
        rows_read = RowRuns(starts=rows.starts * width, ends=rows.ends * width)
    elif value_bits(inner) == width * 8:
        rows_read = rows
    else:
        raise CorruptFileError(f"strings of {width} bytes stored in {value_bits(inner)} bits")
    data = yield from read_fixed_width(page, inner, rows_read)
    offsets = np.arange(rows.count + 1, dtype=np.int64) * width
    block = VariableBlock(offsets=offsets, data=data, num_values=rows.count)
    return _Values(array=block_to_array(block, kind), valid=None)


def _require_flat(encoding: ArrayEncoding) -> Flat:
    while encoding.WhichOneof("array_encoding") == "nullable":
        encoding = encoding.nullable.no_nulls.values
    if encoding.WhichOneof("array_encoding") != "flat" or encoding.flat.bits_per_value != 8:
        raise UnsupportedError("the bytes of values are not stored flat")
    return encoding.flat


def _read_compressed(base: int, limit: int, flat: Flat, size: int) -> Steps[Bytes]:
    scheme = flat.compression.scheme
    if scheme not in _SCHEMES:
        raise UnsupportedError(f"bytes compressed with {scheme!r}")
    answers = yield [(base, limit)]
    data = as_bytes(answers[0])
    number = _SCHEMES[scheme]
    plain = data if number is None else Decompressor(BufferCompression(scheme=number), data.size)(data)
    if plain.size < size:
        raise CorruptFileError(f"{plain.size} bytes after decompression, but the values need {size}")
    return plain


def _decode_fixed_size_list(
    page: PageInfo, encoding: ArrayEncoding, kind: Any, rows: RowRuns, depth: int
) -> Steps[_Values]:
    size = encoding.fixed_size_list.dimension
    if size != kind.list_size or size == 0:
        raise CorruptFileError(f"lists of {size} items in a column of type {kind}")
    inner = RowRuns(starts=rows.starts * size, ends=rows.ends * size)
    items = yield from _decode(page, encoding.fixed_size_list.items, kind.value_type, inner, depth + 1)
    array = pa.Array.from_buffers(kind, rows.count, [None], children=[_add_nulls(items)])
    return _Values(array=array, valid=None)


def _decode_dictionary(page: PageInfo, dictionary: Dictionary, kind: Any, rows: RowRuns, depth: int) -> Steps[_Values]:
    is_dictionary = pa.types.is_dictionary(kind)
    count = dictionary.num_dictionary_items
    flat = dictionary.indices
    while flat.WhichOneof("array_encoding") == "nullable":
        flat = flat.nullable.no_nulls.values
    bits = value_bits(flat) if is_fixed_width(flat) else 0
    if bits not in (8, 16, 32, 64):
        raise UnsupportedError("the indices of a dictionary are not integers")
    raw = (yield from read_fixed_width(page, flat, rows)).view(f"<u{bits // 8}").astype(np.int64)
    all_items = RowRuns.of_range(0, count)
    items = yield from _decode(page, dictionary.items, kind.value_type if is_dictionary else kind, all_items, depth + 1)
    array = _add_nulls(items)
    if raw.size and int(raw.max()) >= count + (0 if is_dictionary else 1):
        raise CorruptFileError(f"index {int(raw.max())} into a dictionary of {count} items")
    if is_dictionary:
        valid = ~np.asarray(array.is_null())[raw] if array.null_count else None
        indices = pa.array(raw, mask=None if valid is None else ~valid).cast(kind.index_type)
        if valid is not None and not array[len(array) - 1].is_valid:
            # The last item stands for null; it is not a value.
            array = array.slice(0, len(array) - 1)
        return _Values(array=pa.DictionaryArray.from_arrays(indices, array), valid=None)
    return _Values(array=array.take(pa.array(raw - 1, mask=raw == 0)), valid=None)


def _packed_bytes(encoding: ArrayEncoding) -> int:
    """Bytes of one field of a packed struct; a fixed size list is one wide value."""
    items = 1
    while (name := encoding.WhichOneof("array_encoding")) in ("nullable", "fixed_size_list"):
        if name == "nullable":
            encoding = encoding.nullable.no_nulls.values
        else:
            items *= encoding.fixed_size_list.dimension
            encoding = encoding.fixed_size_list.items
    bits = encoding.flat.bits_per_value
    if name != "flat" or bits % 8 or not 0 < bits * items <= _MOST_PACKED_BITS:
        raise UnsupportedError("a field of a packed struct does not have whole bytes")
    return bits * items // 8


def _decode_packed(page: PageInfo, encoding: ArrayEncoding, kind: Any, rows: RowRuns) -> Steps[_Values]:
    packed = encoding.packed_struct
    widths = [_packed_bytes(inner) for inner in packed.inner]
    if len(widths) != kind.num_fields:
        raise CorruptFileError(f"{len(widths)} packed fields in a column of type {kind}")
    total = sum(widths)
    start, end = buffer_range(page, packed.buffer)
    if rows.count and int(rows.ends[-1]) * total > end - start:
        raise CorruptFileError(f"{end - start} bytes are too few for rows of {total} bytes")
    table = (yield from read_runs(start, rows.starts * total, rows.ends * total)).reshape(-1, total)
    children, position = [], 0
    for width, field in zip(widths, kind, strict=True):
        data = np.ascontiguousarray(table[:, position : position + width]).ravel()
        block = FixedWidthBlock(data=data, bits_per_value=width * 8, num_values=rows.count)
        children.append(block_to_array(block, field.type))
        position += width
    return _Values(array=pa.Array.from_buffers(kind, rows.count, [None], children=children), valid=None)


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
