"""Tasks of a computation that run in other processes, such as Spark's executors.

driver      lease; due rows of each fragment -> tasks of about as many rows each
executor    the same due rows, found again -> inputs, calls, staged files -> ComputedTask: where the rows are staged
driver      staged files -> file per fragment -> commit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pyarrow.compute as pc

from lance_core.commit.records import Commit
from lance_core.errors import InvalidInputError
from lance_core.verbs.columns.compute.calls import Calls, share_caller
from lance_core.verbs.columns.compute.computation import Computation, Record
from lance_core.verbs.columns.compute.due import DueFragment, find_due_rows, trust_fragments
from lance_core.verbs.columns.compute.lease import Lease
from lance_core.verbs.columns.compute.records import StagingPace
from lance_core.verbs.columns.compute.run import ComputedTask, Run
from lance_core.verbs.context.handle import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What all tasks of a run have in common; a cleanup may remove its version meanwhile."""

    snapshot: Snapshot
    computation: Computation
    calls: Calls
    pace: StagingPace
    where: str | pc.Expression | None
    retry_failed: bool
    record: Record
    claim: tuple[str, int, float, str]
    staged_keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTask:
    """Rows of a run that are due. It can be pickled, and run in any process that reaches the table.

    Attributes:
        number: Its number in the run.
        pieces: The first and the end of its rows among those that are due in a fragment, by the fragment's id.
        settings: What all tasks of the run have in common.
    """

    number: int
    pieces: dict[int, tuple[int, int]]
    settings: _Settings

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(end - first for first, end in self.pieces.values())

    def run(self) -> ComputedTask:
        """Call the function on the rows, and stage the results; rows are left out that an earlier attempt has staged.

        Raises:
            InvalidInputError: The function returned another number of rows.
            SchemaError: The function returned other columns.
            SupersededError: Another run took over.
        """
        settings, snapshot = self.settings, self.settings.snapshot
        due = find_due_rows(
            snapshot, settings.computation, settings.record, settings.where, retry_failed=settings.retry_failed,
            fragment_ids=self.pieces,
        )  # fmt: skip
        lease = Lease(snapshot.store, *settings.claim)
        run = Run(
            snapshot=snapshot, computation=settings.computation, calls=settings.calls,
            pace=replace(settings.pace, visible_every=None), where=settings.where, retry_failed=settings.retry_failed,
            how=Commit(), report=lambda *_: None, progress=None, lease=lease, task=self.number,
            open_caller=partial(share_caller, lease.owner, settings.calls),
        )  # fmt: skip
        return run.run_task([each.take(slice(*self.pieces[each.fragment.id])) for each in due], settings.staged_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePlan:
    """The rows of a run that are due, which an executor has computed by tasks.

    Attributes:
        settings: What all tasks of the run have in common.
        fragments: The rows.
        report: Called, from any thread, with the number of rows of tasks that have ended and were not returned.
    """

    settings: _Settings
    fragments: Sequence[DueFragment]
    report: Callable[[int], object]

    @property
    def is_visible_early(self) -> bool:
        """Whether fragments are committed before all are done, for which results have to be returned early."""
        return self.settings.pace.visible_every is not None

    def divide(self, num_tasks: int) -> list[ComputeTask]:
        """Divide the rows into tasks.

        Args:
            num_tasks: The least number, if each has a batch; a task has `commit_every` rows at most.
        """
        pace, total = self.settings.pace, sum(len(due.offsets) for due in self.fragments)
        size = max(pace.batch_size, -(-total // num_tasks))
        if isinstance(pace.commit_every, int):
            size = min(size, max(pace.batch_size, pace.commit_every))
        parts: list[dict[int, tuple[int, int]]] = [{}]
        left = size
        for due in self.fragments:
            start, end = 0, len(due.offsets)
            while start < end:
                count = min(left, end - start)
                parts[-1][due.fragment.id] = start, start + count
                start, left = start + count, left - count
                if not left:
                    parts.append({})
                    left = size
        pieces = [part for part in parts if part]
        return [ComputeTask(number=i, pieces=part, settings=self.settings) for i, part in enumerate(pieces)]


Executor: TypeAlias = Callable[[ComputePlan], Iterable[ComputedTask]]
"""Runs all tasks into which it divides a plan, and returns, or yields, what each has computed."""


def execute(executor: Executor, run: Run, fragments: Sequence[DueFragment]) -> Iterable[ComputedTask]:
    """Let an executor compute rows of a run.

    Raises:
        InvalidInputError: The calls have worker processes of their own.
    """
    if run.calls.processes:
        raise InvalidInputError("processes=: the calls run in the processes of the executor, such as Spark's workers")
    settings = _Settings(
        snapshot=run.snapshot, computation=run.computation, calls=run.calls, pace=run.pace, where=run.where,
        retry_failed=run.retry_failed, record=trust_fragments(run.snapshot, run.computation, run.record),
        claim=run.lease.claim, staged_keys=frozenset(run.staged.keys),
    )  # fmt: skip
    return executor(ComputePlan(settings=settings, fragments=fragments, report=run.report_progress))
