"""Moves the data files of whole fragments to a base path.

    record      _refs/moves/<uuid>.json, before the first copy: the base path, and the new name of each file
    copy        each file, with its files of blobs, under a new name; by the storage itself where it can
    commit      one Rewrite whose fragments have the same ids, rows and deletions, and the new files

`cleanup.copies` removes copies that are not needed any more. Files that were moved away from the table's root go with
its ordinary cleanup.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from lance_core.commit.loop import commit
from lance_core.commit.records import Commit
from lance_core.commit.versions import reload_latest
from lance_core.errors import InvalidInputError, ObjectNotFoundError
from lance_core.maintenance.cleanup.copies import MoveRecord, read_records
from lance_core.retry import RETRY_TIMEOUT, retrying
from lance_core.schema.field import is_blob_v2
from lance_core.store import ObjectMeta, ObjectStore, copy_object, make_durable
from lance_core.table.fragment import BasePath, DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Rewrite, RewriteGroup
from lance_core.table.paths import MOVES_PREFIX, moved_file_name
from lance_core.table.transaction import Transaction
from lance_core.threads import ThreadPool
from lance_core.verbs.context.bases import WriteTarget, write_targets
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.refs.promotion.files import COPIES_AT_ONCE

OWN_FOLDER: Final = "."
"""The name of the table's own folder, as the target of a move."""

_RETRIES: Final = 100
"""Attempts to commit, each of which only reads and writes manifests."""


def find_base(snapshot: Snapshot, name: str) -> BasePath | None:
    """The base path with a name; None for the table's own folder.

    Raises:
        InvalidInputError: The table has no such base path.
    """
    bases = {base.name: base for base in snapshot.manifest.base_paths if base.name is not None}
    if name == OWN_FOLDER:
        return None
    if name not in bases:
        raise InvalidInputError(
            f"{snapshot.store.root}: move_to {name!r} is no base path of the table, which has "
            f"{', '.join(map(repr, bases)) or 'none'}: add it by add_bases([DatasetBasePath(uri, name={name!r})]), or "
            f"name {OWN_FOLDER!r}, the table's own folder"
        )
    return bases[name]


def lies_elsewhere(fragment: Fragment, base: BasePath | None) -> bool:
    """Whether a fragment has data files outside of a base path."""
    return any(file.base_id != (None if base is None else base.id) for file in fragment.files)


def move_fragments(
    dataset: Handle, fragments: Sequence[Fragment], name: str, properties: Mapping[str, str] | None = None
) -> list[DataFile]:
    """Move the data files of fragments to a base path in one commit that changes no row, id or index.

    Fragments that other writers have changed meanwhile stay. A move of the same files that was killed is finished.

    Args:
        dataset: The table; it moves to the newest version.
        fragments: The fragments.
        name: The name of the base path, or `OWN_FOLDER`.
        properties: Transaction properties.

    Returns:
        The files that were moved.

    Raises:
        InvalidInputError: The table has no such base path.
        StoreError: A file could not be copied; nothing is committed.
        CommitConflictError: Others changed the table in each attempt; a further move finishes this one.
    """
    snapshot, base = dataset.snapshot, find_base(dataset.snapshot, name)
    if not fragments:
        return []
    (target,) = write_targets(
        snapshot.store,
        snapshot.manifest.base_paths,
        target_bases=None if base is None else [name],
        target_all_bases=None,
        options=snapshot.options,
    )
    files = {file.path: file for fragment in fragments for file in fragment.files if file.base_id != target.base_id}
    next(iter(target.store.list("")), None)  # an error of the storage comes before anything is written
    place = None if base is None else base.path
    records = [record for record in read_records(snapshot.store) if record.base == place and record.can_be_finished]
    earlier = {old: new for record in records for old, new in record.files.items() if old in files}
    record = MoveRecord(
        key=f"{MOVES_PREFIX}{uuid.uuid4().hex}.json",
        base=place,
        prefix=target.prefix,
        blobs=any(is_blob_v2(node) for node, _ in snapshot.manifest.schema.walk()),
        files={path: earlier.get(path) or moved_file_name(path) for path in files},
        root=snapshot.store.root,
    )
    if files.keys() - earlier.keys():
        record.write(snapshot.store)
    with ThreadPool(COPIES_AT_ONCE) as pool:
        copies = pool.map(
            lambda file: _copy(snapshot, file, target, record, is_new=file.path not in earlier), files.values()
        )
        make_durable(target.store, [key for keys in copies for key in keys])

    def attempt(latest: Snapshot, _: int) -> tuple[Manifest, list[DataFile]]:
        groups = []
        for fragment in fragments:
            now = latest.manifest.fragments.get(fragment.id)
            if now is not None and now.files == fragment.files:
                moved = tuple(
                    replace(file, path=record.files[file.path], base_id=target.base_id) if file.path in files else file
                    for file in now.files
                )
                groups.append(RewriteGroup(old_fragments=(now,), new_fragments=(replace(now, files=moved),)))
        if not groups:
            return latest.manifest, []
        transaction = Transaction(
            read_version=latest.manifest.version,
            operation=Rewrite(groups=tuple(groups)),
            properties=dict(properties or {}),
        )
        moved_files = [file for group in groups for file in group.old_fragments[0].files if file.path in files]
        return commit(latest.store, transaction, base=latest.manifest, options=Commit()).manifest, moved_files

    def reload(latest: Snapshot, *_: object) -> Snapshot:
        return latest.with_manifest(reload_latest(latest.store, latest.manifest))

    manifest, moved_files = retrying(
        reload(snapshot), attempt, reload, conflict_retries=_RETRIES, retry_timeout=RETRY_TIMEOUT
    )
    dataset.move_to(manifest)
    return moved_files


def _copy(snapshot: Snapshot, file: DataFile, target: WriteTarget, record: MoveRecord, *, is_new: bool) -> list[str]:
    """Copy a data file and its files of blobs, unless a killed move has; returns the keys of the copies."""
    source, key = snapshot.data_file(file)
    old_stem, new_stem = (name.removesuffix(".lance") for name in (key, target.prefix + record.files[file.path]))
    blobs = [meta.key for meta in source.list(f"{old_stem}/")] if record.blobs else []
    copies = {old: f"{new_stem}{old.removeprefix(old_stem)}" for old in [*blobs, key]}
    for old, new in copies.items():
        if is_new or not _is_copied(source.head(old), target.store, new):
            copy_object(source, old, target.store, new)
    return list(copies.values())


def _is_copied(source: ObjectMeta, store: ObjectStore, key: str) -> bool:
    try:
        return store.head(key).size == source.size
    except ObjectNotFoundError:
        return False
