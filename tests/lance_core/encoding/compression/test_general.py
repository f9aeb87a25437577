"""Sizes that compressed bytes are said to have, and what they really hold."""

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lance_core.encoding.compression.general import _decompress_frame
from lance_core.encoding.page import as_bytes
from lance_core.errors import CorruptFileError


def compressed(codec: pa.Codec, plain: bytes) -> object:
    return as_bytes(codec.compress(plain))


@pytest.mark.parametrize("name", ["lz4_raw", "zstd"])
@given(plain=st.binary(max_size=300) | st.builds(lambda part, n: part * n, st.binary(max_size=12), st.integers(0, 99)))
def test_what_was_compressed_comes_back(name: str, plain: bytes) -> None:
    codec = pa.Codec(name)
    assert _decompress_frame(codec, compressed(codec, plain), len(plain)).tobytes() == plain


@pytest.mark.parametrize("name", ["lz4_raw", "zstd"])
@given(plain=st.binary(min_size=5, max_size=300), excess=st.integers(1, 4096))
@settings(max_examples=50)
def test_fewer_bytes_than_stated_are_an_error(name: str, plain: bytes, excess: int) -> None:
    codec = pa.Codec(name)
    # What was freed before may lie in the buffer: none of it ends like this.
    plain += b"\x07\xff\x00\xfe\x01"
    with pytest.raises(CorruptFileError):
        _decompress_frame(codec, compressed(codec, plain), len(plain) + excess)


@pytest.mark.parametrize("name", ["lz4_raw", "zstd"])
@given(plain=st.binary(min_size=1, max_size=300), lack=st.integers(1, 300))
def test_more_bytes_than_stated_are_an_error(name: str, plain: bytes, lack: int) -> None:
    codec = pa.Codec(name)
    with pytest.raises(CorruptFileError):
        _decompress_frame(codec, compressed(codec, plain), max(len(plain) - lack, 0))
