"""Pools of threads that also work when Python ends.

Once the main thread has returned, no pool of the standard library takes another job, in threads that Python still waits
for and in functions of `atexit` alike; and where a process may not start more threads none does at any time. A job that
no pool takes is run at once, by the thread that asks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251 - what is built upon
from typing import Generic, ParamSpec, TypeVar

__all__ = ["SharedPool", "ThreadPool"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class ThreadPool(ThreadPoolExecutor):
    """The standard library's pool, except that `submit` runs the job itself if no thread can."""

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Run `fn` in a thread, or before this returns."""
        job = _Job(lambda: fn(*args, **kwargs))
        try:
            return super().submit(job.run)
        except RuntimeError:
            # The pool may have queued the job and failed to start a thread: the first thread to get to it runs it.
            return job.finished()
        except BaseException:
            # Ctrl-C while a thread starts: the pool does not know it, and would not wake it up when Python ends.
            self.shutdown(wait=False)
            raise


class SharedPool:
    """A pool of the process, made when it is first used; a forked child gets one of its own.

    Args:
        threads: How many jobs run side by side; they must not wait for others of the same pool.
        name: Start of the threads' names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._pool: tuple[int, ThreadPool] | None = None

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Run `fn` in a thread, or before this returns."""
        found, process = self._pool, os.getpid()
        if found is None or found[0] != process:
            # Two threads may make one each: the pool that is lost does its job and goes.
            found = self._pool = process, ThreadPool(self._threads, thread_name_prefix=self._name)
        try:
            return found[1].submit(fn, *args, **kwargs)
        except BaseException:
            self._pool = None  # it takes no more
            raise


class _Job(Generic[_Result]):
    """A call that is made once."""

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self._taken = threading.Lock()
        self._done: Future[_Result] = Future()

    def run(self) -> _Result:
        """Make the call, or wait for the thread that makes it."""
        if not self._taken.acquire(blocking=False):
            return self._done.result()
        try:
            result = self._call()
        except BaseException as error:
            self._done.set_exception(error)
            raise
        self._done.set_result(result)
        return result

    def finished(self) -> Future[_Result]:
        """Run it here, and return the result."""
        try:
            self.run()
        except Exception:  # noqa: BLE001 - the future has it
            return self._done
        return self._done
