"""Fit column files that were written for one version to a later version, after a conflict.

    a fragment is unchanged, or lost rows              its file is kept
    others wrote the same columns of the fragment      a new file: the others' values, except in the rows that are set
    the fragment's rows moved to other fragments       new files for these fragments, in the same way

Values are taken from the files that were written: nothing is computed again. Rows that were deleted meanwhile are left
out, as if they had been deleted afterwards. Moved rows are found by their stable row ids; without stable row ids, they
are followed through compactions only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.commit.history import find_transaction
from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import HistoryGapError, IncompatibleConflictError, RetryableConflictError, UnsupportedError
from lance_core.row_addresses import bitmap_of, find_positions, group_by_fragment, offsets_of
from lance_core.schema import Field, Schema, schema_to_arrow
from lance_core.store import ObjectStore
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Clone, Merge, Overwrite, Project, Restore, UnknownOperation
from lance_core.verbs.columns.add import with_new_columns
from lance_core.verbs.columns.write_columns.tasks import WrittenColumns, write_values
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import collecting_files
from lance_core.verbs.delta.row_differences import RowSide, row_side, stable_ids
from lance_core.verbs.delta.row_moves import RowMoves
from lance_core.verbs.scan.read_fragment import count_file_rows, read_fragment

_Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingColumns:
    """Columns that are to be committed on top of a version.

    Attributes:
        snapshot: The version.
        columns: The columns, with the ids that they have in the version, or would get.
        added: Names of the columns that the plan added.
        written: The files of the columns, for fragments of the version.
        rewritten: Files that were written after conflicts, each with its store.
        name_file: The name of a file that is written for a fragment of a later version; None for any.
    """

    snapshot: Snapshot
    columns: Schema
    added: frozenset[str]
    written: tuple[WrittenColumns, ...]
    rewritten: tuple[tuple[ObjectStore, str], ...] = ()
    name_file: Callable[[Snapshot, Fragment], str | None] = lambda _snapshot, _fragment: None

    @property
    def lacking(self) -> tuple[Field, ...]:
        """The columns that the version lacks."""
        field_by_id = self.snapshot.manifest.schema.by_id()
        return tuple(field for field in self.columns.fields if field.id not in field_by_id)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a written file, and the offsets of these rows in the fragment that has them now."""

    written: WrittenColumns
    rows: _Offsets
    places: _Offsets

    @property
    def nulled(self) -> BitMap:
        """The places of rows that were set to null because the data lacked them."""
        return bitmap_of(self.places[np.isin(self.rows, offsets_of(self.written.nulled_offsets))])


def rebased_columns(pending: PendingColumns, latest: Manifest) -> PendingColumns:
    """Fit columns to a later version.

    Args:
        pending: The columns.
        latest: The later version.

    Raises:
        IncompatibleConflictError: A version in between replaced the table's rows, or dropped or changed a column.
        HistoryGapError: A version in between was cleaned up.
        RetryableConflictError: Rows without stable row ids were moved by something else than a compaction.
    """
    before = pending.snapshot
    after = before.with_manifest(latest)
    _check_others(pending, latest)
    columns = _find_columns(pending, latest)
    kept_files, parts = _sort_out(pending, after, columns)
    ids = {old.id: new.id for (old, _), (new, _) in zip(pending.columns.walk(), columns.walk(), strict=True)}
    written = [
        replace(piece, file=replace(piece.file, fields=tuple(ids.get(i, i) for i in piece.file.fields)))
        for piece in kept_files
    ]
    again = []
    with collecting_files(after) as files:
        for fragment_id, fragment_parts in parts.items():
            fragment = latest.fragments.by_id(fragment_id)
            places, values = _read_values(pending, columns, fragment_parts)
            name = pending.name_file(after, fragment)
            file = write_values(after, fragment, columns, places, values, BitMap(), files, name)
            rows, nulled = bitmap_of(places), BitMap.union(*(piece.nulled for piece in fragment_parts))
            again.append(
                WrittenColumns(fragment_id=fragment_id, file=file, rows=rows.serialize(), nulled=nulled.serialize())
            )
    mine = tuple(after.data_file(piece.file) for piece in again)
    return replace(
        pending,
        snapshot=after,
        columns=columns,
        written=(*written, *again),
        rewritten=(*pending.rewritten, *mine),
    )


def _check_others(pending: PendingColumns, latest: Manifest) -> None:
    """Check that all transactions in between are known, and that none replaced the whole table or dropped a column.

    The next column may have the id of a dropped one.
    """
    before = pending.snapshot
    known_ids = before.manifest.schema.by_id().keys()
    columns = [column for column in pending.columns.fields if column.name not in pending.added]
    fields = [field for column in columns for field, _ in column.walk() if field.id in known_ids]
    for version in range(before.manifest.version + 1, latest.version + 1):
        other = find_transaction(before.store, version)
        if other is None:
            raise HistoryGapError(
                f"{before.store.root}: version {version} was cleaned up, so what it changed since version "
                f"{before.manifest.version} is not known; write the columns again"
            )
        if isinstance(other.operation, Overwrite | Restore | Clone | UnknownOperation):
            raise IncompatibleConflictError(
                f"Incompatible transaction: {before.store.root}: version {version} ({other.operation.name}) replaced "
                f"the rows of version {before.manifest.version}, for which the columns were written"
            )
        if isinstance(other.operation, Merge | Project):
            ids = other.operation.schema.by_id().keys()
            for field in fields:
                if field.id not in ids:
                    raise _incompatible(pending, field, "was dropped, or has another type now", version)


def _find_columns(pending: PendingColumns, latest: Manifest) -> Schema:
    """The columns with the ids that they have in a later version.

    Raises:
        IncompatibleConflictError: A column was dropped, has another type, or was added by another owner.
    """
    before, now = pending.snapshot.manifest.schema.by_id(), latest.schema.by_id()
    by_name = {field.name: field for field in latest.schema.fields}
    fields = []
    for field in pending.columns.fields:
        field_now = now.get(field.id) if field.id in before else by_name.get(field.name)
        same = field_now is not None and _type_of(field_now) == _type_of(field)
        if (field.id in before and field_now is None) or (field_now is not None and not same):
            what = "was dropped, or has another type now" if field_now is None else "has another type now"
            raise _incompatible(pending, field, what, latest.version)
        # The metadata of a new column may say whose it is, as that of a computed column does.
        if field_now is not None and field.id not in before and field.metadata.items() - field_now.metadata.items():
            what = "was added by another writer (drop or rename that column, and write again)"
            raise _incompatible(pending, field, what, latest.version)
        fields.append(field_now or field)
    lacking = [field for field in fields if field.id not in now or field.name not in by_name]
    new = {}
    if lacking:
        arrow = schema_to_arrow(Schema(fields=tuple(lacking)))
        new = {field.name: field for field in with_new_columns(latest, arrow)[1].fields}
    return Schema(fields=tuple(new.get(field.name, field) if field in lacking else field for field in fields))


def _incompatible(pending: PendingColumns, field: Field, what: str, version: int) -> IncompatibleConflictError:
    return IncompatibleConflictError(
        f"Incompatible transaction: {pending.snapshot.store.root}: column {field.name!r} {what}, in version {version}; "
        f"it was written for version {pending.snapshot.manifest.version}"
    )


def _type_of(field: Field) -> pa.DataType:
    return schema_to_arrow(Schema(fields=(field,))).field(0).type


def _sort_out(
    pending: PendingColumns, after: Snapshot, columns: Schema
) -> tuple[list[WrittenColumns], Mapping[int, list[_Part]]]:
    """The files that can be kept, and the rows for which new files are needed, by fragment."""
    kept_files: list[WrittenColumns] = []
    parts: dict[int, list[_Part]] = defaultdict(list)
    lost: list[tuple[WrittenColumns, _Offsets]] = []
    for piece in pending.written:
        old = pending.snapshot.manifest.fragments.by_id(piece.fragment_id)
        new = after.manifest.fragments.get(piece.fragment_id)
        rows = piece.offsets
        deleted = rows if new is None else _find_deleted(old, after, new) & rows
        if deleted:
            lost.append((piece, offsets_of(deleted)))
        if new is None:
            continue
        if _file_paths(old, pending.columns) == _file_paths(new, columns):
            nulled = piece.nulled_offsets - deleted
            kept_files.append(
                replace(piece, rows=(rows - deleted).serialize(), nulled=nulled.serialize()) if deleted else piece
            )
        elif rows - deleted:
            parts[piece.fragment_id].append(_Part(piece, offsets_of(rows - deleted), offsets_of(rows - deleted)))
    if lost:
        for fragment_id, part in _follow_rows(pending, after, lost):
            parts[fragment_id].append(part)
    return kept_files, parts


def _follow_rows(
    pending: PendingColumns, after: Snapshot, lost: Sequence[tuple[WrittenColumns, _Offsets]]
) -> Iterator[tuple[int, _Part]]:
    """Yield the new places of moved rows, by fragment; deleted rows are left out."""
    before = pending.snapshot
    ids = stable_ids
    if not (before.manifest.uses_stable_row_ids and after.manifest.uses_stable_row_ids):
        moves = RowMoves(before, (piece.fragment_id for piece, _ in lost))
        try:
            moves.follow(after)
        except UnsupportedError as error:
            raise RetryableConflictError(
                f"Retryable commit conflict for version {after.manifest.version} of {before.store.root}: rows whose "
                f"columns were written have moved: {error}"
            ) from error
        ids = moves.ids
    side: RowSide = row_side(after, before, ids)
    for piece, offsets in lost:
        old = before.manifest.fragments.by_id(piece.fragment_id)
        moved_ids = ids(before, old)[offsets]
        positions = find_positions(side.ids, moved_ids)
        addresses, rows = side.addresses[positions[positions >= 0]], offsets[positions >= 0]
        order = np.argsort(addresses, kind="stable")
        start = 0
        for fragment_id, places in group_by_fragment(addresses[order]):
            yield fragment_id, _Part(piece, rows[order][start : start + len(places)], places)
            start += len(places)


def _read_values(pending: PendingColumns, columns: Schema, parts: Sequence[_Part]) -> tuple[_Offsets, pa.Table]:
    """The rows of one fragment that are set, ascending, and their values from the files that were written."""
    tables = []
    for part in parts:
        old = pending.snapshot.manifest.fragments.by_id(part.written.fragment_id)
        file = Fragment(id=old.id, files=(part.written.file,), physical_rows=count_file_rows(pending.snapshot, old))
        order = np.argsort(part.rows, kind="stable")
        batches = read_fragment(pending.snapshot, file, pending.columns, part.rows[order])
        table = pa.Table.from_batches(batches, schema=schema_to_arrow(pending.columns))
        tables.append(table.take(pa.array(np.argsort(order, kind="stable"))))
    values = pa.concat_tables(tables).rename_columns(columns.names)
    places = np.concatenate([part.places for part in parts])
    order = np.argsort(places, kind="stable")
    # No row is in two parts: each row of the old version is set once.
    sorted_values = combine_chunks(values).take(pa.array(order))
    return places[order], pa.table(sorted_values.columns, schema=schema_to_arrow(columns))


def _find_deleted(old: Fragment, after: Snapshot, new: Fragment) -> BitMap:
    """The rows of a fragment that are deleted in the later version."""
    return BitMap() if old.deletion_file == new.deletion_file else after.deleted_rows(new)


def _file_paths(fragment: Fragment, columns: Schema) -> set[str]:
    """The files of a fragment that hold some columns."""
    ids = set(columns.by_id())
    return {file.path for file in fragment.files if ids.intersection(file.fields)}
