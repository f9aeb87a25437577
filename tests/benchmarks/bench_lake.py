"""A run of maintenance over a lake of 2,000 healthy tables, each with a declared asset, on disk.

The first run observes each asset; the second one finds that nothing has changed. Processor time is that of the process.
"""

import shutil
import tempfile
import time
from pathlib import Path

import dagster as dg
import pyarrow as pa

import lance_core
from lance_dagster import LanceIOManager, build_maintenance_job

TABLES = 2_000
MOST_S = 60.0
"""Seconds of processor time that a run over all tables may take."""

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        root = str(folder / "lake")
        for number in range(TABLES):
            lance_core.write_dataset(pa.table({"n": [number]}), f"{root}/s{number % 20}/t{number}.lance")
        assets = [dg.AssetSpec([f"s{number % 20}", f"t{number}"]) for number in range(TABLES)]
        job = build_maintenance_job(assets, root=True)
        defs = dg.Definitions(assets=assets, jobs=[job], resources={"io_manager": LanceIOManager(root_uri=root)})
        home = folder / "home"
        home.mkdir()
        with dg.DagsterInstance.local_temp(str(home)) as instance:
            for name in ("first", "second"):
                started, busy = time.monotonic(), time.process_time()
                result = defs.resolve_job_def(job.name).execute_in_process(instance=instance, run_config=QUIET)
                spent = time.process_time() - busy
                assert len(result.output_for_node("summarize")["healthy"]) == TABLES
                mark = "" if spent <= MOST_S else "  <-- above"
                seconds = time.monotonic() - started
                print(f"{name} run over {TABLES:,} healthy tables: {seconds:6.1f} s, processor {spent:5.1f} s{mark}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
