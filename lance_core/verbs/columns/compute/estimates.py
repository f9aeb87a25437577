"""What due rows will take: the last runs record their seconds and costs beside the leases.

    _refs/computations/<name>.json    [{"run", "rows": 500, "called": 620, "seconds": 12.5, "cost_per_row": 0.05}, ...]

At most five, the newest last, each written whenever its run stages results, so that runs that fail or are killed count
too. The rows have results; a row of a batch that was divided, or whose result was lost, is called more than once. The
object may be lost: it is for people.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from lance_core.errors import ObjectNotFoundError
from lance_core.table.paths import COMPUTATIONS_PREFIX
from lance_core.verbs.columns.compute.records import ComputeProgress
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.references import dataset_store

_MOST_RUNS: Final = 5


class DueRows(dict[str, int]):
    """Due rows by reason, and what they will take, as far as earlier runs recorded it.

    Attributes:
        total: The number of due rows.
        share: Their share of the table.
        staged: Those that an earlier run has computed and staged, for which nothing is called.
        seconds: Seconds of the others, by the last runs; None if none is recorded.
        cost: The cost of the others, by the cost of a call in the newest run; None if none was given.
        calls_per_row: How often the function was called for a row that got a result, in the last runs; 1 if none did.
        seconds_per_row: Seconds of such a row; None if none is recorded.
        cost_per_row: The cost of such a row, by the cost of a call in the newest run; None if none was given.
    """

    def __init__(self, rows: Mapping[str, int], staged: int, snapshot: Snapshot, name: str) -> None:
        super().__init__(rows)
        runs = _read_runs(snapshot, name)
        num_rows = sum(fragment.num_rows for fragment in snapshot.manifest.fragments)
        self.total = sum(rows.values())
        self.share = self.total / max(num_rows, 1)
        self.staged = staged
        computed = sum(run["rows"] for run in runs)
        self.calls_per_row = sum(run.get("called", run["rows"]) for run in runs) / computed if computed else 1.0
        self.seconds_per_row = sum(run["seconds"] for run in runs) / computed if computed else None
        cost = runs[-1]["cost_per_row"] if runs else None
        self.cost_per_row: float | None = None if cost is None else cost * self.calls_per_row
        num_calls = self.total - staged
        self.seconds = None if self.seconds_per_row is None else round(num_calls * self.seconds_per_row, 3)
        self.cost = None if self.cost_per_row is None else round(num_calls * self.cost_per_row, 6)


def record_run(
    snapshot: Snapshot, name: str, run_id: str, rows: int, called: int, seconds: float, cost_per_row: float | None
) -> None:
    """Record what a run took up to now, in place of what it took before, if the function was called."""
    if called:
        run = {"run": run_id, "rows": rows, "called": called, "seconds": round(seconds, 3)}
        runs = [each for each in _read_runs(snapshot, name) if each.get("run") != run_id]
        runs = [*runs, run | {"cost_per_row": cost_per_row}][-_MOST_RUNS:]
        dataset_store(snapshot.store, snapshot.manifest.branch).put(_key(name), json.dumps(runs).encode())


def _read_runs(snapshot: Snapshot, name: str) -> list[dict[str, Any]]:
    try:
        runs: list[dict[str, Any]] = json.loads(
            bytes(dataset_store(snapshot.store, snapshot.manifest.branch).get(_key(name)))
        )
    except ObjectNotFoundError:
        return []
    return runs


def _key(name: str) -> str:
    return f"{COMPUTATIONS_PREFIX}{name.encode().hex()}.json"


@contextmanager
def show_progress(name: str) -> Iterator[Callable[[ComputeProgress], object] | None]:
    """Show a progress bar on standard error, if that is a terminal and the extra `[cli]` is installed."""
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield None
        return
    from rich import console  # noqa: PLC0415 - an extra
    from rich import progress as bars  # noqa: PLC0415 - an extra

    facts = bars.TextColumn("{task.fields[per_second]:,.0f} rows/s, {task.fields[failed]} failed")
    title = bars.TextColumn("{task.description}", markup=False)
    columns = title, bars.BarColumn(), bars.MofNCompleteColumn(), facts, bars.TimeRemainingColumn()
    with bars.Progress(*columns, console=console.Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None, per_second=0.0, failed=0)

        def show(progress: ComputeProgress) -> None:
            per_second, failed = progress.rows_per_second, progress.rows_failed
            total = progress.rows_left + progress.rows_computed  # the bar divides what it shows by the seconds
            bar.update(task, completed=progress.rows_computed, total=total, per_second=per_second, failed=failed)

        yield show
