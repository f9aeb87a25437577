"""Repairs wrong records in manifests of early releases of lance, when a commit follows such a manifest.

    no writer version      2023, up to 0.8: rows per fragment and deletions are missing or wrong, file sizes missing;
                           counted again from the files
    lance 0.x              columns that were added after others were dropped took over their field ids, so two files of
                           a fragment have the same id; the newest file has the column, and in older files the id is
                           replaced by the tombstone

The bitmap of an index from lance below 0.8.15 may also have wrong fragments. Only the files of the index show what it
covers, and these are not read: such a manifest keeps the old writer version, which shows other libraries that bitmaps
must be checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lance_core._proto import table_pb2
from lance_core.commit.rebase import load_deletion_vector
from lance_core.errors import CorruptFileError
from lance_core.file import DataFileReader
from lance_core.store import ObjectStore
from lance_core.table.fragment import TOMBSTONE, Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.manifest.manifest import WRITER, Manifest, WriterVersion
from lance_core.table.paths import data_key

_BITMAPS_FROM = (0, 8, 15)
"""First version of lance that records the fragments of an index correctly."""


def repaired(store: ObjectStore, manifest: Manifest, base: Manifest) -> Manifest:
    """Repair a manifest that follows a version of an early writer.

    Args:
        store: The dataset's store.
        manifest: The next version.
        base: The version before it.

    Returns:
        The manifest with correct counts and field ids.

    Raises:
        CorruptFileError: A data file or deletion file cannot be read.
    """
    writer = base.writer_version
    if manifest.base_paths:
        return manifest  # early releases had no base paths: a later release made this clone
    if writer is None:
        manifest = replace(manifest, fragments=_listed(_counted(store, manifest, f) for f in manifest.fragments))
    manifest = _with_unique_field_ids(manifest)
    if manifest.indices and (writer is None or _numbers(writer) < _BITMAPS_FROM):
        return manifest
    return replace(manifest, writer_version=WRITER)


def _listed(fragments: Iterable[Fragment]) -> FragmentList:
    """A list of fragments as if it had been read from a manifest: no fragment counts as new."""
    return FragmentList(FragmentList.of(fragments).raw)


def _counted(store: ObjectStore, manifest: Manifest, fragment: Fragment) -> Fragment:
    """The fragment with the numbers that its files show."""
    files, rows = [], fragment.physical_rows
    for file in fragment.files:
        size = file.file_size_bytes or store.head(data_key(file.path)).size
        files.append(replace(file, file_size_bytes=size))
    if not rows and files:
        rows = DataFileReader.open(store, data_key(files[0].path), size=files[0].file_size_bytes).num_rows
    deletion_file = fragment.deletion_file
    if deletion_file is not None and not deletion_file.num_deleted_rows:
        vector = load_deletion_vector(store, manifest, fragment)
        deletion_file = replace(deletion_file, num_deleted_rows=len(vector))
    return replace(fragment, files=tuple(files), physical_rows=rows, deletion_file=deletion_file)


def _with_unique_field_ids(manifest: Manifest) -> Manifest:
    if not any(_doubles(message) for message in manifest.fragments.messages()):
        return manifest
    return replace(manifest, fragments=_listed(_without_idle_fields(fragment) for fragment in manifest.fragments))


def _doubles(fragment: table_pb2.DataFragment) -> set[int]:
    """Field ids that several files of a fragment have."""
    if len(fragment.files) < 2:
        return set()
    seen: set[int] = set()
    doubles: set[int] = set()
    for field_id in (f for file in fragment.files for f in file.fields if f >= 0):
        (doubles if field_id in seen else seen).add(field_id)
    return doubles


def _without_idle_fields(fragment: Fragment) -> Fragment:
    """Replace fields of older data files by the tombstone if a newer file of the fragment has the same field id."""
    seen: set[int] = set()
    newest_first = []
    for file in reversed(fragment.files):
        newest_first.append(replace(file, fields=tuple(TOMBSTONE if f in seen else f for f in file.fields)))
        seen.update(file.fields)
    return replace(fragment, files=tuple(reversed(newest_first))).without_dead_files()


def _numbers(writer: WriterVersion) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in writer.version.split("."))
    except ValueError as error:
        raise CorruptFileError(f"writer version {writer.version!r} is not a version") from error
