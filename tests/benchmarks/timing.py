"""Timing of two ways to do one job, round-robin, so that a drift of the machine hits both."""

import statistics
import time
from collections.abc import Callable

Job = Callable[[], object]

_headers: set[str] = set()  # those that this process has printed


def medians(jobs: dict[str, Job], rounds: int = 5, prepare: Job | None = None) -> dict[str, float]:
    """Median seconds of each job over `rounds` rounds after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for round_number in range(rounds + 1):
        for name, job in jobs.items():
            if prepare is not None:
                prepare()
            start = time.perf_counter()
            job()
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def report(rows: list[tuple[str, float, float, float]], ours: str = "ours", theirs: str = "pylance") -> None:
    """Print jobs as (name, our seconds, their seconds, ratio that must be reached); ratio = theirs / ours."""
    header = f"{'job':<44}{ours + ' s':>12}{theirs + ' s':>12}{'ratio':>8}{'must':>7}"
    if header not in _headers:
        _headers.add(header)
        print(header)
    for name, own, other, must in rows:
        mark = "" if other / own >= must else "  <-- below"
        print(f"{name:<44}{own:>12.3f}{other:>12.3f}{other / own:>8.2f}{must:>7.2f}{mark}", flush=True)
