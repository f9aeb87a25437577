"""A test of a remainder in one pass gives what Arrow's plan of the expression gives."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions import arrow
from lance_core.verbs.expressions.arrow import evaluated, matching
from lance_core.verbs.expressions.sql import parse_expression

TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def column(kind, *, nulls):
    limits = np.iinfo(kind.to_pandas_dtype())
    random = np.random.default_rng(5).integers(limits.min, limits.max, 1000, dtype=limits.dtype, endpoint=True)
    values = np.concatenate([np.array([limits.min, limits.max, 0, 1], limits.dtype), random])
    return pa.array(values, kind, mask=(np.arange(len(values)) % 3 == 1) if nulls else None)


def remainder(kind, test, divisor, value):
    x, n = pc.field("x"), pc.scalar(pa.scalar(divisor, kind))
    part = pc.Expression._call("multiply", [pc.Expression._call("divide", [x, n]), n])
    left = pc.Expression._call("subtract", [x, part])
    return pc.Expression._call(test, [left, pc.scalar(pa.scalar(value, kind))])


def planned(batch, expression):
    return evaluated(batch, {"keep": expression}).column("keep").fill_null(False).to_pylist()


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_it_is_what_the_plan_gives(kind, nulls, monkeypatch):
    batch = pa.record_batch({"x": column(kind, nulls=nulls)})
    signed = pa.types.is_signed_integer(kind)
    cases = [("equal", 10, 3), ("not_equal", 7, 0), ("less", 127, 3), ("greater_equal", 1, 0), ("less_equal", 2, 1)]
    cases += [("equal", -3, -2), ("greater", 10, -2), ("less", -128, -2)] if signed else [("greater", 10, 2)]
    for test, divisor, value in cases:
        expression = remainder(kind, test, divisor, value)
        for part in (batch, batch.slice(5, 100), batch.slice(0, 0)):
            expected = planned(part, expression)
            with monkeypatch.context() as patched:
                if not (nulls and part.column(0).offset):
                    patched.setattr(arrow, "evaluated", None)  # the plan is not made
                assert matching(part, expression).to_pylist() == expected


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_division_by_nothing_and_by_minus_one_is_left_to_arrow(kind):
    batch = pa.record_batch({"x": column(kind, nulls=False)})
    with pytest.raises(InvalidInputError, match="divide by zero"):
        matching(batch, remainder(kind, "equal", 0, 0))
    if pa.types.is_signed_integer(kind):
        expression = remainder(kind, "equal", -1, 0)
        assert matching(batch, expression).to_pylist() == planned(batch, expression)


def test_what_looks_like_it_and_is_not_goes_to_arrow():
    batch = pa.record_batch({"x": pa.array([11, 12, 13]), "y": pa.array([3, 2, 1])})
    x, y, call = pc.field("x"), pc.field("y"), pc.Expression._call
    ten, three = pc.scalar(10), pc.scalar(3)
    others = [
        call("equal", [call("subtract", [y, call("multiply", [call("divide", [x, ten]), ten])]), three]),
        call("equal", [call("subtract", [x, call("multiply", [call("divide", [x, ten]), three])]), three]),
        call("equal", [call("add", [x, call("multiply", [call("divide", [x, ten]), ten])]), three]),
        call("equal", [call("subtract", [x, call("multiply", [call("divide", [x, ten]), ten])]), y]),
        call("equal", [call("subtract", [x, call("multiply", [call("divide", [x, ten]), ten])]), pc.scalar(3.0)]),
    ]
    for expression in others:
        assert matching(batch, expression).to_pylist() == planned(batch, expression)


def test_sql_asks_for_it(monkeypatch):
    schema = pa.schema({"x": pa.int64()})
    monkeypatch.setattr(arrow, "evaluated", None)
    batch = pa.record_batch({"x": pa.array([3, 13, -7, None, 5])})
    assert matching(batch, parse_expression("x % 10 = 3", schema)).to_pylist() == [True, True, False, False, False]
