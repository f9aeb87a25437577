"""The context in which a statement runs: its session, its tables, and the DataFrames that answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lance_core import LanceDataset
from lance_core.retry import CONFLICT_RETRIES
from pyspark_lance.catalog.tables import CatalogTable, TableFinder, TableName
from pyspark_lance.changing.job import ChangeOptions
from pyspark_lance.statements.sources import Sources
from pyspark_lance.statements.tokens import Piece
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.write import write_with

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
        """The table, or branch, that a statement changes; a query that reads it reads the same version."""
        self.sources.target, location = self.finder.target(name)
        return self.sources.target, location

    def options(self, location: CatalogTable) -> ChangeOptions:
        """The options of a change of a table.

        Where the statement reads the table, a change cannot be computed again without the statement.
        """
        retries = 0 if self.sources.reads_target else CONFLICT_RETRIES
        return ChangeOptions(storage_options=location.storage_options, conflict_retries=retries)

    def write(self, rows: DataFrame, uri: str, **arguments: Any) -> int:
        """Write the rows of a query, as `pyspark_lance.write` does, and return their number.

        Where the query reads rows of the table, and others are replaced, the commit follows the version that it reads.
        """
        target = self.sources.target
        if target is not None and self.sources.reads_target and arguments["mode"] == "overwrite":
            arguments |= {"read_version": target.version, "identity": target.identity, "max_retries": 0}
        done = write_with(rows, uri, WriteArguments.of(arguments))
        self.sources.reads_target = False  # a conflict of what follows must not run the statement again
        return 0 if done is None else done.rows_written

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
