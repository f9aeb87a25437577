"""The tables of docs/spark.md: what Spark's writers do by the kind of name, and partitions of all types."""

import re
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812, TID253 - as the guide calls it

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError

GUIDE = Path(__file__).parents[3].joinpath("docs", "spark.md").read_text()
TAKEN = {"appends": [0, 1, 2, 10, 11], "replaces all rows": [10, 11]}


def table_of(heading):
    """The rows of a table of the guide, as lists of cells."""
    lines = GUIDE[GUIDE.index(heading) :].splitlines()
    rows = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
    return rows


WRITERS = table_of("| writer | temporary view")
TYPES = table_of("| type of the column |")
CELLS = [(row[0].strip("`"), place, cell) for row in WRITERS for place, cell in enumerate(row[1:])]
COLUMNS = [(kind, row[1:]) for row in TYPES for kind in re.findall(r"`([^`]+)`", row[0])]
VALUES = {
    "string": ("'ß'", "'b/c d'", "'ä'"),
    "boolean": ("true", "false", "false"),
    "date": ("DATE'2024-03-10'", "DATE'1969-12-31'", "DATE'2024-02-29'"),
    "timestamp": ("TIMESTAMP'2024-03-10 06:30:00Z'", "TIMESTAMP'2024-11-03 05:30:00Z'", "TIMESTAMP'1969-01-01 00:00:00Z'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ'2024-03-10 02:30:00'", "TIMESTAMP_NTZ'2024-11-03 01:30:00'", "TIMESTAMP_NTZ'1969-01-01 00:00:00'"),
    "float": ("1.5", "float('NaN')", "0"),
    "double": ("-1.5", "double('NaN')", "double('Infinity')"),
    "binary": ("x'00ff'", "x''", "x'61'"),
}  # fmt: skip
CONSTANTS = {"timestamp": "'2024-03-10T06:30:00+00:00'", "timestamp_ntz": "'2024-03-10 02:30:00'"}


@pytest.fixture
def names(spark, uri):
    """The kinds of names, for a table with the ids 0, 1 and 2."""
    pyspark_lance.register_catalog(spark, "lake", Path(uri).parent)
    pyspark_lance.write(spark.range(3), uri)
    spark.sql(f"CREATE TEMPORARY VIEW seen USING lance OPTIONS (path '{uri}')")
    spark.sql(f"CREATE TABLE listed (id bigint) USING lance OPTIONS (path '{uri}')")
    yield [["seen"], ["listed"], ["lake.table", f"lance.`{uri}`"]]
    spark.catalog.dropTempView("seen")
    for name in ("seen", "listed"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.variants(9)
@pytest.mark.parametrize(("call", "place", "cell"), CELLS)
def test_what_a_writer_does(spark, uri, names, call, place, cell):
    assert len(CELLS) == 3 * 11
    df = spark.range(10, 12)
    df.createOrReplaceTempView("df")
    for name in names[place]:
        if call.startswith("INSERT"):
            runs = lambda: spark.sql(call.replace("name", name))  # noqa: E731, B023 - called at once
        else:
            runs = lambda: eval(call, {"df": df, "name": name, "F": F})  # noqa: E731, B023 - the guide's own
        if cell == "an error":
            with pytest.raises(Exception, match=r"[A-Za-z]"):
                runs()
        else:
            runs()
        ids = sorted(lance_core.dataset(uri).to_table()["id"].to_pylist())
        assert ids == TAKEN.get(cell, [0, 1, 2])
        assert lance_core.dataset(uri).version == (2 if cell in TAKEN else 1)
        if cell == "makes a table of Spark's own":
            assert spark.table("spark_catalog.default.seen").count() == 2


def rows(spark, kind, first, values):
    """Rows with ids from a number on, and these values of the partition column."""
    selects = [f"SELECT {first + i} AS id, cast({value} AS {kind}) AS p" for i, value in enumerate(values)]
    return spark.sql(" UNION ALL ".join(selects))


def ids(uri):
    return sorted(lance_core.dataset(uri).to_table()["id"].to_pylist())


@pytest.mark.variants(4)
@pytest.mark.parametrize(("kind", "cells"), COLUMNS, ids=[kind for kind, _ in COLUMNS])
def test_partitions_of_a_type(spark, uri, kind, cells):
    one, two, three = VALUES.get(kind, ("1", "2", "3"))
    pyspark_lance.register_catalog(spark, "lake", Path(uri).parent)
    dynamic = {"mode": "overwrite", "partition_by": ["p"], "partition_overwrite": "dynamic"}
    pyspark_lance.write(rows(spark, kind, 0, [one, two, three, "NULL", one]), uri, partition_by=["p"])
    pyspark_lance.write(rows(spark, kind, 10, [one, "NULL"]), uri, **dynamic)
    assert cells[0] == "the partitions with rows"
    assert ids(uri) == [1, 2, 10, 11]

    pyspark_lance.sql(spark, f"CREATE TABLE lake.made (id INT, p {kind}) PARTITIONED BY (p)")
    made = str(Path(uri).parent / "made.lance")
    rows(spark, kind, 0, [one, two, three, "NULL"]).createOrReplaceTempView("given")
    pyspark_lance.sql(spark, "INSERT INTO lake.made SELECT * FROM given")
    rows(spark, kind, 10, [two]).createOrReplaceTempView("given")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        pyspark_lance.sql(spark, "INSERT OVERWRITE lake.made SELECT * FROM given")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert cells[1] == "the partitions with rows"
    assert ids(made) == ([0, 3, 10] if two == three else [0, 2, 3, 10])

    rows(spark, kind, 20, [one]).createOrReplaceTempView("given")
    statement = f"INSERT INTO lake.made REPLACE WHERE p = {CONSTANTS.get(kind, one)} SELECT * FROM given"
    if cells[2] == "an error":
        with pytest.raises(InvalidInputError, match="REPLACE WHERE"):
            pyspark_lance.sql(spark, statement)
        assert 0 in ids(made)
    else:
        pyspark_lance.sql(spark, statement)
        assert ids(made) == ([3, 10, 20] if two == three else [2, 3, 10, 20])


@pytest.mark.parametrize("place", ["OPTIONS (path '{}')", "LOCATION '{}'", ""])
def test_a_table_of_sparks_own_catalog_is_rejected_where_spark_asks_for_its_columns(spark, uri, place):
    pyspark_lance.write(spark.range(3), uri)
    with pytest.raises(Exception, match=r"CREATE TEMPORARY VIEW t USING lance OPTIONS .* pyspark_lance\.sql"):
        spark.sql(f"CREATE TABLE never USING lance {place.format(uri)}")
    assert not spark.catalog.tableExists("never")
    assert pyspark_lance.read(spark, uri).count() == 3
