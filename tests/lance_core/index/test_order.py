"""Values of a BTREE stand in order, nulls first and NaN last, and within the bounds of their pages."""

import math

import numpy as np
import pyarrow as pa
import pytest

from lance_core.errors import CorruptFileError
from lance_core.index.kinds.btree import check_bounds, check_page_rows

ORDERED = {
    "integers": pa.array([None, -5, 0, 0, 7, 9]),
    "floats": pa.array([None, -math.inf, -0.0, 0.0, 1.5, math.nan]),
    "strings": pa.array([None, "", "a", "ab", "b", "c"]),
}


def checked(values: pa.Array, bounds_of: pa.Array) -> None:
    """Check pages of two rows against the bounds of others."""
    check_page_rows(values, bounds_of[::2], bounds_of[1::2], 2)


@pytest.mark.parametrize("kind", ORDERED)
def test_rows_in_order_are_taken(kind: str) -> None:
    checked(ORDERED[kind], ORDERED[kind])


@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("order", [[0, 1, 4, 3, 2, 5], [0, 1, 2, 5, 4, 3], [1, 0, 2, 3, 4, 5]])
def test_rows_out_of_order_are_rejected(kind: str, order: list[int]) -> None:
    values = ORDERED[kind].take(order)
    with pytest.raises(CorruptFileError, match="rows of a BTREE are not in order"):
        checked(values, values)


def test_rows_of_another_page_are_rejected() -> None:
    with pytest.raises(CorruptFileError, match="not within the bounds of their page"):
        checked(pa.array([1, 2, 3, 4]), pa.array([1, 2, 4, 5]))


@pytest.mark.parametrize("kind", ORDERED)
def test_bounds(kind: str) -> None:
    lows, highs = ORDERED[kind][::2], ORDERED[kind][1::2]
    nulls, lengths = np.array([1, 0, 0]), np.array([2, 2, 2])
    check_bounds(lows, highs, nulls, lengths)
    for wrong in ((highs, lows, nulls, lengths), (lows, highs, nulls * 0, lengths), (lows, highs, nulls * 2, lengths)):
        with pytest.raises(CorruptFileError, match="pages of a BTREE are not in the order"):
            check_bounds(*wrong)
