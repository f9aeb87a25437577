"""Set columns of existing rows in one commit: only new files with these columns are written (`write_columns`).

    plan    the rows and columns, of one version                                    (`tasks`)
    match   which rows the data names                                               (`match`)
    write   a file per fragment                                                     (`tasks`)
    commit  Update, REWRITE_COLUMNS   if the table has all of the columns
            Merge                     if the table lacks one: commits schema and files in one version

After a conflict the files are fitted to the latest version (`rebase`), and committed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.commit.history import find_transaction
from lance_core.commit.loop import commit_change
from lance_core.commit.records import Change, Commit, Unknown, committed_or_raise
from lance_core.commit.versions import check_identity_string
from lance_core.errors import (
    EarlierAttemptCommittedError,
    IncompatibleConflictError,
    InvalidInputError,
    LanceError,
    OutcomeUnknownError,
    RetryableConflictError,
)
from lance_core.table.filled_slices import SLICES_KEY
from lance_core.table.fragment import Fragment, own_data_keys
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge, Operation, Update, UpdateMode
from lance_core.table.paths import data_key
from lance_core.table.transaction import Transaction
from lance_core.verbs.columns.write_columns.match import matched_rows, same_scope
from lance_core.verbs.columns.write_columns.rebase import PendingColumns, rebased_columns
from lance_core.verbs.columns.write_columns.tasks import ColumnPlan, Missing, WrittenColumns, as_table, plan_columns
from lance_core.verbs.context.handle import Snapshot, retry_on_latest
from lance_core.verbs.context.uncommitted_files import remove_files
from lance_core.verbs.files.column_files import replace_columns
from lance_core.verbs.files.fragment_writer import ReaderLike
from lance_core.verbs.scan.projection import ROW_ADDRESS, ROW_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsResult:
    """The result of a write of columns.

    Attributes:
        version: The version that was committed; the one that was read if there was nothing to set.
        read_version: The version for which the columns were planned.
        operation: Name of the operation; empty if this write committed nothing.
        transaction_uuid: Id of the transaction; empty if this write committed nothing.
        rows_updated: Rows that were set, to a value or to null.
        rows_nulled: Rows that were set to null because the data lacked them.
        columns_added: Columns that the table lacked.
        bytes_written: Bytes of the new files that the version refers to.
        files: The number of new files that the version refers to.
        files_rewritten: The number of these files that were rewritten for versions that others committed meanwhile.
        deduplicated: Whether an earlier commit with the same `idempotency_key` was adopted.
    """

    version: int
    read_version: int
    operation: str = ""
    transaction_uuid: str = ""
    rows_updated: int = 0
    rows_nulled: int = 0
    columns_added: tuple[str, ...] = ()
    bytes_written: int = 0
    files: int = 0
    files_rewritten: int = 0
    deduplicated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnsChange(Change):
    """The columns as they fit the version that the change was computed from."""

    columns: PendingColumns

    @classmethod
    def of(cls, columns: PendingColumns, properties: Mapping[str, str], replaces: tuple[int, ...] = ()) -> Self:
        """The change that adds the files of columns to their version."""
        base = columns.snapshot.manifest
        return cls(
            transaction=Transaction(
                read_version=base.version, operation=_build_operation(columns), properties=properties
            ),
            base=base,
            replaces=replaces,
            new_files=tuple(own_data_keys(part.file for part in columns.written)),
            columns=columns,
        )


def _fit_again(before: Change, latest: Manifest, conflict: LanceError, *, is_exclusive: bool) -> _ColumnsChange:
    """Fit columns to the latest version after a conflict.

    Raises:
        CommitConflictError: The conflict stays, or the columns do not fit any more.
    """
    assert isinstance(before, _ColumnsChange)
    replaces = before.replaces
    if isinstance(conflict, EarlierAttemptCommittedError):
        replaces = (*replaces, conflict.version)
    # A Merge is incompatible even with a rename: `rebased_columns` decides whether the files can be kept.
    elif type(conflict) not in (RetryableConflictError, IncompatibleConflictError) or is_exclusive:
        raise conflict
    return _ColumnsChange.of(rebased_columns(before.columns, latest), before.transaction.properties, replaces)


def _build_operation(pending: PendingColumns) -> Operation:
    """The operation that adds the files to the version: a Merge if the version lacks a column, else an Update."""
    manifest = pending.snapshot.manifest
    changed: dict[int, Fragment] = {}
    for part in pending.written:
        fragment = manifest.fragments.by_id(part.fragment_id)
        changed[part.fragment_id] = replace_columns(fragment, part.file)
    if pending.lacking:
        return Merge(
            fragments=tuple(changed.get(fragment.id, fragment) for fragment in manifest.fragments),
            schema=replace(manifest.schema, fields=(*manifest.schema.fields, *pending.lacking)),
            preserves_nullability=True,
            updated_rows={part.fragment_id: part.offsets for part in pending.written},
        )
    stable = manifest.uses_stable_row_ids
    return Update(
        updated_fragments=tuple(changed.values()),
        fields_modified=tuple(node.id for node, _ in pending.columns.walk()),
        update_mode=UpdateMode.REWRITE_COLUMNS,
        updated_fragment_offset_bitmaps={part.fragment_id: part.rows for part in pending.written} if stable else {},
    )


def commit_columns(
    snapshot: Snapshot,
    plan: ColumnPlan,
    written: Iterable[WrittenColumns | None],
    how: Commit,
    name_file: Callable[[Snapshot, Fragment], str | None] = lambda _snapshot, _fragment: None,
) -> tuple[Manifest, ColumnsResult]:
    """Commit files with columns, with the arguments of `LanceDataset.commit_columns`.

    Args:
        snapshot: The plan's version.
        plan: The plan.
        written: The result of each task.
        how: The arguments of the commit.
        name_file: The name of a file that is written again for a fragment of a later version; None for any.

    Raises:
        CommitConflictError: Another writer's commit rules this one out.
        IncompatibleConflictError: The table was dropped and created again after the plan.
        ObjectNotFoundError: A file does not exist.
        InvalidInputError: Two files are for one fragment, or one is for a fragment that is not in the plan.
    """
    files = _check_files(plan, written)
    # Fragments of another table have the same ids.
    check_identity_string(snapshot.store, snapshot.manifest, plan.identity)
    begin = PendingColumns(
        snapshot=snapshot, columns=plan.lance_columns, added=frozenset(plan.added), written=files, name_file=name_file
    )
    written_places = [snapshot.data_file(part.file) for part in files]
    if not files and not plan.added:
        return snapshot.manifest, ColumnsResult(version=plan.version, read_version=plan.version)
    attempt = how.write_attempt
    outcome = commit_change(
        snapshot.store,
        _ColumnsChange.of(begin, {**how.texts, **how.identity}),
        options=replace(how, checked_through=plan.version),
        next_change=partial(_fit_again, is_exclusive=attempt is not None and attempt.conflict_policy == "exclusive"),
    )
    last = None if isinstance(outcome, Unknown) else outcome.change
    committed = last.columns if isinstance(last, _ColumnsChange) else begin
    done = committed_or_raise(outcome, lambda: remove_files(committed.rewritten))
    if done.deduplicated or done.transaction is None:
        # The version that was found may have these files: a commit whose answer was lost finds itself.
        paths = {file.path for fragment in done.manifest.fragments for file in fragment.files}
        adopted = {*paths, *map(data_key, paths)}  # a base need not have a folder of data files
        remove_files([place for place in (*written_places, *committed.rewritten) if place[1] not in adopted])
        return done.manifest, ColumnsResult(version=done.manifest.version, read_version=plan.version, deduplicated=True)
    used = {snapshot.data_file(part.file)[1] for part in committed.written}
    remove_files([place for place in (*written_places, *committed.rewritten) if place[1] not in used])
    rewritten = {key for _, key in committed.rewritten}
    return done.manifest, ColumnsResult(
        version=done.manifest.version,
        read_version=plan.version,
        operation=done.transaction.operation.name,
        transaction_uuid=done.transaction.uuid,
        rows_updated=sum(len(part.offsets) for part in committed.written),
        rows_nulled=sum(len(part.nulled_offsets) for part in committed.written),
        columns_added=tuple(field.name for field in committed.lacking),
        bytes_written=sum(part.file.file_size_bytes or 0 for part in committed.written),
        files=len(committed.written),
        files_rewritten=sum(snapshot.data_file(part.file)[1] in rewritten for part in committed.written),
    )


def _check_files(plan: ColumnPlan, written: Iterable[WrittenColumns | None]) -> tuple[WrittenColumns, ...]:
    files = tuple(part for part in written if part is not None)
    ids = [part.fragment_id for part in files]
    twice = {i for i in ids if ids.count(i) > 1} if len(set(ids)) < len(ids) else set()
    if twice:
        raise InvalidInputError(f"two files have columns of fragment {min(twice)}: give one per task of the plan")
    strange = set(ids) - {task.fragment_id for task in plan.tasks}
    if strange:
        raise InvalidInputError(f"a file has columns of fragment {min(strange)}, which is not in the plan")
    return files


def _check_no_replacement(snapshot: Snapshot, base: Snapshot) -> None:
    """Reject the search for moved rows by key if a partition was replaced: its new rows may have the same keys."""
    for version in range(snapshot.manifest.version + 1, base.manifest.version + 1):
        transaction = find_transaction(base.store, version)
        if transaction is None or SLICES_KEY in transaction.properties:
            raise IncompatibleConflictError(
                f"Incompatible transaction: {base.store.root}: rows moved since version {snapshot.manifest.version}, "
                f"and version {version} replaced a partition, whose new rows may have the keys of the old ones: open "
                "the table again, and write the columns again"
            )


def write_matched_columns(
    snapshot: Snapshot,
    data: ReaderLike,
    on: str | Sequence[str],
    *,
    where: str | pc.Expression | None,
    missing: Missing,
    how: Commit,
    schema: pa.Schema | None = None,
    allow_external: bool = False,
) -> tuple[Manifest, ColumnsResult]:
    """Set columns of rows, with the arguments of `LanceDataset.write_columns`.

    Raises:
        InvalidInputError: A key of the data is null, occurs twice, or matches no row or several rows of the scope.
        SchemaError: The data does not fit the table.
        CommitConflictError: Another writer's commit rules this one out.
    """
    table, keys = as_table(data, schema), [on] if isinstance(on, str) else list(on)
    values = table.drop_columns([name for name in keys if name in table.column_names])

    def attempt(base: Snapshot) -> tuple[Manifest, ColumnsResult]:
        plan = plan_columns(base, values.schema, where, missing, allow_external=allow_external)
        if base is not snapshot:
            _check_no_replacement(snapshot, base)
        if base is not snapshot and missing != "keep":
            # What the data lacks is set to null, or is an error: of rows of the version that the caller saw, no others.
            seen = plan_columns(snapshot, values.schema, where, missing, allow_external=allow_external).tasks
            whole = plan_columns(base, values.schema, None, missing, allow_external=allow_external).tasks
            plan = replace(plan, tasks=same_scope(snapshot, seen, base, whole, keys))
        matches = matched_rows(base, plan.tasks, table, keys)
        written: list[WrittenColumns] = []
        try:
            for task in plan.tasks:
                addresses, rows = matches.get(task.fragment_id, (pa.array([], pa.uint64()), pa.array([], pa.int64())))
                task_values = values.take(rows).append_column(ROW_ADDRESS, addresses)
                part = task.write_table(base, task_values)
                written.extend([] if part is None else [part])
        except BaseException:
            remove_files([base.data_file(part.file) for part in written])
            raise
        try:
            return commit_columns(base, plan, written, how)
        except OutcomeUnknownError:
            raise
        except LanceError:  # an interruption leaves open whether a version refers to the files
            remove_files([base.data_file(part.file) for part in written])
            raise

    # Addresses, and ids that are addresses, name rows of this version alone.
    if keys[:1] == [ROW_ADDRESS] or (keys[:1] == [ROW_ID] and not snapshot.manifest.uses_stable_row_ids):
        return attempt(snapshot)
    return retry_on_latest(snapshot, attempt)
