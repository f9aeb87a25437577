"""Parameters become literals of their values, whatever these print as."""

import datetime as dt
import decimal
import enum
import time

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError
from pyspark_lance.engine.lexing import translate_strings
from pyspark_lance.statements.parameters import literal
from pyspark_lance.statements.replace_condition import replace_condition

EVIL = "1) OR (1 = 1"


def evil(kind):
    """A type whose values print as SQL."""

    def says(*_, **__):
        return EVIL

    own = dict.fromkeys(("__str__", "__repr__", "__format__", "isoformat", "hex", "encode"), says)
    return type("Evil", (kind,), own)


class Word(str, enum.Enum):  # noqa: UP042 - prints as Word.ONE, a StrEnum would not
    ONE = "one"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.float64(1.5), "cast('1.5' as double)"),
        (Word.ONE, "'one'"),
        (np.str_("one"), "'one'"),
        (evil(int)(7), "(7)"),
        (evil(float)(0.1), "cast('0.1' as double)"),
        (evil(str)("one"), "'one'"),
        (evil(str)("it's"), "cast(x'69742773' as string)"),
        (evil(bytes)(b"'"), "x'27'"),
        (evil(decimal.Decimal)("1.50"), "(1.50BD)"),
        (evil(dt.date)(2024, 1, 2), "date'2024-01-02'"),
        (
            evil(dt.datetime)(2024, 1, 2, 3, tzinfo=dt.UTC),
            "cast('2024-01-02 03:00:00+00:00' as timestamp_ltz)",
        ),
    ],
    ids=map(str, range(11)),
)
def test_literals_are_those_of_the_value(value, wanted):
    assert literal("p", value) == wanted


@pytest.mark.parametrize("micros", [0, 7])
def test_a_time_without_a_zone_is_in_that_of_the_process(monkeypatch, micros):
    """As in a query, where Spark binds the parameter."""
    shown = "2024-01-02 03:00:00" + (".000007" if micros else "")
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            found = literal("p", evil(dt.datetime)(2024, 1, 2, 3, microsecond=micros))
            assert found == f"cast('{shown}+09:00' as timestamp)"
            with pytest.raises(InvalidInputError, match="parameter :p is 0001-01-01T00:00:00 without a zone"):
                literal("p", dt.datetime.min)
    finally:
        time.tzset()


ROWS = {
    "i": [5, 5_000_000_000],
    "f": [1.5, -1e300],
    "d": pa.array([decimal.Decimal("1.50"), decimal.Decimal(-2)], pa.decimal128(10, 2)),
    "s": ["O'Brien ' OR i > 0 --", "Zürich\\"],
    "b": [b"x'", b"y"],
    "day": [dt.date(2024, 1, 1), dt.date(2024, 1, 2)],
    "t": pa.array([dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 2)], pa.timestamp("us", "UTC")),
    "n": pa.array([dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 2, 3, 4, 5, 6)], pa.timestamp("us")),
    "o": [True, False],
}


@pytest.mark.parametrize("name", ROWS)
def test_each_type_can_be_a_parameter_of_replace_where(tmp_path, name):
    table = lance_core.write_dataset(pa.table(ROWS), tmp_path / "t.lance")
    for value in table.to_table()[name].to_pylist():
        found = replace_condition(f"{name} = :value", {"value": value}, table.schema, exact=True)
        assert table.to_table(filter=translate_strings(found))[name].to_pylist() == [value]


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("t = :value", dt.datetime(2024, 1, 1)),
        ("t > timestamp '2024-01-01 00:00:00'", None),
        ("t IN ('2024-01-01 00:00:00 UTC', '2024-01-01')", None),
        ("n = :value", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("n = timestamp '2024-01-01 00:00:00Z'", None),
        ("s = :value", 5),
        ("i = :value", "5"),
        ("f = :value", float("nan")),
        ("i = :value", None),
    ],
)
def test_values_that_spark_and_lance_would_read_in_two_ways_are_rejected(condition, value):
    with pytest.raises(InvalidInputError, match=r"REPLACE WHERE .*Nothing was done"):
        replace_condition(condition, {"value": value}, pa.table(ROWS).schema, exact=True)


def test_a_time_of_which_two_zones_make_two_is_rejected(monkeypatch):
    schema, params = pa.table(ROWS).schema, {"value": dt.datetime(2024, 1, 1)}
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            for zone in ("Asia/Tokyo", None):
                found = replace_condition("n = :value", params, schema, exact=True, zone=zone)
                assert found == "n = timestamp '2024-01-01 00:00:00'"
            for zone in ("UTC", "America/New_York", "+03:00"):
                with pytest.raises(InvalidInputError, match="parameter :value has no zone"):
                    replace_condition("n = :value", params, schema, exact=True, zone=zone)
    finally:
        time.tzset()


def test_comments_of_a_condition_end_where_spark_ends_them():
    schema = pa.table(ROWS).schema
    found = replace_condition("i = 5 -- c\r OR /* a /*+ b */ i = 6", {}, schema, exact=True)
    assert "".join(found.split()) == "i=5ORi=6"
    assert replace_condition("s = '-- a '", {}, schema, exact=True) == "s = '-- a '"


@pytest.mark.parametrize(("condition", "usual"), [("s = '${spark.app.name}'", True), ("s = 'O''Brien'", False)])
def test_constants_that_the_session_decides_are_rejected(condition, usual):
    with pytest.raises(InvalidInputError, match="REPLACE WHERE"):
        replace_condition(condition, {}, pa.table(ROWS).schema, exact=True, usual=usual)


def test_times_with_a_zone_are_compared_with_times_that_have_one():
    for zone in ("Z", "+02:00", " UTC", "-0330", "+05"):
        condition = f"t = timestamp '2024-01-01 00:00:00{zone}'"
        string = f"t = '2024-01-01 00:00:00{'Z' if zone == ' UTC' else zone}'"
        assert replace_condition(condition, {}, pa.table(ROWS).schema, exact=True) == string


TIMES_WITH_ZONE = {
    "t = TIMESTAMP'2024-01-01T05:00:00Z'": [1],
    "t = timestamp_ltz '2024-01-01 00:00:00-05:00'": [1],
    "t = :value": [1],
    "NOT (t BETWEEN TIMESTAMP '2024-01-01 05:00:00 UTC' AND :value)": [2],
    "TIMESTAMP'2024-01-02T05:00:00Z' <= t OR n = timestamp '2024-01-01 05:00:00'": [1, 2],
}


@pytest.mark.parametrize("condition", TIMES_WITH_ZONE)
def test_a_typed_time_with_a_zone_is_that_time_whatever_the_zone_of_the_session(uri, condition):
    times = [dt.datetime(2024, 1, day, 5) for day in (1, 2)]
    rows = {"id": [1, 2], "t": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(times, pa.timestamp("us"))}
    table = lance_core.write_dataset(pa.table(rows), uri)
    value = dt.datetime(2024, 1, 1, tzinfo=dt.timezone(-dt.timedelta(hours=5)))
    text = replace_condition(condition, {"value": value}, table.schema, exact=False)
    for assume_utc in (True, False):
        filter_of_rows = table.parse_filter(text, assume_utc=assume_utc)
        assert table.to_table(filter=filter_of_rows)["id"].to_pylist() == TIMES_WITH_ZONE[condition]


@pytest.mark.parametrize(("zone", "unsuited"), [(None, "2024-01-01 00:00:00+05:00"), ("UTC", "2024-01-01 00:00:00")])
def test_a_string_parameter_has_a_zone_where_the_column_has_one(zone, unsuited):
    """As a constant in the condition would: Spark and Lance take the session's zone and UTC for the one that lacks."""
    schema = pa.schema([("t", pa.timestamp("us", zone))])
    suited = "2024-01-01 00:00:00" + ("+05:00" if zone else "")
    assert replace_condition("t = :t", {"t": suited}, schema, exact=False) == f"t = '{suited}'"
    with pytest.raises(InvalidInputError, match="REPLACE WHERE"):
        replace_condition("t = :t", {"t": unsuited}, schema, exact=False)
