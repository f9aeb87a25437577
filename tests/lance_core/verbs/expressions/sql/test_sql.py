"""SQL beyond what pylance takes, errors that say where, and parts that fail only where they are needed."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import dataset

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.schema import schema_from_arrow
from lance_core.verbs.expressions import arrow
from lance_core.verbs.expressions.arrow import evaluated
from lance_core.verbs.expressions.sql import compile as compiling
from lance_core.verbs.expressions.sql import dialect, parse_column, parse_conjuncts, parse_expression, parse_filter

NAN = float("nan")
TABLE = pa.table({
    "i": pa.array([10, -20, None, 7, 0], pa.int32()),
    "u": pa.array([1, 2, None, 255, 0], pa.uint8()),
    "f": pa.array([0.5, -2.5, None, NAN, 7.0]),
    "s": ["abc", "A_c%", None, "", "Zürich"],
    "n": ["12", "x", None, "-3", "99999999999"],
    "b": [True, False, None, True, None],
    "d": pa.array([dt.date(2020, 1, 31), dt.date(1969, 12, 31), None, dt.date(2024, 2, 29), dt.date(1900, 3, 1)]),
    "ts": pa.array([dt.datetime(2020, 1, 31, 23, 59, 59), None, None, dt.datetime(1969, 12, 31, 1), None], pa.timestamp("us")),
    "ny": pa.array([dt.datetime(2020, 1, 1, 5), None, None, None, None], pa.timestamp("us", "America/New_York")),
    "dec": pa.array([Decimal("1.50"), Decimal("-2.25"), None, Decimal("99999999.99"), Decimal(0)], pa.decimal128(10, 2)),
    "l": pa.array([[1, 2], [], None, [3, None], [4]], pa.list_(pa.int32())),
    "st": pa.array([{"a": 1}, {"a": None}, None, {"a": 4}, {"a": 5}], pa.struct([("a", pa.int32())])),
    "a.b": [1, 2, 3, 4, 5],
    "twin": [1, 2, 3, 4, 5],
    "TWIN": [5, 4, 3, 2, 1],
})  # fmt: skip


def values_of(sql):
    column = parse_column(sql, TABLE.schema)
    found = evaluated(TABLE, {"x": column.expression}).column("x")
    assert found.type == column.type, "the announced type is the type of the result"
    return found.to_pylist()


VALUES = {
    # Literals of another type than the column beside them.
    "i < 7.5": [False, True, None, True, True],
    "i IN (7.5, 10)": [True, False, None, False, False],
    "(u > -1) IS TRUE": [True, True, False, True, True],
    "(u < 100000000000) IS TRUE": [True, True, False, True, True],
    "d > '2020-01-01'": [True, False, None, True, False],
    "ts >= '2020-01-31T00:00:00'": [True, None, None, False, None],
    "dec > 1.4": [True, False, None, True, False],
    "f = 'NaN'": [False, False, None, True, False],
    "i / 4.0": [2.5, -5.0, None, 1.75, 0.0],
    "i || 'x'": ["10x", "-20x", None, "7x", "0x"],
    # CASE, IF, TRIM, SUBSTRING, EXTRACT, POSITION, CEIL at the top.
    "CASE WHEN i > 5 THEN 'big' WHEN i >= 0 THEN 'small' END": ["big", None, None, "big", "small"],
    "CASE i WHEN 10 THEN 1 WHEN 7 THEN 2.5 ELSE 0 END": [1.0, 0.0, 0.0, 2.5, 0.0],
    "if(b, i, u)": [10, 2, None, 7, 0],
    "trim('  a ') || s": ["aabc", "aA_c%", None, "a", "aZürich"],
    "trim(both 'a' from s)": ["bc", "A_c%", None, "", "Zürich"],
    "trim(leading 'a' from s)": ["bc", "A_c%", None, "", "Zürich"],
    "substr(s, 2)": ["bc", "_c%", None, "", "ürich"],
    "substring(s from 2 for 2)": ["bc", "_c", None, "", "ür"],
    "substr(s, -1, 3)": ["a", "A", None, "", "Z"],
    "position('c' in s)": [3, 3, None, 0, 5],
    "extract(month from d)": [1, 12, None, 2, 3],
    "ceil(f)": [1.0, -2.0, None, "nan", 7.0],
    "floor(dec)": [Decimal("1.00"), Decimal("-3.00"), None, Decimal("99999999.00"), Decimal("0.00")],
    "mod(i, 3)": [1, -2, None, 1, 0],
    "+i": [10, -20, None, 7, 0],
    "i & 3": [2, 0, None, 3, 0],
    "b IS UNKNOWN": [False, False, True, False, True],
    "s LIKE 'A!_c!%' ESCAPE '!'": [False, True, None, False, False],
    "s LIKE n": [False, False, None, False, False],
    # Intervals.
    "d + interval '1 month'": [dt.date(2020, 2, 29), dt.date(1970, 1, 31), None, dt.date(2024, 3, 29), dt.date(1900, 4, 1)],
    "d - interval '1 year 1 day'": [dt.date(2019, 1, 30), dt.date(1968, 12, 30), None, dt.date(2023, 2, 27), dt.date(1899, 2, 28)],
    "ts + interval '1 month 2 hours'": [dt.datetime(2020, 3, 1, 1, 59, 59), None, None, dt.datetime(1970, 1, 31, 3), None],
    "interval '1' day + d": [dt.date(2020, 2, 1), dt.date(1970, 1, 1), None, dt.date(2024, 3, 1), dt.date(1900, 3, 2)],
    # Local time beside a time with a zone.
    "ny = timestamp '2020-01-01 00:00:00'": [True, None, None, None, None],
    # What fails elsewhere is not evaluated where it is not needed.
    "case when i <> 0 then 100 / i end": [10, -5, None, 14, None],
    "case when s = 'abc' then cast(s || n as string) else cast(i as string) end": ["abc12", "-20", None, "7", "0"],
    "case when n <> 'x' and length(n) < 5 then cast(n as int) end": [12, None, None, -3, None],
    "i = 0 OR 100 / i > 5": [True, False, None, True, True],
    "i <> 0 AND 100 / i > 5": [True, False, None, True, False],
    "coalesce(nullif(i, 0), 1) * 2": [20, -40, 2, 14, 2],
    "coalesce(f, 1 / nullif(0, 0))": [0.5, -2.5, None, "nan", 7.0],
    # TRY_CAST.
    "try_cast(n as int)": [12, None, None, -3, None],
    "try_cast(n as bigint)": [12, None, None, -3, 99999999999],
    "try_cast(f as tinyint unsigned)": [0, None, None, None, 7],
    "try_cast(i as tinyint unsigned)": [10, None, None, 7, 0],
    "try_cast('x' as date)": [None] * 5,
    # Regular expressions.
    r"regexp_replace(s, '(.)(b)', '$2${1}')": ["bac", "A_c%", None, "", "Zürich"],
    r"regexp_replace(s, '[a-c]', '-', 'g')": ["---", "A_-%", None, "", "Züri-h"],
    "regexp_match(s, '(a)(x)?')": [["a"], None, None, None, None],
    # Names.
    "`a.b` + 1": [2, 3, 4, 5, 6],
    "a.b": [1, 2, 3, 4, 5],
    "I + 1": [11, -19, None, 8, 1],
    "twin - TWIN": [-4, -2, 0, 2, 4],
    "ST.A": [1, None, None, 4, 5],
    "st['a']": [1, None, None, 4, 5],
    "l[1]": [1, None, None, 3, 4],
    "l[-1]": [2, None, None, None, 4],
    "l[1:1]": [[1], [], None, [3], [4]],
    "i /* a comment */ + 1 -- more": [11, -19, None, 8, 1],
}  # fmt: skip


@pytest.mark.parametrize("sql", VALUES)
def test_values(sql):
    found = ["nan" if isinstance(x, float) and x != x else x for x in values_of(sql)]  # noqa: PLR0124 - NaN
    assert found == VALUES[sql]


UNSUPPORTED = {
    "s SIMILAR TO 'a'": "SIMILAR TO.*position 1 ",
    "i > 1 AND soundex(s) = 'A'": "the function soundex.*position 11 ",
    "count(*) > 1": "the function count.*position 1 ",
    "i = (SELECT 1)": "a query.*position 13 ",
    "i IN (SELECT 1)": "IN with a query",
    "cast(i as xml)": "the type xml.*position 6 ",
    "cast(i as varchar(3))": r"the type .*\(3\)",
    "sum(i) OVER ()": "a window function",
    "s COLLATE x = 'a'": "s COLLATE x is not supported.*position 1 ",
    "i = ?": r"^\? is not supported",
    "ts AT TIME ZONE 'UTC' > ts": "^ts AT TIME ZONE 'UTC' is not supported",
    "s LIKE ANY ('a')": "LIKE ANY.* is not supported",
    "{'a': 1}": "STRUCT.* is not supported",
}


@pytest.mark.parametrize("sql", UNSUPPORTED)
def test_what_is_not_known_is_named(sql):
    with pytest.raises(UnsupportedError, match=UNSUPPORTED[sql]):
        parse_expression(sql, TABLE.schema)


INVALID = {
    "": "expected one SQL expression",
    "i = 1; drop": "expected one SQL expression",
    "i > ": "cannot read SQL 'i > '.*position",
    "i @> 1": "an operand is missing, at position 4 ?",
    "i = 1 )": "position 7",
    "s = 'abc": "cannot read SQL",
    "i = s": "int32 and string.*position 1 ",
    "i = X'61'": "int32 and (large_)?binary have no common type",
    "X'61' < d": "binary and date32.* have no common type",
    "i > 1 AND b = 3": "bool and int64.*position 11 ",
    "i AND b": "true or false, found int32.*position 1 ",
    "NOT i": "true or false",
    "-s": "no negative.*position 2 ",
    "s + 1": "not numbers",
    "lower(i)": r"'lower\(Int32\)'.*, at position 1 ",
    "lower(s, s)": "lower takes 1 arguments, not 2, at position 1 ",
    "lpad(s)": r"'lpad\(Utf8\)'.*, at position 1 ",
    "cast('x' as int)": "'x' is not a valid int32.*position 6 ",
    "u > -1": "literal -1 is out of the range of the uint8",
    "u < 100000000000": "out of the range of the uint8",
    "i IN ()": "at least one value",
    "i = 7 IS NULL": "ambiguous.*position 5 ",
    "i = f > 3": "ambiguous|common type",
    "d > 'yesterday'": "'yesterday' is not a valid date32",
    "d + interval '1 fortnight'": "fortnight",
    "l = l": "cannot be compared",
    "l[1].x": "has no field 'x'",
    "i[1]": "has no items",
    "s LIKE 'a' ESCAPE 'ab'": "one character",
}


@pytest.mark.parametrize("sql", INVALID)
def test_errors_name_the_position(sql):
    with pytest.raises(InvalidInputError, match=INVALID[sql]):
        parse_expression(sql, TABLE.schema)


@pytest.mark.parametrize("sql", ["nope = 1", "lower(nope) = 'a'", "Twin = 1", "st.nope = 1", "i + nope.x"])
def test_columns_that_do_not_exist(sql):
    with pytest.raises(SchemaError, match=r"'i', 'u', 'f'|the fields are \['a'\]"):
        parse_expression(sql, TABLE.schema)


def test_failures_of_values():
    for sql in ("100 / i", "i % 0", "dec / 0", "cast(n as int)", "cast(f as int)", "date_part('century', d)"):
        with pytest.raises(InvalidInputError):
            values_of(sql)


def test_filters_are_conditions():
    keep = evaluated(TABLE, {"x": parse_filter("regexp_match(s, '^a') OR NOT regexp_match(s, 'c')", TABLE.schema)})
    assert keep.column("x").to_pylist() == [True, False, True, True, False]
    for sql in ("i", "i + 1", "s", "NULL"):
        with pytest.raises(InvalidInputError, match="boolean"):
            parse_filter(sql, TABLE.schema)


def test_schemas_of_either_kind():
    arrow = pa.schema([("a", pa.int64()), ("u", pa.uuid())])
    for schema in (arrow, schema_from_arrow(arrow)):
        assert parse_column("a + 1", schema).type == pa.int64()
        assert parse_column("u", schema).type == pa.binary(16)


def test_a_text_is_compiled_once_for_the_same_columns():
    numbers, others = pa.schema([("a", pa.int64())]), pa.schema([("a", pa.float32())])
    first = parse_expression("a + 1", numbers)
    assert parse_expression("a + 1", pa.schema([("a", pa.int64())])) is first
    assert parse_column("a + 1", others).type == pa.float32()
    assert parse_column("a + 1", numbers).type == pa.int64()
    with pytest.raises(SchemaError, match="'a'"):
        parse_expression("a + 1", pa.schema([("b", pa.int64())]))
    for sql in ("now() > timestamp '2020-01-01'", "CURRENT_DATE > date '2020-01-01'"):
        assert parse_filter(sql, numbers) is not parse_filter(sql, numbers)


def test_the_parser_is_sqlglots_own():
    # A compiled one (sqlglot[c]) cannot have subclasses.
    assert type(dialect._Lance().parser()).__module__.startswith("sqlglot.")


@pytest.mark.parametrize("parts", [3, 64, 65, 1000])
def test_chains_of_and_and_or_are_as_long_as_they_like(parts):
    rows = pa.table({"a": pa.array([*range(parts), None])})
    either = " OR ".join(f"a = {number}" for number in range(parts - 1))
    assert dataset.dataset(rows).to_table(filter=parse_filter(either, rows.schema)).num_rows == parts - 1
    every = " AND ".join(f"a <> {number}" for number in range(parts - 1))
    found = dataset.dataset(rows).to_table(filter=parse_filter(every, rows.schema))
    assert found.column("a").to_pylist() == [parts - 1]
    assert len(parse_conjuncts(every, rows.schema)) == parts - 1


@pytest.mark.parametrize(
    ("before", "after"), [("(", ")"), ("NOT ", ""), ("coalesce(", ", true)"), ("CASE WHEN a = 1 THEN ", " END")]
)
def test_what_is_nested_too_deep_is_rejected(before, after):
    schema = pa.schema([("a", pa.int64())])
    text = f"{before * 3000}a = 1{after * 3000}"
    for parse in (parse_filter, parse_conjuncts, parse_expression):
        with pytest.raises(InvalidInputError, match="nested too deep") as caught:
            parse(text, schema)
        assert len(str(caught.value)) < 300
    parse_filter(f"{before * 10}a = 1{after * 10}", schema)


@pytest.mark.parametrize("filter_", ["a > 1 AND b < 2", "(a = 1 AND b = 2) OR a = 3", "((a = 1))"])
def test_a_filter_of_a_scan_is_parsed_once(tmp_path, monkeypatch, filter_):
    table = lance_core.write_dataset(pa.table({"a": range(5), "b": range(5)}), tmp_path / "t")
    real, texts = compiling.parse, []
    monkeypatch.setattr(compiling, "parse", lambda text: texts.append(text) or real(text))
    found = table.to_table(filter=filter_)
    assert texts == [filter_]
    assert found.equals(table.to_table().filter(parse_filter(filter_, table.schema)))


def test_a_long_condition_is_serialized_once(tmp_path, monkeypatch):
    """Arrow takes a tenth of a second for 12,000 parts, and each batch asks several times."""
    table = lance_core.write_dataset(pa.table({"a": range(500)}), tmp_path / "t", max_rows_per_file=100)
    real, made = arrow._serialize, []

    def noted(expression):
        made.append(real(expression))
        return made[-1]

    monkeypatch.setattr(arrow, "_serialize", noted)
    text = " OR ".join(f"a = {i}" for i in range(0, 400, 2))
    assert table.to_table(filter=text)["a"].to_pylist() == list(range(0, 400, 2))
    assert len(made) > 1
    assert all(one is made[0] for one in made)


TIMES = pa.schema({"utc": pa.timestamp("us", "UTC"), "ny": pa.timestamp("us", "America/New_York"), "ts": pa.timestamp("us"), "d": pa.date32(), "st": pa.struct({"utc": pa.timestamp("s", "UTC")})})  # fmt: skip
ZONE_ASSUMED = [
    "utc < '2026-01-01 05:00:00'",
    "ny < '2026-01-01'",
    "utc = timestamp '2026-01-01 05:00:00'",
    "utc < date '2026-01-01'",
    "utc in ('2026-01-01T05:00:00Z', '2026-01-01')",
    "utc between '2026-01-01' and '2026-01-02'",
    "st.utc > '2026-01-01'",
    "utc < d",
    "utc = ts",
    "cast(utc as date) = d",
    "utc::timestamp < ts",
    "cast(utc as string) = 'x'",
    "date_part('hour', utc) = 3",
    "date_trunc('day', ny) = '2026-01-01T00:00:00Z'",
    "to_char(utc, '%H') = '05'",
    "utc + interval '1 day' > '2026-01-01T00:00:00Z'",
    "utc + interval '1 hour' > '2026-01-01T00:00:00Z'",
    "date_part('epoch', utc) > 5",
    "utc < now()",
    "coalesce(utc, '2026-01-01') = utc",
]
ZONE_WRITTEN = [
    "utc < '2026-01-01T05:00:00Z'",
    "ny in ('2026-01-01T05:00:00-05:00', '2026-01-01T05:00:00Z')",
    "d = '2026-01-01' and ts < '2026-01-01' and utc > '2026-01-01T00:00:00+09:00'",
    "utc is null or ny = utc",
    "cast(ts as date) = d and date_part('hour', ts) = 3",
]


def test_a_zone_is_assumed_only_where_it_may_be():
    for text in ZONE_ASSUMED:
        parse_filter(text, TIMES)  # as pylance does
        with pytest.raises(
            InvalidInputError,
            match=r"(Lance's SQL takes the other for UTC|depends on the time zone).*a string that names its zone",
        ):
            parse_filter(text, TIMES, assume_utc=False)
    for text in ZONE_WRITTEN:
        assert parse_filter(text, TIMES, assume_utc=False).equals(parse_filter(text, TIMES))


@pytest.mark.parametrize(
    "sql",
    [
        *(f"i < {number}" for number in ("1" * 5_000, "1" * 5_000 + ".0", "1e5000", "1e-5000", "1e" + "9" * 5_000)),
        "i IN (1, " + "1" * 5_000 + ")",
        "CAST(" + "1" * 5_000 + " AS INT) = 1",
        f"i BETWEEN 1 AND {'1' * 5_000}",
    ],
)
def test_numbers_that_no_computation_could_use_are_rejected(sql):
    with pytest.raises(UnsupportedError, match="a number beyond 1e4000 or below 1e-4000 is not supported, at position"):
        parse_filter(sql, TABLE.schema)


def test_a_position_in_json_has_few_digits():
    with pytest.raises(UnsupportedError, match="has a position of 5000 digits, which no list has"):
        parse_filter(f"json_extract('[1]', '$[{'1' * 5_000}]') IS NULL", TABLE.schema)
