"""How many threads encode and decode pages, and that the rows do not depend on it."""

import os
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from lance_core.errors import InvalidInputError
from lance_core.file import pool
from tests import processes

ROWS = 60_000


@pytest.fixture
def cpu_threads(monkeypatch):
    """Sets the number of threads, for a new pool."""
    before = pool._pools.copy()
    pool._pools.clear()

    def use(number):
        monkeypatch.setenv("LANCE_CPU_THREADS", number)

    yield use
    for made in pool._pools.values():
        made.shutdown()
    pool._pools.clear()
    pool._pools.update(before)


def test_one_thread_works_in_the_callers(cpu_threads):
    cpu_threads("1")
    assert pool.num_threads() == 1
    assert pool.submit(threading.get_ident).result() == threading.get_ident()
    assert not pool._pools


def test_an_error_of_the_work_comes_with_the_result(cpu_threads):
    for number in ("1", "2"):
        cpu_threads(number)
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()


def test_as_many_threads_as_are_wanted(cpu_threads):
    cpu_threads("3")
    assert pool.num_threads() == 3
    together = threading.Barrier(3, timeout=100)
    futures = [pool.submit(lambda: (together.wait(), threading.get_ident())[1]) for _ in range(3)]
    others = {future.result() for future in futures}
    assert len(others) == 3
    assert threading.get_ident() not in others
    more = {pool.submit(threading.get_ident).result() for _ in range(20)}
    assert more <= others


def test_without_the_variable_one_for_each_core_of_the_process(monkeypatch):
    monkeypatch.delenv("LANCE_CPU_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert pool.num_threads() == 16
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert pool.num_threads() == 1
    monkeypatch.setenv("LANCE_CPU_THREADS", "")
    assert pool.num_threads() == 1


def test_a_job_runs_the_jobs_that_it_submits(cpu_threads):
    cpu_threads("2")

    def job(number):
        inner = [pool.submit(threading.get_ident).result(), *pool.in_order(lambda _: threading.get_ident(), range(3))]
        return number, set(inner) == {threading.get_ident()}, pool.num_threads()

    assert list(pool.in_order(job, range(20))) == [(number, True, 1) for number in range(20)]
    assert len(pool._pools[os.getpid()]._threads) <= 2


@pytest.mark.parametrize("requests", [0, 5])
@pytest.mark.parametrize("number", ["1", "2", "16"])
def test_results_come_in_order_and_few_jobs_run_ahead(cpu_threads, number, requests):
    cpu_threads(number)
    begun = []
    results = pool.in_order(lambda item: begun.append(item) or item * 2, range(100), requests=requests)
    assert next(results) == 0
    assert len(begun) <= (requests or int(number)) + 1
    assert list(results) == [2 * item for item in range(1, 100)]


class Interrupted(BaseException):
    """As an interruption by the keyboard, which ends a job or the caller."""


@pytest.mark.parametrize("requests", [0, 3])
@pytest.mark.parametrize("number", ["1", "2", "16"])
@pytest.mark.parametrize("end", ["error", "interruption", "close", "error of the items"])
def test_no_job_runs_once_the_results_have_ended(cpu_threads, number, requests, end):
    cpu_threads(number)
    before = threading.active_count()
    running, begun = set(), []

    def job(item):
        begun.append(item)
        running.add(item)
        try:
            if item == 4 and end in ("error", "interruption"):
                raise ValueError(item) if end == "error" else Interrupted
            threading.Event().wait(0.01)
        finally:
            running.discard(item)
        return item

    def items():
        yield from range(5)
        if end == "error of the items":
            raise KeyError(end)
        yield from range(5, 1000)

    results = pool.in_order(job, items(), requests=requests)
    if end == "close":
        assert [next(results), next(results)] == [0, 1]
        results.close()
    else:
        with pytest.raises((ValueError, Interrupted, KeyError)):
            list(results)
    assert not running
    assert len(begun) < 50
    if requests:
        assert threading.active_count() == before


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "many", " 2", "²"])
def test_a_wrong_number_is_rejected_by_name(cpu_threads, wrong):
    cpu_threads(wrong)
    with pytest.raises(InvalidInputError, match="LANCE_CPU_THREADS"):
        pool.num_threads()
    with pytest.raises(InvalidInputError, match="LANCE_CPU_THREADS"):
        pool.submit(threading.get_ident)


def rows():
    rng = np.random.default_rng(5)
    return pa.table(
        {
            "number": rng.integers(0, 1 << 40, ROWS),
            "double": rng.random(ROWS),
            "text": pa.array([f"value {n}" if n % 7 else None for n in rng.integers(0, 10**6, ROWS)]),
            "list": pa.array([list(range(n % 4)) for n in range(ROWS)]),
        }
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize("version", ["0.1", "2.2"])
def test_the_rows_do_not_depend_on_the_number_of_threads(tmp_path, version):
    expected = rows()
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, expected.schema) as writer:
        writer.write_table(expected)
    for threads in ("1", "4"):
        run(WRITE, threads, tmp_path, version)  # 0.1 is written by one thread
    for threads in ("1", "4"):
        run(READ, threads, tmp_path)
    read = {p.stem: p.read_bytes() for p in tmp_path.glob("read-*.arrow")}
    assert len(read) == 4
    assert len(set(read.values())) == 1
    with pa.ipc.open_file(tmp_path / "read-1-of-4.arrow") as found:
        assert found.read_all().combine_chunks() == expected


WRITE = """
with pa.OSFile(f"{folder}/rows.arrow") as file:
    rows = pa.ipc.open_file(file).read_all()
lance_core.write_dataset(rows, f"{folder}/written-{threads}", data_storage_version=sys.argv[3])
"""
READ = """
for written in ("1", "4"):
    rows = lance_core.dataset(f"{folder}/written-{written}").to_table().combine_chunks()
    with pa.OSFile(f"{folder}/read-{threads}-of-{written}.arrow", "wb") as sink:
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
"""
HEAD = """
import sys, threading
import pyarrow as pa
import lance_core
threads, folder = sys.argv[1:3]
"""
TAIL = """
pages = [t for t in threading.enumerate() if t.name.startswith("lance-page")]
if threads == "1":
    assert not pages
elif sys.argv[3:] != ["0.1"]:
    assert len(pages) > 1
"""


def run(program, threads, *arguments):
    """Run a program in a process of its own, with `threads` threads."""
    processes.run(
        [sys.executable, "-c", HEAD + program + TAIL, threads, *map(str, arguments)],
        env={**os.environ, "LANCE_CPU_THREADS": threads},
        check=True,
    )
