"""User functions that compute new columns from batches, and checkpoints of their results until the commit."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from lance_core.arguments import checked_methods
from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.verbs.files.python_rows import table_of_frame


@checked_methods
class BatchUDF:
    """A function that computes new columns of a batch of rows.

    Args:
        func: Takes a record batch and returns a record batch or pandas frame of as many rows.
        output_schema: Schema of its results; None to take it from a first call.
        checkpoint_file: File for results, so that a failed run can be continued; those of fragments that have changed
            since are computed again.
    """

    def __init__(
        self,
        func: Callable[[pa.RecordBatch], Any],
        output_schema: pa.Schema | None = None,
        checkpoint_file: str | PathLike[str] | None = None,
    ) -> None:
        self.func = func
        self.output_schema = output_schema
        self.cache = None if checkpoint_file is None else BatchUDFCheckpoint(checkpoint_file)

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """Call the function without a check of its result."""
        return self.func(batch)

    def columns_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call the function and check its result.

        Raises:
            SchemaError: The result does not have the declared schema.
            InvalidInputError: The result has another number of rows than the batch.
        """
        result = as_batch(self.func(batch))
        if self.output_schema is not None:
            check_output(result.schema, self.output_schema)
        if result.num_rows != batch.num_rows:
            raise InvalidInputError(f"the function returned {result.num_rows} rows for {batch.num_rows}")
        return result


def batch_udf(
    output_schema: pa.Schema | None = None, checkpoint_file: str | PathLike[str] | None = None
) -> Callable[[Callable[[pa.RecordBatch], Any]], BatchUDF]:
    """Decorate a function to be passed to `add_columns`, with the arguments of `BatchUDF`.

    Examples:
        >>> @lance.batch_udf(output_schema=pa.schema({"late": pa.bool_()}))
        ... def late(batch):
        ...     return pa.record_batch({"late": pc.greater(batch["delay"], 10)})
        >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
        >>> flights.add_columns(late, read_columns=["delay"])
        >>> flights.to_table(columns=["carrier", "late"]).to_pylist()
        [{'carrier': 'UA', 'late': True}, {'carrier': 'AA', 'late': False}]
    """

    def wrap(func: Callable[[pa.RecordBatch], Any]) -> BatchUDF:
        return BatchUDF(func, output_schema, checkpoint_file)

    return wrap


@checked_methods
class BatchUDFCheckpoint:
    """Results of a function in an SQLite file: of batches, and of fragments that are written but not committed.

    Args:
        path: The file.

    Raises:
        InvalidInputError: The file is not a checkpoint, or cannot be written.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)
        # Results of a function may be read only by those who may read the table.
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise InvalidInputError(f"{self.path} cannot be used as a checkpoint ({error.strerror})") from error
        with self._connect() as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS batches (fragment_id INT, batch_index INT, result BLOB, "
                "PRIMARY KEY (fragment_id, batch_index))"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS fragments (fragment_id INT PRIMARY KEY, data TEXT)")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS states "
                "(fragment_id INT PRIMARY KEY, state TEXT, deleted BLOB, batch_size INT)"
            )

    def cleanup(self) -> None:
        """Remove the file."""
        Path(self.path).unlink()

    def begin_fragment(self, fragment_id: int, state: str, deleted: BitMap, batch_size: int | None) -> None:
        """Remove results of a fragment that were computed from another state of it, and record this one.

        The result of a fragment has values for all rows that were alive, so that it can be used after a deletion.
        Batches consist of the rows that are alive.

        Args:
            fragment_id: The fragment.
            state: What results depend on: the fragment's values, the columns that are read, and those that are made.
            deleted: The deleted rows of the fragment.
            batch_size: Physical rows per batch; None for the default.

        Raises:
            InvalidInputError: The file is not a checkpoint, or has results without the state of their fragment.
        """
        with self._connect() as connection, connection:
            row = connection.execute(
                "SELECT state, deleted, batch_size FROM states WHERE fragment_id = ?", (fragment_id,)
            ).fetchone()
            before = BitMap() if row is None else BitMap.deserialize(row[1])
            is_same = row is not None and row[0] == state
            for table, is_usable in {
                "fragments": is_same and before <= deleted,
                "batches": is_same and before == deleted and row[2] == batch_size,
            }.items():
                clause = f"FROM {table} WHERE fragment_id = ?"
                if row is None and connection.execute(f"SELECT 1 {clause}", (fragment_id,)).fetchone() is not None:
                    raise ValueError(f"it does not say of which state of fragment {fragment_id} its results are")
                if not is_usable:
                    connection.execute(f"DELETE {clause}", (fragment_id,))
            connection.execute(
                "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)",
                (fragment_id, state, deleted.serialize(), batch_size),
            )

    def get_batch(self, fragment_id: int, batch_index: int) -> pa.RecordBatch | None:
        """The result of a batch; None if it is not kept.

        Raises:
            InvalidInputError: The file is not a checkpoint.
        """
        with self._connect() as connection:
            row = connection.execute(
                "SELECT result FROM batches WHERE fragment_id = ? AND batch_index = ?", (fragment_id, batch_index)
            ).fetchone()
            return None if row is None else pa.ipc.open_stream(row[0]).read_next_batch()

    def insert_batch(self, fragment_id: int, batch_index: int, batch: pa.RecordBatch) -> None:
        """Keep the result of a batch."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        with self._connect() as connection, connection:
            connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, ?)",
                (fragment_id, batch_index, sink.getvalue().to_pybytes()),
            )

    def get_fragment(self, fragment_id: int) -> str | None:
        """The JSON of a written fragment; None if it is not kept.

        Raises:
            InvalidInputError: The file is not a checkpoint.
        """
        with self._connect() as connection:
            row = connection.execute("SELECT data FROM fragments WHERE fragment_id = ?", (fragment_id,)).fetchone()
            if row is not None:
                json.loads(row[0])
        return None if row is None else str(row[0])

    def insert_fragment(self, fragment_id: int, fragment: str) -> None:
        """Keep the JSON of a written fragment, in place of its batches."""
        with self._connect() as connection, connection:
            connection.execute("INSERT OR REPLACE INTO fragments VALUES (?, ?)", (fragment_id, fragment))
            connection.execute("DELETE FROM batches WHERE fragment_id = ?", (fragment_id,))

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path)) as connection:
                yield connection
        except (sqlite3.Error, pa.ArrowException, ValueError, TypeError, AttributeError, StopIteration) as error:
            raise InvalidInputError(
                f"{self.path} cannot be used as a checkpoint ({error}); if nothing else is kept there, delete it"
            ) from error


def check_output(schema: pa.Schema, expected: pa.Schema) -> None:
    """Check that a function returned its declared schema, or the schema that it returned first.

    Raises:
        SchemaError: The result has another schema.
    """
    if schema != expected:
        raise SchemaError(
            f"Output schema of function does not match the expected schema. Expected:\n{expected}\nGot:\n{schema}"
        )


def as_batch(result: Any) -> pa.RecordBatch:
    """The result of a function as one batch.

    Raises:
        InvalidInputError: The result is neither a batch nor a table nor a pandas frame.
        SchemaError: Values of a frame do not fit a column.
    """
    if isinstance(result, pa.RecordBatch):
        return result
    if type(result).__module__.split(".")[0] == "pandas":
        result = table_of_frame(result, with_index=False).replace_schema_metadata(None)
    if isinstance(result, pa.Table):
        batches = combine_chunks(result).to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
    raise InvalidInputError(f"the function returned a {type(result).__name__}, not a record batch")
