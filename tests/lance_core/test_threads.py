import os
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.threads import ThreadPool
from tests import processes

ROWS = pa.table({"a": range(30), "b": [str(number) for number in range(30)]})


def test_a_pool_runs_jobs_in_threads():
    with ThreadPool(2) as pool:
        names = {pool.submit(lambda: threading.current_thread().name).result() for _ in range(3)}
        assert threading.current_thread().name not in names
        assert list(pool.map(lambda number: number + 1, range(5))) == [1, 2, 3, 4, 5]


def test_a_pool_that_takes_no_more_runs_jobs_at_once():
    pool = ThreadPool(2)
    pool.shutdown()
    assert pool.submit(threading.current_thread).result() is threading.current_thread()
    failed = pool.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_a_job_runs_once_when_a_thread_cannot_be_started(monkeypatch):
    started = threading.Event()
    runs = []
    with ThreadPool(4) as pool:
        pool.submit(started.wait)

        def fails(self):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(ThreadPoolExecutor, "_adjust_thread_count", fails)
        jobs = [pool.submit(runs.append, number) for number in range(20)]
        started.set()
        wait(jobs)
    assert sorted(runs) == list(range(20))


INTERRUPTED = """
import sys, threading
from lance_core.file import pool as pages
from lance_core.threads import SharedPool, ThreadPool

start = threading.Thread.start

def interrupted(self):
    start(self)
    raise KeyboardInterrupt

pool = {"own": ThreadPool(2), "shared": SharedPool(2, "shared"), "pages": pages}[sys.argv[1]]
threading.Thread.start = interrupted
try:
    pool.submit(print, "interrupted")
except KeyboardInterrupt:
    threading.Thread.start = start
else:
    raise AssertionError(pool)
if sys.argv[2] == "again":
    assert (pool.submit(threading.current_thread).result().name == "MainThread") == (sys.argv[1] == "own")
"""


@pytest.mark.variants(2)
@pytest.mark.parametrize("then", ["ends", "again"])
@pytest.mark.parametrize("kind", ["own", "shared", "pages"])
def test_python_ends_after_an_interruption_while_a_thread_starts(kind, then):
    environment = {**os.environ, "LANCE_CPU_THREADS": "2"}
    done = processes.run([sys.executable, "-c", INTERRUPTED, kind, then], env=environment)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


VERBS = """
dataset = lance.dataset(sys.argv[1], storage_options=options)
dataset.insert(rows)
dataset.delete("a = 3")
dataset.update({"b": "'new'"}, where="a = 4")
dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(rows)
dataset.optimize.compact_files(num_threads=1)
dataset.add_columns({"c": "a + 1"})
assert dataset.to_table().num_rows == dataset.count_rows() == sum(f.count_rows() for f in dataset.get_fragments())
dataset.cleanup_old_versions(retain_versions=1)
lance.write_dataset(rows, sys.argv[1] + "2", storage_options=options, max_rows_per_file=4)
dataset.deep_clone(sys.argv[1] + "3", None, storage_options=options)
pathlib.Path(sys.argv[2]).write_text("done")
"""
PROGRAM = """
import atexit, json, pathlib, sys, threading, time
import pyarrow as pa
import lance_core as lance
options = json.loads(sys.argv[3])
rows = pa.table({{"a": range(30), "b": [str(number) for number in range(30)]}})
def work():
    while {waits} and threading.main_thread().is_alive():
        time.sleep(0.01)
{verbs}
{start}
"""


def run_late(tmp_path, uri, start, options="{}"):
    """Run all verbs in a process of its own, once its main thread has returned."""
    waits = "True" if "Thread" in start else "False"
    program = PROGRAM.format(verbs=textwrap.indent(VERBS, "    "), start=start, waits=waits)
    command = [sys.executable, "-W", "error", "-c", program, uri, str(tmp_path / "done"), options]
    done = processes.run(command)
    assert (tmp_path / "done").exists(), done.stderr
    assert done.returncode == 0
    return done.stderr


@pytest.mark.parametrize("start", ["threading.Thread(target=work).start()", "atexit.register(work)"])
def test_verbs_work_once_the_main_thread_has_returned(tmp_path, start):
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri, max_rows_per_file=4)
    assert run_late(tmp_path, uri, start) == ""
    assert lance.dataset(uri).count_rows() > 30


def test_verbs_on_s3_work_once_the_main_thread_has_returned(tmp_path, s3):
    import json

    uri = f"s3://{s3.new_bucket()}/t"
    options = {key: value.replace("127.0.0.1", "localhost") for key, value in s3.storage_options.items()}
    lance.write_dataset(ROWS, uri, max_rows_per_file=4, storage_options=options)
    run_late(tmp_path, uri, "threading.Thread(target=work).start()", json.dumps(options))
    assert lance.dataset(uri, storage_options=options).count_rows() > 30


def test_compaction_in_processes_warns_of_nothing(tmp_path, capfd):
    dataset = lance.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=2)
    dataset.optimize.compact_files(num_threads=3, target_rows_per_fragment=8)
    assert capfd.readouterr().err == ""
    assert dataset.to_table() == ROWS
