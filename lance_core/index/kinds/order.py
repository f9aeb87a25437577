"""Checks that the values of a BTREE are in order: nulls first, then ascending, NaN last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import CorruptFileError
from lance_core.index.query.rows import Ints


def check_bounds(lows: pa.Array, highs: pa.Array, nulls: Ints, lengths: Ints) -> None:
    """Make sure that the pages of a BTREE are in order, by the bounds of each page.

    Args:
        lows: The first value of each page.
        highs: The last value of each page.
        nulls: Nulls of each page.
        lengths: Rows of each page.

    Raises:
        CorruptFileError: The bounds of two pages are out of order.
    """
    is_low = np.asarray(pc.is_null(lows)) == (nulls > 0)
    is_high = np.asarray(pc.is_null(highs)) == ((nulls == lengths) & (lengths > 0))
    if not bool(is_low.all() and is_high.all()) or not _is_ascending(_interleave(lows, highs)):
        raise CorruptFileError("the pages of a BTREE are not in the order of their bounds")


def check_page_rows(values: pa.Array, lows: pa.Array, highs: pa.Array, page_rows: int) -> None:
    """Make sure that the rows of some pages are in order, and within the bounds of their pages.

    Args:
        values: The values, page after page; all pages but the last have `page_rows`.
        lows: The first value of each page.
        highs: The last value of each page.
        page_rows: Rows of a page.

    Raises:
        CorruptFileError: A value is out of order, or outside the bounds of its page.
    """
    starts = np.arange(0, len(values), page_rows)
    stops = np.minimum(starts + page_rows, len(values))
    ends = _interleave(values.take(pa.array(starts)), values.take(pa.array(stops - 1)))
    if not _is_ascending(values) or not _replace_nan(ends).equals(_replace_nan(_interleave(lows, highs))):
        raise CorruptFileError("the rows of a BTREE are not in order, or not within the bounds of their page")


def _interleave(lows: pa.Array, highs: pa.Array) -> pa.Array:
    """The bounds of all pages in one array: low and high of the first page, then of the second page, and so on."""
    places = np.arange(2 * len(lows)).reshape(2, -1).T.ravel()
    return pa.concat_arrays([lows, highs]).take(pa.array(places))


def _replace_nan(values: pa.Array) -> pa.Array:
    """The values with infinity instead of NaN, which equals no value."""
    if not pa.types.is_floating(values.type) or pa.types.is_float16(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(float("inf"), values.type), values)


def _is_ascending(values: pa.Array) -> bool:
    """Whether nulls come first, and no value is less than the one before it."""
    kind = values.type
    if pa.types.is_float16(kind):
        return True  # Arrow cannot compare these values
    rest = _replace_nan(values.slice(values.null_count))
    if rest.null_count:
        return False
    if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        numbers: Any = rest.to_numpy()
        return bool((numbers[1:] >= numbers[:-1]).all())
    return bool(pc.all(pc.less_equal(rest.slice(0, max(len(rest) - 1, 0)), rest.slice(1)), min_count=0).as_py())
