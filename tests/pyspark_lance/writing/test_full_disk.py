"""A file system without space: one error, no version, and no file after the next maintenance."""

import contextlib
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import DatasetNotFoundError, LanceError, StoreError
from tests.processes import run

pytestmark = pytest.mark.usefixtures("late_files")

PAGE = 4096
ROOM = 2 << 20
NEW = "select id, unhex(sha2(cast(id as string), 512)) as b from range({}, {}, 1, 2)"


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB."""
    if sys.platform != "linux" or os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root of a Linux can mount a file system")
    place = tmp_path / "disk"
    place.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", place]).returncode:
        pytest.skip("this container may not mount a file system")
    yield place
    run(["umount", place], check=True)


@pytest.fixture
def table(disk):
    for start in (0, 2000):
        ids = pa.array(range(start, start + 2000))
        rows = pa.table({"id": ids, "b": [os.urandom(64) for _ in ids]})
        lance_core.write_dataset(rows, disk / "t.lance", mode="append" if start else "create")
    clean(disk / "t.lance")
    return str(disk / "t.lance")


def clean(uri):
    lance_core.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


def leave(disk, pages):
    """Fill the file system but for some pages."""
    (disk / "ballast").unlink(missing_ok=True)
    with (disk / "ballast").open("wb") as file:
        free = shutil.disk_usage(disk).free - pages * PAGE
        os.posix_fallocate(file.fileno(), 0, free)


def state(uri):
    files = {path for path in Path(uri).rglob("*") if path.is_file()}
    dataset = lance_core.dataset(uri)
    return dataset.version, dataset.to_table(columns=["id", "b"]), files


VERBS = {
    "append": lambda spark, uri: pyspark_lance.write(spark.sql(NEW.format(4000, 8000)), uri, mode="append"),
    "overwrite": lambda spark, uri: pyspark_lance.write(spark.sql(NEW.format(0, 4000)), uri, mode="overwrite"),
    "format": lambda spark, uri: spark.sql(NEW.format(0, 4000)).write.format("lance").mode("append").save(uri),
    "merge": lambda spark, uri: pyspark_lance.merge(spark.sql(NEW.format(2000, 6000)), uri, on="id"),
    "update": lambda spark, uri: pyspark_lance.sql(spark, f"UPDATE lance.`{uri}` SET b = unhex(sha2(b, 512))"),
    "compact": pyspark_lance.compact,
    "index": lambda spark, uri: pyspark_lance.create_scalar_index(spark, uri, "b", "BTREE"),
}


# Writes wait for the files of tasks that may come later.
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=() if verb in ("compact", "index") else pytest.mark.slow) for verb in VERBS]
)
def test_a_full_disk_leaves_no_version_and_no_file(spark, disk, table, verb):
    before = state(table)
    leave(disk, 16)
    with pytest.raises(Exception, match="No space left") as caught:
        VERBS[verb](spark, table)
    if verb != "format":  # whose errors are Spark's
        assert isinstance(caught.value, LanceError if verb in ("compact", "index") else StoreError)
        assert str(caught.value).count("No space left") == 1
    clean(table)
    assert state(table) == before
    (disk / "ballast").unlink()
    VERBS[verb](spark, table)
    assert lance_core.dataset(table).version == before[0] + 1 + (verb == "compact")


def test_a_disk_that_is_full_at_any_step_of_an_append(spark, disk, table):
    frame, failed = spark.sql(NEW.format(4000, 4001)).coalesce(1), 0
    for pages in range(20):
        before = state(table)
        leave(disk, pages)
        with contextlib.suppress(StoreError):
            pyspark_lance.write(frame, table, mode="append")
            break
        clean(table)
        assert state(table) == before
        failed += 1
    assert failed > 2
    assert lance_core.dataset(table).count_rows() == 4001


def test_a_table_that_does_not_fit_is_none(spark, disk):
    leave(disk, 16)
    with pytest.raises(StoreError, match="No space left"):
        pyspark_lance.write(spark.sql(NEW.format(0, 4000)), str(disk / "t.lance"))
    with pytest.raises(DatasetNotFoundError):
        lance_core.dataset(disk / "t.lance")
    assert [path.name for path in disk.rglob("*") if path.is_file()] == ["ballast"]
