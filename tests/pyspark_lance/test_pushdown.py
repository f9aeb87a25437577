"""Spark's filters as expressions: the same rows, or none of our business."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import datasource as d  # noqa: TID253 - the parameters of the tests

from pyspark_lance.pushdown import expression

NAN = float("nan")
TABLE = pa.table(
    {
        "i": pa.array([1, 2, None, 4], pa.int32()),
        "f": pa.array([1.0, NAN, None, 4.0], pa.float64()),
        "s": pa.array(["ab", "b%", None, "cab"]),
        "t": pa.array([True, False, None, True]),
        "day": pa.array([1, 2, None, 4], pa.date32()),
        "at": pa.array([1, 2, None, 4], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal(1), Decimal(2), None, Decimal(4)], pa.decimal128(10, 2)),
        "b": pa.array([b"a", b"b", None, b"d"]),
        "u": pa.array([1, 2, None, 4], pa.uint32()),
        "kind": pa.array(["a", "b", None, "d"]).dictionary_encode(),
        "st": pa.array([{"x": 1}, {"x": 2}, None, {"x": 4}]),
        "n": pa.nulls(4),
    }
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (d.EqualTo(("i",), 2), [1]),
        (d.GreaterThan(("i",), 1), [1, 3]),
        (d.GreaterThanOrEqual(("i",), 2), [1, 3]),
        (d.LessThan(("i",), 2), [0]),
        (d.LessThanOrEqual(("i",), 2), [0, 1]),
        (d.In(("i",), (1, 4, 9)), [0, 3]),
        (d.IsNull(("i",)), [2]),
        (d.IsNotNull(("i",)), [0, 1, 3]),
        (d.IsNotNull(("st",)), [0, 1, 3]),
        (d.IsNull(("n",)), [0, 1, 2, 3]),
        # SQL's three values: neither a comparison with null nor its contrary is true.
        (d.Not(d.EqualTo(("i",), 2)), [0, 3]),
        (d.Not(d.In(("i",), (1, 2))), [3]),
        # Not a number is no null, and less than nothing.
        (d.EqualTo(("f",), 4.0), [3]),
        (d.LessThan(("f",), 5.0), [0, 3]),
        (d.Not(d.EqualTo(("f",), 4.0)), [0, 1]),
        (d.IsNotNull(("f",)), [0, 1, 3]),
        (d.StringStartsWith(("s",), "b%"), [1]),
        (d.StringEndsWith(("s",), "ab"), [0, 3]),
        (d.StringContains(("s",), "a"), [0, 3]),
        (d.EqualTo(("t",), True), [0, 3]),
        (d.GreaterThan(("day",), dt.date(1970, 1, 2)), [1, 3]),
        (d.LessThan(("at",), dt.datetime(1970, 1, 1, 0, 0, 0, 4, tzinfo=dt.UTC)), [0, 1]),
        (d.EqualTo(("price",), Decimal("2.00")), [1]),
        (d.EqualTo(("b",), b"d"), [3]),
    ],
    ids=str,
)
def test_filters_that_are_taken(condition, rows):
    numbered = TABLE.append_column("row", pa.array(range(4)))
    kept = pa.dataset.dataset(numbered).to_table(filter=expression(condition, TABLE.schema), columns=["row"])
    assert kept.column("row").to_pylist() == rows


@pytest.mark.parametrize(
    "condition",
    [
        # In Spark, not a number is greater than all others, and equal to itself.
        d.GreaterThan(("f",), 1.0),
        d.GreaterThanOrEqual(("f",), 1.0),
        d.EqualTo(("f",), NAN),
        d.Not(d.GreaterThan(("f",), 1.0)),
        # Nulls among the values make "not in" true for no row.
        d.In(("i",), (1, None)),
        d.EqualNullSafe(("i",), 1),
        d.EqualTo(("i",), None),
        # Spark sees other types here than the files hold.
        d.EqualTo(("u",), 1),
        d.EqualTo(("kind",), "a"),
        d.EqualTo(("st", "x"), 1),
        d.EqualTo(("missing",), 1),
        d.EqualTo(("i",), 2**40),
        d.EqualTo(("n",), 1),
    ],
    ids=str,
)
def test_filters_that_stay_with_spark(condition):
    assert expression(condition, TABLE.schema) is None
