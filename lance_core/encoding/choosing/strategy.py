"""Chooses the encoding of a page, by cheap statistics of its values.

    all values equal                             constant page
    few distinct values                          dictionary
    long runs                                    rle
    high bits are zero                           inline bit packing
    general compression pays on a sample         lz4 or zstd per chunk, numbers as byte planes first
    fixed width otherwise, without levels        full-zip: the raw values
    values of 4 KiB and more                     full-zip
    everything else                              mini-block, flat or variable

Statistics are computed on a sample of a few contiguous runs, except for the bit width, which is that of all values.
Only encodings that are promising on the sample are checked on the whole page. Requests in the metadata of a field take
precedence (see `options`).

The reference library writes FSST for strings, unless it writes a dictionary. FSST is slow to write here; LZ4 or plain
strings are written in its place, unless they take far more bytes: then Zstandard, or FSST where that is larger, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.choosing.options import EncodingOptions
from lance_core.encoding.compression.fastlanes import BLOCK_VALUES
from lance_core.encoding.compression.flat import estimate_compressed_bits
from lance_core.encoding.compression.fsst_symbols import compress, find_symbols
from lance_core.encoding.compression.registry import encode_miniblock
from lance_core.encoding.datablock import (
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    NullBlock,
    PackedStructBlock,
    VariableBlock,
    block_to_array,
    count_runs,
)

_SAMPLE_STRETCHES: Final = 8
_SAMPLE_LENGTH: Final = 512

# A more expensive encoding must need at most this share of the bytes.
_WORTHWHILE: Final = 0.8
_LARGE_VALUE: Final = 4096
_LARGEST_SAMPLE: Final = 256 * 1024
_HEAD_BYTES: Final = 64
# Strings that are compressed with LZ4 take three times as long to read.
_LZ4_OVER_PLAIN: Final = 0.65
# Zstandard is slower than LZ4: it must save more.
_ZSTD_OVER_LZ4: Final = 0.5
_ZSTD_OVER_PLAIN: Final = 0.65
_LONG_VALUE: Final = 16
"""Average bytes of values of few different characters, such as digests, for which Zstandard alone can pay."""
# The reference library compresses strings by FSST from these sizes on; ours may take this many times its bytes.
_FSST_BYTES: Final = 32 * 1024
_FSST_LENGTH: Final = 5
_OVER_FSST: Final = 1.1
_FAR_OVER_FSST: Final = 1.5
"""Up to this many times its bytes LZ4 or plain strings stay, which are twice as fast to write, scan and take."""
_SMALL_CHUNK_LEVELS: Final = 3
"""Additional bytes of the levels of a value in chunks of few values."""
_MANY_ITEMS: Final = 256
_LONG_ITEMS: Final = 256
"""Bytes of the items of a dictionary from which they are compressed."""
# A smaller sample does not reveal the number of distinct values.
_MIN_DICTIONARY_SAMPLE: Final = 16
_MOST_DISTINCT: Final = 0.55
"""Most distinct values of a sample, as a share of it; the reference library writes a dictionary up to a half."""
_FEW_VALUES: Final = 100
_MOST_OF_FEW: Final = 0.25
"""... of fewer values than this, of which the reference library writes no dictionary."""
_DICTIONARY_OVER_WORDS: Final = 0.85
_BISECTIONS: Final = 24
_INDEX_BITS: Final = 32
_RUN_LENGTH_BITS: Final = 8
TINY_VALUES: Final = 64
"""Up to this many values take less space than the description of another encoding: they are written raw."""
_TINY_BYTES: Final = 256
_DICTIONARY_BITS: Final = 128
"""The one width beside those of machine words for which the reference library reads dictionaries."""


_NO_OPTIONS: Final = EncodingOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the version of the file.

    Attributes:
        large_chunks: Whether the file is 2.2, which has chunks above 32 KiB, constant pages with a value, and
            compressed items of dictionaries.
        chunk_bytes: The requested most bytes of values per chunk; it can only lower `max_bytes`.
    """

    large_chunks: bool
    chunk_bytes: int | None = None

    @property
    def max_values(self) -> int:
        """Most values per chunk."""
        return 4096

    @property
    def max_bytes(self) -> int:
        """Most bytes of values per chunk."""
        most = 64 * 1024 if self.large_chunks else 8192
        return most if self.chunk_bytes is None else min(most, self.chunk_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEncoding:
    """The encoding of a page.

    Attributes:
        layout: The structural layout; `dictionary` is a mini-block page of indices.
        compression: The compression of the values (or of the indices), by the names of `encode_miniblock`.
    """

    layout: Literal["constant", "dictionary", "miniblock", "fullzip"]
    compression: str = "flat"


def sample(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A few contiguous runs of values, evenly spread."""
    total = _SAMPLE_STRETCHES * _SAMPLE_LENGTH
    if values.shape[0] <= total:
        return values
    starts = np.linspace(0, values.shape[0] - _SAMPLE_LENGTH, _SAMPLE_STRETCHES).astype(np.int64)
    return np.concatenate([values[start : start + _SAMPLE_LENGTH] for start in starts])


def choose_fixed(
    block: FixedWidthBlock, *, has_levels: bool, limits: Limits, options: EncodingOptions, dictionary: bool = True
) -> PageEncoding:
    """Choose the encoding of values of one width.

    Args:
        block: The values.
        has_levels: Whether the page has repetition or definition levels.
        limits: Limits of the version.
        options: Requests of the field.
        dictionary: Whether to consider a dictionary; False for the indices of one.
    """
    plain = PageEncoding(layout="miniblock" if has_levels else "fullzip")
    if options.layout is not None:
        plain = PageEncoding(layout="fullzip" if options.layout == "fullzip" else "miniblock")
    bits = block.bits_per_value
    if not bits:
        return PageEncoding(layout="constant")
    if options.layout == "fullzip":
        return plain
    if bits == 1:
        return PageEncoding(layout="constant" if limits.large_chunks and _all_bits_equal(block) else "miniblock")
    if bits not in (8, 16, 32, 64):
        return _choose_wide(block, plain, limits, options, dictionary=dictionary)
    if not block.num_values:
        return plain
    dictionary = dictionary and bits >= 32
    if options.compression == "none":
        return PageEncoding(layout="dictionary") if dictionary and options.asks_for_dictionary else plain
    return _choose_words(block.view()[: block.num_values], bits, plain, limits, options, dictionary=dictionary)


def _choose_wide(
    block: FixedWidthBlock, plain: PageEncoding, limits: Limits, options: EncodingOptions, *, dictionary: bool
) -> PageEncoding:
    """The encoding of values of whole bytes that are no machine words, such as decimals and UUIDs."""
    if options.scheme is not None:
        return _general_encoding("flat", options.scheme)
    if not block.num_values or options.compression == "none":
        return plain
    values = block.data.reshape(block.num_values, -1)
    if limits.large_chunks and (values[0] == values[-1]).all() and bool((values == values[0]).all()):
        return PageEncoding(layout="constant")
    if not dictionary or block.bits_per_value != _DICTIONARY_BITS or block.num_values <= TINY_VALUES:
        return plain
    part = sample(values).view(f"V{values.shape[1]}").ravel()
    return PageEncoding(layout="dictionary") if len(set(part.tolist())) <= part.size // 2 else plain


def _all_bits_equal(block: FixedWidthBlock) -> bool:
    whole, rest = divmod(block.num_values, 8)
    if not whole:
        return False
    first = block.data[0]
    if first not in (0, 255) or bool((block.data[:whole] != first).any()):
        return False
    mask = (1 << rest) - 1
    return not rest or (int(block.data[whole]) & mask) == (int(first) & mask)


def _choose_words(
    values: npt.NDArray[Any],
    bits: int,
    plain: PageEncoding,
    limits: Limits,
    options: EncodingOptions,
    *,
    dictionary: bool,
) -> PageEncoding:
    part = sample(values)
    if (limits.large_chunks or options == _NO_OPTIONS) and part[0] == part[-1] and bool((values == part[0]).all()):
        if limits.large_chunks:
            return PageEncoding(layout="constant")
        if 1 < values.size <= TINY_VALUES:
            return PageEncoding(layout="miniblock", compression="rle")
    if values.size <= TINY_VALUES and options == _NO_OPTIONS:
        return plain
    requested_encoding = _follow_request(values, bits, options, dictionary=dictionary)
    if requested_encoding is not None:
        return requested_encoding
    best, best_bits = _pack_or_runs(values, part, bits, plain, options)
    if dictionary:
        dictionary_bits = _estimate_dictionary_bits(part, bits, values.size)
        if dictionary_bits is not None and dictionary_bits < _DICTIONARY_OVER_WORDS * best_bits:
            best, best_bits = PageEncoding(layout="dictionary", compression="inline_bitpacking"), dictionary_bits
    if options.scheme is not None:
        return best if best.layout == "dictionary" else _squeeze_words(part, bits, best, options, options.scheme)
    if bits >= 32 and options.bss != "off" and estimate_compressed_bits(part) < 0.7 * best_bits:
        best = _general_encoding("byte_stream_split", "lz4")
    return best


def _estimate_dictionary_bits(part: npt.NDArray[Any], bits: int, num_values: int) -> float | None:
    """Bits per value of a dictionary and its indices, which are packed or runs; None with too many distinct values."""
    distinct = count_runs(np.sort(part))
    if distinct > _most_distinct(part.size):
        return None
    items = _estimate_distinct(distinct, count_runs(part), num_values / part.size)
    runs = _run_bits(part) * (_INDEX_BITS + _RUN_LENGTH_BITS) / (bits + _RUN_LENGTH_BITS)
    return min(max(1, math.ceil(math.log2(items))), runs) + items * bits / num_values


def _most_distinct(size: int) -> float:
    """The most distinct values of a sample of this size with which a dictionary is considered."""
    return size * (_MOST_DISTINCT if size >= _FEW_VALUES else _MOST_OF_FEW)


def _estimate_distinct(distinct: int, draws: int, factor: float) -> float:
    """The number of distinct values, if the runs of a sample are drawn from equally frequent ones.

    Args:
        distinct: Distinct values of the sample.
        draws: Runs of the sample.
        factor: Runs of the whole for each run of the sample.
    """
    # Of k values, n draws hit k * (1 - exp(-n / k)): solved for k by bisection of n / k.
    low, high = 0.0, 64.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if -math.expm1(-middle) / middle * draws > distinct else (low, middle)
    return distinct * math.expm1(-high * factor) / math.expm1(-high)


def _follow_request(
    values: npt.NDArray[Any], bits: int, options: EncodingOptions, *, dictionary: bool
) -> PageEncoding | None:
    """The requested encoding, if the request does not depend on statistics; else None."""
    if options.bss == "on" and bits >= 32:
        return _general_encoding("byte_stream_split", options.scheme or "lz4")
    if options.rle_threshold is not None and count_runs(values) < options.rle_threshold * values.size:
        return _general_encoding("rle", options.scheme)
    return PageEncoding(layout="dictionary") if dictionary and options.asks_for_dictionary else None


def _pack_or_runs(
    values: npt.NDArray[Any], part: npt.NDArray[Any], bits: int, plain: PageEncoding, options: EncodingOptions
) -> tuple[PageEncoding, float]:
    """The best of raw, bit-packed and run-length encoding, and its bits per value."""
    best, best_bits = plain, float(bits)
    packed = _estimate_packed_bits(values)
    if packed <= 0.95 * bits:
        best, best_bits = PageEncoding(layout="miniblock", compression="inline_bitpacking"), packed
    if options.rle_threshold is None and (as_runs := _run_bits(part)) < _WORTHWHILE * best_bits:
        best, best_bits = PageEncoding(layout="miniblock", compression="rle"), as_runs
    return best, best_bits


def _estimate_packed_bits(values: npt.NDArray[Any]) -> float:
    """Bits per value if each chunk is packed with the width of the largest value; the last chunk is padded."""
    used = int(np.bitwise_or.reduce(values)).bit_length()
    return -(-values.size // BLOCK_VALUES) * (BLOCK_VALUES * used + values.itemsize * 8) / values.size


def _run_bits(sample: npt.NDArray[Any]) -> float:
    """Bits per value of a sample that is stored as runs: each has its value and a length."""
    return (sample.itemsize * 8 + _RUN_LENGTH_BITS) * count_runs(sample) / sample.size


def _general_encoding(name: str, scheme: str | None) -> PageEncoding:
    return PageEncoding(layout="miniblock", compression=name if scheme is None else f"general:{scheme}({name})")


def _squeeze_words(
    part: npt.NDArray[Any], bits: int, best: PageEncoding, options: EncodingOptions, scheme: str
) -> PageEncoding:
    """The encoding that is smallest after general compression."""
    names = dict.fromkeys((best.compression, "flat"))
    if bits >= 32 and options.bss != "off":
        names["byte_stream_split"] = None
    block = FixedWidthBlock(data=np.ascontiguousarray(part).view(np.uint8), bits_per_value=bits, num_values=part.size)
    sizes = {}
    for name in names:
        page = encode_miniblock(block, f"general:{scheme}({name})")
        sizes[name] = sum(int(buffer.sizes.sum()) for buffer in page.buffers)
    return _general_encoding(min(sizes, key=sizes.__getitem__), scheme)


def choose_variable(
    block: VariableBlock, *, has_levels: bool, limits: Limits, options: EncodingOptions, dictionary: bool = True
) -> PageEncoding:
    """Choose the encoding of values of varying length.

    Args:
        block: The values.
        has_levels: Whether the page has repetition or definition levels.
        limits: Limits of the version.
        options: Requests of the field.
        dictionary: Whether to consider a dictionary.
    """
    lengths = np.diff(block.offsets)
    longest = int(lengths.max()) if lengths.size else 0
    average = float(lengths.mean()) if lengths.size else 0.0
    # A chunk holds at least two values and their offsets.
    too_long = 2 * longest + 5 * block.offsets.itemsize > limits.max_bytes
    if options.layout == "fullzip" or too_long or (average >= _LARGE_VALUE and options.layout is None):
        share = 1.0 if options.compression == "none" or average < _LARGE_VALUE else _estimate_squeezed_share(block)
        if dictionary and options.layout != "fullzip" and _is_repeated(block, share, limits, options):
            return PageEncoding(layout="dictionary")
        return PageEncoding(layout="fullzip", compression=_choose_compression_of_values(share, options))
    if not block.num_values:
        return PageEncoding(layout="miniblock", compression="variable")
    if dictionary and options.asks_for_dictionary:
        return PageEncoding(layout="dictionary")
    if options.compression == "none":
        return PageEncoding(layout="miniblock", compression="variable")
    if block.num_values <= TINY_VALUES and _data_bytes(block) <= _TINY_BYTES and options == _NO_OPTIONS:
        is_constant = limits.large_chunks and _is_constant(block)
        return PageEncoding(layout="constant" if is_constant else "miniblock", compression="variable")
    return _choose_by_sample(block, limits, options, has_levels=has_levels, dictionary=dictionary)


def _choose_by_sample(
    block: VariableBlock, limits: Limits, options: EncodingOptions, *, has_levels: bool, dictionary: bool
) -> PageEncoding:
    """The encoding of values of which several fit a chunk."""
    stretches = _sample_stretches(block)
    size = sum(piece.num_values for piece in stretches)
    strings = pa.chunked_array([block_to_array(piece, pa.large_binary()) for piece in stretches])
    distinct = len(strings.unique())
    if distinct == 1 and limits.large_chunks and _is_constant(block):
        return PageEncoding(layout="constant")
    if dictionary and distinct <= _most_distinct(size) and size >= _MIN_DICTIONARY_SAMPLE:
        return PageEncoding(layout="dictionary")
    if options.compression == "fsst":
        return PageEncoding(layout="miniblock", compression="fsst(variable)")
    if options.scheme is not None:
        return _general_encoding("variable", options.scheme)
    compression = _squeeze_variable(stretches, limits)
    if _data_bytes(block) >= _FSST_BYTES and int(np.diff(block.offsets).max()) >= _FSST_LENGTH:
        compression = _limit_to_fsst_bytes(compression, stretches, limits, has_levels=has_levels)
    return PageEncoding(layout="miniblock", compression=compression)


def is_dictionary_worthwhile(items: DataBlock, values: DataBlock, options: EncodingOptions) -> bool:
    """Whether a dictionary saves space, or as much as the field requests.

    Args:
        items: The items of the dictionary.
        values: All values.
        options: Requests of the field.
    """
    if items.num_values * (options.dict_divisor or 2) >= values.num_values:
        return False
    if options.dict_max_size is not None and _data_bytes(items) > options.dict_max_size:
        return False
    if options.dict_size_ratio is None:
        return True
    indices = values.num_values * max(1, (items.num_values - 1).bit_length()) / 8
    return _total_bytes(items) + indices < options.dict_size_ratio * _total_bytes(values)


def _data_bytes(block: DataBlock) -> int:
    if isinstance(block, VariableBlock):
        return int(block.offsets[-1]) - int(block.offsets[0])
    assert isinstance(block, FixedWidthBlock)
    return block.num_values * block.bits_per_value // 8


def _total_bytes(block: DataBlock) -> int:
    """Bytes of values, including their offsets."""
    offsets = block.offsets.itemsize * block.num_values if isinstance(block, VariableBlock) else 0
    return _data_bytes(block) + offsets


def _choose_compression_of_values(share: float, options: EncodingOptions) -> str:
    """The compression of single values: Zstandard if they are large and a sample shrinks to a small share."""
    if options.compression == "fsst":
        return "fsst(variable)"
    if options.scheme is not None:
        # The reference library never writes LZ4 here, and cannot read it in pages with nulls.
        return f"general:{'zstd' if options.scheme == 'lz4' else options.scheme}(variable)"
    return "general:zstd(variable)" if share < _WORTHWHILE else "variable"


def _estimate_squeezed_share(block: VariableBlock) -> float:
    """The share of the bytes of large values that Zstandard leaves, on a sample."""
    sampled = np.linspace(0, block.num_values - 1, min(block.num_values, _SAMPLE_STRETCHES)).astype(np.int64)
    codec = pa.Codec("zstd", compression_level=1)
    plain = squeezed = 0
    for start, end in zip(block.offsets[sampled].tolist(), block.offsets[sampled + 1].tolist(), strict=True):
        value = block.data[start : min(end, start + _LARGEST_SAMPLE)]
        plain += value.size
        squeezed += len(codec.compress(value.tobytes(), asbytes=True))
    return squeezed / plain if plain else 1.0


def _is_repeated(block: VariableBlock, share: float, limits: Limits, options: EncodingOptions) -> bool:
    """Whether a dictionary of large values takes less than the values one by one, of which `share` is left.

    In 2.2 its items are compressed as well.
    """
    if options.asks_for_dictionary or options.compression == "none" or not block.num_values:
        return options.asks_for_dictionary
    stretches = _sample_stretches(block)
    values = pa.chunked_array([block_to_array(piece, pa.large_binary()) for piece in stretches])
    most = _most_distinct(len(values))
    if len(pc.binary_slice(values, 0, _HEAD_BYTES).unique()) > most:  # many times faster than to hash whole values
        return False
    items = values.unique()
    if len(items) > most:
        return False
    return limits.large_chunks or items.nbytes <= share * values.nbytes


def _sample_stretches(block: VariableBlock) -> list[VariableBlock]:
    total = _SAMPLE_STRETCHES * _SAMPLE_LENGTH
    if block.num_values <= total:
        return [block]
    starts = np.linspace(0, block.num_values - _SAMPLE_LENGTH, _SAMPLE_STRETCHES).astype(np.int64)
    return [
        VariableBlock(
            offsets=block.offsets[start : start + _SAMPLE_LENGTH + 1], data=block.data, num_values=_SAMPLE_LENGTH
        )
        for start in starts.tolist()
    ]


def _is_constant(block: VariableBlock) -> bool:
    lengths = np.diff(block.offsets)
    width = int(lengths[0])
    if bool((lengths != width).any()):
        return False
    first, last = int(block.offsets[0]), int(block.offsets[-1])
    return width == 0 or bool((block.data[first:last].reshape(-1, width) == block.data[first : first + width]).all())


def _squeeze_variable(stretches: list[VariableBlock], limits: Limits) -> str:
    """The general compression that saves enough space on a sample, or none."""
    plain, lz4, zstd = _measure_general_sizes(stretches, limits).values()
    if zstd < _ZSTD_OVER_LZ4 * min(lz4, plain):
        return "general:zstd(variable)"
    if lz4 < _LZ4_OVER_PLAIN * plain:
        return "general:lz4(variable)"
    values = sum(piece.num_values for piece in stretches)
    is_long = sum(map(_data_bytes, stretches)) >= _LONG_VALUE * values
    return "general:zstd(variable)" if is_long and zstd < _ZSTD_OVER_PLAIN * plain else "variable"


def _measure_general_sizes(stretches: list[VariableBlock], limits: Limits) -> dict[str, int]:
    """Bytes of a part of a sample, plain and by each general compression."""
    sizes = {"variable": 0, "general:lz4(variable)": 0, "general:zstd(variable)": 0}
    for piece in _pick_pieces(stretches):
        for name in sizes:
            page = encode_miniblock(piece, name, max_values=limits.max_values, max_bytes=limits.max_bytes)
            sizes[name] += int(page.buffers[0].sizes.sum())
    return sizes


def _pick_pieces(stretches: list[VariableBlock]) -> list[VariableBlock]:
    return stretches[:: max(1, len(stretches) // 3)]


def _limit_to_fsst_bytes(chosen: str, stretches: list[VariableBlock], limits: Limits, *, has_levels: bool) -> str:
    """The chosen compression, or the first that is about as small as FSST on a sample."""
    if chosen == "general:zstd(variable)":
        return chosen
    sizes = _measure_general_sizes(stretches, limits)
    if sizes[chosen] <= sizes["general:zstd(variable)"]:
        return chosen
    pieces = _pick_pieces(stretches)
    fsst = _measure_fsst_bytes(pieces)
    if sizes[chosen] <= _FAR_OVER_FSST * fsst:
        return chosen
    most = _OVER_FSST * fsst
    if has_levels and not limits.large_chunks:
        # Chunks of 8 KiB before compression have too few values for packed levels; after FSST they have more.
        most -= _SMALL_CHUNK_LEVELS * sum(piece.num_values for piece in pieces)
    return next((name for name, size in sizes.items() if size <= most), "fsst(variable)")


def _measure_fsst_bytes(pieces: list[VariableBlock]) -> int:
    """Bytes of the codes of FSST and their offsets."""
    data = np.concatenate([piece.data[piece.offsets[0] : piece.offsets[-1]] for piece in pieces])
    lengths = np.concatenate([np.diff(piece.offsets) for piece in pieces])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    codes, _ = compress(find_symbols(data, offsets, rounds=3, sample_bytes=32 * 1024), data, offsets)
    return int(codes.size) + offsets.size * pieces[0].offsets.itemsize


def choose_items(items: DataBlock, limits: Limits, options: EncodingOptions) -> str:
    """The compression of the items of a dictionary: in 2.2 general compression for many items, or as requested."""
    name = "variable" if isinstance(items, VariableBlock) else "flat"
    is_long = isinstance(items, VariableBlock) and _data_bytes(items) >= _LONG_ITEMS
    scheme = "lz4" if items.num_values >= _MANY_ITEMS or is_long else None
    if options.items_compression is not None:
        scheme = options.items_scheme
    return f"general:{scheme}({name})" if limits.large_chunks and scheme is not None else name


def choose_list(block: FixedSizeListBlock, *, has_levels: bool, options: EncodingOptions) -> PageEncoding:
    """Choose the layout of fixed size lists: full-zip, but mini-block for booleans, and for short lists with levels."""
    items, dimension, _ = _peel(block)
    bits = items.bits_per_value if isinstance(items, FixedWidthBlock) else 0
    is_small = bits * dimension < 256 * 8
    is_kept_together = options.layout == "miniblock" or (
        options.layout is None and (bits == 1 or (is_small and has_levels))
    )
    if (is_kept_together and not isinstance(items, NullBlock)) or not can_be_zipped(block):
        return PageEncoding(layout="miniblock", compression="fixed_size_list(flat)")
    return PageEncoding(layout="fullzip")


def can_be_zipped(block: DataBlock) -> bool:
    """Whether a full-zip page can hold the values, which must be whole bytes: some lists of booleans are not."""
    items, dimension, has_nulls = _peel(block)
    is_of_bits = isinstance(items, FixedWidthBlock) and items.bits_per_value == 1
    return items is block or not is_of_bits or (dimension % 8 == 0 and not has_nulls)


def _peel(block: DataBlock) -> tuple[DataBlock, int, bool]:
    """The innermost items of nested lists, how many a value has, and whether an item is null."""
    dimension, has_nulls = 1, False
    while isinstance(block, FixedSizeListBlock):
        dimension *= block.dimension
        has_nulls |= block.validity is not None
        block = block.items
    return block, dimension, has_nulls


def choose_packed(block: PackedStructBlock) -> PageEncoding:
    """Choose the layout of packed structs: mini-block for rows of fixed width, full-zip for others."""
    if all(isinstance(child, FixedWidthBlock) for child in block.children):
        return PageEncoding(layout="miniblock", compression="packed_struct")
    return PageEncoding(layout="fullzip")
