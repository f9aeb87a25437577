"""Describes where the buffers of mini-block chunks are in memory, and gathers them into one array.

A mini-block page is a sequence of chunks; each chunk has the same number of value buffers. `ChunkBuffers` describes one
of these buffers for all chunks at once, so that a page is decoded with a few array operations:

    data    |..|chunk 0: hdr levels [buffer] pad|chunk 1: hdr levels [buffer] pad|...
                                    ^starts[0]                        ^starts[1]
                                     <sizes[0]>                        <sizes[1]>

The same record describes encoded chunks on their way to the page writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_core.encoding.datablock import Bytes
from lance_core.errors import CorruptFileError, InvalidInputError

Counts: TypeAlias = npt.NDArray[np.int64]

ChunkGatherer: TypeAlias = Callable[[Sequence[bytes | memoryview], int, Sequence[int]], list[bytes | memoryview]]
"""(value buffers of a chunk, number of its values, ascending places among them) -> the bytes of these values.

Values of varying length are one piece each. Values of one width stand back to back in all pieces together, those of
one bit as a byte each. A run of places is a `range`.
"""

_MOST_BYTES = 2**33


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBuffers:
    """One buffer of every chunk of a page.

    Attributes:
        data: The memory of all chunks.
        starts: Position of each chunk's buffer in `data`.
        sizes: Size of each chunk's buffer in bytes, without padding.
    """

    data: Bytes
    starts: Counts
    sizes: Counts

    @classmethod
    def single(cls, data: Bytes) -> ChunkBuffers:
        """One chunk that is all of `data`."""
        return cls(data=data, starts=np.zeros(1, np.int64), sizes=np.array([data.size], np.int64))

    def piece(self, index: int) -> Bytes:
        """The bytes of one chunk, as a view."""
        start = int(self.starts[index])
        return self.data[start : start + int(self.sizes[index])]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBlockPage:
    """The values of a page, encoded and divided into chunks.

    Attributes:
        encoding: The description for the page's `value_compression`.
        buffers: The value buffers; each has one entry per chunk.
        counts: Values per chunk: powers of two, except for the last chunk.
    """

    encoding: CompressiveEncoding
    buffers: tuple[ChunkBuffers, ...]
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """The maximum size of a chunk.

    Attributes:
        max_values: Most values per chunk; at most 32768, the maximum of the chunk's 4-bit logarithm.
        max_bytes: Most bytes that the value buffers of one chunk may have together, padding included.
    """

    max_values: int = 4096
    max_bytes: int = 8192

    def __post_init__(self) -> None:
        if not 2 <= self.max_values <= 32768 or self.max_bytes < 16:
            raise InvalidInputError(
                f"a chunk has 2 to 32768 values and at least 16 bytes, not {self.max_values} and {self.max_bytes}"
            )

    def values_per_chunk(self, bits_per_value: int) -> int:
        """The largest power of two of values of that width that fits a chunk.

        Raises:
            InvalidInputError: Not even two values fit.
        """
        room = (self.max_bytes // 8 * 64) // max(bits_per_value, 1)
        count = 1 << (min(room, self.max_values).bit_length() - 1) if room else 0
        if count < 2:
            raise InvalidInputError(
                f"values of {bits_per_value} bits are too wide for chunks of {self.max_bytes} bytes"
            )
        return count


def sum_counts(counts: Counts) -> int:
    """The number of values in all chunks."""
    return int(counts.sum())


def check_chunks(buffers: ChunkBuffers, counts: Counts) -> None:
    """Check that every chunk is inside the data, so that later slices need no checks.

    Raises:
        CorruptFileError: A chunk is outside the data, or the sum of the sizes exceeds it (chunks overlap).
    """
    starts, sizes = buffers.starts, buffers.sizes
    if not starts.size == sizes.size == counts.size:
        raise CorruptFileError(f"{counts.size} chunks, but {starts.size} starts and {sizes.size} sizes")
    if not counts.size:
        return
    space = buffers.data.size
    if starts.min() < 0 or sizes.min() < 0 or counts.min() < 0:
        raise CorruptFileError("a chunk has a negative position, size or count")
    if starts.max() > space or sizes.max() > space or (starts + sizes).max() > space:
        raise CorruptFileError(f"a chunk ends after the {space} bytes of the page")
    if sizes.sum() > space:
        raise CorruptFileError("chunks overlap")
    if counts.max() > 2**40 or counts.size > 2**40 // max(int(counts.max()), 1):
        raise CorruptFileError("more values than a page can hold")


def view_as_words(buffers: ChunkBuffers, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """The memory of all chunks as words; None where a chunk begins within a word."""
    if (buffers.starts % dtype.itemsize).any():
        return None
    return buffers.data[: buffers.data.size // dtype.itemsize * dtype.itemsize].view(dtype)


def check_length(data: bytes | memoryview, needed: int) -> None:
    """Make sure that the buffer of a chunk has the bytes that its values need.

    Raises:
        CorruptFileError: The buffer is shorter.
    """
    if needed > len(data):
        raise CorruptFileError("a chunk is too short for the values it should hold")


def is_run(places: Sequence[int]) -> bool:
    """Whether places, at least one, follow each other without a gap; a `range` has step 1."""
    return isinstance(places, range) or places[-1] - places[0] + 1 == len(places)


def find_equal_step(values: Counts) -> int | None:
    """The step between neighbours if it is the same everywhere, else None (also for fewer than two values)."""
    if values.size < 2:
        return None
    step = int(values[1] - values[0])
    return step if bool((values[1:] - values[:-1] == step).all()) else None


def require_room(num_bytes: int) -> None:
    """Check a declared size before memory is allocated for it.

    Raises:
        CorruptFileError: The size is more than 8 GiB.
    """
    if num_bytes > _MOST_BYTES:
        raise CorruptFileError(f"{num_bytes} bytes in one page, more than the limit of {_MOST_BYTES}")


def gather_bytes(buffers: ChunkBuffers, lengths: Counts) -> Bytes:
    """The first ``lengths[i]`` bytes of every chunk, back to back.

    Args:
        buffers: Checked by `check_chunks`.
        lengths: Bytes to take from each chunk.

    Returns:
        A view of `buffers.data` if the pieces already lie back to back, else a copy.

    Raises:
        CorruptFileError: A chunk is shorter than its entry in `lengths`.
    """
    if not lengths.size:
        return np.empty(0, np.uint8)
    if (lengths > buffers.sizes).any():
        raise CorruptFileError("a chunk is too short for the values it should hold")
    return gather_ranges(buffers.data, buffers.starts, lengths)


def gather_ranges(data: Bytes, starts: Counts, lengths: Counts) -> Bytes:
    """Bytes ``starts[i] .. starts[i] + lengths[i]`` of `data` for all i, back to back; all must lie inside."""
    if not lengths.size:
        return np.empty(0, np.uint8)
    ends = starts + lengths
    if bool((starts[1:] == ends[:-1]).all()):
        return data[int(starts[0]) : int(ends[-1])]
    step = find_equal_step(starts)
    length = int(lengths[0])
    if step is not None and step >= length and bool((lengths[:-1] == length).all()):
        full = lengths.size - 1
        out = np.empty(full * length + int(lengths[-1]), np.uint8)
        rows = np.ndarray((full, length), np.uint8, data, int(starts[0]), (step, 1))
        out[: full * length].reshape(full, length)[...] = rows
        out[full * length :] = data[int(starts[-1]) : int(ends[-1])]
        return out
    return np.concatenate([data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])


def expand_runs(starts: Counts, lengths: Counts) -> Counts:
    """``starts[i], starts[i] + 1, ...``, ``lengths[i]`` numbers each, for all i."""
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    return np.repeat(starts - before, lengths) + np.arange(total, dtype=np.int64)


def chunk_counts(num_values: int, per_chunk: int) -> Counts:
    """Counts of chunks that hold `per_chunk` values each, the last one the rest (1 .. `per_chunk`)."""
    chunks = -(-num_values // per_chunk)
    counts = np.full(chunks, per_chunk, np.int64)
    if chunks:
        counts[-1] = num_values - (chunks - 1) * per_chunk
    return counts


def split_evenly(data: Bytes, counts: Counts, bits_per_value: int) -> ChunkBuffers:
    """Chunks over values that lie back to back; nothing is copied.

    All chunks but the last have equal counts of values, which take whole bytes.
    """
    if not counts.size:
        return ChunkBuffers(data=data, starts=np.empty(0, np.int64), sizes=np.empty(0, np.int64))
    starts = np.arange(counts.size, dtype=np.int64) * (int(counts[0]) * bits_per_value // 8)
    return ChunkBuffers(data=data, starts=starts, sizes=(counts * bits_per_value + 7) // 8)
