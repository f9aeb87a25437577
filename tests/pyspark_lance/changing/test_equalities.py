"""The equalities that the condition of a merge requires."""

import pytest

from pyspark_lance.changing.equalities import find_equalities, path_of, split_conjuncts

NAMES = ["id", "x", "name", "a b", "st", "s"]


@pytest.fixture(scope="module")
def frames(spark):
    target = spark.createDataFrame([], "id long, x long, name string, `a b` string, st struct<k: long>, s string")
    source = spark.createDataFrame([], "id long, name string, word string, `end` long, t struct<name: string>")
    return source.alias("s"), target.alias("t")


def found(frames, condition):
    every = find_equalities(condition, *frames, NAMES, alias="t", exact=False)
    return [(str(one.target), str(one.source), one.column, one.is_null_safe) for one in every]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("t.id = s.id", [("t.id", "s.id", "id", False)]),
        ("S.ID == T.ID", [("T.ID", "S.ID", "id", False)]),
        ("x = word", [("x", "word", "x", False)]),
        ("t.id + 0 = s.id", [("t.id + 0", "s.id", None, False)]),
        ("s.word <=> cast(t.id as string)", [("cast(t.id as string)", "s.word", None, True)]),
        ("t.`a b` = concat(s.word, 'a=b')", [("t.`a b`", "concat(s.word, 'a=b')", "a b", False)]),
        ("st.k = s.id", [("st.k", "s.id", None, False)]),
        ("t.st.k = s.id", [("t.st.k", "s.id", None, False)]),
        ("((t.id = s.id) AND (t.x > 1)) -- why", [("t.id", "s.id", "id", False)]),
        ("t.x between 1 and 3 and t.id = s.id", [("t.id", "s.id", "id", False)]),
        ("t.id = s.end and t.x = 1", [("t.id", "s.end", "id", False)]),
        ("t.id = case when s.id = 1 and s.end = 2 then 3 end", [("t.id", "case when s.id = 1 and s.end = 2 then 3 end", "id", False)]),
        ('t.name = s.name and s.word <> "a\\" and b = c"', [("t.name", "s.name", "name", False)]),
        ("t.name = s.name and s.word <> 'it''s = \\' and'", [("t.name", "s.name", "name", False)]),
        ("t.id = (select max(z.id) from range(3) z where z.id = 1) and t.x = s.id", [("t.x", "s.id", "x", False)]),
        ("t.id = s.id or t.x = s.id", []),
        ("not t.id = s.id", []),
        ("t.id > s.id and t.id = t.x and s.id = s.end and t.id = 5 and s.id = 1", []),
        ("t.id = s.id = true", []),
        ("t.name = t.name and t.id = t.x", []),
    ],
)  # fmt: skip
def test_equalities_of_a_string(frames, condition, wanted):
    assert found(frames, condition) == wanted


def test_equalities_of_columns(frames):
    from pyspark.sql import functions

    col, expr = functions.col, functions.expr
    one = (col("t.id") == col("s.id")) & (col("t.x") > 1) & expr("lower(t.name) <=> s.word and t.x = s.id")
    every = find_equalities(one, *frames, NAMES, alias="t", exact=False)
    assert [(each.column, each.is_null_safe) for each in every] == [("id", False), (None, True), ("x", False)]
    assert path_of(every[0].source) == ("s", "id")
    safe = functions.equal_null(col("s.word"), col("`t`.`a b`"))
    assert [
        (each.column, each.is_null_safe) for each in find_equalities(safe, *frames, NAMES, alias="t", exact=False)
    ] == [("a b", True)]
    for other in (col("t.id") > col("s.id"), (col("t.id") == col("s.id")) | (col("t.x") == 1), col("t.id") == 5):
        assert find_equalities(other, *frames, NAMES, alias="t", exact=False) == []
    assert len(split_conjuncts(one)) == 4
