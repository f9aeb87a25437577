"""Errors of the libraries that open a source or a target of a conversion: deltalake, pyiceberg, Arrow and Spark.

foreign error                                   raised instead
----------------------------------------------- ------------------------------------------------
TableNotFoundError                              DatasetNotFoundError
FileNotFoundError                               ObjectNotFoundError
NotImplementedError; says what is unsupported   UnsupportedError
OSError                                         StoreError
others                                          InvalidInputError
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from lance_core import errors
from lance_core.errors import LanceError
from pyspark_lance.engine.errors import find_lost_spark_error, short_errors

_BY_CLASS: Final[dict[str, type[LanceError]]] = {
    "TableNotFoundError": errors.DatasetNotFoundError,
    "FileNotFoundError": errors.ObjectNotFoundError,
    "NotImplementedError": errors.UnsupportedError,
    "OSError": errors.StoreError,
}
_UNSUPPORTED: Final = re.compile(r"unsupported|not (yet )?support", re.IGNORECASE)
_PANIC: Final = "pyo3_runtime"
"""Module of the class that a panic of a library in Rust raises; it is no `Exception`."""
_STACK: Final = re.compile(r"\s*(at |\d+: |dlopen\(|Stack backtrace|For further information)")
_MOST_CHARACTERS: Final = 400


@contextlib.contextmanager
def foreign_errors(what: str, remedy: str, session: object) -> Iterator[None]:
    """Turn any error of another library into one of our own.

    Args:
        what: The source or the target, which is named.
        remedy: What the user may do.
        session: The Spark session, which may have ended.

    Raises:
        LanceError: Another library raised an error, which is the cause.
    """
    try:
        with short_errors(what):
            yield
    except errors.InvalidInputError as error:
        if error.__cause__ is None or isinstance(error.__cause__, LanceError):
            raise
        raise errors.InvalidInputError(f"{error}. {remedy}") from error.__cause__
    except LanceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != _PANIC:
            raise
        lost = find_lost_spark_error(error, session)
        if lost is not None:
            raise lost from error
        raise _kind(error)(f"{what} cannot be used: {_summary(error)}. {remedy}") from error


def _kind(error: BaseException) -> type[LanceError]:
    if _UNSUPPORTED.search(str(error)):
        return errors.UnsupportedError
    classes = (_BY_CLASS.get(base.__name__) for base in type(error).__mro__)
    return next((kind for kind in classes if kind is not None), errors.InvalidInputError)


def _summary(error: BaseException) -> str:
    """The class and the message of an error, without stacks, in one line."""
    lines: list[str] = []
    for line in str(error).splitlines():
        if _STACK.match(line):
            break
        lines.append(line.strip())
    message = " ".join(line for line in lines if line)
    if len(message) > _MOST_CHARACTERS:
        message = f"{message[:_MOST_CHARACTERS]}..."
    return f"{type(error).__name__}: {message}".rstrip(".: ")
