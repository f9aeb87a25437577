"""Processes that use all verbs on one table and clean it up all the time: nothing is lost, doubled or restored."""

import collections
import contextlib
import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import lance
import pytest

import lance_core
from lance_core.maintenance.verify.files import verify
from tests import processes
from tests.faults.churner import COUNTER, rows
from tests.postgres_server import postgres_programs, postgres_server


def run(uri, folder, options, *, writers, count):
    """Let some writers work; their logs."""
    logs = [folder / f"writer-{writer}.log" for writer in range(1, writers + 1)]
    with contextlib.ExitStack() as stack:
        started = []
        for writer, log in enumerate(logs, 1):
            arguments = (uri, writer, count, log, json.dumps(options))
            command = [sys.executable, "-m", "tests.faults.churner", *map(str, arguments)]
            errors = folder / f"writer-{writer}.errors"
            started.append((errors, stack.enter_context(processes.running(command, log=errors))))
        for errors, process in started:
            process.wait(timeout=1500)
            assert process.returncode == 0, errors.read_text()
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


def check(uri, options, logs):
    """Compare the rows that there are with what was acknowledged."""
    table = lance_core.dataset(uri, storage_options=options)
    found = collections.Counter(table.to_table(columns=["k"])["k"].to_pylist())
    assert [key for key, times in found.items() if times > 1] == []
    must, must_not, may, least, open_counts = {COUNTER}, set(), set(), 0, 0
    outcomes = collections.Counter()
    for log in logs:
        for what, outcome in zip(log[::2], log[1::2], strict=True):
            ((kind, verb),) = outcome.items()
            outcomes[f"{verb} {kind}"] += 1
            least += kind == "done" and "count" in what
            open_counts += kind == "unknown" and "count" in what
            for key in (*what.get("added", ()), *what.get("deleted", ())):
                for keys in (must, must_not, may):
                    keys.discard(key)
                if kind == "unknown":
                    may.add(key)
                else:
                    (must if ("added" in what) == (kind == "done") else must_not).add(key)
    assert must <= found.keys(), must - found.keys()
    assert not must_not & found.keys()
    assert found.keys() <= must | may
    (value,) = table.to_table(columns=["v"], filter=f"k = {COUNTER}")["v"].to_pylist()
    assert least <= value <= least + open_counts
    assert verify(table) == []
    print(f"version {table.version}, {dict(sorted(outcomes.items()))}")
    return outcomes


def churn(uri, folder, options, *, writers=3, count=120):
    lance_core.write_dataset(rows(COUNTER), uri, storage_options=options)
    outcomes = check(uri, options, run(uri, folder, options, writers=writers, count=count))
    for verb in ("append", "merge", "delete", "count"):
        assert outcomes[f"{verb} done"]


@pytest.mark.slow
def test_on_a_local_disk(tmp_path):
    uri = str(tmp_path / "t")
    churn(uri, tmp_path, {})
    lance.dataset(uri).validate()


@pytest.mark.slow
def test_on_s3(s3, tmp_path):
    uri = f"s3://{s3.new_bucket()}/t"
    churn(uri, tmp_path, s3.storage_options, count=40)
    lance.dataset(uri, storage_options=s3.storage_options).validate()


@pytest.mark.heavy
def test_with_postgres_and_cut_connections(tmp_path):
    programs = postgres_programs()
    if programs is None:
        pytest.fail("PostgreSQL is missing; on Debian: apt-get install postgresql")
    over = threading.Event()
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = '{}'"

    def cutting(server, database):
        count = 0
        while not over.wait(random.uniform(0, 0.2)):
            count += len(server.run(cut.format(database)))
        return count

    with postgres_server(programs) as server, ThreadPoolExecutor(1) as pool:
        database = server.new_database()
        options = {"manifest_store": server.uri(database)}
        uri = str(tmp_path / "t")
        lance_core.write_dataset(rows(COUNTER), uri, storage_options=options)
        done = pool.submit(cutting, server, database)
        try:
            logs = run(uri, tmp_path, options, writers=3, count=60)
        finally:
            over.set()
        assert done.result() > 0
        check(uri, options, logs)


@pytest.mark.slow
def test_with_sqlite(tmp_path):
    churn(str(tmp_path / "t"), tmp_path, {"manifest_store": f"sqlite:///{tmp_path / 'rows.db'}"})
