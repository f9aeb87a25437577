"""Partitions of a frame as Arrow messages that the JVM makes: the mechanism of Spark's `toArrow`.

    executor JVM: rows -> Arrow IPC record batches (without schema) -> RDD of bytes -> Python worker -> one answer

This mechanism takes a third of the time of `mapInArrow`, and uses internals of Spark. If one of them is missing, as in
a Connect session or another version of Spark, `ArrowRdd.of` returns None and the caller uses `mapInArrow`.

The job runs as an SQL execution, so that it appears in the SQL tab with its metrics, and reaches listeners and
`DataFrame.observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lance_core.errors import LanceError
from pyspark_lance.engine.sessions import parallelism_of
from pyspark_lance.engine.spark_internals import is_classic, try_internals
from pyspark_lance.lazy import DataFrame

_NAME: Final = "pyspark_lance"
"""The name of the execution in the SQL tab and for listeners."""

MANY_PARTITIONS: Final = 256
_PARTITIONS_PER_CORE: Final = 32
"""If there are more partitions than both limits, some share a task and its file: a Python task and a file cost as much
as many thousand rows."""

Function = Callable[[Iterator[pa.RecordBatch]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class ArrowRdd:
    """A frame, with the internals of Spark that make Arrow messages of its partitions.

    Attributes:
        schema: Schema of the batches that the JVM makes.
    """

    schema: pa.Schema
    _frame: DataFrame
    _jvm_frame: Any
    _executions: Any
    _arguments: tuple[int | str | bool, ...]

    @classmethod
    def of(cls, frame: DataFrame, max_rows: int | None = None) -> ArrowRdd | None:
        """The frame's `ArrowRdd`; None if this session does not support it.

        Args:
            frame: The frame.
            max_rows: Largest number of rows in a batch; the session's setting is another limit, and the only one if
                this is None.

        Raises:
            Py4JJavaError: The frame cannot be planned.
        """
        return try_internals(lambda: cls._find_rdd(frame, max_rows), raises=True) if is_classic(frame) else None

    @classmethod
    def _find_rdd(cls, frame: DataFrame, max_rows: int | None) -> ArrowRdd | None:
        session = frame.sparkSession
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - see the module
        jvm_frame = frame._jdf  # noqa: SLF001 - see the module
        executions = jvm.org.apache.spark.sql.execution.SQLExecution
        takes = _overloads(session.sparkContext.applicationId, jvm_frame.getClass())
        if 0 not in takes or not hasattr(executions, "withNewExecutionId"):
            return None
        conf = session.conf
        rows = int(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch", "10000") or 0)
        large = conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
        arguments: tuple[int | str | bool, ...] = ()
        if max_rows is not None and (rows <= 0 or rows > max_rows):
            if 4 not in takes:
                return None
            zone = conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
            arguments = (max_rows, zone, True, large)
        return cls(_jvm_schema(jvm, jvm_frame, large=large), frame, jvm_frame, executions, arguments)

    def collect(self, function: Function) -> tuple[list[Any], int]:
        """Run a function on the batches of each partition; returns all results, and the number of partitions.

        If there are many partitions, they are coalesced first, see `MANY_PARTITIONS`.
        """
        from pyspark import RDD
        from pyspark.java_gateway import ensure_callback_server_started
        from pyspark.serializers import NoOpSerializer

        context: Any = self._frame.sparkSession.sparkContext

        def job() -> tuple[list[Any], int]:
            # Planned in here: adaptive execution runs stages while it plans.
            messages = self._jvm_frame.toArrowBatchRdd(*self._arguments).toJavaRDD()
            most = max(MANY_PARTITIONS, _PARTITIONS_PER_CORE * parallelism_of(self._frame.sparkSession))
            if messages.getNumPartitions() > most and not _grows(self._frame):
                messages = messages.coalesce(most)
            rdd: Any = RDD(messages, context, NoOpSerializer()).mapPartitions(partial(_run, function, self.schema))
            return rdd.collect(), rdd.getNumPartitions()

        body = _Body(job)
        start: Any = ensure_callback_server_started
        start(context._gateway)  # noqa: SLF001 - see the module
        execution: Any = self._jvm_frame.queryExecution()
        execution.executedPlan().resetMetrics()
        jvm: Any = context._jvm  # noqa: SLF001 - see the module
        try:
            self._executions.withNewExecutionId(execution, jvm.scala.Option.apply(_NAME), body)
        except Exception:
            if body.error is not None:
                raise body.error from None  # the Java error adds nothing
            raise
        if body.answers is None:
            raise LanceError("Spark did not run the job")
        return body.answers


_OVERLOADS: Final[dict[str, frozenset[int]]] = {}
"""By application, as each look-up takes a thousand calls into the JVM."""


def _overloads(application: str, kind: Any) -> frozenset[int]:
    """The numbers of arguments that `toArrowBatchRdd` takes; none if the class has no such method."""
    if application not in _OVERLOADS:
        methods = [method for method in kind.getMethods() if method.getName() == "toArrowBatchRdd"]
        _OVERLOADS[application] = frozenset(len(method.getParameterTypes()) for method in methods)
    return _OVERLOADS[application]


def _jvm_schema(jvm: Any, jvm_frame: Any, *, large: bool) -> pa.Schema:
    """The schema of the JVM's batches, with UTC as the zone of timestamps."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with pyspark

    utils = jvm.org.apache.spark.sql.util.ArrowUtils
    arguments = (jvm_frame.schema(), "UTC", True, large)
    try:
        arrow_schema = utils.toArrowSchema(*arguments, getattr(utils, "toArrowSchema$default$5")())
    except Py4JError:
        arrow_schema = utils.toArrowSchema(*arguments)  # before 4.3
    return pa.ipc.read_schema(pa.py_buffer(bytes(arrow_schema.serializeAsMessage())))


def _grows(frame: DataFrame) -> bool:
    """Whether more tasks may run at once later on than now."""
    return frame.sparkSession.conf.get("spark.dynamicAllocation.enabled", "false") == "true"


def _run(function: Function, schema: pa.Schema, messages: Iterable[bytes]) -> Iterable[Any]:
    """Runs in a task."""
    return function(map(partial(_batch, schema), messages))  # a generator would keep the last batch while it waits


def _batch(schema: pa.Schema, message: bytes) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.ipc.read_message(message), schema)


class _Body:
    """A Python function as Scala's `Function0`; Java calls it in the thread that waits for the execution."""

    def __init__(self, job: Callable[[], tuple[list[Any], int]]) -> None:
        self._job = job
        self.answers: tuple[list[Any], int] | None = None
        self.error: BaseException | None = None

    def apply(self) -> None:
        """Called by Scala; an error passes through Java, so that the execution counts as failed."""
        try:
            self.answers = self._job()
        except BaseException as error:
            self.error = error
            raise

    class Java:
        """The marker that py4j looks for."""

        implements: Final = ["scala.Function0"]
