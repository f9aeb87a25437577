"""The first pass of `pyspark_lance.write_columns`: fragments that come whole and in order are not shuffled.

    rows of a task    fragment 1, all rows in order  --> its file --> one row that reports it  --\
                      fragment 2, its first rows     -----------------------------------------> shuffle by fragment

A frame that kept its row addresses has whole fragments in order where each task reads whole fragments. The rows of a
fragment are held as long as they are the first rows of its scope, in order; all others are passed on as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import ColumnTask, LanceDataset, WrittenColumns
from lance_core.row_addresses import offsets_of, row_offsets
from pyspark_lance.changing.columns_task import REPORT, ColumnsReport, ColumnsTask, delete_written, runs
from pyspark_lance.changing.task import ADDRESS
from pyspark_lance.engine.errors import plain_errors
from pyspark_lance.engine.sessions import use_cores_of_task
from pyspark_lance.lazy import DataFrame, types
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.writing.task import DATA_ERRORS


def write_whole_fragments(frame: DataFrame, task: ColumnsTask) -> DataFrame:
    """The frame, in which one row that reports the file takes the place of each fragment that comes whole."""
    columns = [types.StructField(column.name, column.dataType, True, column.metadata) for column in frame.schema]
    return frame.mapInArrow(
        partial(_first_pass, task), types.StructType([*columns, types.StructField(REPORT, types.BinaryType())])
    )


def _first_pass(task: ColumnsTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task of `mapInArrow`."""
    use_cores_of_task()
    written: list[WrittenColumns] = []
    rows = _Rows.of(-1, None)
    dataset, convert = task.open(), task.converter()
    try:
        with plain_errors():
            for batch in batches:
                for fragment, part in runs(batch):
                    if fragment != rows.fragment:
                        yield from _end_fragment(task, dataset, convert, rows, written)
                        rows = _Rows.of(fragment, task.tasks.get(fragment))
                    yield from map(_add_report, rows.take(part))
            yield from _end_fragment(task, dataset, convert, rows, written)
    except BaseException:
        delete_written(task.uri, written, task.storage_options)
        raise


@dataclass(slots=True)
class _Rows:
    """The rows of one fragment that have come so far.

    Attributes:
        fragment: The fragment.
        scope: Offsets of the rows that a whole fragment has, in order.
        held: The rows, while they are the first ones of the scope.
    """

    fragment: int
    scope: npt.NDArray[np.int64]
    held: list[pa.RecordBatch] = field(default_factory=list)
    _count: int = 0

    @staticmethod
    def of(fragment: int, task: ColumnTask | None) -> _Rows:
        rows = BitMap() if task is None else BitMap.deserialize(task.scope)
        return _Rows(fragment, offsets_of(rows))

    @property
    def is_whole(self) -> bool:
        return 0 < self._count == len(self.scope)

    def take(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Hold the next rows; returns the rows that are not held, or are held no longer."""
        end = self._count + rows.num_rows
        addresses = rows.column(ADDRESS).fill_null(-1).to_numpy()
        if self._count >= 0 and np.array_equal(self.scope[self._count : end], row_offsets(addresses.view(np.uint64))):
            self.held.append(rows)
            self._count = end
            return []
        passed, self.held, self._count = [*self.held, rows], [], -1
        return passed


def _end_fragment(
    task: ColumnsTask, dataset: LanceDataset, convert: BatchConverter, rows: _Rows, written: list[WrittenColumns]
) -> Iterator[pa.RecordBatch]:
    """Yield the report of a whole fragment, whose file `written` takes, or the rows that are held."""
    if not rows.is_whole:
        yield from map(_add_report, rows.held)
        return
    try:
        report = ColumnsReport(written=tuple(task.files(dataset, rows.fragment, list(map(convert, rows.held)))))
    except DATA_ERRORS as error:
        report = ColumnsReport.of_error(error)
    written.extend(report.written)
    yield _add_report(rows.held[0].slice(0, 1), report)


def _add_report(rows: pa.RecordBatch, report: ColumnsReport | None = None) -> pa.RecordBatch:
    """Rows with a column of reports; a row that has one keeps its address, and no value."""
    if report is None:
        return rows.append_column(REPORT, pa.nulls(rows.num_rows, pa.binary()))
    columns = [rows.column(ADDRESS) if f.name == ADDRESS else pa.nulls(1, f.type) for f in rows.schema]
    arrays = [*columns, pa.array([report.to_bytes()], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema.append(pa.field(REPORT, pa.binary())))
