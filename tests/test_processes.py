"""What tests rely on when they start processes."""

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.processes import held_port, run, running

SIGNALS = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
KEPT = {"processes.py", "test_processes.py"}
# A child that ignores SIGTERM and keeps what it was given to print to.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
def wait_for_ever(): time.sleep(1000)
wait_for_ever()
"""


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ends(pid):
    """Whether a process that was asked to end does: a signal takes its time."""
    for _ in range(600):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_processes_begin_with_default_signals():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = run([sys.executable, "-c", SIGNALS])
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stdout == "True\n"


def test_what_fails_says_what_it_printed():
    with pytest.raises(AssertionError, match=r"exit code 3: (?s:.)*here it is"):
        run([sys.executable, "-c", "print('here it is'); raise SystemExit(3)"], check=True)


def test_what_hangs_shows_its_stack_and_is_ended_with_its_children():
    for limit_s in (1, 5, 20, 100):  # until it has come so far
        with pytest.raises(AssertionError, match="still running") as found:
            run([sys.executable, "-c", STUBBORN], limit_s=limit_s)
        if "in wait_for_ever" in str(found.value):
            break
    assert "in wait_for_ever" in str(found.value)
    (child,) = [int(line) for line in str(found.value).splitlines() if line.isdecimal()]
    assert ends(child)


def test_children_end_with_the_context():
    with running([sys.executable, "-c", "print('ready', flush=True); input()"], talks=True) as process:
        assert process.stdout.readline() == "ready\n"
    assert process.returncode == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="Linux signals a process that its parent has died")
def test_a_child_does_not_outlive_the_process_that_started_it():
    program = (
        "import os, sys; from tests.processes import running\n"
        "with running([sys.executable, '-c', 'input()'], talks=True) as child:\n"
        "    print(child.pid, flush=True); os._exit(0)"
    )
    done = run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])})
    assert ends(int(done.stdout))


def test_a_held_port_is_given_to_nobody_and_can_be_bound():
    with held_port() as port, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_only_the_helper_starts_processes():
    """So that none hangs a run, or outlives it."""
    words = ("subprocess.run(", "Popen(", "os.fork(")
    root = Path(__file__).parent
    # Benchmarks measure other programs as they are started by a shell.
    files = [path for path in root.rglob("*.py") if "benchmarks" not in path.parts and path.name not in KEPT]
    found = [str(path.relative_to(root)) for path in files if any(word in path.read_text() for word in words)]
    assert found == [], "use run() or running() of tests/processes.py"
