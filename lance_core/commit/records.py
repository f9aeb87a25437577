"""What a commit takes (`Change`, `Commit`), and how it ends: `Committed`, `Lost` or `Unknown`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeAlias

from lance_core.commit.attempts import AttemptProperties, WriteAttempt
from lance_core.commit.conflict import AffectedRows
from lance_core.commit.rebase import Prepare
from lance_core.errors import ArgumentTypeError, InvalidInputError
from lance_core.store import ObjectStore, PendingWrites, check_present
from lance_core.table.idempotency import PromotedBranch
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import TableFormat
from lance_core.table.transaction import COMMIT_MESSAGE_KEY, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """How a change is committed: what the history says of it, how it is recognized, and how long it is tried.

    Attributes:
        message: A string for the history.
        properties: Strings for the history, by key.
        idempotency_key: Key and value of a transaction property. If a version since the read version carries it, or the
            table's proofs have it from an older version, that version is returned and nothing is written.
        stream_batch: A stream and the number of its batch. If the table's proofs show that this batch was the last one
            that was committed, nothing is written.
        undecided_batch: What is done with a batch whose number is below that of the last one, such as after a
            checkpoint was put back from a copy: "error"; "write", after which it is the last one; or "skip".
        write_attempt: The write and the number of the attempt, if the write may be attempted several times.
        checked_through: Version up to which the caller has looked for `idempotency_key` or other attempts. If it is
            older than the read version, the commit checks the versions between them as well.
        max_retries: Most attempts; 0 allows one attempt, makes an Overwrite strict (it must follow its read version
            directly), and computes no replacement of slices again after others changed the same rows.
        timeout_s: Seconds after which no further attempt is begun.
        durable: Whether the version must survive a power loss once it is committed; costs a few milliseconds on a
            local disk.
        detached: Whether to commit a version that is not part of the history. It follows its read version, whatever was
            committed since, and can be opened only by its number.

    Raises:
        InvalidInputError: `idempotency_key` and `write_attempt` are given, or `undecided_batch` has another value.
        ArgumentTypeError: A property is not a string, which would be noticed only after the files are written.
    """

    message: str | None = None
    properties: Mapping[str, str] | None = None
    idempotency_key: tuple[str, str] | None = None
    stream_batch: tuple[str, int] | None = None
    undecided_batch: str = "error"
    write_attempt: WriteAttempt | None = None
    checked_through: int | None = None
    max_retries: int = 20
    timeout_s: float = 1800.0
    durable: bool = True
    detached: bool = False

    def __post_init__(self) -> None:
        if self.idempotency_key is not None and self.write_attempt is not None:
            raise InvalidInputError(
                "idempotency_key keeps the first of several commits, write_attempt the last one: give one of them"
            )
        if self.undecided_batch not in ("error", "write", "skip"):
            raise InvalidInputError(f"undecided_batch must be error, write or skip, not {self.undecided_batch!r}")
        for key, value in (self.properties or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise ArgumentTypeError(f"transaction_properties must be strings, not {key!r:.80}: {value!r:.80}")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """The commit from arguments of a public function, such as `commit_message`; other entries are ignored."""
        attributes = {option.name: arguments[option.name] for option in fields(cls) if option.name in arguments}
        return cls(
            message=arguments.get("commit_message"), properties=arguments.get("transaction_properties"), **attributes
        )

    def as_attempt(self, dataset: Any, mode: str) -> Commit:
        """The commit with the attempt to which its properties belong, if they are `AttemptProperties`.

        Args:
            dataset: The newest version of the table, a `LanceDataset`; None if there is no table yet.
            mode: The mode of the write.
        """
        if self.write_attempt is not None or not isinstance(self.properties, AttemptProperties):
            return self
        return replace(self, write_attempt=self.properties.write_attempt_for(dataset, mode))

    @property
    def identity(self) -> dict[str, str]:
        """The transaction properties by which the commit is recognized: those of its key and of its attempt."""
        key = () if self.idempotency_key is None else (self.idempotency_key,)
        return {**dict(key), **(self.write_attempt.properties if self.write_attempt is not None else {})}

    @property
    def texts(self) -> dict[str, str]:
        """The transaction properties for readers of the history."""
        message = {} if self.message is None else {COMMIT_MESSAGE_KEY: self.message}
        return {**dict(self.properties or {}), **message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that was computed from a version, and that can be committed.

    Attributes:
        transaction: The change. `read_version` 0 creates the dataset.
        base: The version that it was computed from; None if it was not read, or if there is no dataset. It is not read
            again if it still is the latest.
        affected_rows: The rows that a Delete or Update removes; with them it can follow others on the same fragment.
            None if they are not known.
        replaces: Versions of earlier attempts of the same write that it was computed to replace, besides those that
            the attempt itself names.
        new_files: Keys of the files that it refers to and that are new in the table: checked before the put.
        pending: The writes of these files that may still be under way; the put waits for them.
        written: Keys of files that belong to this change alone; they are removed if it is not committed.
        prepare: Completes the transaction in each attempt, given the version to follow.
        source: The manifest that a Clone copies.
        table_format: The format of a dataset that is created; an existing one keeps its own.
        fills: Identities of the slices whose rows it replaces, whoever wrote them; empty for all rows of the table;
            None if it replaces no rows but those of earlier attempts.
        branch: The branch whose rows it adds; proofs of writes on the branch are kept.
    """

    transaction: Transaction
    base: Manifest | None = None
    affected_rows: AffectedRows | None = None
    replaces: tuple[int, ...] = ()
    new_files: tuple[str, ...] = ()
    pending: PendingWrites | None = None
    written: tuple[str, ...] = ()
    prepare: Prepare | None = None
    source: Manifest | None = None
    table_format: TableFormat = field(default_factory=TableFormat)
    fills: tuple[str, ...] | None = None
    branch: PromotedBranch = field(default_factory=PromotedBranch)

    def wait_for_files(self, store: ObjectStore) -> None:
        """Wait until the new files are durable, and check that they exist.

        Raises:
            ObjectNotFoundError: A file was deleted, such as by a cleanup, or with the table.
            StoreError: The storage failed.
        """
        if self.pending is not None:
            self.pending.wait()
        is_read = self.base is not None or not self.transaction.read_version
        check_present(store, self.new_files, trusts_recent=is_read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The change is in the history.

    Attributes:
        manifest: The committed version.
        transaction: The transaction as it was recorded, after rebases; None if an earlier commit was found, and its
            transaction is not known any more.
        attempts: Number of attempts that the commit took; 0 if an earlier commit was found instead.
        deduplicated: Whether an earlier commit with the same `idempotency_key`, or of the same or a later batch, was
            found instead. For a batch, or if that commit's version was cleaned up, the manifest is that of the latest
            version.
        change: The change as it was computed last; None if an earlier commit was found instead.
    """

    manifest: Manifest
    transaction: Transaction | None
    attempts: int
    deduplicated: bool = False
    change: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No version has the change, nor will have it: its files can be removed.

    Attributes:
        error: Why; also an interruption before the put.
        change: The change that was tried last; None if none was computed.
    """

    error: BaseException
    change: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A version may have the change, or may still get it: its files must stay.

    Attributes:
        error: An `OutcomeUnknownError`, or an interruption after the put began.
    """

    error: BaseException


Outcome: TypeAlias = Committed | Lost | Unknown


def committed_or_raise(outcome: Outcome, discard: Callable[[], None] | None = None) -> Committed:
    """Return the commit, or raise the error that ended it.

    Args:
        outcome: The outcome.
        discard: Removes the files of a change that was lost, while its error is handled.
    """
    if isinstance(outcome, Committed):
        return outcome
    try:
        raise outcome.error  # noqa: TRY301 - so that it is handled while the files are removed
    except BaseException:
        if isinstance(outcome, Lost) and discard is not None:
            discard()
        raise
    finally:
        del outcome  # it refers to the error, whose traceback refers to this frame
