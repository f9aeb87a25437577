"""Thread pools that also run jobs while Python shuts down, and where no thread can be started.

Once the main thread has returned, the standard library's pools reject jobs, both in threads that Python still waits for
and in functions of `atexit`; they also fail where a process may start no more threads. In these cases a job runs at
once, in the calling thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251 - the base class
from typing import Generic, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class ThreadPool(ThreadPoolExecutor):
    """The standard library's pool, except that `submit` runs the job itself if no thread can run it."""

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Run `fn` in a thread, or in the calling thread before `submit` returns."""
        job = _SharedCall(lambda: fn(*args, **kwargs))
        try:
            return super().submit(job.run)
        except RuntimeError:
            # The pool may have queued the job and failed to start a thread: the first thread that gets it runs it.
            return job.finished()
        except BaseException:
            # Ctrl-C while a thread starts: the pool does not know the thread, and would not wake it up at shutdown.
            self.shutdown(wait=False)
            raise


class SharedPool:
    """A pool of the process, created at its first use; a forked child gets a pool of its own.

    Args:
        threads: Number of parallel jobs; a job must not wait for another one of the same pool.
        name: Start of the threads' names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._pool: tuple[int, ThreadPool] | None = None

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Run `fn` in a thread, or in the calling thread before `submit` returns."""
        pool, process = self._pool, os.getpid()
        if pool is None or pool[0] != process:
            # Two threads may create a pool each: the one that is not kept runs its job and ends.
            pool = self._pool = process, ThreadPool(self._threads, thread_name_prefix=self._name)
        try:
            return pool[1].submit(fn, *args, **kwargs)
        except BaseException:
            self._pool = None  # it accepts no more jobs
            raise


class _SharedCall(Generic[_Result]):
    """A call that exactly one thread makes, while other threads wait for its result."""

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
        """Make the call in this thread, and return its result as a future."""
        try:
            self.run()
        except Exception:  # noqa: BLE001 - kept in the future
            return self._done
        return self._done
