"""How far a write looks back for one that has the same `once` property."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.commit import versions
from lance_core.errors import InvalidInputError
from pyspark_lance.source_options import SourceOptions
from pyspark_lance.write_job import WriteOptions, already_done, prepare_write

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
    found, load = [], versions.load_version_record

    def noted(store, version):
        found.append(version)
        return load(store, version)

    monkeypatch.setattr(versions, "load_version_record", noted)
    return found


def test_the_look_back_ends_at_the_hint(table, opened):
    done, _ = already_done(table, WriteOptions(once=TOKEN))
    assert (done.version, done.deduplicated, opened) == (3, True, [9, 8, 7, 6, 5, 4, 3])
    opened.clear()
    done, options = already_done(table, WriteOptions(once=TOKEN, once_since=8))
    assert (done, options.read_version, opened) == (None, 10, [9])
    opened.clear()
    for since in (10, 11):
        assert already_done(table, WriteOptions(once=TOKEN, once_since=since))[0] is None
    assert already_done(table, WriteOptions(once=TOKEN, read_version=10))[0] is None
    assert opened == []


def test_a_commit_after_the_look_is_found_by_the_commit(table):
    _, options = already_done(table, WriteOptions(once=("token", "b"), once_since=8))
    lance_core.write_dataset(ROWS, table, mode="append", transaction_properties={"token": "b"})
    job = prepare_write(ROWS.schema, table, options)
    assert job.base_version == 10
    result = job.finish([job.task().run(0, 0, iter(ROWS.to_batches())).to_bytes()])
    assert (result.version, result.deduplicated) == (11, True)
    assert lance_core.dataset(table).count_rows() == 11


def test_a_table_that_is_made_after_the_look_is_found_by_the_commit(uri):
    _, options = already_done(uri, WriteOptions(once=TOKEN))
    lance_core.write_dataset(ROWS, uri, transaction_properties=dict([TOKEN]))
    job = prepare_write(ROWS.schema, uri, options)
    result = job.finish([job.task().run(0, 0, iter(ROWS.to_batches())).to_bytes()])
    assert (result.version, result.deduplicated) == (1, True)
    assert lance_core.dataset(uri).count_rows() == 1


def test_the_hint_is_an_option(uri):
    options = SourceOptions({"path": uri, "once": "token=a", "once_since": "8"}).write_options(overwrite=False)
    assert (options.once, options.once_since) == (TOKEN, 8)
    with pytest.raises(InvalidInputError, match=r"once_since .* once, which is not given"):
        WriteOptions(once_since=8)
