"""Run lengths: equal consecutive values are stored once, with their number.

    mini-block chunk, buffer 0   |value of run 0|value of run 1|...|      flat, 8 to 64 bits
                      buffer 1   |u8 length|u8 length|...|                1 .. 255; longer runs are split
    block (levels)               |u64 bytes of the values|values|u8 lengths|

The lengths of a chunk may sum to more than its values: the last run is then shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, Rle
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkGatherer,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    chunk_counts,
    gather_bytes,
    sum_counts,
)
from lance_core.encoding.compression.flat import flat_bits, flat_encoding
from lance_core.encoding.compression.registry import Compression
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, count_runs, require_fixed_width
from lance_core.errors import CorruptFileError, InvalidInputError

_LONGEST = 255
_HEADER_BYTES = 8
_LEVEL_RUN_BYTES = 3


def _value_bits(encoding: CompressiveEncoding) -> int:
    bits = flat_bits(encoding.rle.values)
    if bits not in (8, 16, 32, 64):
        raise CorruptFileError(f"runs of values of {bits} bits")
    if flat_bits(encoding.rle.run_lengths) != 8:
        raise CorruptFileError(f"run lengths of {flat_bits(encoding.rle.run_lengths)} bits")
    return bits


def _decode_miniblock(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts
) -> FixedWidthBlock:
    if len(buffers) != 2:
        raise CorruptFileError(f"chunks of runs have two buffers, not {len(buffers)}")
    return _expand(_value_bits(encoding), buffers[0], buffers[1], counts)


def _expand(bits: int, values: ChunkBuffers, lengths: ChunkBuffers, counts: Counts) -> FixedWidthBlock:
    runs = lengths.sizes
    num_values = sum_counts(counts)
    if (values.sizes != runs * (bits // 8)).any():
        raise CorruptFileError("a chunk has different numbers of run values and run lengths")
    if num_values > _LONGEST * int(runs.sum()):
        raise CorruptFileError(f"{int(runs.sum())} runs cannot hold {num_values} values")
    words = gather_bytes(values, values.sizes).view(f"<u{bits // 8}")
    repeats = gather_bytes(lengths, runs)
    sums = _sum_runs(repeats, runs)
    if (sums < counts).any():
        raise CorruptFileError("the run lengths of a chunk sum to less than its values")
    exact = repeats.astype(np.int64) if bool((sums == counts).all()) else _clip(repeats, runs, counts)
    out: npt.NDArray[Any] = np.repeat(words, exact)
    return FixedWidthBlock(data=out.view(np.uint8), bits_per_value=bits, num_values=num_values)


def _sum_runs(repeats: Bytes, runs: Counts) -> Counts:
    """The sum of the run lengths of every chunk."""
    ends = np.concatenate([[0], np.cumsum(repeats, dtype=np.int64)])
    last = np.cumsum(runs)
    sums: Counts = ends[last] - ends[last - runs]
    return sums


def _clip(repeats: Bytes, runs: Counts, counts: Counts) -> Counts:
    """Run lengths, shortened where they extend over the end of their chunk."""
    ends = np.cumsum(repeats, dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(_sum_runs(repeats, runs))[:-1]])
    inside = np.minimum(ends - np.repeat(first, runs), np.repeat(counts, runs))
    begins = np.minimum(ends - repeats - np.repeat(first, runs), np.repeat(counts, runs))
    clipped: Counts = inside - begins
    return clipped


def _decode_blocks(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> FixedWidthBlock:
    bits = _value_bits(encoding)
    if counts.size and bool((buffers.sizes < _HEADER_BYTES).any()):
        raise CorruptFileError("a block of runs without a header")
    heads = gather_bytes(buffers, np.full(counts.size, _HEADER_BYTES, np.int64)).view("<i8")
    room = buffers.sizes - _HEADER_BYTES
    if (heads < 0).any() or (heads > room).any():
        raise CorruptFileError("a block of runs is shorter than its header says")
    starts = buffers.starts + _HEADER_BYTES
    values = ChunkBuffers(data=buffers.data, starts=starts, sizes=heads)
    lengths = ChunkBuffers(data=buffers.data, starts=starts + heads, sizes=room - heads)
    return _expand(bits, values, lengths, counts)


def _chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    bits = flat_bits(encoding.rle.values)
    if num_buffers != 2 or bits not in (8, 16, 32, 64) or flat_bits(encoding.rle.run_lengths) != 8:
        return None
    width = bits // 8

    def gather(buffers: Sequence[bytes | memoryview], count: int, places: Sequence[int]) -> list[bytes | memoryview]:
        values, lengths = buffers
        if len(values) != len(lengths) * width:
            raise CorruptFileError("a chunk has different numbers of run values and run lengths")
        ends = np.cumsum(np.frombuffer(lengths, np.uint8), dtype=np.int64)
        if not ends.size or int(ends[-1]) < count:
            raise CorruptFileError(f"{ends.size} runs do not hold {count} values")
        if isinstance(places, range):
            runs = np.searchsorted(ends, np.arange(places.start, places.stop), side="right")
            return [np.frombuffer(values, f"V{width}")[runs].tobytes()]
        numbers = np.searchsorted(ends, places, side="right").tolist()
        return [values[number * width : (number + 1) * width] for number in numbers]

    return gather, bits


def levels_are_runs(levels: npt.NDArray[Any]) -> bool:
    """Whether a few levels take less space as runs than as words of 16 bits."""
    return levels.size <= _LONGEST and _HEADER_BYTES + _LEVEL_RUN_BYTES * count_runs(levels) < 2 * levels.size


def runs_of_levels(levels: npt.NDArray[Any]) -> bytes:
    """The runs of at most 255 levels."""
    starts = np.flatnonzero(np.append(True, levels[1:] != levels[:-1]))
    lengths = np.diff(starts, append=levels.size).astype(np.uint8)
    values = levels[starts].astype("<u2").tobytes()
    return len(values).to_bytes(_HEADER_BYTES, "little") + values + lengths.tobytes()


def _find_runs(values: npt.NDArray[Any], counts: Counts) -> tuple[npt.NDArray[Any], Bytes, Counts]:
    """Runs of at most 255 values, each within one chunk: their values, their lengths, and runs per chunk."""
    changes = np.empty(values.size, np.bool_)
    changes[:1] = True
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    chunk_starts = np.cumsum(counts) - counts
    changes[chunk_starts[counts > 0]] = True
    starts = np.flatnonzero(changes)
    lengths = np.diff(starts, append=values.size)
    if lengths.size and lengths.max() > _LONGEST:
        parts = -(-lengths // _LONGEST)
        last = np.cumsum(parts) - 1
        rest = lengths - (parts - 1) * _LONGEST
        number = np.arange(int(parts.sum())) - np.repeat(last - parts + 1, parts)
        starts = np.repeat(starts, parts) + number * _LONGEST
        lengths = np.full(starts.size, _LONGEST, np.int64)
        lengths[last] = rest
    bounds = np.searchsorted(starts, np.append(chunk_starts, values.size))
    return values[starts], lengths.astype(np.uint8), np.diff(bounds).astype(np.int64)


def _read_words(block: DataBlock) -> npt.NDArray[Any]:
    values = require_fixed_width(block)
    if values.bits_per_value not in (8, 16, 32, 64):
        raise InvalidInputError(f"values of {values.bits_per_value} bits are not stored as runs")
    return values.view()


def _encoding(bits: int) -> CompressiveEncoding:
    return CompressiveEncoding(rle=Rle(values=flat_encoding(bits), run_lengths=flat_encoding(8)))


def _encode_miniblock(block: DataBlock, _argument: str, limits: ChunkLimits) -> MiniBlockPage:
    values = _read_words(block)
    width = values.dtype.itemsize
    per_chunk = 1 << (limits.max_values.bit_length() - 1)
    while True:
        counts = chunk_counts(values.size, per_chunk)
        run_values, lengths, runs = _find_runs(values, counts)
        if not runs.size or int(runs.max()) * (width + 1) + 14 <= limits.max_bytes:
            break
        per_chunk //= 2
        if per_chunk < 2:
            raise InvalidInputError(f"two runs of {width * 8} bits do not fit chunks of {limits.max_bytes} bytes")
    first = np.cumsum(runs) - runs
    value_buffers = ChunkBuffers(data=run_values.view(np.uint8), starts=first * width, sizes=runs * width)
    length_buffers = ChunkBuffers(data=lengths, starts=first, sizes=runs)
    return MiniBlockPage(encoding=_encoding(width * 8), buffers=(value_buffers, length_buffers), counts=counts)


def _encode_blocks(block: DataBlock, _argument: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    values = _read_words(block)
    width = values.dtype.itemsize
    run_values, lengths, runs = _find_runs(values, counts)
    kept_bytes = run_values.view(np.uint8)
    heads = (runs * width).astype("<u8").view(np.uint8)
    ends = np.cumsum(runs).tolist()
    pieces: list[Bytes] = []
    for index, (end, count) in enumerate(zip(ends, runs.tolist(), strict=True)):
        pieces.append(heads[index * _HEADER_BYTES : (index + 1) * _HEADER_BYTES])
        pieces.append(kept_bytes[(end - count) * width : end * width])
        pieces.append(lengths[end - count : end])
    sizes = _HEADER_BYTES + runs * (width + 1)
    data = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    return _encoding(width * 8), ChunkBuffers(data=data, starts=np.cumsum(sizes) - sizes, sizes=sizes)


COMPRESSION = Compression(
    name="rle",
    decode_miniblock=_decode_miniblock,
    decode_blocks=_decode_blocks,
    chunk_gatherer=_chunk_gatherer,
    gives_plain_values=True,
    encode_miniblock=_encode_miniblock,
    encode_blocks=_encode_blocks,
)
