"""The threads that encode and decode pages: numpy and pyarrow release the interpreter lock for most of that work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, ParamSpec, TypeVar

from lance_core.errors import InvalidInputError
from lance_core.threads import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")

_MOST_THREADS: Final = 4

_lock = threading.Lock()
_pools: dict[int, ThreadPool] = {}


def num_threads() -> int:
    """The number in the environment variable LANCE_CPU_THREADS; by default one per core of the process, at most four.

    Raises:
        InvalidInputError: The variable is not a positive number.
    """
    setting = os.environ.get("LANCE_CPU_THREADS")
    if setting is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(_MOST_THREADS, cores)
    if not setting.isdecimal() or not int(setting):
        raise InvalidInputError(f"LANCE_CPU_THREADS is {setting!r}, but must be a number of threads, at least 1")
    return int(setting)


def submit(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run `work` in the pool of this process, or in this thread if the pool would have one thread."""
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None and (threads := num_threads()) > 1:
            _pools.clear()  # a forked child gets a pool of its own
            pool = _pools[os.getpid()] = ThreadPool(threads, thread_name_prefix="lance-page")
    if pool is None:
        return _run_now(work, *args, **kwargs)
    try:
        return pool.submit(work, *args, **kwargs)
    except BaseException:
        _pools.pop(os.getpid(), None)  # the pool was interrupted, and accepts no more jobs
        raise


def _run_now(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(work(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - raised by result(), as from a pool
        future.set_exception(error)
    return future


def _reset_after_fork() -> None:
    global _lock  # noqa: PLW0603 - a lock that another thread held stays locked in the child
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
