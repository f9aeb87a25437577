"""Partition keys become slices that hold exactly the rows of the key."""

import datetime as dt
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pytest

from lance_core.errors import InvalidInputError, SchemaError
from lance_dagster.tables.partitions import make_slices

ASSET = dg.AssetKey(["analytics", "events"])
NEW_YORK = "America/New_York"


def slices_of(definition, keys, column_type, partition_expr="p"):
    return make_slices(ASSET, definition, keys, partition_expr, pa.schema([("p", column_type)]))


def assigned(slices, values, column_type):
    """The name of the slice of each value, None outside of all."""
    positions = slices.assign(pa.table({"p": pa.array(values, column_type)}))
    return [slices.names[i] if i >= 0 else None for i in positions]


def local(*args, zone=NEW_YORK, fold=0):
    return dt.datetime(*args, tzinfo=ZoneInfo(zone), fold=fold)


class TestKeysAsValues:
    static = dg.StaticPartitionsDefinition(["eu", "us", "O'Brien", "x') OR 1=1 --", "7", "2024-01-31"])

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
    def test_a_string_key_is_a_value_whatever_it_spells(self, kind):
        slices = slices_of(self.static, ["x') OR 1=1 --", "O'Brien"], kind)
        values = pa.array(["eu", "O'Brien", "x') OR 1=1 --", None]).cast(kind)
        positions = slices.assign(pa.table({"p": values}))
        assert [slices.names[i] if i >= 0 else None for i in positions] == [None, "O'Brien", "x') OR 1=1 --", None]

    @pytest.mark.parametrize("key", ["a\nb", "a\0b", "`p`", "x" * 10_000, "", " eu", "ü"])
    def test_odd_dynamic_keys(self, key):
        slices = slices_of(dg.DynamicPartitionsDefinition(name="d"), [key], pa.string())
        assert assigned(slices, ["eu", key], pa.string()) == [None, key]

    @pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16()])
    def test_a_number_key_on_an_integer_column(self, kind):
        slices = slices_of(self.static, ["7"], kind)
        assert assigned(slices, [7, 8, None], kind) == ["7", None, None]

    def test_a_date_key_on_a_date_column(self):
        slices = slices_of(self.static, ["2024-01-31"], pa.date32())
        assert assigned(slices, [dt.date(2024, 1, 31), dt.date(2024, 2, 1)], pa.date32()) == ["2024-01-31", None]

    @pytest.mark.parametrize(
        ("key", "kind"),
        [
            ("eu", pa.int32()),
            ("07", pa.int32()),
            ("+7", pa.int32()),
            ("7.0", pa.int32()),
            ("1_0", pa.int32()),
            ("20240131", pa.date32()),
            ("2024-1-31", pa.date32()),
        ],
    )
    def test_a_key_that_is_not_exactly_one_value_is_rejected(self, key, kind):
        with pytest.raises(InvalidInputError, match=r"analytics/events.*not exactly one value of column 'p'"):
            slices_of(dg.StaticPartitionsDefinition([key]), [key], kind)

    def test_a_number_that_the_column_cannot_hold_is_rejected(self):
        with pytest.raises(SchemaError, match="300"):
            slices_of(dg.StaticPartitionsDefinition(["300"]), ["300"], pa.int8())

    @pytest.mark.parametrize("kind", [pa.float64(), pa.bool_(), pa.timestamp("us"), pa.decimal128(5, 2), pa.null()])
    def test_a_column_type_that_cannot_hold_keys_is_rejected(self, kind):
        with pytest.raises(SchemaError, match="does not go with StaticPartitionsDefinition"):
            slices_of(self.static, ["7"], kind)


class TestWindows:
    daily = dg.DailyPartitionsDefinition("2024-01-01", timezone=NEW_YORK)

    def test_a_day_on_a_date_column(self):
        slices = slices_of(self.daily, ["2024-03-10"], pa.date32())
        days = [dt.date(2024, 3, day) for day in (9, 10, 11)]
        assert assigned(slices, days, pa.date32()) == [None, "2024-03-10", None]

    @pytest.mark.parametrize(("day", "hours"), [("2024-03-10", 23), ("2024-11-03", 25), ("2024-06-01", 24)])
    def test_a_day_on_a_timestamp_with_a_zone_has_the_hours_of_that_day(self, day, hours):
        kind = pa.timestamp("us", "UTC")
        start = local(*map(int, day.split("-"))).astimezone(dt.UTC)
        second = dt.timedelta(seconds=1)
        end = start + dt.timedelta(hours=hours)
        slices = slices_of(self.daily, [day], kind)
        assert assigned(slices, [start - second, start, end - second, end], kind) == [None, day, day, None]

    @pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Asia/Kathmandu"])
    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_the_zone_and_unit_of_the_column_do_not_matter(self, zone, unit):
        kind = pa.timestamp(unit, zone)
        slices = slices_of(self.daily, ["2024-06-01"], kind)
        inside, outside = local(2024, 6, 1, 23, 59, 59), local(2024, 6, 2)
        assert assigned(slices, [inside, outside], kind) == ["2024-06-01", None]

    def test_a_day_on_a_timestamp_without_a_zone_is_wall_clock_time(self):
        kind = pa.timestamp("us")
        slices = slices_of(self.daily, ["2024-11-03"], kind)
        inside = [
            dt.datetime(2024, 11, 3),
            dt.datetime(2024, 11, 3, 1, 30),
            dt.datetime(2024, 11, 3, 23, 59, 59, 999999),
        ]
        assert assigned(slices, inside, kind) == ["2024-11-03"] * 3
        assert assigned(slices, [dt.datetime(2024, 11, 2, 23), dt.datetime(2024, 11, 4)], kind) == [None, None]

    def test_hours_that_the_clocks_show_twice_are_two_partitions_of_a_column_with_a_zone(self):
        hourly = dg.HourlyPartitionsDefinition("2024-11-03-00:00", timezone=NEW_YORK)
        kind = pa.timestamp("us", "UTC")
        keys = ["2024-11-03-01:00", "2024-11-03-01:00-0500"]
        slices = slices_of(hourly, keys, kind)
        moments = [local(2024, 11, 3, 1, 30), local(2024, 11, 3, 1, 30, fold=1), local(2024, 11, 3, 2)]
        assert assigned(slices, [m.astimezone(dt.UTC) for m in moments], kind) == [*keys, None]

    @pytest.mark.parametrize("key", ["2024-11-03-01:00", "2024-11-03-01:00-0500"])
    def test_they_are_rejected_on_a_column_without_a_zone(self, key):
        hourly = dg.HourlyPartitionsDefinition("2024-11-03-00:00", timezone=NEW_YORK)
        with pytest.raises(InvalidInputError, match="clocks show twice"):
            slices_of(hourly, [key], pa.timestamp("us"))

    @pytest.mark.parametrize("key", ["2024-11-03-00:00", "2024-11-03-02:00", "2024-03-10-03:00"])
    def test_hours_beside_them_are_exact(self, key):
        hourly = dg.HourlyPartitionsDefinition("2024-01-01-00:00", timezone=NEW_YORK)
        kind = pa.timestamp("us")
        hour = dt.datetime.strptime(key, "%Y-%m-%d-%H:%M")
        slices = slices_of(hourly, [key], kind)
        moments = [hour - dt.timedelta(seconds=1), hour, hour + dt.timedelta(minutes=59), hour + dt.timedelta(hours=1)]
        assert assigned(slices, moments, kind) == [None, key, key, None]

    def test_days_where_midnight_does_not_exist(self):
        """Beirut sets its clocks forward at midnight, so that this day begins at one."""
        beirut = dg.DailyPartitionsDefinition("2024-03-01", timezone="Asia/Beirut")
        slices = slices_of(beirut, ["2024-03-31"], pa.date32())
        assert assigned(slices, [dt.date(2024, 3, 30), dt.date(2024, 3, 31)], pa.date32()) == [None, "2024-03-31"]
        kind = pa.timestamp("us")
        slices = slices_of(beirut, ["2024-03-30", "2024-03-31"], kind)
        moments = [dt.datetime(2024, 3, 30, 23, 59), dt.datetime(2024, 3, 31, 1)]
        assert assigned(slices, moments, kind) == ["2024-03-30", "2024-03-31"]

    @pytest.mark.parametrize(
        ("definition", "key", "first", "last"),
        [
            (dg.WeeklyPartitionsDefinition("2024-01-07"), "2024-01-14", dt.date(2024, 1, 14), dt.date(2024, 1, 20)),
            (dg.MonthlyPartitionsDefinition("2024-01-01"), "2024-02-01", dt.date(2024, 2, 1), dt.date(2024, 2, 29)),
            (
                dg.TimeWindowPartitionsDefinition(start="2020", fmt="%Y", cron_schedule="0 0 1 1 *"),
                "2024",
                dt.date(2024, 1, 1),
                dt.date(2024, 12, 31),
            ),
        ],
    )
    def test_weeks_months_and_years_on_a_date_column(self, definition, key, first, last):
        slices = slices_of(definition, [key], pa.date32())
        day = dt.timedelta(days=1)
        assert assigned(slices, [first - day, first, last, last + day], pa.date32()) == [None, key, key, None]

    def test_ranges_and_sets_with_gaps_are_one_slice_per_key(self):
        keys = ["2024-01-12", "2024-01-08", "2024-01-09"]
        slices = slices_of(self.daily, keys, pa.date32())
        assert slices.names == sorted(keys)
        days = [dt.date(2024, 1, day) for day in (8, 9, 10, 12)]
        assert assigned(slices, days, pa.date32()) == ["2024-01-08", "2024-01-09", None, "2024-01-12"]

    def test_a_time_key_on_a_string_column_is_the_key(self):
        assert assigned(slices_of(self.daily, ["2024-01-08"], pa.string()), ["2024-01-08"], pa.string()) == [
            "2024-01-08"
        ]

    def test_a_year_on_an_integer_column(self):
        yearly = dg.TimeWindowPartitionsDefinition(start="2020", fmt="%Y", cron_schedule="0 0 1 1 *")
        assert assigned(slices_of(yearly, ["2024"], pa.int16()), [2024, 2025], pa.int16()) == ["2024", None]

    @pytest.mark.parametrize(
        ("definition", "key"),
        [
            (dg.HourlyPartitionsDefinition("2024-01-01-00:00"), "2024-01-01-05:00"),
            (dg.DailyPartitionsDefinition("2024-01-01", hour_offset=6), "2024-01-02"),
        ],
    )
    def test_parts_of_days_are_rejected_on_a_date_column(self, definition, key):
        with pytest.raises(InvalidInputError, match="holds whole days"):
            slices_of(definition, [key], pa.date32())

    @pytest.mark.parametrize("key", ["yesterday", "2024-13-01", "2024-01-10"])
    def test_a_key_that_is_no_partition_is_rejected(self, key):
        with pytest.raises(InvalidInputError, match=key):
            slices_of(dg.WeeklyPartitionsDefinition("2024-01-07"), [key], pa.date32())


class TestDimensions:
    multi = dg.MultiPartitionsDefinition(
        {"day": dg.DailyPartitionsDefinition("2024-01-01"), "region": dg.StaticPartitionsDefinition(["eu", "us"])}
    )
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("where", pa.string())])

    def plan(self, keys, partition_expr=None):
        partition_expr = partition_expr or {"day": "at", "region": "where"}
        return make_slices(ASSET, self.multi, keys, partition_expr, self.schema)

    @pytest.mark.parametrize("as_text", [False, True])
    def test_all_dimensions_hold(self, as_text):
        key = dg.MultiPartitionKey({"day": "2024-01-02", "region": "us"})
        plan = self.plan([str(key) if as_text else key])
        assert plan.names == ["2024-01-02|us"]
        noon = [dt.datetime(2024, 1, day, 12, tzinfo=dt.UTC) for day in (1, 2, 2)]
        rows = pa.table({"at": noon, "where": ["us", "us", "eu"]}, schema=self.schema)
        assert plan.assign(rows).tolist() == [-1, 0, -1]

    def test_a_set_that_is_no_product(self):
        plan = self.plan(["2024-01-02|us", "2024-01-03|eu"])
        noon = [dt.datetime(2024, 1, day, 12, tzinfo=dt.UTC) for day in (2, 2, 3, 3)]
        rows = pa.table({"at": noon, "where": ["us", "eu", "us", "eu"]}, schema=self.schema)
        assert plan.assign(rows).tolist() == [0, -1, -1, 1]

    def test_two_other_dimensions(self):
        multi = dg.MultiPartitionsDefinition(
            {"a": dg.StaticPartitionsDefinition(["1", "2"]), "b": dg.DynamicPartitionsDefinition(name="b")}
        )
        schema = pa.schema([("x", pa.int32()), ("y", pa.string())])
        plan = make_slices(ASSET, multi, ["2|a'b"], {"a": "x", "b": "y"}, schema)
        rows = pa.table({"x": [2, 2, 1], "y": ["a'b", "a", "a'b"]}, schema=schema)
        assert plan.assign(rows).tolist() == [0, -1, -1]

    @pytest.mark.parametrize(
        ("partition_expr", "message"),
        [
            ("at", "must be a mapping such as"),
            ({"day": "at"}, r"the asset has \['day', 'region'\]"),
            ({"day": "at", "zone": "where"}, r"the asset has \['day', 'region'\]"),
            ({"day": "at", "region": 3}, "dimension 'region' must have the name of a column, not 3"),
            ({"day": "at", "region": "at"}, "one column for two dimensions"),
        ],
    )
    def test_partition_expr_of_another_form_is_rejected(self, partition_expr, message):
        with pytest.raises(InvalidInputError, match=message):
            self.plan(["2024-01-02|us"], partition_expr)


@pytest.mark.parametrize(
    ("partition_expr", "error", "message"),
    [
        (None, InvalidInputError, "metadata must name the partition column"),
        ("", InvalidInputError, "must be the name of a column"),
        ({"day": "p"}, InvalidInputError, "must be the name of a column"),
        ("P", SchemaError, r"'P' is not among the table's columns \['p'\]"),
        ("DATE(q)", SchemaError, "partition column 'q' is not among the table's columns"),
    ],
)
def test_partition_expr_that_names_no_column_is_rejected(partition_expr, error, message):
    with pytest.raises(error, match=message):
        slices_of(dg.DailyPartitionsDefinition("2024-01-01"), ["2024-01-01"], pa.date32(), partition_expr)
