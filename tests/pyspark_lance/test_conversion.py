"""Conversion from and to other formats: every row and value, groups that are passed over, and what is refused."""

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


def test_what_cannot_be_converted_is_said(spark, folder, uri, tmp_path):
    pyspark_lance.write(spark.range(3), uri)
    with pytest.raises(DatasetExistsError, match="not one of a conversion"):
        pyspark_lance.convert(folder, uri)
    assert pyspark_lance.convert(folder, uri, mode="overwrite").rows == 100
    with pytest.raises(InvalidInputError, match="nothing at"):
        pyspark_lance.convert(tmp_path / "nowhere", f"{uri}-2")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    with pytest.raises(UnsupportedError, match="pip install deltalake"):
        pyspark_lance.convert(tmp_path / "delta", f"{uri}-2")
    with pytest.raises(LanceError, match=r"differ: .*hashes of id"):
        _compare([_Group("", spark.range(3))], spark.range(1, 4), "a and b")
