"""Each release of Spark has what the table of `docs/spark.md` says; the rest is rejected by name and release."""

import contextlib
import re
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, LanceError, UnsupportedError
from pyspark_lance import releases
from pyspark_lance.engine.lexing import find_pipe
from pyspark_lance.releases import FEATURES, LOWEST, is_at_least, require_feature
from pyspark_lance.types.spark_types import spark_schema

ROOT = Path(__file__).parents[2]


def have(monkeypatch, installed):
    monkeypatch.setattr(releases, "installed_spark", lambda: installed)


@pytest.mark.parametrize(
    ("installed", "release", "enough"),
    [
        ("3.4.4", (3, 5), False),
        ("3.5.0", (3, 5), True),
        ("3.5.9", (4, 0), False),
        ("4.0.0.dev3", (4, 0), True),
        ("4.10.0", (4, 9), True),
        ("5.0.0", (4, 1), True),
        (None, (4, 1), True),
    ],
)
def test_releases_are_compared_as_numbers(monkeypatch, installed, release, enough):
    have(monkeypatch, installed)
    assert is_at_least(release) is enough


@pytest.mark.parametrize("feature", FEATURES)
def test_a_missing_feature_is_named_with_both_releases_and_a_remedy(monkeypatch, feature):
    (major, minor), remedy = FEATURES[feature]
    assert (major, minor) > LOWEST
    have(monkeypatch, "3.5.9")
    message = f"column 'c': {feature} needs Spark {major}.{minor} or newer, and pyspark 3.5.9 is installed; {remedy}"
    with pytest.raises(UnsupportedError, match=rf"^{re.escape(message)}\n"):
        require_feature(feature, "column 'c'")
    have(monkeypatch, f"{major}.{minor}.0")
    require_feature(feature)


@pytest.mark.parametrize("name", ["register", "DefaultSource"])
def test_the_format_needs_spark_4(monkeypatch, name):
    have(monkeypatch, "3.5.9")
    monkeypatch.delitem(vars(pyspark_lance), name, raising=False)
    with pytest.raises(ImportError, match=r'format\("lance"\) needs Spark 4\.0 .*3\.5\.9 is .*use pyspark_lance\.read'):
        getattr(pyspark_lance, name)


@pytest.mark.parametrize("name", [name for name in pyspark_lance.__all__ if name not in ("register", "DefaultSource")])
def test_every_other_name_is_there_from_the_lowest_release_on(monkeypatch, name):
    have(monkeypatch, "3.5.0")
    monkeypatch.delitem(vars(pyspark_lance), name, raising=False)
    if name != "register":
        assert getattr(pyspark_lance, name) is not None


COLLATED = pa.field("c", pa.string(), metadata={"spark.type": "string collate UTF8_LCASE"})


def test_columns_of_types_that_a_release_lacks_are_rejected(monkeypatch):
    have(monkeypatch, "3.5.9")
    with pytest.raises(UnsupportedError, match=r"column 'at': a column of TIME needs Spark 4\.1 or newer"):
        spark_schema(pa.schema([("at", pa.time64("us"))]))
    for field, path in [
        (COLLATED, "c"),
        (pa.field("s", pa.struct([COLLATED])), "s.c"),
        (pa.field("l", pa.list_(pa.struct([pa.field("s", pa.struct([COLLATED]))]))), "l[].s.c"),
        (pa.field("m", pa.map_(pa.string(), pa.struct([COLLATED]))), "m.value.c"),
    ]:
        message = f"^column '{re.escape(path)}': a column with a collation needs Spark 4.0 or newer"
        with pytest.raises(UnsupportedError, match=message):
            spark_schema(pa.schema([field]))


@pytest.mark.parametrize(
    ("declared", "release", "word"),
    [
        ("TIME", (4, 1), "TIME"),
        ("MAP<STRING, time(3)>", (4, 1), "TIME"),
        ("STRING COLLATE UTF8_LCASE", (4, 0), "COLLATE"),
        ("STRUCT<time: STRING collate UNICODE>", (4, 0), "COLLATE"),
        ("ARRAY<VARIANT>", (4, 0), "VARIANT"),
    ],
)
def test_declared_types(spark, tmp_path, declared, release, word):
    pyspark_lance.register_catalog(spark, "lake", str(tmp_path))
    statement = f"CREATE TABLE lake.t (id INT, k {declared})"
    if is_at_least(release):
        with contextlib.suppress(UnsupportedError):  # a collation of items
            pyspark_lance.sql(spark, statement)
        return
    expected = rf"line 1, column 32: column 'k': {word} needs Spark 4\.{release[1]} .*; declare it as (.*)\. Nothing"
    with pytest.raises(UnsupportedError, match=expected) as raised:
        pyspark_lance.sql(spark, statement)
    remedy = re.search(expected, str(raised.value))[1]
    pyspark_lance.sql(spark, f"CREATE TABLE lake.t (id INT, k {remedy})")


@pytest.mark.parametrize("declared", ["CHAR(5)", "VARCHAR(5)", "ARRAY<CHARACTER(3)>", "STRUCT<a: VARCHAR(3)>"])
def test_declared_lengths(spark, tmp_path, declared):
    pyspark_lance.register_catalog(spark, "lake", str(tmp_path))
    with pytest.raises(UnsupportedError, match=f"{re.escape(declared)} has one: declare it as STRING"):
        pyspark_lance.sql(spark, f"CREATE TABLE lake.t (c {declared})")


@pytest.mark.parametrize("call", ["write", "merge", "write_columns", "delete", "create", "insert", "struct"])
def test_calendar_intervals_are_rejected_by_the_name_of_the_column(spark, uri, call):
    """Spark 3.5 cannot describe a frame with such a column to Python."""
    lance_core.write_dataset(pa.table({"a": [1]}), uri)
    frame = spark.sql("SELECT 1L AS a, make_interval(1) AS span")
    calls = {
        "write": lambda: pyspark_lance.write(frame, uri),
        "merge": lambda: pyspark_lance.merge(frame, uri, on="a"),
        "write_columns": lambda: pyspark_lance.write_columns(frame, uri, on="a"),
        "delete": lambda: pyspark_lance.delete(uri, frame, on="a"),
        "create": lambda: pyspark_lance.sql(spark, f"CREATE TABLE lance.`{uri}2` AS SELECT make_interval(1) AS span"),
        "insert": lambda: pyspark_lance.sql(spark, f"INSERT INTO lance.`{uri}` SELECT make_interval(1) AS span"),
        "struct": lambda: pyspark_lance.write(spark.sql("SELECT struct(make_interval(1) AS span) AS s"), uri),
    }
    column = {"struct": r"s(\.span)?", "insert": "a"}.get(call, "span")
    with pytest.raises(LanceError, match=rf"column '({column}|span)'.* interval"):
        calls[call]()
    assert lance_core.dataset(uri).version == 1
    assert not Path(f"{uri}2").exists()


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.decimal256(50, 2), "collation"], ids=str)
def test_a_table_with_a_column_that_spark_lacks(spark, uri, kind):
    field = pa.field("c", kind) if kind != "collation" else COLLATED
    rows = pa.table(
        [[1, 2, 3], [0, 0, 0], pa.nulls(3, field.type)], pa.schema([("id", "int64"), ("x", "int64"), field])
    )
    dataset = lance_core.write_dataset(rows, uri)
    try:
        spark_schema(rows.schema)
    except UnsupportedError as error:
        message = str(error)
    else:
        assert pyspark_lance.read(spark, uri).count() == 3
        return
    assert "read the other columns by columns=, and change the table by lance_core" in message
    source = spark.createDataFrame([(2, 20)], "id long, x long")
    for call in (
        lambda: pyspark_lance.read(spark, uri),
        lambda: pyspark_lance.delete(uri, "id = 9"),
        lambda: pyspark_lance.update(uri, {"x": "1"}),
        lambda: pyspark_lance.merge(source, uri, on="id"),
    ):
        with pytest.raises(UnsupportedError, match=re.escape(message.splitlines()[0])):
            call()
    assert lance_core.dataset(uri).version == 1
    dataset.delete("id = 1")
    dataset.update({"x": "7"}, "id = 2")
    dataset.merge_insert("id").when_matched_update_all().execute(pa.table({"id": [3], "x": [9], "c": rows["c"][:1]}))
    read = pyspark_lance.read(spark, uri, columns=["id", "x"], filter="c IS NULL")
    assert sorted(map(tuple, read.collect())) == [(2, 7), (3, 9)]
    pyspark_lance.write(source, uri, schema_mode="add_columns")
    assert lance_core.dataset(uri).to_table()["c"].null_count == 3


CLIENT_CALLS = {
    "read": lambda frame, uri: pyspark_lance.read(frame.sparkSession, uri),
    "read asof": lambda frame, uri: pyspark_lance.read(frame.sparkSession, uri, asof="2024-01-01"),
    "read_changes": lambda frame, uri: pyspark_lance.read_changes(frame.sparkSession, uri, begin_version=0),
    "write": pyspark_lance.write,
    "merge": lambda frame, uri: pyspark_lance.merge(frame, uri, on="id"),
    "delete": lambda frame, uri: pyspark_lance.delete(uri, "id = 1", spark=frame.sparkSession),
    "delete by key": lambda frame, uri: pyspark_lance.delete(uri, frame, on="id"),
    "update": lambda frame, uri: pyspark_lance.update(uri, {"id": "1"}, spark=frame.sparkSession),
    "write_columns": lambda frame, uri: pyspark_lance.write_columns(frame, uri, on="id"),
    "sql": lambda frame, uri: pyspark_lance.sql(frame.sparkSession, f"SELECT * FROM lance.`{uri}`"),
    "register_catalog": lambda frame, uri: pyspark_lance.register_catalog(frame.sparkSession, "lake", uri),
    "forPath": lambda frame, uri: pyspark_lance.LanceTable.forPath(frame.sparkSession, uri),
    "compact": lambda frame, uri: pyspark_lance.compact(frame.sparkSession, uri),
    "execute_tasks": lambda frame, uri: pyspark_lance.execute_tasks(frame.sparkSession, uri, []),
    "create_scalar_index": lambda frame, uri: pyspark_lance.create_scalar_index(frame.sparkSession, uri, "id", "BTREE"),
    "deep_clone": lambda frame, uri: pyspark_lance.deep_clone(frame.sparkSession, uri, uri + ".copy"),
    "convert": lambda frame, uri: pyspark_lance.convert(uri, uri + ".copy", spark=frame.sparkSession),
    "to_parquet": lambda frame, uri: pyspark_lance.to_parquet(uri, uri + ".parquet", spark=frame.sparkSession),
}


@pytest.mark.timeout(30)  # requests to a server that does not answer are repeated for minutes
@pytest.mark.parametrize("call", CLIENT_CALLS.values(), ids=CLIENT_CALLS)
def test_a_client_of_an_early_spark_is_rejected_before_it_asks_its_server(monkeypatch, uri, call):
    client = pytest.importorskip("pyspark.sql.connect.session").SparkSession("sc://127.0.0.1:1")
    lance_core.write_dataset(pa.table({"id": [1]}), uri)
    have(monkeypatch, "3.5.9")
    with pytest.raises(
        UnsupportedError, match=r"^a session of Spark Connect needs Spark 4\.0 .* use a classic session"
    ):
        call(client.range(1), uri)


@pytest.mark.filterwarnings("ignore")  # advice of pyspark.pandas
def test_frames_of_pandas_on_spark_are_read_and_name_the_remedy_of_a_write(spark, uri):
    pytest.importorskip("pyspark.pandas", reason="pyspark.pandas needs pandas below 3", exc_type=ImportError)
    lance_core.write_dataset(pa.table({"id": [1, 2]}), uri)
    frame = pyspark_lance.read(spark, uri).pandas_api()
    assert frame[frame.id > 1].to_pandas().id.tolist() == [2]
    with pytest.raises(InvalidInputError, match=r"not a pyspark\.pandas\..* to_spark\(\) one of pandas-on-Spark"):
        pyspark_lance.write(frame, uri)
    pyspark_lance.write(frame.to_spark(), uri)
    assert lance_core.dataset(uri).count_rows() == 4


@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("FROM lk.a |> WHERE id = 1", 11),
        ("SELECT id || '|>', id | 1 FROM lk.a |> WHERE id = 1", 37),
        ("INSERT INTO lk.a FROM lk.a |> WHERE id = 1", 28),
        ("DELETE FROM lk.a WHERE EXISTS (FROM lk.a b |> WHERE id = 1)", 44),
        ("MERGE INTO lk.a USING (FROM lk.a |> LIMIT 1) s ON a.id = s.id WHEN MATCHED THEN DELETE", 34),
        ("CREATE TABLE lk.b AS FROM lk.a |> WHERE id = 1", 32),
    ],
)
def test_pipes_need_spark_4(spark, monkeypatch, tmp_path, statement, column):
    pyspark_lance.register_catalog(spark, "lk", str(tmp_path))
    lance_core.write_dataset(pa.table({"id": [1, 2]}), str(tmp_path / "a.lance"))
    have(monkeypatch, "3.5.9")
    message = rf"\Aline 1, column {column}: a query with pipes needs Spark 4\.0 or newer, .* 3\.5\.9 .*subqueries"
    with pytest.raises(UnsupportedError, match=message):
        pyspark_lance.sql(spark, statement).collect()
    assert lance_core.dataset(tmp_path / "a.lance").version == 1
    assert not (tmp_path / "b.lance").exists()
    assert find_pipe("SELECT a | b, c || d > '|>' -- |>") is None


def test_streams_to_a_table_need_spark_4_1(monkeypatch, tmp_path):
    source = pyspark_lance.DefaultSource({"path": str(tmp_path / "t.lance")})
    have(monkeypatch, "4.0.1")
    with pytest.raises(UnsupportedError, match=r"writeStream.* needs Spark 4\.1 .*use foreachBatch"):
        source.streamWriter(None, overwrite=False)


@pytest.mark.parametrize("options", [{"path": "t.lance"}, {"path": "t.lance", "location": "t.lance"}, {}])
def test_tables_of_sparks_own_catalog_are_rejected_where_they_are_created(options):
    with pytest.raises(InvalidInputError, match=r"CREATE TEMPORARY VIEW t USING lance .*pyspark_lance\.sql"):
        pyspark_lance.DefaultSource({**options, "provider": "lance", "owner": "me"})


def table_of_features():
    names = sorted({LOWEST, *(feature.lowest for feature in FEATURES.values())})
    lines = ["| | " + " | ".join(f"Spark {major}.{minor}" for major, minor in names) + " | with an older one |"]
    lines.append("|---" * (len(names) + 2) + "|")
    everything = "functions of `pyspark_lance`, `LanceTable`, SQL, the IO manager"
    rows = [(everything, LOWEST, ""), *((f"`{name}`" if "(" in name else name, *FEATURES[name]) for name in FEATURES)]
    for name, lowest, remedy in rows:
        cells = ["yes" if release >= lowest else "no" for release in names]
        shown = re.sub(r"pyspark_lance\.\w+|lance_core|foreachBatch|columns=", r"`\g<0>`", remedy)
        lines.append(f"| {name} | {' | '.join(cells)} | {shown} |")
    return "\n".join(lines)


def test_the_page_has_the_table():
    assert table_of_features() in (ROOT / "docs/spark.md").read_text(), table_of_features()


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("array<struct<sku:string,tags:array<string>>>", []),
        ("array<array<string>>", None),
        ("map<string,array<string>>", {}),
        ("array<map<string,int>>", []),
    ],
)
def test_lists_below_lists_without_items(spark, uri, declared, value):
    """Early releases leave the offsets of inner lists out, which ended the worker."""
    pyspark_lance.write(spark.createDataFrame([(1, value)], f"id long, items {declared}"), uri)
    assert [row["items"] for row in pyspark_lance.read(spark, uri).collect()] == [value]


def test_a_merge_into_a_table_without_rows(spark, uri):
    """Before pyarrow 26 the join of the keys failed."""
    rows = spark.range(5).selectExpr("id", "1 as v")
    pyspark_lance.write(rows.limit(0), uri, mode="overwrite")
    pyspark_lance.merge(rows, uri, on="id")
    assert pyspark_lance.read(spark, uri).count() == 5
