"""Options for a commit (`CommitOptions`), and the result of one (`Committed`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from lance_core.commit.attempts import WriteAttempt
from lance_core.table.idempotency import PromotedBranch
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.table_format import TableFormat
from lance_core.table.transaction import Transaction

__all__ = ["CommitOptions", "Committed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """Options for one commit: attempts, durability, and how an earlier commit of the same write is recognized.

    Attributes:
        max_retries: Most attempts; 0 allows one attempt, and makes an Overwrite strict: it must follow its read version
            directly.
        timeout_s: Seconds after which no further attempt is begun.
        durable: Whether the version must survive a power loss once it is committed; costs a few milliseconds on a
            local disk.
        detached: Whether to commit a version that is not part of the history. It follows its read version, whatever was
            committed since, and can be opened only by its number.
        idempotency_key: Key and value of a transaction property. If a version since the read version carries it, or the
            table's proofs have it from an older version, that version is returned and nothing is written.
        stream_batch: A stream and the number of its batch. If the table's proofs show that this batch or a later one
            was committed, nothing is written.
        write_attempt: The write and the number of the attempt, if the write may be attempted several times; its
            properties are on the transaction.
        fills: Identities of the slices whose rows the write replaces, whoever wrote them; empty for all rows of the
            table; None if it replaces no rows but those of earlier attempts.
        checked_through: Version up to which the caller has looked for `idempotency_key` or other attempts. If it is
            older than the read version, the commit checks the versions between them as well.
        table_format: The format of a dataset that is created; an existing one keeps its own.
        branch: The branch whose rows the commit adds; proofs of writes on the branch are kept.
    """

    max_retries: int = 20
    timeout_s: float = 1800.0
    durable: bool = True
    detached: bool = False
    idempotency_key: tuple[str, str] | None = None
    stream_batch: tuple[str, int] | None = None
    write_attempt: WriteAttempt | None = None
    fills: tuple[str, ...] | None = None
    checked_through: int | None = None
    table_format: TableFormat = field(default_factory=TableFormat)
    branch: PromotedBranch = field(default_factory=PromotedBranch)

    @property
    def properties(self) -> dict[str, str]:
        """The transaction properties by which the commit is recognized: those of its key and of its attempt."""
        key = () if self.idempotency_key is None else (self.idempotency_key,)
        return {**dict(key), **(self.write_attempt.properties if self.write_attempt is not None else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The result of a commit.

    Attributes:
        manifest: The committed version.
        transaction: The transaction as it was recorded, after rebases; None if an earlier commit was found, and its
            transaction is not known any more.
        attempts: Number of attempts that the commit took; 0 if an earlier commit was found instead.
        deduplicated: Whether an earlier commit with the same `idempotency_key`, or of the same or a later batch, was
            found instead. For a batch, or if that commit's version was cleaned up, the manifest is that of the latest
            version.
    """

    manifest: Manifest
    transaction: Transaction | None
    attempts: int
    deduplicated: bool = False
