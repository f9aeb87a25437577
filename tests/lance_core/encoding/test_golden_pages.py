"""Pages to the byte: what is written must not change by accident."""

import numpy as np
import pyarrow as pa

from lance_core.encoding.choosing.strategy import Limits
from lance_core.encoding.encoder import encode_field
from lance_core.schema import schema_from_arrow

PLAIN = {"lance-encoding:compression": "none"}


def encode(array, metadata=None, *, large_chunks=True):
    field = schema_from_arrow(pa.schema([pa.field("c", array.type, metadata=metadata)])).fields[0]
    ((page,),) = encode_field(field, array, Limits(large_chunks=large_chunks))
    return [bytes(memoryview(buffer).cast("B")) if memoryview(buffer).nbytes else b"" for buffer in page.buffers]


def test_mini_block_of_integers_with_a_null():
    meta, chunk = encode(pa.array([1, None, 3], pa.int32()), PLAIN)
    assert meta == bytes.fromhex("30000000")  # 32 bytes in the chunk, the last one
    assert chunk == bytes.fromhex(
        "0300"
        "0600"
        "0c000000"  # levels, bytes of definition levels, bytes of values
        "0000"
        "0100"
        "0000"
        "fefe"
        "01000000"
        "01000000"
        "03000000"
        "fefefefe"
    )


def test_mini_block_of_2_1_has_narrow_sizes():
    meta, chunk = encode(pa.array([1, None, 3], pa.int32()), PLAIN, large_chunks=False)
    assert meta == bytes.fromhex("3000")
    assert chunk[:8] == bytes.fromhex("030006000c00fefe")


def test_mini_block_of_lists():
    meta, chunk, index = encode(pa.array([[1, 2], None, [], [3]], pa.list_(pa.int8())), None)
    assert meta == bytes.fromhex("60000000")
    assert chunk[:16] == bytes.fromhex("05000a000a0003000000fefefefefefe")
    assert np.frombuffer(chunk[16:26], "<u2").tolist() == [1, 0, 1, 1, 1]
    assert np.frombuffer(chunk[32:42], "<u2").tolist() == [0, 0, 1, 2, 0]
    assert chunk[48:56] == bytes.fromhex("010203fefefefefe")
    assert np.frombuffer(index, "<u8").tolist() == [4, 0]


def test_full_zip_of_texts_with_a_null():
    fields = {"lance-encoding:structural-encoding": "fullzip"}
    data, index = encode(pa.array(["ab", None, "c"]), fields)
    assert data == bytes.fromhex("0002000000616201000100000063")
    assert index == bytes([0, 7, 8, 14])


def test_raw_values():
    values = np.array([5, -7, 2**60], np.int64)
    assert encode(pa.array(values), PLAIN) == [values.tobytes()]


def test_constants():
    assert encode(pa.array([7] * 9)) == []
    assert encode(pa.nulls(9, pa.int32())) == []
    (scalar,) = encode(pa.array(["hello"] * 9))
    assert scalar == bytes.fromhex("0200000008000000050000000000000005000000") + b"hello"
