"""Applications of Spark: two on the same tables, one whose driver ends at each of its steps, one on a bucket."""

import datetime as dt
import json
import os
import shutil
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


def check_files(table, claimed=()):
    """After maintenance there are the files of the latest version and of those that a branch was forked from, and no others.

    A restore that was killed may have claimed the version that it restores.
    """
    table.cleanup_old_versions(older_than=dt.timedelta(0), delete_unverified=True)
    needed = {one["parent_version"] for one in table.branches.list().values()} | {table.latest_version}
    versions = {one["version"] for one in table.versions()}
    assert needed <= versions <= needed | set(claimed)
    kept = [table.checkout_version(version) for version in versions]
    fragments = [one.metadata for version in kept for one in version.get_fragments()]
    assert names(table, "data") == {file.path for one in fragments for file in one.files}
    assert names(table, "_deletions") == {
        one.deletion_file.path(one.id).split("/")[-1] for one in fragments if one.deletion_file
    }
    indices = {path.parent.name for path in Path(table.uri, "_indices").rglob("*") if path.is_file()}
    assert indices == {index["uuid"] for version in kept for index in version.list_indices()}
    assert not [path for path in Path(table.uri).rglob("*") if "tmp" in path.name]
    table.validate()


def names(table, folder):
    """The names in a folder of a table."""
    path = Path(table.uri, folder)
    return {one.name for one in path.iterdir()} if path.exists() else set()


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


STATEMENTS = {
    "merge": "MERGE INTO lake.counted AS t USING (SELECT id AS key FROM range(5, 15)) AS s ON t.key = s.key"
    " WHEN MATCHED THEN UPDATE SET n = -1 WHEN NOT MATCHED THEN INSERT (key, n) VALUES (s.key, -2)",
    "insert": "INSERT INTO lake.counted SELECT id + 20, 1 FROM range(5)",
    "overwrite": "INSERT OVERWRITE lake.counted SELECT id + 20, 1 FROM range(5)",
    "replace": "INSERT INTO lake.counted REPLACE WHERE key < 7 SELECT id, 9 FROM range(3)",
    "update": "UPDATE lake.counted SET n = key * 2 WHERE key IN (SELECT id + 3 FROM range(5))",
    "delete": "DELETE FROM lake.counted WHERE key IN (SELECT id * 2 FROM range(5))",
    "add column": "ALTER TABLE lake.counted ADD COLUMNS (note string)",
    "retype": "ALTER TABLE lake.counted ALTER COLUMN n TYPE int",
    "optimize": "CALL lake.system.compact('counted')",
    "index": "CALL lake.system.create_scalar_index('counted', 'key', 'BTREE', name => 'by_key')",
    "restore": "CALL lake.system.restore('counted@v1')",
    "promote": "CALL lake.system.promote_branch('counted', 'edits')",
}


def state(folder):
    """What a statement may change: the schema and the rows, how many fragments hold them, and the indices."""
    table = lance_core.dataset(folder / "counted.lance")
    rows = sorted(map(str, table.to_table().to_pylist()))
    return str(table.schema), rows, len(table.get_fragments()), [one["name"] for one in table.list_indices()]


def prepared(folder):
    """A table of some fragments, with deleted rows and a branch that has others."""
    table = lance_core.dataset(folder / "counted.lance")
    for first in (10, 12):
        lance_core.write_dataset(
            pa.table({"key": [first, first + 1], "n": [0, 0]}, schema=table.schema), table.uri, mode="append"
        )
    table = lance_core.dataset(table.uri)
    table.delete("key = 11")
    branch = table.create_branch("edits")
    branch.insert(pa.table({"key": [30], "n": [5]}, schema=table.schema), mode="append")
    return folder


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_driver_that_ends_leaves_one_commit_or_none(lake, tmp_path_factory, statement):
    source = prepared(lake)
    before, outcomes = state(source), []
    while not outcomes or outcomes[-1][0] != 0:
        folder = tmp_path_factory.mktemp("lake") / "lake"
        shutil.copytree(source, folder)
        done = run("ends", folder, len(outcomes) + 1, STATEMENTS[statement])
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
        outcomes.append((done.returncode, state(folder)))
        check_files(lance_core.dataset(folder / "counted.lance"), claimed={1} if statement == "restore" else ())
        assert state(folder) == outcomes[-1][1]
        assert len(outcomes) < 60
    after = outcomes[-1][1]
    print(len(outcomes) - 1, "steps", [found == after for _, found in outcomes])
    assert after != before
    assert [found for _, found in outcomes if found not in (before, after)] == []
    assert outcomes[0][1] == before
    assert len(outcomes) > 2


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
