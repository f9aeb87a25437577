"""Remainders of integers of every type are those of C."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions.arrow import evaluated, matching
from lance_core.verbs.expressions.sql import parse_column

TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def column(kind, *, nulls):
    limits = np.iinfo(kind.to_pandas_dtype())
    random = np.random.default_rng(5).integers(limits.min, limits.max, 1000, dtype=limits.dtype, endpoint=True)
    values = np.concatenate([np.array([limits.min, limits.max, 0, 1], limits.dtype), random])
    return values, pa.array(values, kind, mask=(np.arange(len(values)) % 3 == 1) if nulls else None)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_remainders_are_those_of_c(kind, nulls):
    values, numbers = column(kind, nulls=nulls)
    batch = pa.record_batch({"x": numbers, "y": pa.array(np.roll(values, 1), kind)})
    name = str(kind).replace("uint", "UInt").replace("int", "Int")
    divisors = [10, 7, 127, 1, 2]
    divisors += [-3, -128, -1] if pa.types.is_signed_integer(kind) else []
    for divisor in divisors:
        remainder = parse_column(f"x % arrow_cast({divisor}, '{name}')", batch.schema)
        assert remainder.type == kind
        with np.errstate(all="ignore"):
            expected = pa.array(np.fmod(values, kind.to_pandas_dtype()(divisor)), kind)
        for part in (slice(None), slice(5, 105), slice(0, 0)):
            rows = batch.slice(part.start or 0, None if part.stop is None else part.stop - part.start)
            result = evaluated(rows, {"x": remainder.expression})["x"].to_pylist()
            assert result == [
                None if x is None else y
                for x, y in zip(numbers[part].to_pylist(), expected[part].to_pylist(), strict=True)
            ]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_remainder_of_nothing_is_an_error_where_it_is_needed(kind):
    batch = pa.record_batch({"x": pa.array([5, None], kind), "zero": pa.array([0, 0], kind)})
    with pytest.raises(InvalidInputError, match="Divide by zero"):
        matching(batch, parse_column("x % zero = 0", batch.schema).expression)
    assert (
        matching(batch, parse_column("zero <> 0 AND x % zero = 0", batch.schema).expression).to_pylist() == [False] * 2
    )
    assert matching(batch.slice(1), parse_column("x % zero = 0", batch.schema).expression).to_pylist() == [False]


def test_a_remainder_of_floats_is_not_a_number():
    batch = pa.record_batch({"x": pa.array([5.5, -5.5, None, 1.0])})
    values = evaluated(batch, {"x": parse_column("x % 2", batch.schema).expression})["x"].to_pylist()
    assert values == [1.5, -1.5, None, 1.0]
    assert np.isnan(evaluated(batch, {"x": parse_column("x % 0", batch.schema).expression})["x"][0].as_py())
