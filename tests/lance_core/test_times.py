"""What times without a zone mean, in each place that takes one."""

import datetime as dt
import zoneinfo

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, VersionNotFoundError
from lance_core.times import moment, parse_duration, zone_named

TOKYO = zoneinfo.ZoneInfo("Asia/Tokyo")
NINE = dt.datetime(2026, 1, 2, 9, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "zone", "expected"),
    [
        ("2026-01-02T09:00:00", dt.UTC, NINE),
        ("2026-01-02 18:00:00", TOKYO, NINE),
        ("2026-01-02T10:00:00+01:00", TOKYO, NINE),
        ("2026-01-02T09:00:00Z", TOKYO, NINE),
        ("2026-01-02", TOKYO, NINE - dt.timedelta(hours=18)),
        (dt.date(2026, 1, 2), dt.UTC, NINE - dt.timedelta(hours=9)),
        (dt.datetime(2026, 1, 2, 18), TOKYO, NINE),
    ],
)
def test_moments(value, zone, expected):
    assert moment(value, zone=zone) == expected
    assert moment(value, zone=zone).tzinfo is dt.UTC


def test_times_of_pandas():
    import pandas as pd

    assert moment(pd.Timestamp("2026-01-02T18:00"), zone=TOKYO) == NINE
    assert moment(pd.Timestamp("2026-01-02T18:00", tz="Asia/Tokyo")) == NINE


@pytest.mark.parametrize("value", ["noon", "", 7, None])
def test_what_is_no_time(value):
    with pytest.raises(InvalidInputError, match="a time must be"):
        moment(value)


def test_zones_as_spark_takes_them():
    assert {zone_named(name).utcoffset(NINE) for name in ("Asia/Tokyo", "+09:00", "GMT+9", "UTC+09:00", "+9")} == {
        dt.timedelta(hours=9)
    }
    assert zone_named("Z").utcoffset(NINE) == zone_named("UTC").utcoffset(NINE) == dt.timedelta(0)
    assert zone_named("-03:30").utcoffset(NINE) == -dt.timedelta(hours=3, minutes=30)
    assert zone_named("-23:59:59").utcoffset(NINE) == -dt.timedelta(hours=23, minutes=59, seconds=59)


@pytest.mark.parametrize("name", ["Nowhere/Atlantis", "+24:00", "-99:00", "GMT+24", "+09:60", "+0900:61", "", "+"])
def test_what_is_no_zone(name):
    with pytest.raises(InvalidInputError, match="is not a time zone, such as"):
        zone_named(name)


def test_texts_are_in_utc_wherever_the_machine_is(tmp_path, monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        made = lance_core.write_dataset(pa.table({"id": [1]}), tmp_path / "t")
        between = dt.datetime.now(dt.UTC)
        lance_core.write_dataset(pa.table({"id": [2]}), tmp_path / "t", mode="append")
        assert lance_core.dataset(made.uri, asof=between.replace(tzinfo=None).isoformat()).version == 1
        assert lance_core.dataset(made.uri, asof=between).version == 1
        # As `versions` gives them, which is pylance's way.
        for one in lance_core.dataset(made.uri).versions():
            assert lance_core.dataset(made.uri, asof=one["timestamp"]).version == one["version"]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("string", "seconds"),
    [
        ("14d", 14 * 86_400), ("1209600s", 1_209_600), ("1h 30m", 5400), ("2weeks", 14 * 86_400), ("0s", 0),
        ("1.5h", 5400), ("1M", 2_630_016), ("1m", 60), ("500 millis", 0.5), ("7µs", 7e-6), ("2wks", 14 * 86_400),
        ("1yr", 31_557_600), ("1h30m", 5400), (" 1 hr ", 3600),
    ],
)  # fmt: skip
def test_durations(string, seconds):
    assert parse_duration(string).total_seconds() == seconds


@pytest.mark.parametrize(
    "string", ["", " ", "d", "3", "3 parsecs", "-1d", "1H", "٣s", ".5s", "1.s", "500 milliseconds"]
)
def test_what_is_no_duration(string):
    with pytest.raises(InvalidInputError, match="duration"):
        parse_duration(string)


def test_durations_that_are_too_long():
    for string in ("999999999999y", "9" * 400 + "d"):
        with pytest.raises(InvalidInputError, match="longer than 999,999,999 days"):
            parse_duration(string)


@pytest.mark.parametrize("shift_us", [-1, 0, 1])
def test_a_version_is_opened_by_the_time_that_is_listed_for_it(tmp_path, monkeypatch, shift_us):
    import time

    begin_ns = 1_800_000_000_000_000_000
    shifts = {int((ns % 1e9) // 1e3) - ns % 10**9 // 1000: ns for ns in range(begin_ns, begin_ns + 10**6, 37)}
    for number in range(2):
        monkeypatch.setattr(time, "time_ns", lambda at=begin_ns - 10**9 + number: at)
        table = lance_core.write_dataset({"id": [number]}, tmp_path / "t", mode="append")
    monkeypatch.setattr(time, "time_ns", lambda: shifts[shift_us])
    table.insert(pa.table({"id": [2]}))
    monkeypatch.undo()
    times = [one["timestamp"] for one in table.versions()]
    opened = [lance_core.dataset(table.uri, asof=at).version for at in times]
    assert opened == [2, 2, 3]  # of versions of one microsecond the newest


def test_no_version_stands_for_one_that_was_cleaned_up(tmp_path):
    table = lance_core.write_dataset(pa.table({"n": [0]}), tmp_path / "t.lance")
    for number in range(1, 4):
        table.insert(pa.table({"n": [number]}))
    times = {version["version"]: version["timestamp"] for version in table.versions()}
    table.tags.create("keep", 1)
    table.cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    assert table.version_as_of(times[4]) == 4
    for version in (1, 2, 3):  # the next one may have been committed at the same moment
        with pytest.raises(
            VersionNotFoundError, match=r"versions 2 to 3 were cleaned up; name a version, such as 1 or 4"
        ):
            table.version_as_of(times[version])
