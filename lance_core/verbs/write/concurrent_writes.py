"""Decide whether a write may follow commits of other writes: they filled other slices, or may be replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lance_core.commit import WriteAttempt, find_transaction, number_of, reject_later
from lance_core.errors import RetryableConflictError
from lance_core.schema import Field, Schema, schema_to_bytes
from lance_core.store import ObjectStore
from lance_core.table.filled_slices import read_slices
from lance_core.table.idempotency import Proofs
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Overwrite
from lance_core.table.transaction import Transaction
from lance_core.verbs.files.fragment_writer import lance_schema
from lance_core.verbs.write.earlier_attempts import gap_error
from lance_core.verbs.write.request import CommitRequest

__all__ = ["check_columns", "check_creation", "overruled_fills", "replaceable_commits"]


def replaceable_commits(
    store: ObjectStore, uri: str, request: CommitRequest, since: int, latest: Manifest, attempts: Collection[int]
) -> Collection[int] | None:
    """The versions in which other writes filled the same slices, if they may be replaced; None if they may not.

    Args:
        store: The dataset's store.
        uri: The dataset, for messages.
        request: The write.
        since: The version that the write was based on.
        latest: The version to follow.
        attempts: Versions of earlier attempts of the same write.

    Raises:
        SupersededError: A later write, which must not be replaced, has filled the same slices.
        HistoryGapError: A version in between, which may have filled the same slices, was cleaned up.
    """
    if request.write.require_empty:
        return ()  # `check_required_empty` checks the rows themselves
    slices = set(() if request.write.slices is None else request.write.slices.identities())
    replaceable: dict[int, Transaction] = {}
    for version in range(since + 1, latest.version + 1) if slices or request.replaces_others else ():
        if version in attempts:
            continue
        other = find_transaction(store, version)
        if other is None:
            raise gap_error(uri, since, version)
        same = not slices.isdisjoint(read_slices(other.properties))
        if same or (not slices and isinstance(other.operation, Overwrite)):
            replaceable[version] = other
    if replaceable and not request.replaces_others:
        return None
    if replaceable:
        assert request.attempt is not None
        for version, other in replaceable.items():
            reject_later(request.attempt, uri, version, number_of(other.properties), is_same_write=False)
    return replaceable


def overruled_fills(request: CommitRequest, write: WriteAttempt, base: Manifest) -> frozenset[int]:
    """The versions in which other writes filled the same rows after a write began, up to its base."""
    slices = request.filled_slices()
    if slices is None or not request.replaces_others:
        return frozenset()
    proofs, begun = Proofs.of(base.config), write.begun or 0
    other_fills = [fill for fill in proofs.fills if fill != proofs.fill_of(write.token)]
    return frozenset(
        fill.version for fill in other_fills if begun < fill.version <= base.version and fill.overlaps(slices)
    )


def check_columns(request: CommitRequest, uri: str, base: Manifest, latest: Manifest) -> None:
    """Check that fragments that were written for one version fit the columns of a later version.

    Raises:
        RetryableConflictError: The later version has other columns.
    """
    if request.write.mode in ("append", "replace") and _field_ids(base.schema) != _field_ids(latest.schema):
        raise RetryableConflictError(f"{uri}: its columns were changed meanwhile; do the write again")


def check_creation(request: CommitRequest, uri: str, schema: Schema, latest: Manifest) -> None:
    """Check that fragments that were written for a new dataset fit the dataset that another writer created meanwhile.

    Args:
        request: The write.
        uri: The dataset, for messages.
        schema: The schema that the new dataset would have had.
        latest: The dataset that was created.

    Raises:
        RetryableConflictError: The dataset has other field ids.
    """
    if request.write.mode in ("create", "overwrite"):
        return
    if _field_ids(schema) != _field_ids(lance_schema(request.schema, schema_to_bytes(latest.schema))):
        raise RetryableConflictError(f"{uri} was created meanwhile, with columns in another order; do the write again")


def _field_ids(schema: Schema) -> list[tuple[str, int]]:
    """The ids of all fields, each with the name of its column."""
    return [(column.name, field.id) for column in schema.fields for field in _subtree(column)]


def _subtree(field: Field) -> Iterator[Field]:
    yield field
    for child in field.children:
        yield from _subtree(child)
