"""What steps of maintenance hand to each other: plain records under keys that are the same each time."""

import dataclasses
import io
import pickle
from datetime import timedelta

import dagster as dg

from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.lake import QUIET
from tests.lance_dagster.maintenance.test_maintenance import fill

RECORDS = {("datetime", "timedelta"), ("uuid", "UUID")}


class Plain(pickle.Unpickler):
    """Rejects everything but Python's own values and the frozen records of maintenance."""

    def find_class(self, module, name):
        kind = super().find_class(module, name)
        is_frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
        if (module, name) not in RECORDS and not (module.startswith("lance_") and is_frozen):
            raise pickle.UnpicklingError(f"a payload holds {module}.{name}")
        return kind


class Payloads(dg.IOManager):
    """Carries payloads as their pickles alone."""

    def __init__(self):
        self.kept = {}

    def handle_output(self, context, obj):
        self.kept[tuple(context.get_identifier()[1:])] = pickle.dumps(obj)

    def load_input(self, context):
        return self.kept_value(tuple(context.upstream_output.get_identifier()[1:]))

    def kept_value(self, key):
        return Plain(io.BytesIO(self.kept[key])).load()


def maintain(lake, **options):
    payloads = Payloads()
    policy = LanceMaintenancePolicy(target_rows_per_fragment=4, cleanup_older_than=timedelta(microseconds=1))
    job = build_maintenance_job(
        ["a/one", "a/two"], policy, payload_io_manager=dg.IOManagerDefinition.hardcoded_io_manager(payloads)
    )
    defs = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()})
    made = defs.resolve_job_def(job.name)
    assert made.execute_in_process(instance=lake.instance, run_config=QUIET, **options).success
    return payloads


def test_all_of_them_can_be_pickled_and_hold_plain_records(lake):
    for name in ("a/one", "a/two"):
        fill(lake, name)
    payloads = maintain(lake)
    steps = {key[0].partition("[")[0] for key in payloads.kept}
    assert {"plan", "rewrite", "collect", "commit", "clean_up"} <= steps
    for key in payloads.kept:
        payloads.kept_value(key)
    assert [len(lake.table(name).get_fragments()) for name in ("a/one", "a/two")] == [3, 3]


def test_tasks_have_the_same_keys_each_time(lake):
    fill(lake, "a/one")
    first, second = (sorted(maintain(lake, op_selection=["plan"]).kept) for _ in range(2))
    assert first == second
    assert len(first) == 4  # three tasks, and what was surveyed
