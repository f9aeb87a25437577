"""How batches get from Spark's rows into a Python function, one call per partition, and its answers back.

    arrow_rdd      executor JVM: rows -> Arrow IPC messages -> RDD of bytes -> Python worker -> one answer
                   The way in which Spark serves `toArrow`. It takes a third of the time of the other one, but is
                   reached through the JVM gateway: classic sessions only. All of it that is not public is in here.
    map_in_arrow   executor JVM: rows -> Arrow stream -> Python worker -> Arrow stream of answers
                   `DataFrame.mapInArrow`: any session, Spark Connect among them.

Both run the function once per partition and collect once. Each answer says from which partition it came, so that a
partition that was computed twice, or never, is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from lance_core.errors import LanceError
from pyspark_lance.arrow_types import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Answer", "PartitionFunction", "Transport", "run_on_partitions"]

PartitionFunction = Callable[[int, int, Iterator[pa.RecordBatch]], bytes]
"""Called with partition id, attempt number and the partition's batches; gives the answer."""

Transport = Literal["auto", "arrow_rdd", "map_in_arrow"]

_ANSWER_SCHEMA: Final = pa.schema(
    [pa.field("partition", pa.int32(), nullable=False), pa.field("message", pa.binary(), nullable=False)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the function gave for one partition."""

    partition: int
    message: bytes


def run_on_partitions(
    frame: DataFrame, function: PartitionFunction, source: pa.Schema, *, transport: Transport = "auto"
) -> list[Answer]:
    """Run a function on each partition of a DataFrame, once, and collect the answers.

    Args:
        frame: The DataFrame; it is computed once.
        function: What to run; it is pickled and must be importable where the tasks run.
        source: Arrow schema of the frame's batches, with UTC as the session's zone. `map_in_arrow` may hand over
            batches with another zone, or with large strings if the session says so.
        transport: Which way to take; "auto" takes the faster one where it exists.

    Returns:
        The answers in order of partitions. With `map_in_arrow`, an empty partition may have none.

    Raises:
        LanceError: Spark gave two answers for one partition, or lost one.
    """
    rdd = _arrow_rdd(frame) if transport in ("auto", "arrow_rdd") else None
    if rdd is not None:
        function_of_messages = partial(_answer_messages, function, _with_large_types(frame, source))
        found = rdd.mapPartitions(function_of_messages).collect()
        answers = [Answer(partition=partition, message=message) for partition, message in found]
        if len(answers) != rdd.getNumPartitions():
            raise LanceError(f"Spark answered for {len(answers)} of {rdd.getNumPartitions()} partitions")
    elif transport == "arrow_rdd":
        raise LanceError(
            "this Spark session does not hand out Arrow batches: it is a Connect session, or another Spark"
        )
    else:
        rows = frame.mapInArrow(partial(_answer_batches, function), "partition int not null, message binary not null")
        answers = [Answer(partition=row.partition, message=bytes(row.message)) for row in rows.collect()]
    answers.sort(key=lambda answer: answer.partition)
    partitions = [answer.partition for answer in answers]
    if len(set(partitions)) != len(partitions):
        raise LanceError(f"Spark answered twice for a partition: {partitions}")
    return answers


def _arrow_rdd(frame: DataFrame):  # type: ignore[no-untyped-def]  # noqa: ANN202 - RDD of bytes, a class of classic Spark only
    """The frame's partitions as RDD of Arrow IPC messages; None if this Spark has no such thing."""
    java_frame = getattr(frame, "_jdf", None) if _is_classic(frame) else None
    if java_frame is None:
        return None
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with pyspark
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    try:
        java_rdd = java_frame.toArrowBatchRdd().toJavaRDD()
    except Py4JJavaError:
        raise  # the plan failed, not the look-up
    except Py4JError:
        return None
    return RDD(java_rdd, frame.sparkSession.sparkContext, NoOpSerializer())


def _is_classic(frame: DataFrame) -> bool:
    return type(frame).__module__.startswith("pyspark.sql.classic.")


def _with_large_types(frame: DataFrame, source: pa.Schema) -> pa.Schema:
    """The schema of the messages, which depends on a setting of the session."""
    if frame.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") != "true":
        return source
    return to_arrow(frame.schema, large_types=True)


def _answer_messages(
    function: PartitionFunction, schema: pa.Schema, messages: Iterable[bytes]
) -> Iterator[tuple[int, bytes]]:
    """Runs in a task of `arrow_rdd`."""
    partition, attempt = _task_identity()
    batches = (pa.ipc.read_record_batch(pa.ipc.read_message(message), schema) for message in messages)
    yield partition, function(partition, attempt, batches)


def _answer_batches(function: PartitionFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task of `map_in_arrow`."""
    partition, attempt = _task_identity()
    message = function(partition, attempt, batches)
    yield pa.RecordBatch.from_arrays([pa.array([partition], pa.int32()), pa.array([message])], schema=_ANSWER_SCHEMA)


def _task_identity() -> tuple[int, int]:
    """Partition id and attempt number of the task that runs this."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise LanceError("not inside of a Spark task")
    return context.partitionId(), context.attemptNumber()
