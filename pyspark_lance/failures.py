"""Errors of tasks as the user sees them: one line of ours, with Spark's report in the log.

    worker    LanceError ----> log: traceback        Spark gets: lance_core.errors.StoreError: <text>
    caller    Spark's error -> log: Spark's account  raises:     StoreError(<text>)

Spark ends a Python worker whose task has failed, and puts its whole traceback before the error, unless the worker's
environment says `SPARK_HIDE_TRACEBACK` (its own setting `spark.sql.execution.pyspark.udf.hideTraceback.enabled`).
Other errors, for example of a user's function, stay as Spark reports them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from typing import Final

from lance_core import errors
from lance_core.errors import LanceError

__all__ = ["own_error", "plain_errors", "short_errors"]

_LOGGER = logging.getLogger("pyspark_lance")

_WORKER: Final = "PYTHON_WORKER_FACTORY_"
"""Prefix of an environment variable of each Python process that Spark starts for tasks or data sources."""

_OWN: Final = re.compile(r"lance_core\.errors\.(\w+): (.*?)(?=\n\n|\n\s+at |\n\s*JVM stacktrace|\Z)", re.DOTALL)
"""An error of ours in Spark's report of a failed task; it ends where Java's stack begins."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Have Spark report only class and text of an error of ours; has no effect outside of Spark's workers."""
    try:
        yield
    except LanceError:
        if any(name.startswith(_WORKER) for name in os.environ):
            _LOGGER.exception("a task or data source of Lance failed")
            # The process does nothing after this: Spark reports what is raised, and ends it.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


_SPARKS: Final = re.compile(r"\[[A-Z][A-Z_.0-9]+\][^\n]*")
"""Spark's own account of an error, without the plan or the Java stack below it."""


@contextlib.contextmanager
def short_errors(what: str) -> Iterator[None]:
    """Have an error of Spark in one line.

    Args:
        what: What the user gave that may be wrong.

    Raises:
        InvalidInputError: Spark raised something that has one of its codes.
    """
    try:
        yield
    except LanceError:
        raise
    except Exception as error:
        said = _SPARKS.search(str(error))
        if said is None:
            raise
        raise errors.InvalidInputError(f"{what}: {said.group()}") from error


def own_error(error: BaseException) -> BaseException:
    """The error of ours that made a job fail, with Spark's report in the log; the given error if there is none."""
    if isinstance(error, LanceError) or not isinstance(error, Exception):
        return error
    found = _OWN.findall(str(error))
    name, text = found[-1] if found else ("", "")
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, LanceError):
        return error
    _LOGGER.info("a Spark job failed: %s", error)
    return kind(text.strip())
