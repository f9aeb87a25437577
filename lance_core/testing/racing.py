"""Runs a function in threads that begin together, for tests of concurrent writers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from lance_core.threads import ThreadPool

_Result = TypeVar("_Result")


def race(count: int, work: Callable[[int], _Result]) -> list[_Result]:
    """Call a function with 0 to `count` - 1, each number in its own thread; all threads begin together.

    Args:
        count: Number of threads.
        work: The function.

    Returns:
        The results in the order of the numbers. An error of `work` is raised; of several, that of the lowest number.
    """
    barrier = threading.Barrier(count)

    def run(number: int) -> _Result:
        barrier.wait(timeout=100)
        return work(number)

    with ThreadPool(count) as pool:
        return [future.result() for future in [pool.submit(run, number) for number in range(count)]]
