"""The data source's options and streams, with pylance looking at what became of the table."""

import ast
import datetime as dt
import pathlib
import pickle
import zoneinfo
from collections import Counter

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, RetryableConflictError, VersionNotFoundError
from pyspark_lance.changing.key_merge import KeyMergeJob
from pyspark_lance.datasource import options as options_module
from pyspark_lance.datasource.options import OPTIONS, SourceOptions
from pyspark_lance.writing.job import prepare_write

streams = pytest.importorskip("pyspark_lance.datasource.streams", reason="Spark 3.5 has no data sources in Python")
DAYS = "select id, cast(id % {} as int) as day, 'x' as s from range({})"


def save(frame, uri, mode="append", **options):
    frame.write.format("lance").mode(mode).options(**options).save(uri)


def load(spark, uri, **options):
    return spark.read.format("lance").options(**options).load(uri)


def contents(lance, uri):
    return sorted((row["id"], row["day"]) for row in lance.dataset(uri).to_table().to_pylist())


def test_merge_on(spark, uri, lance):
    save(spark.sql(DAYS.format(2, 4)), uri, merge_on="id")
    save(spark.sql("select id, 7 as day, 'y' as s from range(3, 6)"), uri, merge_on="id")
    assert contents(lance, uri) == [(0, 0), (1, 1), (2, 0), (3, 7), (4, 7), (5, 7)]
    assert type(lance.dataset(uri).read_transaction(2).operation).__name__ == "Update"
    with pytest.raises(Exception, match=r"Ambiguous merge inserts.*id = 1"):
        save(spark.sql("select 1L as id, 7 as day, 'y' as s from range(2)"), uri, merge_on="id")
    with pytest.raises(Exception, match=r"no columns.*nope"):
        save(spark.sql(DAYS.format(2, 4)), uri, merge_on="nope")
    assert lance.dataset(uri).version == 2
    lance_core.dataset(uri).validate()


def test_merge_on_with_a_key_that_the_rows_spell_in_another_case(spark, uri, lance):
    save(spark.sql(DAYS.format(2, 2)), uri)
    save(spark.sql("select id as ID, 7 as day, 'y' as s from range(1, 4)"), uri, merge_on="Id")
    assert contents(lance, uri) == [(0, 0), (1, 7), (2, 7), (3, 7)]
    with pytest.raises(Exception, match=r"Ambiguous merge inserts.*id = 1"):
        save(spark.sql("select 1L as ID, 7 as day, 'y' as s from range(2)").coalesce(1), uri, merge_on="id")


def test_merge_on_keeps_ids_that_stay(spark, uri, lance):
    lance.write_dataset(
        pa.table({"id": range(50), "x": ["old"] * 50}), uri, max_rows_per_file=20, enable_stable_row_ids=True
    )

    def ids():
        found = lance.dataset(uri).to_table(with_row_id=True).to_pylist()
        return {row["id"]: (row["_rowid"], row["x"]) for row in found}

    before = ids()
    save(spark.sql("select id, 'new' as x from range(10, 60)"), uri, merge_on="id")
    after = ids()
    assert {key: row for key, (row, _) in after.items() if key < 50} == {key: row for key, (row, _) in before.items()}
    assert len({row for row, _ in after.values()}) == len(after) == 60
    assert {key for key, (_, x) in after.items() if x == "new"} == set(range(10, 60))
    lance_core.dataset(uri).validate()


def merge_late(uri, source, between):
    """An upsert as the data source does it, in this process, with something in between tasks and commit."""
    options = SourceOptions({"path": uri, "merge_on": "id"}).write_options(overwrite=False)
    job = pickle.loads(pickle.dumps(KeyMergeJob.of(prepare_write(source.schema, uri, options))))
    task = job.task()
    messages = [task(number, 0, iter([batch])) for number, batch in enumerate(source.to_batches(max_chunksize=5))]
    between()
    return job.finish(messages)


def test_merge_on_after_a_conflict(uri, lance, tmp_path):
    lance.write_dataset(pa.table({"id": range(20), "x": ["old"] * 20}), uri)
    source = pa.table({"id": range(15, 25), "x": ["new"] * 10})

    def between():
        lance.write_dataset(pa.table({"id": [22], "x": ["other"]}), uri, mode="append")
        lance.dataset(uri).delete("id = 17")

    merge_late(uri, source, between)
    expected = [{"id": i, "x": "old" if i < 15 else "new"} for i in range(25)]
    assert sorted(lance.dataset(uri).to_table().to_pylist(), key=lambda row: row["id"]) == expected
    lance_core.dataset(uri).validate()
    stable = f"{uri}-stable"
    lance.write_dataset(pa.table({"id": range(20), "x": ["old"] * 20}), stable, enable_stable_row_ids=True)
    with pytest.raises(RetryableConflictError, match="a commit of another writer conflicted with each of"):
        merge_late(stable, source, lambda: lance.dataset(stable).delete("id = 17"))
    assert len(list(pathlib.Path(stable, "data").iterdir())) == 1
    with pytest.raises(InvalidInputError, match=r"Ambiguous.*id = 34"):
        merge_late(uri, pa.table({"id": [*range(30, 35), 34], "x": ["new"] * 6}), lambda: None)
    with pytest.raises(InvalidInputError, match=r"Ambiguous.*id = 4"):
        merge_late(uri, pa.table({"id": [*range(5), 4], "x": ["new"] * 6}), lambda: None)


def test_replace_where(spark, uri, lance):
    save(spark.sql(DAYS.format(4, 40)), uri)
    save(spark.sql("select 100L as id, 1 as day, 'y' as s"), uri, "overwrite", replaceWhere="day = 1")
    found = contents(lance, uri)
    assert (len(found), found[-1], [row for row in found if row[1] == 1]) == (31, (100, 1), [(100, 1)])
    assert lance.dataset(uri).version == 2
    with pytest.raises(Exception, match=r"replaceWhere 'day = 1' does not hold for a row.*'day': 2"):
        save(spark.sql("select 100L as id, 2 as day, 'y' as s"), uri, "overwrite", replaceWhere="day = 1")
    with pytest.raises(Exception, match="replaceWhere needs mode 'overwrite'"):
        save(spark.sql(DAYS.format(4, 40)), uri, replaceWhere="day = 1")
    with pytest.raises(Exception, match="nope"):
        save(spark.sql(DAYS.format(4, 40)), uri, "overwrite", replaceWhere="nope = 1")
    assert lance.dataset(uri).version == 2
    result = pyspark_lance.write(spark.sql(DAYS.format(4, 0)), uri, mode="overwrite", replace_where="day IN (0, 2)")
    assert (result.version, result.rows_deleted, lance.dataset(uri).count_rows()) == (3, 20, 11)


def test_dynamic_partition_overwrite(spark, uri, lance):
    result = pyspark_lance.write(spark.sql(DAYS.format(4, 40)), uri, partition_by=["day"])
    assert result.slice_rows == {f"day={day}": 10 for day in range(4)}
    assert [
        len(set(f.to_table(columns=["day"]).column("day").to_pylist())) for f in lance.dataset(uri).get_fragments()
    ] == [1] * 4
    new = spark.sql("select id, if(id = 5, null, 1) as day, 'y' as s from range(4, 7)")
    save(new, uri, "overwrite", partition_by="day", partitionOverwriteMode="dynamic")
    rows = [(row["id"], row["day"]) for row in lance.dataset(uri).to_table().to_pylist()]
    assert len(rows) == 33
    assert {row for row in rows if row[1] in (1, None)} == {(4, 1), (5, None), (6, 1)}
    save(new.where("day is null"), uri, "overwrite", partition_by="day", partitionOverwriteMode="dynamic")
    assert lance.dataset(uri).count_rows() == 33
    with pytest.raises(Exception, match="needs partition_by"):
        save(new, uri, "overwrite", partitionOverwriteMode="dynamic")


@pytest.mark.variants(2)
@pytest.mark.parametrize("way", ["option", "function"])
def test_a_dynamic_overwrite_of_a_table_that_declares_its_partitions(spark, uri, way):
    old = spark.sql("select id, cast(id % 3 as int) as p from range(6)")
    new = spark.sql("select id, 1 as p from range(10, 12)")

    def write(frame, mode):
        if way == "option":
            save(frame, uri, mode, partitionOverwriteMode="dynamic")
        else:
            pyspark_lance.write(frame, uri, mode=mode, partition_overwrite="dynamic")

    pyspark_lance.write(old, uri, table_config={"lance-dagster.partitioned_by": "p"})
    write(new, "overwrite")
    assert rows_of(load(spark, uri)) == rows_of(old.where("p != 1").union(new))
    with pytest.raises(Exception, match="needs partition_by"):
        write(new, "append")
    lance_core.dataset(uri).alter_columns({"path": "p", "name": "q"})
    with pytest.raises(Exception, match="PARTITIONED BY p, and no longer has"):
        write(new.withColumnRenamed("p", "q"), "overwrite")
    assert load(spark, uri).count() == 6


DYNAMIC_WRITES = {
    "option": lambda frame, uri: save(frame, uri, "overwrite", partition_by="p"),
    "function": lambda frame, uri: pyspark_lance.write(frame, uri, mode="overwrite", partition_by="p"),
    "declared": lambda frame, uri: save(frame, uri, "overwrite"),
    "declared, function": lambda frame, uri: pyspark_lance.write(frame, uri, mode="overwrite"),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("way", DYNAMIC_WRITES)
def test_overwrites_by_the_setting_of_the_session(spark, uri, way):
    """What parquet does with `partitionBy`: of the table, only the partitions with rows are replaced."""
    old = spark.sql("select id, cast(id % 3 as int) as p from range(6)")
    new = spark.sql("select id, 1 as p from range(10, 12)")
    parquet = f"{uri}.parquet"
    old.write.partitionBy("p").parquet(parquet)
    pyspark_lance.write(old, uri, table_config={"lance-dagster.partitioned_by": "p"} if "declared" in way else None)
    load(spark, uri).createOrReplaceTempView("seen")
    write = DYNAMIC_WRITES[way]
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "DYNAMIC")
    try:
        write(new, uri)
        new.write.partitionBy("p").mode("overwrite").parquet(parquet)
        assert rows_of(load(spark, uri)) == rows_of(spark.read.parquet(parquet))
        write(new.limit(0), uri)
        assert load(spark, uri).count() == 6
        with pytest.raises(Exception, match="does not support dynamic overwrite"):
            new.write.insertInto("seen", overwrite=True)
        if way == "option":
            save(old, uri, "overwrite", partition_by="p", partitionOverwriteMode="static")
            assert load(spark, uri).count() == 6
            save(new, uri, "overwrite")  # neither the write nor the table names partitions
            assert load(spark, uri).count() == 2
        if "declared" in way:
            lance_core.dataset(uri).alter_columns({"path": "p", "name": "q"})
            with pytest.raises(Exception, match="PARTITIONED BY p, and no longer has these columns"):
                write(new.withColumnRenamed("p", "q"), uri)
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    if "declared" not in way:
        write(old.limit(1), uri)
        assert load(spark, uri).count() == 1


def rows_of(frame):
    return sorted(map(tuple, frame.collect()))


def test_schemas_and_times_by_sparks_names(spark, uri, lance):
    save(spark.sql("select id from range(3)"), uri)
    between = dt.datetime.now(dt.UTC).isoformat()
    save(spark.sql("select id, 'x' as s from range(3, 5)"), uri, mergeSchema="true")
    assert load(spark, uri).where("s is null").count() == 3
    assert load(spark, uri, versionAsOf="1").columns == ["id"]
    assert load(spark, uri, timestampAsOf=between).count() == 3
    save(spark.sql("select 'a' as other"), uri, "overwrite", overwriteSchema="true")
    assert load(spark, uri).columns == ["other"]
    save(spark.sql("select 'b' as other"), uri, transaction_properties='{"RunId": "7"}')
    assert lance.dataset(uri).read_transaction(lance.dataset(uri).version).transaction_properties["RunId"] == "7"


def test_merge_schema_fills_fields_that_structs_lack(spark, uri, lance):
    save(spark.sql("select 1 id, struct(1 a, 'x' b) s, array(struct(1 a, 2 b)) l"), uri)
    save(spark.sql("select 2 id, struct(2 a) s, array(struct(3 b)) l"), uri, mergeSchema="true")
    save(spark.sql("select 3 id, struct('y' b, 5L c) s, array(struct(3 b)) l"), uri, mergeSchema="true")
    rows = lance.dataset(uri).to_table().sort_by("id").to_pylist()
    assert [row["s"] for row in rows] == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": None, "c": None},
        {"a": None, "b": "y", "c": 5},
    ]
    assert [row["l"] for row in rows] == [[{"a": 1, "b": 2}], [{"a": None, "b": 3}], [{"a": None, "b": 3}]]


@pytest.mark.slow
def test_branches_and_columns_about_rows(spark, uri, lance):
    save(spark.sql("select id from range(3)"), uri)
    lance_core.dataset(uri).create_branch("dev")
    save(spark.sql("select id from range(10, 12)"), uri, branch="dev")
    assert load(spark, uri).count() == 3
    assert load(spark, uri, branch="dev").count() == 5
    found = load(spark, uri, columns="id,_rowid,_rowaddr").collect()
    assert [row.asDict() for row in found] == [{"id": i, "_rowid": i, "_rowaddr": i} for i in range(3)] or len(
        found
    ) == 3
    assert pyspark_lance.read(spark, uri, columns=["_rowid"]).count() == 3


@pytest.mark.slow
def test_tables_of_sql(spark, uri, lance):
    save(spark.sql(DAYS.format(2, 4)), uri)
    spark.sql(f"create or replace temporary view days using lance options (path '{uri}', version '1')")
    assert spark.sql("select count(*) from days where day = 1").collect()[0][0] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mergeSchema": "yes"}, "mergeSchema must be true or false"),
        ({"mergeSchema": "true", "schema_mode": "strict"}, "do not go together"),
        ({"transaction_properties": "[1]"}, "JSON object"),
        ({"transaction_properties": "{"}, "no JSON"),
        ({"partitionOverwriteMode": "maybe"}, "static or dynamic"),
        ({"merge_on": "id", "partition_by": "day"}, "partition_by and merge_on do not go together"),
        ({"idempotency_key": "x"}, "key=value"),
        ({"vector_columns": "v"}, "name=width"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(InvalidInputError, match=message):
        SourceOptions(options).write_options(overwrite=False)


def test_the_table_of_options_is_what_the_code_reads():
    """Each name of the table occurs in the code besides, and names that the code looks up stand in the table."""
    strings, looked_up = Counter(), set()
    for path in pathlib.Path(options_module.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings[node.value.removesuffix("<key>")] += 1
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
                "value",
                "names",
                "integer",
                "boolean",
            ):
                looked_up |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    names = [option.name for option in OPTIONS]
    assert len(set(names)) == len(names)
    assert looked_up <= {*names, "path"}
    assert not [name for name in names if strings[name.removesuffix("<key>")] < 2]


def test_case_and_underscores_of_options_do_not_matter():
    for name in ("replaceWhere", "replace_where", "REPLACEWHERE"):
        assert SourceOptions({name: "a = 1"}).value("replaceWhere") == "a = 1"
    for name in ("max_rows_per_file", "maxRowsPerFile"):
        assert SourceOptions({name: "5"}).write_options(overwrite=False).files.max_rows_per_file == 5
    assert SourceOptions({"storage.aws_region": "x", "transaction.a_b": "y"}).storage == {"aws_region": "x"}
    with pytest.raises(InvalidInputError, match=r"only one of the options \['mergeSchema', 'merge_schema'\]"):
        SourceOptions({"mergeSchema": "true", "merge_schema": "true"})
    with pytest.raises(InvalidInputError, match=r"options \['replace'\] are not known"):
        SourceOptions({"replace": "a = 1"})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"versionAsOf": "0"}, VersionNotFoundError),
        ({"version": "0"}, VersionNotFoundError),
        ({"version": ""}, InvalidInputError),
        ({"timestampAsOf": ""}, InvalidInputError),
        ({"tag": ""}, InvalidInputError),
        ({"version": "1", "timestampAsOf": ""}, InvalidInputError),
    ],
)
def test_invalid_versions(uri, options, error):
    lance_core.write_dataset(pa.table({"id": [1]}), uri)
    with pytest.raises(error):
        SourceOptions({"path": uri, **options}).open()


def test_each_way_to_name_a_version(uri):
    first = lance_core.write_dataset(pa.table({"id": [1]}), uri)
    first.tags.create("one", 1)
    between = dt.datetime.now(dt.UTC).isoformat()
    first.insert(pa.table({"id": [2]}))
    ways = ({"version": "1"}, {"versionAsOf": "1"}, {"tag": "one"}, {"asof": between}, {"timestampAsOf": between})
    assert [SourceOptions({"path": uri, **way}).open().version for way in ways] == [1] * 5
    assert SourceOptions({"path": uri}).open().version == 2
    for number, way in enumerate(ways):
        with pytest.raises(InvalidInputError, match="only one of the options"):
            SourceOptions({"path": uri, **way, **ways[number - 1]}).open()


@pytest.fixture
def tokyo(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def test_a_time_without_a_zone_is_in_that_of_the_session(tokyo, uri):
    lance_core.write_dataset(pa.table({"id": range(5)}), uri)
    between = dt.datetime.now(dt.UTC)
    lance_core.write_dataset(pa.table({"id": range(5)}), uri, mode="append")
    local = between.astimezone(zoneinfo.ZoneInfo("Asia/Tokyo")).replace(tzinfo=None)
    utc = between.replace(tzinfo=None).isoformat()
    for time in (local, local.isoformat(), between, between.isoformat()):
        assert pyspark_lance.read(tokyo, uri, asof=time).count() == 5
    frames = tokyo.read.format("lance")
    zone = tokyo.conf.get("spark.sql.session.timeZone")
    assert frames.option("timestampAsOf", local.isoformat()).option("timeZone", zone).load(uri).count() == 5
    assert tokyo.read.format("lance").option("asof", utc).load(uri).count() == 5
    # Spark does not say to a data source which zone the session has: nothing is guessed.
    with pytest.raises(Exception, match=r"has no time zone, and a data source cannot see.*option\('timeZone'"):
        tokyo.read.format("lance").option("timestampAsOf", local.isoformat()).load(uri)


# Streams


def test_a_stream_begins_at_an_existing_version(uri):
    for _ in range(3):
        lance_core.write_dataset(pa.table({"id": [1]}), uri, mode="append")

    def begin(version):
        options = SourceOptions({"path": uri, "startingVersion": version})
        return streams.StreamReader(options, None).initialOffset()["version"]

    assert [begin(version) for version in ("0", "1", "3", "latest")] == [0, 0, 2, 3]
    with pytest.raises(VersionNotFoundError, match=r"startingVersion: .* has no version 4 yet, its latest one is 3"):
        begin("4")


def run(stream, uri, checkpoint, mode="append", **options):
    writer = stream.writeStream.format("lance").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.options(**options).trigger(availableNow=True).start(uri)
    assert query.awaitTermination(1000)
    return query


def drop(folder, spark, start, end):
    spark.sql(f"select id, 'x' as s from range({start}, {end}, 1, 1)").write.mode("append").parquet(str(folder))


def test_a_stream_writes_each_batch_once(spark, uri, tmp_path, lance):
    source = tmp_path / "source"
    drop(source, spark, 0, 10)
    stream = spark.readStream.schema("id long, s string").parquet(str(source))
    run(stream, uri, tmp_path / "check", commit_message="hello")
    drop(source, spark, 10, 15)
    query = run(stream, uri, tmp_path / "check")
    table = lance.dataset(uri)
    assert (table.version, table.count_rows()) == (2, 15)
    for number in (1, 2):
        properties = table.read_transaction(number).transaction_properties
        assert properties[streams.QUERY] == str(query.id)
        assert properties[streams.BATCH] == str(number - 1)


def test_a_batch_that_spark_repeats_after_its_commit_is_not_written_twice(spark, uri, tmp_path, lance):
    source, check = tmp_path / "source", tmp_path / "check"
    drop(source, spark, 0, 10)
    stream = spark.readStream.schema("id long, s string").parquet(str(source))
    run(stream, uri, check)
    # Killed between our commit and Spark's note of it: the note is not there, and others have committed since.
    for note in (check / "commits").glob("*0*"):
        note.unlink()
    lance.dataset(uri).delete("id = 3")
    run(stream, uri, check)
    assert sorted(lance.dataset(uri).to_table().column("id").to_pylist()) == [i for i in range(10) if i != 3]
    assert len(list(pathlib.Path(uri, "data").iterdir())) == 1
    drop(source, spark, 10, 12)
    run(stream, uri, check)
    assert lance.dataset(uri).count_rows() == 11


@pytest.mark.slow
def test_complete_mode_replaces_all_rows(spark, uri, tmp_path, lance):
    source = tmp_path / "source"
    source.mkdir()
    stream = spark.readStream.schema("id long, s string").parquet(str(source))
    for start, expected in ((0, 10), (10, 20)):
        drop(source, spark, start, start + 10)
        run(stream.groupBy("s").count(), uri, tmp_path / "check", "complete")
        assert lance.dataset(uri).to_table().to_pylist() == [{"s": "x", "count": expected}]


def test_a_stream_of_a_table(spark, uri, tmp_path, lance):
    copy, check = f"{uri}-copy", tmp_path / "check"
    save(spark.range(10), uri)
    stream = spark.readStream.format("lance").load(uri)
    run(stream, copy, check)
    assert lance.dataset(copy).count_rows() == 10
    save(spark.range(10, 15), uri)
    save(spark.range(15, 20), uri)
    lance.dataset(uri).optimize.compact_files()
    run(stream, copy, check)
    assert sorted(lance.dataset(copy).to_table().column("id").to_pylist()) == list(range(20))
    lance.dataset(uri).delete("id < 5")
    with pytest.raises(Exception, match=r"version \d+ of .*table.lance does not only append \(Delete\)"):
        run(stream, copy, check)
    save(spark.range(20, 22), uri)
    for _ in range(2):  # Spark 4.1 ends once it has repeated the batch that failed
        run(spark.readStream.format("lance").option("ignoreChanges", "true").load(uri), copy, check)
    assert sorted(lance.dataset(copy).to_table().column("id").to_pylist()) == list(range(22))


@pytest.mark.slow
def test_startingVersion_and_maxVersionsPerTrigger(spark, uri, tmp_path, lance):
    for start in range(0, 40, 10):
        lance.write_dataset(pa.table({"id": range(start, start + 10)}), uri, mode="append" if start else "create")
    options = {"startingVersion": "2", "maxVersionsPerTrigger": "1"}
    run(spark.readStream.format("lance").options(**options).load(uri), f"{uri}-copy", tmp_path / "check")
    assert sorted(lance.dataset(f"{uri}-copy").to_table().column("id").to_pylist()) == list(range(10, 40))
    assert lance.dataset(f"{uri}-copy").version == 3
    latest = spark.readStream.format("lance").option("startingVersion", "latest").load(uri)
    run(latest, f"{uri}-new", tmp_path / "check2")
    save(spark.range(40, 42), uri)
    run(latest, f"{uri}-new", tmp_path / "check2")
    assert lance.dataset(f"{uri}-new").count_rows() == 2


LOCAL_TIMES = ("at < '2026-01-01 05:00:00'", "at < timestamp'2026-01-01 05:00:00'", "at < date'2026-01-02'")


def test_conditions_with_times_mean_what_they_mean_in_spark(spark, uri):
    assert spark.conf.get("spark.sql.session.timeZone") != "UTC"
    hours = "select id, timestamp'2026-01-01 00:00:00' + make_dt_interval(0, cast(id as int)) as at from range(12)"
    pyspark_lance.write(spark.sql(hours).coalesce(1), uri)
    new = spark.sql(hours).limit(0)
    by_format = spark.read.format("lance")
    verbs = (
        lambda where: pyspark_lance.read(spark, uri, filter=where),
        lambda where: by_format.option("filter", where).load(uri).collect(),
        lambda where: by_format.options(filter=where, timeZone="America/New_York").load(uri).collect(),
        lambda where: pyspark_lance.delete(uri, where, spark=spark),
        lambda where: pyspark_lance.update(uri, {"id": "id"}, where, spark=spark),
        lambda where: pyspark_lance.write(new, uri, mode="overwrite", replace_where=where),
        lambda where: new.write.format("lance").mode("overwrite").option("replaceWhere", where).save(uri),
    )
    for where in LOCAL_TIMES:
        for verb in verbs:
            with pytest.raises(Exception, match="has a time zone, and Lance's SQL takes the other for UTC"):
                verb(where)
    in_utc = spark.read.format("lance").options(filter="at < '2026-01-01 05:00:00'", timeZone="UTC")
    assert in_utc.load(uri).count() == 0
    written = "at < '2026-01-01T05:00:00-05:00'"
    assert pyspark_lance.read(spark, uri, filter=written).count() == 5
    assert spark.read.format("lance").option("filter", written).load(uri).count() == 5
    assert pyspark_lance.delete(uri, written, spark=spark).rows_deleted == 5


def test_a_stream_that_cannot_begin_reports_the_reason(spark, uri, tmp_path):
    pyspark_lance.write(spark.range(3).coalesce(1), uri)
    frame = spark.readStream.format("lance").schema("id long, nope string").load(uri)
    query = frame.writeStream.format("memory").queryName("begins").trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"no columns \['nope'\]"):
        query.awaitTermination(60)
