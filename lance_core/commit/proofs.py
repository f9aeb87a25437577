"""Looking for a write that may have landed already: in the state of the latest version, then in the history.

The state (`table.idempotency`) says so even when the version that the write made was cleaned up. The history knows of
writes that left no proof: by another library, or by setting the property itself.
"""

from __future__ import annotations

from typing import Final

from lance_core.commit.attempts import REPLACES_KEY, WriteAttempt
from lance_core.commit.versions import find_by_property, list_versions, load_manifest, load_transaction
from lance_core.errors import SupersededError, UndecidedWriteError, VersionNotFoundError
from lance_core.store import ObjectStore
from lance_core.table.idempotency import LandedAttempt, Proof, Proofs
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Overwrite, UnknownOperation
from lance_core.table.transaction import SLICES_KEY, Transaction

__all__ = [
    "attempts_of",
    "find_idempotent_commit",
    "is_gone",
    "landed_batch",
    "landed_idempotent_commit",
    "landed_version",
    "proof_of",
    "reject_later_attempt",
]

_GONE: Final = UnknownOperation(described="of a version that was cleaned up")

Landed = tuple[Manifest, Transaction]


def landed_idempotent_commit(store: ObjectStore, latest: Manifest, idempotency_key: tuple[str, str]) -> Landed | None:
    """The version of a write that landed, as the state of the latest version says; None if it does not.

    Returns:
        Its version and its transaction. If that version was cleaned up, the latest one, and a transaction of which
        nothing but the key is known (`is_gone`).
    """
    version = Proofs.of(latest.config).key(idempotency_key)
    if version is None:
        return None
    found = landed_version(store, latest, version)
    return found if found[1].properties.get(idempotency_key[0]) == idempotency_key[1] else (latest, _gone())


def landed_version(store: ObjectStore, latest: Manifest, version: int) -> Landed:
    """A version and its transaction; the latest one if it was cleaned up, with a transaction that says nothing."""
    try:
        made = latest if version == latest.version else load_manifest(store, version)
    except VersionNotFoundError:
        return latest, _gone()
    transaction = load_transaction(store, made)
    return (latest, _gone()) if transaction is None else (made, transaction)


def _gone() -> Transaction:
    return Transaction(read_version=0, operation=_GONE, uuid="")


def landed_batch(latest: Manifest, batch: tuple[str, int]) -> Landed | None:
    """The latest version, if its state says that this batch of a stream has landed, or a later one; None if not."""
    stream, number = batch
    known = Proofs.of(latest.config).streams.get(stream)
    if known is None or known.number < number:
        return None
    return latest, _gone()


def is_gone(transaction: Transaction) -> bool:
    """Whether a transaction stands for one whose version was cleaned up."""
    return transaction.operation is _GONE


def find_idempotent_commit(
    store: ObjectStore, newest: Manifest, idempotency_key: tuple[str, str], *, newer_than: int = 0
) -> Landed | None:
    """The version of a write that landed, by the state or by the history; None if there is none.

    Args:
        store: The dataset's store.
        newest: The latest version.
        idempotency_key: Key and value of the transaction property that the write carries.
        newer_than: A version that is known to be no newer than the write; older ones are not read.

    Raises:
        UndecidedWriteError: A version after `newer_than` was cleaned up that may have been the write's.
    """
    found = landed_idempotent_commit(store, newest, idempotency_key)
    if found is None:
        found = find_by_property(store, *idempotency_key, newest=newest, newer_than=newer_than)
    forgotten = Proofs.of(newest.config).complete_after("keys") or 0
    if found is None and 0 < newer_than < forgotten:
        missing = set(range(newer_than + 1, forgotten + 1)).difference(list_versions(store))
        if missing:
            raise UndecidedWriteError(
                f"{store.root}: whether a write with {idempotency_key[0]}={idempotency_key[1]!r} has landed since "
                f"version {newer_than} is not known: version {max(missing)} was cleaned up, and what it was is "
                "forgotten. Nothing was written. Look, and say by a later version to look back to, or by another key, "
                "that the rows are to be written"
            )
    return found


def attempts_of(latest: Manifest, write: WriteAttempt) -> tuple[LandedAttempt, ...]:
    """The attempts of a write that the state of a version knows, oldest first."""
    return Proofs.of(latest.config).attempts_of(write.token)


def reject_later_attempt(latest: Manifest, write: WriteAttempt, root: str) -> None:
    """Stop an attempt after which another one has landed, whose version may be gone.

    Raises:
        SupersededError: There is one.
    """
    for one in attempts_of(latest, write):
        if one.number > write.number:
            raise SupersededError(
                f"{root}: version {one.version} was committed by a later attempt of the same write (attempt "
                f"{'.'.join(map(str, one.number))}, this one is {'.'.join(map(str, write.number))}); nothing of this "
                "one was committed, and its files are removed"
            )


def proof_of(
    transaction: Transaction,
    latest: Manifest | None,
    *,
    idempotency_key: tuple[str, str] | None,
    batch: tuple[str, int] | None,
    write: WriteAttempt | None,
) -> Proof:
    """What a commit leaves behind, to be recognized when its version is gone.

    An attempt that merely takes the place of rows, all of them or those of its slices, leaves nothing: another one does
    the same, whether the first has landed or not.
    """
    operation = transaction.operation
    fills = (isinstance(operation, Overwrite) and latest is not None) or SLICES_KEY in transaction.properties
    if write is None or (fills and not write.outside_slices):
        return Proof(idempotency_key=idempotency_key, batch=batch)
    replaces = tuple(int(part) for part in transaction.properties.get(REPLACES_KEY, "").split(",") if part.isdecimal())
    return Proof(
        idempotency_key=idempotency_key,
        batch=batch,
        attempt=write.token,
        number=write.number,
        note=write.note,
        replaces=(*write.earlier, *replaces),
    )
