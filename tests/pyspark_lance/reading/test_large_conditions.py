"""Conditions with very many values are pushed as sets, or left to Spark: deep expressions end the process."""

import pyarrow as pa
import pytest

from pyspark_lance.reading.filter_pushdown import push_filter

ROWS = pa.table({"id": [1, None, 3, 50_000], "s": ["a", None, "v7", "q"]})
MANY = ",".join(map(str, range(20_000)))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (f"id IN ({MANY})", [1, 3]),
        (f"NOT (id IN ({MANY}))", [50_000]),
        (f"id NOT IN ({MANY}) OR s IN ('a')", [1, 50_000]),
        ("CAST(id AS BIGINT) IN (CAST(1 AS BIGINT), CAST(3 AS BIGINT))", [1, 3]),  # Spark's own
        ("NOT (id IN (1, 2))", [3, 50_000]),
        ("(id IN (3, 4) AND NOT (s IN ('x')))", [3]),
    ],
)
def test_lists_of_values(condition, expected):
    pushed = push_filter(condition, ROWS.schema)
    assert pushed.is_exact
    assert ROWS.filter(pushed.filter)["id"].to_pylist() == expected


def test_long_chains_are_left_to_spark():
    chain = " OR ".join(f"id = {number}" for number in range(2_000))
    assert push_filter(chain, ROWS.schema) is None
    pushed = push_filter(f"s = 'a' AND ({chain})", ROWS.schema)
    assert not pushed.is_exact
    assert ROWS.filter(pushed.filter)["id"].to_pylist() == [1]
    both = push_filter(" AND ".join(f"id <> {number}" for number in range(2_000, 4_000)), ROWS.schema)
    assert not both.is_exact
    assert ROWS.filter(both.filter)["id"].to_pylist() == [1, 3, 50_000]


def test_a_cast_of_a_column_that_may_change_values_is_left_to_spark():
    for kind in ("INT", "STRING", "DOUBLE"):
        assert push_filter(f"CAST(id AS {kind}) IN (1, 3)", ROWS.schema) is None
