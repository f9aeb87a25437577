"""Files that a verb wrote before its commit: deleted again if the commit fails, or later on request."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import Final

from lance_core.arguments import checked
from lance_core.commit.conflict import AffectedRows
from lance_core.commit.loop import commit_change
from lance_core.commit.records import Change, Commit, Lost, committed_or_raise
from lance_core.commit.versions import raise_if_dropped
from lance_core.errors import InvalidInputError, LanceError, OutcomeUnknownError, StoreError
from lance_core.file.container import blob_folder
from lance_core.store import ObjectStore, PendingWrites, note_begun, open_store, remove_leftovers
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Operation
from lance_core.table.paths import DATA_PREFIX, INDICES_PREFIX, data_key
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot

INTERRUPTED_S: Final = 2.0
"""Seconds that the removal of files may take while an interruption is handled."""

_logger = logging.getLogger(__name__)


def remove_files(files: Collection[tuple[ObjectStore, str]]) -> None:
    """Delete files, and the blob files of data files; what cannot be deleted is left to cleanup.

    While an interruption is handled (Ctrl-C, a terminated step), this stops after `INTERRUPTED_S`, so that the process
    ends soon; cleanup removes the files that are left.

    Args:
        files: The store and the key of each file.
    """
    error = sys.exception()
    hurried = error is not None and not isinstance(error, Exception)
    until = time.monotonic() + INTERRUPTED_S
    for number, (store, key) in enumerate(files):
        if hurried and time.monotonic() > until:
            _logger.warning("%s: %d files were left behind; cleanup removes them", store.root, len(files) - number)
            return
        remove_leftovers(store, [key])
        if key.endswith(".lance") and not key.startswith("_"):
            _remove_blobs(store, key)
        elif key.startswith(INDICES_PREFIX):
            store.remove_empty_folders(key.rpartition("/")[0])


def _remove_blobs(store: ObjectStore, key: str) -> None:
    try:
        blobs = [meta.key for meta in store.list_owned(blob_folder(key))]
        remove_leftovers(store, blobs)
        if blobs:
            store.remove_empty_folders(key.removesuffix(".lance"))
    except StoreError as error:
        _logger.info("%s/%s may have left blobs behind: %s", store.root, key, error)


@dataclass(slots=True)
class UncommittedFiles:
    """Files that were written for a commit, and that no version refers to yet.

    Attributes:
        snapshot: The version that the commit is based on.
        pending: The pending writes, which the commit waits for; None if each file is durable once it is written.
    """

    snapshot: Snapshot
    pending: PendingWrites | None = None
    _files: list[tuple[ObjectStore, str]] = field(default_factory=list)

    def add(self, store: ObjectStore, key: str) -> None:
        """Add a file that was written just now, at once."""
        note_begun(key)
        self._files.append((store, key))

    def add_data_file(self, file: DataFile) -> None:
        """Add a data file, whose writer has noted when it began."""
        self._files.append(self.snapshot.data_file(file))

    def add_fragments(self, fragments: Iterable[Fragment]) -> None:
        """Add the data files of new fragments."""
        for fragment in fragments:
            for file in fragment.files:
                self.add_data_file(file)

    def commit(
        self,
        operation: Operation,
        affected_rows: AffectedRows | None = None,
        properties: Mapping[str, str] | None = None,
        options: Commit | None = None,
    ) -> Manifest:
        """Commit an operation that refers to the files, based on the version `snapshot`.

        Args:
            operation: The change.
            affected_rows: Rows that the operation removes, as offsets by fragment id.
            properties: Properties of the transaction.
            options: How to commit.

        Raises:
            CommitConflictError: Another writer's commit conflicts with this one.
            ObjectNotFoundError: A file was deleted, such as by a cleanup, as the verb took longer than seven days.
        """
        base = self.snapshot.manifest
        change = Change(
            transaction=Transaction(read_version=base.version, operation=operation, properties=dict(properties or {})),
            base=base,
            affected_rows=affected_rows,
            new_files=self.keys,
            pending=self.pending,
        )
        outcome = commit_change(self.snapshot.store, change, options=options)
        if not isinstance(outcome, Lost):
            self._files.clear()  # a version refers to them from now on, or may do so
        return committed_or_raise(outcome).manifest

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the files that lie in the store of the dataset itself."""
        own_store = self.snapshot.store
        return tuple(key for store, key in self._files if store is own_store)

    def discard(self) -> None:
        """Delete the files; while an interruption is handled, this ends after a short time."""
        if self.pending is not None:
            self.pending.stop()
        remove_files(self._files)
        self._files.clear()


@contextmanager
def collecting_files(snapshot: Snapshot) -> Iterator[UncommittedFiles]:
    """Collect the files that the body writes, and delete them if the body raises; at the end all files are durable.

    The files are kept if the outcome of the commit is unknown, for instance after an interruption: a version may refer
    to them, and cleanup removes unreferenced files.
    """
    pending = PendingWrites()
    files = UncommittedFiles(snapshot, pending)
    try:
        yield files
        pending.wait()
    except OutcomeUnknownError:
        raise
    except BaseException as error:
        files.discard()
        if isinstance(error, LanceError):
            raise_if_dropped(snapshot.store, snapshot.manifest, error)
        raise


@checked
def delete_uncommitted_files(
    uri: str | PathLike[str],
    *,
    file_prefix: str,
    keep: Collection[str] = (),
    index_segments: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Delete the data files of one write, except those that its commit uses; or its index segments.

    Attempts of a writer that was killed leave files that nobody else knows of. Only the caller can know that no commit
    will refer to them: the write is over, and its outcome is known.

    Args:
        uri: The dataset's root.
        file_prefix: Start of the names of the write's files (`FragmentWriter`), at least 16 characters, so that no
            other write shares it by chance.
        keep: Names of files to keep: `DataFile.path` of the committed fragments; of index segments, the `uuid` as a
            string.
        index_segments: Delete index segments instead of data files: those whose `uuid`, as a string, starts with
            `file_prefix`.
        storage_options: Credentials and options of the storage, under object_store's names.

    Returns:
        The number of files that were deleted.

    Raises:
        InvalidInputError: The prefix is too short.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> writer = lance.FragmentWriter("t.lance", table.schema, file_prefix="0" * 32)
        >>> writer.write(pa.table({"id": [4]}))
        >>> fragments = writer.finish()
        >>> lance.delete_uncommitted_files("t.lance", file_prefix="0" * 32)
        1
    """
    if len(file_prefix) < 16:
        raise InvalidInputError(
            f"file_prefix {file_prefix!r} is too short to distinguish one write from all others; it needs at least 16 "
            "characters"
        )
    store = open_store(uri, storage_options)
    kept_keys = set[str]() if index_segments else {data_key(name) for name in keep}
    folders = (
        tuple(f"{INDICES_PREFIX}{name}/" for name in keep) if index_segments else tuple(map(blob_folder, kept_keys))
    )
    folder = INDICES_PREFIX if index_segments else DATA_PREFIX
    keys = (meta.key for meta in store.list_owned(folder + file_prefix))
    leftovers = [key for key in keys if key not in kept_keys and not key.startswith(folders)]
    for key in leftovers:
        store.delete(key)
    return len(leftovers)
