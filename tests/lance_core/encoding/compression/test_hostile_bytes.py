"""Damaged pages and descriptions: an error with a reason, or values; never a crash, a hang or a huge allocation."""

import contextlib
import resource
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_core.encoding.compression.chunks import ChunkBuffers
from lance_core.encoding.compression.registry import (
    decode_block,
    decode_blocks,
    decode_miniblock,
    decode_per_value,
    encode_block,
    encode_blocks,
    encode_miniblock,
    encode_per_value,
)
from lance_core.encoding.compression.variable import variable_encoding
from lance_core.encoding.datablock import (
    FixedSizeListBlock,
    FixedWidthBlock,
    VariableBlock,
    block_to_array,
    view_array_as_block,
)
from lance_core.errors import CorruptFileError, UnsupportedError
from tests.support.hypothesis_settings import examples

REJECTED = (CorruptFileError, UnsupportedError)


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """Four GiB more than what is mapped now: enough for the tests, too little for an absurd allocation."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:  # noqa: PTH123
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**32, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


def encoded_arrays() -> dict[str, tuple[pa.Array, str]]:
    rng = np.random.default_rng(0)
    words = pa.array(rng.integers(0, 2**30, 3000, np.uint64))
    runs = pa.array(np.repeat(rng.integers(0, 99, 60), 50).astype(np.int16))
    texts = pa.array([bytes(rng.integers(97, 110, int(n), dtype=np.uint8)) for n in rng.integers(0, 20, 1500)])
    items = pa.array(rng.integers(0, 99, 6000).astype(np.int32), mask=rng.random(6000) < 0.1)
    inner = pa.FixedSizeListArray.from_arrays(items, 3)
    return {
        "flat": (words, "flat"),
        "bits": (pa.array(rng.integers(0, 2, 5000).astype(bool)), "flat"),
        "inline": (words, "inline_bitpacking"),
        "rle": (runs, "rle"),
        "variable": (texts, "variable"),
        "large": (texts.cast(pa.large_binary()), "variable"),
        "lz4": (texts, "general:lz4(variable)"),
        "zstd": (words, "general:zstd(flat)"),
        "planes": (pa.array(np.arange(3000, dtype=np.uint32)), "general:lz4(byte_stream_split)"),
        "lists": (pa.FixedSizeListArray.from_arrays(inner, 2), "fixed_size_list(flat)"),
        "packed": (pa.StructArray.from_arrays([words, words], ["a", "b"]), "packed_struct"),
    }


EXAMPLES = encoded_arrays()


def attempt(decode: Any, *arguments: Any, kind: pa.DataType) -> None:
    with contextlib.suppress(*REJECTED):
        block_to_array(decode(*arguments), kind).validate(full=True)


@st.composite
def damage(draw: st.DrawFn) -> Any:
    """A function that damages bytes: flips, extreme bytes, or a cut."""
    kind = draw(st.sampled_from(["flip", "extreme", "cut", "shuffle"]))
    where = draw(st.lists(st.floats(0, 0.999), min_size=1, max_size=6))
    with_byte = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))

    def apply(data: np.ndarray) -> np.ndarray:
        if not data.size:
            return data
        if kind == "cut":
            return data[: int(where[0] * data.size)]
        data = data.copy()
        at = (np.array(where) * data.size).astype(int)
        if kind == "flip":
            data[at] ^= with_byte or 4
        elif kind == "extreme":
            data[at[0] // 8 * 8 :][: len(where)] = with_byte
        else:
            np.random.default_rng(int(at[0])).shuffle(data[at[0] :])
        return data

    return apply


@given(name=st.sampled_from(list(EXAMPLES)), harm=damage())
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_chunks(name: str, harm: Any) -> None:
    array, compression = EXAMPLES[name]
    page = encode_miniblock(view_array_as_block(array), compression)
    buffers = [ChunkBuffers(data=harm(b.data), starts=b.starts, sizes=b.sizes) for b in page.buffers]
    attempt(decode_miniblock, page.encoding, buffers, page.counts, kind=array.type)


@given(
    name=st.sampled_from(list(EXAMPLES)),
    field=st.sampled_from(["starts", "sizes", "counts"]),
    index=st.integers(-2, 2),
    value=st.sampled_from([-1, 0, 1, 3, 1 << 15, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)]),
)
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunks_that_lie_elsewhere(name: str, field: str, index: int, value: int) -> None:
    array, compression = EXAMPLES[name]
    page = encode_miniblock(view_array_as_block(array), compression)
    counts = page.counts.copy()
    first = page.buffers[0]
    starts, sizes = first.starts.copy(), first.sizes.copy()
    changed = {"starts": starts, "sizes": sizes, "counts": counts}[field]
    changed[index % changed.size] = value
    buffers = [ChunkBuffers(data=first.data, starts=starts, sizes=sizes), *page.buffers[1:]]
    attempt(decode_miniblock, page.encoding, buffers, counts, kind=array.type)


@given(name=st.sampled_from(list(EXAMPLES)), data=st.data())
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_descriptions(name: str, data: st.DataObject) -> None:
    array, compression = EXAMPLES[name]
    page = encode_miniblock(view_array_as_block(array), compression)
    raw = bytearray(page.encoding.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    encoding = CompressiveEncoding()
    try:
        encoding.ParseFromString(bytes(raw))
    except Exception:  # noqa: BLE001
        return
    attempt(decode_miniblock, encoding, page.buffers, page.counts, kind=array.type)


@given(
    name=st.sampled_from(["flat", "rle", "inline_bitpacking", "out_of_line_bitpacking", "general:zstd(rle)"]),
    harm=damage(),
    counts=st.lists(st.sampled_from([0, 1, 5, 400, 1024, 2000, 1 << 40]), min_size=3, max_size=3),
)
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_levels(name: str, harm: Any, counts: list[int]) -> None:
    values = np.random.default_rng(1).integers(0, 3, 3000).astype(np.uint16)
    true_counts = np.array([1000, 1000, 1000])
    encoding, buffers = encode_blocks(view_array_as_block(pa.array(values)), name, true_counts)
    harmed = ChunkBuffers(data=harm(buffers.data), starts=buffers.starts, sizes=buffers.sizes)
    attempt(decode_blocks, encoding, harmed, true_counts, kind=pa.uint16())
    attempt(decode_blocks, encoding, buffers, np.array(counts), kind=pa.uint16())


@given(name=st.sampled_from(["variable", "general:lz4(variable)"]), harm=damage(), count=st.integers(0, 1 << 41))
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_blocks(name: str, harm: Any, count: int) -> None:
    array = EXAMPLES["variable"][0]
    encoding, data = encode_block(view_array_as_block(array), name)
    attempt(decode_block, encoding, harm(data), len(array), kind=array.type)
    attempt(decode_block, encoding, data, count, kind=array.type)


@given(harm=damage(), name=st.sampled_from(["variable_packed_struct", "general:zstd(variable)", "fixed_size_list"]))
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_values(harm: Any, name: str) -> None:
    words, texts = EXAMPLES["flat"][0].slice(0, 1500), EXAMPLES["variable"][0]
    if name == "variable_packed_struct":
        array: pa.Array = pa.StructArray.from_arrays([words, texts], ["a", "b"])
    else:
        array = texts if "variable" in name else EXAMPLES["lists"][0]
    encoding, values = encode_per_value(view_array_as_block(array), name)
    harmed = harm(values.data)
    if isinstance(values, VariableBlock):
        offsets = np.minimum(values.offsets, harmed.size)
        block: Any = VariableBlock(offsets=offsets, data=harmed, num_values=values.num_values)
    else:
        count = harmed.size // (values.bits_per_value // 8)
        block = FixedWidthBlock(data=harmed, bits_per_value=values.bits_per_value, num_values=count)
    attempt(decode_per_value, encoding, block, kind=array.type)


@given(table=st.binary(max_size=60), codes=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=5))
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("least", [0, 1000])
def test_damaged_fsst(least: int, table: bytes, codes: bytes, cuts: list[int]) -> None:
    from lance_core.encoding.compression import fsst

    head = bytes([min(len(table) // 9, 255), 0, 0, 1]) + b"TSSF"
    encoding = CompressiveEncoding()
    encoding.fsst.symbol_table = head + table
    encoding.fsst.values.CopyFrom(variable_encoding(32))
    offsets = np.array([0, *sorted(min(cut, len(codes)) for cut in cuts), len(codes)], np.int32)
    block = VariableBlock(offsets=offsets, data=np.frombuffer(codes, np.uint8), num_values=offsets.size - 1)
    patch = pytest.MonkeyPatch()
    patch.setattr(fsst, "_MIN_CODES_FOR_PAIRS", least)
    try:
        attempt(decode_per_value, encoding, block, kind=pa.binary())
    finally:
        patch.undo()


def test_sizes_that_are_not_believed() -> None:
    block = view_array_as_block(pa.array(np.zeros(100, np.int64)))
    for name, prefix in (("general:lz4(flat)", 4), ("general:zstd(flat)", 8)):
        encoding, data = encode_block(block, name)
        huge = data.copy()
        huge[:prefix] = 0x7F
        with pytest.raises(CorruptFileError, match="cannot hold"):
            decode_block(encoding, huge, 100)


def test_values_without_bytes_are_limited() -> None:
    nothing = np.empty(0, np.uint8)
    encoding, _ = encode_block(view_array_as_block(pa.array([7, 7])), "constant")
    with pytest.raises(CorruptFileError, match="in one page"):
        decode_block(encoding, nothing, 1 << 40)
    encoding, _ = encode_block(view_array_as_block(pa.array(np.zeros(2048, np.uint16))), "out_of_line_bitpacking")
    encoding.out_of_line_bitpacking.values.flat.bits_per_value = 0
    assert not block_to_array(decode_block(encoding, nothing, 5000), pa.uint16()).to_numpy().any()
    with pytest.raises(CorruptFileError, match="in one page"):
        decode_block(encoding, nothing, 1 << 40)


def test_a_bomb_of_chunks_is_rejected() -> None:
    array = pa.array(np.zeros(4, np.int64))
    page = encode_miniblock(view_array_as_block(array), "inline_bitpacking")
    (chunk,) = page.buffers
    many = ChunkBuffers(data=chunk.data, starts=np.zeros(10**6, np.int64), sizes=np.full(10**6, 8))
    with pytest.raises(CorruptFileError, match="overlap"):
        decode_miniblock(page.encoding, [many], np.full(10**6, 1024))


def test_unknown_compression() -> None:
    with pytest.raises(UnsupportedError, match="unknown or missing"):
        decode_block(CompressiveEncoding(), np.empty(0, np.uint8), 0)
    encoding = CompressiveEncoding()
    encoding.dictionary.num_dictionary_items = 1
    with pytest.raises(UnsupportedError, match="dictionary"):
        decode_block(encoding, np.empty(0, np.uint8), 0)


def test_endless_nesting() -> None:
    encoding = CompressiveEncoding()
    inner = encoding
    for _ in range(50):
        inner.general.compression.scheme = 1
        inner = inner.general.values
    with pytest.raises(CorruptFileError, match="nest"):
        decode_block(encoding, np.zeros(8, np.uint8), 1)


def test_lists_that_a_schema_calls_structs() -> None:
    items = FixedWidthBlock(data=np.zeros(16, np.uint8), bits_per_value=64, num_values=2)
    block = FixedSizeListBlock(items=items, dimension=2, validity=None, num_values=1)
    with pytest.raises(CorruptFileError, match="FixedSizeListBlock cannot be read as struct"):
        block_to_array(block, pa.struct([("a", pa.int64()), ("b", pa.int64())]))
