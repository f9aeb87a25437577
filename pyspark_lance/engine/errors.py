"""Errors of Spark tasks for the user: one line with an exception of `lance_core`, while Spark's report goes to the log.

    worker    LanceError ----> log: traceback        Spark gets: lance_core.errors.StoreError: <message>
    caller    Spark's error -> log: Spark's report   raises:     StoreError(<message>)

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
from pyspark_lance.releases import is_at_least

_LOGGER = logging.getLogger("pyspark_lance")

_WORKER: Final = "PYTHON_WORKER_FACTORY_"
"""Prefix of an environment variable of each Python process that Spark starts for tasks or data sources."""

_OWN: Final = re.compile(
    rf"lance_core\.errors\.(\w+): (.*?)(?=\n{errors.NOTE}|\n\n|\n\s+at |\n\s*JVM stacktrace|\Z)", re.DOTALL
)
"""An error of `lance_core` in Spark's report of a failed task; its message ends before its note, or Java's stack."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Let Spark report only the class and message of a `LanceError`; this has no effect outside of Spark's workers."""
    try:
        yield
    except LanceError as error:
        if any(name.startswith(_WORKER) for name in os.environ):
            # Without configured logging, Python prints warnings and errors on the user's screen.
            level = logging.INFO if isinstance(error, _MISTAKES) else logging.ERROR
            _LOGGER.log(level, "a task or data source of Lance failed", exc_info=True)
            # This affects no other task: Spark reports what is raised, and then ends this process.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        if public is not type(error):  # Spark shows the full name of its class
            raise public(*error.args) from error
        raise


_MISTAKES: Final = (
    errors.InvalidInputError,
    errors.SchemaError,
    errors.UnsupportedError,
    errors.NotFoundError,
    errors.DatasetExistsError,
)
"""Errors whose message is complete: a traceback would add nothing."""

_SPARKS: Final = re.compile(r"\[[A-Z][A-Z_.0-9]+\][^\n]*")
"""Spark's own message of an error, without the plan or the Java stack below it."""


_OWN_NAMES: Final = "__lance_"
"""Prefix of the columns that this package adds to frames."""
_SUGGESTED: Final = re.compile(r" Did you mean one of the following\? \[(.*?)\]\.")
_PLACE: Final = re.compile(r";? *\(?\bline \d+,? pos \d+\)?;?")
_ADDED: Final = re.compile(rf"`({_OWN_NAMES}\w+|_rowid|_rowaddr)`\Z")


@contextlib.contextmanager
def short_errors(what: str) -> Iterator[None]:
    """Turn an error of Spark into one line.

    Args:
        what: The user's argument that may be wrong.

    Raises:
        LanceError: A task failed by such an error, which Spark may put behind a condition of its own.
        InvalidInputError: Spark raised an error that names one of its error conditions.
    """
    try:
        yield
    except LanceError:
        raise
    except Exception as error:
        lance_error = unwrap_lance_error(error)
        if lance_error is not error:
            raise lance_error from None  # Spark's report is in the log
        match = _SPARKS.search(str(error))
        if match is None:
            raise
        raise errors.InvalidInputError(f"{what}: {_in_words_of_caller(match.group())}") from error


def _in_words_of_caller(message: str) -> str:
    """Spark's message, without positions in texts, and names of columns, that this package made for Spark."""
    message = _PLACE.sub("", message)
    message = message.replace(f"`{_OWN_NAMES}target`.", "")  # a table without an alias
    match = _SUGGESTED.search(message)
    if match is None:
        return message
    suggestions = [suggestion for suggestion in match[1].split(", ") if not _ADDED.search(suggestion)]
    said = f" Did you mean one of the following? [{', '.join(suggestions)}]." if suggestions else ""
    return message[: match.start()] + said + message[match.end() :]


@contextlib.contextmanager
def without_log(*loggers: logging.Logger) -> Iterator[None]:
    """Keep messages that are expected off the user's screen."""
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def without_error_log() -> contextlib.AbstractContextManager[None]:
    """Keep Spark from printing errors that are expected on the user's screen."""
    if not is_at_least((4, 0)):
        return contextlib.nullcontext()
    from pyspark.logger import PySparkLogger

    # The first caller of getLogger decides the class of a logger, and Spark needs its own class.
    return without_log(*map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger")))


class SparkLostError(LanceError):
    """The Java process of the session, its Connect server, a Python worker or an executor ended during a job."""

    code = "spark-lost"


_LOST: Final = re.compile(
    r"Answer from Java side is empty|Error while (sending|receiving)|Connection refused|UNAVAILABLE"
)


_LOST_IN_JOB: Final = {
    "a Python worker": re.compile(
        r"most recent failure: [^\n]*?(?:SparkException: Python worker exited unexpectedly"
        r"|IllegalStateException: Python daemon failed to launch worker"
        # The connection to the worker breaks while rows go through it.
        r"|java\.(?:net\.SocketException|io\.IOException|io\.EOFException|nio\.channels\.\w+)\b[^\n]*"
        r"(?:\n\s+at (?:java|sun|scala|org\.apache\.(?:arrow|spark\.security))[^\n]*)*"
        r"\n\s+at org\.apache\.spark\.(?:api|sql\.execution)\.python\.)"
    ),
    "an executor": re.compile(r"most recent failure: [^\n]*?ExecutorLostFailure"),
}
"""What ended while Spark itself went on, by Spark's report of the failed job."""


def find_lost_spark_error(error: BaseException, session: object) -> SparkLostError | None:
    """The error to raise if a job failed because its Spark went away; None for other failures.

    Args:
        error: What the job raised.
        session: Its session.
    """
    gateway = getattr(getattr(session, "_sc", None), "_gateway", None)
    process = getattr(gateway, "proc", None)
    code = None if process is None else process.poll()
    lost = isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"
    # Errors of other classes come from Spark itself, and may contain any message of a user's function.
    reported = type(error).__name__ in ("Py4JError", "SparkConnectGrpcException") and _LOST.search(str(error))
    if not (code is not None or lost or reported):
        return None
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    how = "" if code is None else f", with exit code {code}"
    return SparkLostError(
        f"Spark went away while its job ran{how}: {cause}. Start a new session and do it again; Spark's log says why"
    )


def unwrap_lance_error(error: BaseException) -> BaseException:
    """The error of this package for what made a job fail, with Spark's report logged; else the given error."""
    if isinstance(error, LanceError) or not isinstance(error, Exception):
        return error
    report = str(error)
    own_errors = _OWN.findall(report)
    name, message = own_errors[-1] if own_errors else ("", "")
    kind = getattr(errors, name, None)
    lost = next((what for what, pattern in _LOST_IN_JOB.items() if pattern.search(report)), None)
    if isinstance(kind, type) and issubclass(kind, LanceError):
        translated = kind(message.strip())
    elif lost is not None:
        translated = SparkLostError(
            f"{lost} of Spark ended while its job ran: it was killed, most often because memory was short, or it"
            " crashed. The job committed nothing: run it again, with more memory or fewer cores per executor if that"
            " was the cause; Spark's log says why"
        )
    else:
        return error
    _LOGGER.info("a Spark job failed: %s", error)
    return translated
