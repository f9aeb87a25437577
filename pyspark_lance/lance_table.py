"""`LanceTable`: a table with the methods that users of Delta know.

LanceTable.forName(spark, "lake.nyc.t").alias("t").merge(updates.alias("s"), "t.id = s.id")
    .whenMatchedUpdate("s.deleted = false", {"x": "s.x"}).whenMatchedDelete().whenNotMatchedInsertAll().execute()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any

import lance_core
from lance_core import LanceDataset
from lance_core.errors import InvalidInputError
from pyspark_lance.catalog.tables import TableFinder, TableName
from pyspark_lance.changing.clauses import MergeClause, Side
from pyspark_lance.changing.conditional import RowCondition, delete_where, update_where
from pyspark_lance.changing.job import ChangeOptions, ChangeResult
from pyspark_lance.changing.merge_clauses import ClauseMerge
from pyspark_lance.changing.struct_values import Value
from pyspark_lance.changing.task import DELETE, INSERT, UPDATE
from pyspark_lance.engine.sessions import check_client, reject_memory
from pyspark_lance.lazy import DataFrame, SparkSession
from pyspark_lance.reading.read import read
from pyspark_lance.statements.names import parse_name

__all__ = ["LanceMergeBuilder", "LanceTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceTable:
    """A table, or a branch of one; each method works on its latest version.

    Attributes:
        spark: The session that runs its jobs.
        uri: The table.
        storage_options: Credentials and options of the storage.
        name: The alias by which expressions refer to the table; None without one.
    """

    spark: SparkSession
    uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    name: str | None = None

    @classmethod
    def forPath(  # noqa: N802 - Delta's name
        cls, spark: SparkSession, path: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> LanceTable:
        """The table at a path or URI.

        Args:
            spark: The session.
            path: The table.
            storage_options: Credentials and options of the storage, by object_store's names.

        Raises:
            DatasetNotFoundError: The path holds no table.
            InvalidInputError: The path is in memory.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> pyspark_lance.LanceTable.forPath(spark, "t.lance").toDF().count()
            3
        """
        check_client(spark)
        reject_memory(path)
        dataset = lance_core.dataset(fspath(path), storage_options=storage_options)
        return cls(spark=spark, uri=dataset.uri, storage_options=storage_options)

    @classmethod
    def forName(cls, spark: SparkSession, name: str) -> LanceTable:  # noqa: N802 - Delta's name
        """The table of a name that `pyspark_lance.sql` accepts; with `@dev` after the name, its branch `dev`.

        Args:
            spark: The session.
            name: The name, which begins with a catalog of `register_catalog`.

        Raises:
            DatasetNotFoundError: There is no table of the name.
            InvalidInputError: The name stands for a tag or a version, or its catalog is not registered.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "lake/nyc/t.lance")
            >>> pyspark_lance.register_catalog(spark, "lake", "lake")
            >>> pyspark_lance.LanceTable.forName(spark, "lake.nyc.t").toDF().count()
            3
        """
        finder = TableFinder(spark)
        parsed: TableName = parse_name(name, finder)
        dataset, location = finder.target(parsed)
        return cls(spark=spark, uri=dataset.uri, storage_options=location.storage_options)

    def alias(self, aliasName: str) -> LanceTable:  # noqa: N803 - Delta's name
        """This table under a name by which expressions refer to its columns.

        Args:
            aliasName: The name.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t").delete("t.id = 2").rows_deleted
            1
        """
        return replace(self, name=aliasName)

    def toDF(self) -> DataFrame:  # noqa: N802 - Delta's name
        """The latest version as a DataFrame.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> pyspark_lance.LanceTable.forPath(spark, "t.lance").toDF().columns
            ['id']
        """
        frame = read(self.spark, self.uri, storage_options=self.storage_options)
        return frame if self.name is None else frame.alias(self.name)

    def _open(self) -> LanceDataset:
        return lance_core.dataset(self.uri, storage_options=self.storage_options)

    def _where(self, condition: Value | None) -> RowCondition:
        return RowCondition(session=self.spark, condition=condition, alias=self.name)

    def delete(
        self,
        condition: Value | None = None,
        *,
        transaction_properties: Mapping[str, str] | None = None,
        commit_message: str | None = None,
    ) -> ChangeResult:
        """Delete the rows that meet a condition, in one commit.

        Args:
            condition: Spark SQL, or a Spark `Column`; None for all rows.
            transaction_properties: Strings by key that the commit records.
            commit_message: A message that the commit records.

        Raises:
            InvalidInputError: The condition does not fit the table.
            RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> pyspark_lance.LanceTable.forPath(spark, "t.lance").delete("id % 2 = 1").rows_deleted
            2
        """
        options = ChangeOptions.of({**locals(), "storage_options": self.storage_options})
        return delete_where(self._open(), self._where(condition), options)

    def update(
        self,
        condition: Value | None = None,
        set: Mapping[str, Value] | None = None,  # noqa: A002 - Delta's name
        *,
        transaction_properties: Mapping[str, str] | None = None,
        commit_message: str | None = None,
    ) -> ChangeResult:
        """Set columns of the rows that meet a condition, in one commit.

        Args:
            condition: Spark SQL, or a Spark `Column`; None for all rows.
            set: Values by column name, each Spark SQL or a Spark `Column`.
            transaction_properties: Strings by key that the commit records.
            commit_message: A message that the commit records.

        Raises:
            SchemaError: The table lacks a column, or a value has another type; the message names the column.
            InvalidInputError: The condition does not fit the table, or there are no values.
            RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> pyspark_lance.LanceTable.forPath(spark, "t.lance").update("id = 3", {"id": "id + 10"}).rows_updated
            1
        """
        if not set:
            raise InvalidInputError("update: set gives no column a value")
        options = ChangeOptions.of({**locals(), "storage_options": self.storage_options})
        return update_where(self._open(), set, self._where(condition), options)

    def merge(self, source: DataFrame, condition: Value) -> LanceMergeBuilder:
        """Begin a merge of a DataFrame into the table.

        Args:
            source: The rows; an alias qualifies their columns (`updates.alias("s")`).
            condition: Spark SQL, or a Spark `Column`, that pairs rows. It contains at least one equality (`=` or `<=>`)
                of an expression over the table and an expression over the source.

        Returns:
            A builder, whose clauses are added in order and which `execute` runs.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3], "x": [0, 0, 0]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> changes = spark.createDataFrame([(3, 5), (4, 6)], "id long, x long").alias("s")
            >>> merge = target.merge(changes, "t.id = s.id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
            >>> done = merge.execute()
            >>> done.rows_updated, done.rows_inserted
            (1, 1)
        """
        if not isinstance(condition, str) and not hasattr(condition, "eqNullSafe"):
            raise InvalidInputError(
                f"merge: the condition must be Spark SQL, such as 't.id = s.id', or a Column, not a"
                f" {type(condition).__name__}"
            )
        return LanceMergeBuilder(table=self, source=source, condition=condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceMergeBuilder:
    """A builder of a merge, which `LanceTable.merge` returns; each method that adds a clause returns a new builder.

    Of the clauses for the same rows, the first whose condition is true is applied. Several rows of the source that
    change the same row of the table are an error, unless the only matched clause is a delete without a condition.

    Attributes:
        table: The table.
        source: The rows that are merged.
        condition: The condition that pairs rows.
        clauses: The clauses so far.
    """

    table: LanceTable
    source: DataFrame = field(repr=False)
    condition: Value
    clauses: tuple[MergeClause, ...] = ()

    def _with(self, side: Side, action: int, condition: Value | None, values: Any = None) -> LanceMergeBuilder:
        if values is not None and not isinstance(values, Mapping):
            raise InvalidInputError(f"merge: the values of a clause must be a dict by column name, not {values!r}")
        if values is not None and not values:
            raise InvalidInputError(f"merge: a clause for rows {side} gives no column a value")
        clause_values = None if values is None else dict(values)
        clause = MergeClause(side=side, action=action, condition=condition, values=clause_values)
        return replace(self, clauses=(*self.clauses, clause))

    def whenMatchedUpdate(  # noqa: N802 - Delta's name
        self,
        condition: Value | None = None,
        set: Mapping[str, Value] | None = None,  # noqa: A002 - Delta's name
    ) -> LanceMergeBuilder:
        """Set columns of the table's rows that have a partner.

        Args:
            condition: A further condition, over both sides.
            set: Values by column name; other columns keep their values.

        Raises:
            InvalidInputError: There are no values.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2], "x": [0, 0]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> merge = target.merge(spark.range(3).alias("s"), "t.id = s.id")
            >>> merge.whenMatchedUpdate("t.id > 1", {"x": "t.x + s.id"}).execute().rows_updated
            1
        """
        return self._with("matched", UPDATE, condition, set or {})

    def whenMatchedUpdateAll(self, condition: Value | None = None) -> LanceMergeBuilder:  # noqa: N802 - Delta's name
        """Set all columns of the table's rows that have a partner to the source's columns of the same names.

        Args:
            condition: A further condition, over both sides.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> merge = target.merge(spark.range(3).alias("s"), "t.id = s.id")
            >>> merge.whenMatchedUpdateAll().execute().rows_updated
            2
        """
        return self._with("matched", UPDATE, condition)

    def whenMatchedDelete(self, condition: Value | None = None) -> LanceMergeBuilder:  # noqa: N802 - Delta's name
        """Delete rows of the table that have a partner.

        Args:
            condition: A further condition, over both sides.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> target.merge(spark.range(2).alias("s"), "t.id = s.id").whenMatchedDelete().execute().rows_deleted
            1
        """
        return self._with("matched", DELETE, condition)

    def whenNotMatchedInsert(  # noqa: N802 - Delta's name
        self, condition: Value | None = None, values: Mapping[str, Value] | None = None
    ) -> LanceMergeBuilder:
        """Insert rows of the source that have no partner.

        Args:
            condition: A further condition, over the source.
            values: Values by the table's column names; other columns are null.

        Raises:
            InvalidInputError: There are no values.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2], "x": [0, 0]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> merge = target.merge(spark.range(5).alias("s"), "t.id = s.id")
            >>> merge.whenNotMatchedInsert("s.id > 3", {"id": "s.id", "x": "7"}).execute().rows_inserted
            1
        """
        return self._with("not matched", INSERT, condition, values or {})

    def whenNotMatchedInsertAll(self, condition: Value | None = None) -> LanceMergeBuilder:  # noqa: N802 - Delta's name
        """Insert rows of the source that have no partner, with the values of the columns of the same names.

        Args:
            condition: A further condition, over the source.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> merge = target.merge(spark.range(5).alias("s"), "t.id = s.id")
            >>> merge.whenNotMatchedInsertAll().execute().rows_inserted
            3
        """
        return self._with("not matched", INSERT, condition)

    def whenNotMatchedBySourceUpdate(  # noqa: N802 - Delta's name
        self,
        condition: Value | None = None,
        set: Mapping[str, Value] | None = None,  # noqa: A002 - Delta's name
    ) -> LanceMergeBuilder:
        """Set columns of the table's rows that have no partner.

        Args:
            condition: A further condition, over the table.
            set: Values by column name; other columns keep their values.

        Raises:
            InvalidInputError: There are no values.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2], "x": [0, 0]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> merge = target.merge(spark.range(2).alias("s"), "t.id = s.id")
            >>> merge.whenNotMatchedBySourceUpdate(set={"x": "-1"}).execute().rows_updated
            1
        """
        return self._with("not matched by source", UPDATE, condition, set or {})

    def whenNotMatchedBySourceDelete(self, condition: Value | None = None) -> LanceMergeBuilder:  # noqa: N802 - Delta's name
        """Delete rows of the table that have no partner.

        Args:
            condition: A further condition, over the table.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> merge = target.merge(spark.range(2).alias("s"), "t.id = s.id")
            >>> merge.whenNotMatchedBySourceDelete().execute().rows_deleted
            1
        """
        return self._with("not matched by source", DELETE, condition)

    def execute(
        self,
        *,
        transaction_properties: Mapping[str, str] | None = None,
        commit_message: str | None = None,
        idempotency_key: tuple[str, str] | None = None,
        max_rows_per_file: int | None = None,
        max_bytes_per_file: int | None = None,
        conflict_retries: int = 10,
    ) -> ChangeResult:
        """Run the merge, in one commit.

        Args:
            transaction_properties: Strings by key that the commit records.
            commit_message: A message that the commit records.
            idempotency_key: Key and value of a transaction property. If a version has this property, nothing is
                changed; otherwise the new version gets it. The table keeps the key in its own state.
            max_rows_per_file: Rows after which a task begins another file.
            max_bytes_per_file: Bytes after which a task begins another file.
            conflict_retries: How often the merge is computed again after concurrent changes of the same rows.

        Returns:
            The numbers of inserted, updated and deleted rows, and the version.

        Raises:
            SchemaError: A value does not fit its column, or a column is missing; the message names the column.
            InvalidInputError: A condition or a clause cannot be used, or several rows of the source change one row.
            RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2]}, "t.lance")
            >>> target = pyspark_lance.LanceTable.forPath(spark, "t.lance").alias("t")
            >>> merge = target.merge(spark.range(5).alias("s"), "t.id = s.id").whenNotMatchedInsertAll()
            >>> merge.execute(commit_message="new ids").version
            2
        """
        options = ChangeOptions.of({**locals(), "storage_options": self.table.storage_options})
        merge = ClauseMerge(source=self.source, condition=self.condition, clauses=self.clauses, alias=self.table.name)
        return merge.run(self.table._open(), options)  # noqa: SLF001 - a class of this module
