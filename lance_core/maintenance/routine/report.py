"""The records of maintenance: the plan of one table, and the report that goes through its steps.

    survey -> MaintenanceReport(plan, tasks) -> rewrites -> commit -> ... -> clean_up -> MaintenanceReport(plan, after)

A report is plain and can be pickled: each step may run in another process, and returns a new one. It has an outcome:

    failed        a step failed
    skipped       a writer committed before a rewrite or the extension of an index
    put off       work is due, and the run did none of it
    partly done   the run did a part, and put off the rest, or could not delete files; a declared index has a problem;
                  or the table was dropped, or its ids were given to others, after a part was done
    done          all due work is done
    healthy       nothing was due, or others did the due work meanwhile: the run changed nothing
    absent        the table was dropped, or its ids were given to others, before anything was done
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from lance_core.maintenance.compaction.plan import DAMAGE
from lance_core.maintenance.compaction.rewrite import RewriteResult
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.routine.health import TableHealth
from lance_core.maintenance.routine.policy import MaintenancePolicy
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import dataset_uri

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

Rewriter = Callable[[Handle, Sequence[CompactionTask]], Iterable[RewriteResult | Exception]]
"""Runs compaction tasks, in this process or elsewhere; yields the result of each, or its error."""

_WORK: Final = (
    *("fragments_removed", "indices_refreshed", "row_ids_migrated", "rows_expired", "files_moved"),
    *("indices_built", "indices_adopted", "indices_measured", "indices_dropped"),
    *("files_removed", "bytes_removed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """The work that is due for one table, by its survey.

    Attributes:
        table: The name of the table: its asset's key, its path below the root, or its URI.
        uri: The URI of the table.
        ids: The ids by which its policy was chosen, each as its parts; each step asks whether the table still has
            them. None if no namespace names it.
        policy: The policy for the table.
        health: The version that was surveyed; None if it could not be read.
        branch: The branch; None for main.
        num_tasks: The number of rewrites that are due.
        cleanup_due: Whether there are versions to remove.
        expired_bytes: The bytes of data files of the oldest version that the surveyed version does not have, if cleanup
            is due.
        indices_due: Whether an index does not cover all rows, or a partition column lacks a zone map.
        indices_left: The indices that do not cover all rows, and that cannot be extended here.
        indices_missing: The declared indices that cannot be built or kept here, as pylance is not installed.
        indices_first: The indices to extend before rewrites are committed, because the rewrites merge fragments that
            segments keep apart; each with the number of its last segments that are merged, None for the default.
        segments_first: What is done with the segments of declared indices before rewrites are committed: "merge",
            "extend", or None.
        row_ids_due: Whether the table gets stable row ids.
        expire_before: The time before which rows expire; None if no row expires.
        rows_to_expire: The number of these rows.
        bytes_to_expire: The share that these rows have in the bytes of the data files.
        move_before: The time before which all rows of a fragment must be so that its files move; None if none move.
        files_to_move: The number of data files of the surveyed version that move.
        bytes_to_move: Their bytes.
        copies_unused: Whether copies of earlier moves are not needed any more.
        partition_columns: The columns on which zone maps are kept.
        max_unindexed_fragments: The most fragments that a zone map may leave uncovered.
        deadline: The time, in seconds since 1970, after which no further rewrite or step begins; None for no limit.
        max_bytes_rewritten: The bytes of data files that the rewrites of all attempts may read; None for no limit.
    """

    table: str
    uri: str
    ids: Sequence[Sequence[str]] | None = None
    policy: MaintenancePolicy = field(default_factory=MaintenancePolicy)
    health: TableHealth | None = None
    branch: str | None = None
    num_tasks: int = 0
    cleanup_due: bool = False
    expired_bytes: int = 0
    indices_due: bool = False
    indices_left: Sequence[str] = ()
    indices_missing: Sequence[str] = ()
    indices_first: Mapping[str, int | None] = field(default_factory=dict)
    segments_first: str | None = None
    row_ids_due: bool = False
    expire_before: datetime | None = None
    rows_to_expire: int = 0
    bytes_to_expire: int = 0
    move_before: datetime | None = None
    files_to_move: int = 0
    bytes_to_move: int = 0
    copies_unused: bool = False
    partition_columns: Sequence[str] = ()
    max_unindexed_fragments: int = 0
    deadline: float | None = None
    max_bytes_rewritten: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do."""
        rows_or_files = self.rows_to_expire or self.files_to_move or self.copies_unused
        return bool(self.num_tasks or self.cleanup_due or self.indices_due or self.row_ids_due or rows_or_files)

    @property
    def root_uri(self) -> str:
        """The URI of the main branch."""
        return dataset_uri(self.uri, self.branch)

    @property
    def problems(self) -> list[str]:
        """The thresholds of the policy that the version exceeds."""
        return [] if self.health is None else self.health.problems(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStep:
    """A step that changed something: its versions, the bytes and files that it read, wrote or removed, its seconds."""

    step: str
    version_before: int
    version_after: int
    bytes_read: int
    bytes_written: int
    files_removed: int
    bytes_removed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrites:
    """The results of some tasks of a table.

    Attributes:
        results: The results, in no order.
        error: The first error; None if no task failed.
        is_damaged: Whether a file of the table is missing or corrupt.
        put_off: The number of tasks that were not begun because the deadline of the run had passed.
        seconds: The time that they took.
    """

    results: Sequence[RewriteResult] = ()
    error: str | None = None
    is_damaged: bool = False
    put_off: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """The work that was done of a plan; each step returns the report of the steps so far.

    Attributes:
        plan: The plan.
        tasks: The rewrites to run, until they have run.
        results: The results of rewrites, until they are committed.
        done: Numbers of the work that was done, by name.
        lost: The number of rewrites without a result, or that concurrent commits made void, and of extensions of
            indices that were not committed because a writer committed first.
        steps: The steps that changed something.
        expired_rows_in: The tags and branches whose versions have rows that expired, as a list in words; None if no row
            expired, or nothing else has them.
        after: The table after the last step, or as it would be after a dry run; None before.
        indices: The work on declared indices: `index`, `action`, `reason`, `seconds`, and where there is one `recall`
            or `error`.
        index_problems: Why declared indices could not be built or kept, or are worse than declared.
        row_ids_problem: Why the table could not be given stable row ids.
        deferred: The work that is put off, and the reason; None if nothing is. With it, nothing is planned again.
        error: The errors of steps; None if no step failed.
        is_put_off: Whether all work on the table is put off.
        was_dropped: Whether the table was dropped, or given other ids, after it was planned.
        is_damaged: Whether a step found a file missing or corrupt: then older versions may be needed, and all stay.
        seconds: The time that the steps took.
    """

    plan: MaintenancePlan
    tasks: Sequence[CompactionTask] = ()
    results: Sequence[RewriteResult] = ()
    done: Mapping[str, int] = field(default_factory=dict)
    lost: int = 0
    steps: Sequence[MaintenanceStep] = ()
    expired_rows_in: str | None = None
    after: TableHealth | None = None
    indices: Sequence[Mapping[str, Any]] = ()
    index_problems: Sequence[str] = ()
    row_ids_problem: str | None = None
    deferred: str | None = None
    error: str | None = None
    is_put_off: bool = False
    was_dropped: bool = False
    is_damaged: bool = False
    seconds: float = 0.0

    @property
    def has_work(self) -> bool:
        """Whether anything was done; rewrites that a writer made void do not count."""
        return any(self.done.get(name) for name in _WORK)

    @property
    def _has_changed(self) -> bool:
        """Whether anything was done, or a step has committed a version."""
        return self.has_work or bool(self.steps)

    @property
    def outcome(self) -> str:
        """The outcome, as the head of the module lists them; of a dry run, that of the run that would follow."""
        if self.error is not None:
            return "failed"
        if self.was_dropped:
            return "partly done" if self._has_changed else "absent"
        if self.lost:
            return "skipped"
        if self.deferred is None and (self.index_problems or self.row_ids_problem):
            return "partly done"
        if self.deferred is None:
            has_left = self.plan.is_due and self.done.get("indices_not_refreshed")
            return "done" if self.has_work or has_left else "healthy"
        return "partly done" if self.has_work or self.done.get("failed_deletes") else "put off"

    @property
    def reason(self) -> str | None:
        """Why the table failed or was skipped, or what of it was put off; None if nothing is left."""
        lost = f"writers committed before {self.lost:,} rewrites or indices" if self.lost else None
        reasons = filter(None, (lost, self.deferred, self.row_ids_problem, *self.index_problems))
        return self.error or "; ".join(reasons) or None

    @property
    def version_after(self) -> int | None:
        """The version after the last step, as far as it is known."""
        if self.after is None and self.steps:
            return self.steps[-1].version_after
        health = self.after or self.plan.health
        return None if health is None else health.version

    @property
    def bytes_left(self) -> int | None:
        """The bytes that further rewrites may read; None for no limit."""
        limit = self.plan.max_bytes_rewritten
        return None if limit is None else max(0, limit - self.done.get("bytes_read", 0))

    def plus(self, *, lost: int = 0, **numbers: int) -> MaintenanceReport:
        """This report with numbers of further work."""
        done = {**self.done, **{name: self.done.get(name, 0) + number for name, number in numbers.items()}}
        return replace(self, done=done, lost=self.lost + lost)

    def put_off(self, reason: str | None) -> MaintenanceReport:
        """This report with a further reason for which work is put off."""
        return replace(self, deferred=_join_messages(self.deferred, reason))

    def dropped(self, before: str, reason: str) -> MaintenanceReport:
        """This report of a table that was dropped, or given other ids, before a step; nothing more is done.

        Args:
            before: The step, or what follows one.
            reason: What became of the table.
        """
        if not self._has_changed:
            return replace(self, was_dropped=True, error=None)  # such as of rewrites, whose files were deleted
        message = f"the table was dropped, or its ids were given to others, before {before} ended: {reason}"
        report = replace(self, was_dropped=True)
        return report.put_off(message) if self.error is None else report.failed(before, message)

    def failed(self, step: str, error: Exception | str) -> MaintenanceReport:
        """This report with the error of a further step; the others go on."""
        message = f"{step}: {error}" if isinstance(error, str) else format_error(step, error)
        return replace(
            self, error=_join_messages(self.error, message), is_damaged=self.is_damaged or shows_damage(error)
        )

    def check_indices(self, missing: Sequence[str], log: Log | None) -> MaintenanceReport:
        """This report with the indices for which pylance is missing; with `require_search`, problems are errors.

        Args:
            missing: The names of these indices.
            log: Gets the warnings; None for a dry run.
        """
        report, problems = self, list(self.index_problems)
        if missing:
            problems.append(
                f"pylance is not installed, which {', '.join(missing)} need: pip install 'lance-dagster[search]'"
            )
            report = report.plus(indices_not_refreshed=len(missing))
        for problem in problems:
            if log is not None:
                log.warning("%s: %s", self.plan.table, problem)
            if self.plan.policy.require_search:
                report = report.failed("refresh_indices", problem)
        return report

    def with_rewrites(self, parts: Sequence[Rewrites]) -> MaintenanceReport:
        """This report with the results of its tasks, which ran in parts."""
        late = sum(part.put_off for part in parts)
        report = self.put_off(f"max_duration: the time was up before {late} rewrites began" if late else None)
        return replace(
            report,
            tasks=(),
            results=[result for part in parts for result in part.results],
            seconds=self.seconds + sum(part.seconds for part in parts),
            error=self.error or next((part.error for part in parts if part.error), None),
            is_damaged=self.is_damaged or any(part.is_damaged for part in parts),
        )

    def with_step(
        self, before: MaintenanceReport, step: str, versions: tuple[int, int], seconds: float
    ) -> MaintenanceReport:
        """This report with a record of its last step, if that changed anything.

        Args:
            before: The report before the step.
            step: The name of the step.
            versions: The versions before and after the step.
            seconds: The time that the step took.
        """
        names = ("bytes_read", "bytes_written", "files_removed", "bytes_removed")
        changes = {name: self.done.get(name, 0) - before.done.get(name, 0) for name in names}
        if versions[0] == versions[1] and not any(changes.values()):
            return self
        record = MaintenanceStep(
            step=step, version_before=versions[0], version_after=versions[1], seconds=seconds, **changes
        )
        return replace(self, steps=[*self.steps, record])


def format_error(step: str, error: Exception) -> str:
    """The step and its error, as a message."""
    return f"{step}: {type(error).__name__}: {error}"


def shows_damage(error: object) -> bool:
    """Whether an error says that a file of a table is missing or corrupt."""
    return isinstance(error, DAMAGE)


def _join_messages(*reasons: str | None) -> str | None:
    return "; ".join(filter(None, reasons)) or None
