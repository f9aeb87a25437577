"""How many tasks a session runs at once."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pyspark_lance.engine.jobs import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["parallelism_of"]

_UNKNOWN: Final = 8
"""Parallelism that is assumed if Spark does not report it."""


def parallelism_of(spark: SparkSession) -> int:
    """Tasks that the session runs at once. No job is run."""
    return _connect_parallelism(spark) if is_connect(spark) else spark.sparkContext.defaultParallelism


@lru_cache(maxsize=8)
def _connect_parallelism(spark: SparkSession) -> int:
    """The number of partitions of a range: a Connect session has no other way to find out."""
    plan = spark.sql("explain select * from range(1)").collect()[0][0]
    found = re.search(r"splits=(?:Some\()?(\d+)", plan)
    return int(found.group(1)) if found else _UNKNOWN
