"""Verbs that change columns, in a new version; the handle moves to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lance_core.schema import schema_to_bytes
from lance_core.verbs.columns.add import add_columns, commit_made, with_null_columns
from lance_core.verbs.columns.alter import alter_columns, drop_columns
from lance_core.verbs.columns.makers import joined
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.files.fragment_writer import ReaderLike

__all__ = ["ColumnVerbs"]


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
        self._manifest = add_columns(self.source, transforms, read_columns, reader_schema, batch_size)

    def lance_schema_with(self, fields: Sequence[pa.Field]) -> bytes:
        """The schema as it will be with further columns, for a `FragmentWriter` whose commit adds them.

        Args:
            fields: The columns. A struct that is there already gets the fields that it lacks.

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
        """Add the columns of other rows, by a left join; rows without a partner get nulls.

        Args:
            data_obj: The rows: a table, reader, frame, dataset or the like.
            left_on: Column of the dataset that is joined on; `_rowid` and `_rowaddr` too.
            right_on: Column of the rows that is joined on; None for the same name.
            schema: Schema of an iterable of batches.

        Raises:
            SchemaError: A column exists already, or the join columns do not exist or differ in type.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.merge(pa.table({"carrier": ["UA", "AA"], "name": ["United", "American"]}), "carrier")
            >>> flights.to_table(columns=["carrier", "name"]).to_pylist()
            [{'carrier': 'UA', 'name': 'United'}, {'carrier': 'AA', 'name': 'American'}]
        """
        self._manifest = commit_made(self.source, joined(data_obj, schema, self._manifest.schema, left_on, right_on))

    def alter_columns(self, *alterations: Mapping[str, Any]) -> None:
        """Rename columns, change their nullability, or cast them.

        Args:
            *alterations: Each with the keys "path", and "name", "nullable" or "data_type". Casts go between integers,
                between floats, between decimals, between dates, times and durations, and between the sizes of strings,
                bytes and lists; they rewrite the column. Times without a zone are interpreted in a new zone.

        Raises:
            SchemaError: A column does not exist, two would have one name, or a cast is not possible.
            InvalidInputError: A column that shall not be null has nulls, or a value does not fit the new type.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.alter_columns({"path": "delay", "name": "minutes"})
            >>> flights.schema.names
            ['carrier', 'minutes']
        """
        self._manifest = alter_columns(self.source, alterations)

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Drop columns, or parts of structs; their data goes when files are compacted and old versions cleaned up.

        Raises:
            SchemaError: A column does not exist.
            InvalidInputError: No column would be left.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.drop_columns(["delay"])
            >>> flights.schema.names
            ['carrier']
        """
        self._manifest = drop_columns(self.source, columns)
