"""Names: odd ones of columns and of fields, which the reference library can hold, and tables that SQL names."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import ArgumentTypeError, SchemaError
from pyspark_lance.releases import is_at_least


@pytest.fixture(params=["function", "source"])
def write(request, uri):
    """Writes a frame to the table, by either way."""

    def by_source(frame):
        frame.write.format("lance").mode("overwrite").save(uri)

    return by_source if request.param == "source" else lambda frame: pyspark_lance.write(frame, uri, mode="overwrite")


@pytest.fixture
def case_sensitive_session(spark):
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.set("spark.sql.caseSensitive", "false")


def test_fields_of_structs(spark, uri, write, lance):
    parts = {"a.b": 1, "a`b": 2, "": 3, "x y": 4, "é,;{}()\n\t=": 5}
    table = pa.table({"id": [1], "s": [parts], "list": [[parts]]})
    write(spark.createDataFrame(table))
    assert lance.dataset(uri).to_table().to_pylist() == table.to_pylist()
    assert lance_core.dataset(uri).to_table().to_pylist() == table.to_pylist()
    for frame in (pyspark_lance.read(spark, uri), spark.read.format("lance").load(uri)):
        assert frame.collect()[0].s.asDict() == parts
        assert frame.select("s.`a.b`", "s.`a``b`").collect() == [(1, 2)]


def test_names_that_differ_in_case(spark, uri, lance, connect):
    table = pa.table({"id": [1, 2], "a": [3, 4], "A": [5, 6], "s": [{"x": 1, "X": 2}] * 2})
    frame = spark.createDataFrame(table)
    if connect or not is_at_least((4, 0)):
        with pytest.raises(SchemaError, match=r"'a' and 'A' differ only in case: Spark.*caseSensitive"):
            pyspark_lance.write(frame, uri)
        lance_core.write_dataset(table, uri)
    else:
        pyspark_lance.write(frame, uri)
    assert lance.dataset(uri).to_table().to_pylist() == table.to_pylist()
    read = pyspark_lance.read(spark, uri)
    assert sorted(read.collect()) == sorted(frame.collect())
    assert pyspark_lance.read(spark, uri, columns=["A"]).where("A > 5").collect() == [(6,)]
    for change in (
        lambda: pyspark_lance.write(frame, uri, partition_by=["a"]),
        lambda: pyspark_lance.merge(frame, uri, on="id"),
        lambda: pyspark_lance.update(uri, {"a": "1"}, spark=spark),
        lambda: pyspark_lance.write_columns(frame, uri, on="id"),
    ):
        with pytest.raises(SchemaError, match=r"'a' and 'A' differ only in case: Spark.*caseSensitive"):
            change()
    assert lance.dataset(uri).version == 1


@pytest.mark.variants(6)
@pytest.mark.parametrize("setting", ["false", "true"])
@pytest.mark.parametrize(
    "verb",
    [
        lambda frame: frame.select("ID"),
        lambda frame: frame.select("ID", "id"),
        lambda frame: frame.select("Id"),
        lambda frame: frame.select("x").select("x"),
        lambda frame: frame.limit(1).select("ID"),
        lambda frame: frame.selectExpr("ID"),
        lambda frame: frame.drop("ID"),
        lambda frame: frame.drop("x"),
        lambda frame: frame.where("x > 5"),
        lambda frame: frame.where("ID > 3"),
    ],
)
def test_verbs_treat_names_that_differ_in_case_as_spark_does(spark, uri, setting, verb):
    table = pa.table({"id": [1, 2], "ID": [3, 4], "x": [5, 6]})
    lance_core.write_dataset(table, uri)
    answers = []
    spark.conf.set("spark.sql.caseSensitive", setting)
    try:
        for frame in (spark.createDataFrame(table), pyspark_lance.read(spark, uri)):
            try:
                answers.append((verb(frame).columns, sorted(verb(frame).collect())))
            except Exception as error:  # noqa: BLE001 - Spark's, of the session's kind
                answers.append(error.getCondition())
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")
    assert answers[0] == answers[1]


def test_names_that_differ_by_case_in_the_session(spark, uri, write, lance, case_sensitive_session):
    table = pa.table({"id": [1, 2], "a": [3, 4], "A": [5, 6]})
    frame = spark.createDataFrame(table)
    write(frame)
    assert lance.dataset(uri).to_table().to_pylist() == table.to_pylist()
    for read in (pyspark_lance.read(spark, uri), spark.read.format("lance").load(uri)):
        assert read.select("A").where("A > 5").collect() == [(6,)]
        assert read.where("a > 3").select("A", "a").collect() == [(6, 4)]
    pyspark_lance.merge(frame.where("id = 2").selectExpr("id", "a + 10 as a", "A + 20 as A"), uri, on="id")
    pyspark_lance.update(uri, {"A": "a + A"}, "id = 1", spark=spark)
    rows = lance.dataset(uri).to_table().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "a": 3, "A": 8}, {"id": 2, "a": 14, "A": 26}]
    pyspark_lance.write(frame, uri, mode="overwrite", partition_by=["A"])
    assert lance.dataset(uri).count_rows("A = 5 AND a = 3") == 1


def changes(spark, uri, **options):
    rows = pyspark_lance.read_changes(spark, uri, begin_version=1, **options).collect()
    return sorted((row.id, row._change_type) for row in rows)


def test_arguments_of_names(spark, uri, lance, tmp_path):
    frame = spark.createDataFrame([(0, 0), (1, 0), (2, 1)], "id long, n long")
    pyspark_lance.write(frame, uri, enable_stable_row_ids=True, partition_by="N")
    assert len(lance.dataset(uri).get_fragments()) == 2
    pyspark_lance.update(uri, {"ID": "id + 10"}, "id = 1", spark=spark)
    for key in ("id", "ID", ["ID"], ("id",)):
        assert changes(spark, uri, key=key) == [(1, "delete"), (11, "insert")]
    for some in ("id", ["ID"]):
        assert changes(spark, uri, updates_of=some) == [(11, "update_postimage")]
    target = str(tmp_path / "parquet")
    assert pyspark_lance.to_parquet(uri, target, partition_by="N", spark=spark) == 3
    assert (tmp_path / "parquet" / "n=1").is_dir()
    assert pyspark_lance.create_scalar_index(spark, uri, "ID", "BTREE").list_indices()[0]["fields"] == ["id"]
    rows = spark.createDataFrame([(2, [1.0, 2.0])], "ID long, v array<float>")
    assert pyspark_lance.write_columns(rows, uri, on="ID", vector_columns={"V": 2}).rows_updated == 1
    assert lance.dataset(uri).schema.field("v").type == pa.list_(pa.float32(), 2)
    done = pyspark_lance.merge(frame.where("n = 1"), uri, on="Id", deletes=spark.createDataFrame([(0,)], "ID long"))
    assert (done.rows_updated, done.rows_deleted) == (1, 1)


def test_arguments_of_names_in_a_case_sensitive_session(spark, uri, tmp_path, case_sensitive_session):
    frame = spark.createDataFrame([(0, 0), (1, 0), (2, 1)], "id long, n long")
    pyspark_lance.write(frame, uri, enable_stable_row_ids=True)
    pyspark_lance.update(uri, {"id": "id + 10"}, "id = 1", spark=spark)
    rows = spark.createDataFrame([(2, [1.0, 2.0])], "id long, v array<float>")
    for verb in (
        lambda: changes(spark, uri, key="ID"),
        lambda: changes(spark, uri, updates_of=["ID"]),
        lambda: pyspark_lance.to_parquet(uri, tmp_path / "parquet", partition_by="N", spark=spark),
        lambda: pyspark_lance.create_scalar_index(spark, uri, "ID", "BTREE"),
        lambda: pyspark_lance.write_columns(rows, uri, on="id", vector_columns={"V": 2}),
        lambda: pyspark_lance.merge(frame, uri, on="id", deletes=rows.withColumnRenamed("id", "ID")),
    ):
        with pytest.raises(SchemaError, match=r"ID|N|V"):
            verb()
    assert lance_core.dataset(uri).version == 2


@pytest.mark.parametrize("names", [7, [7], ["id", None]])
def test_arguments_that_are_no_names(spark, uri, tmp_path, names):
    frame = spark.range(3)
    pyspark_lance.write(frame, uri, enable_stable_row_ids=True)
    for argument, verb in {
        "columns": lambda: pyspark_lance.read(spark, uri, columns=names),
        "key": lambda: changes(spark, uri, key=names),
        "updates_of": lambda: changes(spark, uri, updates_of=names),
        "on": lambda: pyspark_lance.merge(frame, uri, on=names),
        "partition_by": lambda: pyspark_lance.write(frame, uri, partition_by=names),
        "partition_by ": lambda: pyspark_lance.to_parquet(uri, tmp_path / "p", partition_by=names, spark=spark),
    }.items():
        with pytest.raises(ArgumentTypeError, match=f"^{argument.strip()} must be the name of a column, or a list"):
            verb()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.b", r"^column 'a\.b': the name"), ("a`b", "^column 'a`b': the name"), ("", "^column without a name")],
)
def test_names_that_no_column_can_have(spark, uri, connect, name, expected):
    frame = spark.range(3).withColumnRenamed("id", name)
    with pytest.raises(SchemaError, match=expected):
        pyspark_lance.write(frame, uri)
    with pytest.raises(SchemaError, match=expected):
        pyspark_lance.merge(frame, uri, on=name)
    if name != "a.b":  # once by the data source, which passes on the same error
        return
    with pytest.raises(Exception, match=expected.removeprefix("^")) as raised:
        frame.write.format("lance").mode("append").save(uri)
    lines = str(raised.value).splitlines()
    assert expected.removeprefix("^").replace("\\", "") in lines[0]
    assert connect or len(lines) < 45  # over Connect, Spark adds its server's stack


def test_names_of_columns(spark, uri, lance):
    names = ["x y", "é,;{}()\n\t=", "select", "1", "x'y", 'x"y', "#", "-"]
    table = pa.table({name: [number, number + 10] for number, name in enumerate(names)})
    frame = spark.createDataFrame(table)
    pyspark_lance.write(frame, uri, partition_by=names)
    pyspark_lance.merge(frame.where("`x y` = 10").coalesce(1), uri, on=names)
    assert lance.dataset(uri).to_table().sort_by("x y").to_pylist() == table.to_pylist()
    assert len(lance.dataset(uri).get_fragments()) == 2
    read = pyspark_lance.read(spark, uri)
    for name in names:
        read = read.select(*names).where(f"`{name}` < 10")
    assert read.collect() == [tuple(range(len(names)))]


def test_tables_of_the_catalogue_need_the_path(spark, uri):
    pyspark_lance.write(spark.range(3), uri)
    spark.sql(f"CREATE TABLE listed (id bigint) USING lance OPTIONS (path '{uri}')")
    try:
        with pytest.raises(Exception, match=r"use SELECT \.\.\. FROM t WITH \(path = '\.\.\.'\)"):
            spark.sql("SELECT * FROM listed").collect()
        assert spark.sql(f"SELECT * FROM listed WITH (path = '{uri}')").count() == 3
        spark.sql(f"INSERT INTO listed WITH (path = '{uri}') SELECT 3L")
    finally:
        spark.sql("DROP TABLE listed")
    assert lance_core.dataset(uri).count_rows() == 4
