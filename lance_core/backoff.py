"""The pauses between the attempts of one call: random, so that callers that collided do not collide again."""

from __future__ import annotations

import random

__all__ = ["backoff"]


def backoff(attempt: int, *, first: float, longest: float) -> float:
    """A random pause, whose limit doubles with each attempt.

    Args:
        attempt: How many attempts failed; after none there is no pause.
        first: The longest pause after the first one, in seconds.
        longest: The longest pause after any of them.
    """
    return random.uniform(0, min(longest, first * (2 ** min(attempt, 64) - 1)))  # noqa: S311 - no secret
