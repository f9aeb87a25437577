"""The only way in which tests start processes: no process outlives its test, and one that hangs shows where.

    run(command)            waits, and returns what it printed
    running(command)        a context in which it runs: servers, writers that are killed
    held_port()             a context in which no other process is given a port of this machine
    processor_seconds()     how long this process and the others have computed

Each process gets a session of its own and default signals (a shell's `&` and `nohup` leave SIGINT ignored, which Dagster
applies to SIGTERM as well), and is killed when the test process dies. What it prints goes to files: a grandchild that keeps
a pipe open cannot block the test. At its time limit, which lies below pytest's, the stacks of all processes of its session
are collected, and the session is ended.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "held_port", "processor_seconds", "run", "running", "stop"]

ROOT = Path(__file__).parents[1]
LIMIT_S = 1000.0  # pytest's is 1200

# PR_SET_PDEATHSIG is 1; the parent can have died before it is set.
_BEGIN = """
import ctypes, os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE"):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the test has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def processor_seconds() -> float:
    """The processor time of this process and of those that it waited for; other work on the machine does not count."""
    return sum(os.times()[:4])


def run(
    command: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    limit_s: float = LIMIT_S,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its exit code and what it printed.

    Raises:
        AssertionError: The program took longer than `limit_s`, or it failed and `check` is true. The message has what it
            printed, and where it hung.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = _start(command, env, cwd, stdout=out, stderr=errors)
        stacks = None
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            stacks = _stacks(process)
        finally:
            stop(process)
        for file in (out, errors):
            file.seek(0)
        done = subprocess.CompletedProcess(list(command), process.returncode, out.read(), errors.read())
    said = f"{command}\n{done.stdout}\n{done.stderr}"
    assert stacks is None, f"still running after {limit_s:.0f} s: {said}\n{stacks}"
    assert not check or done.returncode == 0, f"exit code {done.returncode}: {said}"
    return done


@contextlib.contextmanager
def running(
    command: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    log: Path | None = None,
    talks: bool = False,
    terminal: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program as long as the context lasts.

    Args:
        command: The program and its arguments.
        env: The environment of the program; None for that of this process.
        cwd: The working directory.
        log: File for what the program prints; None drops it.
        talks: Whether standard input and output are pipes of strings.
        terminal: The end of a pseudo-terminal that the program prints to.
    """
    with contextlib.ExitStack() as stack:
        target = subprocess.DEVNULL if log is None else stack.enter_context(log.open("ab"))
        if terminal is not None:
            streams = {"stdout": terminal, "stderr": terminal}
        elif talks:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": target}
        else:
            streams = {"stdout": target, "stderr": subprocess.STDOUT if log else target}
        process = _start(command, env, cwd, **streams)
        try:
            yield process
        finally:
            stop(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


def stop(process: subprocess.Popen[str], patience_s: float = 10) -> None:
    """End a process, and all others in its session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    for pid in _session(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port of the loopback interface that nobody else is given; a server that reuses addresses can bind it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _start(command: Sequence[object], env: Mapping[str, str] | None, cwd: Path, **streams: object) -> subprocess.Popen:
    begin = [sys.executable, "-ISc", _BEGIN, str(os.getpid())]
    environment = {**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"}
    streams.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen(
        [*begin, *map(str, command)], env=environment, cwd=cwd, text=True, start_new_session=True, **streams
    )


def _session(leader: int) -> list[int]:
    """The processes of a session, its leader first."""
    if not Path("/proc/self/stat").exists():
        return [leader]
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                # pid (name) state parent group session ...; a name can hold anything.
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z":
                    found.append(int(entry.name))
    return sorted(found, key=lambda pid: (pid != leader, pid))


def _stacks(process: subprocess.Popen[str]) -> str:
    """The stacks of the processes of a session. Those of Python go to standard error, by faulthandler on SIGABRT."""
    parts = []
    for pid in _session(process.pid):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parts.append(f"{pid}: {command[:300]}")
            if "java" in command.split(" ", 1)[0] and (jstack := shutil.which("jstack")):
                shown = subprocess.run([jstack, str(pid)], capture_output=True, text=True, timeout=20, check=False)
                parts.append(shown.stdout[:20_000])
            elif "python" in command.split(" ", 1)[0]:
                os.kill(pid, signal.SIGABRT)
    time.sleep(1)  # they write
    return "\n".join(parts)
