"""What `test_cluster.py` runs as the driver of a standalone cluster: `python cluster_driver.py <what> <master> <folder>`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest


def session(master: str, **config: str):
    """A session of the cluster."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("lance").config("spark.ui.enabled", "false")
    given = {
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "OFF",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
        **config,
    }
    for key, value in given.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver is one of them
        time.sleep(0.2)
    return spark


def kills_its_executor(batches):
    """Rows as they are; the first attempt of one task ends the executor that it runs in."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for number, batch in enumerate(batches):
        yield batch
        if (
            number == 1
            and context.partitionId() == 1
            and context.attemptNumber() == 0
            and context.stageAttemptNumber() == 0
        ):
            os.kill(_executor(), signal.SIGKILL)
            time.sleep(60)


def _executor() -> int:
    """The JVM above this worker."""
    pid = os.getpid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def killed(master: str, folder: Path) -> None:
    """An executor is killed while its task writes; and one that holds a part of a shuffle."""
    import lance_core
    import pyspark_lance

    spark = session(master)
    uri = str(folder / "killed.lance")
    frame = spark.range(0, 100_000, 1, 4)
    result = pyspark_lance.write(frame.mapInArrow(kills_its_executor, "id long"), uri)
    check(uri, result.version, range(100_000))
    shuffled = spark.range(100_000, 200_000, 1, 4).repartition(4, "id")  # its parts are lost with the executor
    result = pyspark_lance.write(shuffled.mapInArrow(kills_its_executor, "id long"), uri)
    check(uri, result.version, range(200_000))
    merged = pyspark_lance.merge(spark.range(199_990, 200_010), uri, on="id")
    assert (merged.rows_inserted, merged.rows_updated, merged.version) == (10, 10, 3)
    assert lance_core.dataset(uri).latest_version == 3
    spark.stop()


def waits_once(batches):
    """Rows as they are; the first attempt of one task does not end by itself."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for batch in batches:
        yield batch
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            time.sleep(600)


def speculated(master: str, folder: Path) -> None:
    """Another attempt of a slow task finishes first on the other worker: the table has its rows once."""
    import pyspark_lance

    settings = {"": "true", ".interval": "100ms", ".quantile": "0.5", ".multiplier": "1.1", ".minTaskRuntime": "100ms"}
    spark = session(master, **{f"spark.speculation{key}": value for key, value in settings.items()})
    uri = str(folder / "speculated.lance")
    frame = spark.range(0, 100_000, 1, 4)
    result = pyspark_lance.write(frame.mapInArrow(waits_once, "id long"), uri)
    assert any("-1-1-" in file.path for one in result.dataset.get_fragments() for file in one.metadata.files)
    check(uri, result.version, range(100_000))
    assert result.version == 1
    spark.stop()


def cancelled(master: str, folder: Path) -> None:
    """Somebody cancels the job of a write while it writes: nothing is committed, and the next write is whole."""
    import pyspark_lance

    spark = session(master)
    uri = str(folder / "cancelled.lance")
    pyspark_lance.write(spark.range(10), uri)
    before = len(list(Path(uri, "data").iterdir()))

    def cancel() -> None:
        while len(list(Path(uri, "data").iterdir())) == before:
            time.sleep(0.1)
        spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(Exception, match="cancel"):
        pyspark_lance.write(spark.range(0, 100_000, 1, 4).mapInArrow(waits_once, "id long"), uri)
    canceller.join()
    check(uri, 1, range(10))
    check(uri, pyspark_lance.write(spark.range(10, 20), uri).version, range(20))
    spark.stop()


def connected(remote: str, folder: Path) -> None:
    """Over a Connect server beside the cluster: the library is shipped, an executor is killed, a merge follows."""
    from pyspark.sql import SparkSession

    import pyspark_lance

    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.addArtifacts(archive(folder), pyfile=True)
    pyspark_lance.register(spark)
    uri = str(folder / "connected.lance")
    frame = spark.range(0, 100_000, 1, 4)
    result = pyspark_lance.write(frame.mapInArrow(kills_its_executor, "id long"), uri)
    check(uri, result.version, range(100_000))
    merged = pyspark_lance.merge(spark.range(99_990, 100_010), uri, on="id")
    assert (merged.rows_inserted, merged.rows_updated, merged.version) == (10, 10, 2)
    spark.range(100_010, 100_020).write.format("lance").mode("append").save(uri)
    assert spark.read.format("lance").load(uri).count() == pyspark_lance.read(spark, uri).count() == 100_020
    check(uri, 3, range(100_020))
    spark.stop()


def shipped(master: str, folder: Path) -> None:
    """Executors that have no such package get it from the driver."""
    import lance_core
    import pyspark_lance

    spark = session(master)
    uri = str(folder / "shipped.lance")
    with pytest.raises(Exception, match="No module named"):
        pyspark_lance.write(spark.range(10), uri)
    spark.sparkContext.addPyFile(archive(folder))
    pyspark_lance.register(spark)
    assert pyspark_lance.write(spark.range(10), uri).rows_written == 10
    spark.range(5, 15).write.format("lance").mode("append").option("merge_on", "id").save(uri)
    assert spark.read.format("lance").load(uri).count() == 15
    assert pyspark_lance.read(spark, uri).where("id > 12").count() == 2
    assert lance_core.dataset(uri).latest_version == 2
    spark.stop()


SECRET = "s3cr3t-of-the-lake"


def statements(master: str, folder: Path) -> None:
    """SQL whose jobs lose an executor each; the storage options are in nothing that Spark writes or shows."""
    from urllib.request import urlopen

    import lance_core
    import pyspark_lance

    log = folder / "events"
    log.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
    }
    spark = session(master, **settings, **{"spark.ui.enabled": "true", "spark.ui.port": "0"})
    options = {"aws_secret_access_key": SECRET}
    pyspark_lance.register_catalog(spark, "lake", folder / "lake", storage_options=options)
    uri = str(folder / "lake" / "a" / "t.lance")

    def sql(statement: str, **params: object) -> list[tuple[object, ...]]:
        return [tuple(row) for row in pyspark_lance.sql(spark, statement, **params).collect()]

    def breaking(first: int, last: int) -> None:
        frame = spark.range(first, last, 1, 4).mapInArrow(kills_its_executor, "id long")
        frame.createOrReplaceTempView("breaking")

    sql("CREATE TABLE lake.a.t (id BIGINT, x INT)")
    breaking(0, 100_000)
    assert sql("INSERT INTO lake.a.t SELECT id, cast(id % 7 AS int) FROM breaking") == [(100_000, 100_000)]
    check(uri, 2, range(100_000))
    breaking(99_990, 199_990)
    merged = sql(
        "MERGE INTO lake.a.t AS t USING breaking AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET x = -1"
        " WHEN NOT MATCHED THEN INSERT (id, x) VALUES (s.id, 0)"
    )
    assert merged == [(100_000, 10, 0, 99_990)]
    check(uri, 3, range(199_990))
    assert sql("UPDATE lake.a.t SET x = :x WHERE id IN (SELECT max(id) FROM lake.a.t)", x=9) == [(1,)]
    assert sql("DELETE FROM lake.a.t WHERE id >= 100000 AND x <> 9") == [(99_989,)]
    assert sql("SELECT count(*), sum(x) FILTER (WHERE x IN (-1, 9)) FROM lake.a.t") == [(100_001, -1)]
    assert sql("SELECT count(*) FROM lake.a.t VERSION AS OF 2 JOIN lake.a.t@v3 AS b USING (id)") == [(100_000,)]
    sql("CALL lake.system.create_scalar_index('a.t', 'id', 'BTREE', name => 'by_id')")
    sql("CALL lake.system.compact('a.t')")
    assert sql("SELECT x FROM lake.a.t WHERE id = 199989") == [(9,)]
    lance_core.dataset(uri).validate()
    pyspark_lance.sql(spark, "SELECT * FROM lake.a.t").explain(extended=True)
    for page in ("environment/", "SQL/", "jobs/", "stages/", "SQL/execution/?id=1"):
        with urlopen(f"{spark.sparkContext.uiWebUrl}/{page}", timeout=60) as answer:
            assert SECRET.encode() not in answer.read(), page
    spark.stop()
    files = [path for path in log.rglob("*") if path.is_file()]
    assert files
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in files)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def archive(folder: Path) -> str:
    """The packages in a zip file."""
    import lance_core

    root = Path(lance_core.__file__).parents[1]
    for name in ("lance_core", "pyspark_lance"):
        if not (folder / "ship" / name).exists():
            shutil.copytree(root / name, folder / "ship" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(str(folder / "lance"), "zip", folder / "ship")


def check(uri: str, version: int, expected) -> None:
    """One commit has all rows once, and nothing else is left behind."""
    import lance_core

    dataset = lance_core.dataset(uri)
    assert dataset.latest_version == version, (dataset.latest_version, version)
    assert sorted(dataset.to_table().column("id").to_pylist()) == list(expected)
    dataset.validate()


if __name__ == "__main__":
    what, place, path = sys.argv[1:]
    ways = (killed, speculated, cancelled, connected, shipped, statements)
    {way.__name__: way for way in ways}[what](place, Path(path))
    print("done")
