"""Give stable row ids to the rows of a table, which had only addresses, in one commit that writes no row.

    row at offset o of fragment f    id f << 32 | o, which is its address at that time
    new rows                         ids from the first address that no fragment has had

An index lists rows by their addresses; in a table with stable row ids, indices of some kinds list them by their ids.
As both are equal, all indices stay valid, also one that another writer builds meanwhile. Appends can follow, and their
rows get ids. Any other change of rows that is committed meanwhile is a conflict, after which the loser starts again.
The rows count as created, and updated last, in the version before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lance_core.commit.loop import commit
from lance_core.commit.records import Commit
from lance_core.commit.versions import reload_latest
from lance_core.errors import InvalidInputError, RetryableConflictError, UnsupportedError
from lance_core.index.kinds.registry import is_supported
from lance_core.retry import RETRY_TIMEOUT, retrying
from lance_core.row_addresses import make_row_address, make_row_addresses
from lance_core.table.fragment import Fragment
from lance_core.table.index import FRAGMENT_REUSE_INDEX
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge, UpdateConfig, UpdateMap
from lance_core.table.operations.base import next_fragment_id
from lance_core.table.reuse import DEFER_KEY, trimmed
from lance_core.table.rowids import encode_row_ids, with_versions
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.indices.optimize import optimize_indices
from lance_core.verbs.scan.read_fragment import with_all_row_counts

_RETRIES: Final = 100
"""An attempt only reads and writes manifests, and loses to each append that is committed meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdMigration:
    """The result of `LanceDataset.migrate_to_stable_row_ids`.

    Attributes:
        version: The version that has stable row ids.
        is_new: Whether it was committed now; False if the table had stable row ids before.
        indices_kept: The names of the indices that stay as they are.
        indices_rebuilt: The names of the indices that had to be rebuilt before, since they followed moves of rows by
            the fragment reuse index, which tables with stable row ids cannot have.
    """

    version: int
    is_new: bool
    indices_kept: tuple[str, ...]
    indices_rebuilt: tuple[str, ...]


def migrate_to_stable_row_ids(
    snapshot: Snapshot, properties: Mapping[str, str] | None = None
) -> tuple[Manifest, RowIdMigration]:
    """Commit a version with stable row ids, with the arguments of `LanceDataset.migrate_to_stable_row_ids`."""

    def attempt(base: Snapshot, _: int) -> tuple[Manifest, RowIdMigration]:
        before = {index.uuid for index in base.manifest.indices}
        is_new = not base.manifest.uses_stable_row_ids
        manifest = _migrate(base, properties) if is_new else base.manifest
        names: dict[bool, dict[str, None]] = {False: {}, True: {}}
        for index in manifest.indices:
            if not index.is_system:
                names[index.uuid in before].setdefault(index.name)
        kept = tuple(name for name in names[True] if name not in names[False])
        return manifest, RowIdMigration(
            version=manifest.version, is_new=is_new, indices_kept=kept, indices_rebuilt=tuple(names[False])
        )

    latest = snapshot.with_manifest(reload_latest(snapshot.store, snapshot.manifest))
    return retrying(
        latest,
        attempt,
        lambda base, _: base.with_manifest(reload_latest(base.store, base.manifest)),
        conflict_retries=_RETRIES,
        retry_timeout=RETRY_TIMEOUT,
        is_retryable=lambda _: True,  # nothing of a lost attempt is used again
        exhausted=lambda number, error: RetryableConflictError(
            f"{snapshot.store.root}: migrate_to_stable_row_ids lost against other writers {number} times: repeat it "
            f"when fewer write. Last conflict: {error}"
        ),
    )


def _migrate(base: Snapshot, properties: Mapping[str, str] | None) -> Manifest:
    root, manifest = base.store.root, base.manifest
    if manifest.branch is not None:
        raise InvalidInputError(
            f"{root}: migrate_to_stable_row_ids works on main, and this is the branch {manifest.branch!r}, whose rows "
            "could not be promoted to a main without stable row ids: promote or discard it, migrate main, and fork it "
            "again"
        )
    followers = find_followers(manifest)
    own_names = {i.name for i in manifest.indices if i.name in followers and is_supported(i, manifest.schema)}
    if own_names:  # all segments of these, as the older ones can be those with old addresses
        count = len(manifest.indices)
        manifest = optimize_indices(
            base, num_indices_to_merge=count, index_names=sorted(own_names), conflict_retries=0, properties=properties
        )
        base = base.with_manifest(manifest)
    if others := find_followers(manifest):
        raise UnsupportedError(
            f"{root}: a compaction recorded moves of rows that indices still list by their old addresses, "
            f"and these indices cannot be rebuilt here: {others}. Let maintenance with stable_row_ids=True build "
            "them again where pylance is installed, or do it by create_index or create_scalar_index of pylance, with "
            "replace=True, or drop them, and migrate again"
        )
    if DEFER_KEY in manifest.config:  # neither library compacts a table with stable row ids by it
        manifest = _commit(base, UpdateConfig(config=UpdateMap(entries={DEFER_KEY: None})), properties)
        base = base.with_manifest(manifest)
    operation = Merge(
        fragments=tuple(_with_row_ids(fragment, manifest.version) for fragment in with_all_row_counts(base)),
        schema=manifest.schema,
        preserves_nullability=True,
        first_row_id=make_row_address(next_fragment_id(manifest), 0),
    )
    return _commit(base, operation, properties)


def _commit(base: Snapshot, operation: Merge | UpdateConfig, properties: Mapping[str, str] | None) -> Manifest:
    transaction = Transaction(
        read_version=base.manifest.version, operation=operation, properties=dict(properties or {})
    )
    return commit(base.store, transaction, base=base.manifest, options=Commit()).manifest


def find_followers(manifest: Manifest) -> list[str]:
    """The names of the indices whose entries have old addresses, which the fragment reuse index translates.

    Args:
        manifest: The version.
    """
    reuse = [index for index in manifest.indices if index.name == FRAGMENT_REUSE_INDEX]
    names = {i.name for i in manifest.indices if not i.is_system and len(trimmed([*reuse, i])) > 1}
    return sorted(names)


def _with_row_ids(fragment: Fragment, version: int) -> Fragment:
    ids = make_row_addresses(fragment.id, np.arange(fragment.physical_rows))
    return with_versions(replace(fragment, row_ids=encode_row_ids(ids)), version)
