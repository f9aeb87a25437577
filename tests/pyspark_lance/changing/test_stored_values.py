"""Values of structs, lists and maps in UPDATE, MERGE and INSERT: which field each goes to, and what does not fit."""

import decimal
import pathlib

import lance
import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import LanceError, SchemaError
from pyspark_lance import LanceTable

D = decimal.Decimal
COLUMNS = "id bigint, i struct<x:int,y:int>, f struct<x:double,y:double>, l array<struct<x:float,y:decimal(4,2)>>"
SWAPPED = (
    "named_struct('y', {0}, 'x', {1}) as i, named_struct('Y', {0}D, 'X', {1}D) as f, "
    "array(named_struct('y', {0}.5D, 'x', {1})) as l"
)
STORED = {"i": {"x": 2, "y": 1}, "f": {"x": 2.0, "y": 1.0}, "l": [{"x": 2.0, "y": D("1.50")}]}


@pytest.fixture
def table(spark, uri):
    pyspark_lance.sql(spark, f"CREATE TABLE lance.`{uri}` ({COLUMNS})")
    pyspark_lance.sql(spark, f"INSERT INTO lance.`{uri}` VALUES (1L, null, null, null)")
    return str(uri)


@pytest.fixture
def without_ansi(spark):
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield
    spark.conf.set("spark.sql.ansi.enabled", before)


def values(uri):
    return [{**row, "id": 1} for row in lance_core.dataset(uri).to_table().to_pylist()]


def by_update(spark, uri, _):
    sets = SWAPPED.format(1, 2).replace(" as i, ", ", f = ").replace(" as f, ", ", l = ").replace(" as l", "")
    pyspark_lance.sql(spark, f"UPDATE lance.`{uri}` SET i = {sets}")


def by_statement(spark, uri, source):
    source.createOrReplaceTempView("stored_values")
    pyspark_lance.sql(
        spark,
        f"MERGE INTO lance.`{uri}` t USING stored_values s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *",
    )


def by_values(spark, uri, source):
    source.createOrReplaceTempView("stored_values")
    pyspark_lance.sql(
        spark,
        f"MERGE INTO lance.`{uri}` t USING stored_values s ON t.id = s.id AND t.id > 0 "
        "WHEN MATCHED THEN UPDATE SET i = s.i, f = s.f, l = s.l",
    )


def by_table(spark, uri, source):
    merge = LanceTable.forPath(spark, uri).alias("t").merge(source.alias("s"), "t.id = s.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def by_merge(spark, uri, source):
    pyspark_lance.merge(source, uri, on="id")


def by_source(spark, uri, source):
    source.write.format("lance").mode("append").option("merge_on", "id").save(uri)


def by_name(spark, uri, source):
    source.createOrReplaceTempView("stored_values")
    pyspark_lance.sql(spark, f"INSERT OVERWRITE lance.`{uri}` BY NAME SELECT f, l, i, id FROM stored_values")


@pytest.mark.variants(2)
@pytest.mark.parametrize("way", [by_update, by_statement, by_values, by_table, by_merge, by_source, by_name])
def test_fields_of_structs_go_by_their_names(spark, table, way):
    way(spark, table, spark.sql(f"SELECT 1L as id, {SWAPPED.format(1, 2)}"))
    assert values(table) == [{"id": 1, **STORED}]


def test_an_insert_by_position_does_what_it_does_in_tables_of_spark(spark, table):
    spark.sql(f"CREATE TABLE stored_values_plain ({COLUMNS}) USING parquet")
    try:
        for name in ("stored_values_plain", f"lance.`{table}`"):
            pyspark_lance.sql(spark, f"INSERT OVERWRITE {name} SELECT 1L, {SWAPPED.format(1, 2)}")
        expected = [row.asDict(recursive=True) for row in spark.table("stored_values_plain").collect()]
    finally:
        spark.sql("DROP TABLE stored_values_plain")
    assert values(table) == expected


@pytest.mark.parametrize("way", [by_statement, by_values, by_table])
def test_a_struct_with_other_fields_is_rejected(spark, table, way):
    before = lance_core.dataset(table).version
    source = spark.sql("SELECT 1L as id, named_struct('x', 1, 'z', 2) as i, struct(1D, 2D) as f, array() as l")
    with pytest.raises(SchemaError, match=r"column 'i' is of type .* give it the fields \['x', 'y'\], named_struct"):
        way(spark, table, source)
    assert lance_core.dataset(table).version == before


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("i = named_struct('x', 5000000000L, 'y', 1)", "i.x"),
        ("i.x = 5000000000L", "i.x"),
        ("l = array(named_struct('x', 1F, 'y', 500))", "l.*y"),
        ("l = array(named_struct('x', 1F, 'y', 500D))", "l.*y"),
    ],
)
def test_what_does_not_fit_a_field_is_rejected_without_ansi_as_well(spark, table, without_ansi, value, path):
    """Spark's cast would wrap the number, or make it null."""
    pyspark_lance.sql(spark, f"UPDATE lance.`{table}` SET i = named_struct('x', 1, 'y', 2)")
    before = lance_core.dataset(table).version, sorted(one.name for one in pathlib.Path(table, "data").iterdir())
    with pytest.raises(LanceError, match=rf"column '{path}': the value 50+(\.0)? of type \w+ does not fit the table's"):
        pyspark_lance.sql(spark, f"UPDATE lance.`{table}` SET {value}")
    assert before == (
        lance_core.dataset(table).version,
        sorted(one.name for one in pathlib.Path(table, "data").iterdir()),
    )


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE {t} SET l.x = 1F", r"'l' is of type list<.*, and 'l\.x' is not a field of a struct: set 'l' whole"),
        ("UPDATE {t} SET id.x = 1", r"'id' is of type int64, and 'id\.x' is not a field of a struct: set 'id' whole"),
        (
            "UPDATE {t} SET i.x = 'two'",
            r"column 'i\.x' is of type int, its value of type string: write cast\(value as int\) if that is meant",
        ),
        (
            "MERGE INTO {t} t USING (SELECT 2L AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, i.x) VALUES (2, 3)",
            r"'i\.x' is a field of a struct, whose other fields an inserted row lacks: give 'i' a value, named_struct",
        ),
    ],
)
def test_messages_name_the_field(spark, table, statement, match):
    before = lance_core.dataset(table).version
    with pytest.raises(SchemaError, match=match):
        pyspark_lance.sql(spark, statement.format(t=f"lance.`{table}`"))
    assert lance_core.dataset(table).version == before


def test_a_merge_without_a_key_is_rejected(spark, table):
    with pytest.raises(LanceError, match="on"):
        pyspark_lance.merge(spark.sql("SELECT 1L AS id"), table, on=None)


@pytest.fixture(params=["lance_core", "pylance"])
def blobs(uri, request):
    library = lance_core if request.param == "lance_core" else lance
    schema = pa.schema([pa.field("id", pa.int64()), library.blob_field("b")])
    rows = pa.table([pa.array([1, 2, 3]), library.blob_array([b"one", b"two" * 500, None])], schema=schema)
    library.write_dataset(rows, str(uri), data_storage_version="2.2")
    return str(uri)


@pytest.mark.variants(3)
@pytest.mark.parametrize("blob", ["X'01'", "named_struct('data', X'01', 'uri', cast(null as string))"])
@pytest.mark.parametrize("way", [by_merge, by_table, by_statement])
def test_blobs_are_merged_by_their_bytes(spark, blobs, way, blob):
    way(spark, blobs, spark.sql(f"SELECT * FROM VALUES (2L), (4L) AS t(id) LATERAL VIEW explode(array({blob})) AS b"))
    found = lance.dataset(blobs).to_table(blob_handling="all_binary").to_pylist()
    assert {row["id"]: row["b"] for row in found} == {1: b"one", 2: b"\x01", 3: None, 4: b"\x01"}


def test_the_data_source_merges_blobs_by_the_struct_of_a_read(spark, blobs):
    missing = ", ".join(f"'{name}', cast(null as decimal(20,0))" for name in ("position", "size"))
    parts = f"'data', X'01', 'uri', cast(null as string), {missing}"
    by_source(spark, blobs, spark.sql(f"SELECT id, named_struct({parts}) AS b FROM VALUES (2L), (4L) AS t(id)"))
    found = lance.dataset(blobs).to_table(blob_handling="all_binary").to_pylist()
    assert {row["id"]: row["b"] for row in found} == {1: b"one", 2: b"\x01", 3: None, 4: b"\x01"}


def test_a_blob_is_set_to_bytes(spark, blobs):
    pyspark_lance.sql(spark, f"UPDATE lance.`{blobs}` SET b = X'02' WHERE id > 1")
    found = lance.dataset(blobs).to_table(blob_handling="all_binary").to_pylist()
    assert {row["id"]: row["b"] for row in found} == {1: b"one", 2: b"\x02", 3: b"\x02"}


@pytest.fixture
def points(spark):
    """A view with user-defined types at each depth: id, and v, l, m and s with them."""
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql import types
    from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

    kind = types.StructType(
        [
            types.StructField("id", types.LongType()),
            types.StructField("v", VectorUDT()),
            types.StructField("l", types.ArrayType(ExamplePointUDT())),
            types.StructField("m", types.MapType(types.StringType(), ExamplePointUDT())),
            types.StructField("s", types.StructType([types.StructField("p", ExamplePointUDT())])),
        ]
    )
    point = ExamplePoint(1.0, 2.0)
    rows = [(1, Vectors.dense([1.0, 2.0]), [point, None], {"a": point}, (point,)), (2, None, None, None, None)]
    spark.createDataFrame(rows, kind).createOrReplaceTempView("points")
    return spark.table("points")


POINTS = {
    "INSERT": "INSERT INTO lance.`{0}` SELECT * FROM points",
    "BY NAME": "INSERT OVERWRITE lance.`{0}` BY NAME SELECT s, m, l, v, id FROM points",
    "MERGE *": "MERGE INTO lance.`{0}` t USING points s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
    "MERGE values": "MERGE INTO lance.`{0}` t USING points s ON t.id = s.id WHEN NOT MATCHED THEN"
    " INSERT (id, v, l, m, s) VALUES (s.id, s.v, s.l, s.m, s.s)",
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("way", POINTS)
def test_user_defined_types_are_stored_as_a_write_stores_them(spark, points, tmp_path, way):
    uri = str(tmp_path / "written.lance")
    pyspark_lance.write(points, uri)
    written = lance_core.dataset(uri).to_table().to_pylist()
    assert (written[0]["v"]["values"], written[0]["s"]) == ([1.0, 2.0], {"p": [1.0, 2.0]})
    other = str(tmp_path / "other.lance")
    pyspark_lance.write(points.where("false"), other)
    pyspark_lance.sql(spark, POINTS[way].format(other))
    assert sorted(lance_core.dataset(other).to_table().to_pylist(), key=lambda row: row["id"]) == written
    pyspark_lance.sql(
        spark, f"UPDATE lance.`{other}` SET v = (SELECT max_by(v, id) FROM points WHERE id = 1) WHERE id = 2"
    )
    update = (
        f"MERGE INTO lance.`{other}` t USING points s ON t.id = s.id WHEN MATCHED THEN UPDATE SET l = s.l, s.p = s.s.p"
    )
    pyspark_lance.sql(spark, update)
    changed = sorted(lance_core.dataset(other).to_table().to_pylist(), key=lambda row: row["id"])
    assert changed == [written[0], {**written[1], "v": written[0]["v"], "s": {"p": None}}]
