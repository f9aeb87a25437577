"""SQL over one dataset, under pylance's names; DuckDB runs it, reading only the columns and rows that it needs.

The SQL dialect is DuckDB's, while pylance's is that of DataFusion. Some expressions differ: `5 / 2` is 2.5 in DuckDB,
and 2 in DataFusion and in the filters of a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import checked_methods
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.verbs.scan.arrow_dataset import ArrowDataset, Readable
from lance_core.verbs.scan.projection import ROW_ADDRESS, ROW_ID, check_blob_handling, row_field
from lance_core.verbs.scan.scanner import LanceScanner, cut_batch

_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a query, as `SqlQueryBuilder` sets them."""

    dataset: Readable
    sql: str
    table_name: str = "dataset"
    row_columns: tuple[str, ...] = ()
    batch_size: int = _ROWS
    batch_size_bytes: int | None = None
    blob_handling: str | None = None


class SqlQuery:
    """A query that can be run; made by `SqlQueryBuilder.build`.

    Args:
        options: The query and its options.
    """

    def __init__(self, options: _Options) -> None:
        self._options = options

    def to_batch_records(self) -> list[pa.RecordBatch]:
        """Run the query, and return all batches of the result.

        Raises:
            InvalidInputError: The engine rejects the SQL, or fails on it; its words are in the message.
            UnsupportedError: DuckDB is not installed.
        """
        return list(self.to_stream_reader())

    def to_stream_reader(self) -> pa.RecordBatchReader:
        """Run the query, and return a reader; errors are those of `to_batch_records`."""
        options, engine = self._options, _import_engine()
        connection = engine.connect(":memory:")
        # A query can read this dataset and nothing else.
        for setting in ("python_enable_replacements = false", "enable_external_access = false"):
            connection.execute(f"SET {setting}")
        connection.execute("SET lock_configuration = true")
        connection.register(options.table_name, ArrowDataset(_Scanned(options)))
        try:
            result = connection.sql(options.sql)
            if result is None:
                raise InvalidInputError(f"SQL: {options.sql!r} gives no rows; only SELECT is offered")
            reader = _open_reader(result, options.batch_size)
        except engine.Error as error:
            raise InvalidInputError(f"SQL: {error}") from error
        return pa.RecordBatchReader.from_batches(reader.schema, _yield_batches(reader, options, connection, engine))


@checked_methods
class SqlQueryBuilder:
    """Sets the options of a query; made by `LanceDataset.sql`.

    Args:
        options: The options that are set so far.
    """

    def __init__(self, options: _Options) -> None:
        self._options = options

    @classmethod
    def of(cls, dataset: Readable, sql: str) -> SqlQueryBuilder:
        """A query over a dataset.

        Raises:
            InvalidInputError: The SQL is not a string.
        """
        if not isinstance(sql, str) or not sql.strip():
            raise InvalidInputError(f"sql must be a SELECT statement, not {sql!r}")
        return cls(_Options(dataset, sql))

    def table_name(self, table_name: str) -> SqlQueryBuilder:
        """Set the name of the dataset in the query; "dataset" by default."""
        if not isinstance(table_name, str) or not table_name:
            raise InvalidInputError(f"table_name must be a string that is not empty, not {table_name!r}")
        return self._replace_options(table_name=table_name)

    def with_row_id(self, with_row_id: bool = True) -> SqlQueryBuilder:
        """Add the column `_rowid` to the dataset in the query."""
        return self._show_row_column(ROW_ID, with_row_id)

    def with_row_addr(self, with_row_addr: bool = True) -> SqlQueryBuilder:
        """Add the column `_rowaddr` to the dataset in the query."""
        return self._show_row_column(ROW_ADDRESS, with_row_addr)

    def blob_handling(self, blob_handling: str) -> SqlQueryBuilder:
        """Set the form of columns of blobs: "all_binary" for payloads; descriptions by default.

        Raises:
            InvalidInputError: The value is not known.
        """
        check_blob_handling(blob_handling)
        return self._replace_options(blob_handling=blob_handling)

    def batch_size(self, batch_size: int) -> SqlQueryBuilder:
        """Set the most rows of a batch of the result."""
        return self._replace_options(batch_size=_require_positive("batch_size", batch_size))

    def batch_size_bytes(self, batch_size_bytes: int) -> SqlQueryBuilder:
        """Set the approximate limit of the bytes of a batch of the result."""
        return self._replace_options(batch_size_bytes=_require_positive("batch_size_bytes", batch_size_bytes))

    def build(self) -> SqlQuery:
        """The query."""
        return SqlQuery(self._options)

    def _replace_options(self, **changes: Any) -> SqlQueryBuilder:
        self._options = replace(self._options, **changes)
        return self

    def _show_row_column(self, name: str, is_shown: bool) -> SqlQueryBuilder:
        other_columns = [other for other in self._options.row_columns if other != name]
        return self._replace_options(row_columns=(*other_columns, name) if is_shown else tuple(other_columns))


class _Scanned:
    """The dataset as the query scans it: with `_rowid` or `_rowaddr` if requested, and blobs in the requested form."""

    def __init__(self, options: _Options) -> None:
        self._dataset = options.dataset
        self._names = options.row_columns
        self._blob_handling = options.blob_handling

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        table_schema = self._dataset.scanner(
            None, None, batch_size=None, blob_handling=self._blob_handling
        ).projected_schema
        return pa.schema([*table_schema, *map(row_field, self._names)])

    def scanner(
        self,
        columns: Any,
        filter: pc.Expression | None,  # noqa: A002 - Arrow's name
        *,
        batch_size: int | None,
        blob_handling: str | None = None,
    ) -> LanceScanner:
        """Prepare a scan."""
        names = self.schema.names if columns is None else columns
        handling = blob_handling or self._blob_handling
        return self._dataset.scanner(names, filter, batch_size=batch_size, blob_handling=handling)

    def take(self, indices: Any, columns: Any) -> pa.Table:
        """Rows by position."""
        return self._dataset.take(indices, self.schema.names if columns is None else columns)


def _import_engine() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise UnsupportedError(
            "LanceDataset.sql needs DuckDB: pip install 'lance-dagster[sql]'. Without it to_table(columns=..., "
            "filter=...) takes SQL expressions, and Polars scans the dataset"
        ) from error
    return duckdb


def _open_reader(result: Any, rows: int) -> pa.RecordBatchReader:
    """The result as a stream; older releases of DuckDB have another name for it."""
    return result.to_arrow_reader(rows) if hasattr(result, "to_arrow_reader") else result.fetch_arrow_reader(rows)


def _yield_batches(
    reader: pa.RecordBatchReader, options: _Options, connection: Any, engine: Any
) -> Iterator[pa.RecordBatch]:
    """The batches cut to size; the connection is closed after the last batch."""
    try:
        for batch in reader:
            yield from cut_batch(batch, options.batch_size, options.batch_size_bytes)
    except (engine.Error, pa.ArrowException) as error:
        raise InvalidInputError(f"SQL: {error}") from error
    finally:
        connection.close()


def _require_positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value
