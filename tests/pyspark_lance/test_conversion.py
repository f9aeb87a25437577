"""Conversion from and to other formats: every row and value, groups that are passed over, and what is refused."""

import sys

import pyarrow as pa
import pytest

import pyspark_lance
from lance_core.errors import DatasetExistsError, InvalidInputError, LanceError, UnsupportedError
from pyspark_lance import convert as convert_function
from pyspark_lance.conversion import _compare, _Group

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


@pytest.mark.slow
def test_a_conversion_that_was_cut_short_goes_on(spark, folder, uri, lance, monkeypatch):
    done = []

    def cut_short(*arguments, **options):
        if len(done) == 2:
            raise LanceError("the power went")
        done.append(options["once"])
        return pyspark_lance.write(*arguments, **options)

    monkeypatch.setattr("pyspark_lance.conversion.write", cut_short)
    with pytest.raises(LanceError, match="the power went"):
        pyspark_lance.convert(folder, uri, max_bytes_per_commit=1)
    monkeypatch.undo()
    result = pyspark_lance.convert(folder, uri, max_bytes_per_commit=1)
    assert (result.rows, result.skipped) == (100, 2)
    assert lance.dataset(uri).version == result.commits + 2


PARTITIONED = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "day": ["01", "02", "a b", None, "01", "x=y%"],  # texts, though some look like numbers
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


def test_what_cannot_be_converted_is_said(spark, folder, uri, tmp_path, monkeypatch):
    pyspark_lance.write(spark.range(3), uri)
    with pytest.raises(DatasetExistsError, match="not one of a conversion"):
        pyspark_lance.convert(folder, uri)
    assert pyspark_lance.convert(folder, uri, mode="overwrite").rows == 100
    with pytest.raises(InvalidInputError, match="nothing at"):
        pyspark_lance.convert(tmp_path / "nowhere", f"{uri}-2")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UnsupportedError, match="pip install deltalake"):
        pyspark_lance.convert(tmp_path / "delta", f"{uri}-2")
    with pytest.raises(LanceError, match=r"differ: .*hashes of id"):
        _compare([_Group("", spark.range(3))], spark.range(1, 4), "a and b")
