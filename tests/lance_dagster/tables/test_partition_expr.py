"""`partition_expr` as it is written for IO managers that put it into SQL."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster.tables.partition_expr import partition_column
from tests.lance_dagster.lake import errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")


@pytest.mark.parametrize(
    "expression",
    [
        "ts", '"ts"', "`ts`", "CAST(ts AS TIMESTAMP)", "cast ( `ts` as date )", "TRY_CAST(ts AS TIMESTAMP)",
        "CAST(ts AS timestamp with time zone)", "CAST(ts AS DECIMAL(10, 2))", "ts::date", "ts :: timestamp", "DATE(ts)",
        "to_date(ts)", "TO_TIMESTAMP(ts)",
    ],
)  # fmt: skip
def test_a_column_with_a_cast_is_the_column(expression):
    assert partition_column(expression, label="asset a") == "ts"


@pytest.mark.parametrize("name", ["my column", "größe", "a-b", "as_of", "order"])
def test_other_names_stay_as_they_are(name):
    assert partition_column(name, label="asset a") == name
    assert partition_column(f" {name} ", label="asset a") == name


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("DATE_TRUNC('day', ts)", '"partition_expr": "ts"'),
        ("strftime(ts, '%Y-%m-%d')", '"partition_expr": "ts"'),
        ("ts + INTERVAL '1' DAY", '"partition_expr": "ts"'),
        ("a || b", '"partition_expr": "column"'),
        ("CAST(lower(ts) AS DATE)", '"partition_expr": "ts"'),
        ("DATE_TRUNC('month', day)", '"partition_expr": "day"'),
        ("date_trunc('day', date)", '"partition_expr": "date"'),
        ("DATE_TRUNC(day, MONTH)", '"partition_expr": "column"'),
        ("TIMESTAMP_TRUNC(ts, DAY)", '"partition_expr": "ts"'),
        ("DATEDIFF(day, started, '2024-01-01')", '"partition_expr": "started"'),
        ("DATE_TRUNC(month, date(ts))", '"partition_expr": "ts"'),
        ("EXTRACT(MONTH FROM day)", '"partition_expr": "day"'),
        ("year(month)", '"partition_expr": "month"'),
        ("CAST(lower(month) AS DATE)", '"partition_expr": "month"'),
        ("lower(year)::timestamp with time zone", '"partition_expr": "year"'),
        ("day AT TIME ZONE 'UTC'", '"partition_expr": "day"'),
        ("day >= DATE '2024-01-01' AND day < DATE '2024-02-01'", '"partition_expr": "day"'),
        ("day - INTERVAL 1 YEAR", '"partition_expr": "day"'),
        ("concat(ts, year)", '"partition_expr": "column"'),
        ("DATE_TRUNC('month', day) || region", '"partition_expr": "column"'),
        ("""CASE WHEN "day" IS NULL THEN '1970-01-01' ELSE "day" END || ''""", '"partition_expr": "day"'),
    ],
)
def test_other_sql_is_rejected_naming_the_column(expression, remedy):
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="takes the column itself") as caught:
        partition_column(expression, label="asset a")
    assert remedy in str(caught.value)


def test_an_asset_of_another_manager_runs_unchanged(lake):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "CAST(ts AS TIMESTAMP)"})
    def events(context) -> pa.Table:
        day = context.partition_time_window.start.replace(tzinfo=None)
        return pa.table({"ts": pa.array([day.replace(hour=5)], pa.timestamp("us"))})

    for _ in range(2):
        lake.run(events, partition="2024-01-02")
    assert lake.table("events").count_rows() == 1

    @dg.asset(name="events", partitions_def=DAYS, metadata={"partition_expr": "date_trunc('day', ts)"})
    def truncated(context) -> pa.Table:
        return pa.table({"ts": pa.array([0], pa.timestamp("us"))})

    message = errors(lake.run(truncated, partition="2024-01-02", fails=True))
    assert 'takes the column itself: "partition_expr": "ts"' in message
    assert lake.table("events").count_rows() == 1
