"""Random SQL conditions choose in our scans the rows that they choose in pylance's, or both libraries reject them.

A condition that pylance alone rejects is held to itself: the rows where it is true, those where it is false and those
where it is null are all rows, each once.
"""

from __future__ import annotations

import os
import random
import re

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import LanceError
from tests.interop.sql import random_sql
from tests.interop.sql.random_sql import ROWS, Conditions, table

QUICK = 120
MANY = 20_000
_FLOAT32 = r"(\bf16|\bf32|\bfsl|Float32|as float)\b"
_FLOAT = r"(\bf16|\bf32|\bf64|\bst\.n\.f|\bfsl|Float32|Float64|as float|as double|\btrunc|\bsignum)\b"
# Where rows may differ, and why; docs/compatibility.md names each.
DIFFERENT_ROWS = {
    r"\d{19,}|99999999\.99": "numbers of many digits are doubles to pylance, and a neighbour may match",
    r"'9999-|'0001-": "times beyond those of nanoseconds are all distinct from each to pylance",
    r"\bf16\b.*(\d{5,}|\b([iu](16|32|64)|id)\b)|(\d{5,}|\b([iu](16|32|64)|id)\b).*\bf16\b": "integers beyond a float16's",
    r"cast\((s|ls|dict|st\.s|lower\(\w+\)) as decimal": "the empty string is the decimal 0 to pylance",
    r"\((dec|big|st\.n\.d) [-+*/%] \d*\.\d+\)": "a decimal and a float meet as decimals in pylance",
    r"coalesce\((utc|ny), (utc|ny)\)": "of two zones pylance takes the second",
    r"\b(big|dec|st\.n\.d)\b.*FLOAT32|FLOAT32.*\b(big|dec|st\.n\.d)\b".replace(
        "FLOAT32", _FLOAT32
    ): "a decimal and a float",
    r"\bbig\b.*FLOAT|FLOAT.*\bbig\b".replace("FLOAT", _FLOAT): "a decimal and a float meet as decimals in pylance",
    r"\bpow(er)?\(.*\b(big|dec|st\.n\.d)\b": "a power of a decimal is one to pylance, null where it has too many digits",
    r"\(.* \* 1e400\)": "zero times infinity is a NaN with its sign bit set, below all numbers in pylance",
    r"\blog\(([\w.]+), \1\)": "log(x, x) is 1 to pylance, also of 1, negative numbers and null",
    r"\bf(16|32|64) (NOT )?BETWEEN .*\([\w.]+ [-+*/%] ": "integers in bounds of floats become floats before they are added",
    r"cast\([\w.]+ as timestamp\([03]\)\) (=|<|>|!=|(NOT )?(IN|BETWEEN) |IS (NOT )?DISTINCT)": "pylance leaves out a cast beside a literal",
    r"try_cast\([\w.]+ as [\w ]+\) (=|<|>|!=|(NOT )?(IN|BETWEEN) |IS (NOT )?DISTINCT)": "pylance leaves out a cast beside a literal",
}
# What we alone reject, by the message, and why; docs/compatibility.md names each.
REJECTED_HERE = {
    r"is not a valid (date|timestamp)": "a string with a time of day beside a date",
    r"is not a valid (u?int|decimal|double)": "a string that is no such number beside one",
    r"is not a valid bool": "a string that is not a truth value beside one",
    r"out of bounds|out of range Int|Can't cast value|not in range|does not fit in precision|would lose data|overflow": "a cast that fails for some value",
    r"out of the range of the": "a literal that the column's type does not hold",
    r"have no common type": "strings beside bytes, numbers beside dates",
    r"expected a (string|date or a timestamp)": "a function that gets another type",
    r"ambiguous without parentheses": "IS, LIKE and comparisons in a row",
    r"values of type list.* cannot be compared": "lists beside lists",
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("random") / "t")
    lance.write_dataset(table(), uri)
    return lance_core.dataset(uri), lance.dataset(uri)


def _found(dataset, sql):
    return dataset.to_table(columns=["id"], filter=sql)["id"].to_pylist()


def _of_pylance(dataset, sql):
    """The rows; None if pylance rejects the condition. Its panics are no exceptions."""
    try:
        return _found(dataset, sql)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - pylance raises all kinds
        return None


def _reason(reasons, text):
    return next((why for pattern, why in reasons.items() if re.search(pattern, text)), None)


def _check(both, sql):
    found, expected = _answers(both, sql)
    if found is None or expected is not None:
        return
    # A literal beside a column of floats is one of its type at the top of a filter alone.
    first = f"({sql}) IS TRUE" if re.search(r"\bf(16|32)\b", sql) else sql
    parts = [_answers(both, text)[0] for text in (first, f"NOT ({sql})", f"({sql}) IS NULL")]
    if None not in parts:
        assert sorted(row for part in parts for row in part) == list(range(ROWS)), f"{sql}: {parts}"


def _answers(both, sql):
    """The rows that we choose and those that pylance chooses, which are the same; None for a condition rejected."""
    ours, theirs = both
    expected = _of_pylance(theirs, sql)
    try:
        found = _found(ours, sql)
    except LanceError as error:
        if expected is not None and not _reason(REJECTED_HERE, str(error)):
            pytest.fail(f"{sql}: only we reject it: {error}")
        return None, expected
    assert ours.count_rows(sql) == len(found), sql
    if expected is not None:
        assert found == expected or _reason(DIFFERENT_ROWS, sql), sql
    return found, expected


def test_conditions_choose_the_rows_that_they_choose_in_pylance(both):
    conditions = Conditions(1)
    for _ in range(QUICK):
        _check(both, conditions.one())


@pytest.mark.slow
def test_many_conditions_with_parts_of_other_types(both):
    seed = int(os.environ.get("RANDOM_SQL_SEED", "0")) or random.SystemRandom().randrange(2**32)
    print(f"RANDOM_SQL_SEED={seed}")
    conditions = Conditions(seed, wild=0.02)
    for _ in range(MANY):
        _check(both, conditions.one())


MENDED = [
    "(cast(dec as double) = 99999999.99) = (id >= 0)",
    "cast(big as double) = 7",
    "big * big > 5",
    "big / 3 < 1",
    "(big % 2 = 0) IS TRUE",
    "coalesce(big, 0) = 0",
    "round(big, 1) = 7",
    "cast(ny as timestamp) = timestamp '2020-01-01 00:00:00'",
    "cast(ny as string) = '2019-12-31T19:00:00-05:00'",
    "ny IN (date '2020-01-01', timestamp '2021-05-06 00:00:00')",
    "ny BETWEEN d32 AND ts_us",
    "ts_s NOT IN (date '2021-05-06', ts_ms)",
    "ts_ns BETWEEN ts_s AND ts_us",
    "least(ts_s, ts_us) = timestamp '2020-01-01 01:02:03.456789'",
    "coalesce(ts_s, ts_us) = ts_us",
    "nullif(ts_us, ts_s) IS NULL",
    "nullif(ts_us, '2020-01-01') IS NULL",
    "(ts_s - ts_ms) >= (ts_ns - ts_s)",
    "greatest(utc, ny) = utc",
    "to_unixtime(ts_us) = 0",
    "to_timestamp_millis(utc) = ts_ms",
    "date_part('hour', d64) = 0",
    "cast('2020-01-01 10:00:00' as date) = d32",
    "cast('1.505' as decimal(10,2)) > dec",
    "regexp_match(s, 'b$') IS NULL",
    "s ILIKE ls",
    "concat_ws('-', s, ls) = '-1.5'",
    "(s || f32) = 'abc1.0'",
    "cast(f16 as string) = '100'",
    "encode(bin, 'base64') = 'YWJj'",
    "decode('YWI', 'base64') = X'6162'",
    "abs(f32) = 0.1",
    "f16 <> u32",
    "(i16 << 1) + 0 < -60000",
    "(i8 << 7) = -128",
    "(u64 << 1) <= 14",
    "(u64 >> 1) <= big",
    "try_cast(dec as smallint) IS NULL",
    "try_cast(u64 as decimal(10,2)) = 7",
    "try_cast(ts_ms as tinyint) IS NULL",
    "try_cast(f16 as bigint unsigned) = 1",
    "try_cast(i64 as date) IS NULL",
    "nullif(ts_s, '2020-01-01') IS DISTINCT FROM ts_ms",
    "cast(utc as timestamp(9)) = nullif(ts_ms, '2020-01-01T00:00:00Z')",
    "(nullif(ts_ms, '2020-01-01 01:02:03') != timestamp '2020-01-01 01:02:03.456789') IS FALSE",
    "ny BETWEEN date '2020-01-01' AND to_timestamp_millis(i32)",
    "ny BETWEEN date '2020-01-01' AND to_timestamp('2020-01-01T00:00:00')",
    "ts_ms BETWEEN ny AND timestamp '2020-01-01 00:00:00'",
    "ts_ms NOT BETWEEN ny AND to_date('2020-01-01')",
    "timestamp '2020-01-01 00:00:00' BETWEEN ts_ms AND ny",
    "date_trunc('quarter', ts_ms) NOT BETWEEN cast('2020-01-01 00:00:00' as timestamp) AND ny",
    "ts_s BETWEEN cast('2020-01-01 00:00:00' as timestamp) AND coalesce(ny, ts_ms)",
    "(ts_us BETWEEN ny AND '2020-01-01T01:02:03Z') IS TRUE",
    "(ts_us BETWEEN ts_s AND '2020-01-01T01:02:03.456789') IS TRUE",
    "ts_us BETWEEN ts_s AND timestamp '2020-01-01 01:02:03.456789'",
    "ts_ms BETWEEN ts_s AND timestamp '2020-01-01 01:02:03.456789'",
    "(ts_us IN (ts_s, '2020-01-01 01:02:03')) IS TRUE",
    "(ts_s IN (ts_us, '2020-01-01 01:02:03.5')) IS TRUE",
    "(ts_ns NOT IN (ts_s, '2020-01-01')) IS NOT TRUE",
    "from_unixtime(u8) NOT IN (ts_ns, '2024-02-29T12:00:00', timestamp '1969-12-31 23:59:59.5')",
    "f32 IS NOT DISTINCT FROM 0.1",
    "0.1 IS DISTINCT FROM f16",
    "trunc(f16) >= strpos(st.s, 'a')",
    "trunc(f64) = abs(f64)",
    "trunc(f64, 1) = abs(f64)",
    "gcd(i32, u8) <> trunc(i32, -1)",
    "NOT (ts_ns NOT IN ('2020-01-01', ts_ms))",
    "NOT (utc IN ('2020-01-01T00:00:00Z', ts_ms, ts_us))",
    "NOT ((utc IN ('2024-02-29T12:00:00', '2020-01-01 00:00:00+02:00', ny)) IS FALSE)",
]


@pytest.mark.parametrize("sql", MENDED)
def test_what_once_differed(both, sql):
    ours, theirs = both
    assert _found(ours, sql) == _found(theirs, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "strpos(i64, '7') = 1",
        "levenshtein(s, 7) = 1",
        "repeat(s, s) = 'a'",
        "starts_with(s, 'a') = regexp_match(s, 'a')",
    ],
)
def test_what_has_no_meaning_is_rejected_as_in_pylance(both, sql):
    with pytest.raises(LanceError, match=r"No function matches|no common type"):
        _found(both[0], sql)
    assert _of_pylance(both[1], sql) is None


def test_casts_beside_literals_are_not_left_out(both):
    ours, _ = both
    halves = _found(ours, "ts_ms = timestamp '2020-01-01 01:02:03.456'")
    assert halves
    assert set(halves) <= set(_found(ours, "cast(ts_ms as timestamp(0)) = timestamp '2020-01-01 01:02:03'"))
    assert _found(ours, "try_cast(s as date) IS DISTINCT FROM NULL") == _found(ours, "s = '2020-01-01'")


def test_times_beyond_those_of_nanoseconds_are_compared_by_their_value(both):
    ours, _ = both
    known = _found(ours, "ts_ns IS NOT NULL")
    assert _found(ours, "ts_ns < timestamp '9999-12-31 23:59:59'") == known
    assert _found(ours, "ts_ns > date '0001-01-01'") == known
    assert _found(ours, "ts_ns IN (timestamp '9999-12-31 23:59:59')") == []
    later = _found(ours, "ts_ns >= ny")
    assert _found(ours, "ts_ns BETWEEN ny AND timestamp '9999-12-31 23:59:59'") == later
    with pytest.raises(LanceError, match="would result in out of bounds"):
        _found(ours, "(ts_ns BETWEEN ny AND '9999-12-31') IS TRUE")


def test_numbers_beyond_a_float16_are_compared_by_their_value(both):
    for sql in ("f16 IN (2147483648, 0.0, 100)", "f16 > 70000", "f16 <= 65505"):
        parts = [_found(both[0], text) for text in (sql, f"NOT ({sql})", f"({sql}) IS NULL")]
        assert sorted(row for part in parts for row in part) == list(range(ROWS))
    assert _found(both[0], "f16 = 70000") == []


def test_an_index_of_a_fixed_size_binary_is_rejected_with_a_remedy(both, tmp_path):
    made = lance_core.write_dataset(table().select(["fsb", "bin"]), tmp_path / "t")
    with pytest.raises(LanceError, match="is not possible: a column of type binary can have one"):
        made.create_scalar_index("fsb", "BTREE")
    made.create_scalar_index("bin", "BTREE")
    with pytest.raises(LanceError, match=r"is not a valid timestamp\[ns\]"):
        both[0].count_rows("d32 IN (timestamp '9999-12-31 23:59:59', d32)")


def test_decimals_become_the_nearest_floats(tmp_path):
    values = [f"{number // 100}.{number % 100:02}" for number in range(100_000)]
    rows = pa.table({"d": pa.array(values).cast(pa.decimal128(10, 2)), "f": [float(value) for value in values]})
    made = lance_core.write_dataset(rows, tmp_path / "t")
    assert made.count_rows("d = f") == made.count_rows("cast(d as double) = f") == rows.num_rows


INDEXED = {
    "BTREE": ["i8", "u64", "f32", "f64", "dec", "s", "bin", "d32", "d64", "ts_s", "ts_ns", "utc", "ny", "t64_us", "du_us", "b"],
    "BITMAP": ["i8", "u64", "f32", "f64", "dec", "s", "bin", "d32", "ts_s", "ts_ns", "utc", "ny", "t64_us", "du_us", "b"],
    "ZONEMAP": ["i8", "u64", "f32", "f64", "dec", "s", "d32", "d64", "ts_s", "ts_ns", "utc", "ny", "t64_us", "du_us"],
    "BLOOMFILTER": ["i8", "u64", "f32", "f64", "s", "bin", "d32", "ts_s", "ts_ns", "utc", "ny"],
}  # fmt: skip


@pytest.mark.parametrize("count", [15, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", INDEXED)
def test_an_index_changes_no_answer(tmp_path, kind, count):
    columns = INDEXED[kind]
    made = lance_core.write_dataset(table().select(["id", *columns]), tmp_path / "t", max_rows_per_file=15)
    for column in columns:
        made.create_scalar_index(column, kind)
    conditions = Conditions(2)
    conditions.restrict(columns)
    for _ in range(count):
        sql = conditions.simple()
        answers = []
        for use in (False, True):
            try:
                answers.append(made.scanner(["id"], filter=sql, use_scalar_index=use).to_table()["id"].to_pylist())
            except LanceError as error:
                answers.append(type(error).__name__)
        assert answers[0] == answers[1], sql


def test_an_index_is_not_suspected_by_a_comparison_with_null(tmp_path):
    made = lance_core.write_dataset(table().select(["f32"]), tmp_path / "t")
    made.create_scalar_index("f32", "BITMAP")
    assert made.count_rows("f32 > NULL") == 0  # a warning would be an error
    assert made.count_rows("(f32 > NULL) IS NULL") == ROWS


OPERATORS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@pytest.mark.parametrize("count", [40, pytest.param(5000, marks=pytest.mark.slow)])
def test_arrow_expressions_mean_what_sql_means(both, count):
    some = random.Random(3)
    ours, theirs = both
    for _ in range(count):
        sql, expression = _translated(some, 2)
        expected = _found(ours, sql)
        assert _found(ours, expression) == expected, sql
        chosen = _of_pylance(theirs, expression)
        assert chosen is None or chosen == expected, sql


def _translated(some, depth):
    """A condition as SQL and as an Arrow expression."""
    if depth and some.random() < 0.5:
        (one, left), (other, right) = (_translated(some, depth - 1) for _ in range(2))
        return some.choice([
            (f"({one}) AND ({other})", left & right),
            (f"({one}) OR ({other})", left | right),
            (f"NOT ({one})", ~left),
        ])  # fmt: skip
    name, kind, pool = some.choice(random_sql.plain_columns())
    field = pc.field(*name.split("."))
    if some.random() < 0.2:
        return some.choice([(f"{name} IS NULL", field.is_null()), (f"{name} IS NOT NULL", field.is_valid())])
    if some.random() < 0.2:
        values = some.sample(pool, 2)
        listed = ", ".join(random_sql.written(value) for value in values)
        return f"{name} IN ({listed})", field.isin(pa.array(values, kind))
    sign, value = some.choice(list(OPERATORS)), some.choice(pool)
    return f"{name} {sign} {random_sql.written(value)}", OPERATORS[sign](field, pa.scalar(value, kind))
