"""SQL filters choose in our scans the rows that they choose in pylance's."""

import lance
import pyarrow as pa
import pytest

import lance_core
from tests.interop.sql.sql_table import both_of

FILTERS = [
    "u64 > 5",
    "u64 > i32",
    "f32 = 0.1",
    "f64 = 0.1",
    "f64 > 5",
    "f64 = f64",
    "f64 <> f64",
    "f64 < 10",
    's = "abc"',
    "s = 'abc'",
    "\"s\" = 'abc'",
    "`s` = 'abc'",
    "S = 'abc'",
    "`odd name` = 2",
    "Upper = 2",
    "upper = 2",
    "s IN ('abc', 'foo bar', null)",
    "s NOT IN ('abc', null)",
    "i32 IN (7, 10)",
    "s LIKE 'a%'",
    "s ILIKE 'a%'",
    "s LIKE 'A\\_c\\%'",
    "s LIKE 'Z_rich'",
    "s NOT LIKE 'a%'",
    "i32 BETWEEN 0 AND 7",
    "i32 NOT BETWEEN 0 AND 7",
    "b",
    "NOT b",
    "b IS TRUE",
    "b IS NOT TRUE",
    "b = true",
    "i32 IS NULL",
    "i32 IS NOT NULL",
    "i32 IS DISTINCT FROM 7",
    "i32 IS NOT DISTINCT FROM 7",
    "d >= date '2020-01-01'",
    "d >= cast('2020-01-01' as date)",
    "ts >= timestamp '2020-01-01 00:00:00'",
    "ts >= date '2020-01-01'",
    "d >= timestamp '2020-01-01 00:00:00'",
    "tz >= timestamp '2020-01-01 00:00:00'",
    "tz >= ts",
    "tz = ts",
    "dec > 1",
    "dec = cast(1.5 as decimal(10,2))",
    "dec > i32",
    "st.a > 3",
    "st.b.c = 'x'",
    "st['a'] > 3",
    "st['b']['c'] = 'x'",
    "li[1] = 1",
    "array_has(li, 3)",
    "array_has_any(lstr, ['a','d'])",
    "array_has_all(lstr, ['a','b'])",
    "array_contains(lstr, 'a')",
    "regexp_match(s, '^a')",
    "regexp_like(s, '^a')",
    "NOT regexp_match(s, '^a')",
    "starts_with(s, 'a')",
    "contains(s, 'o')",
    "is_valid(s)",
    "dict = 'a'",
    "bin = X'616263'",
    "bin <> X'abff' AND bin < X'ff'",
    "-null = i32",
    "i32 == 7",
    "i32 != 7",
    "i32 = NULL",
    "true",
    "1 = 1",
    "i32 % 2 = 0",
    "-i32 = 20",
    "i32 = 10 OR s = 'foo bar' AND b IS NULL",
    "s || 'x' = 'abcx'",
    "s IS NULL = true",
    "isnan(f64)",
    "b AND i32 > 0",
    "i32 in (i8, 7)",
    "ls = 'abc'",
    "ls LIKE 'a%'",
    "s = ls",
    "s < ls",
    "id::string = '1'",
    "i32 = cast('7' as int)",
    "try_cast(s as int) is null",
]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return both_of(tmp_path_factory.mktemp("sql"))


@pytest.mark.parametrize("sql", FILTERS)
def test_filters(both, sql):
    ours, theirs = both
    assert ours.to_table(columns=["id"], filter=sql).equals(theirs.to_table(columns=["id"], filter=sql))
    assert ours.count_rows(sql) == theirs.count_rows(sql)


FLOATS = [
    *(
        f"{column} {condition}"
        for column in ("f64", "f32", "f16")
        for condition in (
            "= 0.0", "= 0.1", "<> 0.1", "> -0.0", ">= 0.1", "< 0", "<= 0.1", "IN (0)", "IN (-0.0, 1.5)", "NOT IN (0.0)",
            "IN (0.0, 1, 2, 3, 4, 5)", "IN (0.1, 1.5)", "NOT IN (0.1, 1.5)", "NOT IN (0.1, NULL)", "IN (0.1, NULL)",
            "BETWEEN 0.1 AND 0.1", "NOT BETWEEN 0.1 AND 0.1", "BETWEEN -0.0 AND 0.1", "BETWEEN 0.1 AND f64", "IN (f32, 2)",
        )
    ),
    "NOT (f32 IN (0.1, 1.5))",
    "NOT f32 IN (0.1, 1.5)",
    "NOT f32 BETWEEN 0.1 AND 0.1",
    "0.1 BETWEEN f32 AND f32",
    "id >= 0 AND f32 NOT IN (0.1)",
    "f32 + 0.0 IN (0.1)",
    "f16 = f32",
    "f16 < id",
]  # fmt: skip


@pytest.mark.parametrize("filter_sql", FLOATS)
def test_floats_meet_zeros_of_both_signs_and_rounded_literals(filter_sql, floats):
    ours, theirs = (dataset.to_table(columns=["id"], filter=filter_sql) for dataset in floats)
    assert ours == theirs


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("floats"))
    values = [0.0, -0.0, 0.1, 1.5, None, float("nan"), 2.0, 1.0]
    columns = {f"f{bits}": pa.array(values).cast(f"float{bits}" if bits > 16 else "halffloat") for bits in (16, 32, 64)}
    lance.write_dataset(pa.table({"id": range(len(values)), **columns}), uri)
    return lance_core.dataset(uri), lance.dataset(uri)


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("more"))
    columns = {
        "id": range(6),
        "s": ["a%b", "axb", "a%bzz", "a\\", "A_c", "a%"],
        "pattern": ["a\\%b%", "a\\%b%", "a\\%b%", "a\\\\", "A\\_%", "a\\%"],
        "seconds": pa.array([1, 2, None, 4, 5, 6], pa.duration("s")),
        "micros": pa.array([1_000_000, 5, 6, 4_000_000, 1, 2], pa.duration("us")),
    }
    lance.write_dataset(pa.table(columns), uri)
    return lance_core.dataset(uri), lance.dataset(uri)


@pytest.mark.parametrize(
    ("filter_sql", "found"),
    [
        ("s LIKE pattern", [0, 2, 3, 4, 5]),
        ("s NOT LIKE pattern", [1]),
        ("seconds = micros", [0, 3]),
        ("seconds > micros", [1, 4, 5]),
    ],
)
def test_patterns_and_durations_of_columns(filter_sql, found, more):
    for dataset in more:
        assert dataset.to_table(columns=["id"], filter=filter_sql)["id"].to_pylist() == found
