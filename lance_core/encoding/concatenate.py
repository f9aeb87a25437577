"""Concatenates arrays of one column; dictionaries are unified first, after null values are removed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInputError

__all__ = ["concatenate", "without_null_values"]


def concatenate(arrays: Sequence[Any]) -> pa.Array:
    """Concatenate at least one array; dictionaries are unified first.

    Raises:
        InvalidInputError: The dictionaries have together more values than their indices can count.
    """
    if len(arrays) == 1:
        return arrays[0]
    if pa.types.is_dictionary(arrays[0].type):
        arrays = [without_null_values(array) for array in arrays]
        try:
            return pa.chunked_array(arrays).unify_dictionaries().combine_chunks()
        except pa.ArrowInvalid as error:
            kind = arrays[0].type
            raise InvalidInputError(
                f"the dictionaries of several batches have together more values than {kind.index_type} can count: "
                "cast the column to a dictionary with wider indices, or to its values"
            ) from error
    return pa.concat_arrays(arrays)


def without_null_values(array: Any) -> Any:
    """A dictionary array with null indices where values of the dictionary were null."""
    dictionary = array.dictionary
    if not dictionary.null_count:
        return array
    valid = np.asarray(dictionary.is_valid())
    places = pa.array(np.cumsum(valid) - 1, mask=~valid)
    indices = places.take(array.indices).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, dictionary.drop_null(), ordered=array.type.ordered)
