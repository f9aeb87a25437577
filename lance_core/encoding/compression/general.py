"""General compression: LZ4 or Zstandard around another encoding.

    lz4    |u32 size when decompressed|raw LZ4 block|
    zstd   |u64 size when decompressed|Zstandard frame|      a frame without the size before it is read as well

In a mini-block page the first value buffer of every chunk is compressed, in a full-zip page every value. A block is
compressed as a whole.

pyarrow does not report that an LZ4 block holds fewer bytes than stated: the rest of the buffer is uninitialized. The
last five bytes of an LZ4 block are literals (all bytes of a shorter block), so that the end of the buffer can be
compared with the end of the block. Only uninitialized memory with the same bytes passes this check.

The LZ4 blocks of many chunks are decompressed as the blocks of one LZ4 frame, each with its size before it: one call
that lets the interpreter lock go, where thousands of short ones would make threads wait for each other.

    |u32 magic|version and flags, largest block, checksum|u32 size of block|raw LZ4 block|...|u32 0|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import (
    COMPRESSION_ALGORITHM_LZ4,
    COMPRESSION_ALGORITHM_ZSTD,
    BufferCompression,
    CompressionScheme,
    CompressiveEncoding,
    General,
)
from lance_core.encoding.compression import registry
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkGatherer,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    gather_ranges,
)
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, Offsets, VariableBlock, compute_offsets
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_PIECE_BYTES = 2**31
# Number of bytes at the end of an LZ4 block that are always literals.
_FINAL_LITERALS = 5
# Chunks that are decompressed together: the head of their frame, and how many bytes one of them may have when plain.
_FRAME_HEAD = bytes.fromhex("04224d18604082")
_FRAME_BLOCK = 64 * 1024
# The most chunks that are decompressed to look values up in them.
_TOGETHER = 64
# A page is rejected if it grows by more than this factor when it is decompressed, and to more than this many bytes.
_PAGE_RATIO = 1024
_PAGE_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scheme:
    """A general compression algorithm: its names in files and in pyarrow, and its limits.

    Attributes:
        name: Its name in names of compressions and in the metadata of fields.
        number: Its number in page descriptions.
        codec: Its name in pyarrow.
        prefix: Bytes of the size before the data.
        max_ratio: The algorithm's highest compression ratio; higher stated ratios are rejected.
    """

    name: str
    number: CompressionScheme.ValueType
    codec: str
    prefix: int
    max_ratio: int


_SCHEMES = (
    _Scheme(name="lz4", number=COMPRESSION_ALGORITHM_LZ4, codec="lz4_raw", prefix=4, max_ratio=256),
    _Scheme(name="zstd", number=COMPRESSION_ALGORITHM_ZSTD, codec="zstd", prefix=8, max_ratio=2**15),
)


class Decompressor:
    """Decompresses the pieces of one page and limits their total size.

    Args:
        compression: The description of the scheme.
        num_compressed_bytes: Bytes of all pieces.

    Raises:
        UnsupportedError: The scheme is not known.
    """

    def __init__(self, compression: BufferCompression, num_compressed_bytes: int) -> None:
        schemes = [scheme for scheme in _SCHEMES if scheme.number == compression.scheme]
        if not schemes:
            raise UnsupportedError(f"general compression with the unknown scheme {compression.scheme}")
        self._scheme = schemes[0]
        self._codec = pa.Codec(self._scheme.codec)
        self._remaining_bytes = max(_PAGE_BYTES, num_compressed_bytes * _PAGE_RATIO)

    def __call__(self, data: Bytes) -> Bytes:
        """The decompressed bytes of a piece.

        Raises:
            CorruptFileError: The bytes do not follow the scheme, or state an impossible size.
        """
        size = self._read_stated_size(data)
        if size is None:
            return self._decompress_bare_frame(data)
        return _decompress_frame(self._codec, data[self._scheme.prefix :], size) if size else data[:0]

    def to_bytes(self, data: Bytes) -> bytes:
        """The decompressed bytes of a piece as Python's bytes, whose slices cost a fraction of those of a view."""
        size = self._read_stated_size(data)
        if not size:
            return b"" if size == 0 else self._decompress_bare_frame(data).tobytes()
        packed = data[self._scheme.prefix :]
        try:
            plain: bytes = self._codec.decompress(packed, size, asbytes=True)
        except OSError as error:
            raise CorruptFileError(str(error)) from error
        _check_end(self._codec, packed, plain[-_FINAL_LITERALS:], size)
        return plain

    def join(self, buffers: ChunkBuffers) -> ChunkBuffers:
        """The decompressed pieces, back to back.

        Raises:
            CorruptFileError: A piece does not follow the scheme, or states an impossible size.
        """
        joined = self._join_blocks(buffers) if self._scheme.name == "lz4" and buffers.sizes.size > 1 else None
        return joined or _join_pieces([self(buffers.piece(i)) for i in range(buffers.starts.size)])

    def _join_blocks(self, buffers: ChunkBuffers) -> ChunkBuffers | None:
        """LZ4 blocks that are decompressed in one call; None if each piece has to be looked at, or reported."""
        packed_sizes, prefix = buffers.sizes - self._scheme.prefix, self._scheme.prefix
        if packed_sizes.min() < _FINAL_LITERALS or packed_sizes.max() > _FRAME_BLOCK:
            return None
        packed = gather_ranges(buffers.data, buffers.starts, buffers.sizes)
        frame = np.concatenate([np.frombuffer(_FRAME_HEAD, np.uint8), packed, np.zeros(prefix, np.uint8)])
        ends = np.cumsum(buffers.sizes) + len(_FRAME_HEAD)
        heads = (ends - buffers.sizes)[:, None] + np.arange(prefix)
        sizes = frame[heads].view("<u4").ravel().astype(np.int64)
        total = int(sizes.sum())
        if sizes.min() < _FINAL_LITERALS or sizes.max() > _FRAME_BLOCK or total > self._remaining_bytes:
            return None
        frame[heads] = packed_sizes.astype("<u4").view(np.uint8).reshape(-1, prefix)
        try:
            data = np.frombuffer(pa.Codec("lz4").decompress(frame, total), np.uint8)
        except OSError:
            return None
        final, plain_ends = np.arange(-_FINAL_LITERALS, 0), np.cumsum(sizes)
        if not np.array_equal(data[plain_ends[:, None] + final], frame[ends[:, None] + final]):
            return None
        self._remaining_bytes -= total
        return ChunkBuffers(data=data, starts=plain_ends - sizes, sizes=sizes)

    def _read_stated_size(self, data: Bytes) -> int | None:
        """The stated size of a piece; None for a frame without a size."""
        if not data.size:
            return 0
        if self._scheme.name == "zstd" and _is_bare_frame(data):
            return None
        prefix = self._scheme.prefix
        if data.size < prefix:
            raise CorruptFileError(f"compressed data of {data.size} bytes does not state its size")
        size = int.from_bytes(data[:prefix], "little")
        limit = min(data.size * self._scheme.max_ratio + 2**17, _MAX_PIECE_BYTES, self._remaining_bytes)
        if size > limit:
            raise CorruptFileError(f"{data.size} bytes cannot hold {size} bytes, compressed with {self._scheme.name}")
        self._remaining_bytes -= size
        return size

    def _decompress_bare_frame(self, data: Bytes) -> Bytes:
        limit = min(data.size * self._scheme.max_ratio + 2**17, _MAX_PIECE_BYTES, self._remaining_bytes)
        try:
            with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
                plain = stream.read_buffer(limit + 1)
        except OSError as error:
            raise CorruptFileError(str(error)) from error
        if plain.size > limit:
            raise CorruptFileError(f"a zstd frame of {data.size} bytes holds more than {limit} bytes")
        self._remaining_bytes -= plain.size
        return np.frombuffer(plain, np.uint8)


def _decompress_frame(codec: pa.Codec, data: Bytes, size: int) -> Bytes:
    """Decompress a frame or block of `size` bytes.

    Raises:
        CorruptFileError: The bytes cannot be decompressed, or have another size.
    """
    try:
        plain = np.frombuffer(codec.decompress(data, size), np.uint8)
    except OSError as error:
        raise CorruptFileError(str(error)) from error
    _check_end(codec, data, plain[-_FINAL_LITERALS:].tobytes(), size)
    return plain


def _check_end(codec: pa.Codec, data: Bytes, end: bytes, size: int) -> None:
    """Make sure that an LZ4 block has the stated size, by its last bytes (see the module docstring)."""
    if codec.name == "lz4_raw" and data[data.size - len(end) :].tobytes() != end:
        raise CorruptFileError(f"an lz4 block of {data.size} bytes does not hold {size} bytes")


def _is_bare_frame(data: Bytes) -> bool:
    # A size can equal the magic number of a frame: this bit is 0 in frames (the reference library checks the same bit).
    return data.size < 8 or (data[:4].tobytes() == _ZSTD_MAGIC and not data[4] & 0x10)


class Compressor:
    """Compresses pieces and puts their size before each.

    Args:
        scheme: The algorithm.
        level: Its level; None for the codec's default.
    """

    def __init__(self, scheme: _Scheme, level: int | None) -> None:
        self._prefix = scheme.prefix
        # pyarrow supports levels for zstd only; 0 is the default in both libraries.
        used_level = level if level and scheme.name == "zstd" else None
        self._codec = pa.Codec(scheme.codec, compression_level=used_level)

    def __call__(self, data: Bytes) -> bytes:
        """The size and the compressed bytes of a piece."""
        packed: bytes = self._codec.compress(np.ascontiguousarray(data), asbytes=True)
        return data.size.to_bytes(self._prefix, "little") + packed

    def compress_if_smaller(self, data: bytes) -> bytes | None:
        """The size and the compressed bytes of a piece; None unless they are fewer than the bytes of the piece."""
        packed: bytes = self._codec.compress(data, asbytes=True)
        return len(data).to_bytes(self._prefix, "little") + packed if len(packed) + self._prefix < len(data) else None


def read_compressor(encoding: CompressiveEncoding) -> Compressor | None:
    """The compressor of a page description; None for a description with a level, or with an unknown scheme."""
    compression = encoding.general.compression
    schemes = [scheme for scheme in _SCHEMES if scheme.number == compression.scheme]
    return Compressor(schemes[0], None) if schemes and not compression.HasField("level") else None


def _decode_miniblock(encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts) -> DataBlock:
    if not buffers:
        raise CorruptFileError("compressed chunks without a buffer")
    decompressed = _decompress_chunks(encoding, buffers[0])
    return registry.decode_miniblock(encoding.general.values, (decompressed, *buffers[1:]), counts)


def _decompress_chunks(encoding: CompressiveEncoding, buffers: ChunkBuffers) -> ChunkBuffers:
    return Decompressor(encoding.general.compression, int(buffers.sizes.sum())).join(buffers)


def _join_pieces(pieces: Sequence[Bytes]) -> ChunkBuffers:
    sizes = np.array([piece.size for piece in pieces], np.int64)
    if len(pieces) > 1:
        # Arrow's allocator reuses its pages: new pages of a numpy array cost more than the copy.
        data = np.concatenate(pieces, out=np.frombuffer(pa.allocate_buffer(int(sizes.sum())), np.uint8))
    else:
        data = pieces[0] if pieces else np.empty(0, np.uint8)
    return ChunkBuffers(data=data, starts=np.cumsum(sizes) - sizes, sizes=sizes)


def _decode_block(encoding: CompressiveEncoding, data: Bytes, num_values: int) -> DataBlock:
    decompress = Decompressor(encoding.general.compression, data.size)
    return registry.decode_block(encoding.general.values, decompress(data), num_values)


def _decode_blocks(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> DataBlock:
    return registry.decode_blocks(encoding.general.values, _decompress_chunks(encoding, buffers), counts)


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> DataBlock:
    if not isinstance(block, VariableBlock):
        raise CorruptFileError("values of one width cannot be compressed one by one")
    decompress = Decompressor(encoding.general.compression, block.data.size)
    offsets = block.offsets.tolist()
    joined = _join_pieces([decompress(block.data[start:end]) for start, end in pairwise(offsets)])
    values = VariableBlock(offsets=compute_offsets(joined.sizes), data=joined.data, num_values=block.num_values)
    return registry.decode_per_value(encoding.general.values, values)


def _gather(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, chunks: Counts, positions: Counts, counts: Counts
) -> DataBlock | None:
    """Decode some values, decompressing each chunk of theirs once; None if the inner compression reads no single value.

    Args:
        encoding: The description of the page.
        buffers: The chunks.
        chunks: The number of the chunk of each value, ascending.
        positions: The position of each value in its chunk.
        counts: The number of values of every chunk.
    """
    inner_gatherer = registry.make_chunk_gatherer(encoding.general.values, 1)
    if inner_gatherer is None or inner_gatherer[1] == 1:
        return None
    gather, bits_per_value = inner_gatherer
    decompress = Decompressor(encoding.general.compression, int(buffers.sizes.sum()))
    numbers, first = np.unique(chunks, return_index=True)
    bounds = [*first.tolist(), int(positions.size)]
    values: list[bytes | memoryview] = []
    for begin in range(0, numbers.size, _TOGETHER):
        some = numbers[begin : begin + _TOGETHER]
        plain = decompress.join(ChunkBuffers(data=buffers.data, starts=buffers.starts[some], sizes=buffers.sizes[some]))
        for place, chunk in enumerate(some.tolist(), begin):
            # Slices of Python's bytes are copies, which cost a fraction of those of a view: the chunks are released.
            data = plain.piece(place - begin).tobytes()
            values += gather([data], int(counts[chunk]), positions[bounds[place] : bounds[place + 1]].tolist())
    joined = np.frombuffer(b"".join(values), np.uint8)
    if bits_per_value:
        return FixedWidthBlock(data=joined, bits_per_value=bits_per_value, num_values=int(positions.size))
    offsets = compute_offsets(np.fromiter(map(len, values), np.int64, len(values)))
    return VariableBlock(offsets=offsets, data=joined, num_values=int(positions.size))


def _make_chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    inner = registry.make_chunk_gatherer(encoding.general.values, num_buffers)
    if inner is None:
        return None

    def gather(buffers: Sequence[bytes | memoryview], count: int, positions: Sequence[int]) -> list[bytes | memoryview]:
        data = np.frombuffer(buffers[0], np.uint8)
        plain = Decompressor(encoding.general.compression, data.size).to_bytes(data)
        return inner[0]([plain, *buffers[1:]], count, positions)

    return gather, inner[1]


def _parse_name(argument: str) -> tuple[_Scheme, int | None]:
    """The scheme and the level in ``":zstd:9(flat)"``; without a level it is the codec's default."""
    name, _, level = argument.removeprefix(":").split("(", 1)[0].partition(":")
    for scheme in _SCHEMES:
        if scheme.name == name:
            return scheme, int(level) if level else None
    raise InvalidInputError(f"unknown general compression {name!r}: use one of {', '.join(s.name for s in _SCHEMES)}")


def compress_with_size(name: str, data: Bytes) -> bytes:
    """Compress bytes and put their size before them.

    Args:
        name: The scheme, and its level after a colon if it is not the codec's default: "zstd:9".
        data: The bytes.
    """
    return Compressor(*_parse_name(name))(data)


def _describe(scheme: _Scheme, level: int | None, inner: CompressiveEncoding) -> CompressiveEncoding:
    compression = BufferCompression(scheme=scheme.number, level=level)
    return CompressiveEncoding(general=General(compression=compression, values=inner))


def _compress_pieces(scheme: _Scheme, level: int | None, buffers: ChunkBuffers) -> ChunkBuffers:
    compress = Compressor(scheme, level)
    pieces = [compress(buffers.piece(i)) for i in range(buffers.starts.size)]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    data = np.frombuffer(b"".join(pieces), np.uint8)
    return ChunkBuffers(data=data, starts=np.cumsum(sizes) - sizes, sizes=sizes)


def _encode_miniblock(block: DataBlock, argument: str, limits: ChunkLimits) -> MiniBlockPage:
    scheme, level = _parse_name(argument)
    inner = registry.encode_miniblock(
        block, registry.parse_inner_name(argument, "flat"), max_values=limits.max_values, max_bytes=limits.max_bytes
    )
    if not inner.buffers:
        return inner
    first = _compress_pieces(scheme, level, inner.buffers[0])
    if first.data.size >= int(inner.buffers[0].sizes.sum()):
        return inner
    encoding = _describe(scheme, level, inner.encoding)
    return MiniBlockPage(encoding=encoding, buffers=(first, *inner.buffers[1:]), counts=inner.counts)


def _encode_block(block: DataBlock, argument: str) -> tuple[CompressiveEncoding, Bytes]:
    scheme, level = _parse_name(argument)
    encoding, data = registry.encode_block(block, registry.parse_inner_name(argument, "flat"))
    return _describe(scheme, level, encoding), np.frombuffer(Compressor(scheme, level)(data), np.uint8)


def _encode_blocks(block: DataBlock, argument: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    scheme, level = _parse_name(argument)
    encoding, buffers = registry.encode_blocks(block, registry.parse_inner_name(argument, "flat"), counts)
    return _describe(scheme, level, encoding), _compress_pieces(scheme, level, buffers)


def _encode_per_value(block: DataBlock, argument: str) -> tuple[CompressiveEncoding, VariableBlock]:
    scheme, level = _parse_name(argument)
    encoding, values = registry.encode_per_value(block, registry.parse_inner_name(argument, "variable"))
    if not isinstance(values, VariableBlock):
        raise InvalidInputError("values of one width cannot be compressed one by one")
    starts = values.offsets[:-1].astype(np.int64)
    pieces = ChunkBuffers(data=values.data, starts=starts, sizes=np.diff(values.offsets).astype(np.int64))
    packed = _compress_pieces(scheme, level, pieces)
    ends: Offsets = compute_offsets(packed.sizes)
    if values.offsets.itemsize == 8:
        ends = ends.astype(np.int64)
    return _describe(scheme, level, encoding), VariableBlock(
        offsets=ends, data=packed.data, num_values=values.num_values
    )


COMPRESSION = registry.Compression(
    name="general",
    takes_argument=True,
    decode_miniblock=_decode_miniblock,
    decode_block=_decode_block,
    decode_blocks=_decode_blocks,
    decode_per_value=_decode_per_value,
    gather=_gather,
    chunk_gatherer=_make_chunk_gatherer,
    encode_miniblock=_encode_miniblock,
    encode_block=_encode_block,
    encode_blocks=_encode_blocks,
    encode_per_value=_encode_per_value,
)
