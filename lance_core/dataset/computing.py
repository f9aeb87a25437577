"""Methods of `LanceDataset` that compute columns with a function of the user, and the table of rows on which it failed.

    _failed/<table>.<name>.lance, beside the table
        branch, row_id, key, inputs, code_version, error, failed_at, attempt

A row is in that table until a call succeeds on it. Row ids are those of the branch: rows that it added get others by a
promotion. Rows that failed on a branch and were promoted are main's by the next run on main, which finds them by the
digest of their inputs, and removes the rows of deleted branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.commit.records import Commit
from lance_core.errors import DatasetNotFoundError
from lance_core.schema import primary_key
from lance_core.store import uri_below
from lance_core.verbs.columns.compute.calls import Calls, open_caller
from lance_core.verbs.columns.compute.computation import Computation
from lance_core.verbs.columns.compute.due import count_due_rows
from lance_core.verbs.columns.compute.estimates import DueRows, show_progress
from lance_core.verbs.columns.compute.lease import LEASE_SECONDS, OnRunning, hold_lease
from lance_core.verbs.columns.compute.records import (
    ComputeProgress,
    ComputeResult,
    FailedRow,
    StagingPace,
    judge_failures,
)
from lance_core.verbs.columns.compute.run import Run
from lance_core.verbs.columns.compute.tasks import Executor, execute
from lance_core.verbs.context.handle import Handle, resolve_target
from lance_core.verbs.inspect.listing import SUFFIX
from lance_core.verbs.write.write_version import WriteOptions, write_version

FAILED_ROWS: Final = pa.schema([
    ("branch", pa.string()),
    ("row_id", pa.uint64()),
    ("key", pa.string()),
    ("inputs", pa.int64()),
    ("code_version", pa.string()),
    ("error", pa.string()),
    ("failed_at", pa.timestamp("us", "UTC")),
    ("attempt", pa.string()),
])  # fmt: skip
"""The columns of the table of failed rows."""


class ComputeVerbs(Handle):
    """Methods that compute columns. The handle moves to the new version."""

    def compute_columns(
        self,
        function: Callable[..., Any],
        *,
        inputs: Sequence[str] | str,
        columns: pa.Schema,
        name: str,
        code_version: str,
        where: str | pc.Expression | None = None,
        batch_size: int = 256,
        commit_every: int | str = 10_000,
        visible_every: int | str | None = None,
        max_failed_rows: float = 0,
        retry_failed: bool = False,
        timeout: float | None = None,
        processes: int = 0,
        concurrency: int = 1,
        setup: Callable[[], Any] | None = None,
        on_running: OnRunning = "reject",
        lease_seconds: float = LEASE_SECONDS,
        failures_uri: str | None = None,
        attempt: str = "",
        progress: Callable[[ComputeProgress], object] | None = None,
        cost_per_row: float | None = None,
        transaction_properties: Mapping[str, str] | None = None,
        commit_message: str | None = None,
        max_retries: int = 20,
        executor: Executor | None = None,
    ) -> ComputeResult:
        """Compute columns of the rows that are due, each row once. Not in pylance.

        Rows are due that have no cells yet, whose cells are by another code version, and whose inputs have other values
        than those that their cells were computed from. What was computed is staged every `commit_every` rows, and a
        later call goes on from there, in whatever process; the columns of whole fragments are committed at the end. The
        table gets a column `_<name>` beside them, which records for each row how its cells were computed.

        Args:
            function: Takes a record batch of the inputs, or a pandas or polars frame if the annotation of its first
                parameter says so, and the object of `setup` if that is given. Returns as many rows: a record batch, a
                table, a frame, or the array of a single column. It may be a coroutine function.
            inputs: The columns that the function reads, or the name of one.
            columns: The columns that it returns, all of which may be null.
            name: The name of the computation, by which later calls continue it.
            code_version: The version of the function.
            where: The rows that are looked at, as SQL or an expression; None for all.
            batch_size: The most rows of a call.
            commit_every: Rows, or a duration such as "5m", after which results are staged.
            visible_every: Rows, or a duration, after which the fragments that are done are committed; None to commit at
                the end.
            max_failed_rows: The most rows on which the function may fail: a number, or a share of the due rows below 1.
            retry_failed: Whether rows are computed again on which the function has failed.
            timeout: Seconds after which a call counts as one that failed. A plain function then runs in a process.
            processes: Worker processes that call a plain function; 0 for this process.
            concurrency: Calls of a coroutine function at the same time.
            setup: Makes the second argument of the function, once per process.
            on_running: What happens while another run computes these columns: "reject" raises, "wait" waits, "split"
                computes due rows of fragments that no other run holds, a share of them at a time, and at the end waits
                for the others, and computes what they leave.
            lease_seconds: Seconds after which a run of another host that is not seen any more counts as dead.
            failures_uri: The table of failed rows; None for `_failed/<table>.<name>.lance` beside the table. No other
                table's failed rows may be in it.
            attempt: A note on this call in the table of failed rows.
            progress: Called after each call of the function; None for a progress bar, if standard error is a terminal.
            cost_per_row: What a call costs for each row, for `count_due_rows` of later runs.
            transaction_properties: Strings for the history, by key.
            commit_message: A string for the history.
            max_retries: Attempts of each commit, at least one.
            executor: Lets other processes call the function, and stage the results: it divides a plan into tasks, runs
                each somewhere, and returns their results. `pyspark_lance.compute_columns` has Spark's executors do so.

        Returns:
            What was due, and what was done. Without a row that is due nothing is called, and there is no new version.

        Raises:
            UnsupportedError: The table has no stable row ids.
            InvalidInputError: A column exists that the computation does not own, or the function returned another
                number of rows.
            SchemaError: An input is missing, or the function returned other columns.
            FailedRowsError: The function failed on more rows than allowed; the others are committed.
            RetryableConflictError: Another run computes these columns.
            SupersededError: Another run took over, as this process was paused.

        Examples:
            >>> photos = lance.write_dataset({"text": ["a", "bc"]}, "t.lance", enable_stable_row_ids=True)
            >>> length = {"inputs": ["text"], "columns": pa.schema([("size", pa.int32())]), "name": "length"}
            >>> measure = lambda batch: pc.utf8_length(batch["text"])
            >>> photos.compute_columns(measure, **length, code_version="1").rows_computed
            2
            >>> added = photos.insert({"text": ["def"]})
            >>> photos.compute_columns(measure, **length, code_version="1").rows_due
            {'new': 1}
            >>> photos.to_table(["size"])["size"].to_pylist()
            [1, 2, 3]
        """
        computation = _describe_computation(name, inputs, columns, code_version)
        calls = Calls(
            function=function, columns=columns, setup=setup, processes=processes, concurrency=concurrency,
            timeout_s=timeout,
        )  # fmt: skip
        pace = StagingPace(batch_size=batch_size, commit_every=commit_every, visible_every=visible_every)
        log = _FailureLog(self, computation, failures_uri or _failures_beside(self, name), attempt)
        total: ComputeResult | None = None
        done_ids = set[int]()
        with ExitStack() as stack:
            report = progress or stack.enter_context(show_progress(name))
            caller = cache(lambda: stack.enter_context(open_caller(calls)))
            while True:
                with hold_lease(self._store, name, on_running, lease_seconds) as lease:
                    self.checkout_latest()
                    if not lease.beside:
                        log.update()
                    run = Run(
                        snapshot=self.snapshot, computation=computation.in_recorded_order(self._manifest),
                        calls=calls, pace=pace, where=where,
                        retry_failed=retry_failed, how=Commit.of(locals()), report=log.report, progress=report,
                        cost_per_row=cost_per_row,
                        lease=lease, open_caller=caller, is_split=on_running == "split", done_ids=done_ids,
                        executor=None if executor is None else partial(execute, executor),
                    )  # fmt: skip
                    self._manifest, result = run.run()
                total = result if total is None else total.join(result)
                if run.is_whole:
                    break
                if not result.rows_due and not result.rows_compared:
                    lease.wait_for_others()
        judge_failures(total, max_failed_rows, log.uri)
        return total

    def count_due_rows(
        self,
        *,
        inputs: Sequence[str] | str,
        columns: pa.Schema,
        name: str,
        code_version: str,
        where: str | pc.Expression | None = None,
        retry_failed: bool = False,
    ) -> DueRows:
        """Count the rows that `compute_columns` would compute, by reason: a dry run. Not in pylance.

        The inputs of rows are read that were changed since their cells were computed, and of no others.

        Args:
            inputs: The columns that the function reads.
            columns: The columns that it returns.
            name: The name of the computation.
            code_version: The version of the function.
            where: The rows that are looked at; None for all.
            retry_failed: Whether rows count on which the function has failed.

        Returns:
            Rows by reason: "new", "inputs changed", "code changed", "failed"; reasons without rows are left out. Its
            attributes are the share of the table, how many of them are staged, and the seconds and the cost of the
            others by the last runs.

        Raises:
            UnsupportedError: The table has no stable row ids.
            InvalidInputError: A column exists that the computation does not own.
            SchemaError: An input is missing.

        Examples:
            >>> photos = lance.write_dataset({"text": ["a", "bc"]}, "t.lance", enable_stable_row_ids=True)
            >>> schema = pa.schema([("size", pa.int32())])
            >>> photos.count_due_rows(inputs=["text"], columns=schema, name="length", code_version="1")
            {'new': 2}
        """
        computation = _describe_computation(name, inputs, columns, code_version).in_recorded_order(self._manifest)
        computation.check(self._manifest, self._uri)
        return count_due_rows(self.snapshot, computation, where, retry_failed=retry_failed)


def _describe_computation(name: str, inputs: Sequence[str] | str, columns: pa.Schema, code_version: str) -> Computation:
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    return Computation(name=name, inputs=names, columns=columns, code_version=code_version)


def _failures_beside(dataset: Handle, name: str) -> str:
    """The URI of the table of failed rows beside a table; tables of one folder may have computations of one name."""
    parent, _, folder = dataset.root_uri.rstrip("/").rpartition("/")
    return uri_below(parent, f"_failed/{folder.removesuffix(SUFFIX)}.{name}.lance")


@dataclass(frozen=True, slots=True)
class _FailureLog:
    """The table of the rows on which a computation failed."""

    dataset: Handle
    computation: Computation
    uri: str
    attempt: str

    def report(self, failed: Sequence[FailedRow], ids: npt.NDArray[np.uint64]) -> None:
        """Record the rows that failed, and remove those that did not, before their cells are committed.

        Args:
            failed: The rows that failed.
            ids: The row ids of all rows whose cells are committed.
        """
        table, present = self._open()
        if table is None and failed:
            target = resolve_target(self.uri, self.dataset.snapshot.options)
            write_version(self._describe(failed), None, target, WriteOptions.of("create", {}))
            return
        failed_ids = np.array([row.row_id for row in failed], np.uint64)
        if len(present):  # `np.isin` looks at all ids
            self._remove(table, np.setdiff1d(present[np.isin(present, ids)], failed_ids))
        if failed:
            self._merge(table, self._describe(failed))

    def update(self) -> None:
        """Remove rows that were deleted, or restored with a cell, since they failed; no other run may go on.

        On main, rows that were promoted are added, and those of deleted branches are removed.
        """
        table, present = self._open()
        rows, name = cast("Any", self.dataset), self.computation.state_name
        is_other = pc.field("branch") != self._branch
        failed_elsewhere = [] if table is None or rows.branch else table.to_table(filter=is_other).to_pylist()
        if not len(present) and not failed_elsewhere:
            return
        digests: dict[int, int] = {}
        if name in rows.schema.names:
            is_failed = pc.field((name, "failed"))
            scope = is_failed if failed_elsewhere else pc.field("_rowid").isin(pa.array(present)) & is_failed
            cells = rows.to_table(["_rowid", name], filter=scope).to_pylist()
            digests = {row["_rowid"]: row[name]["inputs"] for row in cells}
        self._remove(table, np.setdiff1d(present, np.array([*digests], np.uint64)))
        if failed_elsewhere:
            entries = {row["inputs"]: {**row, "branch": self._branch} for row in failed_elsewhere}
            ids = [i for i in digests.keys() - set(present.tolist()) if digests[i] in entries]
            if ids:
                keys = zip(ids, self._read_keys(ids), strict=True)
                promoted = [{**entries[digests[i]], "row_id": i, "key": key} for i, key in keys]
                self._merge(table, pa.Table.from_pylist(promoted, FAILED_ROWS))
            table.delete(is_other & ~pc.field("branch").isin([*rows.branches.list()]))

    def _merge(self, table: Any, rows: pa.Table) -> None:
        table.merge_insert(["branch", "row_id"]).when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def _open(self) -> tuple[Any, npt.NDArray[np.uint64]]:
        """The table, None if there is none, and the row ids that it has of the branch."""
        try:
            table: Any = type(self.dataset)(self.uri, storage_options=self.dataset.snapshot.options)
        except DatasetNotFoundError:
            return None, np.zeros(0, np.uint64)
        return table, table.to_table(["row_id"], filter=pc.field("branch") == self._branch)["row_id"].to_numpy()

    def _remove(self, table: Any, ids: npt.NDArray[np.uint64]) -> None:
        if len(ids):
            table.delete((pc.field("branch") == self._branch) & pc.field("row_id").isin(pa.array(ids)))

    @property
    def _branch(self) -> str:
        return self.dataset.branch or "main"

    def _describe(self, failed: Sequence[FailedRow]) -> pa.Table:
        values = {"branch": self._branch, "code_version": self.computation.code_version, "attempt": self.attempt}
        more = values | {"failed_at": datetime.now(UTC)}
        keys = self._read_keys([row.row_id for row in failed])
        rows = [{**asdict(row), "key": key, **more} for row, key in zip(failed, keys, strict=True)]
        return pa.Table.from_pylist(rows, FAILED_ROWS)

    def _read_keys(self, ids: Sequence[int]) -> list[str | None]:
        """The primary key of rows as text; None where the table declares none."""
        names = [field.name for field in primary_key(self.dataset.snapshot.manifest.schema)]
        if not names:
            return [None] * len(ids)
        rows = self.dataset._take_rows(ids, names).to_pylist()  # type: ignore[attr-defined]  # noqa: SLF001 - of the mixin
        return [", ".join(f"{name}={value!r}" for name, value in row.items()) for row in rows]
