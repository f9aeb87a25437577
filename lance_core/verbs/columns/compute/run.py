"""Run a computation: find the rows that are due, call the function, stage its results, and commit whole fragments.

lease -> due rows -> inputs and digests -> staged before? -> calls -> staged files -> file per fragment -> commit
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit.loop import commit
from lance_core.commit.records import Commit
from lance_core.commit.versions import identity_of
from lance_core.errors import LanceError
from lance_core.row_addresses import bitmap_of
from lance_core.schema import Schema, schema_to_bytes
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import UpdateConfig
from lance_core.table.paths import data_key
from lance_core.table.rowids import decode_row_ids_of
from lance_core.table.transaction import Transaction
from lance_core.verbs.columns.compute.calls import Caller, CallResult, Calls
from lance_core.verbs.columns.compute.computation import COMMIT_KEY, Computation, Record, find_own
from lance_core.verbs.columns.compute.digests import digest_rows
from lance_core.verbs.columns.compute.due import UNKNOWN_VERSION, DueFragment, Offsets, find_due_rows, read_inputs
from lance_core.verbs.columns.compute.estimates import record_run
from lance_core.verbs.columns.compute.input_files import (
    find_shared_version,
    keeps_inputs,
    name_file,
    transactions_since,
)
from lance_core.verbs.columns.compute.lease import Lease
from lance_core.verbs.columns.compute.records import (
    COUNTED,
    ComputeProgress,
    ComputeResult,
    FailedRow,
    StagingPace,
    Timer,
)
from lance_core.verbs.columns.compute.results import (
    ComputedRows,
    Results,
    StagedPlaces,
    StagedRows,
    find_staged,
    prefix_of,
    rows_schema,
)
from lance_core.verbs.columns.write_columns.commit import commit_columns
from lance_core.verbs.columns.write_columns.tasks import (
    ColumnPlan,
    ColumnTask,
    WrittenColumns,
    resolve_columns,
    write_values,
)
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files
from lance_core.verbs.files.column_files import write_at_once
from lance_core.verbs.files.conform import conform, fit

_SHARES: Final = 4
"""A run with `on_running="split"` computes a quarter of the due rows that no run holds at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedTask:
    """What another process has computed and staged. It can be pickled.

    Attributes:
        num_rows: The rows that were looked at, by fragment.
        places: Where the computed rows are staged, by fragment.
        ids: Their row ids.
        failed: Those on which the function failed.
        equal: Versions that changed rows without changing their inputs.
        unequal: Versions that changed inputs.
        counts: The counts of the run, "inputs changed" and "failed".
    """

    num_rows: dict[int, int]
    places: dict[int, StagedPlaces]
    ids: npt.NDArray[np.uint64]
    failed: list[FailedRow]
    equal: set[int]
    unequal: set[int]
    counts: Counter[str]


class _BatchRows(NamedTuple):
    """Rows of one fragment in a batch of calls."""

    fragment_id: int
    offsets: Offsets
    ids: npt.NDArray[np.uint64]
    digests: npt.NDArray[np.int64]

    def slice(self, first: int, last: int) -> _BatchRows:
        """Some of the rows."""
        return _BatchRows(self.fragment_id, self.offsets[first:last], self.ids[first:last], self.digests[first:last])


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of a computation on a version.

    Attributes:
        snapshot: The version.
        computation: The computation.
        calls: How the function is called.
        pace: How often results are staged and committed.
        where: The rows that are looked at; None for all.
        retry_failed: Whether rows are computed again on which the function has failed.
        how: How versions are committed.
        report: Called before each commit with the failed rows and the stable ids of all rows whose cells it sets.
        progress: Called after each call of the function.
        lease: The lease of the run.
        open_caller: Starts what the calls need, or returns what was started.
        cost_per_row: What a call costs for each row, which is recorded; None if that is not known.
        is_split: Whether a share of the due rows is computed, so that others take the rest.
        done_ids: Fragments that are done; those of this run are added.
        executor: Yields what other processes have computed of fragments; None to call the function in this one.
        task: The number of the task of another process of which this is the run; None for the run itself.
        record: What the version records of the computation.
        staged: What earlier runs have staged.
        is_whole: Whether it computes all rows that are due, but for those that this process has computed before.
    """

    snapshot: Snapshot
    computation: Computation
    calls: Calls
    pace: StagingPace
    where: str | pc.Expression | None
    retry_failed: bool
    how: Commit
    report: Callable[[Sequence[FailedRow], npt.NDArray[np.uint64]], object]
    progress: Callable[[ComputeProgress], object] | None
    lease: Lease
    open_caller: Callable[[], Caller]
    cost_per_row: float | None = None
    is_split: bool = False
    done_ids: set[int] = field(default_factory=set)
    executor: Callable[[Run, Sequence[DueFragment]], Iterable[ComputedTask]] | None = None
    task: int | None = None
    _manifest: Manifest = field(init=False)
    _results: Results = field(init=False)
    _used: npt.NDArray[np.bool_] = field(init=False)
    _total: int = 0
    _shown: int = 0
    _begun: float = 0.0
    _counts: Counter[str] = field(default_factory=Counter)
    _reasons: Counter[str] = field(default_factory=Counter)
    _equal: set[int] = field(default_factory=set)
    _unequal: set[int] = field(default_factory=set)
    _left: dict[int, int] = field(default_factory=dict)
    _ended: list[int] = field(default_factory=list)
    _first_error: str | None = None
    _ids: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    _failed: list[FailedRow] = field(default_factory=list)
    _partial: set[int] = field(default_factory=set)
    _record_beside: Record = field(default_factory=Record)
    _keeps_inputs: bool = True
    record: Record = field(init=False)
    staged: StagedRows = field(init=False)
    is_whole: bool = field(default=True, init=False)

    def run(self) -> tuple[Manifest, ComputeResult]:
        """Compute the cells that are due, and commit them."""
        self._manifest = self.snapshot.manifest
        self.computation.check(self._manifest, self.snapshot.store.root)
        self.record = Record.read(self.snapshot, self.computation.name)
        fragments = list(
            find_due_rows(
                self.snapshot, self.computation, self.record, self.where, retry_failed=self.retry_failed,
                partial=self._partial,
            )
        )  # fmt: skip
        fragments = self._choose(fragments)
        for due in fragments:
            self._reasons.update(due.counts)
        if fragments:
            self.lease.hold([due.fragment.id for due in fragments], self._manifest.max_fragment_id or 0)
            tags = [prefix_of(self.computation.name) + _tag_of(other["owner"]) for other in self.lease.beside.values()]
            self.staged = find_staged(
                self.snapshot, self.computation, lambda key: not any(key.startswith(data_key(tag)) for tag in tags)
            )
            self._compute(fragments)
            self._commit()
            self._record_spent()
            self._remove_staged()
        return self._manifest, self._describe()

    def _choose(self, fragments: list[DueFragment]) -> list[DueFragment]:
        """The fragments that no other run holds; a share of them, if others may take the rest."""
        fragments = [due for due in fragments if due.fragment.id not in self.done_ids]
        free = [due for due in fragments if not self.lease.leaves(due.fragment.id)]
        counts = np.cumsum([len(due.offsets) for due in free])
        chosen = free[: int(np.searchsorted(counts, counts[-1] / _SHARES)) + 1] if self.is_split and free else free
        self.is_whole = len(chosen) == len(fragments)
        self.done_ids.update(due.fragment.id for due in chosen)
        return chosen

    def run_task(self, fragments: Sequence[DueFragment], staged_keys: Container[str]) -> ComputedTask:
        """Compute and stage the rows of a task; those are not computed that were staged by earlier runs, or attempts.

        Args:
            fragments: The rows.
            staged_keys: What earlier runs have staged.
        """
        prefix = data_key(f"{prefix_of(self.computation.name)}{self._tag}")
        self.staged = find_staged(
            self.snapshot, self.computation, lambda key: key in staged_keys or key.startswith(prefix)
        )
        self._compute(fragments)
        self.lease.check()
        self._results.stage()
        return ComputedTask(
            num_rows={due.fragment.id: len(due.offsets) for due in fragments}, places=self._results.export(),
            ids=np.concatenate([np.zeros(0, np.uint64), *self._ids]), failed=self._failed, equal=self._equal,
            unequal=self._unequal, counts=self._counts + self._reasons,
        )  # fmt: skip

    @property
    def _tag(self) -> str:
        """A part of the names of staged files, by which those of this run are known, or of this task."""
        return _tag_of(self.lease.owner) + ("" if self.task is None else f"{self.task}-")

    def _compute(self, fragments: Sequence[DueFragment]) -> None:
        """Call the function on all rows that are due, and stage and commit at the asked pace."""
        self._left = {due.fragment.id: len(due.offsets) for due in fragments}
        self._results = Results(self.snapshot, self.computation, find_shared_version(self.snapshot), self._tag)
        self._used = np.zeros(len(self.staged.ids), np.bool_)
        total = self._total = sum(self._left.values())
        self._begun = time.monotonic()
        stage, visible = Timer(self.pace.commit_every), Timer(self.pace.visible_every)
        try:
            for _ in self._call_here(fragments) if self.executor is None else self._call_elsewhere(fragments):
                done = total - sum(self._left.values())
                if stage.is_over(done):
                    self.lease.check()
                    self._results.stage()
                    self._record_spent()
                if visible.is_over(done) and self._ended:
                    self._commit()
                self.report_progress()
        except BaseException:
            # What was computed is kept for the next run; if it cannot be, the first error is the one to know.
            with suppress(LanceError, OSError):
                self._record_spent()
                self.lease.check()
                self._results.stage()
            raise

    def _record_spent(self) -> None:
        """Record what the run has spent up to now."""
        if self.task is None:
            rows, called = self._counts["rows with results"], self._counts["rows_called"]
            seconds = time.monotonic() - self._begun
            record_run(self.snapshot, self.computation.name, self.lease.owner, rows, called, seconds, self.cost_per_row)

    def report_progress(self, num_rows: int = 0) -> None:
        """Report the progress, with a number of rows that are done elsewhere; what was reported so is not repeated."""
        done = self._total - sum(self._left.values()) + num_rows
        if self.progress is not None and done >= self._shown:
            self._shown = done
            self.progress(
                ComputeProgress(
                    rows_due=self._total, rows_done=done,
                    rows_computed=min(done, self._counts["rows with results"] + num_rows),
                    rows_failed=self._counts["rows_failed"], calls=self._counts["calls"],
                    seconds=time.monotonic() - self._begun,
                )
            )  # fmt: skip

    def _call_here(self, fragments: Sequence[DueFragment]) -> Iterator[None]:
        """Call the function on all rows that are due."""
        caller = self.open_caller()
        calls, rows = caller.num_calls, caller.num_rows
        for segments, result in caller.in_order(self._each_batch(fragments)):
            self._add(segments, result)
            self._counts["calls"] = caller.num_calls - calls
            self._counts["rows_called"] = caller.num_rows - rows
            yield

    def _call_elsewhere(self, fragments: Sequence[DueFragment]) -> Iterator[None]:
        """Add what other processes have computed and staged."""
        assert self.executor is not None
        for task in self.executor(self, fragments):
            self._results.add_staged(task.places)
            for _, key, numbers in (piece for pieces in task.places.values() for piece in pieces):
                if key in self.staged.keys:
                    is_file = self.staged.files == self.staged.keys.index(key)
                    self._used |= is_file & np.isin(self.staged.rows, numbers)
            self._ids.append(task.ids)
            self._failed.extend(task.failed)
            self._first_error = self._first_error or next((row.error for row in task.failed), None)
            self._equal |= task.equal
            self._unequal |= task.unequal
            self._reasons.update({name: task.counts.pop(name, 0) for name in ("inputs changed", "failed")})
            self._counts.update(task.counts)
            for fragment_id, num_rows in task.num_rows.items():
                self._finish(fragment_id, num_rows)
            yield

    def _each_batch(self, fragments: Iterable[DueFragment]) -> Iterator[tuple[list[_BatchRows], pa.RecordBatch]]:
        """Yield batches of inputs, also of several fragments, each with its rows."""
        segments: list[_BatchRows] = []
        tables: list[pa.Table] = []
        size = self.pace.batch_size
        for due in fragments:
            for segment, rows in self._read_due(due):
                segments.append(segment)
                tables.append(rows)
                joined = pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else rows
                whole = joined.num_rows // size * size
                for start in range(0, whole, size):
                    batch_segments, segments = _split(segments, size)
                    yield batch_segments, _to_batch(joined.slice(start, size))
                tables = [joined.slice(whole)] if joined.num_rows > whole else []
        if tables:
            yield segments, _to_batch(pa.concat_tables(tables))

    def _read_due(self, due: DueFragment) -> Iterator[tuple[_BatchRows, pa.Table]]:
        """Yield rows of a fragment that have to be computed, with their inputs, some megabytes at a time."""
        ids = decode_row_ids_of(due.fragment)
        assert ids is not None
        start = 0
        for offsets, rows in read_inputs(self.snapshot, self.computation, due.fragment, due.offsets):
            window = slice(start, start + len(offsets))
            start += len(offsets)
            digests = digest_rows(rows)
            is_equal = due.compared[window] & (due.digests[window] == digests)
            is_changed, is_same = due.compared[window] & ~is_equal, is_equal & ~due.failed[window]
            self._reasons["inputs changed"] += int(is_changed.sum())
            self._reasons["failed"] += int((due.failed[window] & ~is_changed).sum())
            self._equal.update(due.updated[window][is_equal].tolist())
            self._unequal.update(due.updated[window][is_changed].tolist())
            places = self.staged.find(ids[offsets], digests, with_failed=not self.retry_failed)
            is_staged = ~is_same & (places >= 0)
            if is_staged.any():
                self._use(due.fragment.id, offsets[is_staged], ids[offsets[is_staged]], places[is_staged])
            self._counts["rows_compared"] += int(is_same.sum())
            self._finish(due.fragment.id, int((is_same | is_staged).sum()))
            is_due = ~is_same & ~is_staged
            if is_due.any():
                segment = _BatchRows(due.fragment.id, offsets[is_due], ids[offsets[is_due]], digests[is_due])
                batch = rows.select(list(self.computation.batch_names or self.computation.inputs))
                yield segment, batch if is_due.all() else batch.filter(pa.array(is_due))

    def _use(self, fragment_id: int, offsets: Offsets, ids: npt.NDArray[np.uint64], places: Offsets) -> None:
        """Use rows that an earlier run has staged."""
        self._results.reuse(fragment_id, offsets, self.staged, places)
        self._used[places] = True
        self._ids.append(ids)
        self._counts["rows_staged_before"] += len(places)
        errors = self.staged.errors.take(pa.array(places))
        for row in np.flatnonzero(np.asarray(errors.is_valid())).tolist():
            self._fail(int(ids[row]), int(self.staged.inputs[places[row]]), errors[row].as_py())

    def _fail(self, row_id: int, digest: int, error: str) -> None:
        """Note a row on which the function failed."""
        self._failed.append(FailedRow(row_id=row_id, inputs=digest, error=error))
        self._counts["rows_failed"] += 1
        self._first_error = self._first_error or error

    def _add(self, segments: Sequence[_BatchRows], result: CallResult) -> None:
        """Add the result of a call."""
        start = 0
        for segment in segments:
            end = start + len(segment.offsets)
            errors = [result.errors.get(row) for row in range(start, end)] if result.errors else [None] * (end - start)
            for row in sorted(result.errors):
                if start <= row < end:
                    row_id, digest = int(segment.ids[row - start]), int(segment.digests[row - start])
                    self._fail(row_id, digest, result.errors[row])
            values = pa.Table.from_batches([result.values.slice(start, end - start)])
            columns = [pa.array(segment.ids), pa.array(segment.digests), pa.array(errors, pa.string()), *values.columns]
            rows = pa.table(columns, schema=rows_schema(self.computation))
            self._results.add(segment.fragment_id, segment.offsets, rows)
            self._ids.append(segment.ids)
            self._counts["rows with results"] += end - start
            self._finish(segment.fragment_id, end - start)
            start = end

    def _finish(self, fragment_id: int, num_rows: int) -> None:
        """Note that rows of a fragment need no call any more."""
        self._left[fragment_id] -= num_rows
        if not self._left[fragment_id]:
            self._ended.append(fragment_id)

    def _commit(self) -> None:
        """Commit the fragments of which all rows are computed."""
        ended, self._ended = [number for number in self._ended if self._results.has(number)], []
        if not ended and not self._has_compared:
            return
        if ended:
            self.report(self._failed, np.concatenate(self._ids))
            self._failed, self._ids = [], []
        manifest, version = self.snapshot.manifest, self.snapshot.manifest.version
        record, properties = self._move_record()
        if not ended:
            transaction = Transaction(read_version=version, operation=UpdateConfig(), properties=properties)
            self._manifest, self.record = commit(self.snapshot.store, transaction, base=manifest).manifest, record
            return
        columns, added = resolve_columns(manifest, self.computation.output)
        how = replace(self.how, properties={**(self.how.properties or {}), **properties})
        with collecting_files(self.snapshot) as files:
            written = list(
                write_at_once(lambda number: self._write(number, columns, files), ended, self.snapshot.store)
            )
            tasks = tuple(_make_task(version, part, columns) for part in written)
            plan = ColumnPlan(
                version=version, columns=schema_to_bytes(columns), added=added, tasks=tasks,
                identity=identity_of(manifest),
            )  # fmt: skip
            if files.pending is not None:
                files.pending.wait()
            self.lease.check()
            since = self._manifest.version
            self._manifest, result = commit_columns(self.snapshot, plan, written, how, self._name_file)
        if self._keeps_inputs and record.position is not None:
            later = replace(self.snapshot, manifest=self._manifest)
            versions = find_own(later, self.computation.name, record.position, since)
            record, self._keeps_inputs = replace(record, own_versions=record.own_versions | versions), bool(versions)
        if self.lease.beside:
            self._record_beside = record
        else:
            self.record = record
        self._counts.update({"rows_computed": result.rows_updated, "commits": 1, "bytes_written": result.bytes_written})

    def _move_record(self) -> tuple[Record, dict[str, str]]:
        """The record once what is done is committed, and the transaction properties that record it."""
        manifest, version = self.snapshot.manifest, self.snapshot.manifest.version
        is_alone = not self.lease.beside
        before = self.record if is_alone else self._record_beside
        if manifest.branch is not None:
            return before, {f"{COMMIT_KEY}{self.computation.name}": str(version)}
        is_last = is_alone and self._is_complete
        settled = version if is_last and self.where is None else 0
        # After the last rows of the whole table all rows of these versions were compared, or are set now.
        compared = frozenset(self._equal - self._unequal - {UNKNOWN_VERSION}) if settled else frozenset[int]()
        checked = version, manifest.max_fragment_id or 0, self.computation.input_ids(manifest)
        record = before.after_commit(
            code=self.computation.code_version, inputs=self.computation.inputs, settled=settled,
            version=version, compared=compared,
            checked=checked if (is_last and not self._partial) or self.record.position is None else None,
        )  # fmt: skip
        return record.move_from(before, self.computation.name, self.lease.owner, is_alone=is_alone)

    @property
    def _has_compared(self) -> bool:
        """Whether all rows were compared of versions of main that later runs would compare again."""
        is_main = self.snapshot.manifest.branch is None and not self.lease.beside
        versions = self._equal - self.record.own_versions - {UNKNOWN_VERSION}
        return is_main and self.where is None and self._is_complete and max(versions, default=0) > self.record.settled

    @property
    def _is_complete(self) -> bool:
        """Whether all rows of the version that were due, or had to be compared, are done."""
        return self.is_whole and not any(self._left.values())

    def _write(self, fragment_id: int, columns: Schema, files: UncommittedFiles) -> WrittenColumns:
        """Write the file of a fragment."""
        fragment = self.snapshot.manifest.fragments.by_id(fragment_id)
        rows = self._results.take(fragment_id)
        file = write_values(
            self.snapshot, fragment, columns, rows.offsets, _ConformedRows(rows, columns), BitMap(), files,
            self._name_file(self.snapshot, fragment),
        )  # fmt: skip
        return WrittenColumns(fragment_id=fragment_id, file=file, rows=bitmap_of(rows.offsets).serialize())

    def _name_file(self, snapshot: Snapshot, fragment: Fragment) -> str | None:
        """The name of a file of a fragment, of a later version too; None if not all rows belong to the inputs."""
        if fragment.id in self._partial:
            return None
        if snapshot is not self.snapshot:  # it may have rows of any fragment of the run's version
            self.lease.check()  # the one that took over may have committed the same rows
            later = transactions_since(snapshot, self.snapshot.manifest.version)
            if self._partial or not self._is_complete or not all(map(keeps_inputs, later)):
                return None
        return name_file(fragment.files, self.computation.input_ids(snapshot.manifest))

    def _remove_staged(self) -> None:
        """Remove the staged files of which no row is needed any more."""
        store = self.snapshot.store
        for number, key in enumerate(self.staged.keys):
            if (self.where is None and self.is_whole) or self._used[self.staged.files == number].all():
                store.delete(key)
        for meta in store.list(data_key(f"{prefix_of(self.computation.name)}{self._tag}")):
            store.delete(meta.key)

    def _describe(self) -> ComputeResult:
        return ComputeResult(
            version=self._manifest.version,
            read_version=self.snapshot.manifest.version,
            rows_due={reason: count for reason, count in self._reasons.items() if count},
            first_error=self._first_error,
            **{name: self._counts[name] for name in COUNTED},
        )


class _ConformedRows(NamedTuple):
    """Computed rows in the types in which they are stored."""

    rows: ComputedRows
    columns: Schema

    def slice(self, first: int, count: int) -> pa.Table:
        """Some of the rows."""
        table = self.rows.slice(first, count)
        return conform(table, fit(self.columns, table.schema))


def _tag_of(owner: str) -> str:
    """The beginning of the tags of files that the owner of a lease stages."""
    return f"{owner[:8]}-"


def _split(segments: Sequence[_BatchRows], size: int) -> tuple[list[_BatchRows], list[_BatchRows]]:
    """The first `size` rows of segments, and the rest."""
    first: list[_BatchRows] = []
    for place, segment in enumerate(segments):
        num_rows = len(segment.offsets)
        if num_rows > size:
            return [*first, segment.slice(0, size)], [segment.slice(size, num_rows), *segments[place + 1 :]]
        first.append(segment)
        size -= num_rows
        if not size:
            return first, list(segments[place + 1 :])
    return first, []


def _to_batch(rows: pa.Table) -> pa.RecordBatch:
    return rows.combine_chunks().to_batches()[0]


def _make_task(version: int, part: WrittenColumns, columns: Schema) -> ColumnTask:
    """The task of which a file is the result."""
    return ColumnTask(
        version=version, fragment_id=part.fragment_id, num_rows=len(part.offsets), scope=part.rows, missing="keep",
        columns=schema_to_bytes(columns),
    )  # fmt: skip
