"""Do a verb again on the latest version when another writer changed the same rows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from lance_core.commit import load_following
from lance_core.errors import EarlierAttemptLandedError, HistoryGapError, InvalidInputError, RetryableConflictError
from lance_core.verbs.context.snapshot import Snapshot

__all__ = ["CONFLICT_RETRIES", "RETRY_TIMEOUT", "retrying"]

CONFLICT_RETRIES: Final = 10
"""How often a verb is done again by default."""

RETRY_TIMEOUT: Final = timedelta(seconds=30)
"""How long by default."""

_Result = TypeVar("_Result")


def retrying(
    source: Snapshot,
    attempt: Callable[[Snapshot], _Result],
    *,
    conflict_retries: int = CONFLICT_RETRIES,
    retry_timeout: timedelta = RETRY_TIMEOUT,
) -> _Result:
    """Run an attempt on `source`, and on the latest version after each conflict that allows it.

    Args:
        source: The version to begin with.
        attempt: Works out the change and commits it.
        conflict_retries: How often it is done again; 0 for never.
        retry_timeout: It is not begun again after so long. The first attempt is always made.

    Raises:
        RetryableConflictError: There was a conflict each time.
        EarlierAttemptLandedError: An earlier attempt of the same write came meanwhile; what it did is the caller's to
            judge.
        InvalidInputError: A limit is negative.
    """
    if conflict_retries < 0 or retry_timeout < timedelta(0):
        raise InvalidInputError("conflict_retries and retry_timeout must not be negative")
    began = time.monotonic()
    attempts = 0
    while True:
        started = time.monotonic()
        try:
            return attempt(source)
        except EarlierAttemptLandedError:
            raise
        except (RetryableConflictError, HistoryGapError) as error:
            attempts += 1
            if attempts > conflict_retries or time.monotonic() - began > retry_timeout.total_seconds():
                raise RetryableConflictError(
                    f"Too many concurrent writers. Attempted {attempts - 1} retries. Last conflict: {error}"
                ) from error
        # Spread out the writers that collided: they have all just read the same version.
        time.sleep(min(1.0, random.random() * (time.monotonic() - started)))  # noqa: S311 - no secret
        source = Snapshot(source.store, load_following(source.store, source.manifest), source.options)
