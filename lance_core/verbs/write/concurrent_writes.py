"""Decide whether a write may follow commits of other writes: they filled other slices, or may be replaced.

With `require_empty`, the slices of a write may have no rows except those of its earlier attempts. This is checked in
the version that the write is based on, and again in each later version that it would follow, before the put.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pyroaring import BitMap

from lance_core.commit.attempts import WriteAttempt, number_of, reject_later
from lance_core.commit.history import find_transaction
from lance_core.errors import DatasetExistsError
from lance_core.schema import Schema
from lance_core.store import ObjectStore
from lance_core.table.filled_slices import overlapping_slices
from lance_core.table.idempotency import Proofs
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Overwrite
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.rows.removal import RowsByFragment
from lance_core.verbs.write.earlier_attempts import gap_error, rows_of_attempts
from lance_core.verbs.write.replace import rows_in_slices


def replaceable_commits(
    store: ObjectStore,
    uri: str,
    slices: Slices | None,
    replacing: WriteAttempt | None,
    since: int,
    latest: Manifest,
    attempts: Collection[int],
) -> Collection[int] | None:
    """The versions in which other writes filled overlapping slices, if they may be replaced; None if they may not.

    Args:
        store: The dataset's store.
        uri: The dataset, for messages.
        slices: The slices that the write fills; None for the whole table.
        replacing: The attempt of the write, if it may replace other writes.
        since: The version that the write was based on.
        latest: The version to follow.
        attempts: Versions of earlier attempts of the same write.

    Raises:
        SupersededError: A later write, which must not be replaced, has filled the same slices.
        HistoryGapError: A version in between, which may have filled the same slices, was cleaned up.
    """
    properties = {} if slices is None else slices.properties()
    replaceable: dict[int, Transaction] = {}
    for version in range(since + 1, latest.version + 1) if properties or replacing is not None else ():
        if version in attempts:
            continue
        other = find_transaction(store, version)
        if other is None:
            raise gap_error(uri, since, version)
        same = overlapping_slices(properties, other.properties)
        if same or (not properties and isinstance(other.operation, Overwrite)):
            replaceable[version] = other
    if replaceable and replacing is None:
        return None
    if replacing is not None:
        for version, other in replaceable.items():
            reject_later(replacing, uri, version, number_of(other.properties), is_same_write=False)
    return replaceable


def overruled_fills(replacing: WriteAttempt, filled_slices: Sequence[str], base: Manifest) -> frozenset[int]:
    """The versions in which other writes filled the same rows after a write began, up to its base.

    Args:
        replacing: The attempt of the write, which replaces other writes.
        filled_slices: The slices that it fills; empty for the whole table.
        base: The version that the write is based on.
    """
    if replacing.begun is None:
        return frozenset()
    proofs, begun = Proofs.of(base.config), replacing.begun
    other_fills = [fill for fill in proofs.fills if fill != proofs.fill_of(replacing.token)]
    return frozenset(
        fill.version for fill in other_fills if begun < fill.version <= base.version and fill.overlaps(filled_slices)
    )


def has_same_fields(schema: Schema, other_schema: Schema) -> bool:
    """Whether fragments that were written for one schema fit another: both have the same fields with the same ids."""
    return _field_ids(schema) == _field_ids(other_schema)


def _field_ids(schema: Schema) -> list[tuple[str, int]]:
    """The ids of all fields, each with the name of its column."""
    return [(column.name, field.id) for column in schema.fields for field, _ in column.walk()]


_NAMED: Final = 5
"""The most slices that a message names."""


def check_empty(
    snapshot: Snapshot, slices: Slices, attempt: WriteAttempt | None, earlier_versions: Collection[int]
) -> None:
    """Check that slices have no rows except those of earlier attempts of a write.

    Args:
        snapshot: The version.
        slices: The slices.
        attempt: The attempt of the write, if it may have several.
        earlier_versions: Versions of its earlier attempts.

    Raises:
        DatasetExistsError: A slice has rows of other writes.
    """
    attempt_rows: RowsByFragment = {}
    if attempt is not None and earlier_versions:
        attempt_rows, _, beside = rows_of_attempts(snapshot, attempt, earlier_versions)
        if beside:
            return  # the caller lets rows stay that cannot be distinguished from those of other writes
    num_rows = sum(
        len(rows - attempt_rows.get(fragment.id, BitMap())) for fragment, rows in rows_in_slices(snapshot, slices)
    )
    if num_rows:
        names = ", ".join(map(repr, slices.names[:_NAMED])) + (" ..." if len(slices.names) > _NAMED else "")
        raise DatasetExistsError(
            f"{snapshot.store.root}: version {snapshot.manifest.version} has rows in {names} ({num_rows} in all), and "
            "require_empty writes only to empty slices; nothing was written"
        )
