"""Write and read on a real session, classic or Connect, with pylance reading what was written."""

import datetime as dt
import pathlib
import shutil
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Observation, functions  # noqa: TID253 - what the tests are about

import lance_core
import pyspark_lance
from lance_core import Between, Equals, Slice, Slices
from lance_core.errors import (
    DatasetExistsError,
    InvalidInputError,
    LanceError,
    SchemaError,
    UnsupportedError,
    VersionNotFoundError,
)
from lance_core.file.pool import num_threads
from pyspark_lance.engine.sessions import use_cores_of_task, with_setting
from pyspark_lance.releases import is_at_least
from pyspark_lance.types.spark_types import VECTOR_WIDTH

EVERY_TYPE = """
    id,
    id % 2 = 0 as truth,
    cast(id % 100 as tinyint) as i8, cast(id as smallint) as i16, cast(id as int) as i32,
    cast(id / 3 as float) as f32, if(id % 5 = 0, null, id / 7) as f64,
    if(id % 3 = 0, null, concat('name ', id)) as text,
    cast(concat('b', id) as binary) as bytes,
    date_add(date'2013-01-01', cast(id as int)) as day,
    timestamp'2013-01-01 05:00:00 UTC' + make_interval(0, 0, 0, 0, 0, 0, id * 1.000001) as at,
    timestamp_ntz'2013-01-01 05:00:00' as local,
    time'12:34:56.789012' as clock,
    cast(id as decimal(20, 4)) as price,
    make_dt_interval(1, 0, 0, id) as lasted,
    if(id % 4 = 0, null, array(id, null, id + 1)) as list,
    map(concat('k', id), array(cast(id as float))) as attributes,
    if(id % 6 = 0, null, struct(nullif(id, -1) as a, nullif(array(struct(nullif('x', 'y') as b)), array()) as c)) as nested,
    if(id % 7 = 0, null, array(cast(id as float), cast(-id as float))) as vector
"""


@pytest.fixture(scope="module")
def frame(spark):
    frame = spark.sql(f"select {EVERY_TYPE} from range(0, 1000, 1, 3)")
    return frame.withMetadata("vector", {VECTOR_WIDTH: 2})


def rows(table, key="id"):
    return sorted(table.to_pylist(), key=lambda row: row[key])


def files(uri):
    return sorted(path.name for path in pathlib.Path(uri, "data").iterdir())


def test_every_type_goes_through_and_pylance_reads_it(spark, frame, uri, lance):
    result = pyspark_lance.write(frame, uri)
    assert (result.version, result.rows_written, result.rows_added) == (1, 1000, 1000)
    assert result.files == 3
    assert result.bytes_written == sum(pathlib.Path(uri, "data", name).stat().st_size for name in files(uri))
    table = lance.dataset(uri).to_table()
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert table.schema.field("clock").type == pa.time64("us")
    assert all(field.nullable for field in table.schema)
    found, expected = rows(table), rows(frame.toArrow())
    assert found == expected
    assert found[3]["at"] == dt.datetime(2013, 1, 1, 5, 0, 3, 3, tzinfo=dt.UTC)
    assert found[3]["price"] == Decimal(3)
    # And back: the same rows, the same Spark schema but for nullability, the vector's mark included.
    back = pyspark_lance.read(spark, uri)
    assert rows(back.toArrow()) == expected
    assert [(c.name, c.dataType.simpleString()) for c in back.schema] == [
        (c.name, c.dataType.simpleString()) for c in frame.schema
    ]
    assert back.schema["vector"].metadata == {VECTOR_WIDTH: 2}
    # What was read can be appended as it is.
    assert pyspark_lance.write(back, uri).version == 2
    assert lance.dataset(uri).count_rows() == 2000


def test_structs_can_be_null_where_their_fields_never_are(spark, uri, lance):
    frame = spark.sql("select id, if(id = 1, null, struct(id as a, array(struct('x' as b)) as c)) as s from range(3)")
    pyspark_lance.write(frame, uri)
    expected = [{"a": 0, "c": [{"b": "x"}]}, None, {"a": 2, "c": [{"b": "x"}]}]
    assert [row["s"] for row in rows(lance.dataset(uri).to_table())] == expected
    back = {row.id: row.s and row.s.asDict(recursive=True) for row in pyspark_lance.read(spark, uri).collect()}
    assert [back[key] for key in range(3)] == expected


def test_modes(spark, uri, lance):
    one = spark.range(10)
    assert pyspark_lance.write(one, uri, mode="overwrite").version == 1  # creates
    assert pyspark_lance.write(one, uri, mode="append").version == 2
    assert pyspark_lance.write(spark.range(3), uri, mode="overwrite").version == 3
    assert lance.dataset(uri).count_rows() == 3
    assert pyspark_lance.write(one, uri, mode="ignore") is None
    assert pyspark_lance.write(one, f"{uri}-ignore", mode="ignore").rows_written == 10
    for mode in ("create", "error", "errorifexists"):
        with pytest.raises(DatasetExistsError):
            pyspark_lance.write(one, uri, mode=mode)
        assert pyspark_lance.write(one, f"{uri}-{mode}", mode=mode).version == 1
    assert lance.dataset(uri).version == 3


def test_only_an_existing_table_is_ignored(spark, uri, tmp_path):
    options = {"manifest_store": f"sqlite:///{tmp_path}/versions.db"}
    pyspark_lance.write(spark.range(3), uri, storage_options=options)
    shutil.rmtree(uri)
    for write in (
        lambda: pyspark_lance.write(spark.range(3), uri, mode="ignore", storage_options=options),
        lambda: pyspark_lance.merge(spark.range(3), uri, on="id", storage_options=options),
    ):
        with pytest.raises(DatasetExistsError, match="their manifests were deleted"):
            write()


def test_the_commit_carries_message_and_properties(spark, uri, lance):
    result = pyspark_lance.write(spark.range(3), uri, transaction_properties={"run": "7"}, commit_message="hello")
    properties = lance.dataset(uri).read_transaction(result.version).transaction_properties
    assert properties["run"] == "7"
    assert "hello" in properties.values()


def test_a_write_with_an_idempotency_key_is_committed_once(spark, uri, lance):
    first = pyspark_lance.write(spark.range(3), uri, idempotency_key=("token", "a"))
    pyspark_lance.write(spark.range(4), uri, idempotency_key=("token", "b"))
    again = pyspark_lance.write(spark.range(3), uri, mode="create", idempotency_key=("token", "a"))
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert (again.version, again.rows_written, again.slice_rows) == (1, 0, {})
    assert lance.dataset(uri).version == 2
    assert len(files(uri)) == first.files + 2


def test_without_rows(spark, uri, lance):
    nothing = spark.range(5).where("id < 0")
    assert pyspark_lance.write(nothing, uri, empty_output="skip") is None
    with pytest.raises(InvalidInputError, match="no row"):
        pyspark_lance.write(nothing, uri, empty_output="error")
    result = pyspark_lance.write(nothing, uri)
    assert (result.version, result.rows_written, result.files) == (1, 0, 0)
    assert lance.dataset(uri).schema.names == ["id"]
    assert pyspark_lance.read(spark, uri).collect() == []
    assert pyspark_lance.write(spark.range(5).limit(0), uri).version == 2


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("select id, cast(id as string) as x from range(3)", SchemaError, "column 'x': the DataFrame has string"),
        ("select id from range(3)", SchemaError, r"lacks the columns \['x'\]"),
        ("select id, id as x, id as y from range(3)", SchemaError, r"has the columns \['y'\]"),
        ("select id, id as x, id as X from range(3)", SchemaError, "columns 'x' and 'X' are both column 'x'"),
        ("select id, id as x, id as x from range(3)", SchemaError, "'x' occurs twice"),
        ("select id, make_ym_interval(1, 1) as x from range(3)", UnsupportedError, "column 'x'"),
    ],
)
def test_schemas_are_rejected_before_any_task_runs(spark, uri, tmp_path, sql, error, message, lance):
    pyspark_lance.write(spark.sql("select id, id as x from range(3)"), uri)
    before = files(uri)
    # Reading a row would fail.
    frame = spark.sql(sql).where("assert_true(id < 0) is null")
    with pytest.raises(error, match=message):
        pyspark_lance.write(frame, uri)
    assert (files(uri), lance.dataset(uri).version) == (before, 1)


@pytest.mark.parametrize("known_by", ["metadata", "option", "table"])
def test_a_vector_of_another_length_changes_nothing(spark, uri, known_by, lance):
    good = spark.sql("select id, array(1f, 2f) as v from range(0, 100, 1, 2)")
    marked = good.withMetadata("v", {VECTOR_WIDTH: 2})
    if known_by == "table":
        pyspark_lance.write(marked, uri)
    bad = spark.sql("select id, if(id = 77, array(1f, 2f, 3f), array(1f, 2f)) as v from range(0, 100, 1, 2)")
    if known_by == "metadata":
        bad = bad.withMetadata("v", {VECTOR_WIDTH: 2})
    with pytest.raises(InvalidInputError, match="column 'v': a vector has 3 items"):
        pyspark_lance.write(bad, uri, vector_columns={"v": 2} if known_by == "option" else None)
    if known_by == "table":
        assert lance.dataset(uri).version == 1
        assert len(files(uri)) == 2
    else:
        with pytest.raises(ValueError, match="not found"):
            lance.dataset(uri)
        assert files(uri) == []


def by_day(*days):
    start = dt.date(2013, 1, 1)
    return Slices(
        Slice(name=str(start + dt.timedelta(day)), conditions={"day": Equals(start + dt.timedelta(day))})
        for day in days
    )


DAYS = "select id, date_add(date'2013-01-01', cast(id % {} as int)) as day, id * 10 as x from range(0, {}, 1, 4)"


def days_by_fragment(uri, lance):
    return [
        set(fragment.to_table(columns=["day"]).column("day").to_pylist())
        for fragment in lance.dataset(uri).get_fragments()
    ]


@pytest.mark.parametrize("cluster", [True, False])
def test_a_fragment_holds_one_slice(spark, uri, cluster, lance):
    result = pyspark_lance.write(spark.sql(DAYS.format(5, 1000)), uri, slices=by_day(*range(5)), cluster=cluster)
    assert result.slice_rows == {f"2013-01-0{day + 1}": 200 for day in range(5)}
    found = days_by_fragment(uri, lance)
    assert all(len(days) == 1 for days in found)
    assert len(found) == (5 if cluster else 20)
    assert lance.dataset(uri).count_rows() == 1000


@pytest.mark.parametrize("cluster", [True, False])
def test_slices_are_replaced_in_one_commit(spark, uri, cluster, lance):
    pyspark_lance.write(spark.sql(DAYS.format(4, 400)), uri, slices=by_day(*range(4)))
    new = spark.sql(DAYS.format(4, 40)).where("day in (date'2013-01-02', date'2013-01-03')")
    result = pyspark_lance.write(new, uri, mode="replace", slices=by_day(1, 2), cluster=cluster)
    assert (result.version, result.rows_deleted, result.rows_added) == (2, 200, 20)
    assert result.slice_rows == {"2013-01-02": 10, "2013-01-03": 10}
    assert lance.dataset(uri).count_rows() == 220
    assert all(len(days) == 1 for days in days_by_fragment(uri, lance))
    # A slice without a row is emptied.
    emptied = pyspark_lance.write(new.where("false"), uri, mode="replace", slices=by_day(1))
    assert (emptied.rows_deleted, emptied.slice_rows) == (10, {"2013-01-02": 0})
    assert lance.dataset(uri).count_rows("day = date '2013-01-02'") == 0


def test_a_row_outside_of_the_slices_changes_nothing(spark, uri, lance):
    pyspark_lance.write(spark.sql(DAYS.format(4, 400)), uri, slices=by_day(*range(4)))
    before = files(uri)
    new = spark.sql(DAYS.format(3, 30))
    with pytest.raises(InvalidInputError, match=r"none of the 2 slices.*day = 2013-01-03"):
        pyspark_lance.write(new, uri, mode="replace", slices=by_day(0, 1))
    assert (files(uri), lance.dataset(uri).version) == (before, 1)
    result = pyspark_lance.write(new, uri, mode="replace", slices=by_day(0, 1), out_of_partition="allow")
    assert (result.rows_deleted, result.rows_added) == (200, 30)
    assert result.slice_rows == {"2013-01-01": 10, "2013-01-02": 10}


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_ranges_of_time_and_a_second_column(spark, uri, kind, lance):
    zone = dt.UTC if kind == "timestamp" else None
    start = dt.datetime(2013, 1, 1, tzinfo=zone)
    hours = [start + dt.timedelta(hours=hour) for hour in range(7)]
    slices = Slices(
        Slice(name=f"{a:%H}|{color}", conditions={"at": Between(a, b), "color": Equals(color)})
        for a, b in pairwise(hours)
        for color in ("red", "green")
    )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        frame = spark.sql(
            f"select id, {kind}'2013-01-01 00:00:00' + make_dt_interval(0, 0, cast(id as int)) as at,"
            " if(id % 2 = 0, 'red', 'green') as color from range(0, 360, 1, 3)"
        )
        result = pyspark_lance.write(frame, uri, slices=slices)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    assert result.slice_rows == dict.fromkeys(slices.names, 30)
    assert len(lance.dataset(uri).get_fragments()) == 12


def test_add_columns(spark, uri, lance):
    with_new = spark.sql("select id, id as y from range(3)")
    pyspark_lance.write(spark.sql("select id, id as x from range(10)"), uri)
    pyspark_lance.write(spark.sql("select id from range(10, 20)"), uri, schema_mode="add_columns")
    assert lance.dataset(uri).to_table(filter="id >= 10").column("x").null_count == 10
    pyspark_lance.write(with_new, uri, schema_mode="add_columns")
    table = lance.dataset(uri).to_table()
    assert table.column("y").to_pylist() == [None] * 20 + [0, 1, 2]
    assert table.column("x").null_count == 13
    pyspark_lance.write(with_new, uri, mode="overwrite", schema_mode="add_columns")
    assert lance.dataset(uri).schema.names == ["id", "x", "y"]


def test_overwrite_of_the_schema(spark, uri, lance):
    pyspark_lance.write(spark.sql("select id, id as x from range(10)"), uri)
    with pytest.raises(SchemaError, match="lacks"):
        pyspark_lance.write(spark.range(3), uri, mode="overwrite")
    pyspark_lance.write(spark.range(3), uri, mode="overwrite", schema_mode="overwrite")
    assert lance.dataset(uri).schema.names == ["id"]


def test_a_read_is_lazy_pinned_and_pruned(spark, frame, uri, lance):
    pyspark_lance.write(frame, uri)
    old = pyspark_lance.read(spark, uri, columns=["text", "id"], filter=(pc.field("i32") >= 10) & (pc.field("id") < 20))
    pyspark_lance.write(frame, uri, mode="overwrite")
    assert old.columns == ["text", "id"]
    assert sorted(row.id for row in old.collect()) == list(range(10, 20))
    assert old.where("id = 12 and text is null").count() == 1
    first = pyspark_lance.read(spark, uri, version=1)
    assert first.count() == 1000
    # The rows of version 1 were deleted from version 2, files and all: only a pinned reader finds them.
    assert first.join(pyspark_lance.read(spark, uri), "id").count() == 1000


def test_explain_names_table_version_columns_and_filter(spark, uri, capsys):
    pyspark_lance.write(spark.sql("select id, 'x' as s from range(3)"), uri)
    pyspark_lance.read(spark, uri, columns=["id"], filter="id > 1").explain()
    said = capsys.readouterr().out
    assert f"lance {uri} version 1 columns id where (id > 1)" in said


def test_a_filter_in_sql(spark, frame, uri):
    pyspark_lance.write(frame, uri)
    wanted = pyspark_lance.read(spark, uri, columns=["id"], filter="i32 >= 10 AND id < 20 AND text IS NOT NULL")
    assert {row.id for row in wanted.collect()} < set(range(10, 20))
    by_function = pyspark_lance.read(spark, uri, columns=["id"], filter="id IN (3, 4) AND lower('A') = 'a'")
    assert sorted(row.id for row in by_function.collect()) == [3, 4]
    with pytest.raises(InvalidInputError, match="cannot read SQL"):
        pyspark_lance.read(spark, uri, filter="id >")


def test_a_table_that_was_dropped_and_made_again_is_read_again(spark, uri):
    # Workers live on and must not take version 1 of the new table for that of the old one.
    pyspark_lance.write(spark.range(10), uri)
    assert pyspark_lance.read(spark, uri).count() == 10
    shutil.rmtree(uri)
    pyspark_lance.write(spark.sql("select 'x' as name from range(3)"), uri)
    assert [row.name for row in pyspark_lance.read(spark, uri).collect()] == ["x"] * 3
    assert spark.read.format("lance").load(uri).count() == 3


def test_rows_of_a_new_table_get_ids_that_stay(spark, uri, lance):
    pyspark_lance.write(spark.range(3), uri, enable_stable_row_ids=True)
    assert lance.dataset(uri).has_stable_row_ids
    pyspark_lance.write(spark.range(3), uri, enable_stable_row_ids=True)
    spark.range(3).write.format("lance").option("enable_stable_row_ids", "true").mode("append").save(uri + "2")
    assert lance.dataset(uri + "2").has_stable_row_ids
    pyspark_lance.write(spark.range(3), uri + "3")
    for mode in ("append", "overwrite"):
        with pytest.raises(InvalidInputError, match="was created without stable row ids"):
            pyspark_lance.write(spark.range(3), uri + "3", mode=mode, enable_stable_row_ids=True)
        with pytest.raises(Exception, match="was created without stable row ids"):
            spark.range(3).write.format("lance").option("enable_stable_row_ids", "true").mode(mode).save(uri + "3")
    assert lance.dataset(uri + "3").version == 1


def test_a_frame_does_not_read_a_table_that_was_made_again_since(spark, uri):
    """Its version and its fragments have the same numbers."""
    pyspark_lance.write(spark.range(10), uri)
    frames = [pyspark_lance.read(spark, uri), pyspark_lance.read_changes(spark, uri, begin_version=0)]
    shutil.rmtree(uri)
    pyspark_lance.write(spark.range(100, 110), uri)
    for frame in frames:
        with pytest.raises(Exception, match="dropped and made again"):
            frame.collect()


def test_reads_are_split_into_as_many_tasks_as_run_at_once(spark, uri):
    pyspark_lance.write(spark.range(0, 1_000_000, 1, 1), uri)
    frame = pyspark_lance.read(spark, uri)
    parts = frame.selectExpr("id", "spark_partition_id() as part").groupBy("part").agg({"id": "count"}).collect()
    assert [row[1] for row in parts] == [500_000, 500_000]
    assert frame.agg({"id": "sum"}).collect()[0][0] == 499_999_500_000


def test_wrong_reads_are_rejected(spark, uri, lance):
    pyspark_lance.write(spark.range(3), uri)
    with pytest.raises(SchemaError, match=r"no columns.*'x'"):
        pyspark_lance.read(spark, uri, columns=["x"])
    with pytest.raises(InvalidInputError, match="columns"):
        pyspark_lance.read(spark, uri, columns=[])
    with pytest.raises(InvalidInputError, match=r"Name\(x\)"):
        pyspark_lance.read(spark, uri, filter=pc.field("x") > 1)
    with pytest.raises(VersionNotFoundError):
        pyspark_lance.read(spark, uri, version=7)


def test_types_that_spark_lacks_are_read_and_written_back(spark, uri, lance):
    table = pa.table(
        {
            "u8": pa.array([255, None], pa.uint8()),
            "u64": pa.array([2**64 - 1, None], pa.uint64()),
            "half": pa.array([1.5, None], pa.float16()),
            "large": pa.array(["x", None], pa.large_string()),
            "kind": pa.array(["a", None]).dictionary_encode(),
            "ns": pa.array([1_500_000, None], pa.timestamp("ns", "Europe/Paris")),
            "s": pa.array([60, None], pa.time32("s")),
            "date64": pa.array([86_400_000, None], pa.date64()),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "vector": pa.array([[1, 2], None], pa.list_(pa.float16(), 2)),
            "lists": pa.array([[1], None], pa.large_list(pa.uint16())),
        }
    )
    lance.write_dataset(table, uri, data_storage_version="2.2")
    frame = pyspark_lance.read(spark, uri)
    first = next(row for row in frame.collect() if row.u8 is not None)
    assert (first.u8, first.u64, first.half, first.large, first.kind) == (255, Decimal(2**64 - 1), 1.5, "x", "a")
    assert (first.s, first.date64, first.fixed) == (dt.time(0, 1), dt.date(1970, 1, 2), b"ab")
    assert (first.vector, first.lists) == ([1.0, 2.0], [1])
    assert next(row for row in frame.collect() if row.u8 is None) == (None,) * len(table.column_names)
    pyspark_lance.write(frame, uri)
    again = lance.dataset(uri).to_table()
    assert again.schema == table.schema
    assert sorted(map(str, again.to_pylist())) == sorted(map(str, table.to_pylist() * 2))


def test_collations_and_precisions_come_back(spark, uri):
    frame = spark.sql(
        "select id, 'A' collate UTF8_LCASE as name, cast(time'01:02:03.456' as time(3)) as at from range(2)"
    )
    pyspark_lance.write(frame, uri)
    for back in (pyspark_lance.read(spark, uri), spark.read.format("lance").load(uri)):
        assert [field.dataType for field in back.schema] == [field.dataType for field in frame.schema]
        assert back.where("name = 'a'").count() == 2
        assert back.collect() == frame.collect()
    pyspark_lance.write(back, uri)


def test_secrets_of_options_are_not_shown_in_plans(spark, uri):
    pyspark_lance.write(spark.range(3), uri)
    frame = spark.read.format("lance").option("storage.account_key", "canary").load(uri)
    frame.createOrReplaceTempView("secret_view")
    assert "canary" not in spark.sql("explain extended select * from secret_view").collect()[0][0]


def test_variants_come_back_as_variants(spark, uri, lance):
    frame = spark.sql("select id, parse_json('{\"a\": 1}') as v from range(3)")
    pyspark_lance.write(frame, uri)
    back = pyspark_lance.read(spark, uri)
    assert back.schema["v"].dataType.simpleString() == "variant"
    assert [row[0] for row in back.selectExpr("variant_get(v, '$.a', 'int')").collect()] == [1, 1, 1]


def test_a_table_in_a_bucket(spark, lance, s3):
    uri = f"s3://{s3.new_bucket()}/tables/t.lance"
    options = s3.storage_options
    slices = by_day(*range(3))
    written = pyspark_lance.write(spark.sql(DAYS.format(3, 300)), uri, slices=slices, storage_options=options)
    assert (written.version, written.files) == (1, 3)
    again = pyspark_lance.write(
        spark.sql(DAYS.format(1, 20)), uri, mode="replace", slices=by_day(0), storage_options=options
    )
    assert (again.rows_deleted, again.rows_added) == (100, 20)
    theirs = lance.dataset(uri, storage_options=options)
    assert (theirs.version, theirs.count_rows()) == (2, 220)
    found = pyspark_lance.read(spark, uri, version=1, columns=["id"], storage_options=options)
    assert found.agg({"id": "sum"}).collect()[0][0] == sum(range(300))
    source = spark.read.format("lance").options(**{f"storage.{key}": value for key, value in options.items()})
    assert source.load(uri).count() == 220


def test_secrets_are_not_shown(spark, lance, s3):
    uri = f"s3://{s3.new_bucket()}/t.lance"
    secret = s3.storage_options["aws_secret_access_key"]
    bad = spark.sql("select id, array(1f) as v from range(10)")
    with pytest.raises(InvalidInputError) as caught:
        pyspark_lance.write(bad, uri, vector_columns={"v": 2}, storage_options=s3.storage_options)
    assert secret not in repr(caught.value)
    options = {f"storage.{key}": value for key, value in s3.storage_options.items()}
    spark.range(3).write.format("lance").mode("append").options(**options).save(uri)
    with pytest.raises(Exception, match="no columns") as caught:
        spark.read.format("lance").options(columns="nope", **options).load(uri).collect()
    assert secret not in str(caught.value)


# The data source


def test_the_data_source_is_found_by_itself(spark, frame, uri, lance):
    frame.write.format("lance").mode("append").save(uri)
    frame.write.format("lance").mode("append").save(uri)
    assert (lance.dataset(uri).version, lance.dataset(uri).count_rows()) == (2, 2000)
    assert rows(spark.read.format("lance").option("version", 1).load(uri).toArrow()) == rows(frame.toArrow())
    frame.limit(5).write.format("lance").mode("overwrite").save(uri)
    assert spark.read.format("lance").load(uri).count() == 5


def test_the_data_source_overwrites_a_table_that_does_not_exist(spark, uri, lance):
    spark.range(3).write.format("lance").mode("overwrite").save(uri)
    assert lance.dataset(uri).count_rows() == 3


def test_options_of_the_data_source(spark, uri, lance):
    writer = spark.sql("select id, array(1f, 2f) as v from range(10)").write.format("lance").mode("append")
    options = {"vector_columns": "v=2", "transaction.run": "7", "commit_message": "hello", "idempotency_key": "token=a"}
    for _ in range(2):
        writer.options(**options).save(uri)
    dataset = lance.dataset(uri)
    assert (dataset.version, dataset.schema.field("v").type) == (1, pa.list_(pa.float32(), 2))
    properties = dataset.read_transaction(1).transaction_properties
    assert (properties["run"], properties["token"]) == ("7", "a")
    dataset.tags.create("gold", 1)
    lance.write_dataset(dataset.to_table(), uri, mode="append")
    assert spark.read.format("lance").option("tag", "gold").load(uri).count() == 10
    assert spark.read.format("lance").option("columns", "id").load(uri).columns == ["id"]
    assert spark.read.format("lance").option("asof", "2999-01-01").load(uri).count() == 20
    # A schema of the user's own reads the columns that it names.
    assert spark.read.format("lance").schema("id long").load(uri).agg({"id": "max"}).collect()[0][0] == 9


def test_a_frame_of_the_data_source_stays_on_its_version(spark, uri, lance, connect):
    pyspark_lance.write(spark.range(5), uri)
    frame = spark.read.format("lance").load(uri)
    assert frame.count() == 5
    pyspark_lance.write(spark.range(5), uri)
    is_analysed_again = connect and not is_at_least((4, 1))
    assert frame.count() == (10 if is_analysed_again else 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versoin": "1"}, "versoin"),
        ({"version": "one"}, "version must be a number"),
        ({"version": "1", "tag": "x"}, "only one of"),
        ({"columns": "nope"}, "nope"),
    ],
)
def test_wrong_options_are_rejected(spark, uri, options, message, lance):
    pyspark_lance.write(spark.range(5), uri)
    with pytest.raises(Exception, match=message):
        spark.read.format("lance").options(**options).load(uri).collect()


def test_the_data_source_rejects_data_that_does_not_fit_and_changes_nothing(spark, uri, lance):
    pyspark_lance.write(spark.range(5), uri)
    before = files(uri)
    for sql, message in (
        ("select cast(id as string) as id from range(3)", "column 'id': the DataFrame has string"),
        ("select id, id as ID from range(3)", "columns 'id' and 'ID' are both column 'id'|COLUMN_ALREADY_EXISTS"),
    ):
        with pytest.raises(Exception, match=message):
            spark.sql(sql).write.format("lance").mode("append").save(uri)
    assert (files(uri), lance.dataset(uri).version) == (before, 1)


def test_a_filter_of_the_data_source_is_fixed_when_the_frame_is_made(spark, frame, uri):
    pyspark_lance.write(frame, uri)
    filtered = spark.read.format("lance").option("filter", "id >= 990 AND text IS NOT NULL").load(uri)
    expected = [row.id for row in frame.where("id >= 990 and text is not null").collect()]
    assert sorted(row.id for row in filtered.collect()) == sorted(expected)
    with pytest.raises(Exception, match="cannot read SQL"):
        spark.read.format("lance").option("filter", "id >").load(uri).collect()


def test_pushdown_is_rejected_and_uses_of_one_frame_do_not_mix(spark, uri):
    pyspark_lance.write(spark.range(2000), uri)
    with pytest.raises(Exception, match="pushdown is not offered"):
        spark.read.format("lance").option("pushdown", "true").load(uri).collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("lance").load(uri)
        assert frame.where("id = 5").count() == 1
        assert frame.count() == 2000
        assert frame.join(frame.where("id < 34"), "id", "left_anti").count() == 1966
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("spelling", ["file:{}", "file://{}", "{}"])
def test_spellings_of_one_uri(spark, uri, spelling, lance):
    pyspark_lance.write(spark.range(3), spelling.format(uri))
    spark.range(3).write.format("lance").mode("append").save(spelling.format(uri))
    assert lance.dataset(uri).count_rows() == 6
    assert spark.read.format("lance").load(spelling.format(uri)).count() == 6
    assert pyspark_lance.read(spark, spelling.format(uri)).count() == 6
    with pytest.raises(LanceError, match="scheme 'nowhere'"):
        pyspark_lance.write(spark.range(3), f"nowhere:{uri}")


def test_observations_of_a_frame_that_is_written(spark, uri):
    seen = Observation("seen")
    frame = spark.range(100).observe(seen, functions.count(functions.lit(1)).alias("rows"))
    pyspark_lance.write(frame, uri)
    assert seen.get == {"rows": 100}


def test_results_are_datasets_of_lance_core(spark, uri, lance):
    result = pyspark_lance.write(spark.range(5), uri)
    assert isinstance(result.dataset, lance_core.LanceDataset)
    assert result.dataset.version == result.version


def test_a_task_uses_as_many_threads_as_it_has_cores(spark):
    def count_threads(batches):
        for batch in batches:
            use_cores_of_task()
            yield pa.RecordBatch.from_pydict({"threads": [num_threads()] * batch.num_rows})

    assert [row.threads for row in spark.range(1).mapInArrow(count_threads, "threads long").collect()] == [1]


def test_a_setting_is_as_it_was_after_two_threads_held_it(spark):
    """The last one sets it back, whichever began first."""
    key = "spark.sql.timeType.enabled"
    before = spark.conf.get(key, "false")
    first, second = with_setting(spark, key, "true"), with_setting(spark, key, "true")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert spark.conf.get(key) == "true"
    second.__exit__(None, None, None)
    assert spark.conf.get(key) == before
