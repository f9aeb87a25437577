"""Applications of Spark: two on the same tables, one whose driver ends at each of its steps, one on a bucket."""

import datetime as dt
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from tests import processes

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("application_driver.py")


@pytest.fixture
def lake(tmp_path):
    counted = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    lance_core.write_dataset(pa.table({"key": range(10), "n": [0] * 10}, schema=counted), tmp_path / "counted.lance")
    appended = pa.schema([("name", pa.string()), ("number", pa.int64())])
    lance_core.write_dataset(appended.empty_table(), tmp_path / "appended.lance")
    return tmp_path


def run(*arguments, **env):
    return processes.run([sys.executable, str(DRIVER), *map(str, arguments)], env={**os.environ, **env})


def check_files(table):
    """After maintenance there are the files of the table, and no others."""
    table.cleanup_old_versions(older_than=dt.timedelta(0), delete_unverified=True)
    left = {path.name for path in Path(table.uri, "data").iterdir()}
    assert left == {file.path for one in table.get_fragments() for file in one.metadata.files}
    assert not [path for path in Path(table.uri).rglob("*") if "tmp" in path.name]
    table.validate()


def test_nothing_is_lost(lake):
    """LANCE_TEST_MINUTES says for how long; half a minute without it."""
    seconds = 60 * float(os.environ.get("LANCE_TEST_MINUTES", "0.5"))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, "works", lake, name, seconds) for name in ("one", "other")]
        ended = [one.result() for one in both]
    assert [one.returncode for one in ended] == [0, 0], [one.stderr[-3000:] for one in ended]
    done = [json.loads(one.stdout.splitlines()[-1]) for one in ended]
    print(done)
    assert all(one["merges"] and one["appends"] for one in done)
    counted = lance_core.dataset(lake / "counted.lance")
    rows = counted.to_table().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    assert sum(row["n"] for row in rows) == 5 * sum(one["merges"] for one in done)
    appended = lance_core.dataset(lake / "appended.lance")
    expected = [(name, i) for name, one in zip(("one", "other"), done, strict=True) for i in range(one["appends"])]
    assert sorted((row["name"], row["number"]) for row in appended.to_table().to_pylist()) == sorted(expected)
    check_files(counted)
    check_files(appended)


def test_a_driver_that_ends_leaves_one_commit_or_none(lake):
    table = lake / "counted.lance"
    kept = {row["key"]: row["n"] for row in lance_core.dataset(table).to_table().to_pylist()}
    merged = kept | dict.fromkeys(range(5, 10), -1) | dict.fromkeys(range(10, 15), -2)
    outcomes = []
    step = 0
    while True:
        step += 1
        done = run("ends", lake, step)
        dataset = lance_core.dataset(table)
        rows = {row["key"]: row["n"] for row in dataset.to_table().to_pylist()}
        assert dataset.count_rows() == len(rows)
        assert rows in (kept, merged), (step, rows)
        outcomes.append(rows == merged)
        check_files(dataset)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        if rows == merged:
            dataset.delete("key >= 10")
            dataset.update({"n": "0"})
            check_files(lance_core.dataset(table))
        assert step < 30
    print(step - 1, "steps", outcomes)
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert step > 2


def test_secrets_of_a_bucket_are_nowhere(s3, tmp_path):
    options = s3.storage_options
    (tmp_path / "events").mkdir()
    done = run("on_s3", tmp_path, f"s3://{s3.new_bucket()}/lake", STORAGE_OPTIONS=json.dumps(options))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    text = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert "SparkListenerSQLExecutionStart" in text
    for secret in (options["aws_access_key_id"], options["aws_secret_access_key"]):
        assert secret not in text
        assert secret not in done.stdout
        assert secret not in done.stderr
