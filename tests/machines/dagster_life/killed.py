"""Runs in processes of their own, which are killed before their write, in it, or between the commit and its event.

The rest of the machine lets a thread stop for ever instead. A seed draws a chain of runs and re-executions on one instance.
"""

import json
import os
import random
import signal
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import dagster as dg
import pyarrow as pa

import lance_core
from lance_dagster import LanceIOManager
from tests.processes import run

RUNS = 4
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class KilledManager(LanceIOManager):
    """Ends its process at a point."""

    at: str

    def create_io_manager(self, context):
        manager, at = super().create_io_manager(context), self.at
        handle = manager.handle_output

        def handle_output(context, value):
            if at == "before":
                end_process()
            handle(context, value)
            if at == "after":
                end_process()

        manager.handle_output = handle_output
        return manager


def end_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def execute(home: str, lake: str, mode: str, at: str, rows: list[int], tags: dict[str, str]) -> None:
    """Execute a run in this process."""

    @dg.asset(metadata={"lance/write_mode": mode})
    def events() -> pa.RecordBatchReader:
        def batches():
            for row in rows:
                yield from pa.table({"n": [row]}).to_batches()
            if at == "during":
                end_process()

        return pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), batches())

    with dg.DagsterInstance.local_temp(home) as instance:
        dg.materialize(
            [events],
            instance=instance,
            tags=tags,
            resources={"io_manager": KilledManager(root_uri=lake, at=at)},
            run_config=QUIET,
            raise_on_error=False,
        )


def table_rows(lake: str) -> tuple[int, Counter]:
    try:
        table = lance_core.dataset(f"{lake}/public/events.lance")
    except lance_core.errors.DatasetNotFoundError:
        return 0, Counter()
    return table.version, Counter(table.to_table()["n"].to_pylist())


def play_killed(seed: int) -> tuple[list[str], list[str]]:
    """What was done, and what differed."""
    rng, done, problems = random.Random(f"{seed}:killed"), [], []
    mode = rng.choice(("append", "append", "overwrite", "error"))
    expected, attempt = Counter(), Counter()
    root = parent = ""
    with tempfile.TemporaryDirectory(prefix="dagster-life-killed-") as place:
        home, lake = str(Path(place, "home")), str(Path(place, "lake"))
        Path(home).mkdir()
        for number in range(RUNS):
            at = rng.choice(("before", "during", "after", "after", "nowhere"))
            rows = [10 * number + row for row in range(rng.choice((1, 2)))]
            tags = {"dagster/root_run_id": root, "dagster/parent_run_id": parent} if parent else {}
            command = [sys.executable, "-m", __name__, json.dumps([home, lake, mode, at, rows, tags])]
            run(command, limit_s=300)
            with dg.DagsterInstance.local_temp(home) as instance:
                (record,) = instance.get_runs(limit=1)
                is_stuck = not record.is_finished
                if is_stuck:
                    instance.report_run_failed(record)
                newest = instance.get_latest_materialization_event(dg.AssetKey("events"))
            may_write = mode != "error" or not expected - attempt
            done.append(f"{number:3} {mode} {rows}{' again' if parent else ''}, killed {at}: stuck {is_stuck}")
            if at in ("after", "nowhere") and may_write:
                expected = Counter(rows) if mode == "overwrite" else expected - attempt + Counter(rows)
                attempt = Counter(rows)
            version, found = table_rows(lake)
            if found != expected:
                problems.append(f"the table has {sorted(found)}, not {sorted(expected)}")
            if at == "nowhere" and may_write:
                said = None if newest is None else newest.asset_materialization.metadata["lance/version"].value
                if is_stuck or said != version:
                    problems.append(f"the newest event is of version {said}, not {version}")
            if problems:
                break
            has_succeeded = at == "nowhere" and may_write
            root, parent = ("", "") if has_succeeded else (root or record.run_id, record.run_id)
            attempt = Counter() if has_succeeded else attempt
    return done, problems


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    execute(*json.loads(sys.argv[1]))
