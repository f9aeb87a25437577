"""The threads that encode and decode pages: numpy and pyarrow leave the interpreter lock for most of that work."""

__all__ = ["NUM_WORKERS", "submit"]

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

NUM_WORKERS: Final = max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2))

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def submit(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run `work` in the pool of this process; a forked child gets a pool of its own."""
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            _pools.clear()
            pool = _pools[os.getpid()] = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="lance-page")
    return pool.submit(work, *args, **kwargs)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # a lock that another thread held stays locked in the child
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
