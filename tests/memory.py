"""The memory that a process has taken at most."""

import resource
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")


def forget_peak() -> None:
    """Reset the peak of `peak_mb` to the memory that this process holds now, where the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of resident pages


def peak_mb() -> int:
    """Megabytes of this process's own memory at their highest.

    On Linux `ru_maxrss` begins with the peak of the parent process (`exec_mmap` keeps it), so that a large test process
    hides the memory of a small one.
    """
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024
