"""The length of strings that a frame reads, sampled before its rows are divided into batches.

    frame       Project [id, upper(body)] <- Join <- Relation [id, body]        Relation [id, name]
    sampled     first rows of the first, middle and last partition of           [body]      [name]

Spark's `toArrowBatchRdd` limits the rows of a batch, never its bytes. Sampling the frame itself could run all that
comes before its first row, such as a shuffle. The relations that it reads give their first rows at once, and most
strings that are written are strings that were read. An expression that makes long strings from short ones is not
detected.

This module uses internals of classic sessions, as `arrow_rdd` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pyspark_lance.engine.spark_internals import is_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["string_bytes_read"]

_ROWS: Final = 16
"""Rows that are sampled from a partition."""
_RELATIONS: Final = ("LogicalRelation", "DataSourceV2ScanRelation", "InMemoryRelation")
"""Leaves of a plan that give their first rows without other work: files, tables, and frames that Spark keeps."""


def string_bytes_read(frame: DataFrame) -> int | None:
    """The bytes that the strings of a row take in the relations that a frame reads: the most of those sampled.

    Returns:
        The sum over all relations; None if this Spark does not show its plans, or if the frame reads no strings.

    Raises:
        Py4JJavaError: A relation cannot be read; a write of the frame would fail as well.
    """
    if not is_classic(frame):
        return None
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with pyspark

    try:
        found = [_sampled(frame, leaf, strings) for leaf, strings in _relations(frame)]
    except Py4JJavaError:
        raise
    except (Py4JError, AttributeError, TypeError):
        return None
    return sum(found) if found else None


def _relations(frame: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The relations of a frame, each with the columns of strings that the frame uses."""
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - see the module
    used = set()
    pending, leaves = [plan], []
    while pending:
        node = pending.pop()
        references = [*_items(node.references().toSeq()), *(_items(plan.output()) if node.equals(plan) else ())]
        used |= {one.exprId().id() for one in references}
        below = list(_items(node.children()))
        pending += below
        leaves += [] if below or node.getClass().getSimpleName() not in _RELATIONS else [node]
    for leaf in leaves:
        strings = [
            one for one in _items(leaf.output())
            if one.dataType().typeName().startswith("string") and one.exprId().id() in used
        ]  # fmt: skip
        if strings:
            yield leaf, strings


def _items(found: Any) -> Iterable[Any]:
    return [found.apply(i) for i in range(found.length())]


def _sampled(frame: Any, leaf: Any, strings: list[Any]) -> int:
    """The most bytes of a row among the first rows of three partitions of a relation."""
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    session = frame.sparkSession
    context: Any = session.sparkContext
    jvm = context._jvm  # noqa: SLF001 - see the module
    sql = jvm.org.apache.spark.sql
    columns = sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(strings), leaf)
    rows = sql.classic.Dataset.ofRows(session._jsparkSession, columns)  # noqa: SLF001 - see the module
    messages = rows.toArrowBatchRdd(_ROWS, "UTC", False, False).toJavaRDD()
    count = messages.getNumPartitions()
    rdd: Any = RDD(messages, context, NoOpSerializer()).mapPartitions(_row_bytes)
    return max(context.runJob(rdd, list, sorted({0, count // 2, count - 1})) if count else (), default=0)


def _row_bytes(messages: Iterable[bytes]) -> Iterator[int]:
    """The average bytes of the first rows of a partition. Runs in a task."""
    for message in messages:
        found = pa.ipc.read_message(message)
        yield found.body.size // _ROWS if found.body is not None else 0
        return
