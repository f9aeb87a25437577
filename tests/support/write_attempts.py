"""Attempts to write a small table."""

import lance
import pyarrow as pa

import lance_core
from lance_core import Commit, WriteAttempt, commit_fragments, write_fragments

TOKEN = ("app.token", "x")


def rows(*values, part="a"):
    return pa.table({"p": pa.array([part] * len(values), pa.string()), "v": pa.array(values, pa.int64())})


def attempt(number, *earlier, token=TOKEN, **options):
    number = number if isinstance(number, tuple) else (number,)
    return WriteAttempt(token=token, number=number, earlier=earlier, **options)


def write(uri, data, write_attempt, *, mode="append", base=None, **options):
    """Write a frame as one attempt; `base` is the version that the writer has seen."""
    existing = None if base is None else base
    schema = existing.lance_schema_bytes if existing is not None and mode != "overwrite" else None
    fragments = write_fragments(data, uri, dataset_schema=schema) if data.num_rows else []
    return commit_fragments(
        uri,
        fragments,
        data.schema,
        mode=mode,
        read_version=0 if base is None else base.version,
        commit=Commit(write_attempt=write_attempt),
        **options,
    )


def values(uri):
    ours = lance_core.dataset(uri).to_table().column("v").to_pylist()
    theirs = lance.dataset(uri).to_table().column("v").to_pylist()
    assert ours == theirs
    assert lance_core.dataset(uri).count_rows() == len(ours)
    return sorted(ours)


def latest(table):
    return lance_core.dataset(table.uri)


def theirs(uri, call):
    call(lance.dataset(uri))


def ours(uri, call):
    call(lance_core.dataset(uri))


def compact(dataset):
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
