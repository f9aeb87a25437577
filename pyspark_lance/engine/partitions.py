"""Two transports that pass the rows of each partition of a frame to a Python function and collect its answers.

    arrow_rdd      executor JVM: rows -> Arrow IPC messages -> RDD of bytes -> Python worker -> one answer
                   The mechanism of Spark's `toArrow` (`arrow_rdd.py`): classic sessions only, a third of the time.
                   It limits the rows of a batch, but not the bytes: the length of strings is sampled beforehand.
    map_in_arrow   executor JVM: rows -> Arrow stream -> Python worker -> Arrow stream of answers
                   `DataFrame.mapInArrow`: any session, including Spark Connect; it limits rows and bytes of a batch.

"auto" takes `arrow_rdd` for frames whose rows are known to be small: columns of fixed width, vectors of known width,
and strings. Bytes, lists, maps and variants may be of any size: frames with such columns take `map_in_arrow`.

Both transports run the function once per partition and collect once. Each answer names its partition, so that a
partition that was computed twice, or never, is detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal

import pyarrow as pa

from lance_core.errors import LanceError
from lance_core.extension_types import is_any_string
from pyspark_lance.engine.arrow_rdd import ArrowRdd
from pyspark_lance.engine.errors import plain_errors
from pyspark_lance.engine.jobs import run_job
from pyspark_lance.engine.row_samples import string_bytes_read
from pyspark_lance.lazy import DataFrame

PartitionFunction = Callable[[int, int, Iterator[pa.RecordBatch]], bytes]
"""Called with partition id, attempt number and the partition's batches; returns the answer."""

Transport = Literal["auto", "arrow_rdd", "map_in_arrow"]

_ANSWER_SCHEMA: Final = pa.schema(
    [pa.field("partition", pa.int32(), nullable=False), pa.field("message", pa.binary(), nullable=False)]
)
_BATCH_BYTES: Final = 64 << 20
"""Most bytes of a batch of the fast path; Spark's own default where it counts bytes."""
_STRING_BYTES: Final = 64
_ROWS_WITH_STRINGS: Final = 2048
"""Most rows of a batch with strings, which may be long: even if each has a megabyte, the batch fits into Arrow's."""
_LONG_BATCH_BYTES: Final = 16 << 20
"""Bytes of a batch of long rows: the JVM holds three copies of a batch, and a worker the next batch beside its file."""
_LEAST_ROWS: Final = 256
"""Smallest limit for rows of a batch: smaller batches cost more than the fast path saves."""


def rows_per_batch(schema: pa.Schema) -> int | None:
    """The number of rows that certainly fit into a batch; None if rows can be of any size.

    Args:
        schema: Types of the columns as they are stored, so that vectors have a width.
    """
    widths = [
        None if isinstance(kind, pa.BaseExtensionType) else value_width(kind, _STRING_BYTES) for kind in schema.types
    ]
    fixed_width = sum(width for width in widths if width is not None)
    rows = min(
        _BATCH_BYTES // max(1, fixed_width), _ROWS_WITH_STRINGS if any(map(_has_string, schema.types)) else _BATCH_BYTES
    )
    return rows if None not in widths and rows >= _LEAST_ROWS else None


def rows_of_size(rows: int, row_bytes: int | None) -> int:
    """The number of rows of a batch, reduced if rows are long.

    Args:
        rows: The number of rows of a batch of short rows.
        row_bytes: Bytes of a row, as they were sampled; None if they are not known.
    """
    if not row_bytes or rows * row_bytes <= _BATCH_BYTES:
        return rows
    return max(1, _LONG_BATCH_BYTES // row_bytes)


def value_width(kind: pa.DataType, string_bytes: int | None = None) -> int | None:
    """Bytes of a value; None if they are not known.

    Args:
        kind: The type.
        string_bytes: Bytes of a string; None if they are not known either.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return value_width(kind.storage_type, string_bytes)
    if pa.types.is_struct(kind):
        inner = [value_width(child.type, string_bytes) for child in kind]
        return None if None in inner else sum(width for width in inner if width is not None)
    if pa.types.is_fixed_size_list(kind):
        item = value_width(kind.value_type, string_bytes)
        return None if item is None else item * kind.list_size
    if is_any_string(kind):
        return string_bytes
    if pa.types.is_dictionary(kind):
        return value_width(kind.value_type, string_bytes)
    try:
        return 1 if pa.types.is_null(kind) else max(1, kind.bit_width // 8)
    except ValueError:
        return None


def _has_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_string(kind.value_type)
    return is_any_string(kind) or any(_has_string(kind.field(i).type) for i in range(kind.num_fields))


def run_on_partitions(
    frame: DataFrame, function: PartitionFunction, stored: pa.Schema, *, transport: Transport = "auto"
) -> list[bytes]:
    """Run a function on each partition of a DataFrame, once, and collect the answers.

    After a failure or an interruption, the tasks are ended before the error is raised.

    Args:
        frame: The DataFrame; it is computed once.
        function: What to run; it is pickled and must be importable where the tasks run. Its batches have the types
            that Spark has for the columns, in any time zone, and with large strings if the session is set so.
        stored: The stored types of the columns, which determine the size of a row.
        transport: The transport; "auto" takes the faster one if it exists and rows are small.

    Returns:
        The answers in order of partitions. With `map_in_arrow`, an empty partition may have none.

    Raises:
        LanceError: Spark returned two answers for one partition, or, with `arrow_rdd`, no answer for one; or the
            session does not support the transport `arrow_rdd`.
    """
    rows = rows_per_batch(stored)
    uses_rdd = transport == "arrow_rdd" or (transport == "auto" and rows is not None)
    if uses_rdd and rows is not None and any(map(_has_string, stored.types)):
        rows = rows_of_size(rows, string_bytes_read(frame))
    rdd = ArrowRdd.of(frame, rows) if uses_rdd else None
    if rdd is not None:
        answers, count = run_job(frame.sparkSession, partial(rdd.collect, partial(_answer_messages, function)))
        if len(answers) != count:
            raise LanceError(f"Spark answered for {len(answers)} of {count} partitions")
    elif transport == "arrow_rdd":
        raise LanceError(
            "this Spark session does not hand out Arrow batches for transport arrow_rdd: it is a Connect session, or"
            " an unsupported version of Spark"
        )
    else:
        mapped: Any = frame.mapInArrow(
            partial(_answer_batches, function), "partition int not null, message binary not null"
        )
        answers = [(row.partition, bytes(row.message)) for row in run_job(frame.sparkSession, mapped.collect)]
    messages = dict(sorted(answers))
    if len(messages) != len(answers):
        raise LanceError(f"Spark answered twice for a partition: {sorted(partition for partition, _ in answers)}")
    return list(messages.values())


def _answer_messages(function: PartitionFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Runs in a task of `arrow_rdd`."""
    partition, attempt = task_identity()
    with plain_errors():
        message = function(partition, attempt, batches)
    yield partition, message


def _answer_batches(function: PartitionFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task of `map_in_arrow`."""
    for partition, message in _answer_messages(function, batches):
        arrays = [pa.array([partition], pa.int32()), pa.array([message])]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ANSWER_SCHEMA)


def task_identity() -> tuple[int, int]:
    """Partition id and attempt number of the task that runs this."""
    context = _task_context()
    return context.partitionId(), context.attemptNumber()


def local_property(name: str) -> str:
    """A property of the job of the task that runs this, such as a setting of the session; empty if it is not set."""
    return _task_context().getLocalProperty(name) or ""


def _task_context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise LanceError("this function runs in Spark tasks only")
    return context
