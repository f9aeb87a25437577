"""The threads of a process that encode, decode, filter and sort, one per core; a job is a page or many rows.

numpy and pyarrow release the interpreter lock for most of that work. A job runs the jobs that it submits itself: no
job waits for a thread, and there are no more threads than cores, whatever jobs run beside each other.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import ParamSpec, TypeVar

from lance_core.errors import InvalidInputError
from lance_core.threads import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

_lock = threading.Lock()
_pools: dict[int, ThreadPool] = {}
_thread = threading.local()  # `is_worker` is set in threads of the pool


def num_threads() -> int:
    """How many threads share the jobs of this one: 1 in a thread of the pool, which runs its jobs itself.

    Elsewhere the number in the environment variable LANCE_CPU_THREADS, by default one per core of the process.

    Raises:
        InvalidInputError: The variable is not a positive number.
    """
    if hasattr(_thread, "is_worker"):
        return 1
    setting = os.environ.get("LANCE_CPU_THREADS")
    if not setting:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not setting.isdecimal() or not int(setting):
        raise InvalidInputError(f"LANCE_CPU_THREADS is {setting!r}, but must be a number of threads, at least 1")
    return int(setting)


def submit(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run `work` in the pool of this process, or in this thread if it is one of the pool or would be the only one."""
    if hasattr(_thread, "is_worker"):
        return _run_now(work, *args, **kwargs)
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None and (threads := num_threads()) > 1:
            _pools.clear()  # a forked child gets a pool of its own
            pool = ThreadPool(threads, thread_name_prefix="lance-page", initializer=_begin_thread)
            _pools[os.getpid()] = pool
    if pool is None:
        return _run_now(work, *args, **kwargs)
    try:
        return pool.submit(work, *args, **kwargs)
    except BaseException:
        _pools.pop(os.getpid(), None)  # the pool was interrupted, and accepts no more jobs
        raise


def in_order(work: Callable[[Item], T], items: Iterable[Item], *, requests: int = 0) -> Iterator[T]:
    """Yield the results of `work` for all items, in order, with one more job than threads ahead of the caller.

    Once the iterator has ended, by an error or by `close` as well, no job runs.

    Args:
        work: The job of an item. With one thread, or in a thread of the pool, it runs when its result is asked for.
        items: The items.
        requests: Threads of its own for jobs that wait for a server most of the time; 0 for those of the pool.
    """
    if not requests and num_threads() == 1:
        yield from map(work, items)
        return
    pool = ThreadPool(requests) if requests else None
    waiting = deque[Future[T]]()
    try:
        for item in items:
            waiting.append(pool.submit(work, item) if pool else submit(work, item))
            if len(waiting) > (requests or num_threads()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        wait([future for future in waiting if not future.cancel()])
        if pool:
            pool.shutdown()


def _begin_thread() -> None:
    _thread.is_worker = True


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
