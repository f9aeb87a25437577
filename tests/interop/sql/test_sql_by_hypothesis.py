"""Random SQL means in our scans what it means in pylance's."""

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from tests.interop.sql.sql_table import both_of, rounded
from tests.support.hypothesis_settings import examples

# Not f64: inf - inf is a negative NaN, which pylance puts before all numbers; to us every NaN is one.
# Not dec: where a decimal meets a float, some functions of pylance's make a decimal of 15 digits.
NUMBERS = ("i8", "i32", "u8", "u32", "u64", "f32", "id", "st.a", "`odd name`")
small = st.integers(-30, 300).map(str)
number_literals = small | st.sampled_from(["0.1", "2.5", "-7.25", "1e3", "9999999999"])
text_literals = st.sampled_from(
    ["'abc'", "'a%'", "'%c%'", "'A\\\\_c\\\\%'", "'_b_'", "''", "'Z_rich'", "'foo bar'", "'ü'"]
)
text_values = st.recursive(
    st.sampled_from(["s", "ls", "st.b.c", "dict"]) | text_literals,
    lambda inner: st.one_of(
        st.builds("lower({})".format, inner),
        st.builds("upper({})".format, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("replace({}, 'a', 'bb')".format, inner),
        st.builds("concat({}, {})".format, inner, inner),
        st.builds("reverse({})".format, inner),
    ),
    max_leaves=3,
)
number_values = st.recursive(
    st.sampled_from(NUMBERS) | number_literals,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds("(- {})".format, st.sampled_from(["i8", "i32", "id"])),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("nullif({}, {})".format, inner, inner),
        st.builds("cast({} as double)".format, inner),
        st.builds("length({})".format, text_values),
        st.builds("abs({})".format, st.sampled_from(["i32", "f32"])),
        st.builds("date_part('{}', {})".format, st.sampled_from(["year", "day", "dow"]), st.sampled_from(["d", "ts"])),
    ),
    max_leaves=3,
)
time_values = st.sampled_from([
    "d", "ts", "tz", "date '2020-01-01'", "timestamp '2021-05-06 00:00:00'", "date_trunc('month', ts)",
    "cast(ts as date)", "cast(d as timestamp)",
])  # fmt: skip
whole = st.sampled_from(["f64", "dec"])
comparisons = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
# Lists with NULL are among FILTERS only: pylance takes `x AND NOT x` for false, even where x is null.
conditions = st.recursive(
    st.one_of(
        st.builds("{} {} {}".format, number_values | whole, comparisons, number_values | whole),
        st.builds("{} {} {}".format, text_values, comparisons, text_values),
        st.builds("{} {} {}".format, time_values, comparisons, time_values),
        st.builds("{} {} {}".format, text_values, st.sampled_from(["LIKE", "NOT LIKE", "ILIKE"]), text_literals),
        st.builds("{} IS {}NULL".format, number_values | text_values, st.sampled_from(["", "NOT "])),
        st.builds("{} {}IN ({}, {}, {})".format, st.sampled_from(["i32", "id", "u8"]), st.sampled_from(["", "NOT "]),
                  small, small, small),
        st.builds("{} BETWEEN {} AND {}".format, number_values, number_values, number_values),
        st.builds("{} IS {}DISTINCT FROM {}".format, number_values, st.sampled_from(["", "NOT "]), number_values),
        st.builds("b IS {}{}".format, st.sampled_from(["", "NOT "]), st.sampled_from(["TRUE", "FALSE", "NULL"])),
        st.sampled_from(["b", "b = true", "starts_with(s, 'a')", "array_has(li, 3)", "regexp_like(s, '^[a-z]')"]),
    ),
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return both_of(tmp_path_factory.mktemp("sql"))


@examples(120, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(sql=conditions)
def test_any_condition(both, sql):
    ours, theirs = both
    try:
        expected = theirs.to_table(columns=["id"], filter=sql)
    except (ValueError, OSError, RuntimeError):
        assume(False)  # pylance rejects it, or fails on a value
    assert ours.to_table(columns=["id"], filter=sql).equals(expected)


@examples(100, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(sql=number_values | text_values | conditions)
def test_any_value(both, sql):
    ours, theirs = both
    try:
        expected = theirs.to_table(columns={"x": sql, "id": "id"}).column("x")
    except (ValueError, OSError, RuntimeError):
        assume(False)
    found = ours.to_table(columns={"x": sql, "id": "id"}).column("x")
    assert [rounded(x) for x in found.to_pylist()] == [rounded(x) for x in expected.to_pylist()]
