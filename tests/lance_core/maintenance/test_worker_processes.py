"""Worker processes of a compaction that die or meet an error."""

import importlib
import itertools

import pytest

import lance_core
from lance_core.errors import StoreError
from lance_core.maintenance import Compaction
from lance_core.maintenance.compaction import worker

pool = importlib.import_module("lance_core.maintenance.compaction.compaction")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_dies_fails_its_own_task_alone(tmp_path, monkeypatch, workers):
    table = lance_core.write_dataset({"id": list(range(8))}, tmp_path / "t", max_rows_per_file=1)
    tasks = Compaction.plan(table, {"target_rows_per_fragment": 2}).tasks
    start, started, numbers = pool._start, [], itertools.count()

    def starting():
        process = start()
        if not next(numbers):
            process.kill()
            process.wait()
        started.append(process)
        return process

    monkeypatch.setattr(pool, "_start", starting)
    outcomes = dict(pool.run_in_processes(table, tasks, workers))
    assert outcomes.keys() == set(tasks)
    failed = [one for one in outcomes.values() if isinstance(one, Exception)]
    assert [type(one) for one in failed] == [StoreError]
    assert "compact again" in str(failed[0])
    assert all(process.poll() is not None for process in started)


class OddError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def test_errors_of_any_type_reach_the_parent():
    same = ValueError("x")
    assert worker._make_portable(same) is same
    made = worker._make_portable(OddError("no", "way"))
    assert (type(made), str(made)) == (RuntimeError, "OddError: no way")
