"""Dry runs of maintenance: the versions that it would commit, computed from metadata while nothing is written.

Each method applies the operations of the real verb to a manifest in memory. The manifest names files that are never
written. Deletion files are kept in memory; the content and sizes of others are unknown, and data files have no fields.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, cast
from uuid import UUID, uuid4

import numpy as np
from pyroaring import BitMap, BitMap64

from lance_core.errors import LanceError, UnsupportedError
from lance_core.index.kinds.registry import KINDS
from lance_core.maintenance.cleanup.plan import Selectors, plan_cleanup
from lance_core.maintenance.cleanup.run import CleanupStats, stats_of
from lance_core.maintenance.compaction.compaction import number_new_fragments
from lance_core.maintenance.compaction.coverage import find_indices_to_extend, needs_moves, plan_deferred_moves
from lance_core.maintenance.compaction.rewrite import CompactionMetrics, RewriteResult, rows_per_file
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.zone_maps import find_due_zone_maps
from lance_core.row_addresses import make_row_address
from lance_core.store import BytesLike, ObjectStore
from lance_core.table.deletion import DeletionVector
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.file_references import FileReferences
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import CreateIndex, Delete, ReserveFragments, Rewrite, UpdateConfig, UpdateMap
from lance_core.table.operations.base import ApplyContext, Operation
from lance_core.table.paths import new_data_file_name
from lance_core.table.reuse import live_coverage
from lance_core.table.rowids import encode_row_ids
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.indices.build import indexed_field
from lance_core.verbs.indices.create import index_name
from lance_core.verbs.indices.optimize import expected_changes

_Handle = TypeVar("_Handle", bound=Handle)

_ZONE_MAP: Final = KINDS["ZoneMap"]


class ExpectedVersions(Generic[_Handle]):
    """The versions that maintenance would commit after a version of a table.

    Attributes:
        dataset: A handle on the last of these versions, for methods that need no more than the manifest.
        base: The version that they come after, whose files exist.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> expected = maintenance.ExpectedVersions(table)
        >>> expected.compact(maintenance.Compaction.plan(table).tasks).fragments_removed
        2
        >>> expected.explain_cleanup(maintenance.select(retain_versions=1)).old_versions
        2
        >>> (expected.dataset.version, table.latest_version)
        (4, 2)
    """

    def __init__(self, dataset: _Handle) -> None:
        """Start at the version of a handle, which itself does not move."""
        self.dataset = dataset.checkout_version(dataset.version)
        self.base = dataset.snapshot
        self._files: dict[str, bytes] = {}
        self.dataset._store = cast("ObjectStore", _StoreWithFiles(self.base.store, self._files))  # noqa: SLF001 - same library
        self._commits: list[tuple[Manifest, Transaction]] = []
        self._removed: frozenset[int] = frozenset()
        self._unwritten: set[UUID] = set()

    def delete(self, rows: Sequence[tuple[Fragment, BitMap]]) -> None:
        """Delete rows in one version.

        Args:
            rows: Fragments that lose rows, each with the offsets of these rows, which must all be alive.
        """
        removed, updated = list[int](), list[Fragment]()
        for fragment, offsets in rows:
            deleted = DeletionVector(self.dataset.snapshot.deleted_rows(fragment) | offsets)
            if len(deleted) >= (fragment.physical_rows or 0):
                removed.append(fragment.id)
                continue
            file, data = deleted.to_file(self._manifest.version)
            self._files[file.key(fragment.id)] = data
            updated.append(replace(fragment, deletion_file=file))
        self._commit(Delete(updated_fragments=tuple(updated), deleted_fragment_ids=tuple(removed)))

    def compact(self, tasks: Sequence[CompactionTask]) -> CompactionMetrics:
        """Replace the fragments of tasks, and extend indices, as `commit_what_fits` does with their results.

        How many fragments a task makes is known from its rows; a limit of bytes per file could split them further.
        """
        results = [self._foresee_result(task) for task in tasks]
        if not results:
            return CompactionMetrics()
        before = self._manifest.indices
        groups = [result.group for result in results]
        needed = sum(len(result.new_records) for result in results)
        if needed:
            self._commit(ReserveFragments(num_fragments=needed))
            groups = number_new_fragments(groups, (self._manifest.max_fragment_id or 0) - needed + 1)
        moved = tuple(result.row_addrs for result in results if result.row_addrs is not None)
        is_recorded = len(moved) == len(results) and needs_moves(self._manifest, results)
        deferring = plan_deferred_moves(self._manifest) if is_recorded else None
        if deferring is not None:
            self._commit(deferring)
        self._commit(Rewrite(groups=tuple(groups), moved_rows=moved if is_recorded else ()))
        extended = list[str]()
        if self._manifest.indices:
            extended = sorted(find_indices_to_extend(self._manifest, [result.group for result in results], before))
            self._extend(extended)
        metrics = sum((result.metrics for result in results), CompactionMetrics())
        return replace(metrics, indices_extended=tuple(extended))

    def index_partitions(self, columns: Sequence[str], *, max_unindexed_fragments: int) -> list[str]:
        """Make zone maps, or refresh them, as the function of that name does.

        Args:
            columns: The columns.
            max_unindexed_fragments: The most fragments that a zone map may leave uncovered.
        """
        lacking, stale = find_due_zone_maps(self._manifest, columns, max_unindexed_fragments=max_unindexed_fragments)
        done = []
        for column in lacking:
            segment = self._foresee_zone_map(column)
            self._change_indices((segment,), ())
            done.append(segment.name)
        self._extend(stale)
        return [*done, *stale]

    def optimize_index(self, name: str, merge_count: int | None = None) -> bool:
        """Extend an index to all rows, with which its last segments are merged; False if it is not built here."""
        try:
            changes = expected_changes(
                self.dataset.snapshot, [name], self._unwritten, 1 if merge_count is None else merge_count
            )
        except UnsupportedError:
            return False
        self._change_indices(*changes)
        return True

    def extend_by_pylance(self, name: str, merge_count: int | None = None) -> None:
        """Extend an index of a kind that is not built here, as pylance does unless it divides or joins its partitions.

        A vector index gets one more segment, for the rows that it does not cover. The last segment of an index of any
        other kind is merged with these rows.

        Args:
            name: The index.
            merge_count: How many of the last segments are merged with these rows; None for 0 of vectors, else 1.
        """
        segments = [(index, covered) for index, covered in live_coverage(self._manifest.indices) if index.name == name]
        last, every = segments[-1][0], BitMap(self._manifest.fragments.ids)
        default_count = 0 if last.is_vector else 1
        merged = segments[len(segments) - (default_count if merge_count is None else merge_count) :]
        missed = every.difference(*(covered for _, covered in segments))
        fragment_ids = missed.union(*(covered & every for _, covered in merged))
        self._change_indices((self._foresee_segment(last, fragment_ids),), tuple(index for index, _ in merged))

    def replace_segments(self, name: str, fragment_ids: Collection[int], replaced: Collection[str] = ()) -> None:
        """Add a segment to an index, in place of others.

        Args:
            name: The index.
            fragment_ids: The fragments that the segment covers.
            replaced: The uuids of the segments that it replaces.
        """
        segments = [index for index in self._manifest.indices if index.name == name]
        dropped = tuple(index for index in segments if str(index.uuid) in replaced)
        self._change_indices((self._foresee_segment(segments[-1], BitMap(fragment_ids)),), dropped)

    def build_index(self, name: str, field_id: int, type_url: str, fragment_ids: Collection[int]) -> None:
        """Build an index as one segment, in place of one of that name.

        Args:
            name: The index.
            field_id: The indexed field.
            type_url: The type of its details.
            fragment_ids: The fragments that it covers.
        """
        segment = self._foresee_index(name, field_id, type_url, fragment_ids)
        self._change_indices((segment,), tuple(index for index in self._manifest.indices if index.name == name))

    def drop_index(self, name: str) -> None:
        """Drop an index."""
        self._change_indices((), tuple(index for index in self._manifest.indices if index.name == name))

    def configure(self, entries: Mapping[str, str | None]) -> None:
        """Set entries of the configuration, or remove those that are None; make no version if there are none."""
        if entries:
            self._commit(UpdateConfig(config=UpdateMap(entries=entries)))

    def explain_cleanup(self, selectors: Selectors) -> CleanupStats:
        """What a cleanup after these versions would remove of the files that exist now.

        Args:
            selectors: Which versions to remove.
        """
        plan = plan_cleanup(
            self.base.store,
            self.base.manifest,
            selectors,
            expected=[(_parse_references(manifest), made_by) for manifest, made_by in self._commits],
        )
        self._removed = plan.versions
        return stats_of(plan.files)

    def num_versions(self, before: int) -> int:
        """The number of versions after this maintenance, given the number of versions now."""
        return before + len(self._commits) - len(self._removed)

    @property
    def _manifest(self) -> Manifest:
        return self.dataset.snapshot.manifest

    def _commit(self, operation: Operation) -> None:
        version = self._manifest.version + 1
        transaction = Transaction(read_version=self._manifest.version, operation=operation)
        expected = transaction.apply(self._manifest, ApplyContext(version=version), time.time_ns())
        self.dataset.move_to(expected)
        self._commits.append((expected, transaction))

    def _extend(self, names: Sequence[str]) -> None:
        """Extend indices in one version; make no version if an index cannot be extended."""
        if not names:
            return
        try:
            changes = expected_changes(self.dataset.snapshot, names, self._unwritten)
        except LanceError:  # the compaction logs it: queries are merely slower
            return
        self._change_indices(*changes)

    def _change_indices(self, new: tuple[IndexMetadata, ...], dropped: tuple[IndexMetadata, ...]) -> None:
        self._unwritten |= {index.uuid for index in new if not index.is_system}
        if new or dropped:
            self._commit(CreateIndex(new_indices=new, removed_indices=dropped))

    def _foresee_result(self, task: CompactionTask) -> RewriteResult:
        """The result of a task, with data files that are never written."""
        manifest, old = self._manifest, task.records
        limit, left, new = rows_per_file(task.num_rows, task.options), task.num_rows, list[Fragment]()
        while left:
            count = min(limit, left)
            file = DataFile(
                path=new_data_file_name(),
                fields=(),
                column_indices=(),
                file_major_version=2,
                file_minor_version=1,
                file_size_bytes=task.num_bytes * count // task.num_rows,
            )
            ids = encode_row_ids(np.arange(count, dtype=np.uint64)) if manifest.uses_stable_row_ids else None
            new.append(Fragment(files=(file,), physical_rows=count, row_ids=ids))
            left -= count
        has_addresses = manifest.indices and not manifest.uses_stable_row_ids
        return RewriteResult(
            metrics=CompactionMetrics(fragments_removed=len(old), fragments_added=len(new)),
            new_records=tuple(new),
            original_records=old,
            read_version=manifest.version,
            row_addrs=_list_addresses(old) if has_addresses else None,
        )

    def _foresee_zone_map(self, column: str) -> IndexMetadata:
        schema = self._manifest.schema
        field = indexed_field(schema, next(field.id for field in schema.fields if field.name == column))
        name = index_name(self._manifest, field, _ZONE_MAP, None, replace=False)
        return self._foresee_index(name, field.node.id, _ZONE_MAP.type_url, self._manifest.fragments.ids)

    def _foresee_index(self, name: str, field_id: int, type_url: str, fragment_ids: Collection[int]) -> IndexMetadata:
        return IndexMetadata(
            uuid=uuid4(),
            name=name,
            fields=(field_id,),
            dataset_version=self._manifest.version,
            fragment_bitmap=BitMap(fragment_ids).serialize(),
            details_type_url=type_url,
        )

    def _foresee_segment(self, index: IndexMetadata, covered: BitMap) -> IndexMetadata:
        version = self._manifest.version
        return replace(index, uuid=uuid4(), fragment_bitmap=covered.serialize(), dataset_version=version, files=())


class _StoreWithFiles:
    """A store that has further files, and forwards all other calls to the store that it wraps."""

    def __init__(self, store: ObjectStore, files: Mapping[str, bytes]) -> None:
        self._store = store
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> BytesLike:
        return self._files[key] if key in self._files else self._store.get(key)


def _list_addresses(fragments: Sequence[Fragment]) -> bytes:
    """The addresses of all rows: deletions are not read, as only the list of moved fragments counts."""
    result = BitMap64()
    for fragment in fragments:
        first = make_row_address(fragment.id, 0)
        result.add_range(first, first + (fragment.physical_rows or 0))
    return result.serialize()


def _parse_references(manifest: Manifest) -> FileReferences:
    """What cleanup would read of a version: from its bytes, so that no property of it is left out."""
    return FileReferences.from_bytes(manifest.to_bytes(), f"expected version {manifest.version}")
