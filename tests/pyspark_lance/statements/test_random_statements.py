"""Random statements: merges, updates and deletes against DuckDB, queries against Spark's own tables."""

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import lance_core
import pyspark_lance

SETTINGS = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a shorter example takes Spark too long to find
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("s", pa.string())])

ids = st.integers(0, 6) | st.none()
rows = st.lists(st.tuples(ids, st.integers(-3, 3) | st.none(), st.sampled_from(["a", "b", "B", "", None])), max_size=9)


def sides(*columns):
    """Conditions over some columns, in which both engines mean the same."""
    column = st.sampled_from(columns)
    plain = st.one_of(
        st.builds("{} {} {}".format, column, st.sampled_from(["=", "<", ">=", "<>"]), st.integers(-2, 5)),
        st.builds("{} IS {}NULL".format, column, st.sampled_from(["", "NOT "])),
        st.builds("{} IN (1, 2, {})".format, column, st.integers(3, 5)),
        st.builds("{0} + 1 > coalesce({1}, 2)".format, column, column),
    )
    return st.one_of(
        plain, st.builds("({} OR NOT {})".format, plain, plain), st.builds("({} AND {})".format, plain, plain)
    )


def clauses(draw):
    found = []
    for condition in draw(st.lists(sides("t.id", "t.x", "s.x"), max_size=2)):
        action = draw(
            st.sampled_from(["DELETE", "UPDATE SET x = s.x, s = t.s || s.s", "UPDATE SET x = coalesce(t.x, 0) - s.id"])
        )
        found.append(f"WHEN MATCHED AND {condition} THEN {action}")
    if draw(st.booleans()):
        found.append("WHEN MATCHED THEN UPDATE SET x = s.x, s = s.s, id = s.id")
    if draw(st.booleans()):
        found.append(f"WHEN NOT MATCHED AND {draw(sides('s.id', 's.x'))} THEN INSERT (id, s) VALUES (s.id, 'n' || s.s)")
    if draw(st.booleans()):
        found.append("WHEN NOT MATCHED THEN INSERT (id, x, s) VALUES (s.id, s.x + 1, s.s)")
    if draw(st.booleans()):
        action = draw(st.sampled_from(["DELETE", "UPDATE SET x = -9"]))
        found.append(f"WHEN NOT MATCHED BY SOURCE AND {draw(sides('t.id', 't.x'))} THEN {action}")
    return found or ["WHEN MATCHED THEN DELETE"]


@st.composite
def merges(draw):
    further = draw(st.sampled_from(["", " AND t.x > 0", " AND s.x < 2", " AND t.s = s.s"]))
    return f"MERGE INTO {{t}} AS t USING {{s}} AS s ON t.id = s.id{further} " + " ".join(clauses(draw))


def changes():
    update = st.builds(
        "UPDATE {{t}} AS t SET x = coalesce(t.x, 0) + {}, s = t.s || 'u' WHERE {}".format,
        st.integers(-2, 2),
        sides("t.id", "t.x"),
    )
    delete = st.builds("DELETE FROM {{t}} AS t WHERE {}".format, sides("t.id", "t.x"))
    within = st.builds(
        "DELETE FROM {{t}} AS t WHERE t.id IN (SELECT u.id FROM {{s}} AS u WHERE {})".format, sides("u.id", "u.x")
    )
    return st.one_of(update, delete, within)


def frames(given_rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given_rows], SCHEMA)


def in_order(found):
    return sorted(map(tuple, found), key=repr)


def check(spark, folder, statement, target, source):
    """Run a statement in both engines and compare the rows of the table, and the number that are changed."""
    lance_core.write_dataset(target, f"{folder}/t.lance", mode="overwrite", max_rows_per_file=4)
    lance_core.write_dataset(source, f"{folder}/s.lance", mode="overwrite")
    pyspark_lance.register_catalog(spark, "rnd", folder)
    import duckdb

    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.register("t_rows", target)
    duck.register("s_rows", source)
    duck.execute("CREATE TABLE t AS SELECT * FROM t_rows")
    duck.execute("CREATE TABLE s AS SELECT * FROM s_rows")
    changed = duck.execute(statement.format(t="t", s="s")).fetchall()[0][0]
    expected = duck.execute("SELECT * FROM t").fetchall()
    answer = pyspark_lance.sql(spark, statement.format(t="rnd.t", s="rnd.s")).collect()[0]
    found = [tuple(row.values()) for row in lance_core.dataset(f"{folder}/t.lance").to_table().to_pylist()]
    assert in_order(found) == in_order(expected), statement
    assert answer[0] == changed, statement


@SETTINGS
@given(statement=merges(), target=rows, source=st.lists(rows.map(lambda r: r[:1]), max_size=7))
def test_merges_do_what_duckdb_s_do(spark, tmp_path, statement, target, source):
    by_key = {row[0]: row for part in source for row in part}  # several rows for one row are an error here
    check(spark, str(tmp_path), statement, frames(target), frames(by_key.values()))


@SETTINGS
@given(statement=changes(), target=rows, source=rows)
def test_updates_and_deletes_do_what_duckdb_s_do(spark, tmp_path, statement, target, source):
    check(spark, str(tmp_path), statement, frames(target), frames(source))


@st.composite
def queries(draw):
    where = draw(
        st.one_of(
            sides("a.id", "a.x", "b.id", "b.x"),
            st.builds("{} AND {}".format, sides("a.id", "b.x"), sides("a.x", "b.id")),
        )
    )
    join = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"]))
    on = "" if join == "CROSS JOIN" else f"ON a.id = b.id AND {draw(sides('a.x', 'b.x'))}"
    both = draw(st.sampled_from(["a.id, b.x", "a.*", "count(*), sum(b.x)", "max(a.s), count(b.id)"]))
    alone = draw(sides("id", "x"))
    return draw(
        st.sampled_from(
            [
                f"SELECT {both} FROM {{t}} a {join} {{s}} b {on} WHERE {where}",
                f"SELECT id, count(*) FROM {{t}} WHERE {alone} GROUP BY id HAVING count(*) < 3",
                f"SELECT x FROM {{t}} WHERE {alone} AND id IN (SELECT id FROM {{s}} WHERE {alone})",
                f"WITH c AS (SELECT * FROM {{t}} WHERE {alone}) SELECT c.id, q.s FROM c LEFT JOIN (SELECT id, s FROM {{s}} WHERE {alone}) q ON c.id = q.id",
                f"SELECT s FROM {{t}} q WHERE NOT EXISTS (SELECT 1 FROM {{s}} r WHERE r.id = q.id AND {alone.replace('id', 'r.id').replace('x', 'r.x')})",
                f"SELECT id FROM {{t}} WHERE {alone} UNION SELECT x FROM {{s}} WHERE {alone}",
            ]
        )
    )


@SETTINGS
@given(query=queries(), one=rows, other=rows)
def test_queries_give_what_spark_gives_for_its_own_tables(spark, tmp_path, query, one, other):
    for name, table in (("t", frames(one)), ("s", frames(other))):
        lance_core.write_dataset(table, f"{tmp_path}/{name}.lance", mode="overwrite", max_rows_per_file=3)
        schema = "id long, x long, s string"
        spark.createDataFrame([tuple(row.values()) for row in table.to_pylist()], schema).createOrReplaceTempView(
            f"plain_{name}"
        )
    pyspark_lance.register_catalog(spark, "rnd", tmp_path)
    expected = spark.sql(query.format(t="plain_t", s="plain_s")).collect()
    assert in_order(pyspark_lance.sql(spark, query.format(t="rnd.t", s="rnd.s")).collect()) == in_order(expected), query
