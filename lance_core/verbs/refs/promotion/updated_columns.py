"""Fit the column files that a branch wrote to the fragments that its parent has now, for a promotion.

    fork                        branch                      latest                      then
    1  a: id n                  1  a: id    c: n            1  a: id n   b: label       1  a: id    b: label   c: n
    2  d: id n                  2  d: id    e: n            9  f: id n                  9  f: id    g: n

A line is a fragment: its id, then its files, each with its columns. The branch wrote column n; `then` is the parent
after the promotion. A fragment that still exists keeps its other columns, and gets the branch's file. If a fragment was
compacted, the values of the branch are written to new files for the fragments that have its rows now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap

from lance_core.errors import IncompatibleConflictError, RetryableConflictError, VersionNotFoundError
from lance_core.row_addresses import bitmap_of, offsets_of
from lance_core.schema import Field, Schema
from lance_core.table.fragment import TOMBSTONE, DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Update
from lance_core.table.rowids import U64Array, decode_row_ids_of
from lance_core.verbs.columns.write_columns.rebase import PendingColumns, rebased_columns
from lance_core.verbs.columns.write_columns.tasks import WrittenColumns
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.files.column_files import replace_columns
from lance_core.verbs.refs.changes import Branch, BranchChanges
from lance_core.verbs.scan.read_fragment import live_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedColumns:
    """The columns that a branch wrote, in the fragments of a version of its parent.

    Attributes:
        files: The files of each fragment; no two of them have the same field.
        rows: The rows that the branch marked as changed, by fragment, as serialized bitmaps.
    """

    files: Mapping[int, tuple[DataFile, ...]]
    rows: Mapping[int, bytes]

    def put_into(self, fragment: Fragment) -> Fragment:
        """A fragment in which these files replace its own columns of the same fields."""
        for file in self.files.get(fragment.id, ()):
            fragment = replace_columns(fragment, file)
        return fragment

    @property
    def fields(self) -> dict[int, tuple[int, ...]]:
        """The fields that were written, by fragment."""
        return {
            number: tuple(sorted({field for file in files for field in file.fields if field != TOMBSTONE}))
            for number, files in self.files.items()
        }


def fit_updated_columns(
    branch: Branch,
    changes: BranchChanges,
    operation: Update,
    added: Sequence[Field],
    latest: Manifest,
    files: UncommittedFiles,
) -> UpdatedColumns:
    """Fit the columns that a branch wrote to a version of its parent that has not changed their values.

    Args:
        branch: The branch.
        changes: What it changed.
        operation: The promotion as a change of the fork version.
        added: The columns that the parent lacks, with ids that are not in use there.
        latest: The version of the parent.
        files: Collects the files that are written.

    Raises:
        RetryableConflictError: Rows cannot be followed, or the branch wrote only a part of a column.
    """
    fork = _add_columns(branch.parent, branch.parent.manifest, added)
    after = _add_columns(branch.parent, latest, added)
    added_names = frozenset(field.name for field in added)
    live = {before.id: live_offsets(branch.head, head_fragment) for before, head_fragment in changes.updated}
    fragment_files: dict[int, dict[str, DataFile]] = defaultdict(dict)
    for column, written in _group_by_column(fork.manifest.schema, operation, live):
        pending = PendingColumns(
            snapshot=fork, columns=Schema(fields=(column,)), added=added_names, written=tuple(written)
        )
        try:
            fitted = rebased_columns(pending, after.manifest)
        except (IncompatibleConflictError, VersionNotFoundError) as error:
            raise RetryableConflictError(str(error)) from error
        for store, key in fitted.rewritten:
            files.add(store, key)
        for part in fitted.written:
            earlier_file = fragment_files[part.fragment_id].get(part.file.path)
            fragment_files[part.fragment_id][part.file.path] = (
                part.file if earlier_file is None else _join_records(earlier_file, part.file)
            )
    by_fragment = {number: tuple(by_path.values()) for number, by_path in fragment_files.items()}
    return UpdatedColumns(files=by_fragment, rows=_mark_rows(fork, latest, operation, by_fragment))


def _add_columns(snapshot: Snapshot, manifest: Manifest, added: Sequence[Field]) -> Snapshot:
    """A version with further columns in its schema, which are null in all rows."""
    schema = replace(manifest.schema, fields=(*manifest.schema.fields, *added))
    return snapshot.with_manifest(replace(manifest, schema=schema))


def _group_by_column(
    schema: Schema, operation: Update, live: Mapping[int, BitMap]
) -> Iterator[tuple[Field, list[WrittenColumns]]]:
    """Yield each column with its files, by fragment of the fork version."""
    for column in schema.fields:
        nodes = [node for node, _ in Schema(fields=(column,)).walk()]
        column_ids = {node.id for node in nodes}
        leaves = {node.id for node in nodes if not node.children}
        written = []
        for fragment in operation.updated_fragments:
            changed = column_ids.intersection(operation.updated_fragment_fields.get(fragment.id, ()))
            if not changed:
                continue
            holding = [file for file in fragment.files if column_ids.intersection(file.fields)]
            if len(holding) != 1 or not leaves <= changed:
                raise RetryableConflictError(f"the branch wrote only a part of column {column.name!r}")
            file = replace(holding[0], fields=tuple(i if i in column_ids else TOMBSTONE for i in holding[0].fields))
            written.append(WrittenColumns(fragment_id=fragment.id, file=file, rows=live[fragment.id].serialize()))
        if written:
            yield column, written


def _join_records(first: DataFile, second: DataFile) -> DataFile:
    """The record of a file with the fields of two records of the same file."""
    pairs = zip(first.fields, second.fields, strict=True)
    return replace(
        first, fields=tuple(first_id if first_id != TOMBSTONE else second_id for first_id, second_id in pairs)
    )


def _mark_rows(
    fork: Snapshot, latest: Manifest, operation: Update, files: Mapping[int, tuple[DataFile, ...]]
) -> dict[int, bytes]:
    """The rows that the branch marked as changed, at their current offsets; empty without stable row ids."""
    marks = operation.updated_fragment_offset_bitmaps
    if not marks:
        return {}
    marked_ids = []
    for number, rows in marks.items():
        fragment = fork.manifest.fragments.by_id(number)
        marked_ids.append(_read_row_ids(fragment)[offsets_of(BitMap.deserialize(rows))])
    everyone = np.concatenate(marked_ids)
    bitmaps = {}
    for number in files:
        fragment = latest.fragments.by_id(number)
        bitmaps[number] = bitmap_of(np.flatnonzero(np.isin(_read_row_ids(fragment), everyone))).serialize()
    return bitmaps


def _read_row_ids(fragment: Fragment) -> U64Array:
    """The row ids of all rows of a fragment.

    Raises:
        RetryableConflictError: The fragment has no row ids.
    """
    ids = decode_row_ids_of(fragment)
    if ids is None:
        raise RetryableConflictError(f"the row ids of fragment {fragment.id} are not known")
    return ids
