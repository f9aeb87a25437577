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
