"""Runs jobs on indices in a child process, with limits of memory and time: what goes wrong there stays there.

    parent    {"job": "build", "uri": ..., "options": ...}, a line of JSON for each job, which no list of processes
              shows; it keeps the pipe open as long as it lives, and kills the child at a limit
    child     imports pylance, does the job, and writes {"result": ...} or {"error": ...} as a line; it ends with its
              parent; Linux kills it then, elsewhere a stopped one goes on as far as the end of its pipe

A child that was killed is followed by a new one. The memory that counts is that of the process's own pages, not of
files that it maps.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from lance_core.errors import UnsupportedError
from lance_core.maintenance.processes import start_python
from lance_core.maintenance.search.temporary_folder import TemporaryFolder

_POLL_S: Final = 0.05
_PLACE_IN_SOURCE: Final = re.compile(r",? ?/\S+\.rs:\d+(:\d+)?")
_LONGEST_REASON: Final = 400
_SECRET_LENGTH: Final = 6
_KEPT_MEMORY: Final = 4
"""A child that holds more than the limit divided by this is replaced before the next job."""


class ChildFailedError(Exception):
    """A child process did not do its job.

    Attributes:
        is_error: Whether the job raised an error; otherwise the process was killed, or stopped at a limit.
    """

    def __init__(self, reason: str, *, is_error: bool = False) -> None:
        super().__init__(reason)
        self.is_error = is_error


class ChildProcess:
    """Runs jobs one after the other in a child process, which starts with the first job.

    It ends with the thread that runs the first job.

    Args:
        memory: The most bytes that the process may use; None for no limit.
        timeout_s: The most seconds that a job may take; None for no limit.
    """

    def __init__(self, memory: int | None = None, timeout_s: float | None = None) -> None:
        self.memory, self.timeout_s = memory, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] | None = None
        self._folder: TemporaryFolder | None = None

    def run(self, job: str, request: Mapping[str, Any]) -> Any:
        """Run a job, and return its result.

        Args:
            job: The name of the job.
            request: What it needs; `options` has the options of the storage.

        Raises:
            ChildFailedError: The job failed, the process was killed, or it was stopped at a limit.
        """
        started = time.monotonic()
        try:
            process = self._start()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its exit code says why it has ended
                process.stdin.write(json.dumps({**request, "job": job}).encode() + b"\n")
                process.stdin.flush()
            answer = self._wait(process, started)
        except BaseException:
            self.close()
            raise
        if "result" in answer:
            return answer["result"]
        reason = answer.get("error")
        if reason is None:
            reason = self._describe_end(process)
            self.close()
        reason = _hide_secrets(_PLACE_IN_SOURCE.sub("", reason), request)[:_LONGEST_REASON]
        raise ChildFailedError(reason, is_error="error" in answer)

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is not None and self.memory and measure_memory(process.pid) * _KEPT_MEMORY > self.memory:
            self.close()
        if self._process is None:
            try:
                self._folder = TemporaryFolder()
            except OSError as error:
                raise ChildFailedError(f"no temporary folder can be made for it: {error}; set TMPDIR") from error
            variables = {"LANCE_LOG": os.environ.get("LANCE_LOG", "error"), "TMPDIR": str(self._folder.path)}
            try:
                self._messages = tempfile.TemporaryFile(dir=self._folder.path)  # noqa: SIM115 - closed with the process
                self._process = start_python(
                    __name__, imports_from_working_folder=False, variables=variables, messages=self._messages
                )
            except (UnsupportedError, OSError) as error:
                raise ChildFailedError(f"no process can be started for it: {error}") from error
        return self._process

    def _wait(self, process: subprocess.Popen[bytes], started: float) -> dict[str, Any]:
        """The answer of a process; an empty one if it has ended without.

        Raises:
            ChildFailedError: The process has reached a limit.
        """
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], _POLL_S)[0]:
            if self.timeout_s is not None and time.monotonic() - started > self.timeout_s:
                raise ChildFailedError(f"it took longer than {self.timeout_s:g} s (index_timeout)")
            if self.memory is not None and measure_memory(process.pid) > self.memory:
                raise ChildFailedError(f"it needs more than {self.memory:,} bytes (index_memory)")
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        return answer

    def _describe_end(self, process: subprocess.Popen[bytes]) -> str:
        """Why a process that gave no answer has ended: its signal, or its exit code and last message."""
        code = process.wait()
        if code < 0:
            return f"its process was killed by signal {-code}"
        assert self._messages is not None
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with code {code}: {lines[-1] if lines else 'it said nothing'}"

    def close(self) -> None:
        """End the process."""
        pipes = [self._messages]
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            pipes += [self._process.stdin, self._process.stdout]
        for pipe in pipes:
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        if self._folder is not None:
            self._folder.remove()
        self._process = self._messages = self._folder = None


def measure_memory(pid: int) -> int:
    """The bytes of memory of a process; 0 if it has ended.

    Args:
        pid: Its id.
    """
    if Path("/proc/self/status").exists():
        try:
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        except OSError:
            return 0
        return sum(int(lines.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem")) * 1024
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 - our own child
    return int(shown.strip() or 0) * 1024


def _hide_secrets(reason: str, request: Mapping[str, Any]) -> str:
    for value in (request.get("options") or {}).values():
        if len(value) >= _SECRET_LENGTH:
            reason = reason.replace(value, "***")
    return reason


def main() -> NoReturn:
    """Do jobs for the parent, in the child process, until it closes the pipe."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what pylance prints must not mix with the answers
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        answer: dict[str, Any]
        try:
            from lance_core.maintenance.search.jobs import JOBS  # noqa: PLC0415 - in the child alone

            answer = {"result": JOBS[request["job"]](request)}
        except BaseException as error:  # noqa: BLE001 - a panic of pylance is no Exception
            answer = {"error": f"{type(error).__name__}: {error}"}
        output.write(json.dumps(answer) + "\n")
        output.flush()


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Read the lines of the parent; its end ends the process, whatever it is doing."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)
