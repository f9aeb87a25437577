"""The memory that a process has taken at most."""

import resource
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")


def forget_peak() -> None:
    """Let `peak_mb` begin with what this process holds now, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of resident pages


def peak_mb() -> int:
    """Megabytes of this process's own memory at their highest.

    On Linux `ru_maxrss` begins with what the process had that started this one (`exec_mmap` keeps it), so that a large
    test process hides what a small one takes.
    """
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024
