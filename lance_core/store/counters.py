"""Counts the reads of all stores in this process, and the bytes that they returned."""

from __future__ import annotations

import threading

__all__ = ["bytes_read_counter", "count_read", "iops_counter"]

_lock = threading.Lock()
_counts = [0, 0]


def count_read(num_calls: int, num_bytes: int) -> None:
    """Count reads."""
    with _lock:
        _counts[0] += num_calls
        _counts[1] += num_bytes


def iops_counter() -> int:
    """Number of reads since the process started: file system calls, or requests.

    Examples:
        >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
        >>> before = lance.iops_counter()
        >>> rows = lance.dataset("flights.lance").to_table()
        >>> lance.iops_counter() > before
        True
    """
    return _counts[0]


def bytes_read_counter() -> int:
    """Number of bytes read since the process started.

    Examples:
        >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
        >>> before = lance.bytes_read_counter()
        >>> rows = lance.dataset("flights.lance").to_table()
        >>> lance.bytes_read_counter() > before
        True
    """
    return _counts[1]
