"""The errors of lance_core, grouped by what a caller can do about them.

    LanceError                          base; `.code` is a stable identifier, `.url` its page
    |-- InvalidInputError (ValueError, OSError) an argument or the data is wrong: change the call
    |   |-- SchemaError                         ... the schema: names the column
    |   `-- ArgumentTypeError (TypeError)       ... an argument's type: names the function and the argument
    |-- UnsupportedError (NotImplementedError)  the format or the library does not do this: names what is missing
    |   `-- UnsupportedExpressionError (ValueError)      ... in an SQL expression: names the position
    |-- NotFoundError (ValueError, FileNotFoundError)     nothing is there
    |   |-- DatasetNotFoundError
    |   |-- VersionNotFoundError
    |   |-- IndexNotFoundError (RuntimeError, KeyError)
    |   `-- ObjectNotFoundError                 a file that should exist does not
    |-- AlreadyExistsError (FileExistsError)    something already exists
    |   `-- DatasetExistsError
    |-- CorruptFileError (OSError)              bytes do not follow the format: names the file
    |   `-- TornFileError                       ... the file of a tag or branch is empty or truncated
    |-- StoreError (OSError)                    the storage failed
    |   `-- OutcomeUnknownError                 ... and it is not known whether a write took effect
    |-- FailedRowsError                         a function of the user failed on more rows than allowed
    |-- MaintenanceFailedError                  a step on a table failed after the others were done: `.reports`
    `-- CommitConflictError (OSError)           another writer committed first; `.retryable` says what to do
        |-- RetryableConflictError              do the operation again on the latest version
        |   `-- EarlierAttemptCommittedError    ... an earlier attempt of the same write committed: replace its rows
        |-- BranchConflictError                 a branch and its parent changed the same rows: fork and write again
        `-- IncompatibleConflictError           the operation no longer applies
            |-- HistoryGapError                 the versions since the read version are unknown
            |-- SupersededError                 a later attempt of the same write has committed
            |-- EarlierAttemptError             rows of an earlier attempt can no longer be identified
            `-- UndecidedWriteError             whether an earlier attempt was committed is unknown

Several classes also derive from the builtin that pylance raises in the same case, so that
`except ValueError` and `except OSError` written for pylance keep working.

Each error carries the link of its page as a note (PEP 678). Python, Dagster's UI and Spark print notes below the
message of a traceback; `str(error)` is the message alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

__all__ = [
    "AlreadyExistsError",
    "ArgumentTypeError",
    "BranchConflictError",
    "CommitConflictError",
    "CorruptFileError",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "EarlierAttemptCommittedError",
    "EarlierAttemptError",
    "FailedRowsError",
    "HistoryGapError",
    "IncompatibleConflictError",
    "IndexNotFoundError",
    "InvalidInputError",
    "LanceError",
    "MaintenanceFailedError",
    "NotFoundError",
    "ObjectNotFoundError",
    "OutcomeUnknownError",
    "RetryableConflictError",
    "SchemaError",
    "StoreError",
    "SupersededError",
    "TornFileError",
    "UndecidedWriteError",
    "UnsupportedError",
    "UnsupportedExpressionError",
    "VersionNotFoundError",
]

PAGE: Final = "https://github.com/lance-dagster/lance-dagster/blob/main/docs/errors.md"
"""The page with the cause and the remedy of each code."""

NOTE: Final = "Cause and remedy: "
"""Start of the note that each error carries, before the link of its page."""


class LanceError(Exception):
    """Base of every error that lance_core raises on purpose.

    Attributes:
        code: Identifier of the kind of error, which stays the same between releases.
    """

    code: ClassVar[str] = "lance"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"{NOTE}{self.url}")

    @property
    def url(self) -> str:
        """The address of the section with the cause and the remedy."""
        return f"{PAGE}#{self.code}"

    def __str__(self) -> str:
        """The message; the class's name if there is none."""
        return super().__str__() or type(self).__name__


class InvalidInputError(LanceError, ValueError, OSError):
    """An argument or the data is invalid; pylance raises ValueError in some of these cases and OSError in others."""

    code = "invalid-input"


class SchemaError(InvalidInputError):
    """The data does not fit the schema, or the schema cannot be stored."""

    code = "schema"


class ArgumentTypeError(InvalidInputError, TypeError):
    """An argument has a wrong type; the message names the expected one."""

    code = "argument-type"


class UnsupportedError(LanceError, NotImplementedError):
    """A feature of the format, or of pylance's interface, that is not implemented."""

    code = "unsupported"


class UnsupportedExpressionError(UnsupportedError, ValueError):
    """An SQL expression has a construct that is not known; a ValueError as in pylance."""

    code = "unsupported-expression"


class NotFoundError(LanceError, ValueError, FileNotFoundError):
    """A dataset, version, index or file does not exist."""

    code = "not-found"


class DatasetNotFoundError(NotFoundError):
    """The URI holds no dataset."""

    code = "dataset-not-found"


class IndexNotFoundError(NotFoundError, RuntimeError, KeyError):
    """The dataset has no index of that name."""

    code = "index-not-found"


class VersionNotFoundError(NotFoundError):
    """The dataset has no such version, tag or branch."""

    code = "version-not-found"


class ObjectNotFoundError(NotFoundError):
    """A file is missing from the store."""

    code = "object-not-found"


class AlreadyExistsError(LanceError, FileExistsError):
    """Something exists under that name."""

    code = "already-exists"


class DatasetExistsError(AlreadyExistsError):
    """The URI holds a dataset already, or an external manifest store still has the versions of one."""

    code = "dataset-exists"


class CorruptFileError(LanceError, OSError):
    """A file does not follow the format."""

    code = "corrupt-file"


class TornFileError(CorruptFileError):
    """The file of a tag or a branch is empty or truncated, or has a name that none can have: it can be deleted."""

    code = "torn-file"


class StoreError(LanceError, OSError):
    """The storage rejected a request, or failed."""

    code = "store"


class OutcomeUnknownError(StoreError):
    """The storage failed, and whether a write took effect is unknown."""

    code = "outcome-unknown"


class FailedRowsError(LanceError):
    """A function of the user failed on more rows than allowed; what it returned for the others is committed.

    Attributes:
        result: The `ComputeResult` of the run.
    """

    code = "failed-rows"

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class MaintenanceFailedError(LanceError):
    """The maintenance of tables failed in part; all other steps and tables were finished.

    Attributes:
        reports: The `MaintenanceReport` of each table.
    """

    code = "maintenance-failed"

    def __init__(self, message: str = "", reports: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.reports = tuple(reports)


class CommitConflictError(LanceError, OSError):
    """Another writer committed a version that this commit cannot follow."""

    code = "commit-conflict"
    retryable: ClassVar[bool] = False


class RetryableConflictError(CommitConflictError):
    """Repeating the whole operation on the latest version can succeed."""

    code = "commit-conflict-retryable"
    retryable = True


class EarlierAttemptCommittedError(RetryableConflictError):
    """An earlier attempt of the same write committed during this one: its rows have to be replaced.

    Attributes:
        version: The version that the earlier attempt committed.
    """

    code = "earlier-attempt-committed"

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version

    def __reduce__(self) -> tuple[type[EarlierAttemptCommittedError], tuple[str, int]]:
        return EarlierAttemptCommittedError, (str(self), self.version)


class IncompatibleConflictError(CommitConflictError):
    """Repeating the operation would not have the intended effect."""

    code = "commit-conflict-incompatible"


class HistoryGapError(IncompatibleConflictError):
    """The versions since the read version are unknown: they were cleaned up, or contradict each other.

    Verbs that compute their change from the rows compute it again on the latest version.
    """

    code = "history-gap"


class SupersededError(IncompatibleConflictError):
    """A later attempt of the same write has committed, so that this attempt must not."""

    code = "superseded"


class EarlierAttemptError(IncompatibleConflictError):
    """An earlier attempt of the same write has committed rows that can no longer be identified."""

    code = "earlier-attempt"


class UndecidedWriteError(IncompatibleConflictError):
    """Whether an earlier attempt of a write was committed can no longer be determined; the write is not repeated."""

    code = "undecided-write"


class BranchConflictError(CommitConflictError):
    """A branch cannot be promoted: its parent changed the same rows or columns since the fork."""

    code = "branch-conflict"
