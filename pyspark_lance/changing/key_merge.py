"""Option `merge_on` of the data source: an upsert whose tasks look up the keys of their rows in the table.

    task      `KeyMergeTask`: keys are looked up in the table; new rows, and bitmaps of deleted rows
    commit    one Update with bitmaps of deleted rows and hashes of new keys

A data source has no session and cannot run Spark's joins: each task reads the key columns of the table, narrowed by an
index if the table has one. Rows with the same key may be in several tasks. They are detected because they replace the
same row, or because the hashes of their keys are equal. After a conflict, the committing process looks up the keys of
the new files again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

import lance_core
from lance_core import CommitResult, FragmentMetadata, LanceDataset, WriteResult
from lance_core.errors import InvalidInputError
from pyspark_lance.changing.finer_values import FinerColumns
from pyspark_lance.changing.job import build_inserted_keys_filter, collect_deleted_rows
from pyspark_lance.changing.key_lookup import KeyLookup, KeyMergeTask
from pyspark_lance.changing.task import ChangeReport, RowLevelTask
from pyspark_lance.engine.partitions import PartitionFunction
from pyspark_lance.writing.job import WriteJob
from pyspark_lance.writing.replace_where import CONFLICT_RETRIES, replace_rows
from pyspark_lance.writing.row_checks import hashes_of_keys
from pyspark_lance.writing.task import PartitionTask
from pyspark_lance.writing.update_commit import find_rows_with_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeJob(WriteJob):
    """A write with `merge_on` into an existing table; it can be pickled.

    Attributes:
        stable: Whether rows of the table have stable ids.
    """

    stable: bool

    @classmethod
    def of(cls, write: WriteJob) -> KeyMergeJob:
        """The merge of a write."""
        facts = {field.name: getattr(write, field.name) for field in fields(WriteJob)}
        return cls(**facts, stable=write.base().has_stable_row_ids)

    def task(self) -> PartitionFunction:
        """The function to run on each partition."""
        change = RowLevelTask(
            **{field.name: getattr(self.writing, field.name) for field in fields(PartitionTask)},
            on=self._on,
            stable=self.stable,
            most_keys=None,  # rows of a key may be in two tasks
            finer=FinerColumns.of(self.base(), self.options.storage_options),
        )
        return KeyMergeTask(version=self.base_version, change=change, lookup=KeyLookup())

    @property
    def _on(self) -> tuple[str, ...]:
        return self.options.merge_on or ()

    def _result(self, committed: CommitResult, reports: Sequence[Any]) -> WriteResult:
        fragments = [fragment for report in reports for fragment in report.fragments]
        return WriteResult.of(committed, fragments, sum(sum(report.counts[:2]) for report in reports), {})

    def _commit(self, fragments: list[FragmentMetadata], reports: Sequence[ChangeReport]) -> CommitResult:
        options, base = self.options, self.base()
        try:
            deleted = collect_deleted_rows(reports, self._on)
            inserted = build_inserted_keys_filter(base, reports, self._on)
        except InvalidInputError:
            hashes_of_keys(self._read_written_keys(fragments))  # raises an error that names the key
            raise

        def find_deleted(latest: LanceDataset) -> Mapping[int, BitMap]:
            return deleted if latest is base else find_rows_with_keys(latest, self._read_written_keys(fragments))

        # With stable ids the new rows already carry the ids of the rows that they replace.
        retries = 0 if self.stable else CONFLICT_RETRIES
        return replace_rows(base, fragments, options, find_deleted, inserted=inserted, conflict_retries=retries)

    def _read_written_keys(self, fragments: Iterable[FragmentMetadata]) -> pa.Table:
        """The keys of the rows of new files."""
        tables = [
            lance_core.file.LanceFileReader(
                f"{self.writing.uri}/data/{file.path}", self.options.storage_options, list(self._on)
            )
            .read_all()
            .to_table()
            for fragment in fragments
            for file in fragment.files
        ]
        schema = pa.schema([self.plan.stored.field(name) for name in self._on])
        columns = [pa.chunked_array([c for t in tables for c in t.column(f.name).chunks], f.type) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)
