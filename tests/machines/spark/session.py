"""The session of the machine: small, so that a step takes tenths of a second."""

from typing import Any

from pyspark_lance import local_session

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "America/New_York",
}


def machine_session() -> Any:
    """A classic session with two cores."""
    session = local_session("local[2]", config=SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    return session
