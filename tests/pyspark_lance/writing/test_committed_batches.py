"""A batch that Spark repeats is not written twice, whatever became of the version that it made; without Spark."""

import itertools
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import Commit
from lance_core.errors import InvalidInputError, UndecidedWriteError
from pyspark_lance.datasource.options import SourceOptions
from pyspark_lance.datasource.streams import StreamWriter, _StreamMessage
from pyspark_lance.writing.committed_batches import BATCH, QUERY
from pyspark_lance.writing.job import find_earlier_write, prepare_write
from pyspark_lance.writing.options import WriteArguments

SCHEMA = pa.schema([("id", pa.int64())])


def batch(uri, number, *ids, query="q", overwrite=False, **options):
    """What Spark does with a micro-batch: tasks with one writer, the commit with another one."""
    given = SourceOptions({"path": uri, **options})
    tasks, commit = (StreamWriter(given, SCHEMA, overwrite=overwrite) for _ in range(2))
    rows = pa.record_batch([pa.array(ids, pa.int64())], schema=SCHEMA)
    report = tasks._job.task()(0, 0, iter([rows] if ids else []))
    commit.commit([_StreamMessage(report, tasks._job.writing.job, query)], number)


def ids(uri):
    found = sorted(lance.dataset(uri).to_table().column("id").to_pylist())
    assert found == sorted(lance_core.dataset(uri).to_table().column("id").to_pylist())
    return found


def clean(uri):
    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)


def others(uri, start=100):
    """What others do to the table before the batch is repeated: they append two rows, and compact it."""
    for number in (start, start + 1):
        lance.write_dataset(pa.table({"id": [number]}), uri, mode="append")
    lance.dataset(uri).optimize.compact_files()


def files(uri):
    """Data files that no version uses."""
    from pathlib import Path

    used = {
        file.path
        for one in lance.dataset(uri).versions()
        for part in lance.dataset(uri, version=one["version"]).get_fragments()
        for file in part.data_files()
    }
    return {path.name for path in Path(uri, "data").iterdir()} - used


def test_a_batch_is_committed_once_though_its_version_was_cleaned_up(uri):
    batch(uri, 0, 1, 2)
    batch(uri, 1, 3)
    others(uri)
    clean(uri)
    assert len(lance.dataset(uri).versions()) == 1
    batch(uri, 1, 3)
    assert ids(uri) == [1, 2, 3, 100, 101]
    assert not files(uri)
    batch(uri, 2, 4)
    batch(uri, 0, 5, query="another")
    assert ids(uri) == [1, 2, 3, 4, 5, 100, 101]
    assert lance.dataset(uri).config().keys() >= {"lance-dagster.idempotency.stream.q"}


@pytest.mark.parametrize("library", [lance, lance_core])
@pytest.mark.parametrize("cleans", [False, True])
def test_a_restore_after_the_batch(uri, library, cleans):
    batch(uri, 0, 1, 2)
    batch(uri, 1, 3)
    library.dataset(uri, version=1).restore()
    if cleans:
        clean(uri)
    batch(uri, 1, 3)
    # What pylance restores knows of the batches whose rows it has, and of no others, once the history was deleted.
    assert ids(uri) == ([1, 2, 3] if cleans and library is lance else [1, 2])


@pytest.mark.parametrize("library", [lance, lance_core])
def test_a_batch_on_a_branch(uri, library):
    batch(uri, 0, 1, 2)
    library.dataset(uri).create_branch("draft")
    batch(uri, 0, 1, 2, branch="draft")
    batch(uri, 1, 3, branch="draft")
    batch(uri, 1, 3)
    assert ids(uri) == [1, 2, 3]
    assert sorted(SourceOptions({"path": uri, "branch": "draft"}).open_or_none().to_table()["id"].to_pylist()) == [
        1,
        2,
        3,
    ]


def test_a_repeated_batch_in_complete_mode_is_skipped(uri):
    batch(uri, 0, 1, overwrite=True)
    batch(uri, 1, 2, overwrite=True)
    others(uri)
    clean(uri)
    batch(uri, 1, 2, overwrite=True)
    assert ids(uri) == [2, 100, 101]
    batch(uri, 2, 3, overwrite=True)
    assert ids(uri) == [3]


def test_a_sink_that_was_made_again_gets_later_batches(uri):
    batch(uri, 0, 1)
    lance_core.LanceDataset.drop(uri)
    lance.write_dataset(pa.table({"id": [50]}), uri)
    batch(uri, 1, 2)
    assert ids(uri) == [2, 50]


def test_an_undecided_batch_is_an_error(uri):
    """A batch of an earlier release, or of a sink that lost what it knew."""
    lance.write_dataset(pa.table({"id": [0]}), uri)
    properties = {QUERY: "q", BATCH: "3"}
    lance_core.write_dataset(pa.table({"id": [3]}), uri, mode="append", transaction_properties=properties)
    batch(uri, 3, 3)  # the history knows
    others(uri)
    clean(uri)
    with pytest.raises(UndecidedWriteError, match=r"batch 3 of query q .* version 5 was cleaned up.* undecidedBatch"):
        batch(uri, 3, 3)
    assert (ids(uri), files(uri)) == ([0, 3, 100, 101], set())
    batch(uri, 3, 3, undecidedBatch="skip")
    assert ids(uri) == [0, 3, 100, 101]
    batch(uri, 4, 4, undecidedBatch="write")
    batch(uri, 5, 5)
    assert ids(uri) == [0, 3, 4, 5, 100, 101]
    with pytest.raises(InvalidInputError, match="option undecidedBatch must be one of error, write, skip, not 'maybe'"):
        batch(uri, 5, 5, undecidedBatch="maybe")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_checkpoint_that_was_put_back_from_an_older_copy(uri, overwrite):
    """Batch 1 of the copy has the rows of two batches that are committed, and new ones."""
    for number in range(3):
        batch(uri, number, number, overwrite=overwrite)
    before = ids(uri)
    with pytest.raises(UndecidedWriteError, match=r"batch 1 of stream 'q' .* batch 2 is the last .* undecidedBatch"):
        batch(uri, 1, 1, 2, 3, overwrite=overwrite)
    assert (ids(uri), files(uri)) == (before, set())
    batch(uri, 1, 1, 2, 3, overwrite=overwrite, undecidedBatch="skip")
    assert (ids(uri), files(uri)) == (before, set())
    if not overwrite:  # the table goes back to the version that belongs to the copy
        lance_core.dataset(uri, version=1).restore()
    batch(uri, 1, 1, 2, 3, overwrite=overwrite, undecidedBatch="write")
    batch(uri, 1, 1, 2, 3, overwrite=overwrite, undecidedBatch="write")  # repeated after a crash
    batch(uri, 2, 4, overwrite=overwrite)
    assert ids(uri) == ([4] if overwrite else [0, 1, 2, 3, 4])


def test_an_older_batch_that_only_the_history_shows(uri):
    lance.write_dataset(pa.table({"id": [0]}), uri)
    properties = {QUERY: "q", BATCH: "3"}
    lance_core.write_dataset(pa.table({"id": [3]}), uri, mode="append", transaction_properties=properties)
    with pytest.raises(UndecidedWriteError, match=r"batch 2 of query q .* batch 3 is the last one.* undecidedBatch"):
        batch(uri, 2, 2)
    batch(uri, 2, 2, undecidedBatch="skip")
    assert (ids(uri), files(uri)) == ([0, 3], set())
    batch(uri, 2, 2, undecidedBatch="write")
    batch(uri, 3, 4)
    assert ids(uri) == [0, 2, 3, 4]


def test_batch_0_of_a_new_query_is_written(uri):
    """Also where versions are missing, and if its first batches have no rows."""
    lance.write_dataset(pa.table({"id": [0]}), uri)
    others(uri)
    clean(uri)
    before = lance.dataset(uri).version
    for number in range(3):
        batch(uri, number)
    assert lance.dataset(uri).version == before + 1, "one note of the first batch"
    batch(uri, 3, 1)
    assert ids(uri) == [0, 1, 100, 101]
    batch(uri, 0, 2, query="another")
    assert ids(uri) == [0, 1, 2, 100, 101]


def test_every_order_of_events(uri):
    """Batches, compactions, cleanups, restores of the latest version, and repeated batches: each row is there once."""
    steps = {
        "compact": lambda: others(uri, 200),
        "clean": lambda: clean(uri),
        "restore": lambda: lance.dataset(uri).restore(),
        "config": lambda: lance_core.dataset(uri).update_config({"mine": "1"}, replace=True),
    }
    number = 0
    batch(uri, 0, 0)
    for names in itertools.permutations(steps, 3):
        for name in names:
            steps[name]()
            batch(uri, number, number)
        number += 1
        batch(uri, number, number)
    assert sorted({*ids(uri)}) == [*range(number + 1), 200, 201]
    assert [one for one in ids(uri) if one < 200] == list(range(number + 1))


@pytest.mark.parametrize("rules", [{}, {"mode": "overwrite", "replace_where": "id = 1"}, {"merge_on": ("id",)}])
def test_a_key_is_known_though_its_version_was_cleaned_up(uri, rules):
    lance.write_dataset(pa.table({"id": [0, 1]}), uri)

    def write():
        from pyspark_lance.changing.key_merge import KeyMergeJob

        done, options = find_earlier_write(uri, WriteArguments(commit=Commit(idempotency_key=("day", "1")), **rules))
        if done is not None:
            return done
        job = prepare_write(SCHEMA, uri, options)
        job = KeyMergeJob.of(job) if rules.get("merge_on") else job
        return job.finish([job.task()(0, 0, iter(pa.table({"id": [1]}, SCHEMA).to_batches()))])

    write()
    first = ids(uri)
    others(uri)
    clean(uri)
    again = write()
    assert (again.deduplicated, again.rows_added, again.rows_written) == (True, None, 0)
    assert ids(uri) == sorted([*first, 100, 101])


@pytest.mark.parametrize("rules", [{}, {"mode": "overwrite", "replace_where": "id = 1"}, {"merge_on": ("id",)}])
def test_a_key_that_is_committed_concurrently_and_whose_version_is_cleaned_up(uri, rules):
    from pyspark_lance.changing.key_merge import KeyMergeJob

    lance.write_dataset(pa.table({"id": [0, 1]}), uri)
    _, options = find_earlier_write(uri, WriteArguments(commit=Commit(idempotency_key=("day", "1")), **rules))
    job = prepare_write(SCHEMA, uri, options)
    job = KeyMergeJob.of(job) if rules.get("merge_on") else job
    messages = [job.task()(0, 0, iter(pa.table({"id": [1]}, SCHEMA).to_batches()))]
    _, rival = find_earlier_write(uri, WriteArguments(commit=Commit(idempotency_key=("day", "1"))))
    made = prepare_write(SCHEMA, uri, rival)
    made.finish([made.task()(0, 0, iter(pa.table({"id": [7]}, SCHEMA).to_batches()))])
    lance.write_dataset(pa.table({"id": [100]}), uri, mode="append")
    dataset = lance.dataset(uri)
    dataset.tags.create("keep", 1)  # the version that the write began with
    dataset.cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    job.finish(messages)
    assert ids(uri) == [0, 1, 7, 100]
    assert not files(uri)
