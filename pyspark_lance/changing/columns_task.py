"""What executors run for `pyspark_lance.write_columns`: rows with addresses become one file of each fragment.

    rows of a partition, in order of addresses --> a file for each fragment --> one report: their names, or an error
    rows that report files of the first pass ---------------------------------^

The first pass writes fragments that came whole, see `whole_fragments`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core import ColumnTask, LanceDataset, WrittenColumns
from lance_core.errors import InvalidInputError
from pyspark_lance.changing.task import ADDRESS
from pyspark_lance.engine.sessions import use_cores_of_task
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.writing.task import DATA_ERRORS, Report

KEY: Final = "__lance_key_{}"
"""Columns of the key, by number, as strings for messages."""
COUNT: Final = "__lance_count"
"""The number of rows of the table that a key names."""
REPORT: Final = "__lance_report"
"""A report of the first pass, in a row whose address is that of the first row of the fragment; null in other rows."""
ROW_ADDRESS: Final = "_rowaddr"


def delete_written(uri: str, written: Sequence[WrittenColumns], storage_options: Mapping[str, str] | None) -> None:
    """Delete files that no version uses."""
    for columns in written:
        name = PurePosixPath(columns.file.path).stem
        lance_core.delete_uncommitted_files(uri, file_prefix=name, keep=(), storage_options=storage_options)


def runs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each run of rows of one fragment, with the fragment's id; -1 for rows without an address."""
    ids = pc.shift_right(batch.column(ADDRESS).fill_null(-1), 32).to_numpy()
    ends = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1), len(ids)] if len(ids) else []
    for start, end in zip([0, *ends], ends, strict=False):
        yield int(ids[start]), batch.slice(start, end - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsReport(Report):
    """What a task has written, or the error in its data."""

    written: tuple[WrittenColumns, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsTask:
    """Writes the files of the fragments whose rows a partition has; it is pickled.

    Attributes:
        uri: The table.
        version: The version that the rows are in.
        keys: The columns of the key, whose values come as strings for messages; none if the key is the row address.
        stored: The columns, as the table stores them.
        tasks: The tasks of `LanceDataset.plan_columns`, by fragment id.
        storage_options: Options of the storage.
    """

    uri: str
    version: int
    keys: tuple[str, ...]
    stored: pa.Schema
    tasks: Mapping[int, ColumnTask]
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the rows of a partition; returns the report as bytes."""
        del partition, attempt
        use_cores_of_task()
        written: list[WrittenColumns] = []
        reported: list[WrittenColumns] = []
        try:
            self._write(batches, written, reported)
        except DATA_ERRORS as error:
            reported += [columns for batch in batches for report in _split(batch)[1] for columns in report.written]
            delete_written(self.uri, [*written, *reported], self.storage_options)
            return ColumnsReport.of_error(error).to_bytes()
        except BaseException:
            # The next attempt of this task gets the same reports: their files must stay.
            delete_written(self.uri, written, self.storage_options)
            raise
        return ColumnsReport(written=(*reported, *written)).to_bytes()

    def open(self) -> LanceDataset:
        """The version of the table."""
        return lance_core.dataset(self.uri, self.version, storage_options=self.storage_options)

    def _write(
        self, batches: Iterator[pa.RecordBatch], written: list[WrittenColumns], reported: list[WrittenColumns]
    ) -> None:
        """Write the file of each fragment; the rows of one fragment at a time are held in memory.

        Args:
            batches: The rows, in order of addresses, and the reports of the first pass.
            written: Takes the files.
            reported: Takes the files of the first pass.
        """
        dataset, convert = self.open(), self.converter()
        fragment, parts = -1, list[pa.RecordBatch]()
        for batch in batches:
            rows, reports = _split(batch)
            reported += [columns for report in reports for columns in report.written]
            for report in reports:
                report.reject()
            self._check(rows)
            for part_fragment, part in runs(rows):
                if part_fragment != fragment:
                    written += self.files(dataset, fragment, parts)
                    fragment, parts = part_fragment, []
                parts.append(convert(part))
        written += self.files(dataset, fragment, parts)
        _check_once([*reported, *written])

    def converter(self) -> BatchConverter:
        """The converter of the frame's batches into row addresses and columns as the table stores them."""
        return BatchConverter(pa.schema([pa.field(ADDRESS, pa.int64()), *self.stored]))

    def files(self, dataset: LanceDataset, fragment: int, parts: Sequence[pa.RecordBatch]) -> list[WrittenColumns]:
        """Write the file of a fragment from its rows; there is no file if there are no rows to set."""
        if not parts:
            return []
        table = pa.Table.from_batches(parts)
        task = self.tasks.get(fragment)
        if task is None:
            raise InvalidInputError(
                f"row address {table.column(ADDRESS)[0].as_py()} names no row of the scope in version "
                f"{self.version} of {self.uri}; nothing was written"
            )
        addresses = table.column(ADDRESS).cast(pa.uint64())
        written_columns = task.write(dataset, table.drop_columns([ADDRESS]).append_column(ROW_ADDRESS, addresses))
        return [] if written_columns is None else [written_columns]

    def _check(self, batch: pa.RecordBatch) -> None:
        """Reject rows whose key names no row of the table, or several."""
        addresses = batch.column(ADDRESS)
        if addresses.null_count:
            raise InvalidInputError(
                f"{self._key(batch, addresses.is_null())} names no row of the scope in version {self.version} of "
                f"{self.uri}; nothing was written"
            )
        if not self.keys:
            return
        several = pc.greater(batch.column(COUNT), 1)
        if pc.any(several).as_py():
            raise InvalidInputError(
                f"{self._key(batch, several)} names several rows of {self.uri}; nothing was written"
            )
        twice = pc.equal(addresses.slice(1), addresses.slice(0, max(0, len(addresses) - 1)))
        if pc.any(twice).as_py():
            raise InvalidInputError(f"{self._key(batch.slice(1), twice)} comes twice; nothing was written")

    def _key(self, batch: pa.RecordBatch, rows: pa.Array) -> str:
        """The key of the first of some rows."""
        row = batch.filter(rows).slice(0, 1)
        key_values = [f"{name} = {row.column(KEY.format(i))[0].as_py()}" for i, name in enumerate(self.keys)]
        return f"the key {', '.join(key_values)}" if key_values else "a null row address"


def _split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[ColumnsReport]]:
    """The rows with values, and the reports of the first pass."""
    if REPORT not in batch.schema.names:
        return batch, []
    reports = batch.column(REPORT)
    rows = batch.filter(reports.is_null()).drop_columns([REPORT])
    return rows, [ColumnsReport.from_bytes(report.as_py()) for report in reports.drop_null()]


def _check_once(written: Sequence[WrittenColumns]) -> None:
    """Reject a fragment with two files: it came whole, and some of its rows came again."""
    seen: dict[int, WrittenColumns] = {}
    for columns in written:
        other = seen.setdefault(columns.fragment_id, columns)
        if other is not columns:
            address = (columns.fragment_id << 32) | (columns.offsets & other.offsets)[0]
            raise InvalidInputError(f"row address {address} comes twice; nothing was written")
