"""Equal keys: `merge`, `delete` and `merge_on` find what a join of Spark's finds."""

import math
import pathlib

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing import merge_frames
from pyspark_lance.keys.equality import join_by_key, normalize_keys
from pyspark_lance.types.arrow_types import SPARK_TYPE

# Type, keys of the table, keys of the source.
KEYS = {
    "double": ("double", ["0.0D", "double('NaN')", "1.5D", "null"], ["-0.0D", "double('NaN')", "2.5D", "null"]),
    "lower": ("string collate UTF8_LCASE", ["'abc'", "'ς'", "'i\u0307'"], ["'ABC'", "'Σ'", "'\u0130'", "'new'"]),
    "float": ("float", ["float(-0.0)", "float('NaN')", "float(0.1)"], ["float(0.0)", "float('NaN')", "float(0.2)"]),
    "trimmed": ("string collate UTF8_BINARY_RTRIM", ["'abc'", "'x '"], ["'abc  '", "'x'", "' x'"]),
    "both": ("string collate UTF8_LCASE_RTRIM", ["'abc'", "'x '"], ["'ABC  '", "'X'", "' x'"]),
    "binary": ("binary", ["X'00'", "X''", "null"], ["X'00'", "X'0000'", "X''"]),
    "decimal": ("decimal(38,3)", ["1.5", "-99999999999999999999999999999999999.999"], ["1.500", "-99999999999999999999999999999999999.999", "3"]),
    "timestamp": ("timestamp", ["timestamp'2020-01-01 00:00:00'"], ["timestamp'2020-01-01 00:00:00'", "timestamp'0001-01-01 00:00:00'"]),
    "ntz": ("timestamp_ntz", ["timestamp_ntz'2020-01-01 00:00:00'"], ["timestamp_ntz'2020-01-01 00:00:00'", "timestamp_ntz'9999-01-01 00:00:00'"]),
    "date": ("date", ["date'2020-01-01'"], ["date'2020-01-01'", "date'0001-01-01'"]),
    "interval": ("interval day to second", ["interval '1' day"], ["interval '24' hour", "interval '1' second"]),
    "boolean": ("boolean", ["true", "null"], ["true", "false"]),
    "tinyint": ("tinyint", ["-128", "127"], ["127", "0"]),
    "bigint": ("bigint", ["-9223372036854775808", "9223372036854775807"], ["9223372036854775807", "0"]),
}  # fmt: skip
QUICK = ("double", "lower")


def frame(spark, kind, keys, x):
    rows = [f"select cast({key} as {kind}) as k, {number} as n, {x} as x" for number, key in enumerate(keys)]
    return spark.sql(" union all ".join(rows))


def numbers(uri):
    """The rows without their keys, some of which equal nothing in Python."""
    rows = lance_core.dataset(uri).to_table(columns=["n", "x"]).to_pylist()
    return sorted((row["x"], row["n"]) for row in rows)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KEYS]
)
def test_all_interfaces_agree_with_a_join(spark, tmp_path, monkeypatch, name):
    kind, old, new = KEYS[name]
    table, source = frame(spark, kind, old, 0).coalesce(1), frame(spark, kind, new, 1).coalesce(1)
    left = [(0, row.n) for row in table.join(source, table.k == source.k, "left_anti").collect()]
    expected = sorted(left + [(1, number) for number in range(len(new))])
    places = [str(tmp_path / place) for place in ("merge", "merge_on", "delete", "joined")]
    for uri in places:
        pyspark_lance.write(table, uri)
    pyspark_lance.merge(source, places[0], on="k")
    monkeypatch.setattr(merge_frames, "_LOOKUP_ROWS", 0)  # as with large tables
    pyspark_lance.merge(source, places[3], on="k")
    source.write.format("lance").mode("append").option("merge_on", "k").save(places[1])
    assert pyspark_lance.delete(places[2], source, on="k").rows_deleted == len(old) - len(left)
    assert [numbers(uri) for uri in places] == [expected, expected, sorted(left), expected]


@pytest.mark.slow
def test_a_collation_that_only_spark_knows(spark, uri):
    kind = "string collate UNICODE_CI"
    pyspark_lance.write(frame(spark, kind, ["'straße'", "'x'"], 0), uri)
    source = frame(spark, kind, ["'STRASSE'", "'X'", "'y'"], 1)
    with pytest.raises(Exception, match=r"merge_on: column 'k' has the collation UNICODE_CI.*pyspark_lance.merge"):
        source.write.format("lance").mode("append").option("merge_on", "k").save(uri)
    assert pyspark_lance.merge(source, uri, on="k").rows_updated in (1, 2)
    twice = frame(spark, kind, ["'new'", "'NEW'"], 1)
    with pytest.raises(InvalidInputError, match="several rows of the source have the key k = 'n"):
        pyspark_lance.merge(twice.repartition(2), uri, on="k")


@pytest.mark.slow
def test_strings_are_compared_by_the_collation_of_the_table(spark, uri):
    pyspark_lance.write(frame(spark, "string collate UTF8_LCASE", ["'abc'"], 0), uri)
    pyspark_lance.merge(spark.sql("select 'ABC' as k, 0 as n, 1 as x"), uri, on="k")
    assert numbers(uri) == [(1, 0)]


def test_every_row_of_a_key_is_updated(spark, tmp_path):
    for verb in ("merge", "merge_on"):
        uri = str(tmp_path / verb)
        lance_core.write_dataset(pa.table({"k": [1, 1, 2], "n": [0, 1, 2], "x": [0, 0, 0]}), uri)
        source = spark.sql("select 1L as k, 7L as n, 1L as x union all select 3L, 8L, 1L").coalesce(1)
        if verb == "merge":
            pyspark_lance.merge(source, uri, on="k")
        else:
            source.write.format("lance").mode("append").option("merge_on", "k").save(uri)
        assert numbers(uri) == [(0, 2), (1, 7), (1, 7), (1, 8)], verb


def test_equal_keys_in_different_form_are_one_key_twice(spark, uri):
    for keys in (["double('NaN')", "double('NaN')"], ["0.0D", "-0.0D"]):
        twice = frame(spark, "double", keys, 0)
        with pytest.raises(InvalidInputError, match="several rows of the source have the key k = "):
            pyspark_lance.merge(twice, uri, on="k")
    assert not pathlib.Path(uri).exists()
    pyspark_lance.write(frame(spark, "double", ["1D"], 0), uri)
    for write in (
        lambda: pyspark_lance.merge(twice, uri, on="k"),
        lambda: twice.write.format("lance").mode("append").option("merge_on", "k").save(uri),
    ):
        with pytest.raises(Exception, match="several rows of the source have the key k = "):
            write()
    assert lance_core.dataset(uri).version == 1


def test_keys_that_cannot_be_compared_are_rejected_before_a_job(spark, uri):
    for key, name in {"struct(id) as k": "struct", "map(id, id) as k": "map"}.items():
        place = f"{uri}-{name}"
        pyspark_lance.write(spark.range(2).selectExpr(key, "id as x"), place)
        boom = spark.range(2).selectExpr(key, "assert_true(id > 5) is null as x")
        for verb in (
            lambda boom=boom, place=place: pyspark_lance.merge(boom, place, on="k"),
            lambda boom=boom, place=place: pyspark_lance.merge(boom, f"{place}-new", on="k"),
            lambda boom=boom, place=place: pyspark_lance.delete(place, boom, on="k"),
        ):
            with pytest.raises(SchemaError, match=f"on: the values of column 'k' of type {name}.* cannot be compared"):
                verb()


def test_bytes_of_equal_keys():
    table = pa.table({"f": pa.array([0.0, -0.0, math.nan, None, 1.0]), "i": pa.array([0, 1, 2, 3, None])})
    found = normalize_keys(table)
    assert str(found.to_pylist()) == str(
        pa.table({**table.to_pydict(), "f": [0.0, 0.0, math.nan, None, 1.0]}).to_pylist()
    )
    field = pa.field("s", pa.string(), metadata={SPARK_TYPE: b"string collate UTF8_LCASE_RTRIM"})
    texts = pa.table([["ABC ", "\u0130", "\u03c2\u03a3", None, " x"]], schema=pa.schema([field]))
    assert normalize_keys(texts).column(0).to_pylist() == ["abc", "i\u0307", "\u03c3\u03c3", None, " x"]


@pytest.mark.slow
def test_every_letter_is_as_in_spark(spark):
    """UTF8_LCASE of Spark against `normalize_keys`. Letters that are too new for Spark's version of Unicode are left out."""
    points = [point for point in range(32, 0x1F000) if not 0xD800 <= point < 0xE000]
    letters = spark.createDataFrame(pa.table({"s": [f"x{chr(point)}y" for point in points]}))
    field = pa.field("s", pa.string(), metadata={SPARK_TYPE: b"string collate UTF8_LCASE"})
    texts = pa.Table.from_arrays([letters.toArrow().column(0)], schema=pa.schema([field]))
    ours = normalize_keys(texts).column(0).to_pylist()
    compared = spark.createDataFrame(pa.table({"s": texts.column(0), "ours": ours})).where("s = ours or lower(s) <> s")
    assert compared.count() > len(points) - 100
    unlike = compared.where("not (s collate UTF8_LCASE = ours collate UTF8_LCASE)").collect()
    assert len(unlike) == 0
    groups = compared.groupBy("ours").agg({"s": "count"}).count()
    assert compared.selectExpr("s collate UTF8_LCASE as s").distinct().count() == groups


@pytest.mark.parametrize("verb", ["merge", "merge_on", "delete"])
def test_large_integers_are_not_compared_as_floats(spark, uri, verb):
    large = 2**53
    lance_core.write_dataset(pa.table({"k": [1, large, large + 1], "n": [0, 1, 2]}), uri)
    source = spark.createDataFrame(pa.table({"k": [1.0, float(large)], "n": [7, 8]})).coalesce(1)
    if verb == "merge":
        pyspark_lance.merge(source, uri, on="k")
    elif verb == "merge_on":
        source.write.format("lance").mode("append").option("merge_on", "k").save(uri)
    else:
        assert pyspark_lance.delete(uri, source, on="k").rows_deleted == 2
    rows = {row["k"]: row["n"] for row in lance_core.dataset(uri).to_table().to_pylist()}
    assert rows == ({large + 1: 2} if verb == "delete" else {1: 7, large: 8, large + 1: 2})


@pytest.mark.parametrize("is_early", [False, True])
def test_keys_are_joined_by_any_pyarrow(uri, monkeypatch, is_early):
    from pyarrow import acero

    if is_early:  # before pyarrow 26
        monkeypatch.delattr(acero, "RecordBatchReaderSourceNodeOptions", raising=False)
    table = pa.table({"id": range(1000), "x": range(1000)})
    dataset = lance_core.write_dataset(table, uri, max_rows_per_file=100)
    keys = pa.table({"id": [5, None, 999, 1001], "n": [1, 2, 3, 4]})
    found = pa.Table.from_batches(join_by_key(dataset, keys, ["x"]))
    assert sorted(found.to_pylist(), key=str) == [{"x": 5, "n": 1}, {"x": 999, "n": 3}]
