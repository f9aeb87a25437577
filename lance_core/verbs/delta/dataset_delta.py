"""The changes between two versions (`LanceDataset.delta`): rows by kind, one feed of all, or tasks that read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.arguments import checked_methods
from lance_core.commit.versions import existing_versions, identity_of, latest_version
from lance_core.errors import InvalidInputError, UnsupportedError, VersionNotFoundError
from lance_core.row_addresses import make_row_addresses, offsets_of
from lance_core.schema import Schema
from lance_core.table import transaction as records
from lance_core.table.fragment_list import FragmentList
from lance_core.table.operations import (
    Append,
    CreateIndex,
    Operation,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    UpdateBases,
    UpdateConfig,
)
from lance_core.table.rowids import encode_versions
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.delta.change_task import ChangeColumns, ChangeTask, ChangeType, rows_of_fragment
from lance_core.verbs.delta.row_differences import RowDifferences, row_differences
from lance_core.verbs.delta.same_columns import FieldHistory, SameColumns, same_columns
from lance_core.verbs.delta.version_of_branch import BranchHistory, version_before
from lance_core.verbs.delta.written_columns import only_written
from lance_core.verbs.expressions.arrow import check_filter, columns_of
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.rows.removal import RowsByFragment
from lance_core.verbs.rows.rewritten_rows import fragment_name
from lance_core.verbs.scan.options import scan_options
from lance_core.verbs.scan.projection import CREATED_AT, ROW_ID, UPDATED_AT, row_field, scanned_columns

_CHANGES_NO_ROW: Final = (CreateIndex, Project, ReserveFragments, Rewrite, UpdateBases, UpdateConfig)
"""Operations after which each row has the values that it had before."""

_ROW_COLUMNS: Final = (ROW_ID, CREATED_AT, UPDATED_AT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """A change feed, in parts that are read independently.

    Attributes:
        schema: The schema of all batches.
        tasks: The parts, in the order of the feed.
    """

    schema: pa.Schema
    tasks: tuple[ChangeTask, ...]

    @property
    def counts(self) -> Mapping[ChangeType, int]:
        """The number of rows by `_change_type`."""
        counts: Counter[ChangeType] = Counter()
        for task in self.tasks:
            counts[task.change_type] += task.num_rows
        return counts


@checked_methods
class DatasetDelta:
    """The changes between two versions; made by `LanceDataset.delta`.

    Rows are compared by what manifests record, so planning reads no data file. With stable row ids, the comparison
    takes about 50 bytes of memory for each row of the fragments that differ.

    Args:
        dataset: The table, at the later version.
        begin_version: The earlier version; 0 for an empty table.
    """

    def __init__(self, dataset: Handle, begin_version: int) -> None:
        self._dataset = dataset
        self._begin = begin_version

    @property
    def begin_version(self) -> int:
        """The earlier version, whose own changes are excluded."""
        return self._begin

    @property
    def end_version(self) -> int:
        """The later version, whose own changes are included."""
        return self._dataset.version

    def list_transactions(self) -> list[Transaction]:
        """The transactions after the earlier version, up to that of the later version, oldest first.

        Raises:
            VersionNotFoundError: A version was cleaned up, or records no transaction.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> deleted = table.delete("id = 2")
            >>> [one.operation.name for one in table.delta(1).list_transactions()]
            ['Delete']
        """
        return [
            Transaction.from_record(self._load_transaction(v)) for v in range(self._begin + 1, self.end_version + 1)
        ]

    def get_inserted_rows(self) -> pa.RecordBatchReader:
        """The rows that only the later version has, with their values in the later version.

        Returns:
            The columns of the later version, `_rowid`, `_row_created_at_version` and `_row_last_updated_at_version`.

        Raises:
            VersionNotFoundError: A version that is needed was cleaned up.
            UnsupportedError: The table has no stable row ids, and rows were updated.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.delta(1).get_inserted_rows().read_all()["id"].to_pylist()
            [4]
        """
        return self._read_rows(self._end, self._differences.inserted)

    def get_updated_rows(self) -> pa.RecordBatchReader:
        """The rows that both versions have and that were updated, with their values in the later version.

        Returns:
            The columns of `get_inserted_rows`.

        Raises:
            UnsupportedError: The table has no stable row ids.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2], "n": [0, 0]}, "t.lance", enable_stable_row_ids=True)
            >>> updated = table.update({"n": "5"}, where="id = 2")
            >>> table.delta(1).get_updated_rows().read_all().select(["id", "n"]).to_pylist()
            [{'id': 2, 'n': 5}]
        """
        self._check_stable("updated rows")
        return self._read_rows(self._end, self._differences.updated)

    def get_deleted_rows(self) -> pa.RecordBatchReader:
        """The rows that only the earlier version has, with their values in the earlier version. Not in pylance.

        Returns:
            The columns of the earlier version, `_rowid`, `_row_created_at_version` and `_row_last_updated_at_version`.

        Raises:
            VersionNotFoundError: A version that is needed was cleaned up.
            UnsupportedError: The table has no stable row ids, and rows were updated.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> deleted = table.delete("id = 2")
            >>> table.delta(1).get_deleted_rows().read_all()["id"].to_pylist()
            [2]
        """
        return self._read_rows(self._begin_snapshot or self._end, self._differences.deleted)

    def get_deleted_row_ids(self) -> pa.RecordBatchReader:
        """The stable row ids of the rows that only the earlier version has.

        Returns:
            The column `_rowid`, ascending.

        Raises:
            UnsupportedError: The table has no stable row ids.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance", enable_stable_row_ids=True)
            >>> deleted = table.delete("id = 2")
            >>> table.delta(1).get_deleted_row_ids().read_all()["_rowid"].to_pylist()
            [1]
        """
        self._check_stable("ids of deleted rows")
        return pa.table([pa.array(self._differences.deleted_ids)], schema=pa.schema([row_field(ROW_ID)])).to_reader()

    def get_changes(
        self,
        columns: Sequence[str] | None = None,
        *,
        updates_of: Sequence[str] | None = None,
        filter: str | pc.Expression | None = None,  # noqa: A002 - the name that scanners give it
        preimages: bool = False,
        each_version: bool = False,
        with_row_id: bool = False,
        blob_handling: str | None = None,
        batch_size: int | None = None,
    ) -> pa.RecordBatchReader:
        """All changes in one feed, whose columns are those of Delta's change data feed. Not in pylance.

        Args:
            columns: Columns of the later version; None for all.
            updates_of: Columns of the later version; None for all columns. An updated row is left out if the files
                with its values in these columns are the same as before. It is given if an update moved it, or if a
                version that was cleaned up moved it.
            filter: A condition on the rows, as SQL or an expression over columns of the later version; None for all.
                Old and new values are checked separately: of an updated row, only the values that meet the condition
                are given. Other columns are read only for rows that meet the condition.
            preimages: Give an updated row twice: as it was ("update_preimage") and as it is ("update_postimage").
            each_version: Give the changes of each version. Otherwise changes are net: each row has one change, and
                none if it was inserted and deleted between the versions.
            with_row_id: Add `_rowid` at the end.
            blob_handling: How columns of blobs are given, as in `LanceDataset.scanner`.
            batch_size: Most rows of a batch.

        Returns:
            The columns, `_change_type` ("delete", "update_preimage", "update_postimage" or "insert", in this order),
            `_commit_version` and `_commit_timestamp`. The version of a net change is the last one that changed the row,
            or the later version for "delete"; its time is null if that version was cleaned up.
            Without stable row ids it is the version that added the row, or the later version if `begin_version` is 0.

        Raises:
            VersionNotFoundError: A version that is needed was cleaned up.
            UnsupportedError: The table has no stable row ids, and rows were updated.
            InvalidInputError: The filter is not a condition, or does not fit the columns.
            SchemaError: A column does not exist, or an earlier value does not fit the current type of its column.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> deleted = table.delete("id = 2")
            >>> table.delta(1).get_changes().read_all().select(["id", "_change_type", "_commit_version"]).to_pylist()
            [{'id': 2, '_change_type': 'delete', '_commit_version': 3}, \
{'id': 4, '_change_type': 'insert', '_commit_version': 2}]
        """
        plan = self.plan(
            columns,
            updates_of=updates_of,
            filter=filter,
            preimages=preimages,
            each_version=each_version,
            with_row_id=with_row_id,
            blob_handling=blob_handling,
            batch_size=batch_size,
        )
        batches = (batch for task in plan.tasks for batch in task.to_batches(self._dataset))
        return pa.RecordBatchReader.from_batches(plan.schema, batches)

    def plan(
        self,
        columns: Sequence[str] | None = None,
        *,
        updates_of: Sequence[str] | None = None,
        filter: str | pc.Expression | None = None,  # noqa: A002 - the name that scanners give it
        preimages: bool = False,
        each_version: bool = False,
        with_row_id: bool = False,
        blob_handling: str | None = None,
        batch_size: int | None = None,
        max_rows_per_task: int | None = None,
    ) -> ChangePlan:
        """The feed of `get_changes` as tasks that can be pickled, each for rows of one fragment. Not in pylance.

        No data file is read. Versions that the tasks read must not be cleaned up before the tasks are done.

        Args:
            columns: Columns of the feed; None for all.
            updates_of: Columns whose updates are given, as for `get_changes`.
            filter: The rows to read, as for `get_changes`; `num_rows` and `counts` count rows before the filter.
            preimages: Whether updated rows are given with their earlier values as well.
            each_version: Whether the changes of each version are given instead of the net changes.
            with_row_id: Whether the feed has the column `_rowid`.
            blob_handling: What columns of blobs hold, as for `get_changes`.
            batch_size: Most rows of a batch.
            max_rows_per_task: Most rows of a task; None for one task per fragment and kind of change.

        Raises:
            VersionNotFoundError: A version that is needed was cleaned up.
            UnsupportedError: The table has no stable row ids, and rows were updated.
            InvalidInputError: The filter is not a condition, or `max_rows_per_task` is less than 1.
            SchemaError: A column does not exist.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> deleted = table.delete("id > 1")
            >>> plan = table.delta(1).plan(max_rows_per_task=1)
            >>> len(plan.tasks), dict(plan.counts)
            (2, {'delete': 2})
        """
        if max_rows_per_task is not None and max_rows_per_task < 1:
            raise InvalidInputError(f"max_rows_per_task is {max_rows_per_task}; a task has at least one row")
        change_columns = ChangeColumns(
            names=None if columns is None else tuple(columns),
            with_row_id=with_row_id,
            blob_handling=blob_handling,
            batch_size=batch_size,
            filter=check_filter(filter, scanned_columns(self._end.manifest)),
        )
        return self._plan(
            change_columns, updates_of, preimages=preimages, each_version=each_version, most=max_rows_per_task
        )

    @property
    def _end(self) -> Snapshot:
        return self._dataset.snapshot

    @cached_property
    def _history(self) -> BranchHistory:
        return BranchHistory(self._dataset)

    @cached_property
    def _columns(self) -> FieldHistory:
        return FieldHistory(self._dataset)

    @cached_property
    def _begin_snapshot(self) -> Snapshot | None:
        return self._open_version(self._begin)

    @cached_property
    def _differences(self) -> RowDifferences:
        return self._compare_versions(self._begin_snapshot, self._end, may_renew=True)

    def _compare_versions(self, begin: Snapshot | None, end: Snapshot, *, may_renew: bool) -> RowDifferences:
        renewed = []
        if begin is not None and may_renew and end.manifest.uses_stable_row_ids:
            renewed = self._columns.renewed_fragments(begin.manifest.version, end.manifest.version)
        try:
            return row_differences(begin, end, self._history, renewed)
        except VersionNotFoundError as error:
            raise self._missing_version(0 if begin is None else begin.manifest.version + 1) from error

    def _open_version(self, version: int) -> Snapshot | None:
        """A version; None before the first one."""
        if version == self.end_version or not version:
            return self._end if version else None
        try:
            return version_before(self._dataset, version).snapshot
        except VersionNotFoundError as error:
            raise self._missing_version(version) from error

    def _open_before(self, after: Snapshot, operation: Operation) -> Snapshot | None:
        """The version before a later one; before an append that of the append without the rows that it added."""
        version = after.manifest.version - 1
        try:
            return self._open_version(version)
        except VersionNotFoundError:
            if not isinstance(operation, Append):
                raise
        new = {fragment_name(fragment) for fragment in operation.fragments}
        fragments = [fragment for fragment in after.manifest.fragments if fragment_name(fragment) not in new]
        return after.with_manifest(replace(after.manifest, version=version, fragments=FragmentList.of(fragments)))

    def _missing_version(self, version: int) -> VersionNotFoundError:
        """The error for a version that was cleaned up; it names the oldest version since which changes are known."""
        end = self.end_version
        left = self._history.existing()
        whole = next((v for v in reversed(range(1, end + 1)) if v - 1 not in left), end)
        return VersionNotFoundError(
            f"{self._dataset.uri}: version {version} was cleaned up, so the changes since version {self._begin} are "
            f"not known; the oldest version after which no version is missing is {whole}: compare with "
            f"begin_version={whole}, or read the whole table"
        )

    def _load_transaction(self, version: int) -> records.Transaction:
        try:
            transaction = self._history.transaction(version)
        except VersionNotFoundError as error:
            raise self._missing_version(version) from error
        if transaction is None:
            raise VersionNotFoundError(f"{self._dataset.uri}: version {version} records no transaction")
        return transaction

    def _check_stable(self, what: str) -> None:
        begin = self._begin_snapshot
        if not self._end.manifest.uses_stable_row_ids or (begin and not begin.manifest.uses_stable_row_ids):
            raise UnsupportedError(
                f"{self._dataset.uri}: {what} need stable row ids in both versions; a table gets them when it is "
                "created (enable_stable_row_ids=True) or by migrate_to_stable_row_ids(), for later versions; without "
                "them, use get_inserted_rows and get_deleted_rows"
            )

    def _read_rows(self, snapshot: Snapshot, rows: Mapping[int, BitMap]) -> pa.RecordBatchReader:
        """The rows of a version, with the columns that pylance gives."""
        names = [*snapshot.manifest.schema.names, *_ROW_COLUMNS]
        schema = scan_options(snapshot.manifest, names).result_schema
        batches = (
            batch
            for fragment_id, offsets in rows.items()
            for batch in rows_of_fragment(snapshot, fragment_id, offsets_of(offsets), names, ChangeColumns())
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _plan(
        self, columns: ChangeColumns, updates_of: Sequence[str] | None, *, each_version: bool, **options: Any
    ) -> ChangePlan:
        schema = columns.schema(self._end.manifest)
        counted = None if updates_of is None else self._counted_columns(updates_of, columns.filter)
        steps: Iterable[tuple[int, int, RowDifferences]]
        if each_version:
            steps = (
                (end.manifest.version - 1, end.manifest.version, self._of_columns(begin, end, differences, counted))
                for begin, end, differences in self._compare_steps()
            )
        else:
            differences = self._of_columns(self._begin_snapshot, self._end, self._differences, counted)
            steps = [(self._begin, self.end_version, differences)]
        tasks = tuple(task for step in steps for task in self._build_tasks(columns, *step, **options))
        return ChangePlan(schema=schema, tasks=tasks)

    def _build_tasks(
        self,
        columns: ChangeColumns,
        begin: int,
        end: int,
        differences: RowDifferences,
        *,
        preimages: bool,
        most: int | None = None,
    ) -> Iterator[ChangeTask]:
        kinds: dict[ChangeType, RowsByFragment] = {
            "delete": differences.deleted,
            "update_preimage": differences.outdated if preimages else {},
            "update_postimage": differences.updated,
        }
        parts: list[tuple[ChangeType, int | None, RowsByFragment]] = [
            (kind, None, rows) for kind, rows in kinds.items()
        ]
        parts += [
            ("insert", version if version > 0 else end, rows) for version, rows in differences.inserted_in.items()
        ]
        parts += [] if differences.inserted_in else [("insert", None, differences.inserted)]
        order = np.argsort(differences.updates[2])
        outdated, updated_in = differences.updates[2][order], differences.updates[3][order]
        identities: dict[int, str] = {}
        same: dict[int, SameColumns] = {}
        for kind, version, rows in parts:
            read = begin if kind in ("update_preimage", "delete") else end
            if rows and read not in identities and (snapshot := self._open_version(read)):
                identities[read] = identity_of(snapshot.manifest)
                same[read] = same_columns(self._columns, read, self.end_version, columns.read(self._end.manifest))
            for fragment_id, offsets in rows.items():
                for part in _split_offsets(offsets, most):
                    versions = None
                    if kind == "update_preimage":
                        places = np.searchsorted(outdated, make_row_addresses(fragment_id, offsets_of(part)))
                        versions = encode_versions(updated_in[places])
                    yield ChangeTask(
                        change_type=kind,
                        begin_version=begin,
                        end_version=end,
                        feed_version=self.end_version,
                        fragment_id=fragment_id,
                        rows=part.serialize(),
                        columns=columns,
                        identity=identities[read],
                        same=same[read],
                        commit_version=version,
                        row_versions=versions,
                    )

    def _counted_columns(self, names: Sequence[str], condition: pc.Expression | None) -> Schema:
        """The columns whose updates are given, and those of the filter, whose values decide which rows are given."""
        filtered = [] if condition is None else columns_of(condition)
        return self._end.manifest.schema.project(list(dict.fromkeys([*names, *filtered])))

    def _of_columns(
        self, begin: Snapshot | None, end: Snapshot | None, differences: RowDifferences, columns: Schema | None
    ) -> RowDifferences:
        """The differences without rows that were updated only in other columns."""
        if columns is None or begin is None or end is None:
            return differences
        is_step = begin.manifest.version + 1 == end.manifest.version
        return only_written(differences, begin, end, columns, None if is_step else self._open_steps)

    def _compare_steps(self) -> Iterator[tuple[Snapshot | None, Snapshot, RowDifferences]]:
        """Yield each version that changed rows, after the version before it, with the differences."""
        for operation, before, after in self._open_steps():
            yield before, after, self._compare_versions(before, after, may_renew=isinstance(operation, Restore))

    def _open_steps(self) -> Iterator[tuple[Operation, Snapshot | None, Snapshot]]:
        """Yield the operation of each version that changed rows, the version before it, and the version."""
        before: Snapshot | None = None
        for version in range(self._begin + 1, self.end_version + 1):
            transaction = self._load_transaction(version)
            if isinstance(transaction.operation, _CHANGES_NO_ROW):
                before = None
                continue
            try:
                after = self._history.committed(version)
            except VersionNotFoundError as error:
                raise self._missing_version(version) from error
            if before is None or before.store.root != after.store.root:
                before = self._open_before(after, transaction.operation)
            yield transaction.operation, before, after
            before = after


def delta_between(
    dataset: Handle, compared_against: int | None, begin_version: int | None, end_version: int | None
) -> DatasetDelta:
    """The changes between two versions, with the arguments of `LanceDataset.delta`.

    Raises:
        InvalidInputError: The versions are incomplete, given twice, or in the wrong order.
        VersionNotFoundError: The later version does not exist.
    """
    both = begin_version is not None, end_version is not None
    if compared_against is None and both != (True, True):
        raise InvalidInputError("Must specify either compared_against, or both begin_version and end_version")
    if compared_against is not None and any(both):
        raise InvalidInputError(
            "compared_against already sets begin_version, and end_version to the open version: give it alone"
        )
    begin = compared_against if compared_against is not None else begin_version
    end = dataset.version if end_version is None else end_version
    assert begin is not None
    if not 0 <= begin <= end:
        raise InvalidInputError(f"begin_version is {begin}; it must lie between 0 and end_version, which is {end}")
    if end == dataset.version:
        return DatasetDelta(dataset, begin)
    newest = latest_version(dataset.snapshot.store)
    if newest is not None and end > newest:
        raise VersionNotFoundError(f"{dataset.uri} has no version {end}; the latest is {newest}")
    try:
        return DatasetDelta(dataset.checkout_version(end), begin)
    except VersionNotFoundError as error:
        raise VersionNotFoundError(
            f"{dataset.uri}: version {end} was cleaned up, or lies before the fork of the branch; it has "
            f"{existing_versions(dataset.snapshot.store)}"
        ) from error


def _split_offsets(rows: BitMap, most: int | None) -> Iterator[BitMap]:
    for start in range(0, len(rows), most or max(len(rows), 1)):
        yield rows[start : start + (most or len(rows))]
