"""The context in which a statement runs: its session, its tables, and the DataFrames that answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lance_core import LanceDataset
from pyspark_lance.catalog.tables import CatalogTable, TableFinder, TableName
from pyspark_lance.changing.job import ChangeOptions
from pyspark_lance.statements.sources import Sources
from pyspark_lance.statements.tokens import Piece

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of one statement that runs.

    Attributes:
        spark: The session.
        sources: The tables that the statement reads.
    """

    spark: SparkSession
    sources: Sources

    @property
    def finder(self) -> TableFinder:
        """Finds tables by name."""
        return self.sources.finder

    def target(self, name: TableName) -> tuple[LanceDataset, CatalogTable]:
        """The table, or branch, that a statement changes."""
        return self.finder.target(name)

    def options(self, location: CatalogTable) -> ChangeOptions:
        """The options of a change of a table."""
        return ChangeOptions(storage_options=location.storage_options)

    def expression(self, piece: Piece | None, target: TableName, alias: str) -> str | None:
        """A piece as a Spark expression; None without a piece."""
        return None if piece is None else self.sources.register_views_and_build_expression(piece, target, alias)

    def answer(self, schema: str, rows: Iterable[tuple[Any, ...]] = ()) -> DataFrame:
        """A frame with the rows of the answer to a statement."""
        return self.spark.createDataFrame(list(rows), schema)

    def nothing(self) -> DataFrame:
        """The answer to a statement without a result: a frame without columns, as Spark returns it."""
        from pyspark.sql.types import StructType

        return self.spark.createDataFrame([], StructType([]))

    def counts(self, **counts: int) -> DataFrame:
        """A frame with one row: numbers of rows, each in a column of its name."""
        return self.answer(", ".join(f"{name} long" for name in counts), [tuple(counts.values())])


Statement: TypeAlias = "Callable[[Context], DataFrame]"
"""A statement that was read as a whole: the function that runs it, with its table and its other parts."""
