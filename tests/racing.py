"""Threads that begin together, for tests of writers that get in each other's way."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def race(count: int, work: Callable[[int], T]) -> list[T]:
    """Call a function with 0 to `count` - 1, each in a thread of its own; what they return, or the first one's error."""
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        barrier.wait(timeout=100)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(run, number) for number in range(count)]]
