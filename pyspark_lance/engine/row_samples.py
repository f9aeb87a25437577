"""The length of strings that a frame reads, sampled before its rows are divided into batches.

    frame       Project [id, upper(body)] <- Join <- Relation [id, body]        Relation [id, name]
    sampled     first rows of the first file                   [body]                      [name]

Spark's `toArrowBatchRdd` limits the rows of a batch, never its bytes. Sampling the frame itself could run everything
that precedes its first row, such as a shuffle. Files, and cached frames that were computed, return their first rows at
once, and most strings that are written are strings that were read. The samples run in the JVM alone, because Spark does
not reuse a Python worker that read only a part of its input. Long strings that come from other sources or from an
expression are not detected.

This module uses internals of classic sessions, as `arrow_rdd` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from pyspark_lance.engine.jobs import run_job
from pyspark_lance.engine.spark_internals import frame_of_plan, is_classic, items_of, try_internals
from pyspark_lance.lazy import DataFrame, functions

_ROWS: Final = 16
"""Rows that are sampled of a relation."""
_MOST_ROWS: Final = 4096
_LONG: Final = 32 << 10
"""Bytes of strings above which four times as many rows are sampled, repeatedly: the first rows may be exceptions."""

_BATCH_SETTINGS: Final = {
    "ParquetFileFormat": "spark.sql.parquet.columnarReaderBatchSize",
    "OrcFileFormat": "spark.sql.orc.columnarReaderBatchSize",
}
"""By file format, the setting that says how many rows its reader decodes at once."""


def string_bytes_read(frame: DataFrame) -> int | None:
    """The bytes of the strings in a row of each file source and cached frame that a frame reads, added up.

    Returns:
        The sum of the averages over the first rows; None if this Spark does not show its plans, or if the frame reads
        no strings.

    Raises:
        Py4JJavaError: A file cannot be read; a write of the frame would fail as well.
    """
    if not is_classic(frame):
        return None
    averages = try_internals(
        lambda: [_sample_relation(frame, leaf, strings) for leaf, strings in _relations(frame)], raises=True
    )
    return sum(averages) if averages else None


def _relations(frame: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The file sources and cached frames that a frame reads, each with the string columns that the frame uses."""
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - see the module
    used = set()
    pending, leaves = [plan], []
    while pending:
        node = pending.pop()
        references = [*items_of(node.references().toSeq()), *(items_of(plan.output()) if node.equals(plan) else ())]
        used |= {reference.exprId().id() for reference in references}
        below = items_of(node.children())
        pending += below
        leaves += [] if below or not _gives_first_rows(node) else [node]
    for leaf in leaves:
        strings = [
            attribute for attribute in items_of(leaf.output())
            if attribute.dataType().typeName().startswith("string") and attribute.exprId().id() in used
        ]  # fmt: skip
        if strings:
            yield leaf, strings


def _gives_first_rows(leaf: Any) -> bool:
    """Whether a leaf of a plan returns its first rows without other work."""
    kind = leaf.getClass().getSimpleName()
    if kind == "LogicalRelation":
        return bool(leaf.relation().getClass().getSimpleName() == "HadoopFsRelation")
    return bool(kind == "InMemoryRelation" and leaf.cacheBuilder().isCachedColumnBuffersLoaded())


def _sample_relation(frame: Any, leaf: Any, strings: list[Any]) -> int:
    """The average bytes of the strings of a relation's first rows; 0 without rows."""
    session = frame.sparkSession
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - see the module
    columns = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(strings), leaf)
    strings_frame = frame_of_plan(frame, columns)
    named = strings_frame.toDF(*(f"c{i}" for i in range(len(strings))))
    lengths = named.select(
        *[functions.coalesce(functions.octet_length(name), functions.lit(0)) for name in named.columns]
    )

    def average(count: int) -> int:
        rows = run_job(session, partial(lengths.take, count))
        return sum(sum(row) for row in rows) // len(rows) if rows else 0

    return _sample_until_settled(average, _rows_at_once(session, leaf))


def _rows_at_once(session: Any, leaf: Any) -> int:
    """The rows that Spark decodes at once even if fewer are taken: to sample them all costs no more."""
    is_files = leaf.getClass().getSimpleName() == "LogicalRelation"
    setting = _BATCH_SETTINGS.get(leaf.relation().fileFormat().getClass().getSimpleName()) if is_files else None
    return 0 if setting is None else int(session.conf.get(setting))


def _sample_until_settled(average: Callable[[int], int], at_once: int) -> int:
    """The average of enough rows: more are sampled while rows are long and each sample at least halves the average."""
    count, row_bytes = _ROWS, average(_ROWS)
    while row_bytes > _LONG and count < _MOST_ROWS:
        count = min(_MOST_ROWS, max(4 * count, at_once))
        last, row_bytes = row_bytes, average(count)
        if row_bytes > last // 2:
            break
    return row_bytes
