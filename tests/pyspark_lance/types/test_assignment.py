"""What a write stores where names or types of a DataFrame are not quite those of the table."""

import decimal
import math
import pathlib
import re

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.types.batch_convert import build_converter
from pyspark_lance.types.column_names import match_names, rename_like, source_indices

D = decimal.Decimal
TABLE = pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([10, 20], pa.int32()), "s": ["a", "b"]})


@pytest.fixture
def table(uri):
    lance_core.write_dataset(TABLE, uri)
    return uri


@pytest.fixture
def case_sensitive_session(spark):
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.set("spark.sql.caseSensitive", "false")


def state(uri):
    return lance_core.dataset(uri).version, sorted(path.name for path in pathlib.Path(uri, "data").iterdir())


def rows(uri):
    return sorted(tuple(row.values()) for row in lance_core.dataset(uri).to_table().to_pylist())


def by_source(frame, uri, mode="append", **options):
    frame.write.format("lance").mode(mode).options(**options).save(uri)


VERBS = {
    "append": pyspark_lance.write,
    "source": by_source,
    "merge": lambda frame, uri: pyspark_lance.merge(frame, uri, on="id"),
    "merge_on": lambda frame, uri: by_source(frame, uri, merge_on="id"),
    "replace": lambda frame, uri: pyspark_lance.write(frame, uri, mode="overwrite", replace_where="id = 1"),
}


def quick(*names):
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in VERBS]


@pytest.mark.parametrize("verb", quick("merge", "source"))
def test_literals_of_another_width(spark, table, verb):
    VERBS[verb](spark.sql("select 1L as id, 30L as n, 'c' as s"), table)
    assert (1, 30, "c") in rows(table)
    before = state(table)
    for value in ("3000000000L", "2.5D", "1.25"):
        with pytest.raises(
            Exception, match=rf"column 'n': the value {value.rstrip('LD')} of type .* the table's type int32"
        ):
            VERBS[verb](spark.sql(f"select 1L as id, {value} as n, 'c' as s"), table)
    with pytest.raises(Exception, match="column 'n': the DataFrame has string, the table int32"):
        VERBS[verb](spark.sql("select 1L as id, '5' as n, 'c' as s"), table)
    assert state(table) == before


@pytest.mark.parametrize("ansi", [pytest.param("true", marks=pytest.mark.slow), "false"])
def test_an_update_stores_no_other_value(spark, table, ansi):
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        with pytest.raises(InvalidInputError, match="column 'n': the value 3000000010 of type int64 does not fit"):
            pyspark_lance.update(table, {"n": "n + 3000000000L"}, "id = 1", spark=spark)
        with pytest.raises(InvalidInputError, match=r"column 'n': the value 12\.5 of type .* does not fit"):
            pyspark_lance.update(table, {"n": "n * 1.25D"}, "id = 1", spark=spark)
        with pytest.raises(
            SchemaError, match=r"column 'n' is of type int, \"'5'\" of type string: write cast\('5' as int\)"
        ):
            pyspark_lance.update(table, {"n": "'5'"}, spark=spark)
        assert lance_core.dataset(table).version == 1
        pyspark_lance.update(table, {"n": "cast('5' as int)", "s": "id + 1"}, "id = 2", spark=spark)
        pyspark_lance.update(table, {"n": "n * 1.5D + 1L"}, "id = 1", spark=spark)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert rows(table) == [(1, 16, "a"), (2, 5, "3")]


def test_an_update_rounds_to_the_digits_of_the_column(spark, uri):
    numbers = {"p": pa.array([D("9.99")], pa.decimal128(5, 2)), "f": pa.array([0.5], pa.float32()), "l": [[0.5]]}
    schema = pa.schema([("p", pa.decimal128(5, 2)), ("f", pa.float32()), ("l", pa.list_(pa.float32()))])
    lance_core.write_dataset(pa.table(numbers, schema=schema), uri)
    pyspark_lance.update(uri, {"p": "p * 1.155", "f": "f * 0.3D", "l": "transform(l, x -> x * 0.3D)"}, spark=spark)
    found = lance_core.dataset(uri).to_table().to_pylist()[0]
    assert found["p"] == D("11.54")
    assert math.isclose(found["f"], 0.15, rel_tol=1e-6)
    assert math.isclose(found["l"][0], 0.15, rel_tol=1e-6)
    with pytest.raises(InvalidInputError, match=r"column 'p': the value 11540\.00 of type"):
        pyspark_lance.update(uri, {"p": "p * 1000"}, spark=spark)


@pytest.mark.parametrize(
    ("source", "target", "kept", "other"),
    [
        (pa.int64(), pa.int8(), [-128, 127, None], 128),
        (pa.int64(), pa.uint64(), [0, 2**63 - 1], -1),
        (pa.decimal128(20, 0), pa.uint64(), [D(0), D(2**64 - 1)], D(-1)),
        (pa.float64(), pa.int64(), [2.0, -(2.0**63)], 2.0**63),
        (pa.float64(), pa.int64(), [2.0], math.nan),
        (pa.float64(), pa.float32(), [0.5, math.inf, math.nan, -0.0], 0.1),
        (pa.float64(), pa.float32(), [0.5], 1e300),
        (pa.int64(), pa.float64(), [2**53], 2**53 + 1),
        (pa.int64(), pa.decimal128(5, 2), [999, -999], 1000),
        (pa.decimal128(38, 18), pa.decimal128(5, 2), [D("1.50")], D("1.555")),
        (pa.decimal128(3, 1), pa.float32(), [D("0.1"), D("99.9")], None),
        (pa.decimal128(38, 2), pa.float64(), [D("0.10")], D("12345678901234567.89")),
        (pa.float64(), pa.decimal128(5, 2), [0.1, 2.5], 0.125),
        (pa.float64(), pa.decimal128(5, 2), [0.1], math.inf),
        (pa.float32(), pa.float16(), [0.5, math.nan], 65536.0),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_by_value(source, target, kept, other):
    change = build_converter(source, target, "c")
    found = change(pa.array(kept, source))
    assert found.type == target
    if source != pa.decimal128(3, 1):  # Arrow's own cast of floats to decimals is less exact
        assert str(found.cast(source, safe=False).to_pylist()) == str(pa.array(kept, source).to_pylist())
    if other is not None:
        with pytest.raises(InvalidInputError, match=rf"column 'c': the value {re.escape(str(other))}0* of type "):
            change(pa.array([*kept, other, *kept], source))


@pytest.mark.parametrize("verb", quick("append", "merge_on"))
def test_names_follow_the_rule_of_the_session(spark, table, verb):
    VERBS[verb](spark.sql("select 1 as ID, 30 as N, 'c' as S"), table)
    assert (1, 30, "c") in rows(table)
    assert lance_core.dataset(table).schema.names == ["id", "n", "s"]
    before = state(table)
    with pytest.raises(Exception, match=r"columns 'n' and 'N' (are both column 'n' of the table|differ only in case)"):
        VERBS[verb](spark.sql("select 1 as id, 30 as n, 'c' as s, 31 as N"), table)
    assert state(table) == before


@pytest.mark.parametrize("verb", quick("append", "source"))
def test_names_are_exact_where_case_matters(spark, table, verb, case_sensitive_session):
    before = state(table)
    with pytest.raises(Exception, match=r"'N'|agree in case"):
        VERBS[verb](spark.sql("select 1 as id, 30 as N, 'c' as s"), table)
    assert state(table) == before


def test_arguments_follow_the_rule_of_the_session(spark, table):
    frame = spark.sql("select 1 as Id, 30 as n, 'c' as s")
    pyspark_lance.merge(frame, table, on="ID", condition="source.N > target.N")
    by_source(frame, table, merge_on="iD")
    pyspark_lance.update(table, {"N": "n + 1"}, "ID = 1", spark=spark)
    assert rows(table) == [(1, 31, "c"), (2, 20, "b")]
    assert pyspark_lance.read(spark, table, columns=["ID", "S"], filter="N = 31").collect() == [(1, "c")]
    assert spark.read.format("lance").option("columns", "S,iD").load(table).columns == ["s", "id"]
    assert pyspark_lance.read(spark, table).select("ID").where("Id = 2").collect() == [(2,)]
    pyspark_lance.write(frame, table, mode="overwrite", partition_by=["ID"], partition_overwrite="dynamic")
    assert pyspark_lance.delete(table, frame, on="id").rows_deleted == 1
    assert pyspark_lance.delete(table, "ID = 2", spark=spark).rows_deleted == 1


def test_arguments_are_exact_where_case_matters(spark, table, case_sensitive_session):
    frame = spark.sql("select 1 as id, 30 as n, 'c' as s")
    for call in (
        lambda: pyspark_lance.merge(frame, table, on="ID"),
        lambda: pyspark_lance.update(table, {"N": "1"}, spark=spark),
        lambda: pyspark_lance.delete(table, frame, on="ID"),
        lambda: pyspark_lance.read(spark, table, columns=["ID"]),
        lambda: pyspark_lance.write(frame, table, partition_by=["ID"]),
    ):
        with pytest.raises(SchemaError, match=r"'ID'|'N'"):
            call()


def test_fields_of_structs_follow_the_rule(spark, uri):
    pyspark_lance.write(spark.sql("select 1 as id, struct(1 as a, array(struct(2 as b)) as l) as s"), uri)
    other = spark.sql("select 2 as id, struct(array(struct(20L as B)) as L, 10 as A) as S")
    pyspark_lance.write(other, uri)
    by_source(other.selectExpr("3 as id", "S"), uri)
    pyspark_lance.merge(other.selectExpr("4 as ID", "S"), uri, on="id")
    added = spark.sql("select 5 as id, struct(1 as A, array(struct(2 as b)) as l, 7 as new) as s")
    pyspark_lance.write(added, uri, schema_mode="add_columns")
    found = pyspark_lance.read(spark, uri).orderBy("id").selectExpr("id", "s.a", "s.l[0].b", "s.new").collect()
    assert found == [(1, 1, 2, None), (2, 10, 20, None), (3, 10, 20, None), (4, 10, 20, None), (5, 1, 2, 7)]


def test_matching_of_names():
    assert match_names(["A", "b", "c"], ["a", "b"]) == {"A": "a", "b": "b"}
    assert match_names(["A"], ["a"], exact=True) == {}
    with pytest.raises(SchemaError, match=r"column 'AB' could be any of \['Ab', 'aB'\]"):
        match_names(["AB"], ["Ab", "aB"])
    assert source_indices(["N", "x"], ["n", "N", "X"]) == [-1, 0, 1]
    table = pa.schema([("s", pa.struct([("a", pa.int64())]))])
    with pytest.raises(SchemaError, match=r"columns 's\.a' and 's\.A' are both column 's\.a'"):
        rename_like(table, pa.schema([("s", pa.struct([("A", pa.int64()), ("a", pa.int64())]))]))
