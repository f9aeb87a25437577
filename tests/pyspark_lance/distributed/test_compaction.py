"""Compaction on a real session, classic or Connect, with pylance reading the result."""

import contextlib
import pathlib

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, LanceError, RetryableConflictError
from lance_core.maintenance import Compaction

# Two tasks: a fragment that may not be touched lies between them.
TWO_TASKS = {"excluded_fragment_ids": [3]}


@pytest.fixture
def table(uri):
    for start in range(0, 70, 10):
        lance_core.write_dataset(pa.table({"id": range(start, start + 10)}), uri, mode="append")
    return lance_core.dataset(uri)


@pytest.fixture
def and_then_delete(uri, monkeypatch):
    """Delete rows, given by a filter, when the tasks have run and are not committed yet."""
    import pyspark_lance.distributed.compaction as module

    run = module.run_tasks

    def arrange(predicate):
        def run_and_delete(*arguments):
            found = run(*arguments)
            lance_core.dataset(uri).delete(predicate)
            return found

        monkeypatch.setattr(module, "run_tasks", run_and_delete)

    return arrange


def ids_of(lance, uri):
    return lance.dataset(uri).to_table().column("id").to_pylist()


def data_file(dataset, fragment_id):
    (file,) = dataset.get_fragment(fragment_id).metadata.files
    return pathlib.Path(dataset.uri, "data", file.path)


def test_tasks_run_on_executors_and_are_committed_at_once(spark, table, uri, lance):
    table.delete("id = 5")
    calls = []
    report = pyspark_lance.compact(
        spark,
        uri,
        TWO_TASKS,
        transaction_properties={"why": "tidy"},
        progress=lambda done, total: calls.append((done, total)),
    )
    assert (report.tasks, report.failures) == (2, ())
    assert (report.metrics.fragments_removed, report.metrics.fragments_added) == (6, 2)
    assert report.dataset.version == lance.dataset(uri).version == table.version + 2  # ids are reserved first
    assert ids_of(lance, uri) == [*range(30, 40), *(n for n in range(30) if n != 5), *range(40, 70)]
    assert report.dataset.read_transaction(report.dataset.version).transaction_properties["why"] == "tidy"
    assert calls[-1] == (2, 2)
    assert calls == sorted(set(calls))


def test_a_plan_without_tasks_commits_nothing(spark, uri):
    before = lance_core.write_dataset(pa.table({"id": range(10)}), uri)
    report = pyspark_lance.compact(spark, uri)
    assert (report.tasks, report.metrics.fragments_removed) == (0, 0)
    assert lance_core.dataset(uri).version == report.dataset.version == before.version


def test_tasks_that_fail_are_reported_and_the_others_committed(spark, table, uri):
    lost = data_file(table, 1)
    saved = lost.read_bytes()
    lost.unlink()
    report = pyspark_lance.compact(spark, uri, TWO_TASKS)
    (failure,) = report.failures
    assert failure.fragment_ids == (0, 1, 2)
    assert lost.name in failure.error
    assert report.metrics.fragments_removed == 3
    lost.write_bytes(saved)
    left = [fragment.fragment_id for fragment in lance_core.dataset(uri).get_fragments()]
    assert left[:4] == [0, 1, 2, 3]
    assert len(left) == 5
    assert sorted(lance_core.dataset(uri).to_table().column("id").to_pylist()) == list(range(70))


def test_when_all_tasks_fail_that_is_an_error(spark, table, uri):
    for fragment_id in (1, 5):
        data_file(table, fragment_id).unlink()
    with pytest.raises(LanceError, match="all 2 tasks failed"):
        pyspark_lance.compact(spark, uri, TWO_TASKS)
    assert lance_core.dataset(uri).version == table.version


def data_files(uri):
    return sorted(path.name for path in pathlib.Path(uri, "data").iterdir())


def test_files_of_one_job_share_the_start_of_their_names(spark, table, uri):
    before = set(data_files(uri))
    report = pyspark_lance.compact(spark, uri, TWO_TASKS)
    new = sorted(set(data_files(uri)) - before)
    used = {file.path for one in report.dataset.get_fragments() for file in one.metadata.files}
    assert len(new) == 2
    assert set(new) <= used
    assert [name[32:35] for name in new] == ["-0-", "-1-"]
    assert len({name[:32] for name in new}) == 1


def test_an_interrupted_compaction_leaves_no_file(spark, table, uri, monkeypatch):
    import pyspark_lance.engine.executor_tasks as module

    run, before = module.run_job, data_files(uri)

    def interrupted(session, call, _timeout_s):
        run(session, call)
        assert len(data_files(uri)) == len(before) + 2
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pyspark_lance.compact(spark, uri, TWO_TASKS)
    assert data_files(uri) == before
    assert lance_core.dataset(uri).version == table.version


def test_a_concurrent_change_is_not_undone(spark, table, uri, lance, and_then_delete):
    and_then_delete("id = 5")
    report = pyspark_lance.compact(spark, uri, TWO_TASKS)
    assert (report.metrics.tasks_skipped, report.metrics.fragments_removed) == (1, 3)
    assert sorted(ids_of(lance, uri)) == [n for n in range(70) if n != 5]


def test_if_all_fragments_were_changed_that_is_an_error(spark, table, uri, lance, and_then_delete):
    and_then_delete("id % 10 = 5")
    with pytest.raises(RetryableConflictError):
        pyspark_lance.compact(spark, uri, TWO_TASKS)
    assert sorted(ids_of(lance, uri)) == [n for n in range(70) if n % 10 != 5]


def test_options_are_checked_before_anything_runs(spark, table, uri):
    with pytest.raises(InvalidInputError, match="compaction mode"):
        pyspark_lance.compact(spark, uri, {"compaction_mode": "magic"})


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("options", [{"aws_region": "x"}, None])
def test_orphan_files_are_deleted_with_the_same_storage_options(monkeypatch, uri, options, interrupted):
    import pyspark_lance.distributed.compaction as module

    for _ in range(2):
        lance_core.write_dataset(pa.table({"id": [1]}), uri, mode="append")
    tasks = Compaction.plan(lance_core.dataset(uri)).tasks
    asked = []

    def run(*_):
        if interrupted:
            raise KeyboardInterrupt
        return [], []

    monkeypatch.setattr(module, "run_tasks", run)
    monkeypatch.setattr(module, "delete_orphan_files", lambda *given, **_: asked.append(given[3]))
    with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        module.execute_tasks(None, uri, tasks, storage_options=options)
    assert asked == [options]


def test_tasks_of_a_table_at_a_relative_path(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = lance_core.write_dataset(pa.table({"id": [1, 2]}), "t.lance")
    table.insert(pa.table({"id": [3]}))
    results, failures = pyspark_lance.execute_tasks(spark, "t.lance", Compaction.plan(table).tasks)
    assert (len(results), failures) == (1, [])


def test_storage_options_are_not_shown():
    from pyspark_lance.distributed.compaction import _Tasks

    tasks = _Tasks(
        uri="x", job="j", read_version=1, fragment_ids=(), options=None, storage_options={"secret": "hidden"}
    )
    assert "hidden" not in repr(tasks)


def test_progress_is_reported_while_tasks_run(spark, connect):
    from pyspark_lance.engine.executor_tasks import _watch_progress

    pauses = (0.5, 1.5, 6) if connect else (0.3, 0.9, 2)

    def sleeps(batches):
        import time

        for batch in batches:
            # Spark's status takes note of the end of a task at most every tenth of a second, else at the next one's;
            # a Connect server reports every two seconds.
            time.sleep(pauses[batch.column(0)[0].as_py()])
            yield batch

    calls = []
    with _watch_progress(spark, 3, lambda done, total: calls.append((done, total))):
        spark.range(0, 3, 1, 3).mapInArrow(sleeps, "id long").collect()
    assert calls
    assert set(calls) <= {(1, 3), (2, 3)}
    assert calls == sorted(set(calls))
