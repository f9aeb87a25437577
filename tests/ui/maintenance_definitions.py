"""The code location of the stories about maintenance: a table of small fragments, and ways to stop a run at a step.

While the file `stop` in the folder LANCE_TEST_HOLD names a place, the process that comes there writes its id and
that of the run into the file `stopped`, and waits to be killed:

    <step>            the step has done its work, and its output is not stored
    <step> begins     its input is about to be loaded
    reserved          the ids of new fragments are reserved, and the rewrite is not committed
    indexed           the files of an index are written, and the index is not committed

The file `dead` names a run that has been silent for too long.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa

from lance_core.maintenance.compaction import compaction
from lance_core.table.operations import CreateIndex, Rewrite
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_dagster import (
    LanceIOManager,
    LanceMaintenancePolicy,
    build_lance_health_checks,
    build_maintenance_job,
    build_maintenance_schedule,
    build_maintenance_sensor,
    stamp_lance_metadata,
)
from lance_dagster.maintenance import sensor

HOLD = Path(os.environ["LANCE_TEST_HOLD"])
DAYS = dg.StaticPartitionsDefinition([f"d{number}" for number in range(8)])


def stop_at(run_id: str, place: str) -> None:
    """Wait here for the end, if the test says so."""
    stop = HOLD / "stop"
    if stop.exists() and stop.read_text() == place:
        stop.unlink()
        written = HOLD / "stopped.part"
        written.write_text(f"{os.getpid()} {run_id}")
        written.rename(HOLD / "stopped")
        time.sleep(600)


class Holding(dg.IOManager):
    """Carries the payloads of maintenance, and stops where the test says."""

    def __init__(self, files: dg.IOManager) -> None:
        """Keep them in files."""
        self.files = files

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Store an output."""
        stop_at(context.run_id, context.step_key.partition("[")[0])
        self.files.handle_output(context, obj)

    def load_input(self, context: dg.InputContext) -> object:
        """Load an input."""
        step = context.step_context
        stop_at(step.run_id, f"{step.step.key.partition('[')[0]} begins")
        return self.files.load_input(context)


class HoldingIOManager(dg.ConfigurableIOManagerFactory):
    """The same as a resource."""

    def create_io_manager(self, context: dg.InitResourceContext) -> Holding:
        """For one process."""
        return Holding(dg.FilesystemIOManager(base_dir=str(HOLD)).create_io_manager(context))


_commit = compaction.commit


def _stopping_commit(store, transaction, **options):
    if isinstance(transaction.operation, Rewrite):
        stop_at(dg.OpExecutionContext.get().run_id, "reserved")
    return _commit(store, transaction, **options)


compaction.commit = _stopping_commit
_commit_staged = UncommittedFiles.commit


def _stopping_commit_of_files(files, operation, *arguments, **options):
    if isinstance(operation, CreateIndex):
        stop_at(dg.OpExecutionContext.get().run_id, "indexed")
    return _commit_staged(files, operation, *arguments, **options)


UncommittedFiles.commit = _stopping_commit_of_files
_is_silent = sensor.is_silent


def _is_silent_or_dead(instance, record, longer_than):
    dead = HOLD / "dead"
    is_dead = dead.exists() and dead.read_text() == record.dagster_run.run_id
    return _is_silent(instance, record, timedelta(0) if is_dead else longer_than)


sensor.is_silent = _is_silent_or_dead


@dg.asset(
    key_prefix="shop",
    partitions_def=DAYS,
    metadata={"partition_expr": "day"},
    pool="lance/shop.orders",
    backfill_policy=dg.BackfillPolicy.multi_run(1),
)
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    """Ten rows per day."""
    return pa.table({"day": [context.partition_key] * 10, "n": list(range(10))})


policy = LanceMaintenancePolicy(max_small_fragments=3, cleanup_older_than="1s", target_rows_per_fragment=1000)
maintain = build_maintenance_job([orders], policy, payload_io_manager=HoldingIOManager())
many_processes = build_maintenance_job(
    [orders], LanceMaintenancePolicy(target_rows_per_fragment=1000, max_parallel_tasks=2), name="many_processes"
)

defs = stamp_lance_metadata(
    dg.Definitions(
        assets=[orders],
        asset_checks=build_lance_health_checks([orders], policy),
        jobs=[maintain, many_processes],
        schedules=[build_maintenance_schedule(maintain, cron_schedule="* * * * *")],
        sensors=[build_maintenance_sensor(maintain, [orders], policy, minimum_interval_seconds=2)],
        resources={"io_manager": LanceIOManager(root_uri=os.environ["LANCE_TEST_ROOT"], index_partitions=False)},
        executor=dg.in_process_executor,
    )
)
