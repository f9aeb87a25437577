"""Order the rows of a scan by columns: NaN is greater than every number, nulls come first or last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError

__all__ = ["ColumnOrdering", "order_of", "to_orderings"]


@dataclass(frozen=True)
class ColumnOrdering:
    """How to order by one column.

    Attributes:
        column_name: The column; a dotted path for a field of a struct.
        ascending: Whether the smallest values come first.
        nulls_first: Whether nulls come before all values, in ascending and descending order.
    """

    column_name: str
    ascending: bool = True
    nulls_first: bool = False


def to_orderings(orderings: Sequence[ColumnOrdering | str] | str | None) -> tuple[ColumnOrdering, ...]:
    """The orderings from the argument `order_by`; a name means ascending order with nulls last.

    Raises:
        InvalidInputError: An ordering is neither a name nor a `ColumnOrdering`.
    """
    column_orderings = []
    for ordering in [orderings] if isinstance(orderings, str) else orderings or ():
        if isinstance(ordering, str):
            column_orderings.append(ColumnOrdering(ordering))
        elif all(hasattr(ordering, name) for name in ("column_name", "ascending", "nulls_first")):
            column_orderings.append(ColumnOrdering(ordering.column_name, ordering.ascending, ordering.nulls_first))
        else:
            raise InvalidInputError(
                f"order_by must have names or ColumnOrdering objects, not {type(ordering).__name__}"
            )
    return tuple(column_orderings)


def order_of(
    columns: Sequence[pa.ChunkedArray], orderings: Sequence[ColumnOrdering], first: int | None = None
) -> npt.NDArray[np.int64]:
    """Positions of the rows in order; equal rows keep their order.

    Args:
        columns: A column for each ordering.
        orderings: The orderings, the most significant first.
        first: How many rows the caller needs, from the first; None for all. The result may have more rows.

    Raises:
        UnsupportedError: A column has a type without an order.
    """
    if first is not None and 0 < first < len(columns[0]) // 8:
        chosen = _find_candidates(columns[0], orderings[0], first)
        if chosen is not None:
            rows = pa.array(chosen)
            return chosen[order_of([column.take(rows) for column in columns], orderings)]
    keys: list[pa.ChunkedArray] = []
    directions: list[str] = []
    for column, ordering in zip(columns, orderings, strict=True):
        direction = "ascending" if ordering.ascending else "descending"
        if column.null_count:
            keys.append(pc.cast(pc.is_null(column), pa.int8()))
            directions.append("descending" if ordering.nulls_first else "ascending")
        nan = pc.is_nan(column) if pa.types.is_floating(column.type) else None
        if nan is not None and pc.any(nan).as_py():
            keys.append(pc.cast(nan, pa.int8()))
            directions.append(direction)
            column = pc.if_else(nan, pa.scalar(0, column.type), column)  # noqa: PLW2901 - the key without NaN
        elif pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)  # noqa: PLW2901 - the same values
        keys.append(column)
        directions.append(direction)
    names = [str(position) for position in range(len(keys))]
    options = pc.SortOptions(sort_keys=list(zip(names, directions, strict=True)))
    try:
        order = pc.sort_indices(pa.table(keys, names), options=options)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedError(f"order_by {[ordering.column_name for ordering in orderings]}: {error}") from error
    return np.asarray(order.to_numpy(), dtype=np.int64)


def _find_candidates(column: pa.ChunkedArray, ordering: ColumnOrdering, first: int) -> npt.NDArray[np.int64] | None:
    """Positions that include the first `first` rows and their ties; None if they cannot be found quickly."""
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return None
    values = column.to_numpy()
    if pa.types.is_floating(kind) and np.isnan(values).any():
        return None
    if ordering.ascending:
        return np.flatnonzero(values <= np.partition(values, first - 1)[first - 1])
    return np.flatnonzero(values >= np.partition(values, -first)[-first])
