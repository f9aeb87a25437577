"""Makes tables with a column of vectors; the public module `lance.vector` of pylance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInputError, UnsupportedError

__all__ = ["vec_to_table"]


def vec_to_table(
    data: Mapping[Any, Any] | Sequence[Any] | np.ndarray[Any, Any],
    names: str | Sequence[str] | None = None,
    ndim: int | None = None,
    check_ndim: bool = True,
) -> pa.Table:
    """A table with a column of vectors: fixed-size lists of 32 bit floats.

    Args:
        data: Vectors of one length, or a mapping from ids to vectors.
        names: Name of the column, "vector" by default; for a mapping two names, by default "id" and "vector".
        ndim: Length of the vectors; None for the length of the first.
        check_ndim: Whether to check that all vectors have this length.

    Raises:
        InvalidInputError: Vectors differ in length, or the number of names is wrong.
        UnsupportedError: The data is neither a mapping, a list nor an array of vectors.
    """
    if isinstance(data, Mapping):
        vectors, default_names = list(data.values()), ["id", "vector"]
    elif isinstance(data, list | tuple | np.ndarray):
        vectors, default_names = list(data), ["vector"]
    else:
        raise UnsupportedError(f"data must be a mapping, a list or an array of vectors, not {type(data).__name__}")
    columns = default_names if names is None else [names] if isinstance(names, str) else list(names)
    if len(columns) != len(default_names):
        raise InvalidInputError(f"names must be {len(default_names)} name(s) for this data, not {columns}")
    if not vectors:
        raise InvalidInputError("vec_to_table needs at least one vector")
    size = len(vectors[0]) if ndim is None else ndim
    other = [len(vector) for vector in vectors if len(vector) != size] if check_ndim else []
    if other:
        raise InvalidInputError(f"expected vectors of {size} dimensions, found one of {other[0]}")
    values = np.asarray(vectors, np.float32).ravel()
    arrays = [pa.FixedSizeListArray.from_arrays(pa.array(values), size)]
    if isinstance(data, Mapping):
        arrays.insert(0, pa.array(list(data)))
    return pa.Table.from_arrays(arrays, names=columns)
