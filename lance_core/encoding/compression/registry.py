"""The table of compressions, and functions that decode and encode by a compression's description or name.

A compression is described in the file by a `CompressiveEncoding` message and chosen for writing by a name such as
``"flat"``, ``"fsst"``, or, where compressions nest, ``"general:zstd:9(flat)"``: the compression's own name, arguments
after colons, and the name of the inner compression in parentheses.

Values are stored in one of three ways, and a compression offers those that it supports:

    mini-block   many chunks, all decoded together; one or more buffers per chunk
    block        one buffer that is decoded as a whole (dictionary items), or one such buffer per chunk (levels)
    per value    every value is compressed by itself, so that it can be reached by itself (full-zip)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkGatherer,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    check_chunks,
    sum_counts,
)
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, VariableBlock
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_MAX_NESTING = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """The functions of one compression; None for those that it does not offer.

    The second argument of the encoders is the rest of the name after the compression's own name: ``":lz4(flat)"``.

    Attributes:
        name: The name of its member in the `CompressiveEncoding` message.
        takes_argument: Whether its name may have arguments or an inner compression.
        decode_miniblock: (encoding, value buffers, counts) -> the values of all chunks.
        decode_block: (encoding, data, number of values) -> the values.
        decode_blocks: (encoding, one buffer per chunk, counts) -> the values of all chunks.
        decode_per_value: (encoding, values as they are in the page) -> the values.
        gather: (encoding, buffer, chunk of each value, position of each value in its chunk, counts) -> some values of
            all chunks; None where all values have to be decoded.
        chunk_gatherer: (encoding, number of value buffers) -> a function that reads some values of one chunk, and their
            bits, 0 for varying length; None where all values have to be decoded.
        gives_plain_values: Whether it decodes to values of one width or with offsets, of which some can be copied.
        encode_words: (values of one chunk as unsigned words) -> the chunk's only buffer; None for words that it does
            not encode.
        encode_miniblock: (block, argument, limits) -> chunks.
        encode_block: (block, argument) -> (encoding, bytes).
        encode_blocks: (block, argument, counts) -> (encoding, one buffer per chunk).
        encode_per_value: (block, argument) -> (encoding, the values as they go into the page).
    """

    name: str
    takes_argument: bool = False
    decode_miniblock: Callable[[CompressiveEncoding, Sequence[ChunkBuffers], Counts], DataBlock] | None = None
    decode_block: Callable[[CompressiveEncoding, Bytes, int], DataBlock] | None = None
    decode_blocks: Callable[[CompressiveEncoding, ChunkBuffers, Counts], DataBlock] | None = None
    decode_per_value: Callable[[CompressiveEncoding, FixedWidthBlock | VariableBlock], DataBlock] | None = None
    gather: Callable[[CompressiveEncoding, ChunkBuffers, Counts, Counts, Counts], DataBlock | None] | None = None
    chunk_gatherer: Callable[[CompressiveEncoding, int], tuple[ChunkGatherer, int] | None] | None = None
    gives_plain_values: bool = False
    encode_words: Callable[[npt.NDArray[Any]], bytes | None] | None = None
    encode_miniblock: Callable[[DataBlock, str, ChunkLimits], MiniBlockPage] | None = None
    encode_block: Callable[[DataBlock, str], tuple[CompressiveEncoding, Bytes]] | None = None
    encode_blocks: Callable[[DataBlock, str, Counts], tuple[CompressiveEncoding, ChunkBuffers]] | None = None
    encode_per_value: Callable[[DataBlock, str], tuple[CompressiveEncoding, FixedWidthBlock | VariableBlock]] | None = (
        None
    )


# Filled by lance_core.encoding.compression, one line per compression.
COMPRESSIONS: dict[str, Compression] = {}


def decode_miniblock(encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts) -> DataBlock:
    """Decode the values of all chunks of a mini-block page.

    Args:
        encoding: The page's `value_compression`.
        buffers: The value buffers, in order.
        counts: Values per chunk, int64.

    Returns:
        The values of all chunks, concatenated; a view of the page's memory where possible.

    Raises:
        CorruptFileError: The bytes do not follow the encoding.
        UnsupportedError: The encoding is unknown, or not possible in a mini-block.
    """
    compression = find_described_compression(encoding)
    if compression.decode_miniblock is None:
        raise UnsupportedError(f"{compression.name} in a mini-block page is not supported")
    for buffer in buffers:
        check_chunks(buffer, counts)
    return _check_count(compression.decode_miniblock(encoding, buffers, counts), sum_counts(counts))


def with_one_buffer(
    decode: Callable[[CompressiveEncoding, ChunkBuffers, Counts], DataBlock],
) -> Callable[[CompressiveEncoding, Sequence[ChunkBuffers], Counts], DataBlock]:
    """The `decode_miniblock` of a compression whose chunks have one value buffer each."""

    def decode_only_buffer(encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts) -> DataBlock:
        if len(buffers) != 1:
            name = encoding.WhichOneof("compression")
            raise CorruptFileError(f"chunks of the compression {name} have one buffer, not {len(buffers)}")
        return decode(encoding, buffers[0], counts)

    return decode_only_buffer


def decode_block(encoding: CompressiveEncoding, data: Bytes, num_values: int) -> DataBlock:
    """Decode one buffer, for example the items of a dictionary.

    Args:
        encoding: Its description.
        data: Its bytes.
        num_values: Number of values.

    Raises:
        CorruptFileError: The bytes do not follow the encoding.
        UnsupportedError: The encoding is unknown, or has no block form.
    """
    compression = find_described_compression(encoding)
    if num_values < 0 or num_values > 2**40:
        raise CorruptFileError(f"a block of {num_values} values is not possible")
    if compression.decode_block is not None:
        return _check_count(compression.decode_block(encoding, data, num_values), num_values)
    return decode_blocks(encoding, ChunkBuffers.single(data), np.array([num_values], np.int64))


def decode_blocks(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> DataBlock:
    """Decode one block per chunk, all at once: repetition and definition levels.

    Args:
        encoding: The description that all of them share.
        buffers: The buffer of each chunk.
        counts: Values (levels) per chunk.

    Returns:
        The values of all chunks, concatenated.

    Raises:
        CorruptFileError: The bytes do not follow the encoding.
        UnsupportedError: The encoding is unknown, or has no block form.
    """
    compression = find_described_compression(encoding)
    if compression.decode_blocks is None:
        raise UnsupportedError(f"{compression.name} as a block is not supported")
    check_chunks(buffers, counts)
    return _check_count(compression.decode_blocks(encoding, buffers, counts), sum_counts(counts))


def gather_values(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts, positions: Counts
) -> DataBlock | None:
    """Some values of chunks, without decoding the others; None where all values have to be decoded.

    Args:
        encoding: The description that all chunks share.
        buffers: The value buffer of each chunk.
        counts: Values per chunk.
        positions: Numbers of the values, counted through all chunks; ascending.

    Raises:
        CorruptFileError: The bytes do not follow the encoding.
        UnsupportedError: The encoding is unknown.
    """
    compression = find_described_compression(encoding)
    if compression.gather is None:
        return None
    check_chunks(buffers, counts)
    ends = np.cumsum(counts)
    chunks = np.searchsorted(ends, positions, side="right")
    return compression.gather(encoding, buffers, chunks, positions - (ends - counts)[chunks], counts)


def make_chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    """A function that reads some values of one chunk, and their bits, 0 for varying length; None if there is none.

    Args:
        encoding: The page's `value_compression`.
        num_buffers: Value buffers per chunk.

    Raises:
        CorruptFileError: The description states a width that no value has.
        UnsupportedError: The encoding is unknown.
    """
    compression = find_described_compression(encoding)
    return None if compression.chunk_gatherer is None else compression.chunk_gatherer(encoding, num_buffers)


def decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> DataBlock:
    """Decode values that were compressed one by one (full-zip pages).

    Args:
        encoding: The page's `value_compression`.
        block: The values as stored in the page, of one width or of varying length.

    Raises:
        CorruptFileError: The bytes do not follow the encoding.
        UnsupportedError: The encoding is unknown, or does not work value by value.
    """
    compression = find_described_compression(encoding)
    if compression.decode_per_value is None:
        raise UnsupportedError(f"{compression.name} in a full-zip page is not supported")
    return _check_count(compression.decode_per_value(encoding, block), block.num_values)


def encode_miniblock(block: DataBlock, name: str, *, max_values: int = 4096, max_bytes: int = 8192) -> MiniBlockPage:
    """Encode values and divide them into chunks.

    Args:
        block: The values.
        name: The compression, see the module.
        max_values: Most values per chunk, 2 .. 32768. Inline bit packing always has 1024.
        max_bytes: Most bytes in the value buffers of one chunk, padding included. The whole chunk, with its header and
            levels, may have 32 KiB in 2.1 and 2 GiB in 2.2.

    Raises:
        InvalidInputError: The block is of the wrong kind, or a value does not fit a chunk.
        UnsupportedError: The compression is unknown, or not possible in a mini-block.
    """
    compression, argument = parse_name(name)
    if compression.encode_miniblock is None:
        raise UnsupportedError(f"writing {compression.name} in a mini-block page is not supported")
    limits = ChunkLimits(max_values=max_values, max_bytes=max_bytes)
    return compression.encode_miniblock(block, argument, limits)


def encode_block(block: DataBlock, name: str) -> tuple[CompressiveEncoding, Bytes]:
    """Encode all values into one buffer.

    Raises:
        InvalidInputError: The block is of the wrong kind.
        UnsupportedError: The compression is unknown, or has no block form.
    """
    compression, argument = parse_name(name)
    if compression.encode_block is not None:
        return compression.encode_block(block, argument)
    encoding, buffers = encode_blocks(block, name, np.array([block.num_values], np.int64))
    return encoding, buffers.piece(0)


def encode_blocks(block: DataBlock, name: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    """Encode values into one buffer per chunk, all at once: repetition and definition levels.

    Args:
        block: The values of all chunks.
        name: The compression.
        counts: Values per chunk; any numbers that sum to the number of values.

    Raises:
        InvalidInputError: The block is of the wrong kind, or the counts do not fit it.
        UnsupportedError: The compression is unknown, or has no block form.
    """
    compression, argument = parse_name(name)
    if compression.encode_blocks is None:
        raise UnsupportedError(f"writing {compression.name} as a block is not supported")
    if sum_counts(counts) != block.num_values:
        raise InvalidInputError(f"the counts sum to {sum_counts(counts)}, but there are {block.num_values} values")
    return compression.encode_blocks(block, argument, counts)


def encode_per_value(block: DataBlock, name: str) -> tuple[CompressiveEncoding, FixedWidthBlock | VariableBlock]:
    """Encode every value by itself, for a full-zip page.

    Returns:
        The page's `value_compression`, and the values to zip. Their width is the page's `bits_per_value`; of values of
        varying length the width of the offsets is its `bits_per_offset`.

    Raises:
        InvalidInputError: The block is of the wrong kind.
        UnsupportedError: The compression is unknown, or does not work value by value.
    """
    compression, argument = parse_name(name)
    if compression.encode_per_value is None:
        raise UnsupportedError(f"writing {compression.name} in a full-zip page is not supported")
    return compression.encode_per_value(block, argument)


def parse_name(name: str) -> tuple[Compression, str]:
    """Split the name of a compression into the compression and the rest: ``":lz4(flat)"`` or ``"(flat)"`` or ``""``.

    Raises:
        UnsupportedError: The compression is unknown.
    """
    end = min((at for at in (name.find(":"), name.find("(")) if at >= 0), default=len(name))
    compression = COMPRESSIONS.get(name[:end])
    if compression is None or (name[end:] and not compression.takes_argument):
        raise UnsupportedError(f"unknown compression {name!r}: use one of {', '.join(sorted(COMPRESSIONS))}")
    return compression, name[end:]


def parse_inner_name(argument: str, default: str) -> str:
    """The name in the parentheses of an argument, or `default` without parentheses.

    Raises:
        InvalidInputError: The parentheses do not match.
    """
    start = argument.find("(")
    if start < 0:
        return default
    if not argument.endswith(")"):
        raise InvalidInputError(f"parentheses do not match in {argument!r}")
    return argument[start + 1 : -1]


def find_described_compression(encoding: CompressiveEncoding) -> Compression:
    """The compression of a description.

    Raises:
        CorruptFileError: Descriptions nest too deeply.
        UnsupportedError: The encoding is unknown.
    """
    _check_nesting(encoding)
    name = encoding.WhichOneof("compression")
    if name is None:
        raise UnsupportedError("a compression in the page description is unknown or missing")
    return COMPRESSIONS[name]


def _check_nesting(encoding: CompressiveEncoding) -> None:
    """Reject descriptions that nest too deeply."""
    depth = 0
    name = encoding.WhichOneof("compression")
    while name in ("general", "fsst", "fixed_size_list"):
        depth += 1
        if depth > _MAX_NESTING:
            raise CorruptFileError(f"compressions nest deeper than {_MAX_NESTING}")
        encoding = getattr(encoding, name).values
        name = encoding.WhichOneof("compression")


def _check_count(block: DataBlock, num_values: int) -> DataBlock:
    if block.num_values != num_values:
        raise CorruptFileError(f"{block.num_values} values where {num_values} are expected")
    return block
