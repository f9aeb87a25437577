"""Gathering some values of chunks gives what decoding all of them gives."""

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.encoding.compression.chunks import ChunkBuffers
from lance_core.encoding.compression.registry import decode_miniblock, encode_miniblock
from lance_core.encoding.datablock import block_to_array, view_array_as_block
from lance_core.encoding.structural.gathered import can_gather, decode_some
from lance_core.errors import CorruptFileError

ROWS = 20_000
RNG = np.random.default_rng(3)
NUMBERS = pa.array(np.arange(ROWS, dtype=np.int64) * 1_000_003)
TEXTS = pa.array([f"user {i % 977} {'x' * (i % 11)}" for i in range(ROWS)])

CASES = {
    "flat": (NUMBERS, "flat"),
    "bits": (pa.array(RNG.integers(0, 2, ROWS).astype(bool)), "flat"),
    "decimals": (pa.array(range(ROWS), pa.decimal128(30, 0)), "flat"),
    "packed": (NUMBERS, "inline_bitpacking"),
    "rle": (pa.array(np.arange(ROWS) // 300), "rle"),
    "lz4 numbers": (NUMBERS, "general:lz4(flat)"),
    "lz4 planes": (NUMBERS, "general:lz4(byte_stream_split)"),
    "zstd planes": (pa.array(RNG.random(ROWS, dtype=np.float32)), "general:zstd(byte_stream_split)"),
    "lz4 packed": (NUMBERS, "general:lz4(inline_bitpacking)"),
    "strings": (TEXTS, "variable"),
    "lz4 strings": (TEXTS, "general:lz4(variable)"),
    "lz4 long offsets": (TEXTS.cast(pa.large_string()), "general:lz4(variable)"),
}
POSITIONS = {
    "first and last": np.array([0, ROWS - 1]),
    "neighbours over an edge": np.array([4094, 4095, 4096, 4097]),
    "scattered": np.sort(RNG.choice(ROWS, 500, replace=False)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_same_values_as_from_all(case, positions):
    array, name = CASES[case]
    page = encode_miniblock(view_array_as_block(array), name)
    assert page.encoding.WhichOneof("compression") == name.partition(":")[0], "the wish was not followed"
    wanted = POSITIONS[positions]
    assert can_gather(page.encoding, wanted.size, ROWS)
    some = decode_some(page.encoding, page.buffers, page.counts, wanted)
    assert some.num_values == wanted.size
    expected = block_to_array(decode_miniblock(page.encoding, page.buffers, page.counts), array.type)
    assert expected.equals(array)
    assert block_to_array(some, array.type).equals(array.take(pa.array(wanted)))


def test_lists_and_structs_and_many_rows_are_decoded_whole():
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(ROWS, np.float32)), 4)
    encoding = encode_miniblock(view_array_as_block(vectors), "fixed_size_list(flat)").encoding
    assert not can_gather(encoding, 1, ROWS // 4)
    plain = encode_miniblock(view_array_as_block(NUMBERS), "flat").encoding
    assert can_gather(plain, ROWS // 4, ROWS)
    assert not can_gather(plain, ROWS // 4 + 1, ROWS)
    assert not can_gather(plain, 0, ROWS)


@pytest.mark.parametrize("name", ["general:lz4(flat)", "general:lz4(byte_stream_split)", "general:lz4(variable)"])
def test_chunks_that_are_too_short_are_found(name):
    array = TEXTS if "variable" in name else NUMBERS
    page = encode_miniblock(view_array_as_block(array), name)
    wrong = page.counts.copy()
    wrong[0] *= 64
    with pytest.raises(CorruptFileError, match="too short"):
        decode_some(page.encoding, page.buffers, wrong, np.array([wrong[0] - 1]))


def test_offsets_out_of_their_chunk_are_found():
    page = encode_miniblock(view_array_as_block(TEXTS), "variable")
    (chunks,) = page.buffers
    broken = chunks.data.copy()
    broken[4:8] = 255
    lz4 = encode_miniblock(view_array_as_block(TEXTS), "general:lz4(variable)")
    codec = pa.Codec("lz4_raw")
    piece = ChunkBuffers(data=broken, starts=chunks.starts, sizes=chunks.sizes).piece(0)
    packed = len(piece).to_bytes(4, "little") + codec.compress(piece.tobytes(), asbytes=True)
    buffers = (ChunkBuffers.single(np.frombuffer(packed, np.uint8)),)
    with pytest.raises(CorruptFileError, match="outside"):
        decode_some(lz4.encoding, buffers, page.counts[:1], np.array([0]))


def test_rows_at_the_edges_of_pages_find_their_own_dictionary(tmp_path):
    texts = pa.array([f"{number // 1000} {'x' * 80}" for number in range(300_000)])
    dataset = lance_core.write_dataset(pa.table({"text": texts}), tmp_path / "t")
    for first in range(5):
        wanted = list(range(first, len(texts), 5))
        assert dataset.take(wanted).column("text").combine_chunks().equals(texts.take(pa.array(wanted)))
