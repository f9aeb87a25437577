"""How much this process has read from stores."""

from __future__ import annotations

import threading

__all__ = ["bytes_read_counter", "count_read", "iops_counter"]

_lock = threading.Lock()
_counts = [0, 0]


def count_read(num_calls: int, num_bytes: int) -> None:
    """Count reads that were done."""
    with _lock:
        _counts[0] += num_calls
        _counts[1] += num_bytes


def iops_counter() -> int:
    """Reads of stores since this process began: calls of a file, or requests."""
    return _counts[0]


def bytes_read_counter() -> int:
    """Bytes that those read."""
    return _counts[1]
