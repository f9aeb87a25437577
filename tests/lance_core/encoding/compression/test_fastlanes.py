"""All ways to unpack blocks give the values that were packed, whatever the number of blocks and wherever they lie."""

import numpy as np
import pytest

from lance_core.encoding.compression import fastlanes
from lance_core.encoding.compression.fastlanes import BLOCK_VALUES


def blocks_of(bits, width, blocks):
    random = np.random.default_rng(bits * 100 + width)
    values = random.integers(0, 2**width - 1, (blocks, BLOCK_VALUES), dtype=np.uint64, endpoint=True)
    return values.astype(f"<u{bits // 8}")


def packed_of(values, width):
    packed = np.empty((values.shape[0], width * BLOCK_VALUES // (values.itemsize * 8)), values.dtype)
    fastlanes.pack(values, width, packed)
    return packed


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("blocks", [1, 7, 8, 33, 600])
def test_each_way_gives_the_values_that_were_packed(bits, blocks):
    for width in {1, 2, 3, bits // 2 - 1, bits // 2, bits // 2 + 1, bits - 1, bits}:
        values = blocks_of(bits, width, blocks)
        packed = packed_of(values, width)
        spread = np.zeros((blocks, packed.shape[1] + 3), packed.dtype)
        spread[:, 1:-2] = packed
        for place in (packed, spread[:, 1:-2]):
            for unpacked in (fastlanes.unpack, fastlanes._unpack_few, fastlanes._unpack_gathered):
                found = np.zeros_like(values)
                unpacked(place, width, found)
                assert np.array_equal(found, values), (bits, blocks, width, unpacked)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_rows_of_a_larger_array_are_filled_in_place(bits):
    values = blocks_of(bits, bits // 2, 40)
    found = np.zeros((44, BLOCK_VALUES + 64), values.dtype)
    fastlanes.unpack(packed_of(values, bits // 2), bits // 2, found[2:42, :BLOCK_VALUES])
    assert np.array_equal(found[2:42, :BLOCK_VALUES], values)
    found[2:42, :BLOCK_VALUES] = 0
    assert not found.any()
