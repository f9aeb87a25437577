"""Columns that a function computes on Spark's executors: the cells, failures, and kills of the core's computation."""

import asyncio
import os
import pickle
import re
import signal
import threading
import time
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import FailedRowsError, InvalidInputError, LanceError, SchemaError, UnsupportedError
from pyspark_lance.engine.errors import SparkLostError

SIZE = {"inputs": ["text"], "columns": pa.schema([("size", pa.int32())]), "name": "size", "code_version": "1"}
EXPECTED = [i % 7 for i in range(100)]


def measure(batch):
    return pc.utf8_length(batch["text"])


def write(uri, **options):
    """100 rows in three fragments."""
    rows = {"id": range(100), "text": ["x" * size for size in EXPECTED]}
    return lance_core.write_dataset(rows, uri, **{"max_rows_per_file": 40, "enable_stable_row_ids": True, **options})


@pytest.fixture
def table(uri):
    return write(uri)


@pytest.fixture
def compute(spark, uri):
    """Compute the sizes on the executors."""

    def run(function=measure, **options):
        return pyspark_lance.compute_columns(spark, uri, function, **{**SIZE, "batch_size": 8, **options})

    return run


@pytest.fixture
def logged(tmp_path):
    """A function that notes the rows of each call in a file, and the rows that it has noted."""
    log = tmp_path / "calls"
    log.touch()

    def note(batch):
        with log.open("a") as file:
            file.write("".join(f"{row}\n" for row in batch["id"].to_pylist()))
        return pa.array([row % 7 for row in batch["id"].to_pylist()], pa.int32())

    return note, lambda: Counter(map(int, log.read_text().split()))


def sizes(uri):
    rows = lance_core.dataset(uri).to_table(["id", "size"]).sort_by("id")
    return rows["size"].to_pylist()


def staged(uri):
    return list(Path(uri, "data").glob("computed-*"))


def test_cells_are_those_of_the_core(table, compute, uri, tmp_path, lance):
    here = write(tmp_path / "here.lance")
    for change in (lambda _: None, lambda t: t.update({"text": "'new'"}, "id < 50"), lambda t: t.insert({"id": [100]})):
        change(here)
        change(table)
        expected, result = here.compute_columns(measure, **SIZE, batch_size=8), compute()
        assert (result.rows_due, result.rows_computed) == (expected.rows_due, expected.rows_computed)
        names = ["id", "text", "size", "_size", "_rowid"]
        tables = [lance.dataset(str(each)).to_table(names).sort_by("id") for each in (here.uri, uri)]
        assert tables[0] == tables[1]
    assert compute().rows_due == {}
    assert compute(code_version="2").rows_due == {"code changed": 101}
    assert staged(uri) == []


def test_rows_are_called_once_and_compared_ones_not(table, compute, logged):
    function, rows = logged
    done = []
    result = compute(function, inputs=["id", "text"], progress=done.append)
    assert rows() == Counter(range(100))
    assert [each.rows_done for each in done] == sorted(each.rows_done for each in done)
    assert result.rows_called == 100
    assert (result.calls, done[-1].calls, done[-1].rows_done, done[-1].rows_due) == (
        result.calls,
        result.calls,
        100,
        100,
    )
    table.checkout_latest()
    table.update({"text": "text"}, "id < 30")
    result = compute(function, inputs=["id", "text"])
    assert (result.rows_compared, result.rows_due, result.commits) == (30, {}, 0)
    assert rows() == Counter(range(100))


def test_a_killed_worker_repeats_a_task_at_most(table, compute, logged, uri, tmp_path, connect):
    function, rows = logged

    def die(batch):
        if 55 in batch["id"].to_pylist() and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return function(batch)

    options = {"inputs": ["id"], "batch_size": 2, "commit_every": 10}
    if connect:  # one attempt for each task
        with pytest.raises(SparkLostError, match=r"a Python worker of Spark ended .* timeout= makes"):
            compute(die, **options)
    compute(die, **options)
    assert (tmp_path / "died").exists()
    assert sizes(uri) == EXPECTED
    assert set(rows()) == set(range(100))
    assert sum(rows().values()) <= 100 + (40 if connect else 10)
    assert staged(uri) == []


def test_what_an_attempt_has_staged_is_not_called_again(table, uri, logged):
    """A task stages now and then if `commit_every` is a duration; its next attempt goes on from there."""
    function, rows = logged

    def stop(batch):
        time.sleep(0.005)
        if batch["id"][0].as_py() == 60:
            raise KeyboardInterrupt
        return function(batch)

    def execute_twice(plan):
        (task,) = plan.divide(1)
        with pytest.raises(KeyboardInterrupt):
            task.run()
        assert len(staged(uri)) == 6
        object.__setattr__(task.settings.calls, "function", function)
        return [task.run()]

    options = {**SIZE, "inputs": "id", "commit_every": "1ms", "batch_size": 10}
    result = table.compute_columns(stop, **options, executor=execute_twice)
    assert (rows(), sizes(uri)) == (Counter(range(100)), EXPECTED)
    assert (result.rows_staged_before, result.calls, staged(uri)) == (60, 4, [])


def test_a_task_of_a_run_that_was_taken_over_stages_nothing(table, uri):
    def take_over(plan):
        (task,) = plan.divide(1)
        (lease,) = Path(uri, "_refs", "computations").glob("*")
        lease.with_name(lease.name.replace("-1.json", "-2.json")).write_bytes(lease.read_bytes())
        return [task.run()]

    with pytest.raises(LanceError, match="another run computes"):
        table.compute_columns(measure, **SIZE, executor=take_over)
    assert staged(uri) == []


def test_failed_rows_are_bisected(table, compute, uri):
    def fail(batch):
        if "xxxxx" in batch["text"].to_pylist():
            raise ValueError("five")
        return measure(batch)

    with pytest.raises(FailedRowsError, match=r"failed on 14 of 100 rows, and 0 may fail, at first with ValueError"):
        compute(fail)
    assert sizes(uri) == [None if size == 5 else size for size in EXPECTED]
    failures = str(Path(uri).parent / "_failed" / f"{Path(uri).stem}.size.lance")
    assert sorted(lance_core.dataset(failures).to_table()["row_id"].to_pylist()) == [
        i for i in range(100) if i % 7 == 5
    ]
    assert compute(fail).rows_due == {}
    assert compute(fail, retry_failed=True, max_failed_rows=14).rows_failed == 14
    assert compute(retry_failed=True).rows_due == {"failed": 14}
    assert (sizes(uri), lance_core.dataset(failures).count_rows()) == (EXPECTED, 0)


def test_what_was_staged_before_a_wrong_result_is_not_called_again(table, compute, logged, uri):
    function, rows = logged

    def wrong(batch):
        return pa.array([1.5] * batch.num_rows) if 99 in batch["id"].to_pylist() else function(batch)

    with pytest.raises(LanceError, match="SchemaError: the function returned other types"):
        compute(wrong, inputs=["id"])
    assert lance_core.dataset(uri).version == 1
    kept = sum(rows().values())
    result = lance_core.dataset(uri).compute_columns(function, **{**SIZE, "inputs": "id"})
    assert result.rows_staged_before >= 64
    assert sum(rows().values()) == kept + 100 - result.rows_staged_before
    assert (sizes(uri), staged(uri)) == (EXPECTED, [])


def test_one_object_in_each_worker(compute, table, uri, tmp_path):
    (tmp_path / "setups").mkdir()

    def load():
        (tmp_path / "setups" / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        return {"": 0}

    def look_up(batch, known):
        return pa.array([known.setdefault(text, len(text)) for text in batch["text"].to_pylist()])

    compute(look_up, setup=load)
    processes = [path.name.partition("-")[0] for path in (tmp_path / "setups").iterdir()]
    assert sizes(uri) == EXPECTED
    assert len(processes) == len(set(processes))


@pytest.mark.parametrize("is_async", [False, True], ids=["process", "coroutine"])
def test_a_call_that_takes_too_long_fails(table, compute, uri, is_async):
    def slow(batch):
        if "xxxxxx" in batch["text"].to_pylist():
            time.sleep(60)
        return measure(batch)

    async def slow_coroutine(batch):
        if "xxxxxx" in batch["text"].to_pylist():
            await asyncio.sleep(60)
        return measure(batch)

    options = {"where": "id < 10", "batch_size": 4, "max_failed_rows": 1, "timeout": 1.0}
    more = {"concurrency": 2} if is_async else {}
    result = compute(slow_coroutine if is_async else slow, **options, **more)
    assert (result.rows_computed, result.rows_failed) == (10, 1)
    assert sizes(uri)[:10] == [0, 1, 2, 3, 4, 5, None, 0, 1, 2]


def test_fragments_are_visible_before_the_end(table, compute, uri):
    seen, done = [], []

    def see(progress):
        seen.append(lance_core.dataset(uri).version)
        done.append(progress.rows_done)

    result = compute(visible_every=30, commit_every=8, progress=see)
    assert {1, 2, 3} <= set(seen)
    assert (done, done[-1]) == (sorted(done), 100)
    assert (result.commits, sizes(uri)) == (3, EXPECTED)
    assert compute(visible_every=2, commit_every="1h", code_version="2").commits > 1


def test_a_cleanup_removes_the_version_of_the_run(table, uri):
    """Tasks that begin later read its files nevertheless, and find the same rows as due."""

    def execute_later(plan):
        tasks = pickle.dumps(plan.divide(4))
        lance_core.dataset(uri).insert({"id": [200], "text": ["later"]})
        lance_core.dataset(uri).cleanup_old_versions(timedelta(0))
        return [task.run() for task in pickle.loads(tasks)]

    table.compute_columns(measure, **SIZE)
    table.optimize.compact_files()
    lance_core.dataset(uri).update({"text": "'other'"}, "id < 30")
    lance_core.dataset(uri).optimize.compact_files()
    result = table.compute_columns(measure, **SIZE, batch_size=8, executor=execute_later)
    assert (result.rows_due, result.rows_compared) == ({"inputs changed": 30}, 0)
    assert sizes(uri) == [5] * 30 + EXPECTED[30:] + [None]
    assert table.count_due_rows(**SIZE) == {"new": 1}


def test_a_branch(table, compute, spark, uri):
    table.create_branch("trial")
    assert compute(branch="trial").rows_computed == 100
    assert "size" not in lance_core.dataset(uri).schema.names
    table.branches.promote("trial")
    assert (compute().rows_due, sizes(uri)) == ({}, EXPECTED)


def test_another_run_is_rejected_meanwhile(table, compute, uri):
    def compute_too(batch):
        return lance_core.dataset(uri).compute_columns(measure, **SIZE)

    assert compute(compute_too, where="id < 8", max_failed_rows=8).rows_failed == 8
    failures = lance_core.dataset(str(Path(uri).parent / "_failed" / f"{Path(uri).stem}.size.lance")).to_table()
    assert all("RetryableConflictError: computation 'size'" in error for error in failures["error"].to_pylist())


def never(_):
    raise AssertionError


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"inputs": ["none"]}, SchemaError, "none"),
        ({"columns": pa.schema([pa.field("size", pa.int32(), nullable=False)])}, SchemaError, "must be nullable"),
        ({"columns": pa.schema([("id", pa.int64())])}, InvalidInputError, "'id' already, which .* does not own"),
        ({"code_version": ""}, InvalidInputError, "code_version must be a string"),
        ({"code_version": None}, InvalidInputError, "code_version must be a string"),
        ({"processes": 2}, InvalidInputError, "in the processes of the executor"),
        ({"executor": list}, InvalidInputError, "executor=: Spark's executors call the function"),
        ({"setup": partial(id, threading.Lock())}, InvalidInputError, "cannot be pickled for .* by setup="),
        ({"batch_size": 0}, InvalidInputError, "batch_size must be at least 1"),
    ],
)
def test_wrong_arguments_are_rejected_before_a_call(table, compute, uri, options, error, message):
    with pytest.raises(error, match=message):
        compute(never, **options)
    assert (lance_core.dataset(uri).version, staged(uri)) == (1, [])


def test_tables_that_cannot_be_computed(compute, uri, spark):
    write(uri, enable_stable_row_ids=False)
    with pytest.raises(UnsupportedError, match=r"migrate_to_stable_row_ids"):
        compute(never)
    with pytest.raises(InvalidInputError, match=re.escape("memory:t is in the memory")):
        pyspark_lance.compute_columns(spark, "memory:t", never, **SIZE)
