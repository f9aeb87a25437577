"""Predicates for groups of Arrow types."""

from __future__ import annotations

import pyarrow as pa


def is_variable_list(kind: pa.DataType) -> bool:
    """Whether values are lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_any_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of any length or of a fixed size."""
    return is_variable_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def is_date_or_timestamp(kind: pa.DataType) -> bool:
    """Whether values are dates or timestamps."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))
