"""Choosing the symbols of FSST, and compressing with them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core.encoding.compression import fsst_symbols
from lance_core.encoding.compression.fsst_symbols import SymbolTable, compress, find_symbols
from lance_core.encoding.compression.registry import encode_miniblock
from lance_core.encoding.datablock import view_array_as_block


def compressed(values, symbols):
    block = view_array_as_block(pa.array(values, pa.binary()))
    codes, offsets = compress(symbols, block.data, block.offsets)
    assert offsets[-1] == codes.size
    return [codes[start:end].tobytes() for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def expanded(codes, symbols):
    """One value, code by code, as the format says."""
    out, at = b"", 0
    while at < len(codes):
        if codes[at] == 255:
            out += codes[at + 1 : at + 2]
            at += 2
        else:
            out += symbols.strings[codes[at]]
            at += 1
    return out


def test_the_longest_symbol_is_taken():
    symbols = SymbolTable.of([b"a", b"ab", b"abc", b"bcdefghi", b"\xff"])
    assert compressed([b"a", b"ab", b"abc", b"abd", b"abcab"], symbols) == [b"\0", b"\1", b"\2", b"\1\xffd", b"\2\1"]
    assert compressed([b"bcdefghi", b"bcdefgh", b"\xff\xff", b""], symbols) == [
        b"\3",
        b"\xffb\xffc\xffd\xffe\xfff\xffg\xffh",
        b"\4\4",
        b"",
    ]


def test_a_symbol_does_not_reach_over_the_end_of_a_value():
    symbols = SymbolTable.of([b"ab", b"abc"])
    assert compressed([b"a", b"b", b"c", b"ab", b"c"], symbols) == [b"\xffa", b"\xffb", b"\xffc", b"\0", b"\xffc"]


def test_nulls_and_zero_bytes():
    symbols = SymbolTable.of([b"\0", b"\0\0\0"])
    assert compressed([b"\0", b"\0\0", b"\0\0\0", b"\0\0\0\0"], symbols) == [b"\0", b"\0\0", b"\1", b"\1\0"]


@given(
    values=st.lists(st.binary(max_size=40) | st.sampled_from([b"http://a.b/", b"http://", b"ab" * 400]), max_size=60),
    texts=st.lists(st.binary(min_size=1, max_size=8), max_size=255, unique=True),
)
@settings(max_examples=150, deadline=None)
def test_any_symbols_keep_any_values(values, texts):
    symbols = SymbolTable.of(texts)
    assert [expanded(codes, symbols) for codes in compressed(values, symbols)] == values


@given(values=st.lists(st.text(alphabet="abcd é/", max_size=300), min_size=1, max_size=80), block=st.integers(1, 500))
@settings(max_examples=80, deadline=None)
def test_chosen_symbols_keep_the_values(values, block):
    values = [value.encode() for value in values]
    array = view_array_as_block(pa.array([b"skipped", *values], pa.large_binary()).slice(1))
    symbols = find_symbols(array.data, array.offsets)
    assert len(set(symbols.strings)) == len(symbols.strings) <= 255
    assert all(1 <= len(text) <= 8 for text in symbols.strings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsst_symbols, "_BLOCK_BYTES", block)
        codes, offsets = compress(symbols, array.data, array.offsets)
    assert offsets.dtype == array.offsets.dtype
    found = [codes[start:end].tobytes() for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    assert [expanded(value, symbols) for value in found] == values


def test_texts_shrink():
    rng = np.random.default_rng(0)
    texts = [f"https://example.com/products/{i % 97}/item?ref={rng.integers(10**6)}" for i in range(20_000)]
    block = view_array_as_block(pa.array(texts))
    plain = int(block.offsets[-1])
    page = encode_miniblock(block, "fsst(variable)")
    assert len(page.encoding.fsst.symbol_table) == 2312
    assert int(page.buffers[0].sizes.sum()) - 4 * len(texts) < 0.3 * plain


def test_what_does_not_shrink_stays():
    rng = np.random.default_rng(0)
    block = view_array_as_block(pa.array([rng.bytes(12) for _ in range(5000)]))
    assert encode_miniblock(block, "fsst(variable)").encoding.WhichOneof("compression") == "variable"
