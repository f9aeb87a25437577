"""Rebase a promotion where versions of the parent were cleaned up: compare its latest version with the fork version.

    fork       latest
    0 1 2 3    0 1      5      0, 1  unchanged, except for later deletions
                               2, 3  replaced: compacted (5 has the same rows, in order), or removed
                               5     rows that were compacted, and rows that were added since the fork

A promotion removes rows of the fork version and adds others. The rows to remove are searched in the parent's latest
version: in the same fragment, else by their stable row ids, else by the values of the fragment's rows, which a
compaction keeps in order. If a row is not found unchanged, it was changed since the fork, which is a conflict. A new
row in a slice that the branch filled, or with a key that the branch inserted, is a conflict as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit import AffectedRows
from lance_core.errors import RetryableConflictError
from lance_core.extension_types import empty_table
from lance_core.row_addresses import bitmap_of, offsets_of
from lance_core.schema import Schema, arrow_type_of
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Update
from lance_core.table.rowids import decode_versions
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.refs.changes import Branch, BranchChanges
from lance_core.verbs.refs.promotion.equal_rows import equal_rows
from lance_core.verbs.refs.promotion.new_rows import NewRows, check_new_keys
from lance_core.verbs.refs.promotion.rebase import rows_taken
from lance_core.verbs.refs.promotion.recognized_slices import recognize_slices
from lance_core.verbs.refs.promotion.record import slice_names
from lance_core.verbs.refs.promotion.updated_columns import known_row_ids
from lance_core.verbs.rows.removal import RowsByFragment, live_rows, remove_rows

__all__ = ["check_slices", "rebase_to_latest"]

_Offsets = npt.NDArray[np.int64]

_MOST_PLACES = 10_000
"""Most positions that are compared with the rows of a fragment; more candidates are a conflict."""


def rebase_to_latest(
    branch: Branch, changes: BranchChanges, transaction: Transaction, latest: Manifest, files: UncommittedFiles
) -> tuple[Transaction, AffectedRows]:
    """Rebase the transaction of a promotion to the parent's latest version, without the versions in between.

    Args:
        branch: The branch.
        changes: Its changes.
        transaction: The promotion as a change of the fork version.
        latest: The parent's latest version.
        files: Collects the deletion files that are written.

    Raises:
        RetryableConflictError: The parent changed the same rows, filled the same slices or inserted the same keys, or
            whether it did is unknown.
    """
    operation = transaction.operation
    assert isinstance(operation, Update)
    source = branch.parent.at(latest)
    _check_columns(branch.parent.manifest.schema, latest.schema)
    columns = {i for i, changed in operation.updated_fragment_fields.items() if changed}
    for number in sorted(columns):
        if latest.fragments.get(number) != branch.parent.manifest.fragments.get(number):
            raise RetryableConflictError(f"fragment {number}, whose columns the branch rewrote, has changed")
    rows = _locate_rows(branch.parent, source, rows_taken(branch, changes, columns))
    _check_newcomers(branch, changes, transaction, source, rows)
    removal = remove_rows(source, [(_get_fragment(latest, i), offsets) for i, offsets in sorted(rows.items())], files)
    rewritten_fragments = tuple(fragment for fragment in operation.updated_fragments if fragment.id in columns)
    changed = replace(
        operation,
        removed_fragment_ids=removal.removed_fragment_ids,
        updated_fragments=(*rewritten_fragments, *removal.updated_fragments),
    )
    return replace(transaction, operation=changed, read_version=latest.version), removal.affected_rows


def check_slices(transaction: Transaction, commits: Mapping[int, Transaction]) -> None:
    """Check that none of the parent's remaining commits filled a slice of the branch.

    Raises:
        RetryableConflictError: A commit filled a slice of the branch.
    """
    slices = slice_names(transaction.properties)
    for version, other in commits.items():
        both = sorted(slices[digest] for digest in slices.keys() & slice_names(other.properties).keys())
        if both:
            raise RetryableConflictError(f"version {version} filled {', '.join(map(repr, both[:10]))} as well")


def _check_columns(before: Schema, after: Schema) -> None:
    old, new = ([(node.id, node.name, node.logical_type) for node, _ in schema.walk()] for schema in (before, after))
    if old != new:
        raise RetryableConflictError("versions since the fork were cleaned up, and its columns have changed")


def _get_fragment(manifest: Manifest, number: int) -> Fragment:
    fragment = manifest.fragments.get(number)
    assert fragment is not None
    return fragment


def _locate_rows(fork: Snapshot, latest: Snapshot, rows: RowsByFragment) -> RowsByFragment:
    """The places in the latest version of rows of the fork version, by fragment."""
    places: RowsByFragment = {}
    moved: list[tuple[Fragment, BitMap]] = []
    for number, offsets in sorted(rows.items()):
        before, now = _get_fragment(fork.manifest, number), latest.manifest.fragments.get(number)
        if now is None:
            moved.append((before, offsets))
            continue
        if now.files != before.files or latest.deleted_rows(now) & offsets:
            raise RetryableConflictError(f"rows of fragment {number} have been changed or deleted")
        places[number] = offsets
    if moved:
        fork_ids = {fragment.id for fragment in fork.manifest.fragments}
        new = [fragment for fragment in latest.manifest.fragments if fragment.id not in fork_ids]
        by_id = latest.manifest.uses_stable_row_ids
        places |= _by_row_id(fork, latest, moved, new) if by_id else _by_value(fork, latest, moved, new)
    return places


def _by_row_id(
    fork: Snapshot, latest: Snapshot, moved: Sequence[tuple[Fragment, BitMap]], new: Sequence[Fragment]
) -> RowsByFragment:
    """Find moved rows by their stable row ids; rows that were updated since the fork are not found."""
    moved_ids = np.concatenate([known_row_ids(fragment)[offsets_of(offsets)] for fragment, offsets in moved])
    rows_by_fragment: RowsByFragment = {}
    count = 0
    for fragment in new:
        is_wanted = np.isin(known_row_ids(fragment), moved_ids)
        if not is_wanted.any():
            continue
        if fragment.last_updated_at_versions is not None:
            changed = decode_versions(fragment.last_updated_at_versions, fragment.physical_rows)
            is_wanted &= changed <= fork.manifest.version
        rows = bitmap_of(np.flatnonzero(is_wanted)) - latest.deleted_rows(fragment)
        count += len(rows)
        if rows:
            rows_by_fragment[fragment.id] = rows
    if count != len(moved_ids):
        raise RetryableConflictError(
            f"{len(moved_ids) - count} rows that the branch replaces have been changed or deleted"
        )
    return rows_by_fragment


def _by_value(
    fork: Snapshot, latest: Snapshot, moved: Sequence[tuple[Fragment, BitMap]], new: Sequence[Fragment]
) -> RowsByFragment:
    """Find moved rows by the values of all rows of their fragment, which are adjacent and in the same order.

    A column of numbers, times or strings finds the places; there, all columns are compared.
    """
    if not new:
        raise RetryableConflictError(f"the rows of fragment {moved[0][0].id} were deleted")
    fields = fork.manifest.schema.fields
    names = [field.name for field in fields if _can_be_searched(arrow_type_of(field))]
    if not names:
        raise RetryableConflictError("no column has numbers, times or strings, by which moved rows could be found")
    keys: dict[str, tuple[pa.ChunkedArray, _Offsets, _Offsets]] = {}
    used = np.zeros(sum(fragment.physical_rows for fragment in new), np.bool_)
    rows_by_fragment: RowsByFragment = {}
    for fragment, removed_rows in moved:
        rows, offsets, _ = _read(fork, [fragment], names)
        key = max(names, key=lambda name: pc.count_distinct(rows.column(name)).as_py())
        if key not in keys:
            table, new_offsets, numbers = _read(latest, new, [key])
            keys[key] = table.column(key), new_offsets, numbers
        values, new_offsets, numbers = keys[key]
        places = (slice(start, start + rows.num_rows) for start in _find_runs(values, rows.column(key), used))
        same = next(
            (place for place in places if _is_same(fork, fragment, latest, new_offsets[place], numbers[place])), None
        )
        if same is None:
            raise RetryableConflictError(f"the rows of fragment {fragment.id} have been changed or deleted")
        used[same] = True
        for position in np.searchsorted(offsets, offsets_of(removed_rows)) + same.start:
            rows_by_fragment.setdefault(int(numbers[position]), BitMap()).add(int(new_offsets[position]))
    return rows_by_fragment


def _can_be_searched(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _read(source: Snapshot, fragments: Sequence[Fragment], names: Sequence[str]) -> tuple[pa.Table, _Offsets, _Offsets]:
    """Live rows of fragments, with the offset and the fragment of each."""
    batches, offsets, numbers = [], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for fragment in fragments:
        for batch, batch_offsets in live_rows(source, fragment, names):
            batches.append(batch)
            offsets.append(np.asarray(batch_offsets, np.int64))
            numbers.append(np.full(batch.num_rows, fragment.id, np.int64))
    fields = {field.name: field for field in source.manifest.schema.fields}
    schema = pa.schema([pa.field(name, arrow_type_of(fields[name])) for name in names])
    table = pa.Table.from_batches(batches) if batches else empty_table(schema)
    return table, np.concatenate(offsets), np.concatenate(numbers)


def _find_runs(values: pa.ChunkedArray, sequence: pa.ChunkedArray, used: npt.NDArray[np.bool_]) -> list[int]:
    """The positions at which the sequence of all wanted values begins, among rows that are not in use."""
    if not len(sequence) or len(values) < len(sequence):
        return []
    distinct_values = pc.unique(sequence)
    have, want = (_encode_values(column, distinct_values) for column in (values, sequence))
    starts = np.flatnonzero(have[: len(have) - len(want) + 1] == want[0])
    if len(starts) > _MOST_PLACES:
        raise RetryableConflictError(
            f"no column identifies the rows of a fragment: {len(starts)} positions have equal values"
        )
    return [
        int(start)
        for start in starts
        if np.array_equal(have[start : start + len(want)], want) and not used[start : start + len(want)].any()
    ]


def _encode_values(column: pa.ChunkedArray, values: pa.Array) -> _Offsets:
    codes = pc.fill_null(pc.index_in(column, value_set=values), -1)
    numbers: _Offsets = codes.to_numpy().astype(np.int64)
    return numbers


def _is_same(fork: Snapshot, fragment: Fragment, latest: Snapshot, offsets: _Offsets, numbers: _Offsets) -> bool:
    """Whether the rows of a fragment have the same values, in all columns, at some places of the latest version."""
    names = [field.name for field in fork.manifest.schema.fields]
    latest_batches = (
        batch
        for number in dict.fromkeys(numbers.tolist())
        for batch, _ in live_rows(
            latest, _get_fragment(latest.manifest, number), names, bitmap_of(offsets[numbers == number])
        )
    )
    return equal_rows((batch for batch, _ in live_rows(fork, fragment, names)), latest_batches)


def _check_newcomers(
    branch: Branch, changes: BranchChanges, transaction: Transaction, latest: Snapshot, rows: RowsByFragment
) -> None:
    """Check that no new row lies in the slices that the branch filled, or has a key that the branch inserted."""
    new = NewRows.of(branch, latest, rows)
    if not new.fragments:
        return
    names = slice_names(transaction.properties)
    if names:
        slices = recognize_slices(branch, changes, names)
        for batch in new.batches(slices.columns):
            inside = slices.among(batch)
            if inside:
                raise RetryableConflictError(f"rows were added to {', '.join(map(repr, inside[:10]))} since the fork")
    operation = transaction.operation
    assert isinstance(operation, Update)
    if operation.inserted_rows is not None:
        check_new_keys(branch, changes, operation.inserted_rows, new)
