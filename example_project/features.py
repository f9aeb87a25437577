"""32 numbers that describe a flight, for models that want vectors.

 0..1   time of day of the scheduled departure, as a point on a circle
 2..3   day of the year, as a point on a circle
 4..5   day of the week, as a point on a circle
 6..12  distance, air time, speed, delays of departure and arrival, time made up, whether it was cancelled
13..15  origin, one of three
16..31  carrier, one of sixteen
"""

import math

from pyspark.sql import Column  # noqa: TID253 - used by Spark assets only
from pyspark.sql import functions as F  # noqa: N812, TID253 - the usual name

__all__ = ["WIDTH", "flight_vector"]

WIDTH = 32
ORIGINS = ("EWR", "JFK", "LGA")
CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV")


def flight_vector() -> Column:
    """The vector as a column over the columns of `flights`, an array of `WIDTH` floats without nulls."""
    minutes = F.floor(F.col("sched_dep_time") / 100) * 60 + F.col("sched_dep_time") % 100
    air_time = F.coalesce(F.col("air_time"), F.lit(0.0))
    departure = F.coalesce(F.col("dep_delay"), F.lit(0.0))
    arrival = F.coalesce(F.col("arr_delay"), F.lit(0.0))
    numbers = [
        *_circle(minutes, 24 * 60),
        *_circle(F.dayofyear("date"), 365),
        *_circle(F.dayofweek("date"), 7),
        F.col("distance") / 1000,
        air_time / 60,
        F.when(air_time > 0, F.col("distance") / air_time / 10).otherwise(0.0),
        departure / 60,
        arrival / 60,
        (departure - arrival) / 60,
        F.col("dep_time").isNull().cast("double"),
        *(F.coalesce(F.col("origin") == name, F.lit(False)).cast("double") for name in ORIGINS),
        *(F.coalesce(F.col("carrier") == name, F.lit(False)).cast("double") for name in CARRIERS),
    ]
    assert len(numbers) == WIDTH
    return F.array(*numbers).cast("array<float>")


def _circle(value: Column, period: int) -> tuple[Column, Column]:
    angle = value * (2 * math.pi / period)
    return F.sin(angle), F.cos(angle)
