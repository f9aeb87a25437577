"""Which encoding a page gets."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core.encoding.choosing.strategy import Limits
from lance_core.encoding.encoder import encode_field
from lance_core.schema import schema_from_arrow

N = 50_000
RNG = np.random.default_rng(0)
SYLLABLES = np.array(["ka", "lo", "mi", "nu", "pe", "ra", "si", "to"])
TEXTS = ["".join(SYLLABLES[RNG.integers(0, 8, 12)]) for _ in range(N)]

CASES = {
    "all equal": (pa.array(np.full(N, 9)), "constant", 100),
    "equal strings": (pa.array(["same"] * N), "constant", 100),
    "noise": (pa.array(RNG.integers(-(2**62), 2**62, N)), "full_zip", 8 * N),
    "normal floats": (pa.array(RNG.standard_normal(N)), "full_zip", 8 * N),
    "small numbers": (pa.array(RNG.integers(0, 2**20, N)), "inline_bitpacking", 2.6 * N),
    "sequence": (pa.array(np.arange(N) + 10**15), "general", 0.5 * N),
    "few large numbers": (pa.array(RNG.integers(0, 8, N) * 10**15), "dictionary", 0.7 * N),
    "runs": (pa.array(np.repeat(RNG.integers(0, 2**60, N // 100), 100)), "rle", 0.5 * N),
    "few strings": (pa.array(SYLLABLES[RNG.integers(0, 8, N)]), "dictionary", 0.6 * N),
    "strings": (pa.array(TEXTS), "general", 22 * N),
    "random bytes": (pa.array([RNG.bytes(20) for _ in range(N)]), "variable", 24.2 * N),
}


@pytest.mark.parametrize("name", list(CASES))
def test_choices(name):
    array, expected, most_bytes = CASES[name]
    field = schema_from_arrow(pa.schema([pa.field("c", array.type)])).fields[0]
    ((page,),) = encode_field(field, array, Limits(large_chunks=True))
    description = str(page.encoding)
    assert expected in description
    assert page.size_bytes <= most_bytes


def test_2_1_has_no_constant_values():
    array = pa.array(np.full(N, 9))
    field = schema_from_arrow(pa.schema([pa.field("c", array.type)])).fields[0]
    ((page,),) = encode_field(field, array, Limits(large_chunks=False))
    assert page.encoding.WhichOneof("layout") == "mini_block_layout"
    assert page.size_bytes < N
