"""`LanceTable`: Delta's names for changes of rows."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import DatasetNotFoundError, InvalidInputError, SchemaError
from pyspark_lance import LanceTable
from pyspark_lance.changing import job, merge_clauses, merge_frames


@pytest.fixture
def table(uri, lance):
    lance.write_dataset(
        pa.table({"id": range(10), "x": [i * 10 for i in range(10)], "s": [f"s{i}" for i in range(10)]}),
        uri,
        max_rows_per_file=4,
    )
    return uri


def contents(lance, uri):
    return {row["id"]: (row["x"], row["s"]) for row in lance.dataset(uri).to_table().to_pylist()}


def test_a_merge_by_delta_s_names(spark, table, lance):
    from pyspark.sql import functions

    source = spark.createDataFrame(
        [(1, -1, "d"), (2, 5, "n"), (20, 7, "i"), (21, None, "no")], "id long, x long, s string"
    ).alias("s")
    done = (
        LanceTable.forPath(spark, table).alias("t").merge(source, "t.id = s.id and t.id < 9")
        .whenMatchedDelete("s.x < 0")
        .whenMatchedUpdate(functions.col("s.x") > 0, {"x": functions.col("t.x") + functions.col("s.x"), "s": "upper(s.s)"})
        .whenNotMatchedInsert(functions.col("s.x").isNotNull(), {"id": "s.id", "s": functions.lit("new")})
        .whenNotMatchedBySourceUpdate("t.id = 8", {"t.x": "-8"})
        .whenNotMatchedBySourceDelete("t.id > 8")
        .execute(commit_message="all of it")
    )  # fmt: skip
    assert (done.rows_inserted, done.rows_updated, done.rows_deleted) == (1, 2, 2)
    found = contents(lance, table)
    assert found[2] == (25, "N")
    assert found[20] == (None, "new")
    assert found[8] == (-8, "s8")
    assert sorted(found) == [0, 2, 3, 4, 5, 6, 7, 8, 20]
    assert lance_core.dataset(table).version == 2


def test_aliases_that_differ_in_case_alone(spark, table, lance):
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        source = spark.createDataFrame([(1, 0), (2, 20), (3, 30)], "id long, x long").alias("T")
        merge = LanceTable.forPath(spark, table).alias("t").merge(source, "t.id = T.id AND T.x = 0")
        done = merge.whenMatchedUpdate(set={"s": "concat(t.s, T.x)"}).whenNotMatchedInsert("T.id < 3", {"id": "T.x"})
        assert (done.execute().rows_updated, done.table.toDF().count()) == (1, 11)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert contents(lance, table)[1] == (10, "s10")


def test_update_and_delete_with_spark_s_conditions(spark, table, lance):
    from pyspark.sql import functions

    target = LanceTable.forPath(spark, table)
    assert target.update("s rlike '[12]$'", {"X": functions.col("x") + 1}).rows_updated == 2
    assert target.alias("q").delete(functions.expr("q.id % 2 = 0 and length(q.s) = 2")).rows_deleted == 5
    assert contents(lance, table)[1] == (11, "s1")
    assert target.toDF().count() == 5
    assert target.delete().rows_deleted == 5


def test_names_stand_for_tables_and_branches(spark, tmp_path, lance):
    main = lance_core.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "a" / "t.lance")
    main.create_branch("dev")
    pyspark_lance.register_catalog(spark, "named", tmp_path)
    assert LanceTable.forName(spark, "NAMED.a.t@dev").delete("id = 1").rows_deleted == 1
    assert LanceTable.forName(spark, "named.a.t").toDF().count() == 2
    for name, error in (
        ("named.a.u", DatasetNotFoundError),
        ("t", InvalidInputError),
        ("named.a.t x", InvalidInputError),
    ):
        with pytest.raises(error):
            LanceTable.forName(spark, name)


def test_a_merge_that_lost_a_race_is_computed_again(spark, table, lance, monkeypatch):
    commit, pending = job.commit_update, [True]

    def late(*what, **more):
        if pending:
            pending.clear()
            lance_core.write_dataset(pa.table({"id": [20], "x": [0], "s": ["other"]}), table, mode="append")
            lance_core.dataset(table).merge_insert("id").when_not_matched_insert_all().execute(
                pa.table({"id": [30], "x": [0], "s": ["other"]})
            )
        return commit(*what, **more)

    monkeypatch.setattr(job, "commit_update", late)
    source = spark.createDataFrame([(30, 1), (31, 1)], "id long, x long").alias("s")
    merge = LanceTable.forPath(spark, table).alias("t").merge(source, "t.id = s.id").whenMatchedUpdate(set={"x": "s.x"})
    done = merge.whenNotMatchedInsert(values={"id": "s.id", "x": "s.x"}).execute()
    assert done.attempts == 2
    assert (done.rows_inserted, done.rows_updated) == (1, 1)
    assert contents(lance, table)[30] == (1, "other")


def test_a_repeated_merge_changes_nothing(spark, table, lance):
    merge = LanceTable.forPath(spark, table).alias("t").merge(spark.range(3).alias("n"), "t.id = n.id")
    merge = merge.whenMatchedUpdate(set={"x": "t.x + 1"})
    first = merge.execute(idempotency_key=("job", "2026-01-02"))
    again = merge.execute(idempotency_key=("job", "2026-01-02"))
    assert (first.rows_updated, first.deduplicated, again.deduplicated) == (3, False, True)
    assert again.version == first.version == 2
    assert contents(lance, table)[1] == (11, "s1")
    assert merge.execute(idempotency_key=("job", "2026-01-03")).version == 3


def test_only_what_may_match_is_read(spark, table, monkeypatch):
    from pyspark_lance.changing import merge_clauses

    lance_core.dataset(table).create_scalar_index("id", "BTREE")
    found = []
    rows_of = merge_clauses.rows_of

    def kept(session, base, columns, where, *more, **others):
        found.append((columns, str(where)))
        return rows_of(session, base, columns, where, *more, **others)

    monkeypatch.setattr(merge_clauses, "rows_of", kept)
    source = spark.createDataFrame([(3, 1), (4, 1)], "id long, x long").alias("n")
    merge = LanceTable.forPath(spark, table).alias("t").merge(source, "t.id = n.id AND t.x < 1000")
    assert merge.whenMatchedDelete().execute().rows_deleted == 2
    ((columns, where),) = found
    assert columns == ["id", "x", "_rowaddr"]
    assert "x < 1000" in where
    assert "is_in(id" in where


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda m: m, InvalidInputError, "no clause"),
        (lambda m: m.whenMatchedUpdate(), InvalidInputError, "no column a value"),
        (lambda m: m.whenMatchedUpdate(set={"nope": "1"}), SchemaError, "nope"),
        (lambda m: m.whenMatchedUpdateAll(), SchemaError, "lacks the columns"),
        (lambda m: m.whenMatchedDelete().whenMatchedDelete("t.id = 1"), InvalidInputError, "only the last"),
        (lambda m: m.whenNotMatchedInsert("t.id = 1", {"id": "s.id"}), InvalidInputError, "t.*id"),
        (lambda m: m.whenMatchedUpdate(set={"x": "'a'"}), SchemaError, "'x'"),
    ],
)
def test_mistakes_change_nothing(spark, table, build, error, message):
    merge = LanceTable.forPath(spark, table).alias("t").merge(spark.range(3).alias("s"), "t.id = s.id")
    with pytest.raises(error, match=message):
        build(merge).execute()
    assert lance_core.dataset(table).version == 1


def test_a_condition_is_a_string_or_a_column(spark, table):
    with pytest.raises(InvalidInputError, match=r"t.id = s.id"):
        LanceTable.forPath(spark, table).merge(spark.range(3), True)
    merge = LanceTable.forPath(spark, table).alias("t").merge(spark.range(3).alias("s"), "t.id > s.id")
    with pytest.raises(InvalidInputError, match="no equality"):
        merge.whenMatchedDelete().execute()
    assert lance_core.dataset(table).version == 1


def conditions():
    """Conditions that pair `t` and `s`, in SQL and as columns, with the same ones in SQL."""
    from pyspark.sql import functions

    col = functions.col
    sql = [
        "lower(t.name) = lower(s.name)",
        "cast(t.id as string) = s.word",
        "t.id <=> s.id",
        "t.name <=> s.name and t.id = s.id",
        't.name = s.name and s.name <> "a\\"b"',
        "t.id = case when s.id > 3 and s.id < 9 then s.id - 1 else s.id end",
    ]
    columns = [
        (functions.lower("t.name") == functions.lower("s.name"), sql[0]),
        (col("t.id").cast("string") == col("s.word"), sql[1]),
        (functions.equal_null("t.name", "s.name") & functions.expr("t.id = s.id"), sql[3]),
        ((col("t.`x`") == col("s.id") * 10) & (col("t.id") < functions.lit(7)), "t.x = s.id * 10 and t.id < 7"),
    ]
    return [(one, one) for one in sql] + columns


@pytest.mark.slow
def test_any_condition_with_an_equality(spark, tmp_path, lance):
    """Held against a join of Spark's own."""
    names = ["ada", "ADA", "it's", 'a"b', "a\\b", None, "x", "y", "z", None]
    rows = pa.table({"id": [*range(9), None], "x": [i * 10 for i in range(10)], "name": names})
    source = spark.createDataFrame(
        [(1, "Ada", "1"), (3, 'a"b', "04"), (None, None, None), (4, "a\\b", "4"), (2, "it's", "x"), (50, "new", "50")],
        "id long, name string, word string",
    )
    spark.createDataFrame(rows.to_pylist(), "id long, x long, name string").createOrReplaceTempView("t_rows")
    source.createOrReplaceTempView("s_rows")
    held = ", ".join(f"({sql}) as held_{number}" for number, (_, sql) in enumerate(conditions()))
    pairs = spark.sql(f"select t.x, s.name, s.word, {held} from t_rows t cross join s_rows s").collect()
    for number, (condition, sql) in enumerate(conditions()):
        uri = f"{tmp_path}/{number}.lance"
        made = lance_core.write_dataset(rows, uri, max_rows_per_file=4)
        if number % 2:
            made.create_scalar_index("id", "BTREE")
        matched = [pair for pair in pairs if pair[f"held_{number}"]]
        deleted = {pair.x for pair in matched}
        words = {pair.word for pair in pairs} - {pair.word for pair in matched}
        new = [str(name) for word, name in {(pair.word, pair.name) for pair in pairs} if word in words]
        merge = LanceTable.forPath(spark, uri).alias("t").merge(source.alias("s"), condition)
        done = merge.whenMatchedDelete().whenNotMatchedInsert(values={"id": "s.id", "name": "s.name"}).execute()
        left = lance.dataset(uri).to_table().to_pylist()
        assert (done.rows_deleted, done.rows_inserted) == (len(deleted), len(new)), sql
        assert {row["x"] for row in left if row["x"] is not None} == {i * 10 for i in range(10)} - deleted, sql
        inserted = sorted(str(row["name"]) for row in left if row["x"] is None)
        assert inserted == sorted(new), sql


@pytest.mark.parametrize(
    ("condition", "key"),
    [("lower(t.s) = lower(s.s)", "NEW"), ("t.s <=> s.s", None), ("t.s = s.k", "new")],
)
def test_merges_that_insert_the_same_rows_by_an_expression_meet(spark, table, monkeypatch, condition, key):
    """A concurrent merge inserts a row that the condition takes for the same one."""
    commit, pending = job.commit_update, [True]
    target = LanceTable.forPath(spark, table).alias("t")

    def late(*what, **more):
        if pending:
            pending.clear()
            other = pa.table({"id": [50], "x": [0], "s": pa.array([key], pa.string())})
            lance_core.dataset(table).merge_insert("s").when_not_matched_insert_all().execute(other)
        return commit(*what, **more)

    monkeypatch.setattr(job, "commit_update", late)
    source = spark.createDataFrame([(60, None if key is None else "new")], "id long, k string")
    source = source.selectExpr("id", "k", "k as s").alias("s")
    merge = target.merge(source, condition).whenMatchedUpdate(set={"x": "-1"})
    done = merge.whenNotMatchedInsert(values={"id": "s.id", "s": "s.s"}).execute()
    assert (done.attempts, done.rows_inserted, done.rows_updated) == (2, 0, 1)


def test_conditions_and_values_are_columns_as_well(spark, uri, lance):
    from pyspark.sql import functions

    lance.write_dataset(pa.table({"id": [1, 2], "a b": [1, 2]}), uri)
    table = LanceTable.forPath(spark, uri)
    assert table.update(functions.col("id") == 2, {"`a b`": functions.lit(7).cast("long")}).rows_updated == 1
    assert table.update(functions.col("id") == 1, {"a b": functions.lit(None)}).rows_updated == 1
    assert table.delete(functions.col("a b") == 7).rows_deleted == 1
    assert lance.dataset(uri).to_table().to_pylist() == [{"id": 1, "a b": None}]


def test_arguments_of_other_kinds_are_named(spark, uri, lance):
    from pyspark.sql import functions

    lance.write_dataset(pa.table({"id": [1, 2], "x": [1, 2]}), uri)
    table, rows = LanceTable.forPath(spark, uri), spark.range(3)
    builder = table.merge(rows, "id = 7")
    column = functions.col("id") == 1
    for call, words in (
        (
            lambda: table.update("id = 1", {"x": 5}),
            "the value of 'x' must be an expression in Spark SQL, or a Spark Column",
        ),
        (lambda: table.update({"x": "5"}, {"x": "5"}), "the condition must be Spark SQL or a Column"),
        (lambda: table.update("id = 1", "x = 5"), "set must be a dict of values by column name"),
        (lambda: table.update("id = 1", {7: "5"}), "7 is not the name of a column"),
        (lambda: table.delete(5), "the condition must be Spark SQL or a Column"),
        (lambda: builder.whenMatchedUpdate(set=["x"]), "the values of a clause must be a dict"),
        (lambda: builder.whenNotMatchedInsert(values="x"), "the values of a clause must be a dict"),
        (lambda: pyspark_lance.update(uri, {"x": 5}, spark=spark), "the value of 'x' must be an expression"),
        (lambda: pyspark_lance.update(uri, {}, spark=spark), "set gives no column a value"),
        (lambda: pyspark_lance.update(uri, "x = 1", spark=spark), "set must be a dict"),
        (
            lambda: pyspark_lance.delete(uri, None),
            "where must be a condition in Lance's SQL, or a Spark DataFrame, not a NoneType",
        ),
        (lambda: pyspark_lance.delete(uri, column), "where must be a condition in Lance's SQL, or a Spark DataFrame"),
        (lambda: pyspark_lance.merge("rows", uri, on="id"), "df must be a Spark DataFrame, not a str"),
        (
            lambda: pyspark_lance.write(rows.toPandas(), uri),
            r"df must be a Spark DataFrame, not a pandas\.\S*DataFrame; spark\.createDataFrame",
        ),
        (lambda: pyspark_lance.read(spark, uri, filter=column), "the frame's where takes a column"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            call()
    assert lance.dataset(uri).version == 1


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("clauses", "expected", "counts"),
    [
        (("update", "insert"), {0: (0, "s0"), 1: (-1, "new"), 20: (7, "i"), None: (3, "null")}, (3, 1)),
        (("update",), {0: (0, "s0"), 1: (-1, "new")}, (0, 1)),
        (("insert",), {0: (0, "s0"), 1: (10, "s1"), 20: (7, "i"), None: (3, "null")}, (3, 0)),
    ],
)
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("most", [0, 1 << 20])
def test_upserts_of_whole_rows_by_joins_and_by_lookups(
    spark, uri, lance, monkeypatch, most, stable, clauses, expected, counts
):
    """Tasks look up the keys; new rows may have one key twice, as in Delta, and rows that match may not."""
    rows = {"id": [0, 1], "x": [0, 10], "s": ["s0", "s1"]}
    lance.write_dataset(pa.table(rows), uri, enable_stable_row_ids=stable)
    handed_over = []
    rows_of = merge_clauses.rows_of
    monkeypatch.setattr(merge_clauses, "rows_of", lambda *given: handed_over.append(given) or rows_of(*given))
    monkeypatch.setattr(merge_frames, "_LOOKUP_ROWS", most)
    schema = "x long, ID long, s string, extra int"
    given = [(-1, 1, "new", 0), (7, 20, "i", 0), (7, 20, "i", 0), (3, None, "null", 0)]
    source = spark.createDataFrame(given, schema).repartition(3).alias("n")

    def merge(source):
        begun = LanceTable.forPath(spark, uri).alias("t").merge(source, "n.id = T.id")
        begun = begun.whenMatchedUpdateAll() if "update" in clauses else begun
        return (begun.whenNotMatchedInsertAll() if "insert" in clauses else begun).execute()

    done = merge(source)
    assert (done.rows_inserted, done.rows_updated) == counts
    assert contents(lance, uri) == expected
    assert lance.dataset(uri).count_rows() == 2 + counts[0]
    assert bool(handed_over) == (not most)
    twice = spark.createDataFrame([(1, 0, "a", 0), (2, 0, "b", 0)], schema).repartition(2).alias("n")
    if "update" in clauses:
        with pytest.raises(InvalidInputError, match="Ambiguous merge"):
            merge(twice)
    assert lance.dataset(uri).version == 2


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("condition", "schema"),
    [
        ("t.id = n.id AND t.x > 5", "id long, x long, s string"),
        ("t.id <=> n.id", "id long, x long, s string"),
        ("t.id = n.id + 0", "id long, x long, s string"),
        ("t.id = n.x", "id long, x long, s string"),
        ("t.id = n.id", "id int, x long, s string"),
        ("t.id = n.id.id", "id struct<id: long>, x long, s string"),
    ],
)
def test_other_merges_are_joined_by_spark(spark, table, monkeypatch, condition, schema):
    found = []
    monkeypatch.setattr(merge_clauses, "KeyLookup", lambda **given: found.append(given))
    source = spark.createDataFrame([], schema).alias("n")
    begun = LanceTable.forPath(spark, table).alias("t").merge(source, condition)
    begun.whenMatchedDelete("n.x = 1").whenMatchedUpdate(set={"s": "n.s"}).execute()
    if "struct" not in schema:
        begun.whenMatchedUpdateAll().execute()
    assert not found


def test_one_column_of_partitions_is_a_string(spark, uri, lance):
    pyspark_lance.write(spark.sql("SELECT id, id % 2 AS half FROM range(4)"), uri, partition_by="half")
    for fragment in lance.dataset(uri).get_fragments():
        assert len(set(fragment.to_table()["half"].to_pylist())) == 1


@pytest.mark.parametrize("exists", [True, False])
def test_values_of_a_merge_by_a_key_are_named_as_the_session_names_columns(spark, uri, exists):
    if exists:
        pyspark_lance.write(spark.sql("select 0L as id, 0 as n").coalesce(1), uri)
    source = spark.sql("select id, 7 as n from range(4)").coalesce(1)
    clauses = [
        {"then": "insert", "condition": "source.id = 3", "values": {"ID": "source.id", "n": "-1"}},
        {"then": "insert", "values": {"`Id`": "source.id", "N": "source.n"}},
    ]
    done = pyspark_lance.merge(source, uri, on="id", clauses={"when_not_matched": clauses})
    assert done.rows_inserted == 4 - exists
    rows = lance_core.dataset(uri).to_table().sort_by("id").to_pylist()
    assert rows == [{"id": i, "n": -1 if i == 3 else 7 * (i > 0 or not exists)} for i in range(4)]
    with pytest.raises(SchemaError, match=r"two values|both column"):
        pyspark_lance.merge(
            source.withColumn("id", source.id + 9),
            uri if exists else f"{uri}.new",
            on="id",
            clauses={"when_not_matched": {"then": "insert", "values": {"ID": "source.id", "id": "source.id"}}},
        )
