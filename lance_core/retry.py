"""Retries after conflicts: computes and commits a change again on a later version, with pauses between attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from lance_core.errors import (
    CommitConflictError,
    EarlierAttemptCommittedError,
    HistoryGapError,
    InvalidInputError,
    RetryableConflictError,
)

__all__ = ["CONFLICT_RETRIES", "RETRY_TIMEOUT", "backoff", "is_retryable", "last_conflict", "retrying"]

CONFLICT_RETRIES: Final = 10
"""Default number of attempts after the first one."""

RETRY_TIMEOUT: Final = timedelta(seconds=30)
"""Default time after which no further attempt begins."""

_LONGEST_PAUSE_S: Final = 1.0

_Base = TypeVar("_Base")
_Result = TypeVar("_Result")


def backoff(attempt: int, *, first: float, longest: float) -> float:
    """Draw a random pause, in seconds, whose limit doubles with each attempt.

    Args:
        attempt: How many attempts failed; 0 means no pause.
        first: The longest pause after the first one, in seconds.
        longest: The longest pause after any attempt, in seconds.
    """
    return random.uniform(0, min(longest, first * (2 ** min(attempt, 64) - 1)))  # noqa: S311 - no secret


def is_retryable(error: CommitConflictError) -> bool:
    """Whether a change can be done again after a conflict without any further decision.

    If an earlier attempt of the same write has committed meanwhile, the caller has to decide what becomes of its rows.
    """
    return isinstance(error, RetryableConflictError | HistoryGapError) and not isinstance(
        error, EarlierAttemptCommittedError
    )


def last_conflict(number: int, error: CommitConflictError) -> CommitConflictError:  # noqa: ARG001 - one signature
    """Return the last conflict unchanged, as the error to raise after the last attempt."""
    return error


def retrying(
    base: _Base,
    attempt: Callable[[_Base, int], _Result],
    following: Callable[[_Base, CommitConflictError], _Base],
    *,
    conflict_retries: int = CONFLICT_RETRIES,
    retry_timeout: timedelta | None = None,
    is_retryable: Callable[[CommitConflictError], bool] = is_retryable,
    exhausted: Callable[[int, CommitConflictError], CommitConflictError] = last_conflict,
) -> _Result:
    """Compute and commit a change, and repeat both after each conflict with another writer. Not in pylance.

    Between two attempts there is a random pause, of at most a second and at most the time that the attempt took, so
    that writers that collided do not collide again.

    Args:
        base: The version to begin with, or whatever an attempt begins with.
        attempt: Computes the change and commits it; is called with the base and the number of the attempt, from 1.
        following: Returns the base of the next attempt, given the last base and its conflict; it may raise the
            conflict, or another error.
        conflict_retries: The most attempts after the first one.
        retry_timeout: Time after which no further attempt begins; None for no limit.
        is_retryable: Whether a conflict allows another attempt; any other one is raised.
        exhausted: The error to raise after the last attempt, from the number of attempts and the last conflict.

    Returns:
        The result of the attempt that had no conflict.

    Raises:
        CommitConflictError: A conflict allowed no further attempt, or the last attempt had one as well.
        InvalidInputError: A limit is negative.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> def delete_largest(base, attempt):
        ...     largest = max(base.to_table()["id"].to_pylist())
        ...     return base.delete(f"id = {largest}", conflict_retries=0)
        >>> lance.retrying(table, delete_largest, lambda base, conflict: lance.dataset("t.lance"))
        {'num_deleted_rows': 1}
    """
    if conflict_retries < 0 or (retry_timeout is not None and retry_timeout < timedelta(0)):
        raise InvalidInputError("conflict_retries and retry_timeout must not be negative")
    began, number = time.monotonic(), 0
    while True:
        started, number = time.monotonic(), number + 1
        try:
            return attempt(base, number)
        except CommitConflictError as error:
            if not is_retryable(error):
                raise
            late = retry_timeout is not None and time.monotonic() - began > retry_timeout.total_seconds()
            if number > conflict_retries or late:
                final = exhausted(number, error)
                if final is error:
                    raise
                raise final from error
            time.sleep(backoff(1, first=time.monotonic() - started, longest=_LONGEST_PAUSE_S))
            base = following(base, error)
