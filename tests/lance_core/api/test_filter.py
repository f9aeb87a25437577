"""Filters name their columns, and nulls do not match."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core.api.filter import check_filter, columns_of, matching
from lance_core.errors import InvalidInputError, UnsupportedError


def test_columns_of_an_expression():
    expression = (
        (pc.field("a") > 5)
        & (pc.field("s", "x", "y") == pc.field("b"))
        & pc.is_null(pc.field("z.q"))
        & (pc.field("a") < 9)
    )
    assert columns_of(expression) == ["a", "s", "b", "z.q"]
    assert columns_of(pc.scalar(True)) == []


def test_rows_match_where_the_expression_is_true():
    batch = pa.record_batch({"a": [1, None, 3], "s": [{"x": 1}, {"x": 2}, None]})
    assert matching(batch, pc.field("a") > 1).to_pylist() == [False, False, True]
    assert matching(batch, pc.field("s", "x") == 2).to_pylist() == [False, True, False]
    for wrong in (pc.field("nope") == 1, pc.field("a") + 1, pc.field("a") == "x"):
        with pytest.raises(InvalidInputError, match="filter"):
            matching(batch, wrong)


def test_only_expressions_are_offered():
    with pytest.raises(UnsupportedError, match="SQL"):
        check_filter("a > 1")
    with pytest.raises(InvalidInputError, match="int"):
        check_filter(3)
    assert check_filter(None) is None
