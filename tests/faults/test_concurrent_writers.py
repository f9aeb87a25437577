"""Processes of both libraries that append to one table: nothing is lost and nothing is doubled."""

import contextlib
import json
import sys
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core.commit.versions import list_versions, load_latest
from lance_core.store import open_store
from tests import processes
from tests.lance_core.commit.tables import SCHEMA

ROOT = Path(__file__).parents[2]


def table(uri, options=None):
    """A table of one row, and the description of the file with it."""
    ds = lance.write_dataset(pa.table({"a": [1]}, schema=SCHEMA), uri, storage_options=options)
    return json.dumps(ds.get_fragments()[0].metadata.to_json())


def start(library, uri, count, fragment, options=None):
    arguments = [
        sys.executable,
        "-m",
        "tests.faults.appender",
        library,
        uri,
        str(count),
        fragment,
        json.dumps(options or {}),
    ]
    return processes.running(arguments, talks=True)


def release(process):
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def run_all(contexts):
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(context) for context in contexts]
        for process in started:
            release(process)
        for process in started:
            out, _ = process.communicate(timeout=900)
            assert (process.returncode, out) == (0, "done\n")


def check(uri, expected_rows, options=None):
    store = open_store(uri, options)
    versions = list_versions(store)
    assert versions == list(range(1, expected_rows + 1))
    assert load_latest(store).fragments.ids == list(range(expected_rows))
    ds = lance.dataset(uri, storage_options=options)
    assert (ds.version, ds.count_rows(), ds.to_table().num_rows) == (expected_rows,) * 3
    ds.validate()


@pytest.mark.parametrize("count", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_on_a_local_disk(tmp_path, count):
    uri = str(tmp_path / "t")
    fragment = table(uri)
    libraries = ("ours", "ours", "pylance", "pylance") if count > 10 else ("ours", "pylance")
    run_all([start(library, uri, count, fragment) for library in libraries])
    check(uri, len(libraries) * count + 1)
    assert not [found.key for found in open_store(uri).list("") if "#" in found.key]


@pytest.mark.parametrize("count", [4, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.on_ceph])])
def test_on_s3(s3, count):
    uri = f"s3://{s3.new_bucket()}/t"
    fragment = table(uri, s3.storage_options)
    libraries = ("ours", "ours", "pylance", "pylance") if count > 4 else ("ours", "pylance")
    run_all([start(library, uri, count, fragment, s3.storage_options) for library in libraries])
    check(uri, len(libraries) * count + 1, s3.storage_options)


@pytest.mark.slow
def test_killed_writers_leave_a_whole_table(tmp_path):
    uri = str(tmp_path / "t")
    fragment = table(uri)
    for turn in range(8):
        with start("ours", uri, 1000, fragment) as process:
            release(process)
            time.sleep(0.01 + 0.013 * turn)
            process.kill()
            process.communicate(timeout=300)
        store = open_store(uri)
        check(uri, load_latest(store).version)
    run_all([start("pylance", uri, 3, fragment), start("ours", uri, 3, fragment)])
    check(uri, load_latest(open_store(uri)).version)
