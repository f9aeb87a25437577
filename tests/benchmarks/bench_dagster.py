"""What the Dagster plugin adds: to a write, to the loading of a code location, and over many healthy tables.

Seconds of the wall and of the processor, round-robin; the processor's hardly depend on what else the machine does.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.maintenance.routine.survey import survey_table
from lance_dagster import LanceIOManager, LanceMaintenancePolicy, build_maintenance_job
from tests import processes

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
ROWS = pa.table({"n": list(range(1000)), "text": [f"row {i}" for i in range(1000)]})
LOCATION = """
import time
started = time.process_time(), time.perf_counter()
import dagster as dg
{more}
@dg.asset
def rows(): ...
defs = dg.Definitions([rows]{args})
defs.get_repository_def()
print(time.process_time() - started[0], time.perf_counter() - started[1])
"""
OURS = """
from lance_dagster import *
policy = LanceMaintenancePolicy()
job = build_maintenance_job([rows], policy)
manager = LanceIOManager(root_uri="lake")
"""
ARGS = """, jobs=[job], schedules=[build_maintenance_schedule(job)], asset_checks=build_lance_health_checks([rows], policy),
    sensors=[build_maintenance_sensor(job, [rows], policy)], resources={"io_manager": manager}"""


def timed(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Median seconds of wall and processor of each job, round-robin, after two rounds that are not counted."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for number in range(rounds + 2):
        for name, job in jobs.items():
            wall, processor = time.perf_counter(), time.process_time()
            job()
            if number > 1:
                found[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}


def show(name: str, wall: float, processor: float, most: float) -> None:
    """One line; the limit is held against the processor's seconds."""
    mark = "" if processor <= most else "  <-- above"
    print(f"{name:<48}{wall:>10.4f}{processor:>12.4f}{most:>8.3f}{mark}", flush=True)


def materialization(folder: str) -> None:
    """Runs of an asset that the IO manager stores, of one whose body writes, and of one that does nothing."""
    bare = f"{folder}/bare.lance"

    @dg.asset
    def stored() -> pa.Table:
        return ROWS

    @dg.asset
    def written() -> None:
        lance_core.write_dataset(ROWS, bare, mode="overwrite")

    manager = LanceIOManager(root_uri=folder)
    with dg.DagsterInstance.ephemeral() as instance:

        def run(asset: dg.AssetsDefinition) -> object:
            return dg.materialize([asset], resources={"io_manager": manager}, instance=instance, run_config=QUIET)

        found = timed({"stored": lambda: run(stored), "written": lambda: run(written)}, rounds=40)
    (wall, processor), (bare_wall, bare_processor) = found["stored"], found["written"]
    show("materialization of 1,000 rows, over the bare write", wall - bare_wall, processor - bare_processor, 0.02)


def loading() -> None:
    """A code location with everything, in processes of their own, over one with Dagster alone."""
    seconds: dict[str, list[tuple[float, ...]]] = {"bare": [], "ours": []}
    for _ in range(5):
        for name, (more, args) in {"bare": ("", ""), "ours": (OURS, ARGS)}.items():
            asset = "@dg.asset\ndef rows(): ...\n" if more else ""
            program = LOCATION.format(more=asset + more, args=args)
            done = processes.run([sys.executable, "-W", "ignore", "-c", program], check=True)
            seconds[name].append(tuple(map(float, done.stdout.split())))
    bare, ours = ([min(times) for times in zip(*seconds[name], strict=True)] for name in ("bare", "ours"))
    show("import of a code location, over Dagster's", ours[1] - bare[1], ours[0] - bare[0], 0.3)


def many_tables(folder: str) -> None:
    """Maintenance of 200 tables that need none."""
    names = [f"many/t{number}" for number in range(200)]
    for name in names:
        lance_core.write_dataset(ROWS, f"{folder}/{name}.lance")
    job = build_maintenance_job(names, LanceMaintenancePolicy())
    resources = {"io_manager": LanceIOManager(root_uri=folder)}
    made = dg.Definitions(jobs=[job], resources=resources).resolve_job_def(job.name)
    with dg.DagsterInstance.ephemeral() as instance:
        found = timed({"maintenance": lambda: made.execute_in_process(instance=instance, run_config=QUIET)}, rounds=1)
    show("maintenance of 200 healthy tables", *found["maintenance"], 30)


def many_fragments(folder: str) -> None:
    """The plan of a table of ten thousand fragments, from its manifest."""
    uri = f"{folder}/wide.lance"
    (fragment,) = (one.metadata for one in lance_core.write_dataset(ROWS, uri).get_fragments())
    lance_core.LanceDataset.commit(uri, lance_core.LanceOperation.Append([fragment] * 10_000), read_version=1)
    policy = LanceMaintenancePolicy(target_rows_per_fragment=100_000).to_core()
    found = timed({"plan": lambda: survey_table(lance_core.dataset(uri), policy)}, rounds=5)
    show("plan of 10,000 fragments", *found["plan"], 1)


def main() -> None:
    """Run all benchmarks of this module."""
    print(f"{'':<48}{'wall s':>10}{'processor s':>12}{'most':>8}")
    with tempfile.TemporaryDirectory() as folder:
        materialization(folder)
        loading()
        many_tables(folder)
        many_fragments(folder)


if __name__ == "__main__":
    main()
