"""The errors of lance_core, by what a caller can do about them.

    LanceError                          base; `.code` is a stable, append-only identifier, `.url` its page
    |-- InvalidInputError (ValueError, OSError) an argument or the data is wrong: change the call
    |   |-- SchemaError                         ... the schema: names the column
    |   `-- ArgumentTypeError (TypeError)       ... an argument's type: names the function and the argument
    |-- UnsupportedError (NotImplementedError)  the format or the library does not do this: names what is missing
    |-- NotFoundError (ValueError, FileNotFoundError)     nothing is there
    |   |-- DatasetNotFoundError
    |   |-- VersionNotFoundError
    |   |-- IndexNotFoundError (RuntimeError, KeyError)
    |   `-- ObjectNotFoundError                 a file that should exist does not
    |-- AlreadyExistsError (FileExistsError)    something is there already
    |   `-- DatasetExistsError
    |-- CorruptFileError (OSError)              bytes do not follow the format: names the file
    |   `-- TornFileError                       ... the file of a tag or branch is empty or cut short
    |-- StoreError (OSError)                    the storage failed
    |   `-- OutcomeUnknownError                 ... and it is not known whether a write took effect
    `-- CommitConflictError (OSError)           another writer came first; `.retryable` says what to do
        |-- RetryableConflictError              do the operation again on the latest version
        |   `-- EarlierAttemptLandedError       ... an earlier attempt of the same write committed meanwhile: replace it
        |-- BranchConflictError                 a branch and its parent changed the same rows: fork and write again
        `-- IncompatibleConflictError           the operation makes no sense any more
            |-- HistoryGapError                 what was committed since the version that was read is not known
            |-- SupersededError                 a later attempt of the same write has committed
            |-- EarlierAttemptError             rows of an earlier attempt cannot be told from others any more
            `-- UndecidedWriteError             whether the write has landed before is not known any more

Several classes also derive from the builtin that pylance raises in the same place, so that
`except ValueError` and `except OSError` written for it keep working.

Each error carries the link of its page as a note (PEP 678). Python, Dagster's UI and Spark print notes below the
message of a traceback; `str(error)` is the message alone.
"""

from __future__ import annotations

from typing import ClassVar, Final

__all__ = [
    "AlreadyExistsError",
    "ArgumentTypeError",
    "BranchConflictError",
    "CommitConflictError",
    "CorruptFileError",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "EarlierAttemptError",
    "EarlierAttemptLandedError",
    "HistoryGapError",
    "IncompatibleConflictError",
    "IndexNotFoundError",
    "InvalidInputError",
    "LanceError",
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
    "VersionNotFoundError",
]

PAGE: Final = "https://github.com/lance-dagster/lance-dagster/blob/main/docs/errors.md"
"""The page with the cause and the remedy of each code."""

NOTE: Final = "Cause and remedy: "
"""What the note of an error begins with."""


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
        """The address of the paragraph that gives the cause and the remedy."""
        return f"{PAGE}#{self.code}"

    def __str__(self) -> str:
        """What is wrong; an error that says nothing gives its name at least."""
        return super().__str__() or type(self).__name__


class InvalidInputError(LanceError, ValueError, OSError):
    """An argument, or the data handed in, cannot be used; pylance raises now the one builtin, now the other."""

    code = "invalid-input"


class SchemaError(InvalidInputError):
    """The data does not fit the schema, or the schema cannot be stored."""

    code = "schema"


class ArgumentTypeError(InvalidInputError, TypeError):
    """An argument is of a type that is not taken; the message says what is."""

    code = "argument-type"


class UnsupportedError(LanceError, NotImplementedError):
    """A feature of the format, or of pylance's interface, that is not implemented."""

    code = "unsupported"


class NotFoundError(LanceError, ValueError, FileNotFoundError):
    """What was asked for does not exist."""

    code = "not-found"


class DatasetNotFoundError(NotFoundError):
    """There is no dataset at the URI."""

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
    """There is a dataset at the URI already, or an external manifest store still has the versions of one."""

    code = "dataset-exists"


class CorruptFileError(LanceError, OSError):
    """A file does not follow the format."""

    code = "corrupt-file"


class TornFileError(CorruptFileError):
    """The file of a tag or a branch is empty or cut short: it can be deleted, and says nothing."""

    code = "torn-file"


class StoreError(LanceError, OSError):
    """The storage rejected or failed."""

    code = "store"


class OutcomeUnknownError(StoreError):
    """The storage failed in a way that leaves open whether a write took effect."""

    code = "outcome-unknown"


class CommitConflictError(LanceError, OSError):
    """Another writer committed something that this commit cannot follow."""

    code = "commit-conflict"
    retryable: ClassVar[bool] = False


class RetryableConflictError(CommitConflictError):
    """Repeating the whole operation on the latest version can succeed."""

    code = "commit-conflict-retryable"
    retryable = True


class EarlierAttemptLandedError(RetryableConflictError):
    """An earlier attempt of the same write committed while this one was at work: what it did has to go.

    Attributes:
        version: What it committed.
    """

    code = "earlier-attempt-landed"

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version

    def __reduce__(self) -> tuple[type[EarlierAttemptLandedError], tuple[str, int]]:
        return EarlierAttemptLandedError, (str(self), self.version)


class IncompatibleConflictError(CommitConflictError):
    """Repeating the operation would not do what was meant."""

    code = "commit-conflict-incompatible"


class HistoryGapError(IncompatibleConflictError):
    """What was committed since the version that was read is not known: versions were cleaned up, or contradict others.

    A verb that works its change out from the rows does so again on the latest version.
    """

    code = "history-gap"


class SupersededError(IncompatibleConflictError):
    """A later attempt of the same write has committed; this one must not."""

    code = "superseded"


class EarlierAttemptError(IncompatibleConflictError):
    """An earlier attempt of the same write has committed rows that cannot be told from others any more."""

    code = "earlier-attempt"


class UndecidedWriteError(IncompatibleConflictError):
    """Whether a write has landed before cannot be known any more; it is not repeated."""

    code = "undecided-write"


class BranchConflictError(CommitConflictError):
    """A branch cannot be promoted: its parent changed the same rows since the fork."""

    code = "branch-conflict"
