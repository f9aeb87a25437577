"""Methods of `LanceDataset` that add, change and drop columns, each in a new version; the handle moves to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.commit.attempts import WriteAttempt
from lance_core.commit.records import Commit
from lance_core.schema import schema_to_bytes
from lance_core.verbs.columns.add import add_columns, commit_made, with_null_columns
from lance_core.verbs.columns.alter import alter_columns, drop_columns
from lance_core.verbs.columns.makers import joined
from lance_core.verbs.columns.write_columns.commit import ColumnsResult, commit_columns, write_matched_columns
from lance_core.verbs.columns.write_columns.tasks import ColumnPlan, Missing, WrittenColumns, plan_columns
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.files.fragment_writer import ReaderLike


class ColumnVerbs(Handle):
    """Methods that change columns. The handle moves to the new version.

    A concurrent change of rows can raise a RetryableConflictError: call the method again after `checkout_latest`.
    """

    def add_columns(
        self,
        transforms: Any,
        read_columns: Sequence[str] | None = None,
        reader_schema: pa.Schema | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Add columns.

        Args:
            transforms: New columns as SQL strings or pyarrow expressions by name; a function or `BatchUDF` from a batch
                of rows to a batch of new columns; a table, reader or the like with one row per row of the dataset; or
                Arrow fields or a schema, for columns of nulls, which need no file.
            read_columns: Columns that the function reads, `_rowid` and `_rowaddr` among them; None for all.
            reader_schema: Schema of an iterable of batches.
            batch_size: Most rows of a batch that the function gets.

        Raises:
            SchemaError: A column exists, or the values do not fit.
            InvalidInputError: There are more or fewer values than rows.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.add_columns({"hours": "delay / 60.0"})
            >>> flights.schema.names
            ['carrier', 'delay', 'hours']
        """
        self._manifest = add_columns(self.snapshot, transforms, read_columns, reader_schema, batch_size)

    def lance_schema_with(self, fields: Sequence[pa.Field]) -> bytes:
        """The schema with further columns, for a `FragmentWriter` whose commit adds them.

        Args:
            fields: The columns. An existing struct gets the fields that it lacks, and an existing column of the type
                null gets the new type.

        Raises:
            SchemaError: A column exists, does not allow nulls, or cannot be stored.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> len(table.lance_schema_with([pa.field("day", pa.date32())])) > 0
            True
        """
        return schema_to_bytes(with_null_columns(self._manifest, fields))

    def merge(
        self, data_obj: ReaderLike, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> None:
        """Add the columns of other rows, by a left join; rows without a match get nulls, and null matches null.

        Args:
            data_obj: The rows: a table, reader, frame, dataset or the like.
            left_on: Column of the dataset that is joined on; `_rowid` and `_rowaddr` too.
            right_on: Column of the rows that is joined on; None for the same name.
            schema: Schema of an iterable of batches.

        Raises:
            SchemaError: A column exists already, or the join columns do not exist or differ in type.
            InvalidInputError: The rows have a key several times.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.merge(pa.table({"carrier": ["UA", "AA"], "name": ["United", "American"]}), "carrier")
            >>> flights.to_table(columns=["carrier", "name"]).to_pylist()
            [{'carrier': 'UA', 'name': 'United'}, {'carrier': 'AA', 'name': 'American'}]
        """
        self._manifest = commit_made(self.snapshot, joined(data_obj, schema, self._manifest.schema, left_on, right_on))

    def write_columns(
        self,
        data: ReaderLike,
        on: str | Sequence[str],
        *,
        where: str | pc.Expression | None = None,
        missing: Missing = "null",
        schema: pa.Schema | None = None,
        allow_external_blob_outside_bases: bool = False,
        transaction_properties: Mapping[str, str] | None = None,
        commit_message: str | None = None,
        idempotency_key: tuple[str, str] | None = None,
        write_attempt: WriteAttempt | None = None,
        max_retries: int = 20,
    ) -> ColumnsResult:
        """Set columns of existing rows, in one commit. Not in pylance.

        Only files of these columns are written, one for each fragment with rows that are set; other rows of such a
        fragment keep their values. Columns that the table lacks are added, and are nullable. Commits of other writers
        are taken into account: rows that moved are found again, rows that were deleted are left out, and rows that were
        appended stay as they are. The data is held in memory; for more data, `plan_columns` splits the work.

        Args:
            data: The rows: the key, and the columns to set.
            on: The key: a column or several, `_rowid`, or `_rowaddr` as this version has it. A null is not a key.
            where: The scope: rows for which this is true, as SQL or an expression; None for all rows.
            missing: How to treat rows of the scope that the data lacks: "null" sets their columns to null, "keep"
                leaves them, "error" rejects the write.
            schema: Schema of an iterable of batches.
            allow_external_blob_outside_bases: Whether URIs of blobs may lie outside of the base paths that are not
                datasets.
            transaction_properties: Strings for the history, by key.
            commit_message: A string for the history.
            idempotency_key: A transaction property (key, value) that at most one commit may carry; if one does, it is
                adopted and nothing is committed.
            write_attempt: The write and the number of the attempt, if the write may be attempted several times: the
                columns of the last attempt stay.
            max_retries: Attempts of each commit, at least one; then the columns are fitted to the latest version.

        Returns:
            The version and counters of the write. Without a row to set or a column to add there is no new version.

        Raises:
            InvalidInputError: A key of the data is null, comes twice, names no row of the scope, or several; or the
                data lacks a row of the scope, and `missing` is "error"; or a blob is given by a URI that is not
                allowed. Nothing is committed.
            SchemaError: A column has another type than in the table, or the key is missing.
            RetryableConflictError: Rows moved and have no stable ids to be followed by; read and write again.
            IncompatibleConflictError: The rows were overwritten, or a column was dropped, since this version.
            SupersededError: A later attempt of the same write has committed.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3], "text": ["a", "b", "c"]}, "t.lance")
            >>> table.write_columns({"id": [3, 1], "length": [30, 10]}, on="id").rows_updated
            2
            >>> table.to_table()["length"].to_pylist()
            [10, None, 30]
        """
        how = Commit.of(locals()).as_attempt(self, "columns")
        self._manifest, result = write_matched_columns(
            self.snapshot,
            data,
            on,
            where=where,
            missing=missing,
            how=how,
            schema=schema,
            allow_external=allow_external_blob_outside_bases,
        )
        return result

    def plan_columns(
        self,
        schema: pa.Schema,
        *,
        where: str | pc.Expression | None = None,
        missing: Missing = "null",
        allow_external_blob_outside_bases: bool = False,
    ) -> ColumnPlan:
        """Plan to set columns of this version's rows, with one task per fragment that can run anywhere. Not in pylance.

        Args:
            schema: The columns to set, without a key.
            where: The scope: rows for which this is true, as SQL or an expression; None for all rows.
            missing: How to treat rows of the scope without a value: "null", "keep" or "error", as in `write_columns`.
            allow_external_blob_outside_bases: Whether URIs of blobs may lie outside of the dataset's base paths.

        Raises:
            SchemaError: A column has another type than in the table, or cannot be stored.
            InvalidInputError: There is no column, or `missing` is not known.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> plan = table.plan_columns(pa.schema([("n", pa.int64())]), where="id > 1")
            >>> [(task.fragment_id, task.num_rows) for task in plan.tasks], plan.added
            ([(0, 2)], ('n',))
        """
        return plan_columns(self.snapshot, schema, where, missing, allow_external=allow_external_blob_outside_bases)

    def commit_columns(
        self, plan: ColumnPlan, written: Sequence[WrittenColumns | None], commit: Commit | None = None
    ) -> ColumnsResult:
        """Commit the columns that the tasks of a plan have written, as one version. Not in pylance.

        If `missing` is "null" or "error", tasks without values must be run as well: they set nulls, or fail.

        Args:
            plan: The plan, of any version.
            written: The results of its tasks.
            commit: How it is committed. After `max_retries` attempts the columns are fitted to the latest version.

        Raises:
            InvalidInputError: Two files are for one fragment, or one is for a fragment that is not in the plan.
            VersionNotFoundError: The plan's version was cleaned up.
            RetryableConflictError: Rows moved and have no stable ids to be followed by: plan again. The files stay.
            IncompatibleConflictError: The rows were overwritten, or a column was dropped, since then. The files stay.
            SupersededError: A later attempt of the same write has committed.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> plan = table.plan_columns(pa.schema([("n", pa.int64())]))
            >>> values = pa.table({"_rowaddr": pa.array([1], pa.uint64()), "n": [20]})
            >>> table.commit_columns(plan, [task.write(table, values) for task in plan.tasks]).version
            2
        """
        how = (commit or Commit()).as_attempt(self, "columns")
        same = plan.version == self.version
        snapshot = self.snapshot if same else self.checkout_version(plan.version).snapshot
        self._manifest, result = commit_columns(snapshot, plan, written, how)
        return result

    def alter_columns(self, *alterations: Mapping[str, Any]) -> None:
        """Rename columns, change their nullability, or cast them.

        Args:
            *alterations: Each with the keys "path", and "name", "nullable" or "data_type". Casts go between integers,
                between floats, between decimals, between dates, times and durations, and between the sizes of strings,
                bytes and lists; they rewrite the column. Times without a zone are interpreted in a new zone.

        Raises:
            SchemaError: A column does not exist, two would have one name, or a cast is not possible.
            InvalidInputError: A column that is to be non-nullable has nulls, or a value does not fit the new type.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.alter_columns({"path": "delay", "name": "minutes"})
            >>> flights.schema.names
            ['carrier', 'minutes']
        """
        self._manifest = alter_columns(self.snapshot, alterations)

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Drop columns, or fields of structs; compaction and then cleanup of old versions delete their data.

        Raises:
            SchemaError: A column does not exist.
            InvalidInputError: No column would be left.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.drop_columns(["delay"])
            >>> flights.schema.names
            ['carrier']
        """
        self._manifest = drop_columns(self.snapshot, columns)
