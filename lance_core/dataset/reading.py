"""Methods of `LanceDataset` that read rows: scans, tables, batches, takes, samples, blobs and SQL."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.dataset.fragment import LanceFragment
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.scan.nearest import NearestQuery, NearestScanner, split_distance
from lance_core.verbs.scan.options import Columns, Filter, ScanArguments, check_num_rows, scan_options
from lance_core.verbs.scan.projection import AS_STORED, scanned_columns
from lance_core.verbs.scan.read_fragment import with_all_row_counts
from lance_core.verbs.scan.row_ids import take_ids
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.scan.take import take_rows
from lance_core.verbs.scan.take_blobs import BlobFile, blob_ranges_at, blobs_at

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from lance_core.dataset.sql import SqlQueryBuilder


class ReadingVerbs(Handle):
    """Methods that read rows."""

    def scanner(
        self,
        columns: Columns = None,
        filter: Filter = None,  # noqa: A002 - pylance's name
        limit: int | None = None,
        offset: int | None = None,
        *,
        fragments: Iterable[LanceFragment] | None = None,
        **options: Unpack[ScanArguments],
    ) -> LanceScanner:
        """Prepare a scan.

        Args:
            columns: Columns to read, in order; a dotted path gives a field of a struct as a column of that name, and
                `_rowid`, `_rowaddr`, `_rowoffset`, `_row_created_at_version` and `_row_last_updated_at_version`
                describe rows. Or a mapping from names to SQL or `pyarrow.compute` expressions. None reads all.
            filter: Keep the rows for which this is true: SQL, or a `pyarrow.compute` expression.
            limit: Most rows to return.
            offset: Rows to leave out first.
            fragments: Read only these, in this order.
            **options: See `ScanArguments`.

        Raises:
            InvalidInputError: An argument is invalid; for SQL the message has the position.
            SchemaError: A column does not exist.
            UnsupportedError: An argument is not offered, or the SQL uses something that is not known.

        Examples:
            >>> lance.write_dataset({"delay": [11, 4]}, "flights.lance").scanner(filter="delay > 5").count_rows()
            1
        """
        chosen = self._manifest.fragments if fragments is None else [fragment.record for fragment in fragments]
        named = {"columns": columns, "filter": filter, "limit": limit, "offset": offset, **options}
        settings = {**self._scan_defaults, **{name: value for name, value in named.items() if value is not None}}
        if settings.get("nearest") is not None:
            return self._search(chosen, settings)
        plan = scan_options(self._manifest, settings.pop("columns", None), settings.pop("filter", None), **settings)
        return LanceScanner(self.snapshot, chosen, plan)

    def _search(self, fragments: Sequence[Fragment], arguments: dict[str, Any]) -> LanceScanner:
        schema = self._manifest.schema
        query = NearestQuery.of(arguments.pop("nearest"), schema)
        columns, place = split_distance(arguments.pop("columns", None))
        with_distance = not arguments.pop("disable_scoring_autoprojection", False)
        prefilter = bool(arguments.pop("prefilter", False))
        return NearestScanner(
            self.snapshot,
            fragments,
            scan_options(self._manifest, columns, arguments.pop("filter", None), **arguments),
            query,
            prefilter=prefilter,
            with_distance=with_distance or columns is None or place is not None,
            place=place,
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema; with `default_scan_options` the schema that a scan returns."""
        return self.scanner().projected_schema if self._scan_defaults else super().schema

    def to_table(
        self,
        columns: Columns = None,
        filter: Filter = None,  # noqa: A002 - pylance's name
        limit: int | None = None,
        offset: int | None = None,
        **options: Any,
    ) -> pa.Table:
        """All rows as one table, with the arguments of `scanner`.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.to_table(columns=["carrier"], filter="delay > 5").to_pylist()
            [{'carrier': 'UA'}]
        """
        return self.scanner(columns, filter, limit, offset, **options).to_table()

    def to_batches(
        self,
        columns: Columns = None,
        filter: Filter = None,  # noqa: A002 - pylance's name
        limit: int | None = None,
        offset: int | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, with bounded memory, with the arguments of `scanner`.

        Examples:
            >>> [batch.num_rows for batch in lance.write_dataset({"id": [1, 2, 3]}, "t.lance").to_batches(batch_size=2)]
            [2, 1]
        """
        return self.scanner(columns, filter, limit, offset, **options).to_batches()

    def to_reader(self, columns: Columns = None, **options: Any) -> pa.RecordBatchReader:
        """The rows as an Arrow reader, with the arguments of `scanner`.

        Examples:
            >>> lance.write_dataset({"id": [1, 2, 3]}, "t.lance").to_reader().read_all().num_rows
            3
        """
        return self.scanner(columns, **options).to_reader()

    def to_pandas(self, columns: Columns = None, *, blob_mode: str = "lazy", **options: Any) -> Any:
        """All rows as a pandas frame, with the arguments of `scanner` and the `blob_mode` of `LanceScanner.to_pandas`.

        Examples:
            >>> float(lance.write_dataset({"delay": [11, 4]}, "flights.lance").to_pandas()["delay"].mean())
            7.5
        """
        return self.scanner(columns, **options).to_pandas(blob_mode=blob_mode)

    def rows_to_write(self) -> pa.RecordBatchReader:
        """All rows, with payloads of blobs, for a write to another table. Writers call this.

        Examples:
            >>> lance.write_dataset({"id": [1, 2, 3]}, "t.lance").rows_to_write().read_all().num_rows
            3
        """
        return self.scanner(blob_handling=AS_STORED).to_reader()

    def to_arrow_dataset(self) -> Dataset:
        """This version as a `pyarrow.dataset.Dataset`.

        Engines that scan Arrow datasets (DuckDB, `polars.scan_pyarrow_dataset`) accept the handle itself. The result of
        this method also has Arrow's `filter` and scan options, and is an Arrow dataset in every process.

        Examples:
            >>> lance.write_dataset({"delay": [11, 4]}, "flights.lance").to_arrow_dataset().count_rows()
            2
        """
        from lance_core.verbs.scan.arrow_dataset import ArrowDataset  # noqa: PLC0415 - it imports pandas

        return ArrowDataset(self)

    def sql(self, sql: str) -> SqlQueryBuilder:
        """A query over this version, to be set up and built: `sql("SELECT ... FROM dataset").build()`.

        Args:
            sql: A SELECT in DuckDB's SQL; the dataset is called `dataset`, or the name that `table_name` sets.

        Raises:
            InvalidInputError: The query is not a string; errors of the engine are raised when the query runs.
            UnsupportedError: DuckDB is not installed; raised when the query runs.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.sql("SELECT max(delay) AS delay FROM dataset").build().to_batch_records()[0].to_pylist()
            [{'delay': 11}]
        """
        from lance_core.dataset.sql import SqlQueryBuilder  # noqa: PLC0415 - it imports pandas

        return SqlQueryBuilder.of(self, sql)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count_rows(self, filter: Filter = None, **options: Any) -> int:  # noqa: A002 - pylance's name
        """Number of rows; without a filter only metadata is read. Arguments as `scanner`.

        Examples:
            >>> lance.write_dataset({"delay": [11, 4]}, "flights.lance").count_rows("delay > 5")
            1
        """
        return self.scanner(filter=filter, **options).count_rows()

    def __len__(self) -> int:
        """Number of rows; only metadata is read."""
        return self.count_rows()

    def parse_filter(self, sql: str, *, assume_utc: bool = True) -> pc.Expression:
        """A filter in SQL as an Arrow expression, to combine with others or to send to another process.

        Args:
            sql: As the filter of `scanner`.
            assume_utc: Whether a time without a zone is in UTC when it is compared with a timestamp that has one, as in
                every scan; False rejects such a condition, for a caller whose own zone is another one.

        Raises:
            InvalidInputError: The expression is not a condition, or depends on a zone that it does not name; the
                message has the position.
            SchemaError: A column does not exist.
            UnsupportedError: The expression uses something unknown; the message names it and has the position.

        Examples:
            >>> lance.write_dataset({"delay": [11, 4]}, "flights.lance").parse_filter("delay > 5")
            <pyarrow.compute.Expression (delay > 5)>
        """
        from lance_core.verbs.expressions.sql import parse_filter  # noqa: PLC0415 - it imports the SQL parser

        handling = self._scan_defaults.get("blob_handling")
        return parse_filter(sql, scanned_columns(self._manifest, handling), assume_utc=assume_utc)

    def count_deleted_rows(self) -> int:
        """Rows that deletion files hide.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.delete("id = 2")["num_deleted_rows"], table.count_deleted_rows()
            (1, 1)
        """
        return with_all_row_counts(self.snapshot).totals()[0]

    def head(self, num_rows: int | None, **options: Any) -> pa.Table:
        """The first `num_rows` rows, or all if it is None, with the arguments of `scanner`.

        Examples:
            >>> lance.write_dataset({"id": [1, 2, 3]}, "t.lance").head(2).to_pylist()
            [{'id': 1}, {'id': 2}]
        """
        return self.scanner(**{**options, "limit": check_num_rows(num_rows)}).to_table()

    def take(self, indices: Sequence[int] | pa.Array, columns: Columns = None) -> pa.Table:
        """Rows by position, in the order of the positions.

        Args:
            indices: Positions among the rows of the dataset, from 0.
            columns: What to read, as for `scanner`; but a dotted path gives a struct of only that field.

        Raises:
            InvalidInputError: A position lies outside the dataset.

        Examples:
            >>> lance.write_dataset({"id": [1, 2, 3]}, "t.lance").take([2, 0]).to_pylist()
            [{'id': 3}, {'id': 1}]
        """
        options = scan_options(self._manifest, columns, flatten=False)
        return take_rows(self.snapshot, self._manifest.fragments, indices, options)

    def _take_rows(self, row_ids: Sequence[int] | pa.Array, columns: Columns = None) -> pa.Table:
        """Rows by their ids, in the order of the ids; a private name of pylance that code written for pylance calls.

        Args:
            row_ids: What `with_row_id` gives: stable ids where the dataset has them, else addresses.
            columns: What to read, as for `scanner`; but a dotted path gives a struct of only that field.

        Raises:
            InvalidInputError: There is no such row, or it is deleted.
        """
        options = scan_options(self._manifest, columns, flatten=False)
        return take_ids(self.snapshot, row_ids, options)

    def take_blobs(
        self,
        blob_column: str,
        ids: Sequence[int] | pa.Array | None = None,
        addresses: Sequence[int] | pa.Array | None = None,
        indices: Sequence[int] | pa.Array | None = None,
        *,
        buffer_size: int = 512 * 1024,
    ) -> list[BlobFile | None]:
        """Payloads of a column of blobs as files, in the order of the rows asked for; None for a null.

        The payloads of all these rows are read at once, and kept until their files are closed.

        Args:
            blob_column: The column.
            ids: Row ids; one of the three is given.
            addresses: Row addresses: fragment id << 32 | row offset.
            indices: Positions among the rows of the dataset, from 0.
            buffer_size: Accepted for compatibility with pylance, without effect.

        Raises:
            InvalidInputError: The column has no blobs, there is no such row, or an argument cannot be used.
            SchemaError: The dataset has no such column.
            UnsupportedError: A row is deleted, or its payload lies outside its data file.

        Examples:
            >>> schema = pa.schema([pa.field("photo", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
            >>> photos = lance.write_dataset(pa.table({"photo": [b"first", b"second"]}, schema), "photos.lance")
            >>> [blob.readall() for blob in photos.take_blobs("photo", indices=[1])]
            [b'second']
        """
        if buffer_size < 0:
            raise InvalidInputError(f"buffer_size must be at least 0, not {buffer_size}")
        payloads = blobs_at(self.snapshot, blob_column, ids, addresses, indices)
        return [None if payload is None else BlobFile(payload) for _, payload in payloads]

    def read_blobs(
        self,
        blob_column: str,
        ids: Sequence[int] | pa.Array | None = None,
        addresses: Sequence[int] | pa.Array | None = None,
        indices: Sequence[int] | pa.Array | None = None,
        *,
        io_buffer_size: int | None = None,
        preserve_order: bool | None = None,
    ) -> list[tuple[int, bytes | None]]:
        """Row addresses and payloads of a column of blobs, in the order of the rows asked for; None for a null.

        Args:
            blob_column: The column.
            ids: Row ids; one of the three is given.
            addresses: Row addresses: fragment id << 32 | row offset.
            indices: Positions among the rows of the dataset, from 0.
            io_buffer_size: Accepted for compatibility with pylance, without effect.
            preserve_order: The order is kept in any case.

        Raises:
            InvalidInputError: The column has no blobs, there is no such row, or an argument cannot be used.
            SchemaError: The dataset has no such column.
            UnsupportedError: A row is deleted, or its payload lies outside its data file.

        Examples:
            >>> schema = pa.schema([pa.field("photo", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
            >>> photos = lance.write_dataset(pa.table({"photo": [b"first", b"second"]}, schema), "photos.lance")
            >>> photos.read_blobs("photo", indices=[1])
            [(1, b'second')]
        """
        del preserve_order
        _check_buffer(io_buffer_size)
        return blobs_at(self.snapshot, blob_column, ids, addresses, indices)

    def read_blob_ranges(
        self,
        blob_column: str,
        requests: Sequence[tuple[int, int, int]],
        *,
        selector: str,
        io_buffer_size: int | None = None,
        preserve_order: bool | None = None,
    ) -> list[tuple[int, int, bytes | None]]:
        """Parts of payloads of a column of blobs: number of the request, row address and bytes; None for a null.

        The payloads of all these rows are read whole.

        Args:
            blob_column: The column.
            requests: Row, first byte and number of bytes of each part.
            selector: How `requests` name rows: by "ids", "addresses" or "indices" (positions).
            io_buffer_size: Accepted for compatibility with pylance, without effect.
            preserve_order: The order is kept in any case.

        Raises:
            InvalidInputError: A column, a row or an argument cannot be used, or a part lies outside of its payload.
            SchemaError: The dataset has no such column.
            UnsupportedError: A row is deleted, or its payload lies outside its data file.

        Examples:
            >>> schema = pa.schema([pa.field("photo", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
            >>> photos = lance.write_dataset(pa.table({"photo": [b"first", b"second"]}, schema), "photos.lance")
            >>> photos.read_blob_ranges("photo", [(1, 0, 3)], selector="indices")
            [(0, 1, b'sec')]
        """
        del preserve_order
        _check_buffer(io_buffer_size)
        return blob_ranges_at(self.snapshot, blob_column, requests, selector)

    def sample(self, num_rows: int, columns: Columns = None, randomize_order: bool = True) -> pa.Table:
        """Rows chosen at random, none of them twice; a filter in `default_scan_options` selects the rows.

        Args:
            num_rows: How many.
            columns: What to read, as for `take`.
            randomize_order: False returns them in the order of the dataset, which reads faster.

        Raises:
            InvalidInputError: There are not that many rows.

        Examples:
            >>> lance.write_dataset({"id": [1, 2, 3]}, "t.lance").sample(2).num_rows
            2
        """
        rows = row_positions(self, None)
        if not 0 <= num_rows <= len(rows):
            raise InvalidInputError(f"sample: num_rows must be from 0 to {len(rows)}, all rows, not {num_rows}")
        chosen = random.sample(range(len(rows)), num_rows)
        return self.take([int(rows[place]) for place in (chosen if randomize_order else sorted(chosen))], columns)

    def slice(self, start: int, end: int, columns: Columns = None) -> pa.Table:
        """The rows from position `start` up to `end` (excluded); fewer if the dataset ends before.

        Args:
            start: Position of the first row, from 0.
            end: Position after the last row.
            columns: What to read, as for `scanner`.

        Raises:
            InvalidInputError: `start` is negative, or `end` is less than `start`.

        Examples:
            >>> lance.write_dataset({"id": [1, 2, 3]}, "t.lance").slice(1, 3).to_pylist()
            [{'id': 2}, {'id': 3}]
        """
        if start < 0:
            raise InvalidInputError(f"start must be non-negative, got {start}")
        if end < start:
            raise InvalidInputError(f"end ({end}) must be >= start ({start})")
        return self.scanner(columns, offset=start, limit=end - start).to_table()

    def get_fragments(self, filter: pc.Expression | None = None) -> list[LanceFragment]:  # noqa: A002 - pylance's name
        """The fragments, in order.

        Args:
            filter: Not offered, as in pylance.

        Raises:
            UnsupportedError: A filter is given.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> [fragment.count_rows() for fragment in table.get_fragments()]
            [3, 1]
        """
        if filter is not None:
            raise UnsupportedError("get_fragments: filter is not offered: use scanner(filter=..., fragments=[...])")
        return LanceFragment.all_of(self.snapshot)

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """The fragment of that id; None if there is none.

        Examples:
            >>> lance.write_dataset({"id": [1, 2, 3]}, "t.lance").get_fragment(0).count_rows()
            3
        """
        record = self._manifest.fragments.get(fragment_id)
        return None if record is None else LanceFragment(self.snapshot, record)


def row_positions(dataset: ReadingVerbs, condition: Filter) -> range | npt.NDArray[np.integer[Any]]:
    """The positions, in order, of the rows that a scan with a condition and the default options selects."""
    if condition is None and not dataset._scan_defaults:  # noqa: SLF001 - part of the class
        return range(dataset.count_rows())
    # Deleted rows have no position.
    offsets = dataset.scanner(["_rowoffset"], condition, include_deleted_rows=False).to_table()
    return np.sort(offsets["_rowoffset"].to_numpy())


def _check_buffer(size: int | None) -> None:
    if size is not None and size < 1:
        raise InvalidInputError(f"io_buffer_size must be greater than 0, not {size}")
