"""Conversion from and to other formats: every row and value, groups that are passed over, and what is rejected."""

import os
import pathlib
import re
import sys
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyspark_lance
from lance_core.errors import (
    DatasetExistsError,
    InvalidInputError,
    LanceError,
    SchemaError,
    UndecidedWriteError,
    UnsupportedError,
)
from pyspark_lance import convert as convert_function
from pyspark_lance.conversion.convert import _compare
from pyspark_lance.conversion.sources import list_foreign_files

ROWS = """
    select id, cast(id % 3 as int) as day, if(id % 4 = 0, null, concat('s', id)) as s, rand(1) as x,
    timestamp_micros(id) as at, array(cast(id as float)) as v, map('k', id) as m from range(0, 100, 1, 4)
"""


@pytest.fixture
def folder(spark, tmp_path):
    spark.sql(ROWS).write.partitionBy("day").parquet(str(tmp_path / "source"))
    return str(tmp_path / "source")


def test_hive_partitions_become_columns_and_every_row_is_there(spark, folder, uri, lance, tmp_path):
    assert convert_function is pyspark_lance.convert
    result = pyspark_lance.convert(folder, uri, partition_expr="day", vector_columns={"v": 1})
    assert (result.rows, result.commits, result.skipped) == (100, 1, 0)
    table = lance.dataset(uri)
    assert sorted(table.to_table(columns=["day"]).column("day").to_pylist()) == sorted(i % 3 for i in range(100))
    assert all(len(set(f.to_table(columns=["day"]).column("day").to_pylist())) == 1 for f in table.get_fragments())
    # Once more: all is there already.
    again = pyspark_lance.convert(folder, uri, partition_expr="day", vector_columns={"v": 1})
    assert (again.rows, again.commits, again.skipped, again.version) == (100, 0, 1, result.version)
    # And back.
    back = tmp_path / "back"
    assert pyspark_lance.to_parquet(uri, back, partition_by=["day"]) == 100
    assert spark.read.parquet(str(back)).where("day = 1").count() == 33


def test_names_are_no_part_of_the_query_that_compares(spark):
    struct = (
        "named_struct('a b', id, 'x: int>, y', cast(id as int), 'tick`ed', array(named_struct('1', 'z'))) as `the ``s`"
    )
    frame = spark.range(3).selectExpr(struct)
    assert _compare(frame, frame, "both") == 3
    with pytest.raises(LanceError, match="hashes of the `s"):
        _compare(frame, frame.limit(2).union(frame.limit(1)), "both")


@pytest.mark.slow
def test_an_interrupted_conversion_continues(spark, folder, uri, lance, monkeypatch):
    done = []

    def cut_short(*arguments, **options):
        if len(done) == 2:
            raise LanceError("the power went")
        done.append(options["idempotency_key"])
        return pyspark_lance.write(*arguments, **options)

    monkeypatch.setattr("pyspark_lance.conversion.convert.write", cut_short)
    with pytest.raises(LanceError, match="the power went"):
        pyspark_lance.convert(folder, uri, max_bytes_per_commit=1)
    monkeypatch.undo()
    result = pyspark_lance.convert(folder, uri, max_bytes_per_commit=1)
    assert (result.rows, result.skipped) == (100, 2)
    assert lance.dataset(uri).version == result.commits + 2


def test_a_conversion_after_a_cleanup_of_its_versions_is_undecided(spark, uri, lance, tmp_path):
    source = tmp_path / "source"
    put(source, "a.parquet", id=[1])
    pyspark_lance.convert(source, uri, mode="append")
    put(source, "b.parquet", id=[2])
    pyspark_lance.convert(source, uri, mode="append")
    lance.write_dataset(pa.table({"id": [3]}), uri, mode="append")
    table = lance.dataset(uri)
    table.cleanup_old_versions(timedelta(0), delete_unverified=True)
    for mode in ("append", "create"):
        with pytest.raises(UndecidedWriteError, match=r"their versions were cleaned up .*mode='overwrite'"):
            pyspark_lance.convert(source, uri, mode=mode)
    assert ids(lance, uri) == [1, 2, 3]
    assert pyspark_lance.convert(source, uri, mode="overwrite").rows == 2
    assert ids(lance, uri) == [1, 2]


def put(folder, name, **columns):
    """A file of a source."""
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    pq.write_table(pa.table(columns), folder / name)


def ids(lance, uri):
    return sorted(lance.dataset(uri).to_table().column("id").to_pylist())


def test_a_source_that_changes_between_two_runs(spark, uri, lance, tmp_path):
    source = tmp_path / "source"
    put(source, "_day=1/b.parquet", id=[1], x=[1])
    first = pyspark_lance.convert(source, uri)
    assert (first.rows, first.commits, ids(lance, uri)) == (1, 1, [1])
    # It grows, by a file that comes before the other one and has more columns.
    put(source, "_day=1/a[1].parquet", id=[0], new=["n"])
    grown = pyspark_lance.convert(source, uri)
    assert (grown.rows, grown.commits, grown.skipped, ids(lance, uri)) == (2, 1, 1, [0, 1])
    rows = [
        {"id": 0, "x": None, "new": "n", "_day": 1},
        {"id": 1, "x": 1, "new": None, "_day": 1},
    ]
    assert sorted(lance.dataset(uri).to_table(["id", "x", "new", "_day"]).to_pylist(), key=lambda r: r["id"]) == rows
    # A file that was converted is written again.
    put(source, "_day=1/b.parquet", id=[7], x=[1])
    os.utime(source / "_day=1/b.parquet", ns=(0, 0))  # whatever the resolution of the storage's clock
    for mode in ("create", "append"):
        with pytest.raises(InvalidInputError, match=r"1 files were changed, such as .*b\.parquet, and .*'overwrite'"):
            pyspark_lance.convert(source, uri, mode=mode)
    assert lance.dataset(uri).version == grown.version
    overwritten = pyspark_lance.convert(source, uri, mode="overwrite")
    assert (overwritten.rows, overwritten.commits, overwritten.skipped, ids(lance, uri)) == (2, 1, 0, [0, 7])
    again = pyspark_lance.convert(source, uri, mode="overwrite")
    assert (again.version, again.commits, again.skipped) == (overwritten.version, 0, 1)
    # Another writer has changed the table since: all files are converted again.
    lance.dataset(uri).delete("id = 7")
    assert (pyspark_lance.convert(source, uri, mode="overwrite").commits, ids(lance, uri)) == (1, [0, 7])
    (source / "_day=1/b.parquet").unlink()
    with pytest.raises(InvalidInputError, match=r"1 files were deleted"):
        pyspark_lance.convert(source, uri)


def test_files_with_incompatible_schemas_are_rejected_in_one_line(spark, uri, tmp_path):
    put(tmp_path / "types", "a.parquet", id=[1])
    put(tmp_path / "types", "b.parquet", id=["x"])
    put(tmp_path / "notes", "a.parquet", id=[1])
    (tmp_path / "notes" / "notes.txt").write_text("hello")
    for folder, message in (("types", "does not fit the files before it: column "), ("notes", r"notes\.txt")):
        with pytest.raises(InvalidInputError, match=message) as raised:
            pyspark_lance.convert(tmp_path / folder, uri)
        assert len(str(raised.value).splitlines()) == 1
    assert not pathlib.Path(uri).exists()


@pytest.mark.parametrize(
    ("folder_name", "column", "partition"),
    [("K=7", "k", "K"), ("k=7", "k", "k"), ("a/K%20x=7/day=1", "k x", "K x")],
)
def test_columns_of_the_name_of_a_hive_partition_are_rejected(spark, uri, tmp_path, folder_name, column, partition):
    put(tmp_path / "source", f"{folder_name}/b.parquet", **{column: [1, 2], "v": ["a", "b"]})
    message = rf"column '{column}', and .* partition '{partition}', .*Nothing was written"
    with pytest.raises(SchemaError, match=message):
        pyspark_lance.convert(str(tmp_path / "source"), uri)
    assert not pathlib.Path(uri).exists()
    remedy = spark.read.option("recursiveFileLookup", True).parquet(str(tmp_path / "source"))
    assert pyspark_lance.write(remedy, uri).dataset.to_table().column(column).to_pylist() == [1, 2]


def test_folders_above_the_partitions_are_no_columns(spark, uri, lance, tmp_path):
    put(tmp_path / "source", "k=7/x/day=1/b.parquet", k=[1, 2])
    pyspark_lance.convert(str(tmp_path / "source"), uri)
    assert lance.dataset(uri).to_table().to_pydict() == {"k": [1, 2], "day": [1, 1]}


def test_names_of_partitions_in_a_case_sensitive_session(spark, uri, lance, tmp_path):
    put(tmp_path / "source", "K=7/b.parquet", k=[1, 2])
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        pyspark_lance.convert(str(tmp_path / "source"), uri)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert lance.dataset(uri).to_table().to_pydict() == {"k": [1, 2], "K": [7, 7]}


def test_strings_as_hive_partitions(spark, uri, lance, tmp_path):
    table = pa.table({"id": [1, 2, 3], "p": ["1", "01", None]})
    lance.write_dataset(table, uri)
    assert pyspark_lance.to_parquet(uri, tmp_path / "strings", partition_by=["p"]) == 3
    found = spark.read.schema("id long, p string").parquet(str(tmp_path / "strings"))
    assert sorted(tuple(row) for row in found.collect()) == [(1, "1"), (2, "01"), (3, None)]
    lance.write_dataset(pa.table({"id": [4], "p": [""]}), uri, mode="append")
    with pytest.raises(InvalidInputError, match="'p': a Hive partition cannot distinguish an empty string from null"):
        pyspark_lance.to_parquet(uri, tmp_path / "empty", partition_by=["p"])
    assert not (tmp_path / "empty").exists()


@pytest.mark.variants(2)
@pytest.mark.parametrize("value", ["X'00'", "X'61FF'", "X'09'", "decode(X'620063', 'utf-8')"])
def test_values_that_no_name_of_a_hive_partition_holds(spark, uri, tmp_path, value):
    fitting = "X'50C3A9'" if value.startswith("X") else "'P\\tm'"
    pyspark_lance.write(spark.sql(f"select 1 id, {fitting} p"), uri)
    assert pyspark_lance.to_parquet(uri, tmp_path / "fits", partition_by=["p"]) == 1
    pyspark_lance.write(spark.sql(f"select 2 id, {value} p"), uri, mode="append")
    with pytest.raises(InvalidInputError, match="'p': the name of a Hive partition cannot hold some values"):
        pyspark_lance.to_parquet(uri, tmp_path / "bytes", partition_by=["p"])
    assert not (tmp_path / "bytes").exists()


PARTITIONED = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "day": ["01", "02", "a b", None, "01", "x=y%"],  # strings, though some look like numbers
        "d": pa.array([1, 2, None, 4, 5, 6], pa.date32()),
        "s": ["a", None, "c", "d", "e", "f"],
        "st": [{"a": i, "b": "x"} for i in range(6)],
    }
)


def by_id(table):
    return sorted(table.to_pylist(), key=lambda row: (row["id"], row.get("extra") is not None))


def test_delta(spark, tmp_path, uri, lance):
    deltalake = pytest.importorskip("deltalake")
    place = str(tmp_path / "delta")
    deltalake.write_deltalake(place, PARTITIONED, partition_by=["day"])
    more = PARTITIONED.append_column("extra", pa.array(range(6), pa.int32()))
    deltalake.write_deltalake(place, more, mode="append", schema_mode="merge")
    deltalake.DeltaTable(place).delete("id = 3")
    result = pyspark_lance.convert(place, uri, partition_expr="day")
    assert (result.rows, result.commits) == (10, 1)
    found = lance.dataset(uri).to_table()
    expected = pa.concat_tables([PARTITIONED, more], promote_options="default").filter(pa.compute.field("id") != 3)
    assert found.schema.field("day").type == pa.string()
    assert by_id(found) == by_id(expected)
    assert pyspark_lance.convert(place, uri, partition_expr="day").skipped == 1
    assert pyspark_lance.to_parquet(uri, tmp_path / "back", partition_by=["day"]) == 10


@pytest.mark.slow
def test_iceberg(spark, tmp_path, uri, lance):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    place = tmp_path / "iceberg"
    place.mkdir()
    catalog = sql.SqlCatalog("here", uri=f"sqlite:///{place}/catalog.db", warehouse=place.as_uri())
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=PARTITIONED.schema)
    table.append(PARTITIONED)
    with table.update_schema() as change:
        change.rename_column("s", "text")
    table = catalog.load_table("n.t")
    table.append(PARTITIONED.rename_columns(["id", "day", "d", "text", "st"]))
    result = pyspark_lance.convert(place / "n" / "t", uri, max_bytes_per_commit=1)
    assert (result.rows, result.commits) == (12, 2)
    found = lance.dataset(uri).to_table()
    assert found.schema.names == ["id", "day", "d", "text", "st"]
    twice = pa.concat_tables([PARTITIONED, PARTITIONED]).rename_columns(found.schema.names)
    assert by_id(found) == by_id(twice)
    assert pyspark_lance.convert(table.metadata_location, f"{uri}-2").rows == 12
    assert "parquet.field.id" not in str(found.schema.field("id").metadata)


@pytest.mark.parametrize("path", ["s", "s.x", "l.element.x", "m.value.x"])
def test_default_values_of_columns_that_iceberg_added_later_are_rejected(tmp_path, path):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("here", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    struct = pa.struct([("x", pa.int64())])
    columns = {"s": pa.int64() if path == "s" else struct, "l": pa.list_(struct), "m": pa.map_(pa.string(), struct)}
    table = catalog.create_table("n.t", schema=pa.schema(list(columns.items())))
    place = pathlib.Path(table.metadata_location.removeprefix("file://"))
    assert list_foreign_files(str(place), "iceberg").schema.names == ["s", "l", "m"]
    number = table.schema().find_field(path).field_id
    # pyiceberg writes no default values yet; Spark and others do.
    changed = re.sub(rf'("id":{number},"name":"\w+",)', r'\1"initial-default":5,', place.read_text())
    place.write_text(changed)
    with pytest.raises(UnsupportedError, match=rf"default values of the columns \['{re.escape(path)}'\]"):
        list_foreign_files(str(place), "iceberg")


def formats_of_a_jar():
    """Data sources in the place of the jars: a table of these reads the files that its newest metadata lists."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Table(DataSource):
        def schema(self):
            return "id long"

        def reader(self, schema):
            return Reader(self.options)

    class Reader(DataSourceReader):
        def __init__(self, options):
            self.options = options

        def read(self, partition):
            import pathlib

            import pyarrow.parquet as pq

            folder = pathlib.Path(self.options["path"])
            wanted = self.options.get("versionAsOf")
            newest = max(folder.glob("_delta_log/*.json" if wanted else "metadata/*.metadata.json"))
            log = newest if wanted is None else folder / "_delta_log" / f"{int(wanted):020}.json"
            for file in log.read_text().split():
                yield from ((one,) for one in pq.read_table(folder / file).column("id").to_pylist())

    def source(name):
        return type(name, (Table,), {"name": classmethod(lambda _: name)})

    return [source("delta"), source("iceberg")]


@pytest.fixture
def with_jars(spark, connect):
    """A session that has readers for Delta and Iceberg."""
    if connect:
        pytest.skip("a registered data source would stay in the session of the other tests")
    session = spark.newSession()
    for one in formats_of_a_jar():
        session.dataSource.register(one)
    return session


METADATA = {"delta": "_delta_log/{:020}.json", "iceberg": "metadata/v{}.metadata.json"}


def new_version(source, form, number, *files):
    place = source / METADATA[form].format(number)
    place.parent.mkdir(exist_ok=True, parents=True)
    place.write_text("\n".join(files))


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", METADATA)
def test_a_table_that_spark_reads_is_converted_again_once_it_has_another_version(with_jars, form, uri, lance, tmp_path):
    source, convert = tmp_path / "source", partial(pyspark_lance.convert, spark=with_jars)
    put(source, "a.parquet", id=[0, 1, 2])
    put(source, "b.parquet", id=[*range(3, 10)])
    new_version(source, form, 1, "a.parquet")
    assert (convert(source, uri, mode="append").rows, ids(lance, uri)) == (3, [0, 1, 2])
    for mode in ("append", "create", "overwrite"):  # there is nothing new
        again = convert(source, uri, mode=mode)
        assert (again.version, again.commits, again.skipped) == (1, 0, 1)
    new_version(source, form, 2, "a.parquet", "b.parquet")
    for mode in ("append", "create"):
        with pytest.raises(InvalidInputError, match=r"another version .* Spark's reader .*mode='overwrite'.* Nothing"):
            convert(source, uri, mode=mode)
    assert (lance.dataset(uri).version, ids(lance, uri)) == (1, [0, 1, 2])
    for verify in (False, True):
        result = convert(source, uri, mode="overwrite", verify=verify)
        assert (result.rows, ids(lance, uri)) == (0 if result.skipped and not verify else 10, [*range(10)])
        assert (result.commits, result.skipped) == ((0, 1) if verify else (1, 0))
    # The same version again, of a table that was made again.
    new_version(source, form, 2, "b.parquet")
    with pytest.raises(InvalidInputError, match="another version"):
        convert(source, uri, mode="append")
    assert convert(source, uri, mode="overwrite").rows == 7
    assert ids(lance, uri) == [*range(3, 10)]


def test_a_table_that_spark_reads_without_a_version_is_rejected(with_jars, uri, tmp_path):
    (tmp_path / "source" / "_delta_log").mkdir(parents=True)
    for form in METADATA:
        with pytest.raises(UnsupportedError, match=rf"Spark reads it as {form}, but there are no files .*Nothing was"):
            pyspark_lance.convert(tmp_path / "source", uri, spark=with_jars, source_format=form)
    assert not pathlib.Path(uri).exists()


def test_rows_that_a_table_format_has_written_again_are_not_appended_twice(spark, tmp_path, uri, lance):
    deltalake = pytest.importorskip("deltalake")
    place = str(tmp_path / "delta")
    for number in (1, 2):
        deltalake.write_deltalake(place, pa.table({"id": [number]}), mode="append")
    convert = partial(pyspark_lance.convert, place, uri, mode="append")
    assert (convert().rows, ids(lance, uri)) == (2, [1, 2])
    deltalake.write_deltalake(place, pa.table({"id": [3]}), mode="append")
    assert (convert().rows, ids(lance, uri)) == (1, [1, 2, 3])
    deltalake.DeltaTable(place).optimize.compact()
    with pytest.raises(InvalidInputError, match=r"3 files were deleted, .*mode='overwrite'"):
        convert()
    assert ids(lance, uri) == [1, 2, 3]
    assert pyspark_lance.convert(place, uri, mode="overwrite").rows == 3


def test_sources_that_cannot_be_converted(spark, folder, uri, tmp_path, monkeypatch):
    pyspark_lance.write(spark.range(3), uri)
    with pytest.raises(DatasetExistsError, match="was not converted from"):
        pyspark_lance.convert(folder, uri)
    assert pyspark_lance.convert(folder, uri, mode="overwrite").rows == 100
    with pytest.raises(InvalidInputError, match="nothing at"):
        pyspark_lance.convert(tmp_path / "nowhere", f"{uri}-2")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UnsupportedError, match="pip install deltalake"):
        pyspark_lance.convert(tmp_path / "delta", f"{uri}-2")
    with pytest.raises(LanceError, match=r"differ: .*hashes of id"):
        _compare(spark.range(3), spark.range(1, 4), "a and b")
