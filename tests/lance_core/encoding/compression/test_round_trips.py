"""What every compression writes, it reads."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lance_core.encoding.compression.chunks import ChunkBuffers, MiniBlockPage
from lance_core.encoding.compression.registry import (
    COMPRESSIONS,
    decode_block,
    decode_blocks,
    decode_miniblock,
    decode_per_value,
    encode_block,
    encode_blocks,
    encode_miniblock,
    encode_per_value,
)
from lance_core.encoding.datablock import FixedWidthBlock, NullBlock, block_to_array, view_array_as_block
from lance_core.errors import InvalidInputError, UnsupportedError

WORD_BITS = (8, 16, 32, 64)


@st.composite
def words(draw: st.DrawFn, bits: int | None = None, max_size: int = 5000) -> pa.Array:
    """Unsigned integers with a random number of used bits and random runs."""
    bits = bits or draw(st.sampled_from(WORD_BITS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, max_size) | st.sampled_from([1, 2, 1023, 1024, 1025, 2048, 4096]))
    used = draw(st.integers(0, bits))
    values = rng.integers(0, 2**used - 1, count, np.uint64, endpoint=True)
    longest = draw(st.sampled_from([1, 3, 300, 2000]))
    values = np.repeat(values, rng.integers(1, longest, count, endpoint=True))[:count]
    return pa.array(values.astype(f"u{bits // 8}"))


@st.composite
def strings(draw: st.DrawFn, kind: pa.DataType | None = None) -> pa.Array:
    kind = kind or draw(st.sampled_from([pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 3000))
    longest = draw(st.sampled_from([0, 1, 9, 100]))
    lengths = rng.integers(0, longest, count, endpoint=True)
    text = rng.integers(97, 123, int(lengths.sum()), dtype=np.uint8).tobytes()
    ends = np.cumsum(lengths).tolist()
    values = [text[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]
    array = pa.array(values, pa.large_binary()).cast(kind)
    start = draw(st.integers(0, count))
    return array.slice(start)


def scattered(page: MiniBlockPage, gap: int) -> tuple[ChunkBuffers, ...]:
    """The same buffers with all chunks moved apart, as they lie in a page."""
    moved = []
    for buffer in page.buffers:
        pieces = [buffer.piece(i) for i in range(buffer.starts.size)]
        at, starts, parts = 0, [], []
        for index, piece in enumerate(pieces):
            filler = -at % 8 + 8 * (gap if index % 3 else 1)
            parts += [np.full(filler, 0xAA, np.uint8), piece]
            starts.append(at + filler)
            at += filler + piece.size
        data = np.concatenate(parts) if parts else np.empty(0, np.uint8)
        moved.append(ChunkBuffers(data=data, starts=np.array(starts, np.int64), sizes=buffer.sizes))
    return tuple(moved)


def check_miniblock(array: pa.Array, name: str, **limits: Any) -> None:
    page = encode_miniblock(view_array_as_block(array), name, **limits)
    assert int(page.counts.sum()) == len(array)
    for count in page.counts[:-1].tolist():
        assert count >= 2
        assert count & (count - 1) == 0
    bound = limits.get("max_bytes", 8192)
    padded = sum(((b.sizes + 7) // 8 * 8 for b in page.buffers), np.zeros(page.counts.size, np.int64))
    assert not padded.size or padded.max() <= bound + 16
    for buffers in (page.buffers, scattered(page, 1), scattered(page, 3)):
        block = decode_miniblock(page.encoding, buffers, page.counts)
        found = block_to_array(block, array.type)
        found.validate(full=True)
        assert found.equals(array)


@given(
    array=words(),
    name=st.sampled_from(["flat", "rle", "inline_bitpacking", "general:lz4(flat)", "general:zstd(rle)"]),
    max_bytes=st.sampled_from([8192, 16384, 65536]),
    max_values=st.sampled_from([1024, 2048, 4096, 32768]),
)
@settings(max_examples=80, deadline=None)
def test_words_in_chunks(array: pa.Array, name: str, max_bytes: int, max_values: int) -> None:
    check_miniblock(array, name, max_bytes=max_bytes, max_values=max_values)


@pytest.mark.parametrize("run", [1, 2, 3])
def test_runs_that_do_not_fit_a_chunk_get_smaller_ones(run: int) -> None:
    array = pa.array(np.repeat(np.arange(4096 // run), run))
    check_miniblock(array, "rle")
    check_miniblock(pa.array([], array.type), "rle")


@given(array=words(32) | words(64), name=st.sampled_from(["byte_stream_split", "general:lz4(byte_stream_split)"]))
@settings(max_examples=30, deadline=None)
def test_byte_streams_in_chunks(array: pa.Array, name: str) -> None:
    check_miniblock(array, name)


@given(
    array=strings(),
    name=st.sampled_from(["variable", "general:lz4(variable)", "general:zstd:5(variable)", "fsst(variable)"]),
    max_bytes=st.sampled_from([1024, 4096, 65536]),
)
@settings(max_examples=60, deadline=None)
def test_strings_in_chunks(array: pa.Array, name: str, max_bytes: int) -> None:
    check_miniblock(array, name, max_bytes=max_bytes)


@given(count=st.integers(0, 20_000), offset=st.integers(0, 20), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_bits_in_chunks(count: int, offset: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    check_miniblock(pa.array(values).slice(offset), "flat")


@given(array=words(), cuts=st.lists(st.integers(0, 5000), max_size=6), width=st.integers(0, 64))
@settings(max_examples=80, deadline=None)
def test_words_in_blocks(array: pa.Array, cuts: list[int], width: int) -> None:
    bounds = np.array([0, *sorted(min(cut, len(array)) for cut in cuts), len(array)], np.int64)
    counts = np.diff(bounds)
    names = ["flat", "rle", "out_of_line_bitpacking", "general:lz4(flat)", "general:zstd(rle)"]
    if counts.max() <= 1024:
        names.append("inline_bitpacking")
    if 0 < width <= array.type.bit_width:
        names.append(f"out_of_line_bitpacking:{width}")
    for name in names:
        encoding, buffers = encode_blocks(view_array_as_block(array), name, counts)
        block = decode_blocks(encoding, buffers, counts)
        assert block_to_array(block, array.type).equals(array), name


@given(array=strings(), name=st.sampled_from(["variable", "general:lz4(variable)", "general:zstd(variable)"]))
@settings(max_examples=50, deadline=None)
def test_strings_as_a_block(array: pa.Array, name: str) -> None:
    encoding, data = encode_block(view_array_as_block(array), name)
    assert block_to_array(decode_block(encoding, data, len(array)), array.type).equals(array)


@given(array=strings(), name=st.sampled_from(["variable", "general:zstd:3(variable)", "general:lz4", "fsst"]))
@settings(max_examples=30, deadline=None)
def test_strings_one_by_one(array: pa.Array, name: str) -> None:
    encoding, values = encode_per_value(view_array_as_block(array), name)
    assert block_to_array(decode_per_value(encoding, values), array.type).equals(array)


@st.composite
def lists(draw: st.DrawFn) -> pa.Array:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dimensions = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    count = draw(st.integers(0, 300))
    total = count * int(np.prod(dimensions))
    kind = draw(st.sampled_from([pa.int8(), pa.int32(), pa.float64(), pa.binary(3)]))
    mask = rng.random(total) < draw(st.sampled_from([0.0, 0.2]))
    if kind == pa.binary(3):
        array = pa.array([None if m else bytes([i % 256] * 3) for i, m in enumerate(mask.tolist())], kind)
    else:
        array = pa.array(rng.integers(-99, 99, total), mask=mask).cast(kind)
    for dimension in reversed(dimensions):
        outer = rng.random(len(array) // dimension) < draw(st.sampled_from([0.0, 0.3]))
        array = pa.FixedSizeListArray.from_arrays(array, dimension, mask=pa.array(outer))
    without_nulls = pa.Array.from_buffers(array.type, len(array), [None], children=[array.values])
    return without_nulls.slice(draw(st.integers(0, count)))


@given(array=lists())
@settings(max_examples=60, deadline=None)
def test_lists(array: pa.Array) -> None:
    check_miniblock(array, "fixed_size_list(flat)", max_bytes=65536)
    encoding, values = encode_per_value(view_array_as_block(array), "fixed_size_list")
    assert isinstance(values, FixedWidthBlock)
    assert block_to_array(decode_per_value(encoding, values), array.type).equals(array)


def test_lists_of_bits() -> None:
    values = pa.array(np.random.default_rng(0).integers(0, 2, 7 * 5000).astype(bool))
    check_miniblock(pa.FixedSizeListArray.from_arrays(values, 7), "fixed_size_list")


@given(count=st.integers(0, 2000), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_packed_structs(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fixed = pa.StructArray.from_arrays(
        [
            pa.array(rng.integers(0, 99, count).astype(np.int16)),
            pa.array(rng.random(count)),
            pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 3, dtype=np.float32)), 3),
        ],
        ["a", "b", "c"],
    )
    check_miniblock(fixed, "packed_struct")
    encoding, values = encode_per_value(view_array_as_block(fixed), "packed_struct")
    assert block_to_array(decode_per_value(encoding, values), fixed.type).equals(fixed)
    texts = [pa.array(["x" * int(n) for n in rng.integers(0, 9, count)], k) for k in (pa.string(), pa.large_string())]
    mixed = pa.StructArray.from_arrays([*fixed.flatten(), *texts], ["a", "b", "c", "d", "e"])
    encoding, values = encode_per_value(view_array_as_block(mixed), "variable_packed_struct")
    found = block_to_array(decode_per_value(encoding, values), mixed.type)
    assert found.equals(mixed)


def test_constants() -> None:
    check_miniblock(pa.array(np.full(10_000, 7)), "constant")
    encoding, data = encode_block(view_array_as_block(pa.array(np.full(10_000, 7, np.int16))), "constant")
    assert data.size == 0
    assert block_to_array(decode_block(encoding, data, 10_000), pa.int16()).to_pylist() == [7] * 10_000
    encoding, _ = encode_block(NullBlock(num_values=3), "constant")
    assert decode_block(encoding, data, 3) == NullBlock(num_values=3)
    with pytest.raises(InvalidInputError, match="not all the same"):
        encode_block(view_array_as_block(pa.array([1, 2])), "constant")


def test_flat_copies_nothing() -> None:
    array = pa.array(np.arange(100_000))
    page = encode_miniblock(view_array_as_block(array), "flat")
    block = decode_miniblock(page.encoding, page.buffers, page.counts)
    assert block_to_array(block, array.type).buffers()[1].address == array.buffers()[1].address


def test_zstd_levels() -> None:
    array = pa.array(np.random.default_rng(0).integers(0, 50, 50_000))
    sizes = []
    for level in (1, 15):
        page = encode_miniblock(view_array_as_block(array), f"general:zstd:{level}(flat)", max_bytes=65536)
        assert page.encoding.general.compression.level == level
        assert block_to_array(decode_miniblock(page.encoding, page.buffers, page.counts), array.type).equals(array)
        sizes.append(int(page.buffers[0].sizes.sum()))
    assert sizes[1] != sizes[0]


def test_compression_that_does_not_pay_is_left_out() -> None:
    array = pa.array(np.random.default_rng(0).integers(0, 2**62, 5000))
    page = encode_miniblock(view_array_as_block(array), "general:lz4(flat)")
    assert page.encoding.WhichOneof("compression") == "flat"


def test_names() -> None:
    block = view_array_as_block(pa.array([1, 2, 3]))
    for name in ("nothing", "flat(flat)", "dictionary", "rle:3"):
        with pytest.raises(UnsupportedError):
            encode_miniblock(block, name)
    for name in ("general:snappy(flat)", "general:lz4(flat", "general", "fsst"):
        with pytest.raises(InvalidInputError):
            encode_miniblock(block, name)
    with pytest.raises(InvalidInputError):
        encode_blocks(block, "out_of_line_bitpacking:x", np.array([3]))
    with pytest.raises(InvalidInputError):
        encode_blocks(block, "flat", np.array([2]))
    assert all(name == compression.name for name, compression in COMPRESSIONS.items())


def test_values_that_do_not_fit_a_chunk() -> None:
    with pytest.raises(InvalidInputError):
        encode_miniblock(view_array_as_block(pa.array(["x" * 9000, "y"])), "variable")
    with pytest.raises(InvalidInputError):
        encode_miniblock(view_array_as_block(pa.array([b"x" * 9000], pa.binary(9000))), "flat")
