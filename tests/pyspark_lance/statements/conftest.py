"""A catalog with a table, and a function that runs statements about it."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance


@pytest.fixture
def lake(spark, tmp_path):
    root = str(tmp_path / "lake")
    pyspark_lance.register_catalog(spark, "lake", root)
    return root


@pytest.fixture
def table(lake):
    rows = pa.table({"id": pa.array(range(10)), "x": [i * 10 for i in range(10)], "s": [f"s{i}" for i in range(10)]})
    lance_core.write_dataset(rows, f"{lake}/nyc/t.lance", max_rows_per_file=4)
    return f"{lake}/nyc/t.lance"


@pytest.fixture
def sql(spark):
    def run(statement, **params):
        return [tuple(row) for row in pyspark_lance.sql(spark, statement, **params).collect()]

    return run
