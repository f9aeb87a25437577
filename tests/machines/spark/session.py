"""The session of the machine: small, so that a step takes tenths of a second."""

import logging
import os
from typing import Any

from pyspark_lance import local_session
from tests.spark_classes import submit_options, workers_python_path

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.python.authenticate.socketTimeout": "10m",  # of a machine that has other things to do
}


def machine_session() -> Any:
    """A classic session with two cores."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", submit_options())
    os.environ["PYTHONPATH"] = workers_python_path()
    session = local_session("local[2]", config=SETTINGS)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # errors are part of the steps
    session.sparkContext.setLogLevel("OFF")
    return session
