"""Pages that are made like an earlier one of their column are, byte for byte, those of the encoder."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_core.encoding import repeat as chosen
from lance_core.encoding.choosing.strategy import Limits
from lance_core.encoding.encoder import encode_field
from lance_core.encoding.page import EncodedPage, page_encoding
from lance_core.encoding.repeat import Choices, Pattern, leaf_of, pattern_of, try_to_repeat
from lance_core.schema import schema_from_arrow

LIMITS = Limits(large_chunks=True)
RNG = np.random.default_rng(16)
SIZES = (1, 2, 7, 64, 65, 300, 511, 512, 513, 900, 1023, 1024, 1025, 4096, 4097)


def _numbers(kind: pa.DataType, bits: int) -> Any:
    def values(count: int) -> pa.Array:
        return pa.array(RNG.integers(0, 2**bits, count), pa.int64()).cast(kind, safe=False)

    return values


def _texts(distinct: int, kind: pa.DataType, length: int = 3) -> Any:
    def values(count: int) -> pa.Array:
        return pa.array([f"{'text' * length} {number}" for number in RNG.integers(0, distinct, count)]).cast(kind)

    return values


def _doubles(count: int) -> pa.Array:
    return pa.array(RNG.random(count))


def _vectors(count: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(RNG.random(8 * count, np.float32)), 8)


def _rising(count: int) -> pa.Array:
    return pa.array(np.arange(10**12, 10**12 + 1000 * count, 1000)).cast(pa.timestamp("us", "UTC"))


COLUMNS = {
    "int8": _numbers(pa.int8(), 5),
    "uint16": _numbers(pa.uint16(), 16),
    "int32": _numbers(pa.int32(), 9),
    "int64": _numbers(pa.int64(), 40),
    "full": _numbers(pa.int64(), 62),
    "double": _doubles,
    "rising": _rising,
    "vector": _vectors,
    "few strings": _texts(9, pa.string()),
    "many strings": _texts(10**6, pa.string(), length=1),
    "long strings": _texts(10**6, pa.string(), length=9),
    "large": _texts(20, pa.large_string()),
    "binary": _texts(10**6, pa.binary()),
}


def _cut(array: pa.Array, count: int) -> pa.Array:
    """The same values as a slice that begins inside of its memory."""
    return pa.concat_arrays([array[-3:], array])[len(array[-3:]) :][:count]


def _with_nulls(array: pa.Array) -> pa.Array:
    nulls = RNG.random(len(array)) < 0.2
    nulls[0], nulls[-1] = len(array) > 1, False
    return pa.array(array.to_pylist(), array.type, mask=nulls)


def _encoded(array: pa.Array, choices: Choices | None) -> EncodedPage:
    field = schema_from_arrow(pa.schema([pa.field("c", array.type)])).fields[0]
    ((page,),) = encode_field(field, array, LIMITS, choices)
    return page


def _parts(page: EncodedPage) -> tuple[int, int, Any, list[bytes]]:
    buffers = [memoryview(buffer).cast("B").tobytes() for buffer in page.buffers]
    return page.num_rows, page.length, page_encoding(page.encoding), buffers


@pytest.mark.parametrize("has_nulls", [False, True], ids=["valid", "nulls"])
@pytest.mark.parametrize("column", COLUMNS)
def test_repeated_pages_are_those_of_the_encoder(column: str, has_nulls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "_WORSE", 1e9)
    make = COLUMNS[column]
    num_repeated = 0
    for size in SIZES:
        plain, lean = Choices(), Choices()
        first = _with_nulls(make(size)) if has_nulls else make(size)
        if first.null_count == size or (has_nulls and column == "vector"):
            continue
        _encoded(first, plain)
        _encoded(first, lean)
        leaf = leaf_of(first.type)
        assert leaf is not None
        for _ in range(3):
            then = make(size + 3)
            then = _cut(_with_nulls(then[:size]) if has_nulls else then, size)
            page = lean.try_to_repeat_page(0, leaf, then)
            if page is not None:
                num_repeated += 1
                assert _parts(page) == _parts(_encoded(then, plain)), (size, then)
    assert num_repeated >= (15 if column != "vector" or not has_nulls else 0)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([7] * 900),
        pa.array([7.5] * 3, pa.float32()),
        pa.array(["same"] * 900),
        pa.array([""] * 5),
        pa.array(["a text of more than thirty-two bytes"] * 2, pa.large_string()),
        pa.array([b"x", b"y", b"y", b"z"])[1:3],
    ],
)
def test_constant_pages_are_those_of_the_encoder(array: pa.Array) -> None:
    leaf = leaf_of(array.type)
    assert leaf is not None
    page = Choices().try_to_repeat_page(0, leaf, array)
    assert page is not None
    assert _parts(page) == _parts(_encoded(array, None))


@pytest.mark.parametrize(
    "array",
    [pa.array(["ab", "a", "b", "ab"]), pa.array(["a", "aa", ""]), pa.array([1, 2, 1]), pa.array([None, None, 1])],
)
def test_what_only_looks_constant_is_not(array: pa.Array) -> None:
    leaf = leaf_of(array.type)
    assert leaf is not None
    assert Choices().try_to_repeat_page(0, leaf, array) is None


def test_values_that_fit_no_pattern_are_left_to_the_encoder() -> None:
    def pattern(array: pa.Array) -> Pattern:
        found = pattern_of(_encoded(array, None).encoding)  # type: ignore[arg-type]
        assert found is not None
        return found

    few = pattern(_texts(9, pa.string())(900))
    text = leaf_of(pa.string())
    assert text is not None
    assert few.has_items
    assert try_to_repeat(text, _texts(10**6, pa.string())(900), few) is None
    long = pa.array(["x" * 200 + str(number) for number in range(900)])
    assert try_to_repeat(text, long, pattern(_texts(10**6, pa.string(), length=1)(70))) is None
    lists = leaf_of(pa.list_(pa.float32(), 2))
    assert lists is not None
    holes = pa.array([[1.0, None], [2.0, 3.0]], pa.list_(pa.float32(), 2))
    assert try_to_repeat(lists, holes, pattern(_vectors(2))) is None
