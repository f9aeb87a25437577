"""The copies of data files that moves made in base paths, and which of them no version needs any more.

A move writes `_refs/moves/<uuid>.json` before its first copy: the base path, and the new name of each file. A base path
can be shared by tables: only files that a record names are removed there. A copy is removed once no version of any
branch names it, unless the newest version still has the file that was copied: then another run may be about to commit
it, or will finish the move. After seven days it is removed even then, and so is the staging file of a copy that was
killed, `<new name>#<random>`, whatever became of the copy.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from lance_core.errors import CorruptFileError, ObjectNotFoundError, StoreError
from lance_core.maintenance.cleanup.listed_versions import load_all
from lance_core.maintenance.cleanup.references import References
from lance_core.store import ObjectMeta, ObjectStore, open_base, put_durably
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import MOVES_PREFIX, VERSIONS_PREFIX, is_detached, origin_of
from lance_core.verbs.context.references import read_branches, store_of_branch

_logger = logging.getLogger(__name__)

_UNFINISHED_S: Final = 7 * 86_400
"""Age, in seconds, from which nobody finishes a move."""

_Listings = dict[tuple[str, str], list[tuple[ObjectMeta, str]]]

_OF_A_DATA_FILE: Final = re.compile(r"([^/]+?)(?:\.lance|/[^/]+\.blob)(?:#\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """The files that a move copies, or has copied.

    Attributes:
        key: The key of the record below the table's root.
        base: The path of the base; None for the table's own folder.
        prefix: The prefix of the keys of data files there.
        blobs: Whether data files can have files of blobs.
        files: The old names of data files, each with the new one.
        root: The root of the table that moved them: a copy of its folder has the record as well.
        modified: When it was written, in seconds since 1970.
    """

    key: str
    base: str | None
    prefix: str
    blobs: bool
    files: Mapping[str, str]
    root: str = ""
    modified: float = 0.0

    def write(self, store: ObjectStore) -> None:
        """Write the record, which must survive a power loss."""
        names = ("base", "prefix", "blobs", "files", "root")
        put_durably(store, self.key, json.dumps({name: getattr(self, name) for name in names}).encode())

    @property
    def can_be_finished(self) -> bool:
        """Whether another run may finish the move: no cleanup regards it as given up before that run is done."""
        return time.time() - self.modified < _UNFINISHED_S / 2

    @property
    def copies(self) -> dict[str, str]:
        """The files that have the names that moves give: a record may be forged."""
        return {old: new for old, new in self.files.items() if origin_of(new) != new}

    def target(self, main: ObjectStore) -> ObjectStore:
        """The store of the copies."""
        return main if self.base is None else open_base(self.base, main.root, main.options)


def read_records(main: ObjectStore) -> list[MoveRecord]:
    """The records of all moves of a table.

    Raises:
        CorruptFileError: A record cannot be read.
    """
    records = []
    for meta in main.list(MOVES_PREFIX):
        try:
            record = MoveRecord(key=meta.key, modified=meta.modified, **json.loads(bytes(main.get(meta.key))))
            records.append(replace(record, files=dict(record.files)))
        except ObjectNotFoundError:  # another cleanup has removed it
            continue
        except (ValueError, TypeError) as error:
            raise CorruptFileError(
                f"{main.root}/{meta.key} is no record of a move ({error}): remove it, and by hand the files that the "
                "table moved and does not name"
            ) from error
    return records


def list_unused_copies(main: ObjectStore, manifest: Manifest, *, of_any_age: bool = False) -> dict[str, list[str]]:
    """The new names of files that are not needed any more, by the key of the record of their move.

    Args:
        main: The store of the dataset.
        manifest: A version of main. If it needs all copies, no other version is read.
        of_any_age: Whether no other process uses the dataset, so that nobody finishes a move.
    """
    records = read_records(main)
    list_unused = partial(_list_unused, of_any_age=of_any_age)
    names = {file.path for fragment in manifest.fragments for file in fragment.files} if records else set[str]()
    if not any(map(partial(list_unused, names, names), records)):
        return {}
    branches, torn = read_branches(main)
    used, newest = References(), References()
    for name in (None, *branches):
        store = store_of_branch(main, name)
        _, manifests = load_all(store, partial(_list_versions, store))
        if torn or any(manifest.fault for manifest in manifests.values()):
            return {}  # what these need is unknown
        for each in manifests.values():
            used.add_borrowed(each, all_files=True)
        if name is None:
            last = max(number for number in manifests if not is_detached(number))
            newest.add_borrowed(manifests[last], all_files=True)
    unused = {record.key: list_unused(used.data_files, newest.data_files, record) for record in records}
    return {key: copies for key, copies in unused.items() if copies}


def _list_unused(used: Collection[str], newest: Collection[str], record: MoveRecord, *, of_any_age: bool) -> list[str]:
    """The new names of a record's files that no version has, if nobody finishes the move of the file.

    Args:
        used: The data files of all versions.
        newest: The data files of the newest version.
        record: The record.
        of_any_age: As for `list_unused_copies`.
    """
    is_stale = of_any_age or _is_stale(record.modified)
    return [new for old, new in record.copies.items() if new not in used and (is_stale or old not in newest)]


def _is_stale(modified: float) -> bool:
    return time.time() - modified > _UNFINISHED_S


def _list_versions(store: ObjectStore) -> dict[str, ObjectMeta]:
    return {meta.key: meta for meta in store.list(VERSIONS_PREFIX)}


def remove_unused_copies(
    main: ObjectStore, manifest: Manifest, *, of_any_age: bool = False
) -> tuple[int, int, list[str]]:
    """Remove the files that `list_unused_copies` lists, with its arguments, and old staging files of copies.

    Returns:
        The number of data files, the bytes of all files, and one line for each file that could not be removed.
    """
    num_files, num_bytes, failures, listings = 0, 0, list[str](), _Listings()
    unused = list_unused_copies(main, manifest, of_any_age=of_any_age)
    for record in read_records(main):
        store, names = record.target(main), unused.get(record.key, [])
        copies = {meta.key: meta for meta in _find_files(store, record, names)}
        staged = _find_staged(store, record, listings)
        metas = copies | {
            meta.key: meta for meta, new in staged if of_any_age or new in names or _is_stale(meta.modified)
        }
        errors: Mapping[str, StoreError] = store.delete_many(list(metas)) if metas else {}
        failures += [f"{store.root}/{key}: {error}" for key, error in errors.items()]
        num_files += sum(key not in errors and key.endswith(".lance") for key in metas)
        num_bytes += sum(meta.size for key, meta in metas.items() if key not in errors)
        left = {old: new for old, new in record.files.items() if new not in names}
        if names and not errors and not left:
            main.delete(record.key)
        elif names and not errors:
            replace(record, files=left).write(main)
    return num_files, num_bytes, failures


def remove_copies(main: ObjectStore) -> None:
    """Remove all copies in base paths, before the table is dropped.

    Copies of a table whose folder was moved or copied stay, as the other folder may need them; the log names them.

    Raises:
        CorruptFileError: A record cannot be read.
        StoreError: A copy cannot be removed.
    """
    listings = _Listings()
    for record in read_records(main):
        try:
            store = record.target(main)
            files = [] if record.base is None else list(_find_files(store, record, record.copies.values()))
            files += (meta for meta, _ in _find_staged(store, record, listings))
            if files and record.root != main.root:
                message = "%s: %d copies of moved files stay in %s, as the table lay at %r when they were made"
                _logger.warning(message, main.root, len(files), store.root, record.root)
                continue
            for error in (store.delete_many([meta.key for meta in files]) if files else {}).values():
                raise error
        except StoreError as error:
            raise StoreError(
                f"copies of moved files in {record.base} could not be removed: {error}. Drop the table again, or "
                f"remove {main.root}/{record.key} before to leave them there"
            ) from error


def _find_files(store: ObjectStore, record: MoveRecord, names: Iterable[str]) -> Iterator[ObjectMeta]:
    """The copies of data files, and of their files of blobs, as far as they exist."""
    for name in names:
        key = record.prefix + name
        yield from store.list(f"{key.removesuffix('.lance')}/") if record.blobs else ()
        try:
            yield store.head(key)
        except ObjectNotFoundError:  # the move was killed before it
            continue


def _find_staged(store: ObjectStore, record: MoveRecord, listings: _Listings) -> Iterator[tuple[ObjectMeta, str]]:
    """The staging files of copies, as writers that were killed leave them, each with the name of the copy.

    Args:
        store: The store of the copies.
        record: The record of their move.
        listings: The staging files by base path and prefix, which is listed once for all records; grows.
    """
    if record.base is None or store.put_is_a_request:
        return  # those in the table's own folder go with its ordinary cleanup; object storage has none
    base_and_prefix = (record.base, record.prefix)
    if base_and_prefix not in listings:
        staged = (meta for meta in store.list_owned(record.prefix) if "#" in meta.key)
        names = ((meta, data_file_of(meta.key.removeprefix(record.prefix))) for meta in staged)
        listings[base_and_prefix] = [(meta, name) for meta, name in names if name is not None]
    copies = set(record.copies.values()) if listings[base_and_prefix] else set[str]()
    yield from ((meta, name) for meta, name in listings[base_and_prefix] if name in copies)


def data_file_of(path: str) -> str | None:
    """The data file to which a file in a base path belongs: itself, a staging file of it, or a file of its blobs."""
    match = _OF_A_DATA_FILE.fullmatch(path)
    return None if match is None else f"{match[1]}.lance"
