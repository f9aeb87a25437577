"""`merge_insert`: update, insert and delete rows of a dataset from a source of rows, joined by key, in one version.

`explain_plan` shows the steps of a merge in the layout of pylance's plans, the last step first:

    MergeInsert: on=[id], when_matched=UpdateAll, when_not_matched=InsertAll, when_not_matched_by_source=Keep
      HashJoin: on=[id], keys=of the source in memory
        LanceRead: uri=/lake/t.lance, version=3, projection=[id], fragments=4, rows=1000
        Source: columns=[id, value]
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import checked_methods
from lance_core.commit.attempts import WriteAttempt
from lance_core.commit.records import Commit
from lance_core.errors import ArgumentTypeError, UnsupportedError
from lance_core.extension_types import empty_table
from lance_core.index.kinds.registry import KINDS
from lance_core.retry import CONFLICT_RETRIES, RETRY_TIMEOUT
from lance_core.schema import typed_schema
from lance_core.table import transaction as records
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.bases import WriteTarget, write_targets
from lance_core.verbs.context.handle import Handle, Snapshot, retry_on_latest
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files
from lance_core.verbs.files.fragment_writer import ReaderLike, open_input_rows
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.rows.merge_clauses import (
    MergeClauses,
    MergeSource,
    WhenMatched,
    check_conditions,
    join_columns,
    merge_source,
)
from lance_core.verbs.rows.merge_rows import MergeAttempt, Merged
from lance_core.verbs.rows.source_rows import SourceRows
from lance_core.verbs.rows.write_mode import WriteMode
from lance_core.verbs.scan.explain import PlanStep
from lance_core.verbs.scan.read_fragment import count_live_each


@checked_methods
class MergeInsertBuilder:
    """Builds a merge: what happens to rows whose key is in both source and dataset, or only in one of them.

    Updated rows move to the end of the dataset, unless `write_mode` rewrites columns. A key with a null equals no key.

    Two merges that insert the same new key at the same time conflict only if the key is declared as the primary key of
    the schema, by the metadata `lance-schema:unenforced-primary-key` = `true` of its fields: the later merge is then
    repeated, and its row matches; or if both merges `record_keys`. Otherwise the row is inserted twice, as with
    pylance.

    Args:
        dataset: The dataset; the handle moves to the new version.
        on: Columns that make up the key; None for the primary key.

    Raises:
        InvalidInputError: A column does not exist, or there is no primary key.
    """

    def __init__(self, dataset: Handle, on: str | Iterable[str] | None = None) -> None:
        self._dataset = dataset
        columns = on if isinstance(on, str) or on is None else list(on)
        self._clauses = MergeClauses(on=join_columns(columns, dataset.snapshot.manifest.schema))
        self._retries = CONFLICT_RETRIES
        self._timeout = RETRY_TIMEOUT
        self._version: str | None = None
        self._target_bases: Sequence[str] | None = None
        self._target_all_bases: bool | None = None
        self._commit = Commit()

    def commit_properties(self, properties: Mapping[str, str]) -> Self:
        """Set the transaction properties of the commit. Not in pylance."""
        self._commit = replace(self._commit, properties=dict(properties))
        return self

    def write_attempt(self, write: WriteAttempt) -> Self:
        """Make the merge an attempt of a write, whose properties become properties of the commit. Not in pylance.

        `execute` raises SupersededError if a later attempt has committed. It raises EarlierAttemptCommittedError if an
        earlier attempt has committed a version that is not in `write.earlier`, because the rows of the source decide
        whether a second merge changes the result. To merge again nevertheless, add that version to `earlier`.
        """
        self._commit = replace(self._commit, write_attempt=write)
        return self

    def when_matched_update_all(self, condition: str | pc.Expression | None = None) -> Self:
        """Rows whose key is in both get the source's values.

        Args:
            condition: Update only rows for which this is true; it uses `source.<column>` and `target.<column>`.
        """
        self._clauses = replace(self._clauses, matched=WhenMatched.UPDATE, condition=condition)
        return self

    def when_matched_delete(self) -> Self:
        """Rows whose key is in both are deleted."""
        self._clauses = replace(self._clauses, matched=WhenMatched.DELETE, condition=None)
        return self

    def source_deletes(self, rows: Sequence[bool] | pa.BooleanArray) -> Self:
        """Some rows of the source delete the row with their key instead of updating it, and are never inserted.

        Not in pylance.

        Args:
            rows: For each row of the source, in order, whether it deletes.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2], "n": [0, 0]}, "t.lance")
            >>> merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            >>> merge.source_deletes([True, False]).execute(pa.table({"id": [1, 3], "n": [0, 7]}))
            {'num_inserted_rows': 1, 'num_updated_rows': 0, 'num_deleted_rows': 1}
        """
        self._clauses = replace(self._clauses, source_deletes=np.asarray(rows, np.bool_))
        return self

    def within(self, slices: Slices) -> Self:
        """Require that slices contain the rows whose key is in both; `execute` raises if a row is outside of them.

        Not in pylance. It is not checked whether the slices contain the rows of the source.
        """
        self._clauses = replace(self._clauses, within=slices)
        return self

    def record_keys(self) -> Self:
        """Record the inserted keys in the commit, as is done for the declared primary key. Not in pylance.

        Of two merges at a time that insert the same key and both record it, the later one is repeated. It is also
        repeated after any other commit that may have inserted rows meanwhile: an append, a merge that records no keys,
        or one that inserted more than `MAX_EXACT_KEYS` rows, whose keys are not listed.

        Examples:
            >>> table = lance.write_dataset({"id": [1], "n": [0]}, "t.lance")
            >>> merges = [lance.dataset("t.lance").merge_insert("id").record_keys() for _ in range(2)]
            >>> for merge in merges:
            ...     merge = merge.when_matched_update_all().when_not_matched_insert_all()
            ...     counts = merge.execute(pa.table({"id": [2], "n": [0]}))
            >>> lance.dataset("t.lance").count_rows(), counts["num_updated_rows"]
            (2, 1)
        """
        self._clauses = replace(self._clauses, records_keys=True)
        return self

    def when_matched_fail(self) -> Self:
        """`execute` raises if a row has a key in both."""
        self._clauses = replace(self._clauses, matched=WhenMatched.FAIL, condition=None)
        return self

    def when_not_matched_insert_all(self) -> Self:
        """Rows whose key is only in the source are inserted; columns that the source lacks become null."""
        self._clauses = replace(self._clauses, inserts=True)
        return self

    def when_not_matched_by_source_delete(self, expr: str | pc.Expression | None = None) -> Self:
        """Rows whose key is only in the dataset are deleted.

        Args:
            expr: Delete only rows for which this is true; it uses the dataset's columns.
        """
        self._clauses = replace(self._clauses, deletes_others=True, delete_condition=expr)
        return self

    def conflict_retries(self, max_retries: int) -> Self:
        """How often the merge is repeated after conflicts with other writers."""
        self._retries = max_retries
        return self

    def retry_timeout(self, timeout: timedelta) -> Self:
        """The time after which no further attempt begins."""
        if not isinstance(timeout, timedelta):
            raise ArgumentTypeError(f"retry_timeout must be a timedelta, not {type(timeout).__name__}")
        self._timeout = timeout
        return self

    def data_storage_version(self, version: str) -> Self:
        """Version of the files of moved and inserted rows; by default that of the dataset."""
        self._version = version
        return self

    def use_index(self, use_index: bool) -> Self:
        """Whether keys may be looked up in indices, which then also decide the `write_mode` "auto"."""
        self._clauses = replace(self._clauses, use_index=use_index)
        return self

    def write_mode(self, mode: str) -> Self:
        """How updated rows are stored.

        Args:
            mode: "rewrite_rows" moves the rows. "rewrite_columns" rewrites only the source's columns, for all rows of
                the fragments with matches. "auto" rewrites columns if the source lacks columns, no clause deletes
                rows, and each key column has a B-tree or bitmap index that may be used; otherwise it moves rows.
                "fewest_bytes" (not in pylance) rewrites columns if these have fewer bytes than the rows.

        Raises:
            InvalidInputError: There is no such mode.
        """
        self._clauses = replace(self._clauses, write_mode=WriteMode.parse(mode))
        return self

    def target_bases(self, bases: Sequence[str]) -> Self:
        """Names or URIs of base paths for new fragments, round-robin; the dataset's URI selects its root."""
        self._target_bases = list(bases)
        return self

    def target_all_bases(self, include_primary: bool = True) -> Self:
        """Write new fragments to all base paths, round-robin.

        Args:
            include_primary: Whether the dataset's root is a target, too, before the base paths.
        """
        self._target_all_bases = include_primary
        return self

    def execute(self, data_obj: ReaderLike, *, schema: pa.Schema | None = None) -> dict[str, int]:
        """Merge and commit.

        Args:
            data_obj: The source: a table, batch, reader, frame, dataset or iterable. The keys of a stream are kept in
                memory; its rows, if they are many, in an unnamed temporary file in the folder `TMPDIR`.
            schema: Schema of an iterable of batches.

        Returns:
            Numbers of rows: `num_inserted_rows`, `num_updated_rows`, `num_deleted_rows`.

        Raises:
            SchemaError: The source does not fit the dataset.
            InvalidInputError: The clauses forbid a match, or several source rows match one row.
            RetryableConflictError: A commit of another writer conflicted with every attempt.
            SupersededError, EarlierAttemptCommittedError: See `write_attempt`.
        """
        table = self._read_source(data_obj, schema)
        has_attempts, began = self._commit.write_attempt is not None, self._dataset.snapshot.manifest.version
        options = replace(self._commit, checked_through=began if has_attempts else None)

        def attempt(base: Snapshot) -> tuple[Manifest, Merged]:
            with collecting_files(base) as files:
                merged = self._merge(base, table, files)
                affected = merged.removal.affected_rows if merged.removal is not None else None
                return files.commit(merged.operation, affected, self._transaction_properties, options), merged

        manifest, merged = retry_on_latest(
            self._dataset.snapshot, attempt, conflict_retries=self._retries, retry_timeout=self._timeout
        )
        self._dataset.move_to(manifest)
        return merged.stats.as_dict()

    def execute_uncommitted(
        self, data_obj: ReaderLike, *, schema: pa.Schema | None = None
    ) -> tuple[Transaction, dict[str, int]]:
        """Merge without a commit, for a later `LanceDataset.commit`, with the arguments of `execute`.

        Returns:
            The transaction, and the numbers of rows that `execute` returns.
        """
        base = self._dataset.snapshot
        with collecting_files(base) as files:
            merged = self._merge(base, self._read_source(data_obj, schema), files)
        record = records.Transaction(
            read_version=base.manifest.version, operation=merged.operation, properties=self._transaction_properties
        )
        affected = merged.removal.affected_rows if merged.removal is not None else None
        return Transaction.from_record(record, affected), merged.stats.as_dict()

    def explain_plan(self, schema: pa.Schema | None = None, verbose: bool = False) -> str:
        """The plan of the merge, the last step first; pylance prints plans of DataFusion, which differ.

        Args:
            schema: Columns of the source; None for those of the dataset.
            verbose: Accepted without effect: all steps are shown.

        Raises:
            SchemaError: The columns do not fit.
            UnsupportedError: The merge looks its keys up in an index, so the keys decide which rows are read.
        """
        del verbose
        snapshot = self._dataset.snapshot
        self._clauses.check()
        self._check_joins(snapshot)
        data_schema = typed_schema(snapshot.manifest.schema) if schema is None else schema
        self._fit_source(SourceRows(empty_table(data_schema)), snapshot)
        return "\n".join(merge_steps(snapshot, self._clauses, data_schema).lines())

    def analyze_plan(self, data_obj: ReaderLike, *, schema: pa.Schema | None = None) -> str:
        """Compute the merge without a commit; return its plan with its numbers of rows, its time and its new fragments.

        Its files are deleted. Arguments and errors are those of `execute` and `explain_plan`.
        """
        snapshot, table = self._dataset.snapshot, self._read_source(data_obj, schema)
        self._check_joins(snapshot)
        started = time.perf_counter()
        with collecting_files(snapshot) as files:
            merged = self._merge(snapshot, table, files)
            seconds = time.perf_counter() - started
            files.discard()
        written = merged.new_files(snapshot)
        metrics = {
            "elapsed_seconds": f"{seconds:.6f}",
            "bytes_written": sum(file.file_size_bytes for file in written),
            "num_files_written": len(written),
            **merged.stats.as_dict(),
        }
        step = merge_steps(
            snapshot, self._clauses, table.schema, metrics=[f"{name}={value}" for name, value in metrics.items()]
        )
        return "\n".join(step.lines())

    def _check_joins(self, snapshot: Snapshot) -> None:
        """Reject the plan of a merge that looks its keys up in an index, as pylance does.

        Raises:
            UnsupportedError: The merge looks its keys up in an index.
        """
        clauses, manifest = self._clauses, snapshot.manifest
        ids = [manifest.schema.column(name).id for name in clauses.on]
        indexed = {index.fields for index in manifest.indices if index.kind in KINDS}
        if clauses.use_index and not clauses.deletes_others and all((field_id,) in indexed for field_id in ids):
            raise UnsupportedError(
                f"This merge insert configuration does not support explain_plan: its keys {list(clauses.on)} are "
                "looked up in an index; use_index(False) plans the merge without it"
            )

    def mark_sstables_as_compacted(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered, because this library writes no write-ahead logs."""
        raise UnsupportedError("merge_insert.mark_sstables_as_compacted is not offered")

    @property
    def _transaction_properties(self) -> dict[str, str]:
        """The properties of the commit."""
        return {**self._commit.texts, **self._commit.identity}

    def _read_source(self, data_obj: ReaderLike, schema: pa.Schema | None) -> SourceRows:
        self._clauses.check()
        data_schema, batches = open_input_rows(data_obj, schema)
        # A source that cannot be merged is rejected before its stream is read.
        self._fit_source(SourceRows(empty_table(data_schema)), self._dataset.snapshot)
        return SourceRows.of(data_schema, batches, is_stream=not isinstance(batches, list))

    def _fit_source(self, table: SourceRows, base: Snapshot) -> MergeSource:
        """The rows of the source, fitted to the dataset, after a check of the conditions."""
        rows = merge_source(table, base.manifest.schema, self._clauses)
        check_conditions(self._clauses, rows.rows.schema, base.manifest)
        return rows

    def _merge(self, base: Snapshot, table: SourceRows, files: UncommittedFiles) -> Merged:
        targets: list[WriteTarget] | None = None
        if self._target_bases is not None or self._target_all_bases is not None:
            targets = write_targets(
                base.store,
                base.manifest.base_paths,
                target_bases=self._target_bases,
                target_all_bases=self._target_all_bases,
                options=base.options,
            )
        return MergeAttempt(
            base=base,
            clauses=self._clauses,
            rows=self._fit_source(table, base),
            files=files,
            targets=targets,
            data_storage_version=self._version,
        ).run()


_MATCHED: Final = {
    WhenMatched.NOTHING: "DoNothing",
    WhenMatched.UPDATE: "UpdateAll",
    WhenMatched.DELETE: "Delete",
    WhenMatched.FAIL: "Fail",
}


def merge_steps(
    snapshot: Snapshot, clauses: MergeClauses, schema: pa.Schema, *, metrics: Sequence[str] = ()
) -> PlanStep:
    """The steps of a merge.

    Args:
        snapshot: The version of the dataset.
        clauses: The clauses of the merge.
        schema: Columns of the source.
        metrics: Measurements of a run; empty if the merge did not run.
    """
    manifest, keys = snapshot.manifest, ", ".join(clauses.on)
    matched = _MATCHED[clauses.matched]
    if clauses.matched is WhenMatched.UPDATE and clauses.condition is not None:
        matched = f"UpdateIf({clauses.condition})"
    by_source = "Keep"
    if clauses.deletes_others:
        by_source = "Delete" if clauses.delete_condition is None else f"DeleteIf({clauses.delete_condition})"
    facts = [
        f"on=[{keys}]",
        f"when_matched={matched}",
        f"when_not_matched={'InsertAll' if clauses.inserts else 'DoNothing'}",
        f"when_not_matched_by_source={by_source}",
    ]
    if metrics:
        facts.append(f"metrics=[{', '.join(metrics)}]")
    read = PlanStep(
        name="LanceRead",
        facts=(
            f"uri={snapshot.store.root}",
            f"version={manifest.version}",
            f"projection=[{keys}]",
            f"fragments={len(manifest.fragments)}",
            f"rows={sum(count_live_each(snapshot, manifest.fragments))}",
        ),
    )
    rows = PlanStep(name="Source", facts=(f"columns=[{', '.join(schema.names)}]",))
    join = PlanStep(name="HashJoin", facts=(f"on=[{keys}]", "keys=of the source in memory"), inputs=(read, rows))
    return PlanStep(name="MergeInsert", facts=tuple(facts), inputs=(join,))
