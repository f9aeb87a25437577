"""How far a write looks back for one that has the same `idempotency_key` property."""

from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core import Commit
from lance_core.commit import history
from lance_core.errors import InvalidInputError, RetryableConflictError
from pyspark_lance.changing.key_merge import KeyMergeJob
from pyspark_lance.datasource.options import SourceOptions
from pyspark_lance.writing.job import find_earlier_write, prepare_write
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.write import write

ROWS = pa.table({"id": [1]})
TOKEN = ("token", "a")


@pytest.fixture
def table(uri):
    """Ten versions; the third has the token."""
    for version in range(1, 11):
        properties = dict([TOKEN]) if version == 3 else None
        lance_core.write_dataset(ROWS, uri, mode="append", transaction_properties=properties)
    return uri


@pytest.fixture
def opened(monkeypatch):
    """The versions that were read on the way back."""
    found, load = [], history.load_version_header

    def noted(store, version):
        found.append(version)
        return load(store, version)

    monkeypatch.setattr(history, "load_version_header", noted)
    return found


def test_the_search_for_a_key_ends_at_idempotency_since(table, opened):
    done, _ = find_earlier_write(table, WriteArguments(commit=Commit(idempotency_key=TOKEN)))
    assert (done.version, done.deduplicated, opened) == (3, True, [9, 8, 7, 6, 5, 4, 3])
    opened.clear()
    done, options = find_earlier_write(table, WriteArguments(commit=Commit(idempotency_key=TOKEN), idempotency_since=8))
    assert (done, options.read_version, opened) == (None, 10, [9])
    opened.clear()
    for since in (10, 11):
        assert (
            find_earlier_write(table, WriteArguments(commit=Commit(idempotency_key=TOKEN), idempotency_since=since))[0]
            is None
        )
    assert find_earlier_write(table, WriteArguments(commit=Commit(idempotency_key=TOKEN), read_version=10))[0] is None
    assert opened == []


def test_a_commit_after_the_search_is_found_by_the_commit(table):
    _, options = find_earlier_write(
        table, WriteArguments(commit=Commit(idempotency_key=("token", "b")), idempotency_since=8)
    )
    lance_core.write_dataset(ROWS, table, mode="append", transaction_properties={"token": "b"})
    job = prepare_write(ROWS.schema, table, options)
    assert job.base_version == 10
    result = job.finish([job.task().run(0, 0, iter(ROWS.to_batches())).to_bytes()])
    assert (result.version, result.deduplicated) == (11, True)
    assert lance_core.dataset(table).count_rows() == 11


@pytest.mark.parametrize("rules", [{"mode": "overwrite", "replace_where": "id = 1"}, {"merge_on": ("id",)}])
@pytest.mark.parametrize("changes_rows", [False, True])
def test_a_commit_after_the_search_is_found_by_a_commit_that_replaces_rows(uri, rules, changes_rows):
    lance_core.write_dataset(ROWS, uri)
    _, options = find_earlier_write(uri, WriteArguments(commit=Commit(idempotency_key=TOKEN), **rules))
    job = prepare_write(ROWS.schema, uri, options)
    job = KeyMergeJob.of(job) if options.merge_on else job
    messages = [job.task()(0, 0, iter(ROWS.to_batches()))]
    if changes_rows:  # the same rows, so that the replacement is computed again on a version after the token's
        lance_core.dataset(uri).update({"id": "1"})
    lance_core.write_dataset(pa.table({"id": [7]}), uri, mode="append", transaction_properties=dict([TOKEN]))
    if changes_rows:
        lance_core.dataset(uri).update({"id": "1"}, where="id = 1")
    before = lance_core.dataset(uri)
    result = job.finish(messages)
    assert result.version == (3 if changes_rows else 2)
    assert lance_core.dataset(uri).version == before.version
    versions = [before.checkout_version(number) for number in range(1, before.version + 1)]
    used = {file.path for one in versions for part in one.get_fragments() for file in part.data_files()}
    assert {path.name for path in Path(uri, "data").iterdir()} == used


@pytest.mark.parametrize("rules", [{}, {"mode": "overwrite", "replace_where": "id = 1"}, {"merge_on": ("id",)}])
def test_a_commit_that_finds_itself_keeps_its_files(uri, rules):
    """Spark may call the commit again whose answer was lost."""
    lance_core.write_dataset(ROWS, uri)
    job = prepare_write(ROWS.schema, uri, WriteArguments(commit=Commit(idempotency_key=TOKEN), **rules))
    job = KeyMergeJob.of(job) if rules.get("merge_on") else job
    messages = [job.task()(0, 0, iter(pa.table({"id": [1]}).to_batches()))]
    for _ in range(2):
        assert job.finish(messages).version == 2
        lance_core.dataset(uri).validate()
        assert lance_core.dataset(uri).to_table()["id"].to_pylist() == ([1] if rules else [1, 1])


@pytest.mark.parametrize("rules", [{"mode": "overwrite", "replace_where": "id = 1"}, {"merge_on": ("id",)}])
def test_a_table_that_another_writer_creates_is_neither_replaced_nor_appended_to(uri, rules):
    job = prepare_write(ROWS.schema, uri, WriteArguments(**rules))
    messages = [job.task().run(0, 0, iter(ROWS.to_batches())).to_bytes()]
    other = lance_core.write_dataset(pa.table({"id": [1, 2]}), uri)
    with pytest.raises(RetryableConflictError, match="was created by another writer"):
        job.finish(messages)
    assert lance_core.dataset(uri).version == 1
    assert lance_core.dataset(uri).to_table() == other.to_table()


def test_a_table_that_is_created_after_the_search_is_found_by_the_commit(uri):
    _, options = find_earlier_write(uri, WriteArguments(commit=Commit(idempotency_key=TOKEN)))
    lance_core.write_dataset(ROWS, uri, transaction_properties=dict([TOKEN]))
    job = prepare_write(ROWS.schema, uri, options)
    result = job.finish([job.task().run(0, 0, iter(ROWS.to_batches())).to_bytes()])
    assert (result.version, result.deduplicated) == (1, True)
    assert lance_core.dataset(uri).count_rows() == 1


def test_idempotency_since_is_an_option(uri):
    options = SourceOptions({"path": uri, "idempotency_key": "token=a", "idempotency_since": "8"}).write_options(
        overwrite=False
    )
    assert (options.commit.idempotency_key, options.idempotency_since) == (TOKEN, 8)
    with pytest.raises(InvalidInputError, match=r"idempotency_since .*: give idempotency_key as well"):
        WriteArguments(idempotency_since=8)


def test_arguments_that_need_each_other_are_checked_when_all_are_known(uri):
    # The frame is looked at after the arguments.
    with pytest.raises(InvalidInputError, match="df must be a Spark DataFrame"):
        write(None, uri, idempotency_key=TOKEN, idempotency_since=3)
    with pytest.raises(InvalidInputError, match="give idempotency_key as well"):
        write(None, uri, idempotency_since=3)
