"""Find and remove rows of a version: whole fragments, and rows of other fragments by deletion files.

Rows that move are removed and written into new fragments, with their stable row ids if the dataset has them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.encoding.concatenate import has_narrow_dictionary
from lance_core.file.pool import in_order
from lance_core.row_addresses import bitmap_of, offsets_of
from lance_core.schema import Schema, schema_to_arrow, typed_schema
from lance_core.store import make_durable, put_durably
from lance_core.table.deletion import DeletionVector
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array, encode_row_ids
from lance_core.verbs.context.bases import WriteTarget
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.expressions.arrow import columns_of, matching
from lance_core.verbs.files.conform import check_dictionaries
from lance_core.verbs.files.fragment_writer import FragmentWriter
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.plan import ScanPlan, until_consistent
from lance_core.verbs.scan.read_fragment import (
    count_file_rows,
    count_live,
    live_offsets,
    parallel_requests,
    read_fragment,
)
from lance_core.verbs.scan.small_fragments import SMALL_FILE_ROWS, coalesced_rows, worked_on

SCATTERED_SHARE: Final = 1 / 16
"""Rows are read by offset if they are less than this share of the rows from the first to the last of them."""

RowsByFragment = dict[int, BitMap]
"""Offsets of rows by fragment id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Rows that a commit removes.

    Attributes:
        removed_fragment_ids: Fragments without a remaining row.
        updated_fragments: Fragments with a new deletion file, which has been written.
        affected_rows: Offsets of the removed rows, by fragment id.
    """

    removed_fragment_ids: tuple[int, ...]
    updated_fragments: tuple[Fragment, ...]
    affected_rows: Mapping[int, BitMap]

    @classmethod
    def none(cls) -> Removal:
        """The removal of no rows."""
        return cls(removed_fragment_ids=(), updated_fragments=(), affected_rows={})

    @property
    def num_rows(self) -> int:
        """The number of removed rows."""
        return sum(len(rows) for rows in self.affected_rows.values())


def find_rows_by_fragment(
    snapshot: Snapshot,
    options: ScanOptions,
    find: Callable[[FragmentScan], BitMap],
    plan_of: Callable[[], ScanPlan] | None = None,
) -> Iterator[tuple[Fragment, BitMap]]:
    """Find rows in each fragment: small fragments are read together, others in parallel.

    Args:
        snapshot: The version.
        options: The columns to read.
        find: Returns the offsets of the rows to find in one fragment, from a scan with these options.
        plan_of: Plans the scan; None for the fragments that can match the filter of the options.

    Yields:
        The fragments with such rows, in order, and the offsets of the rows.
    """

    def find_rows() -> Iterable[tuple[Fragment, BitMap]]:
        plan = ScanPlan.of(snapshot, snapshot.manifest.fragments, options) if plan_of is None else plan_of()
        places = {fragment.id: place for place, (fragment, _) in enumerate(plan.parts)}
        pairs = heapq.merge(_find_whole(plan), _look_at_fragments(plan, find), key=lambda pair: places[pair[0].id])
        # If indices make claims, all rows, which are few then, are checked before the first is yielded.
        return pairs if plan.selection is None or not plan.selection.claims else list(pairs)

    yield from until_consistent(find_rows)


def _look_at_fragments(plan: ScanPlan, look: Callable[[FragmentScan], BitMap]) -> Iterator[tuple[Fragment, BitMap]]:
    """Yield the fragments with rows that `look` finds, and the offsets of these rows."""
    results = worked_on(plan.scans(with_whole=False), look)
    for _, parts in groupby(results, key=lambda result: result[0].fragment.id):
        scans, offsets = zip(*parts, strict=True)
        if rows := BitMap.union(*offsets):
            yield scans[0].fragment, rows


def _find_whole(plan: ScanPlan) -> Iterator[tuple[Fragment, BitMap]]:
    """Yield the fragments all of whose rows match, and the offsets of their live rows; only deletion files are read."""
    for fragment, _ in plan.parts:
        if fragment.id in plan.whole and (rows := live_offsets(plan.snapshot, fragment)):
            yield fragment, rows


def each_matching(
    snapshot: Snapshot,
    expression: pc.Expression | None,
    dataset: Schema | None = None,
    fragments: Sequence[Fragment] | None = None,
) -> Iterator[tuple[Fragment, BitMap]]:
    """The fragments with live rows for which the expression is true, and the offsets of these rows.

    Args:
        snapshot: The version.
        expression: The condition; None for all live rows.
        dataset: All columns in the types that the condition uses; None for the types of the schema.
        fragments: Fragments of the version; None for all.
    """
    fragments = snapshot.manifest.fragments if fragments is None else fragments
    if expression is None:
        pairs = ((fragment, live_offsets(snapshot, fragment)) for fragment in fragments)
        return ((fragment, rows) for fragment, rows in pairs if rows)
    options = _filter_options(expression, dataset)
    return find_rows_by_fragment(
        snapshot, options, _find_offsets, lambda: ScanPlan.of(snapshot, fragments, options).with_certain()
    )


def _find_offsets(scan: FragmentScan) -> BitMap:
    """Offsets of the rows that match the filter of a scan."""
    matches = BitMap()
    for offsets in scan.offsets():
        matches |= BitMap(offsets) if isinstance(offsets, range) else bitmap_of(offsets)
    return matches


def _filter_options(expression: pc.Expression, dataset: Schema | None = None) -> ScanOptions:
    return ScanOptions(schema=Schema(fields=()), filter=expression, dataset=dataset)


def matching_rows(
    snapshot: Snapshot, fragment: Fragment, expression: pc.Expression, dataset: Schema | None = None
) -> BitMap:
    """Offsets of the live rows of a fragment for which an expression is true; see `each_matching` for the arguments."""
    columns = snapshot.manifest.schema
    names = columns_of(expression)
    if dataset is not None or not names or not set(names) <= set(columns.names):
        # The condition has no columns, row columns such as `_rowid`, or columns in types other than the stored ones.
        return _find_offsets(FragmentScan(snapshot, fragment, _filter_options(expression, dataset)))
    matches = BitMap()
    for rows, offsets in live_rows(snapshot, fragment, names):
        keep = matching(rows, expression).to_numpy(zero_copy_only=False)
        matches |= bitmap_of(np.flatnonzero(keep) + offsets.start if isinstance(offsets, range) else offsets[keep])
    return matches


def live_rows(
    snapshot: Snapshot, fragment: Fragment, columns: Sequence[str], possible: BitMap | None = None
) -> Iterator[tuple[pa.RecordBatch, range | npt.NDArray[np.int64]]]:
    """Yield the live rows of a fragment in storage types, each batch with the offsets of its rows.

    Args:
        snapshot: The version.
        fragment: The fragment.
        columns: Top-level columns to read, at least one.
        possible: Offsets of the rows to read; deleted rows among them are skipped; None for all rows.
    """
    by_name = {field.name: field for field in snapshot.manifest.schema.fields}
    schema = Schema(fields=tuple(by_name[name] for name in columns))
    num_rows = count_file_rows(snapshot, fragment)
    deletions = snapshot.deletions(fragment)
    live = None if deletions is None else deletions.live_rows(num_rows)
    if possible is not None:
        offsets = offsets_of(possible)
        offsets = offsets if live is None else offsets[live[offsets]]
        yield from _with_offsets(read_fragment(snapshot, fragment, schema, offsets) if len(offsets) else (), offsets)
        return
    start = 0
    for batch in read_fragment(snapshot, fragment, schema, range(num_rows)):
        end = start + batch.num_rows
        mask = None if live is None else live[start:end]
        if mask is None or mask.all():
            yield batch, range(start, end)
        else:
            yield batch.filter(pa.array(mask)), np.flatnonzero(mask) + start
        start = end


def _with_offsets(
    batches: Iterable[pa.RecordBatch], offsets: npt.NDArray[np.int64]
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    start = 0
    for batch in batches:
        yield batch, offsets[start : start + batch.num_rows]
        start += batch.num_rows


def _read_rows(
    snapshot: Snapshot, fragment: Fragment, rows: BitMap
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    """Yield rows of a fragment with all columns, in storage types, each batch with the offsets of its rows."""
    offsets = offsets_of(rows)
    if not len(offsets):
        return
    span = range(int(offsets[0]), int(offsets[-1]) + 1)
    scattered = len(offsets) < SCATTERED_SHARE * len(span)
    chosen = offsets if scattered else span
    start = 0
    for batch in read_fragment(snapshot, fragment, snapshot.manifest.schema, chosen):
        if scattered:
            yield batch, offsets[start : start + batch.num_rows]
        else:
            first = span.start + start
            batch_offsets = offsets[slice(*np.searchsorted(offsets, (first, first + batch.num_rows)))]
            if len(batch_offsets) == batch.num_rows:
                yield batch, batch_offsets
            elif len(batch_offsets):
                yield batch.take(pa.array(batch_offsets - first)), batch_offsets
        start += batch.num_rows


def rows_of(
    snapshot: Snapshot, parts: Sequence[tuple[Fragment, BitMap]]
) -> Iterator[tuple[Fragment, pa.RecordBatch, npt.NDArray[np.int64]]]:
    """Yield rows of fragments with all columns, in storage types, each batch with its fragment and its rows' offsets.

    Args:
        snapshot: The version.
        parts: The fragments, and the offsets of their rows.
    """
    if len(parts) == 1 or sum(len(rows) for _, rows in parts) > SMALL_FILE_ROWS:
        for fragment, rows in parts:
            for batch, offsets in _read_rows(snapshot, fragment, rows):
                yield fragment, batch, offsets
        return
    options = ScanOptions(schema=snapshot.manifest.schema)
    scans = [(FragmentScan(snapshot, fragment, options), offsets_of(rows)) for fragment, rows in parts]
    for scan, chosen in coalesced_rows(scans):
        for batch, offsets in _with_offsets(scan.rows(chosen), np.asarray(chosen, np.int64)):
            yield scan.fragment, batch, offsets


def remove_rows(snapshot: Snapshot, rows: Iterable[tuple[Fragment, BitMap]], files: UncommittedFiles) -> Removal:
    """Remove rows: write deletion files for fragments that keep some of their rows.

    Args:
        snapshot: The version that has the rows.
        rows: Fragments that lose rows, each with the offsets of these rows, which must all be alive.
        files: Collects the deletion files.
    """
    removed, updated, affected = [], [], {}
    waiting: list[tuple[Fragment, BitMap]] = []  # if each put is a request, several are made in parallel
    unwritten: list[_Hidden] = []  # the first file, until there is a second one
    for fragment, deleted in rows:
        affected[fragment.id] = deleted
        if len(deleted) == count_live(snapshot, fragment):
            removed.append(fragment.id)
            continue
        if snapshot.store.put_is_a_request:
            waiting.append((fragment, deleted))
            continue
        hidden = _hide_rows(snapshot, fragment, deleted)
        updated.append(hidden.fragment)
        files.add(snapshot.store, hidden.key)
        unwritten.append(hidden)
        if len(updated) > 1:
            _put(snapshot, unwritten)
    if waiting:
        writes = in_order(
            lambda pair: with_deletions(snapshot, *pair, files), waiting, requests=parallel_requests(snapshot.store)
        )
        updated = list(writes)
    if unwritten and files.pending is not None:
        files.pending.add(put_durably, snapshot.store, unwritten[0].key, unwritten[0].data)
    else:
        _put(snapshot, unwritten)
        written = [
            fragment.deletion_file.key(fragment.id) for fragment in updated if fragment.deletion_file is not None
        ]
        make_durable(snapshot.store, written, files.pending)
    return Removal(removed_fragment_ids=tuple(removed), updated_fragments=tuple(updated), affected_rows=affected)


class _Hidden(NamedTuple):
    """A fragment with a new deletion file, and the key and the content of this file."""

    fragment: Fragment
    key: str
    data: bytes


def _put(snapshot: Snapshot, hidden: list[_Hidden]) -> None:
    """Write deletion files, without waiting until they are durable."""
    for file in hidden:
        snapshot.store.put(file.key, file.data)
    hidden.clear()


def with_deletions(snapshot: Snapshot, fragment: Fragment, deleted: BitMap, files: UncommittedFiles) -> Fragment:
    """Write a deletion file for further rows of a fragment, not durable yet, and return the changed fragment."""
    hidden = _hide_rows(snapshot, fragment, deleted)
    snapshot.store.put(hidden.key, hidden.data)
    files.add(snapshot.store, hidden.key)
    return hidden.fragment


def _hide_rows(snapshot: Snapshot, fragment: Fragment, deleted: BitMap) -> _Hidden:
    hidden = (snapshot.deletions(fragment) or DeletionVector()) | deleted
    file, data = hidden.to_file(snapshot.manifest.version)
    return _Hidden(replace(fragment, deletion_file=file), file.key(fragment.id), data)


class MovedRows:
    """Writes rows into new fragments of a version.

    Args:
        snapshot: The version.
        files: Collects the new files.
        data_storage_version: Version of the files; None for the dataset's.
        targets: The targets to which files are written, round-robin; None for the dataset's root.
        schema: The columns that are written; None for all.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        files: UncommittedFiles,
        *,
        data_storage_version: str | None = None,
        targets: Sequence[WriteTarget] | None = None,
        schema: Schema | None = None,
    ) -> None:
        manifest = snapshot.manifest
        self._files = files
        self._schema = manifest.schema if schema is None else schema
        self._stable = manifest.uses_stable_row_ids
        self._ids: list[U64Array] = []
        self._is_finished = False
        self._writer = FragmentWriter(
            snapshot.store.root,
            typed_schema(self._schema),
            storage_options=snapshot.options,
            data_storage_version=data_storage_version or manifest.data_storage_version,
            dataset_schema=self._schema,
            targets=targets or [WriteTarget(store=snapshot.store)],
            external_places=None,  # rows of the table may refer to any external blob
            divides_dictionaries=any(has_narrow_dictionary(kind) for kind in schema_to_arrow(self._schema).types),
        )

    def write(self, rows: pa.Table | pa.RecordBatch, row_ids: U64Array | None = None) -> None:
        """Append rows that have all columns.

        Args:
            rows: The rows.
            row_ids: Stable ids of rows that are moved; None for new rows, which are written after all moved rows.

        Raises:
            SchemaError: The rows do not fit the dataset.
        """
        self._writer.write(rows)
        if self._stable and row_ids is not None:
            self._ids.append(row_ids)

    def finish(self) -> tuple[Fragment, ...]:
        """End the last file, and return the new fragments without fragment ids, with the row ids of moved rows.

        Raises:
            SchemaError: The rows have new values for a dictionary of version 0.1.
        """
        fragments = self._writer.finish_records(self._files.pending)
        # From now on `UncommittedFiles` deletes the files after a failure.
        self._is_finished = True
        self._files.add_fragments(fragments)
        check_dictionaries(self._schema, fragments, self._files.snapshot.store)
        if not self._ids:
            return fragments
        ids, start, result = np.concatenate(self._ids), 0, []
        for fragment in fragments:
            row_ids = ids[start : start + fragment.physical_rows]
            start += fragment.physical_rows
            result.append(replace(fragment, row_ids=encode_row_ids(row_ids)) if len(row_ids) else fragment)
        return tuple(result)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Delete the files if the body raised before `finish`."""
        if kind is not None and not self._is_finished:
            self._writer.discard()
