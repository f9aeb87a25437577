"""Keys of rows that are looked up among others, against Arrow's own look-up."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core.verbs.rows.source_rows import KeyIndex

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def check(rows: pa.Table, source: pa.Table) -> None:
    index = KeyIndex(source, ["key"])
    found, numbers = index.look_up(rows)
    places = pc.index_in(rows["key"], value_set=source["key"].drop_null())
    expected = [place for place, value in enumerate(places.to_pylist()) if value is not None]
    assert found.tolist() == expected
    assert (
        source["key"].take(index.first[numbers]).to_pylist()
        == rows["key"].take(pa.array(expected, pa.int64())).to_pylist()
    )


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("place", ["least", "zero", "greatest", "everywhere"])
def test_integers_near_each_other_and_far_apart(name: str, place: str) -> None:
    bounds, random = np.iinfo(name), np.random.default_rng(7)
    low, high = {
        "least": (bounds.min, bounds.min + 30),
        "zero": (max(bounds.min, -40), 40),
        "greatest": (bounds.max - 40, bounds.max),
        "everywhere": (bounds.min, bounds.max),
    }[place]
    keys = random.integers(low, high, 20, name, endpoint=True)
    near = random.integers(low, high, 300, name, endpoint=True)
    far = random.integers(bounds.min, bounds.max, 300, name, endpoint=True)
    ends = np.array([bounds.min, bounds.max, 0, *keys], name)
    rows = pa.chunked_array([near, np.concatenate([far, ends])])
    check(pa.table({"key": rows}), pa.table({"key": keys}))
    check(pa.table({"key": rows}).slice(17, 400), pa.table({"key": keys}).slice(3))


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ([1, None, 3, 3], [3, None, 1]),
        ([], [3, 1]),
        ([3, 1], []),
        ([3, 1], [None]),
        ([5, 6, 7], [6]),
        ([5, 6, 7], [8, 10**12]),
    ],
)
def test_nulls_and_nothing(rows: list[int | None], keys: list[int | None]) -> None:
    check(pa.table({"key": pa.array(rows, pa.int64())}), pa.table({"key": pa.array(keys, pa.int64())}))


TIMES = (
    pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.duration("ms"),
)  # fmt: skip


@pytest.mark.parametrize("kind", [*TIMES, pa.string(), pa.int64(), pa.float64(), pa.decimal128(38, 2)], ids=str)
@pytest.mark.parametrize("step", [1, 997], ids=["dense", "sparse"])
def test_keys_of_other_types_with_nulls(kind: pa.DataType, step: int) -> None:
    random = np.random.default_rng(11)
    day = 86_400_000 if kind == pa.date64() else 1

    def draw(most: int, number: int) -> pa.ChunkedArray:
        numbers = pa.array(random.integers(0, most, number) * step * day, mask=random.random(number) < 0.1)
        numbers = numbers.cast(pa.int32()) if kind in (pa.date32(), pa.time32("s")) else numbers
        cast = numbers.view(kind) if kind in TIMES else numbers.cast(kind)
        return pa.chunked_array([cast.slice(0, number // 3), cast.slice(number // 3)])

    check(pa.table({"key": draw(80, 1000)}), pa.table({"key": draw(60, 25).unique()}))


@pytest.mark.parametrize("number", [3, 1000, 50_000])
def test_random_words(number: int) -> None:
    """Hashes rule out most rows, which have no key."""
    random = np.random.default_rng(number)
    bounds = np.iinfo(np.int64)
    keys = np.unique(random.integers(bounds.min, bounds.max, number, endpoint=True))
    random.shuffle(keys)
    rows = random.integers(bounds.min, bounds.max, 100_000, endpoint=True)
    rows[::7] = random.choice(keys, len(rows[::7]))
    rows[:2] = bounds.min, bounds.max
    check(pa.table({"key": rows}), pa.table({"key": keys}))


def test_keys_of_two_columns() -> None:
    random = np.random.default_rng(5)
    source = pa.table({"a": random.integers(0, 9, 40) * 10**9, "b": [f"b{i}" for i in random.integers(0, 5, 40)]})
    rows = pa.table({"a": random.integers(0, 9, 400) * 10**9, "b": [f"b{i}" for i in random.integers(0, 7, 400)]})
    keys = [tuple(row.values()) for row in source.to_pylist()]
    offsets, numbers = KeyIndex(source, ["a", "b"]).look_up(rows)
    assert offsets.tolist() == [i for i, row in enumerate(rows.to_pylist()) if tuple(row.values()) in keys]
    first = KeyIndex(source, ["a", "b"]).first[numbers]
    assert source.take(pa.array(first)).to_pylist() == rows.take(pa.array(offsets)).to_pylist()
