"""Merges, updates and deletes by Spark, with pylance looking at what became of the table."""

import pathlib
import threading
from unittest.mock import Mock

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import (
    InvalidInputError,
    RetryableConflictError,
    SchemaError,
    SupersededError,
)
from pyspark_lance.changing import job, merge_clauses, merge_frames, verbs
from pyspark_lance.keys import narrowing
from pyspark_lance.reading import read


def files(uri):
    return sorted(path.name for path in pathlib.Path(uri, "data").iterdir())


def contents(lance, uri):
    return sorted(lance.dataset(uri).to_table().to_pylist(), key=lambda row: (row["id"] is None, row["id"]))


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["addresses", "stable ids"])
def table(request, uri, lance):
    rows = pa.table(
        {"id": pa.array(range(100)), "x": pa.array([i * 10 for i in range(100)]), "s": [f"s{i}" for i in range(100)]}
    )
    lance.write_dataset(rows, uri, max_rows_per_file=30, enable_stable_row_ids=request.param)
    return uri


@pytest.fixture
def joins(monkeypatch):
    """Let Spark join the keys, as it does with large tables."""
    monkeypatch.setattr(merge_frames, "_LOOKUP_ROWS", 0)


@pytest.fixture(params=["lookups", "joins"])
def either(request):
    """Let tasks look up the keys of a merge, and let Spark join them."""
    if request.param == "joins":
        request.getfixturevalue("joins")


@pytest.fixture
def before_commit(monkeypatch):
    """Let something else happen before the next commit of a change, once."""

    def install(action):
        commit, pending = job.commit_update, [action]

        def late(*what, **more):
            if pending:
                pending.pop()()
            return commit(*what, **more)

        monkeypatch.setattr(job, "commit_update", late)

    return install


def source(spark):
    return spark.sql("select id, id * 100 as x, concat('new', id) as s from range(95, 105)")


@pytest.mark.usefixtures("either")
def test_upsert(spark, table, lance):
    ids = lance.dataset(table).to_table(columns=["id"], with_row_id=True).to_pylist()
    result = pyspark_lance.merge(source(spark), table, on="id")
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (5, 5, 0)
    assert (result.version, result.read_version, result.attempts) == (2, 1, 1)
    expected = [{"id": i, "x": i * 10, "s": f"s{i}"} for i in range(95)]
    expected += [{"id": i, "x": i * 100, "s": f"new{i}"} for i in range(95, 105)]
    assert contents(lance, table) == expected
    assert lance.dataset(table).read_transaction(2).operation.__class__.__name__ == "Update"
    if lance.dataset(table).has_stable_row_ids:
        now = {
            row["id"]: row["_rowid"]
            for row in lance.dataset(table).to_table(columns=["id"], with_row_id=True).to_pylist()
        }
        assert {row["id"]: row["_rowid"] for row in ids}.items() <= now.items()
        assert len(set(now.values())) == 105
    lance_core.dataset(table).validate()


def test_of_two_concurrent_attempts_the_later_one_wins(spark, uri, lance):
    one, two = (spark.sql(f"select id, {x} as x from range(3)") for x in (1, 2))
    attempts = [lance_core.WriteAttempt(token=("token", "a"), number=(number,)) for number in range(3)]
    pyspark_lance.merge(one, uri, on="id", write_attempt=attempts[1])
    later = lance_core.WriteAttempt(token=("token", "a"), number=(2,), earlier=(1,))
    assert pyspark_lance.merge(two, uri, on="id", write_attempt=later).version == 2
    before = files(uri)
    with pytest.raises(SupersededError):
        pyspark_lance.merge(one, uri, on="id", write_attempt=attempts[0], read_version=1)
    assert files(uri) == before
    assert {row["x"] for row in contents(lance, uri)} == {2}


def test_every_clause_and_the_condition(spark, uri, lance):
    def fresh(name):
        lance.write_dataset(pa.table({"id": [1, 2, 3], "x": [10, 20, 30]}), f"{uri}-{name}")
        return f"{uri}-{name}"

    new = spark.sql("select * from values (2L, 200L), (3L, 5L), (4L, 400L) as t(id, x)")
    for name, clauses, expected, counts in (
        ("update only", {"when_not_matched": None}, [(1, 10), (2, 200), (3, 5)], (0, 2, 0)),
        ("insert only", {"when_matched": None}, [(1, 10), (2, 20), (3, 30), (4, 400)], (1, 0, 0)),
        ("delete matched", {"when_matched": "delete"}, [(1, 10), (4, 400)], (1, 0, 2)),
        ("mirror", {"when_not_matched_by_source": "delete"}, [(2, 200), (3, 5), (4, 400)], (1, 2, 1)),
        ("delete others", {"when_matched": None, "when_not_matched": None, "when_not_matched_by_source": "delete"}, [(2, 20), (3, 30)], (0, 0, 1)),
        ("condition", {"condition": "source.x > target.x"}, [(1, 10), (2, 200), (3, 30), (4, 400)], (1, 1, 0)),
        ("remark", {"condition": "source.x > target.x -- newer"}, [(1, 10), (2, 200), (3, 30), (4, 400)], (1, 1, 0)),
        ("delete if", {"when_matched": "delete", "when_not_matched": None, "condition": "target.x = 20"}, [(1, 10), (3, 30)], (0, 0, 1)),
    ):  # fmt: skip
        place = fresh(name)
        result = pyspark_lance.merge(new, place, on=["id"], **clauses)
        assert [(row["id"], row["x"]) for row in contents(lance, place)] == expected, name
        assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == counts, name


CHANGES_OF_ONE_KEY = {
    "one passes": ("(1L, 50L), (1L, 1L), (2L, 40L)", [(1, 50), (2, 40)]),
    "none passes": ("(1L, 1L), (1L, 2L)", [(1, 10), (2, 20)]),
    "both pass": ("(1L, 50L), (1L, 60L)", "id = 1"),
    "of a new key": ("(9L, 5L), (9L, 1L)", "id = 9"),
}


@pytest.mark.variants(5)
@pytest.mark.parametrize("way", ["condition", "clauses", "partial", "collated", "condition of deletes"])
@pytest.mark.parametrize("case", CHANGES_OF_ONE_KEY)
def test_only_rows_that_pass_the_condition_count(spark, uri, way, case):
    """Two changes of one key are ambiguous only if both are applied."""
    rows, expected = CHANGES_OF_ONE_KEY[case]
    kind = "cast(concat('k', id) as string collate utf8_lcase)" if way == "collated" else "id"
    table = spark.sql(f"select {kind} as id, x, 'old' as s from values (1L, 10L), (2L, 20L) as t(id, x)")
    pyspark_lance.write(table, uri)
    new = spark.sql(f"select {kind} as id, x, 'new' as s from values {rows} as t(id, x)").repartition(2)
    new = new.drop("s") if way == "partial" else new
    passes = "source.x > target.x"
    ways = {"clauses": {"when_matched": {"then": "update", "condition": passes}, "when_not_matched": "insert"}}
    given = {"clauses": ways[way]} if way in ways else {"condition": passes}
    if way == "condition of deletes":
        given |= {"when_matched": "delete", "when_not_matched": None}
    if way == "condition of deletes" and case == "of a new key":
        expected = [(1, 10), (2, 20)]
    if isinstance(expected, str):
        with pytest.raises(InvalidInputError, match="Ambiguous merge inserts"):
            pyspark_lance.merge(new, uri, on="id", **given)
        assert lance_core.dataset(uri).version == 1
        return
    pyspark_lance.merge(new, uri, on="id", **given)
    found = lance_core.dataset(uri).to_table().to_pylist()
    if way == "condition of deletes":
        expected = [row for row in expected if row in [(1, 10), (2, 20)]]
    assert sorted((int(str(row["id"])[-1]), row["x"]) for row in found) == expected
    assert {row["s"] for row in found} <= {"old", "new"}


def test_columns_that_the_source_lacks_keep_their_values(spark, table, lance):
    pyspark_lance.merge(spark.sql("select id, -1L as x from range(98, 102)"), table, on="id")
    assert contents(lance, table)[98:] == [
        {"id": 98, "x": -1, "s": "s98"},
        {"id": 99, "x": -1, "s": "s99"},
        {"id": 100, "x": -1, "s": None},
        {"id": 101, "x": -1, "s": None},
    ]


@pytest.mark.usefixtures("either")
def test_keys_with_nulls_equal_no_other(spark, uri, lance):
    lance.write_dataset(pa.table({"id": pa.array([1, None], pa.int64()), "x": pa.array([1, 2], pa.int64())}), uri)
    new = spark.sql("select * from values (cast(null as long), 7L), (null, 8L), (1L, 9L) as t(id, x)")
    result = pyspark_lance.merge(new, uri, on="id")
    assert (result.rows_inserted, result.rows_updated) == (2, 1)
    assert sorted(row["x"] for row in contents(lance, uri)) == [2, 7, 8, 9]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("keys", ["5L, 5L", "500L, 500L"], ids=["matched", "new"])
def test_a_key_that_the_source_has_twice_is_an_error(spark, table, lance, keys):
    before = files(table)
    twice = spark.sql(f"select explode(array({keys})) as id, 1L as x, 'a' as s")
    with pytest.raises(InvalidInputError, match=r"Ambiguous merge inserts.*id = 5"):
        pyspark_lance.merge(twice, table, on="id")
    assert (files(table), lance.dataset(table).version) == (before, 1)
    with pytest.raises(InvalidInputError, match=r"Ambiguous merge inserts.*id = 5"):
        pyspark_lance.merge(twice, f"{table}-new", on="id")


@pytest.mark.usefixtures("either")
@pytest.mark.slow
def test_two_column_keys(spark, uri, lance):
    lance.write_dataset(pa.table({"id": [1, 1, 2], "k": ["a", "b", "a"], "x": [1, 2, 3]}), uri)
    pyspark_lance.merge(
        spark.sql("select * from values (1L, 'b', 20L), (2L, 'b', 40L) as t(id, k, x)"), uri, on=["id", "k"]
    )
    assert sorted((r["id"], r["k"], r["x"]) for r in contents(lance, uri)) == [
        (1, "a", 1),
        (1, "b", 20),
        (2, "a", 3),
        (2, "b", 40),
    ]


def test_a_merge_makes_the_table_if_there_is_none(spark, uri, lance):
    result = pyspark_lance.merge(source(spark), uri, on="id")
    assert (result.version, result.rows_inserted) == (1, 10)
    assert lance.dataset(uri).count_rows() == 10


def test_sources_that_do_not_fit_are_rejected_before_a_job(spark, table):
    boom = spark.sql("select id, assert_true(id < 0) as x from range(3)")
    with pytest.raises(SchemaError, match="'id2'"):
        pyspark_lance.merge(boom, table, on="id2")
    with pytest.raises(SchemaError, match=r"no columns \['y'\]"):
        pyspark_lance.merge(boom.selectExpr("id", "x as y"), table, on="id")
    with pytest.raises(InvalidInputError, match="when_matched 'upsert'"):
        pyspark_lance.merge(boom, table, on="id", when_matched="upsert")
    with pytest.raises(InvalidInputError, match="each of the arguments when_"):
        pyspark_lance.merge(boom, table, on="id", when_matched=None, when_not_matched=None)
    with pytest.raises(SchemaError, match="column 's'"):
        pyspark_lance.merge(spark.sql("select id, array(id) as s from range(3)"), table, on="id")
    for change in (
        lambda: pyspark_lance.merge(boom, table, on="id", condition="source.nope > 1"),
        lambda: pyspark_lance.merge(boom, table, on="id", condition="x > 1"),
        lambda: pyspark_lance.merge(boom, table, on="id", condition="source.id"),
        lambda: pyspark_lance.update(table, {"x": "nope + 1"}, spark=spark),
        lambda: pyspark_lance.update(table, {"x": "1 +"}, spark=spark),
    ):
        with pytest.raises(InvalidInputError, match=r"^(condition|update: set) .*: \[[A-Z_.]+\]") as raised:
            change()
        assert len(str(raised.value).splitlines()) == 1


def test_delete(spark, table, lance):
    result = pyspark_lance.delete(table, "id < 10 OR id >= 30 AND id < 60")
    assert (result.version, result.rows_deleted) == (2, 40)
    result = pyspark_lance.delete(table, spark.sql("select explode(array(10L, 11L, 11L, 500L)) as id"), on="id")
    assert (result.version, result.rows_deleted) == (3, 2)
    assert [row["id"] for row in contents(lance, table)] == [*range(12, 30), *range(60, 100)]
    assert len(lance.dataset(table).get_fragments()) == 3  # the second one had nothing left


def test_update(spark, table, lance):
    result = pyspark_lance.update(table, {"x": "x + 1", "s": "upper(s)"}, "id IN (3, 40)")
    assert (result.version, result.rows_updated) == (2, 2)
    changed = [row for row in contents(lance, table) if row["s"].startswith("S")]
    assert changed == [{"id": 3, "x": 31, "s": "S3"}, {"id": 40, "x": 401, "s": "S40"}]
    assert pyspark_lance.update(table, {"x": "0"}).rows_updated == 100
    with pytest.raises(SchemaError, match="'nope'"):
        pyspark_lance.update(table, {"nope": "1"})


@pytest.mark.usefixtures("either")
def test_concurrent_merges_of_other_rows_both_commit(spark, table, lance, monkeypatch):
    first_is_ready, second_has_committed = threading.Event(), threading.Event()
    commit = job.commit_update

    def late(*what, **more):
        if threading.current_thread() is not threading.main_thread():
            first_is_ready.set()
            assert second_has_committed.wait(100)
        return commit(*what, **more)

    monkeypatch.setattr(job, "commit_update", late)
    results = []
    slow = threading.Thread(target=lambda: results.append(pyspark_lance.merge(source(spark), table, on="id")))
    slow.start()
    assert first_is_ready.wait(100)
    pyspark_lance.merge(spark.sql("select 91L as id, 0L as x, 'z' as s"), table, on="id")
    second_has_committed.set()
    slow.join()
    assert results[0].attempts == 1
    found = {row["id"]: row["s"] for row in contents(lance, table)}
    assert (found[91], found[95], found[104], len(found)) == ("z", "new95", "new104", 105)


@pytest.mark.usefixtures("either")
def test_a_merge_after_a_concurrent_change_of_its_rows_is_computed_again(
    spark, table, lance, monkeypatch, before_commit
):
    before_commit(lambda: lance.dataset(table).delete("id = 96"))
    result = pyspark_lance.merge(source(spark), table, on="id")
    assert (result.attempts, result.version, result.rows_inserted, result.rows_updated) == (2, 3, 6, 4)
    assert lance.dataset(table).count_rows() == 105
    used = {file.path for fragment in lance_core.dataset(table).get_fragments() for file in fragment.metadata.files}
    first = {file.path for fragment in lance_core.dataset(table, 1).get_fragments() for file in fragment.metadata.files}
    assert set(files(table)) == used | first
    monkeypatch.setattr(job, "commit_update", Mock(side_effect=RetryableConflictError("busy")))
    with pytest.raises(RetryableConflictError, match="1 attempts; the last: busy"):
        pyspark_lance.merge(source(spark), table, on="id", conflict_retries=0)


@pytest.mark.usefixtures("either")
def test_a_column_that_is_added_meanwhile_keeps_its_values(spark, table, lance, before_commit):
    def add():
        lance.dataset(table).add_columns({"more": "id + 1"})
        lance.dataset(table).delete("id = 96")

    before_commit(add)
    assert pyspark_lance.merge(source(spark), table, on="id").attempts == 2
    found = {row["id"]: row["more"] for row in contents(lance, table)}
    assert (found[95], found[96], found[104], len(found)) == (96, None, None, 105)


@pytest.mark.slow
def test_the_commit_of_a_change_carries_message_and_properties(spark, table, lance):
    pyspark_lance.merge(source(spark), table, on="id", transaction_properties={"run": "7"}, commit_message="hello")
    properties = lance.dataset(table).read_transaction(2).transaction_properties
    assert properties["run"] == "7"
    assert "hello" in properties.values()


@pytest.mark.variants(2)
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("first", ["merge", "append"])
def test_a_key_that_a_concurrent_commit_inserts_is_updated(spark, table, lance, before_commit, first):
    def insert():
        other = spark.sql("select 104L as id, 0L as x, 'other' as s")
        if first == "merge":
            assert pyspark_lance.merge(other, table, on="id").attempts == 1
        else:
            pyspark_lance.write(other, table)

    before_commit(insert)
    result = pyspark_lance.merge(source(spark), table, on="id")
    assert (result.attempts, result.rows_inserted, result.rows_updated) == (2, 4, 6)
    found = contents(lance, table)
    assert [row["id"] for row in found] == list(range(105))
    assert found[104]["s"] == "new104"


@pytest.mark.variants(1)
@pytest.mark.usefixtures("either")
def test_concurrent_merges_that_insert_other_keys_both_commit(spark, table, lance, before_commit):
    def change():
        pyspark_lance.merge(spark.sql("select 500L as id, 0L as x, 'other' as s"), table, on="id")
        pyspark_lance.delete(table, spark.sql("select 3L as id"), on="id")

    before_commit(change)
    assert pyspark_lance.merge(source(spark), table, on="id").attempts == 1
    assert [row["id"] for row in contents(lance, table)] == [*range(3), *range(4, 105), 500]


def test_a_table_that_another_writer_creates_is_merged_into(spark, uri, lance, monkeypatch):
    create = verbs.write_with

    def late(*what, **more):
        lance.write_dataset(pa.table({"id": [100], "x": [0], "s": ["old"]}), uri)
        return create(*what, **more)

    monkeypatch.setattr(verbs, "write_with", late)
    result = pyspark_lance.merge(source(spark), uri, on="id")
    assert (result.rows_inserted, result.rows_updated) == (9, 1)
    assert lance.dataset(uri).count_rows() == 10


@pytest.mark.usefixtures("joins")
@pytest.mark.parametrize(
    "kind", ["BTREE", pytest.param("ZONEMAP", marks=pytest.mark.slow), pytest.param("BITMAP", marks=pytest.mark.slow)]
)
def test_an_index_narrows_the_side_of_the_table(spark, table, lance, monkeypatch, kind):
    lance.dataset(table).create_scalar_index("id", kind)
    pieces = []
    plan = read.plan_tasks
    monkeypatch.setattr(read, "plan_tasks", lambda *a, **k: pieces.append(plan(*a, **k)) or pieces[-1])
    merged = pyspark_lance.merge(source(spark), table, on="id")
    assert (merged.rows_inserted, merged.rows_updated) == (5, 5)
    assert {piece.fragment_id for task in pieces[0] for piece in task} == {3}
    monkeypatch.setattr(narrowing, "_FEW", 2)  # by the least and the greatest key
    pieces.clear()
    assert pyspark_lance.delete(table, spark.sql("select explode(array(1L, 3L, 29L)) as id"), on="id").rows_deleted == 3
    assert {piece.fragment_id for task in pieces[0] for piece in task} & {0, 1, 2, 3} == {0}  # new ones are not indexed
    assert lance.dataset(table).count_rows() == 102


@pytest.mark.usefixtures("joins")
def test_a_small_source_writes_one_file_and_only_its_rows_are_handed_over(spark, table, lance, monkeypatch):
    conditions = []
    rows_of = merge_clauses.rows_of
    monkeypatch.setattr(
        merge_clauses, "rows_of", lambda *given, **about: conditions.append(given[3]) or rows_of(*given, **about)
    )
    before = files(table)
    merged = pyspark_lance.merge(source(spark).repartition(7), table, on="id")
    assert (merged.rows_inserted, merged.rows_updated) == (5, 5)
    assert [condition is not None for condition in conditions] == [True]
    kinds = (
        2 if lance.dataset(table).has_stable_row_ids else 1
    )  # rows that moved and new ones lie in files of their own
    assert len(files(table)) - len(before) == kinds
    base = lance_core.dataset(table)
    narrowed = [
        narrowing.collect_few_keys(base, ["s"], spark.sql(f"select {text} as s")) is not None
        for text in ("'a'", "'a' collate UTF8_LCASE")
    ]
    assert narrowed == [True, False]


def test_an_interruption_after_the_commit_leaves_its_files(spark, table, lance, monkeypatch):
    commit = job.commit_update

    def interrupted(*arguments, **options):
        commit(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "commit_update", interrupted)
    source = spark.createDataFrame([(1, 11, "new"), (200, 0, "added")], "id long, x long, s string")
    with pytest.raises(KeyboardInterrupt):
        pyspark_lance.merge(source, table, on="id")
    rows = {row["id"]: row["s"] for row in contents(lance, table)}
    assert (len(rows), rows[1], rows[200]) == (101, "new", "added")


@pytest.mark.parametrize("stable", [True, False])
def test_row_columns_in_conditions_and_values(spark, uri, stable):
    lance_core.write_dataset(pa.table({"id": [1, 2, 3, 4], "x": [0, 0, 0, 0]}), uri, enable_stable_row_ids=stable)
    rows = lance_core.dataset(uri).to_table(with_row_id=True, with_row_address=True)
    last, address = rows["_rowid"][3].as_py(), rows["_rowaddr"][1].as_py()
    pyspark_lance.register_catalog(spark, "rows", pathlib.Path(uri).parent)
    assert pyspark_lance.sql(spark, f"DELETE FROM rows.table WHERE _rowid = {last}").collect()[0][0] == 1
    pyspark_lance.sql(spark, f"UPDATE rows.table t SET x = t._rowid + 5 WHERE _rowaddr = {address}")
    pyspark_lance.LanceTable.forPath(spark, uri).update("id = 3", {"x": "_rowid"})
    found = {row["id"]: row["x"] for row in lance_core.dataset(uri).to_table().to_pylist()}
    assert found == {1: 0, 2: rows["_rowid"][1].as_py() + 5, 3: rows["_rowid"][2].as_py()}


def test_vector_columns_are_a_dict(spark, uri):
    with pytest.raises(InvalidInputError, match="vector_columns must be a dict of the number of items"):
        pyspark_lance.write(spark.sql("SELECT array(1F, 2F) AS vec"), uri, vector_columns=["vec"])


@pytest.mark.variants(2)
@pytest.mark.parametrize("way", ["merge", "condition", "clauses", "SQL", "table"])
def test_fields_that_structs_of_the_source_lack_are_kept(spark, uri, way):
    """As in pylance and Delta: an updated row keeps its values of them, an inserted row has nulls."""
    rows = "named_struct('a', id, 'b', 'old', 'in', named_struct('x', id, 'y', 'old'))"
    pyspark_lance.write(spark.sql(f"SELECT id, {rows} AS s FROM range(3)"), uri)
    less = "named_struct('a', id * 10, 'in', named_struct('x', id * 10))"
    source = spark.sql(f"SELECT id, if(id = 2, null, {less}) AS s FROM range(1, 4)")
    if way in ("merge", "condition", "clauses"):
        given = {
            "condition": {"condition": "source.id > 0"},
            "clauses": {"clauses": {"when_matched": "update", "when_not_matched": "insert"}},
        }
        pyspark_lance.merge(source, uri, on="id", **given.get(way, {}))
    elif way == "SQL":
        pyspark_lance.register_catalog(spark, "structs", pathlib.Path(uri).parent)
        source.createOrReplaceTempView("less")
        statement = "MERGE INTO structs.table t USING less s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
        pyspark_lance.sql(spark, f"{statement} WHEN NOT MATCHED THEN INSERT *")
    else:
        table = pyspark_lance.LanceTable.forPath(spark, uri).alias("t")
        table.merge(source.alias("s"), "t.id = s.id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    found = {row["id"]: row["s"] for row in lance_core.dataset(uri).to_table().to_pylist()}
    assert found == {
        0: {"a": 0, "b": "old", "in": {"x": 0, "y": "old"}},
        1: {"a": 10, "b": "old", "in": {"x": 10, "y": "old"}},
        2: None,
        3: {"a": 30, "b": None, "in": {"x": 30, "y": None}},
    }
