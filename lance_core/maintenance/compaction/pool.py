"""Run the tasks of a compaction in several processes of this machine."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Final

from lance_core.errors import StoreError
from lance_core.maintenance.compaction.rewrite import RewriteResult
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.compaction.worker import receive, send
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Handle

__all__ = ["Outcome", "run_in_processes", "worker_count"]

WORTH_A_PROCESS_BYTES: Final = 256 * 1024 * 1024
"""Bytes of data files below which starting processes takes more time than it saves."""

Outcome = RewriteResult | Exception
"""The result of a task, or its error."""


def worker_count(task_bytes: Sequence[int], num_threads: int | None) -> int:
    """The number of processes to use for tasks of these sizes; 1 stands for this process alone."""
    if num_threads is not None:
        return max(1, min(num_threads, len(task_bytes)))
    if sum(task_bytes) < WORTH_A_PROCESS_BYTES:
        return 1
    return max(1, min(os.cpu_count() or 1, len(task_bytes)))


def run_in_processes(
    dataset: Handle, tasks: Sequence[CompactionTask], workers: int
) -> Iterator[tuple[CompactionTask, Outcome]]:
    """Yield each task with its outcome, as they finish.

    Args:
        dataset: The dataset.
        tasks: The tasks.
        workers: The number of processes.
    """
    waiting: queue.SimpleQueue[CompactionTask] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: queue.SimpleQueue[tuple[CompactionTask, Outcome]] = queue.SimpleQueue()
    processes: list[subprocess.Popen[bytes]] = []
    with ThreadPool(workers) as pool:
        try:
            serving = [pool.submit(_serve, processes, dataset, waiting, done) for _ in range(workers)]
            for _ in tasks:
                yield done.get()
            for each in serving:
                each.result()
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()  # so that no further process is started
            for process in tuple(processes):
                process.kill()
                process.wait()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # our own interpreter and module
        # `-m` would warn that the package has imported the module already.
        [sys.executable, "-c", "from lance_core.maintenance.compaction.worker import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def _serve(
    processes: list[subprocess.Popen[bytes]],
    dataset: Handle,
    waiting: queue.SimpleQueue[CompactionTask],
    done: queue.SimpleQueue[tuple[CompactionTask, Outcome]],
) -> None:
    """Send tasks to one process until none is left; if it dies, its task fails, and a new one takes the next task."""
    process = None
    try:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                if process is None:
                    process = _start()
                    processes.append(process)
                    send(_pipe(process.stdin), dataset)
                send(_pipe(process.stdin), task)
                outcome: Outcome = receive(_pipe(process.stdout))
            except (OSError, EOFError) as error:
                remedy = "compact again, with a lower num_threads if memory ran out"
                outcome = StoreError(f"the worker process of {task} died: {error}; {remedy}")
                _end(process)
                process = None
            done.put((task, outcome))
    finally:
        _end(process)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("a worker without pipes")
    return pipe


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End a process; all that it was asked for is done, or lost."""
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was left in its buffer has no reader
                pipe.close()
