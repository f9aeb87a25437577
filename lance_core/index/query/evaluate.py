"""Evaluates tests on the values of an index, with the result that a filter has on rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.index.query.conditions import Compare, IsIn, IsNan, IsNull, StartsWith, Test
from lance_core.index.query.rows import Bools


def evaluate_test(test: Test, truth: bool, values: pa.Array) -> Bools | None:
    """For each value, whether a test is true, or false; a null result is neither. None for a test of lists.

    Raises:
        pa.ArrowException: The values cannot be compared with those of the test.
    """
    is_true: Any
    if isinstance(test, Compare):
        is_true = pc.call_function(test.operator, [values, test.value])
    elif isinstance(test, IsIn):
        value_set = test.values if test.values.type == values.type else test.values.cast(values.type)
        is_true = pc.is_in(values, value_set=value_set)
    elif isinstance(test, IsNull):
        is_true = pc.is_null(values)
    elif isinstance(test, IsNan):
        is_true = pc.is_nan(values)
    elif isinstance(test, StartsWith):
        is_true = pc.starts_with(values, pattern=test.prefix)
    else:
        return None
    chosen = pc.fill_null(is_true if truth else pc.invert(is_true), False)
    result: Bools = np.asarray(chosen.to_numpy(zero_copy_only=False), np.bool_)
    return result


def rank_values(values: pa.Array) -> tuple[pa.Array, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The distinct values, nulls first, then ascending, and for each value its position among them.

    NaN is one value; -0.0 and 0.0 are two.
    """
    kind = values.type
    plain = values
    if pa.types.is_floating(kind):
        width = pa.int32() if pa.types.is_float32(kind) else pa.int64()
        same = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), kind), values)
        plain = same.view(width)
    encoded = plain.dictionary_encode("encode")
    distinct = encoded.dictionary.view(kind) if pa.types.is_floating(kind) else encoded.dictionary
    order = pc.array_sort_indices(distinct, null_placement="at_start").to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return distinct.take(pa.array(order)), ranks[encoded.indices.to_numpy()]
