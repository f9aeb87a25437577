"""Option `merge_on` of the data source: an upsert whose tasks look up the keys of their rows in the table.

    task      `KeyMergeTask`: keys are looked up in the table; new rows, and bitmaps of deleted rows
    commit    one Update with bitmaps of deleted rows and hashes of new keys

A data source has no session and cannot run Spark's joins: each task reads the key columns of the table, narrowed by an
index if the table has one. Rows with the same key may be in several tasks. They are detected because they replace the
same row, or because the hashes of their keys are equal. After a conflict, the committing process looks up the keys of
the new files again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

import lance_core
from lance_core import CommitResult, FragmentMetadata, LanceDataset
from lance_core.errors import InvalidInputError, LanceError, StoreError
from pyspark_lance.changing.finer_values import FinerColumns
from pyspark_lance.changing.job import build_inserted_keys_filter, collect_deleted_rows
from pyspark_lance.changing.key_lookup import KeyLookup, KeyMergeTask
from pyspark_lance.changing.task import ChangeReport, RowLevelTask
from pyspark_lance.writing.job import WriteJob
from pyspark_lance.writing.orphan_files import committed_fragments
from pyspark_lance.writing.row_checks import hashes_of_keys
from pyspark_lance.writing.row_lookup import find_rows_with_keys
from pyspark_lance.writing.task import PartitionTask
from pyspark_lance.writing.update_commit import commit_update, make_conflict_error

_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeJob:
    """A write with `merge_on` into an existing table, with the methods of `WriteJob`; it can be pickled.

    Attributes:
        write: The prepared write.
        stable: Whether rows of the table have stable ids.
    """

    write: WriteJob
    stable: bool

    @classmethod
    def of(cls, write: WriteJob) -> KeyMergeJob:
        """The merge of a write."""
        return cls(write=write, stable=write.base().has_stable_row_ids)

    def task(self) -> KeyMergeTask:
        """The function to run on each partition."""
        plain = self.write.task()
        base, options = self.write.base(), self.write.options.storage_options
        change = RowLevelTask(
            **{field.name: getattr(plain, field.name) for field in fields(PartitionTask)},
            on=self._on,
            stable=self.stable,
            most_keys=None,  # rows of a key may be in two tasks
            finer=FinerColumns.of(base, options),
        )
        return KeyLookup().task(self.write.base_version, change, options)

    def finish(self, messages: Iterable[bytes]) -> LanceDataset:
        """Commit what the tasks report, and delete the files that the commit does not use.

        Raises:
            InvalidInputError: Two rows have one key, or data cannot be written.
            RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
            OutcomeUnknownError: The storage did not report whether the commit took effect.
        """
        try:
            reports = [ChangeReport.from_bytes(message) for message in messages]
            new_fragments = [fragment for report in reports for fragment in report.fragments]
            done = self._commit(new_fragments, reports)
        except StoreError:
            raise  # the commit may have taken effect, or may still do so
        except LanceError:
            self.clean(())
            raise
        self.clean(committed_fragments(done, new_fragments))
        return done.dataset

    def clean(self, keep: Iterable[FragmentMetadata], *, failed: bool = False) -> None:
        """Delete the files of this write that belong to none of some fragments; see `delete_orphan_files`."""
        self.write.clean(keep, failed=failed)

    @property
    def _on(self) -> tuple[str, ...]:
        return self.write.options.merge_on or ()

    def _commit(self, new_fragments: list[FragmentMetadata], reports: Sequence[ChangeReport]) -> CommitResult:
        options = self.write.options
        base = self.write.base()
        try:
            deleted, inserted = (
                collect_deleted_rows(reports, self._on),
                build_inserted_keys_filter(base, reports, self._on),
            )
        except InvalidInputError:
            hashes_of_keys(self._read_written_keys(new_fragments))  # raises an error that names the key
            raise

        def attempt(begin: tuple[LanceDataset, dict[int, BitMap]], _: int) -> CommitResult:
            return commit_update(
                begin[0],
                new_fragments,
                begin[1],
                options.commit,
                inserted=inserted,
                checked_through=self.write.base_version,
            )

        def following(_begin: object, _conflict: object) -> tuple[LanceDataset, dict[int, BitMap]]:
            latest = lance_core.dataset(self.write.uri, storage_options=options.storage_options)
            return latest, find_rows_with_keys(latest, self._read_written_keys(new_fragments))

        return lance_core.retrying(
            (base, deleted),
            attempt,
            following,
            # With stable ids the new rows already carry the ids of the rows that they replace.
            conflict_retries=0 if self.stable else _ATTEMPTS - 1,
            exhausted=make_conflict_error(self.write.uri),
        )

    def _read_written_keys(self, fragments: Iterable[FragmentMetadata]) -> pa.Table:
        """The keys of the rows of new files."""
        tables = [
            lance_core.file.LanceFileReader(
                f"{self.write.uri}/data/{file.path}", self.write.options.storage_options, list(self._on)
            )
            .read_all()
            .to_table()
            for fragment in fragments
            for file in fragment.files
        ]
        schema = pa.schema([self.write.plan.stored.field(name) for name in self._on])
        columns = [pa.chunked_array([c for t in tables for c in t.column(f.name).chunks], f.type) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)
