"""Names of columns as Spark takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lance_core.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_spellings", "quoted"]


def quoted(name: str) -> str:
    """A name as Spark takes it for that of a column, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def check_spellings(frame: DataFrame, names: Iterable[str]) -> None:
    """Make sure that Spark finds columns by their names, which takes a setting where some differ only in case.

    Raises:
        SchemaError: Two do, and the session does not tell them apart.
    """
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name.lower(), name)
        if twin != name and str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true":
            raise SchemaError(
                f"columns {twin!r} and {name!r} differ only in case: Spark knows one from the other by name with"
                " spark.sql.caseSensitive=true"
            )
