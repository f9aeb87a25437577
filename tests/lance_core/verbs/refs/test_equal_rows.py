"""Rows are equal if their values are, bit for bit, however they are divided into batches."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core.verbs.refs.promotion.equal_rows import equal_rows

SCHEMA = pa.schema([
    ("n", pa.int64()),
    ("x", pa.list_(pa.struct([("a", pa.float32()), ("d", pa.dictionary(pa.int32(), pa.string()))]))),
    ("v", pa.list_(pa.float16(), 2)),
    ("big", pa.large_list(pa.float64())),
])  # fmt: skip
ROWS = [
    {"n": i, "x": [{"a": float("nan"), "d": f"w{i}"}], "v": np.array([i, -0.0], np.float16), "big": [i / 3]}
    for i in range(10)
] + [{"n": None, "x": None, "v": None, "big": None}]


def batches(rows, *ends):
    starts = [0, *ends]
    return [pa.RecordBatch.from_pylist(rows[a:b], SCHEMA) for a, b in zip(starts, [*ends, len(rows)], strict=True)]


@pytest.mark.parametrize("ends", [(), (3,), (0, 0, 4, 4, 11), (1, 2, 10)])
def test_batches_do_not_matter(ends):
    assert equal_rows(batches(ROWS, 5), batches(ROWS, *ends))
    assert equal_rows(iter(batches(ROWS, *ends)), iter(batches(ROWS, 5)))


def test_each_row_counts():
    assert equal_rows([], [])
    for other in (ROWS[:-1], [*ROWS, ROWS[0]], [*ROWS[1:], ROWS[0]], []):
        assert not equal_rows(batches(ROWS, 5), batches(other))


@pytest.mark.parametrize(
    "cell",
    [{"n": 70}, {"x": [{"a": float("nan"), "d": "w8"}]}, {"x": []}, {"x": None}, {"v": np.array([7, 0], np.float16)},
     {"big": []}, {"big": [None]}],
    ids=str,
)  # fmt: skip
def test_each_cell_counts(cell):
    assert not equal_rows(batches(ROWS), batches([*ROWS[:7], ROWS[7] | cell, *ROWS[8:]], 2))
