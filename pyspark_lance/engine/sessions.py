"""Spark sessions: the session to use, its kind (classic or Connect), its parallelism and its time zone.

Where a time without a zone is compared with a timestamp, Lance's SQL assumes UTC, and Spark the zone of the session.
In a session with another zone, such a condition would choose other rows than Spark does, so it is rejected.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from lance_core.errors import InvalidInputError, LanceError, UnsupportedError
from pyspark_lance.lazy import DataFrame, SparkSession, types
from pyspark_lance.releases import is_at_least, require_feature

_UNKNOWN: Final = 8
"""Parallelism that is assumed if Spark does not report it."""

_UTC: Final = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Universal", "Greenwich", "Z", "+00:00")


_TIMES: Final = "spark.sql.timeType.enabled"


_lock = threading.Lock()
_held: dict[tuple[int, str], tuple[int, str]] = {}
"""The contexts that hold a setting of a session, and the value that it has without them."""


@contextlib.contextmanager
def with_setting(session: SparkSession, key: str, value: str) -> Iterator[None]:
    """Give a setting of a session, which is false by default, another value within the context.

    Threads may hold it at the same time: the last one sets it back.
    """
    setting = (id(session), key)
    with _lock:
        holders, before = _held.get(setting) or (0, str(session.conf.get(key, "false")))
        session.conf.set(key, value)
        _held[setting] = (holders + 1, before)
    try:
        yield
    finally:
        with _lock:
            holders, before = _held.pop(setting)
            if holders > 1:
                _held[setting] = (holders - 1, before)
            else:
                session.conf.set(key, before)


def with_times(session: SparkSession, *schemas: types.StructType) -> contextlib.AbstractContextManager[None]:
    """Let Spark cache, write and compute columns of TIME, if a schema has one: by default it does little with them."""
    has_times = any("time(" in schema.simpleString() for schema in schemas)
    return with_setting(session, _TIMES, "true") if has_times else contextlib.nullcontext()


def reject_memory(uri: str | os.PathLike[str]) -> None:
    """Reject a table in memory: Spark's tasks run in other processes, which have a memory of their own.

    Raises:
        InvalidInputError: The URI begins with `memory:`.
    """
    if str(uri).lower().startswith("memory:"):
        raise InvalidInputError(
            f"{uri} is in the memory of this process, and Spark's tasks run in others: use a folder or object storage"
        )


def check_frame(what: str, frame: Any) -> None:
    """Make sure that an argument is a Spark DataFrame, classic or Connect.

    Args:
        what: The beginning of the message, before "a Spark DataFrame".
        frame: The argument.

    Raises:
        InvalidInputError: The argument is something else.
        UnsupportedError: The frame is one of a client of Spark 3.5, or Spark 3.5 cannot describe one of its columns.
    """
    # Before 4.0, frames of Connect are no instances of `pyspark.sql.DataFrame`.
    if not any(
        kind.__module__.startswith("pyspark.sql.") and kind.__name__ == "DataFrame" for kind in type(frame).mro()
    ):
        kind = f"{type(frame).__module__}.{type(frame).__qualname__}".removeprefix("builtins.")
        raise InvalidInputError(
            f"{what} a Spark DataFrame, not a {kind}; spark.createDataFrame makes one of rows, pandas and Arrow, and"
            " to_spark() one of pandas-on-Spark"
        )
    check_client(frame.sparkSession)
    if not is_at_least((4, 0)):
        _check_columns(frame)


def _check_columns(frame: DataFrame) -> None:
    """Reject a frame with calendar intervals, because of which Spark 3.5 describes none of the columns to Python.

    Raises:
        UnsupportedError: A column has such a type; the message names it.
    """
    try:
        frame.schema  # noqa: B018 - Spark parses the types
    except ValueError as error:
        fields = json.loads(frame._jdf.schema().json())["fields"]  # noqa: SLF001 - 3.5 has no other
        names = [field["name"] for field in fields if '"interval"' in json.dumps(field["type"])]
        if not names:
            raise
        raise UnsupportedError(
            f"column {names[0]!r}: type interval cannot be stored; cast it to a number of months or days"
        ) from error


def check_client(session: SparkSession) -> None:
    """Reject a client of Spark Connect of 3.5, before it asks its server anything.

    Raises:
        UnsupportedError: The session is such a client.
    """
    is_connect(session)


def session_of(session: SparkSession | None) -> SparkSession:
    """The session that was given, or the active one of the thread, or the default one of the process.

    Raises:
        LanceError: The process has no session.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if session is not None:
        check_client(session)
        return session
    try:
        return SparkSession.active()  # of this thread, else that of the process
    except PySparkRuntimeError as error:
        if "NO_ACTIVE_OR_DEFAULT_SESSION" not in str(error):
            raise
        raise LanceError("there is no Spark session in this process: make one, or pass spark=") from None


def is_connect(session: SparkSession) -> bool:
    """Whether a session is a Spark Connect client.

    Raises:
        UnsupportedError: The session is a client of Spark 3.5.
    """
    if not type(session).__module__.startswith("pyspark.sql.connect."):
        return False
    require_feature("a session of Spark Connect")
    return True


def parallelism_of(spark: SparkSession) -> int:
    """Tasks that the session runs at once. No job is run."""
    return _connect_parallelism(spark) if is_connect(spark) else spark.sparkContext.defaultParallelism


@lru_cache(maxsize=8)
def _connect_parallelism(spark: SparkSession) -> int:
    """The number of partitions of a range: a Connect session has no other way to find out."""
    plan = spark.sql("explain select * from range(1)").collect()[0][0]
    match = re.search(r"splits=(?:Some\()?(\d+)", plan)
    return int(match.group(1)) if match else _UNKNOWN


def session_zone(spark: SparkSession) -> str:
    """The name of the time zone of a session."""
    return spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"


def has_times_without_zone(spark: SparkSession) -> bool:
    """Whether TIMESTAMP is TIMESTAMP_NTZ in a session."""
    return str(spark.conf.get("spark.sql.timestampType")).upper() == "TIMESTAMP_NTZ"


def is_utc(zone: str) -> bool:
    """Whether a time zone is one of the names of UTC."""
    return zone.strip() in _UTC


def use_cores_of_task() -> None:
    """Limit this worker's threads to `spark.task.cpus`; does nothing outside of a worker.

    Spark runs one task per core, and more threads than that slow each other down: on two cores, a scan of 5M rows takes
    a quarter more processor time with two threads than with one.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None:
        os.environ.setdefault("LANCE_CPU_THREADS", str(context.cpus()))
