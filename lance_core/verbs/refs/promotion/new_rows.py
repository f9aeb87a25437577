"""The rows that the parent of a branch got since the fork, and the check of their keys before a promotion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import RetryableConflictError
from lance_core.row_addresses import offsets_of
from lance_core.table.fragment import Fragment
from lance_core.table.operations import Append, KeyExistenceFilter, Merge, Operation, Update
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.refs.changes import Branch, BranchChanges
from lance_core.verbs.rows.removal import RowsByFragment, live_rows
from lance_core.verbs.rows.source_rows import key_hashes

_SPARK_TYPE: Final = "spark.type"
_COLLATE: Final = b" collate "


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Live rows of the latest version in fragments that the fork version lacks, without those that the branch replaces.

    Attributes:
        source: The latest version.
        fragments: The fragments.
        removed_rows: The rows that the branch replaces.
    """

    source: Snapshot
    fragments: Sequence[Fragment]
    removed_rows: RowsByFragment

    @classmethod
    def of(cls, branch: Branch, latest: Snapshot, removed_rows: RowsByFragment) -> NewRows:
        """The new rows of the parent's latest version."""
        old = {fragment.id for fragment in branch.parent.manifest.fragments}
        fragments = [fragment for fragment in latest.manifest.fragments if fragment.id not in old]
        return cls(source=latest, fragments=fragments, removed_rows=removed_rows)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the rows, with some of their columns."""
        for fragment in self.fragments:
            hidden = self.removed_rows.get(fragment.id, BitMap())
            if len(hidden) == fragment.num_rows:
                continue
            for batch, offsets in live_rows(self.source, fragment, names):
                left = ~np.isin(np.asarray(offsets), offsets_of(hidden))
                yield batch if left.all() else batch.filter(pa.array(left))


def lists_new_keys(operation: Operation) -> bool:
    """Whether a commit inserted no rows, or lists the keys of those that it inserted."""
    if isinstance(operation, Update):
        keys = operation.inserted_rows
        return not operation.new_fragments or (keys is not None and keys.key_hashes is not None)
    return not isinstance(operation, Append | Merge)


def check_new_keys(branch: Branch, changes: BranchChanges, inserted: KeyExistenceFilter, new: NewRows) -> None:
    """Check that no new row has a key that the branch inserted; the keys are read where no list is recorded.

    Raises:
        RetryableConflictError: A new row has a key that the branch inserted, or whether it has is unknown.
    """
    if inserted.is_empty or not new.fragments:
        return
    columns = _key_columns(new.source, inserted)
    mine = _hash_rows(inserted) if inserted.key_hashes is not None else _read(branch, changes, inserted)
    for batch in new.batches(columns):
        if np.isin(key_hashes(batch, columns), mine).any():
            raise RetryableConflictError("a key that the branch inserted has been inserted since the fork")


def _key_columns(source: Snapshot, inserted: KeyExistenceFilter) -> list[str]:
    """The columns of the key, if equal keys have equal values there."""
    by_id = {field.id: field for field in source.manifest.schema.fields}
    fields = [by_id[number] for number in inserted.field_ids if number in by_id]
    has_collation = any(_COLLATE in field.metadata.get(_SPARK_TYPE, b"") for field in fields)
    if len(fields) < len(inserted.field_ids) or has_collation:
        raise RetryableConflictError("it is not known whether the same keys were inserted since the fork")
    return [field.name for field in fields]


def _hash_rows(inserted: KeyExistenceFilter) -> npt.NDArray[np.uint64]:
    assert inserted.key_hashes is not None
    return np.fromiter(inserted.key_hashes, np.uint64, len(inserted.key_hashes))


def _read(branch: Branch, changes: BranchChanges, inserted: KeyExistenceFilter) -> npt.NDArray[np.uint64]:
    """The keys of all rows that the branch wrote: rows that it moved replace others of the same keys."""
    columns = _key_columns(branch.head, inserted)
    written = (live_rows(branch.head, fragment, columns) for fragment in changes.added)
    hashes = [key_hashes(batch.drop_null(), columns) for batches in written for batch, _ in batches]
    return np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))
