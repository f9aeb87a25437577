"""What a run of a computation is asked for, and what it did."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Final

from lance_core.errors import FailedRowsError, InvalidInputError
from lance_core.times import parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingPace:
    """How often results are staged and committed.

    Attributes:
        batch_size: Rows of one call.
        commit_every: Rows, or a duration such as "5m", after which results are staged.
        visible_every: The same for commits of the fragments that are done; None to commit at the end.
    """

    batch_size: int = 256
    commit_every: int | str = 10_000
    visible_every: int | str | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, not {self.batch_size}")
        for name in ("commit_every", "visible_every"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise InvalidInputError(f"{name} must be at least 1 row, not {value}")
            if isinstance(value, str):
                parse_duration(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProgress:
    """How far a run is.

    Attributes:
        rows_due: Rows that are due for certain, and those whose inputs are compared.
        rows_done: Rows of them that are computed, staged before, or whose inputs have not changed.
        rows_computed: Rows of them that this run has computed.
        rows_failed: Rows on which the function failed.
        calls: Calls of the function.
        seconds: Seconds since the first call.
    """

    rows_due: int
    rows_done: int
    rows_computed: int
    rows_failed: int
    calls: int
    seconds: float

    @property
    def rows_left(self) -> int:
        """Rows that are not done."""
        return self.rows_due - self.rows_done

    @property
    def rows_per_second(self) -> float:
        """Rows that were computed in a second, without those that were staged before."""
        return self.rows_computed / max(self.seconds, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeResult:
    """The result of a run.

    Attributes:
        version: The version that was committed last; without a commit the one that was read.
        read_version: The version in which the inputs were read.
        rows_due: The rows that were due, by reason: "new", "inputs changed", "code changed", "failed".
        rows_computed: The rows whose cells were set.
        rows_staged_before: Those of them that an earlier run had computed and staged.
        rows_failed: Those of them on which the function failed; their cells are null.
        rows_compared: The rows whose inputs were read and had not changed.
        calls: The calls of the function, those of halves of batches included.
        rows_called: The rows of these calls: a row of a batch that was divided counts for each call.
        commits: The number of versions with cells.
        bytes_written: Bytes of the column files.
        first_error: The error of the first row on which the function failed; None if it did not fail.
    """

    version: int
    read_version: int
    rows_due: dict[str, int]
    rows_computed: int = 0
    rows_staged_before: int = 0
    rows_failed: int = 0
    rows_compared: int = 0
    calls: int = 0
    rows_called: int = 0
    commits: int = 0
    bytes_written: int = 0
    first_error: str | None = None

    def join(self, later: ComputeResult) -> ComputeResult:
        """The result of two runs, one after the other."""
        total = {name: getattr(self, name) + getattr(later, name) for name in COUNTED}
        return replace(
            later, read_version=self.read_version, rows_due=dict(Counter(self.rows_due) + Counter(later.rows_due)),
            first_error=self.first_error or later.first_error, **total,
        )  # fmt: skip


COUNTED: Final = tuple(each.name for each in fields(ComputeResult) if each.default == 0)
"""The attributes of a result that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRow:
    """A row on which the function failed.

    Attributes:
        row_id: Its stable row id.
        inputs: The digest of its inputs.
        error: The error.
    """

    row_id: int
    inputs: int
    error: str


class Timer:
    """An interval of rows or of time; none is never over."""

    def __init__(self, interval: int | str | None) -> None:
        self._rows = interval if isinstance(interval, int) else None
        self._seconds = parse_duration(interval).total_seconds() if isinstance(interval, str) else None
        self._since = 0, time.monotonic()

    def is_over(self, done: int) -> bool:
        """Whether the interval has passed, given the number of rows that are done; the next interval begins then."""
        rows, moment = self._since
        over = self._rows is not None and done - rows >= self._rows
        over = over or (self._seconds is not None and time.monotonic() - moment >= self._seconds)
        if over:
            self._since = done, time.monotonic()
        return over


def judge_failures(result: ComputeResult, most: float, where: str) -> None:
    """Reject a run on which too many rows failed.

    Args:
        result: What landed.
        most: The most rows that may fail: a number, or a share of the rows that were due, below 1.
        where: Where the failed rows are listed.

    Raises:
        FailedRowsError: More rows have failed.
    """
    due = sum(result.rows_due.values())
    allowed = most * due if 0 < most < 1 else most
    if result.rows_failed > allowed:
        raise FailedRowsError(
            f"the function failed on {result.rows_failed} of {due} rows, and {allowed:g} may fail, at first with "
            f"{result.first_error}; the other values are committed, and {where} lists the rows: mend the function "
            "under a new code_version, or pass retry_failed=True",
            result,
        )
