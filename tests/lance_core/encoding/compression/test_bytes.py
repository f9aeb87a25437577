"""Exact bytes, computed by hand from the layout, and those that pylance packs."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, Fsst
from lance_core.encoding.compression import fastlanes
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
from lance_core.encoding.datablock import VariableBlock, block_to_array, view_array_as_block

FL_ORDER = [0, 4, 2, 6, 1, 5, 3, 7]


def packed_slowly(values: list[int], width: int, bits: int) -> bytes:
    """FastLanes by its definition, one bit at a time."""
    lanes = 1024 // bits
    words = [0] * (width * lanes)
    for row in range(bits):
        for lane in range(lanes):
            value = values[FL_ORDER[row // 8] * 16 + row % 8 * 128 + lane]
            for bit in range(width):
                at = row * width + bit
                words[at // bits * lanes + lane] |= (value >> bit & 1) << at % bits
    return b"".join(word.to_bytes(bits // 8, "little") for word in words)


@pytest.mark.parametrize(("bits", "width"), [(8, 3), (16, 1), (16, 11), (32, 7), (32, 32), (64, 40), (64, 63)])
def test_fastlanes_order(bits: int, width: int) -> None:
    values = np.random.default_rng(bits + width).integers(0, 2**width - 1, (2, 1024), np.uint64, endpoint=True)
    values = values.astype(f"u{bits // 8}")
    packed = np.empty((2, width * 1024 // bits), values.dtype)
    fastlanes.pack(values, width, packed)
    for row in range(2):
        assert packed[row].tobytes() == packed_slowly(values[row].tolist(), width, bits)
    unpacked = np.empty_like(values)
    fastlanes.unpack(packed, width, unpacked)
    assert (unpacked == values).all()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_few_and_many_blocks_unpack_alike(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for width in range(bits + 1):
        top = 2**width - 1
        values = rng.integers(0, top, (70, 1024), np.uint64, endpoint=True).astype(f"u{bits // 8}")
        packed = np.zeros((70, width * 1024 // bits), values.dtype)
        fastlanes.pack(values, width, packed)
        many, few = np.empty_like(values), np.empty_like(values)
        fastlanes.unpack(packed, width, many)
        for row in range(70):
            fastlanes.unpack(packed[row : row + 1], width, few[row : row + 1])
        assert (many == values).all()
        assert (few == values).all()


def test_bit_widths() -> None:
    rows = np.zeros((67, 8), np.uint64)
    for width in range(1, 65):
        rows[width, width % 8] = 2 ** (width - 1)
    rows[65, 0], rows[66, 1] = 2**64 - 1, 2**53 - 1
    assert fastlanes.measure_bit_widths(rows).tolist() == [*range(65), 64, 53]


def test_inline_bitpacking_chunk() -> None:
    values = np.arange(1024, dtype=np.uint16) % 8
    page = encode_miniblock(view_array_as_block(pa.array(values)), "inline_bitpacking")
    chunk = page.buffers[0].piece(0).tobytes()
    assert chunk == (3).to_bytes(2, "little") + packed_slowly(values.tolist(), 3, 16)
    assert page.encoding.inline_bitpacking.uncompressed_bits_per_value == 16


def test_out_of_line_tails() -> None:
    # 1024 values in 2 bits take 256 bytes, which is what 128 raw values of 16 bits take.
    for tail, expected in ((127, 256 + 254), (128, 256 + 256), (129, 512)):
        values = np.arange(1024 + tail, dtype=np.uint16) % 4
        encoding, data = encode_block(view_array_as_block(pa.array(values)), "out_of_line_bitpacking")
        assert data.size == expected
        block = decode_block(encoding, data, values.size)
        assert block_to_array(block, pa.uint16()).to_numpy().tolist() == values.tolist()


def test_variable_chunk() -> None:
    page = encode_miniblock(view_array_as_block(pa.array(["ab", "", "xyz"])), "variable")
    expected = bytes.fromhex("10000000 12000000 12000000 15000000") + b"abxyz"
    assert page.buffers[0].piece(0).tobytes() == expected + b"H" * 3


def test_variable_block() -> None:
    _, data = encode_block(view_array_as_block(pa.array(["zz", "ab", "", "xyz"]).slice(1)), "variable")
    head = "20000000 18000000 00000000 02000000 02000000 05000000"
    assert data.tobytes() == bytes.fromhex(head) + b"abxyz"


def test_variable_block_of_early_files() -> None:
    data = bytes.fromhex("20 03000000 19000000 00000000 02000000 02000000 05000000") + b"abxyz"
    block = decode_block(variable_encoding(32), np.frombuffer(data, np.uint8), 3)
    assert block_to_array(block, pa.string()).to_pylist() == ["ab", "", "xyz"]


def test_runs() -> None:
    values = pa.array([5] * 300 + [6, 7, 7], pa.int16())
    page = encode_miniblock(view_array_as_block(values), "rle")
    assert page.buffers[0].piece(0).view("<i2").tolist() == [5, 5, 6, 7]
    assert page.buffers[1].piece(0).tolist() == [255, 45, 1, 2]
    encoding, buffers = encode_blocks(view_array_as_block(values), "rle", np.array([2, 301]))
    assert buffers.piece(0).tobytes() == bytes.fromhex("0200000000000000 0500 02")
    assert buffers.piece(1).tobytes() == bytes.fromhex("0800000000000000 0500 0500 0600 0700 ff 2b 01 02")
    assert block_to_array(decode_blocks(encoding, buffers, np.array([2, 301])), pa.int16()).equals(values)


def test_runs_that_reach_over_the_end_of_a_chunk_are_cut() -> None:
    page = encode_miniblock(view_array_as_block(pa.array([1, 2], pa.int8())), "rle")
    values = ChunkBuffers(data=np.array([1, 2, 3], np.uint8), starts=np.array([0, 2]), sizes=np.array([2, 1]))
    lengths = ChunkBuffers(data=np.array([3, 9, 4], np.uint8), starts=np.array([0, 2]), sizes=np.array([2, 1]))
    block = decode_miniblock(page.encoding, [values, lengths], np.array([4, 2]))
    assert block_to_array(block, pa.int8()).to_pylist() == [1, 1, 1, 2, 3, 3]


def test_general_prefixes() -> None:
    block = view_array_as_block(pa.array(np.zeros(1000, np.int64)))
    _, data = encode_block(block, "general:lz4(flat)")
    assert data[:4].tobytes() == (8000).to_bytes(4, "little")
    assert pa.Codec("lz4_raw").decompress(data[4:].tobytes(), 8000).to_pybytes() == bytes(8000)
    encoding, data = encode_block(block, "general:zstd(flat)")
    assert data[:8].tobytes() == (8000).to_bytes(8, "little")
    bare = data[8:].copy()
    assert block_to_array(decode_block(encoding, bare, 1000), pa.int64()).to_pylist() == [0] * 1000


def test_lists_zip_validity_before_items() -> None:
    array = pa.array([[1, None, 3], [None, 5, 6]], pa.list_(pa.int16(), 3))
    encoding, values = encode_per_value(view_array_as_block(array), "fixed_size_list")
    assert values.data.tobytes() == bytes.fromhex("05 0100 0000 0300 06 0000 0500 0600")
    assert encoding.fixed_size_list.has_validity
    page = encode_miniblock(view_array_as_block(array), "fixed_size_list")
    assert page.buffers[0].piece(0).tolist() == [0b110101]


def test_variable_packed_struct_row() -> None:
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array(["aa"])], ["x", "y"])
    _, values = encode_per_value(view_array_as_block(array), "variable_packed_struct")
    assert values.data.tobytes() == bytes.fromhex("0100000000000000 02000000 6161")


def symbol_table(symbols: list[bytes], *, on: int = 1) -> bytes:
    body = b"".join(s.ljust(8, b"\0") for s in symbols) + bytes(len(s) for s in symbols)
    return (bytes([len(symbols), 0, 0, on]) + b"TSSF" + body).ljust(2312, b"\0")


def codes_of(values: list[bytes]) -> VariableBlock:
    offsets = np.cumsum([0] + [len(v) for v in values]).astype(np.int32)
    return VariableBlock(offsets=offsets, data=np.frombuffer(b"".join(values), np.uint8), num_values=len(values))


def fsst(symbols: list[bytes], *, on: int = 1) -> CompressiveEncoding:
    return CompressiveEncoding(fsst=Fsst(symbol_table=symbol_table(symbols, on=on), values=variable_encoding(32)))


@pytest.mark.parametrize("pairs", [False, True])
def test_fsst_escapes(pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_core.encoding.compression import fsst as module

    monkeypatch.setattr(module, "_MIN_CODES_FOR_PAIRS", 0 if pairs else 10**9)
    symbols = [b"abcdefgh", b"x", b"yz"]
    codes = [b"\x00", b"", b"\x01\xff\x00\x02", b"\xff\xff", b"\xff\xff\xff\x41\x02", b"\x02\xff\xff\xff\xff", b"\x01"]
    expected = [b"abcdefgh", b"", b"x\x00yz", b"\xff", b"\xffAyz", b"yz\xff\xff", b"x"]
    for shift in (0, 1):
        block = codes_of([b"\x01"] * shift + codes)
        found = block_to_array(decode_per_value(fsst(symbols), block), pa.binary()).to_pylist()
        assert found == [b"x"] * shift + expected
        part = VariableBlock(offsets=block.offsets[2:], data=block.data, num_values=block.num_values - 2)
        found = block_to_array(decode_per_value(fsst(symbols), part), pa.binary()).to_pylist()
        assert found == ([b"x"] * shift + expected)[2:]


@pytest.mark.parametrize("least", [0, 10**9])
def test_fsst_of_more_than_two_gib(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_core.encoding.compression import fsst as module

    monkeypatch.setattr(module, "_INT32_MAX", 50)
    monkeypatch.setattr(module, "_MIN_CODES_FOR_PAIRS", least)
    block = decode_per_value(fsst([b"abcdefgh", b"x"]), codes_of([b"\x00" * 9, b"\x01\xffz"]))
    assert isinstance(block, VariableBlock)
    assert block.offsets.dtype == np.int64
    assert block_to_array(block, pa.large_binary()).to_pylist() == [b"abcdefgh" * 9, b"xz"]


def test_fsst_that_is_switched_off() -> None:
    block = codes_of([b"abc", b"\xff"])
    assert block_to_array(decode_per_value(fsst([], on=0), block), pa.binary()).to_pylist() == [b"abc", b"\xff"]


def test_fsst_pairs_equal_single_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_core.encoding.compression import fsst as module

    rng = np.random.default_rng(0)
    symbols = [bytes(rng.integers(97, 123, n, dtype=np.uint8)) for n in rng.integers(1, 9, 255)]
    for share in (0.0, 0.05):
        pieces = [
            bytes([255, int(literal)]) if escaped else bytes([int(code)])
            for code, literal, escaped in zip(
                rng.integers(0, 255, 30_000), rng.integers(0, 256, 30_000), rng.random(30_000) < share, strict=True
            )
        ]
        cuts = np.sort(rng.integers(0, 30_000, 5000)).tolist()
        values = [b"".join(pieces[a:b]) for a, b in zip([0, *cuts], [*cuts, 30_000], strict=True)]
        results = []
        for least in (0, 10**9):
            monkeypatch.setattr(module, "_MIN_CODES_FOR_PAIRS", least)
            results.append(block_to_array(decode_per_value(fsst(symbols), codes_of(values)), pa.binary()))
        assert results[0].equals(results[1])
