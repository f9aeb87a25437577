"""Functions that DataFusion computes: what needs it, what does without, and where the rows are that it never sees."""

import datetime as dt
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.verbs.expressions.arrow import evaluated
from lance_core.verbs.expressions.printed import format_expr
from lance_core.verbs.expressions.sql import parse_column, python_functions

ROWS = pa.table(
    {
        "n": pa.array([1, 2, 3, None]),
        "f": [0.5, -1.5, float("nan"), None],
        "s": ["2020-01-01", "x", " Ab ", None],
        "l": [[1, 2], [], [3, None], None],
        "ts": pa.array([dt.datetime(2020, 1, 31), None, None, None], pa.timestamp("us")),
    }
)


@pytest.fixture
def without_datafusion(monkeypatch):
    monkeypatch.setitem(sys.modules, "datafusion", None)
    python_functions._session.cache_clear()
    yield
    python_functions._session.cache_clear()


def values_of(sql, rows=ROWS):
    return evaluated(rows, {"x": parse_column(sql, rows.schema).expression})["x"].to_pylist()


COMMON = {
    "coalesce(n, 0)": [1, 2, 3, 0],
    "nullif(n, 2)": [1, None, 3, None],
    "nvl2(n, 'a', 'b')": ["a", "a", "a", "b"],
    "if(n > 1, n, 0)": [0, 2, 3, 0],
    "case when n > 2 then 'c' end": [None, None, "c", None],
    "lower(s)": ["2020-01-01", "x", " ab ", None],
    "upper(trim(s))": ["2020-01-01", "X", "AB", None],
    "length(s)": [10, 1, 4, None],
    "substr(s, 1, 4)": ["2020", "x", " Ab ", None],
    "concat(s, '-')": ["2020-01-01-", "x-", " Ab -", "-"],
    "s || n": ["2020-01-011", "x2", " Ab 3", None],
    "starts_with(s, '2') or ends_with(s, ' ') or contains(s, 'y')": [True, False, True, None],
    "s like '2%'": [True, False, False, None],
    "abs(f) + ceil(n) + floor(n)": [2.5, 5.5, "nan", None],
    "round(n, -1)": [0.0, 0.0, 0.0, None],
    "isnan(f)": [False, False, True, None],
    "array_has(l, 1)": [True, False, False, None],
    "array_has_any(l, [1, 3]) and array_has_all(l, [1])": [True, False, False, None],
    "n + 1 between 2 and 3 and n in (1, 2)": [True, True, False, None],
    "cast(n as string)": ["1", "2", "3", None],
    "ts < now() and current_date > date '2020-01-01'": [True, None, None, None],
    "n % 2 = 0 or n & 1 = 1": [True, True, True, None],
}


@pytest.mark.usefixtures("without_datafusion")
@pytest.mark.parametrize("sql", COMMON)
def test_what_is_common_needs_no_datafusion(sql):
    values = values_of(sql)
    assert ["nan" if isinstance(x, float) and x != x else x for x in values] == COMMON[sql]  # noqa: PLR0124 - NaN


@pytest.mark.usefixtures("without_datafusion")
@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("lpad(s, 2) = 'a'", "the function lpad"),
        ("n = 1 AND Regexp_Like(s, '^a')", "the function Regexp_Like"),
        ("regexp_match(s, '^a')", "the function regexp_match"),
        ("ts > now() - interval '1 day'", "the function INTERVAL"),
        ("extract(year from ts) = 2020", "the function date_part"),
        ("l[1] = 1", "the function array_element"),
        ("s LIKE s", "the function LIKE"),
        ("try_cast(s as int) = 1", "the function TRY_CAST"),
        ("ts - ts > arrow_cast(1, 'Duration(Second)')", "the function subtract"),
        ("length(n) = 1", "the function length"),
        ("nosuch(s) = 1", "the function nosuch"),
    ],
)
def test_without_datafusion_the_function_and_the_extra_are_named(tmp_path, sql, name):
    dataset = lance_core.write_dataset(ROWS, tmp_path / "t")
    message = rf"{name} needs DataFusion: pip install 'lance-dagster\[sql\]'"
    for call in (
        lambda: dataset.to_table(filter=sql),
        lambda: dataset.scanner(filter=sql),
        lambda: dataset.delete(sql),
        lambda: dataset.update({"n": "n + 1"}, where=sql),
        lambda: dataset.update({"n": f"if({sql}, 1, 2)"}) if "regexp_match" not in sql else dataset.delete(sql),
        lambda: dataset.add_columns({"x": sql}),
    ):
        with pytest.raises(UnsupportedError, match=message):
            call()
    assert len(dataset.versions()) == 1
    assert lance_core.dataset(tmp_path / "t").to_table(["n", "s"]) == ROWS.select(["n", "s"])


def test_rows_that_need_no_value_cannot_fail():
    day = dt.date(2020, 1, 1)
    assert values_of("case when starts_with(s, '2') then to_date(s) end") == [day, None, None, None]
    assert values_of("coalesce(n > 1 or to_date(s) = date '2020-01-01', false)") == [True, True, True, False]
    with pytest.raises(InvalidInputError, match="the function to_date cannot be evaluated"):
        values_of("to_date(s)")


@pytest.mark.parametrize("sql", ["random() > 0.5", "uuid() = s", "sum(n) > 1", "unnest(l) = 1", "row_number() = 1"])
def test_what_is_no_function_of_the_row_is_rejected(sql):
    with pytest.raises(UnsupportedError, match=r"the function \w+ is not supported, at position 1 "):
        parse_column(sql, ROWS.schema)


def test_literals_reach_datafusion_as_they_are():
    assert values_of("concat_ws('', 'it''s {0} {}', s)")[1] == "it's {0} {}x"
    assert values_of("to_hex(18446744073709551615)")[0] == "f" * 16
    assert values_of("to_char(timestamp '2020-01-31 01:02:03.000004', '%Y %H')")[0] == "2020 01"
    assert values_of("ts - interval '1 month 2 days' + interval '-1 year'")[0] == dt.datetime(2018, 12, 29)
    assert values_of("date_part('year', date '2020-01-31' + interval '11 months 1 day')")[0] == 2021
    assert values_of("array_has(l, 1.5)") == [False, False, False, None]


def test_batches_and_empty_tables():
    many = pa.table({"s": [f"{i}" for i in range(100_000)]})
    assert values_of("lpad(s, 6, '0')", many) == [f"{i:06}" for i in range(100_000)]
    assert values_of("lpad(s, 6, '0')", many.slice(0, 0)) == []
    column = parse_column("left(s, 2)", many.schema)
    assert column.type == pa.string()
    with ThreadPoolExecutor(4) as pool:
        slices = [many.slice(i * 1000, 1000) for i in range(16)]
        results = list(pool.map(lambda rows: evaluated(rows, {"x": column.expression})["x"], slices))
    assert pa.chunked_array([chunk for part in results for chunk in part.chunks]).to_pylist() == [
        f"{i}"[:2] for i in range(16_000)
    ]


def test_an_index_serves_the_condition_beside_a_function_of_datafusion(tmp_path):
    dataset = lance_core.write_dataset(
        pa.table({"id": range(1000), "s": [f"v{i}" for i in range(1000)]}), tmp_path / "t"
    )
    dataset.create_scalar_index("id", "BTREE")
    filter_sql = "id < 20 AND regexp_like(s, '^v1')"
    assert "ScalarIndexQuery" in dataset.scanner(filter=filter_sql).explain_plan()
    assert dataset.to_table(filter=filter_sql)["id"].to_pylist() == [1, *range(10, 20)]
    assert dataset.count_rows("array_has(make_array(id), 7)") == 1


def test_conditions_that_differ_in_literals_share_a_function():
    """Arrow keeps each registered function until the process ends."""
    assert values_of("lpad(s, 3, 'a')") == ["202", "aax", " Ab", None]
    before = len(python_functions._registered)
    for n in range(3, 9):
        assert values_of(f"lpad(s, {n}, '{n}')")[1] == str(n) * (n - 1) + "x"
        assert values_of(f"repeat(s, {n})")[1] == "x" * n
    assert len(python_functions._registered) <= before + 1
    expression = parse_column("lpad(s, 3, '\"') = 'x'", ROWS.schema).expression
    assert format_expr(expression) == '(lpad(s) == "x")'
