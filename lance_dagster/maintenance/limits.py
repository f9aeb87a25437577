"""The limits of a run: whether its deadline has passed, and which tasks fit into the rest of its budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lance_core.maintenance import CompactionTask

__all__ = ["SEEK", "fitting", "not_fitting", "num_bytes", "time_is_up"]

SEEK: Final = 1024 * 1024
"""The number of bytes that cost about as much to read as opening a file."""


def time_is_up(deadline: float | None) -> bool:
    """Whether a time, in seconds since 1970, has passed."""
    return deadline is not None and time.time() >= deadline


def fitting(tasks: Sequence[CompactionTask], left: int | None) -> list[CompactionTask]:
    """The tasks that fit into the remaining bytes, those that merge the most fragments per byte first.

    Args:
        tasks: The tasks.
        left: The bytes that tasks may read; None for no limit.
    """
    fitting_tasks = []
    for task in sorted(tasks, key=lambda task: (task.num_bytes + SEEK) / max(1, len(task.raw))):
        if left is None or task.num_bytes <= left:
            fitting_tasks.append(task)
            left = None if left is None else left - task.num_bytes
    return fitting_tasks


def not_fitting(tasks: Sequence[CompactionTask], fitting_tasks: Sequence[CompactionTask], left: str) -> str:
    """The reason for which tasks are put off.

    Args:
        tasks: All tasks.
        fitting_tasks: The tasks that fit.
        left: A description of the remaining bytes.
    """
    return (
        f"max_bytes_rewritten: {len(tasks) - len(fitting_tasks):,} of {len(tasks):,} rewrites, "
        f"{num_bytes(tasks) - num_bytes(fitting_tasks):,} bytes, do not fit into the {left}"
    )


def num_bytes(tasks: Sequence[CompactionTask]) -> int:
    """The bytes of the data files that tasks read."""
    return sum(task.num_bytes for task in tasks)
