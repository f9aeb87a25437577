"""The condition of a write that replaces rows, which is read with a table in memory."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import LanceError
from lance_core.store import memory
from pyspark_lance.writing import job
from pyspark_lance.writing.job import prepare_write
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.update_commit import find_rows_where

ROWS = pa.table({"id": [1]})


@pytest.mark.parametrize("condition", ["id = 1", "nonsense = 1", "id =", "id = 'x'"])
def test_a_condition_leaves_nothing_in_memory(uri, condition):
    lance_core.write_dataset(ROWS, uri)
    before = set(memory._objects)
    try:
        prepare_write(ROWS.schema, uri, WriteArguments(mode="overwrite", replace_where=condition))
    except LanceError:
        assert condition != "id = 1"
    else:
        assert condition == "id = 1"
    assert set(memory._objects) == before


@pytest.mark.parametrize(
    ("condition", "is_again"), [("d >= 5 and d < 15", True), ("d % 3 = 1", True), ("d > 9 and d < 15", False)]
)
def test_of_two_replacements_of_rows_that_were_not_there_the_later_one_counts(
    spark, uri, monkeypatch, condition, is_again
):
    pyspark_lance.write(spark.sql("select 100 as d, 0 as n"), uri)
    searched = []

    def find_rows(dataset, sql):
        rows = find_rows_where(dataset, sql)
        searched.append(dataset.version)
        if len(searched) == 1:
            other = spark.sql(f"select d, 1 as n from (select cast(id as int) as d from range(20)) where {condition}")
            pyspark_lance.write(other, uri, mode="overwrite", replace_where=condition)
        return rows

    monkeypatch.setattr(job, "find_rows_where", find_rows)
    pyspark_lance.write(spark.sql("select 7 as d, 2 as n"), uri, mode="overwrite", replace_where="d >= 0 and d < 10")
    assert searched == ([1, 1, 2] if is_again else [1, 1])
    rows = lance_core.dataset(uri).to_table(filter="d < 10").to_pylist()
    assert rows == [{"d": 7, "n": 2}]
