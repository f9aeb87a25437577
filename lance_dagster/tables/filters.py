"""`lance_filter`: a pyarrow expression that Dagster accepts as metadata of an input.

Dagster records the metadata of an input with each load, and rejects values that it cannot serialize, such as an
expression. A filter is therefore a string, which the UI shows, with the expression as its attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.compute as pc


class LanceFilter(str):
    """An expression as a string, which also holds the expression itself.

    Attributes:
        expression: The expression.
    """

    __slots__ = ("expression",)

    expression: pc.Expression


def lance_filter(expression: pc.Expression) -> LanceFilter:
    """Make a metadata value from an expression.

    Examples:
        >>> late = lance_dagster.lance_filter(pc.field("delay") > 60)
        >>> @dg.asset(ins={"flights": dg.AssetIn(metadata={"lance/filter": late})})
        ... def late_flights(flights): ...
    """
    marked_filter = LanceFilter(expression)
    marked_filter.expression = expression
    return marked_filter
