"""The order of rows in a BTREE, with one thread and with several."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core.file import pool
from lance_core.index.kinds import btree

rng = np.random.default_rng(5)
DOUBLES = np.round(rng.normal(0, 30, 20_000))
DOUBLES[rng.integers(0, 20_000, 600)] = np.resize([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf], 600)
VALUES = {
    "doubles": pa.array(DOUBLES, mask=rng.random(20_000) < 0.1),
    "floats": pa.array(DOUBLES.astype(np.float32)),
    "half floats": pa.array(DOUBLES.astype(np.float16)),
    "distinct integers": pa.array(rng.permutation(20_000)),
    "few integers": pa.array(rng.integers(-3, 3, 20_000).astype(np.int8)),
    "large integers": pa.array(rng.integers(0, 2**64 - 1, 20_000, np.uint64)),
    "ascending integers": pa.array(np.arange(20_000) // 3),
    "one value": pa.array(np.zeros(20_000, np.int64)),
    "nothing": pa.array([], pa.float64()),
    "one": pa.array([1.5]),
}


@pytest.mark.variants(8)
@pytest.mark.parametrize("most", [700, 1_000_000])
@pytest.mark.parametrize("threads", ["1", "2", "16"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_rows_are_in_order_of_values_and_ids(monkeypatch, values, threads, most):
    monkeypatch.setenv("LANCE_CPU_THREADS", threads)
    monkeypatch.setattr(btree, "_LEAST_SORTED", 1000)
    monkeypatch.setattr(btree, "_MOST_SORTED", most)
    monkeypatch.setattr(pool, "_pools", {})
    ids = np.arange(len(values), dtype=np.uint64)
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    valid = pc.is_valid(values).to_numpy(zero_copy_only=False)
    order = np.lexsort((ids, ~np.signbit(numbers.astype(float)), numbers, valid))
    ordered, ordered_ids = btree._sort_rows(values, ids)
    assert ordered_ids.tolist() == order.tolist()
    assert ordered.to_pylist() == pytest.approx(values.take(pa.array(order)).to_pylist(), nan_ok=True)
    for opened in pool._pools.values():
        opened.shutdown()
