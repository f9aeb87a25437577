"""Classic sessions only: both transports give the same files; attempts that fail or die leave nothing."""

import os
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyspark  # noqa: TID253 - what the tests are about
import pytest
from pyspark.sql import functions  # noqa: TID253 - what the tests are about

import pyspark_lance
from lance_core import Commit, Equals, FileOptions, Slice, Slices
from lance_core.errors import LanceError, OutcomeUnknownError, RetryableConflictError
from pyspark_lance.engine import arrow_rdd, partitions
from pyspark_lance.engine.partitions import run_on_partitions
from pyspark_lance.releases import is_at_least
from pyspark_lance.types.spark_types import VECTOR_WIDTH, batch_schema
from pyspark_lance.writing import job as write_job
from pyspark_lance.writing.job import prepare_write
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.write import write_with

pytestmark = pytest.mark.usefixtures("late_files")


@pytest.fixture(autouse=True)
def classic(connect):
    if connect:
        pytest.skip("a classic session is needed")


def files(uri):
    return sorted(path.name for path in Path(uri, "data").glob("*"))


def contents(uri):
    """The bytes of each file by partition and number of the file in it."""
    found = {}
    for path in sorted(Path(uri, "data").glob("*")):
        partition = path.name.split("-")[1]
        found.setdefault(partition, []).append(path.read_bytes())
    return {partition: sorted(data) for partition, data in found.items()}


FRAMES = {
    "types": """
        select id, cast(id as string) as s, timestamp_micros(id * 1000000) as at, cast(id as decimal(12, 3)) as d,
        array(cast(id as float), -1f) as v, map(id, 'x') as m, struct(id as a, time'01:02:03' as t) as st,
        if(id % 3 = 0, null, array(id)) as l, timestamp_ntz'2020-01-01 00:00:00' as n from range(0, 25000, 1, 3)""",
    "empty partitions": "select id, s from (select id, 's' as s from range(0, 100, 1, 4)) where id between 30 and 60",
    "aggregate": "select id % 7 as k, count(*) as n, sum(id) as t from range(0, 1000, 1, 4) group by 1 order by 1",
    "join": "select a.id, b.id as o from range(0, 500, 1, 3) a join range(0, 800, 1, 2) b on a.id * 2 = b.id order by 1",
    "no rows": "select id from range(5) limit 0",
}


def written(frame, uri, options, *, transport):
    """Write a frame, if this Spark hands out batches of so few rows: 4.1 gives those of the session alone."""
    try:
        return write_with(frame, uri, options, transport=transport)
    except LanceError as error:
        if pyspark.__version__.startswith("4.1.") and "does not hand out Arrow batches" in str(error):
            pytest.skip("Spark 4.1 cannot be asked for batches of fewer rows")
        raise


@pytest.mark.variants(2)
@pytest.mark.parametrize("query", FRAMES.values(), ids=FRAMES)
def test_both_transports_write_the_same_bytes(spark, tmp_path, query):
    frame = spark.sql(query)
    if "v" in frame.columns:
        frame = frame.withMetadata("v", {VECTOR_WIDTH: 2})
    results = {}
    for transport in ("arrow_rdd", "map_in_arrow"):
        results[transport] = written(frame, str(tmp_path / transport), WriteArguments(), transport=transport)
    assert contents(tmp_path / "arrow_rdd") == contents(tmp_path / "map_in_arrow")
    first, second = results.values()
    assert (first.rows_written, first.bytes_written, first.files) == (
        second.rows_written,
        second.bytes_written,
        second.files,
    )


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "setting",
    [
        {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
        {"spark.sql.execution.arrow.compression.codec": "zstd"},
        {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"},
        {"spark.sql.session.timeZone": "Asia/Kolkata"},
    ],
    ids=str,
)
def test_settings_of_the_session_do_not_show_in_the_table(spark, tmp_path, setting):
    frame = spark.sql("select id, timestamp_micros(id * 1000000) as at, concat('n', id) as s from range(0, 5000, 1, 2)")
    pyspark_lance.write(frame, str(tmp_path / "plain"))
    before = {key: spark.conf.get(key) for key in setting}
    for key, value in setting.items():
        spark.conf.set(key, value)
    try:
        for transport in ("arrow_rdd", "map_in_arrow"):
            written(frame, str(tmp_path / transport), WriteArguments(), transport=transport)
            assert contents(tmp_path / transport) == contents(tmp_path / "plain")
            back = pyspark_lance.read(spark, str(tmp_path / transport))
            assert back.orderBy("id").collect() == frame.collect()
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def failing(spark, last_bad_attempt, how):
    """A frame of two partitions, the second of which fails half-way in its first attempts."""

    def upstream(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if context.partitionId() == 1 and context.attemptNumber() <= last_bad_attempt and number == 1:
                if how == "dies":
                    os._exit(1)
                raise RuntimeError("upstream is down")

    return spark.range(0, 60_000, 1, 2).mapInArrow(upstream, "id long")


@pytest.mark.parametrize(
    ("how", "transport"), [("raises", "arrow_rdd"), ("raises", "map_in_arrow"), ("dies", "arrow_rdd")]
)
def test_a_task_that_fails_has_another_attempt_and_leaves_no_file(spark, uri, lance, how, transport):
    result = write_with(failing(spark, 0, how), uri, WriteArguments(), transport=transport)
    assert (result.version, result.rows_written, result.files) == (1, 60_000, 2)
    assert sorted(lance.dataset(uri).to_table().column("id").to_pylist()) == list(range(60_000))
    attempts = sorted(tuple(name.split("-")[1:3]) for name in files(uri))
    assert attempts == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize("transport", ["arrow_rdd", "map_in_arrow"])
def test_a_write_that_fails_changes_nothing(spark, uri, lance, transport):
    pyspark_lance.write(spark.range(10), uri)
    before = files(uri)
    with pytest.raises(Exception, match="upstream is down"):
        write_with(failing(spark, 9, "raises"), uri, WriteArguments(mode="overwrite"), transport=transport)
    assert (files(uri), lance.dataset(uri).version) == (before, 1)


def slow_beside_failing(batches):
    """The second partition fails as soon as the first has written a file; the first partition runs for long."""
    from pyspark import TaskContext

    for batch in batches:
        if TaskContext.get().partitionId() == 1:
            raise RuntimeError("upstream is down")
        for row in range(0, batch.num_rows, 10):
            time.sleep(0.02)
            yield batch.slice(row, 10)


@pytest.mark.parametrize("transport", ["arrow_rdd", pytest.param("map_in_arrow", marks=pytest.mark.slow)])
def test_no_task_writes_after_the_cleanup_of_a_failed_write(spark, uri, transport):
    frame = spark.range(0, 20_000, 1, 2).mapInArrow(slow_beside_failing, "id long")
    with pytest.raises(Exception, match="upstream is down"):
        write_with(frame, uri, WriteArguments(files=FileOptions(max_rows_per_file=50)), transport=transport)
    assert left(uri) == []
    assert active_tasks(spark) == 0


def left(uri):
    return [path for path in Path(uri).rglob("*") if path.is_file()]


def active_tasks(spark):
    return sum(info.numRunningTasks() for info in spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos())


@pytest.mark.parametrize("transport", ["map_in_arrow", pytest.param("arrow_rdd", marks=pytest.mark.slow)])
def test_an_interrupted_write_leaves_neither_tasks_nor_files(spark, uri, transport):
    def endless(batches):
        rows = 0
        for batch in batches:
            for row in range(0, batch.num_rows, 10):
                time.sleep(0.02 if rows > 20_000 else 0)  # Spark passes the first 10,000 rows on together
                rows += 10
                yield batch.slice(row, 10)

    over = threading.Event()

    def interrupt():
        while not files(uri):
            if over.wait(0.02):
                return  # it failed: no other test is to be interrupted
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    frame = spark.range(0, 200_000, 1, 2).mapInArrow(endless, "id long")
    try:
        with pytest.raises(KeyboardInterrupt):
            write_with(frame, uri, WriteArguments(files=FileOptions(max_rows_per_file=50)), transport=transport)
    finally:
        over.set()
    assert left(uri) == []
    assert active_tasks(spark) == 0
    # The session is as good as before.
    assert pyspark_lance.write(spark.range(3), uri).version == 1


def test_variants_and_large_types_over_arrow_rdd(spark, tmp_path):
    frame = spark.sql("select id, parse_json('{\"a\": 1}') as v, array('x', 'y') as l from range(10)")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        write_with(frame, str(tmp_path / "large"), WriteArguments(), transport="arrow_rdd")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    write_with(frame, str(tmp_path / "small"), WriteArguments(), transport="arrow_rdd")
    assert contents(tmp_path / "large") == contents(tmp_path / "small")


def test_rows_of_unknown_size_take_map_in_arrow(spark, uri, monkeypatch):
    taken = []
    monkeypatch.setattr(partitions.ArrowRdd, "of", lambda *_: taken.append(True))
    pyspark_lance.write(spark.sql("select id, cast('x' as binary) as image from range(3)"), uri)
    assert taken == []
    pyspark_lance.write(spark.sql("select id, 'x' as name from range(3)"), f"{uri}-2")
    assert taken == [True]


def test_a_spark_without_arrow_rdd_writes_the_same(spark, tmp_path, monkeypatch):
    frame = spark.sql("select id, 'x' as name from range(0, 1000, 1, 2)")
    pyspark_lance.write(frame, str(tmp_path / "fast"))
    monkeypatch.setattr(arrow_rdd, "_jvm_schema", lambda *_, **__: spark.sparkContext._jvm.org.nowhere.Nothing())
    assert arrow_rdd.ArrowRdd.of(frame) is None
    pyspark_lance.write(frame, str(tmp_path / "plain"))
    assert contents(tmp_path / "fast") == contents(tmp_path / "plain")


def test_spark_estimates_the_size_of_frames(spark, uri):
    columns = ", ".join(f"rand({i}) as c{i}" for i in range(20))
    pyspark_lance.write(spark.sql(f"select id, {columns} from range(0, 100000, 1, 2)"), uri)

    def size(frame):
        return frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()

    assert 15e6 < size(pyspark_lance.read(spark, uri)) < 20e6
    assert 0.5e6 < size(pyspark_lance.read(spark, uri, columns=["id"])) < 1e6
    assert 0.15e6 < size(pyspark_lance.read(spark, uri).limit(1000)) < 0.2e6
    frame = pyspark_lance.read(spark, uri)
    plan = frame.join(frame.withColumnRenamed("id", "other"), frame.id == functions.col("other"))
    assert "BroadcastHashJoin" not in plan._jdf.queryExecution().executedPlan().toString()
    assert frame.count() == 100_000


def test_the_data_source_cleans_up_after_a_task_that_fails(spark, uri, lance):
    pyspark_lance.write(spark.range(10), uri)
    before = files(uri)
    with pytest.raises(Exception, match="upstream is down"):
        failing(spark, 9, "raises").write.format("lance").mode("append").save(uri)
    assert (files(uri), lance.dataset(uri).version) == (before, 1)


def test_orphan_files_of_a_worker_that_dies_are_deleted(spark, uri):
    frame = spark.range(0, 60_000, 1, 2)
    source = batch_schema(frame.schema)
    job = prepare_write(source, uri, WriteArguments())
    task = job.task()

    def dies_once(partition, attempt, batches):
        def watched():
            for number, batch in enumerate(batches):
                yield batch
                if partition == 1 and attempt == 0 and number == 1:
                    # What has been written so far is on disk, and this process cannot delete it any more.
                    Path(uri, "data", f"{task.job}-1-0-torn.lance").write_bytes(b"torn")
                    os._exit(1)

        return task(partition, attempt, watched())

    answers = run_on_partitions(frame, dies_once, job.plan.stored)
    assert [name for name in files(uri) if name.endswith("torn.lance")]
    result = job.finish(answers)
    assert (result.rows_written, len(files(uri))) == (60_000, 2)


@pytest.mark.parametrize(("error", "kept"), [(RetryableConflictError, 0), (OutcomeUnknownError, 2)])
def test_files_are_kept_if_the_commit_may_have_been_committed(spark, uri, monkeypatch, error, kept):
    def fail(*_, **__):
        raise error("storage says so")

    monkeypatch.setattr(write_job.lance_core, "commit_fragments", fail)
    with pytest.raises(error):
        pyspark_lance.write(spark.range(0, 100, 1, 2), uri)
    assert len(files(uri)) == kept


def test_the_loser_of_two_concurrent_creations_deletes_its_files(spark, uri, lance):
    frame = spark.range(0, 100, 1, 2)
    source = batch_schema(frame.schema)
    jobs = [prepare_write(source, uri, WriteArguments(mode="create")) for _ in range(2)]
    answers = [run_on_partitions(frame, job.task(), job.plan.stored) for job in jobs]
    jobs[0].finish(answers[0])
    with pytest.raises(LanceError, match="exists"):
        jobs[1].finish(answers[1])
    assert {name.split("-")[0] for name in files(uri)} == {jobs[0].writing.job}
    assert lance.dataset(uri).count_rows() == 100


def test_two_concurrent_writes_with_one_idempotency_key_make_one_version(spark, uri, lance):
    frame = spark.range(0, 100, 1, 2)
    source = batch_schema(frame.schema)
    pyspark_lance.write(frame, uri)
    jobs = [prepare_write(source, uri, WriteArguments(commit=Commit(idempotency_key=("token", "a")))) for _ in range(2)]
    answers = [run_on_partitions(frame, job.task(), job.plan.stored) for job in jobs]
    results = [job.finish(answer) for job, answer in zip(jobs, answers, strict=True)]
    assert [result.deduplicated for result in results] == [False, True]
    assert {result.version for result in results} == {2}
    assert lance.dataset(uri).count_rows() == 200
    assert jobs[1].writing.job not in {name.split("-")[0] for name in files(uri)}


@pytest.mark.skipif(not is_at_least((4, 0)), reason="Spark 3.5 has no transport arrow_rdd here")
def test_many_small_partitions_share_tasks_and_files(spark, uri, monkeypatch):
    monkeypatch.setattr(arrow_rdd, "MANY_PARTITIONS", 3)
    monkeypatch.setattr(arrow_rdd, "_PARTITIONS_PER_CORE", 1)
    result = pyspark_lance.write(spark.range(0, 1000, 1, 40), uri)
    assert (result.files, result.rows_written) == (3, 1000)
    assert sorted(row.id for row in pyspark_lance.read(spark, uri).collect()) == list(range(1000))
    assert pyspark_lance.merge(spark.range(990, 1100, 1, 40), uri, on="id").rows_inserted == 100


def test_clustering_gives_a_slice_to_few_tasks(spark, uri):
    slices = Slices(Slice(name=str(k), conditions={"k": Equals(k)}) for k in range(20))
    frame = spark.sql("select id, id % 20 as k from range(0, 20000, 1, 4)")
    assert pyspark_lance.write(frame, uri, slices=slices).files == 20
    assert pyspark_lance.write(frame, f"{uri}-mixed", slices=slices, cluster=False).files == 80


def test_other_objects_than_frames_are_rejected(spark, uri):
    with pytest.raises(LanceError, match=r"not a pyarrow.*Table"):
        pyspark_lance.write(pa.table({"a": [1]}), uri)
