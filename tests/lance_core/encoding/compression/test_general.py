"""Sizes that compressed bytes are said to have, and what they really hold."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lance_core._proto.encodings_v2_1_pb2 import COMPRESSION_ALGORITHM_LZ4, BufferCompression
from lance_core.encoding.compression.chunks import ChunkBuffers
from lance_core.encoding.compression.general import Decompressor, _decompress_frame, _join_pieces, compress_with_size
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


def chunks(pieces: list[bytes]) -> ChunkBuffers:
    """LZ4 pieces with some bytes of other things between them."""
    packed = [compress_with_size("lz4", np.frombuffer(piece, np.uint8)) for piece in pieces]
    sizes = np.array([len(piece) for piece in packed])
    starts = 3 + np.cumsum(sizes + 5) - sizes - 5
    return ChunkBuffers(
        data=as_bytes(b"abc" + b"".join(p + b"12345" for p in packed)).copy(), starts=starts, sizes=sizes
    )


def decompressor() -> Decompressor:
    return Decompressor(BufferCompression(scheme=COMPRESSION_ALGORITHM_LZ4), 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=300).flatmap(lambda part: st.integers(1, 400).map(lambda n: part * n)), min_size=1))
def test_many_chunks_are_decompressed_as_each_by_itself(pieces: list[bytes]) -> None:
    buffers = chunks(pieces)
    one, all_at_once = decompressor(), decompressor()
    expected = _join_pieces([one(buffers.piece(i)) for i in range(len(pieces))])
    joined = all_at_once.join(buffers)
    assert joined.data.tobytes() == expected.data.tobytes() == b"".join(pieces)
    assert joined.starts.tolist() == expected.starts.tolist()
    assert joined.sizes.tolist() == expected.sizes.tolist()
    assert one._remaining_bytes == all_at_once._remaining_bytes


def test_chunks_are_decompressed_in_one_call() -> None:
    assert decompressor()._join_blocks(chunks([b"x" * 8192] * 500)) is not None
    for other in (b"x" * 65537, b"1234", b""):
        assert decompressor()._join_blocks(chunks([b"x" * 8192, other])) is None


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("excess", [-1, 1, 300])
def test_a_chunk_among_others_with_a_wrong_size_is_an_error(chunk: int, excess: int) -> None:
    buffers = chunks([bytes(range(200)), bytes(range(100, 256)), bytes(range(150))])
    start = int(buffers.starts[chunk])
    stated = int.from_bytes(buffers.data[start : start + 4], "little") + excess
    buffers.data[start : start + 4] = np.frombuffer(stated.to_bytes(4, "little"), np.uint8)
    with pytest.raises(CorruptFileError):
        decompressor().join(buffers)
