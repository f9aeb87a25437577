"""Worker processes of a compaction that die or meet an error."""

import importlib
import itertools
import os
import sys
import time
from pathlib import Path

import pytest

import lance_core
from lance_core.errors import StoreError
from lance_core.maintenance import Compaction
from lance_core.maintenance.compaction import worker
from tests import processes

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(processes.ROOT)}
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


STRANGERS = """
import sys
from lance_core.maintenance import MaintenancePolicy, compact, maintain
from tests.lance_core.maintenance.test_declared_indices import fill
import lance_core

if __name__ == "__main__":
    table = fill(sys.argv[1], pieces=2)
    report = maintain(table, MaintenancePolicy(indices={"t": "FTS"}))
    assert report.done["indices_built"] == 1, report.reason
    lance_core.write_dataset({"id": list(range(8))}, sys.argv[2], max_rows_per_file=1)
    compact(lance_core.dataset(sys.argv[2]), {"num_threads": 2, "target_rows_per_fragment": 4})
"""


def test_child_processes_run_no_modules_of_the_working_folder(tmp_path):
    script, folder = tmp_path / "main" / "script.py", tmp_path / "folder"
    script.parent.mkdir()
    script.write_text(STRANGERS)
    folder.mkdir()
    for name in ("queue", "types", "secrets", "numpy", "lance", "lance_core", "pickle", "struct"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')")
    command = [sys.executable, script, tmp_path / "a.lance", tmp_path / "b.lance"]
    processes.run(command, cwd=folder, env=ENVIRONMENT, check=True)
    assert not (tmp_path / "ran").exists()
    assert len(lance_core.dataset(tmp_path / "b.lance").get_fragments()) == 2


@pytest.mark.parametrize(("is_imported", "expected"), [(True, "own 0"), (False, "1")])
def test_a_process_imports_from_the_working_folder_only_where_classes_of_users_are_needed(
    tmp_path, is_imported, expected
):
    (tmp_path / "own.py").write_text("def main():\n    print('own', end=' ')")
    start = f"""
from lance_core.maintenance.processes import start_python

process = start_python("own", imports_from_working_folder={is_imported})
print(process.communicate()[0].decode() + str(process.returncode))
"""
    done = processes.run([sys.executable, "-c", start], cwd=tmp_path, env=ENVIRONMENT, check=True)
    assert done.stdout.strip() == expected


PARENT = """
import json, os, signal, time
from lance_core.maintenance.compaction import worker
from lance_core.maintenance.processes import start_python

search = start_python("lance_core.maintenance.search.child", imports_from_working_folder=False)
search.stdin.write(json.dumps({"job": "none"}).encode() + b"\\n")
search.stdin.flush()
assert b"KeyError" in search.stdout.readline()
compaction = start_python("lance_core.maintenance.compaction.worker", imports_from_working_folder=False)
for message in (None, None):
    worker.send(compaction.stdin, message)
assert isinstance(worker.receive(compaction.stdout), AttributeError)
for process in (search, compaction):
    process.send_signal(signal.SIGSTOP)
print(search.pid, compaction.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they end as soon as they go on")
def test_stopped_processes_end_with_their_killed_parent():
    with processes.running([sys.executable, "-c", PARENT], talks=True) as parent:
        pids = parent.stdout.readline().split()
        assert len(pids) == 2
        parent.kill()
        parent.wait()
        until = time.monotonic() + 60
        while any(_is_running(pid) for pid in pids) and time.monotonic() < until:
            time.sleep(0.02)
        assert [_is_running(pid) for pid in pids] == [False, False]


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_errors_of_any_type_reach_the_parent():
    same = ValueError("x")
    assert worker._make_portable(same) is same
    made = worker._make_portable(OddError("no", "way"))
    assert (type(made), str(made)) == (RuntimeError, "OddError: no way")
