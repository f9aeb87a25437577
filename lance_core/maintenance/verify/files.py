"""Checks that all files of a version agree with its manifest, and that its history, tags and branches can be read.

Only the metadata at the end of a data file is read, and on request its pages. A changed value that can be decoded is
not found, as the format has no checksums.

A branch is missing if something refers to it, but it has no file in `_refs/branches/`.

Each version of the history must be readable, and can have been made from the version before it. A writer that does not
check the history after its commit can have committed a version under a number that cleanup had freed. No later version
was made from such a version: its rows were never part of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from lance_core.commit.relation import carries_on
from lance_core.commit.versions import find_naming_faults, list_version_locations, load_manifest, load_transaction
from lance_core.errors import CorruptFileError, LanceError, ObjectNotFoundError, UnsupportedError, VersionNotFoundError
from lance_core.file.reader import DataFileReader
from lance_core.index.kinds.registry import is_supported
from lance_core.index.query.conditions import IsNull
from lance_core.index.selection.candidates import view_of
from lance_core.maintenance.compaction.misread_pages import find_misread_problems
from lance_core.schema import arrow_type_of
from lance_core.store import ObjectStore, has_object
from lance_core.table.fragment import DataFile, Fragment, data_file_version
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import INDICES_PREFIX, branch_ref_key, transaction_key
from lance_core.table.refs import BranchRef, TagRef
from lance_core.table.rowids import find_row_sequence_problems
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.context.references import check_references, dataset_store
from lance_core.verbs.inspect.indices import find_index_file_problems
from lance_core.verbs.inspect.unique_row_ids import row_id_problems
from lance_core.verbs.inspect.validation import check_columns, manifest_problems
from lance_core.verbs.refs.clones import find_missing_bases
from lance_core.verbs.refs.sweep import is_made_tag

READ_AHEAD: Final = 8
"""Fragments that are checked in parallel."""

_LISTED: Final = 1024
"""Fragments that are queued for a check at a time, as a version can have millions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem that `verify` found.

    Attributes:
        version: The version that it was found in.
        fragment_id: The fragment; None if the problem is not about a fragment.
        path: The file; empty if the problem is not about a file.
        message: What is wrong.
    """

    version: int
    fragment_id: int | None
    path: str
    message: str


def verify(dataset: Handle, progress: Callable[[int, int], None] | None = None, *, rows: bool = False) -> list[Problem]:
    """Check all files of the handle's version, the history of its branch, and all tags and branches of the table.

    Args:
        dataset: The handle.
        progress: Is called with the number of fragments that were checked and the number of all fragments.
        rows: Whether all pages of all data files are decoded.

    Returns:
        The problems; empty if there are none.
    """
    snapshot = dataset.snapshot
    fragments = snapshot.manifest.fragments
    problems = [
        Problem(version=snapshot.manifest.version, fragment_id=None, path="", message=message)
        for message in manifest_problems(snapshot.manifest)
    ]
    for count, fragment_problems in enumerate(_check_fragments(snapshot, fragments, rows=rows), 1):
        problems += fragment_problems
        if progress is not None:
            progress(count, len(fragments))
    for fragment_id, message in row_id_problems(snapshot):
        problems.append(Problem(version=snapshot.manifest.version, fragment_id=fragment_id, path="", message=message))
    for index in snapshot.manifest.indices:
        problems += _check_index(snapshot, index)
    problems += _check_transaction(snapshot)
    for path, message in find_missing_bases(snapshot.store, snapshot.manifest):
        problems.append(Problem(version=snapshot.manifest.version, fragment_id=None, path=path, message=message))
    for version, path, message in find_history_problems(snapshot.store):
        problems.append(Problem(version=version, fragment_id=None, path=path, message=message))
    root = dataset_store(snapshot.store, dataset.branch)
    tags, branches, invalid = check_references(root)
    for path, message in (*invalid.items(), *find_missing_branches(root, tags, branches, invalid)):
        problems.append(Problem(version=snapshot.manifest.version, fragment_id=None, path=path, message=message))
    return problems


def _check_fragments(snapshot: Snapshot, fragments: Sequence[Fragment], *, rows: bool) -> Iterator[list[Problem]]:
    """Yield the problems of each fragment; fragments with files are checked in parallel."""

    def check(fragment: Fragment) -> list[Problem]:
        return list(_check_fragment(snapshot, fragment, rows=rows))

    with ThreadPool(READ_AHEAD) as pool:
        for start in range(0, len(fragments), _LISTED):
            window = fragments[start : start + _LISTED]
            checked = pool.map(check, [fragment for fragment in window if _has_files(fragment)])
            for fragment in window:
                yield next(checked) if _has_files(fragment) else check(fragment)


def _has_files(fragment: Fragment) -> bool:
    return bool(fragment.files) or fragment.deletion_file is not None


def _check_fragment(snapshot: Snapshot, fragment: Fragment, *, rows: bool) -> Iterator[Problem]:
    def problem(path: str, message: str) -> Problem:
        return Problem(version=snapshot.manifest.version, fragment_id=fragment.id, path=path, message=message)

    for file in fragment.files:
        for message in _check_file(snapshot, fragment, file, rows=rows):
            yield problem(file.path, message)
    if fragment.deletion_file is not None:
        path = fragment.deletion_file.key(fragment.id)
        try:
            deleted = snapshot.deleted_rows(fragment)  # as a bitmap: a small file can delete billions of rows
        except LanceError as error:
            yield problem(path, str(error))
        else:
            if fragment.num_deleted_rows and len(deleted) != fragment.num_deleted_rows:
                yield problem(path, f"deletes {len(deleted)} rows, the manifest says {fragment.num_deleted_rows}")
            if deleted and fragment.physical_rows and deleted.max() >= fragment.physical_rows:
                yield problem(path, f"deletes row {deleted.max()} of {fragment.physical_rows}")
    for message in find_row_sequence_problems(fragment):
        yield problem("", message)


def _check_file(snapshot: Snapshot, fragment: Fragment, file: DataFile, *, rows: bool) -> Iterator[str]:
    try:
        store, key = snapshot.data_file(file)
        reader = DataFileReader.open(store, key, size=file.file_size_bytes or None)
        reader.check()
        check_columns(file, reader, snapshot.manifest.schema)
    except ObjectNotFoundError:
        yield "is missing"
        return
    except LanceError as error:
        yield str(error)
        return
    if fragment.physical_rows and reader.num_rows != fragment.physical_rows:
        yield f"has {reader.num_rows} rows, the manifest says {fragment.physical_rows}"
    numbers = (file.file_major_version, file.file_minor_version)
    try:
        if any(numbers) and data_file_version(*numbers) != reader.version.value:  # 0.3 is an early number of 2.0
            yield f"is of version {reader.version.value}, the manifest says {numbers[0]}.{numbers[1]}"
        yield from find_misread_problems(file, reader, snapshot.manifest.schema)
    except LanceError as error:
        yield str(error)
    if rows:
        yield from _check_pages(reader)


def _check_pages(reader: DataFileReader) -> Iterator[str]:
    """Decode all pages of a file, column by column."""
    for field in reader.schema.fields:
        try:
            for batch in reader.read(replace(reader.schema, fields=(field,))):
                batch.validate(full=True)
        except (LanceError, pa.ArrowInvalid) as error:
            yield f"column {field.name!r} cannot be read: {error}"


def _check_index(snapshot: Snapshot, index: IndexMetadata) -> Iterator[Problem]:
    problems = list(find_index_file_problems(snapshot, index))
    for path, message in problems:
        yield Problem(version=snapshot.manifest.version, fragment_id=None, path=path, message=message)
    if not problems:
        yield from _check_content(snapshot, index)


def _check_content(snapshot: Snapshot, index: IndexMetadata) -> Iterator[Problem]:
    """Read an index of a known kind, and check that it fits the fragments."""
    if not is_supported(index, snapshot.manifest.schema):
        return
    field = snapshot.manifest.schema.by_id()[index.fields[0]]
    view = view_of(snapshot.manifest)
    try:
        content = snapshot.indices.read(index, arrow_type_of(field))
        content.answer(IsNull((field.name,)), True, view, view.covered(index.covered_fragments() or BitMap()))
    except LanceError as error:
        path = f"{INDICES_PREFIX}{index.uuid}"
        message = f"cannot be used: {error}"
        yield Problem(version=snapshot.manifest.version, fragment_id=None, path=path, message=message)


def _check_transaction(snapshot: Snapshot) -> Iterator[Problem]:
    """Check that the transaction file exists, unless the manifest itself holds the transaction."""
    manifest = snapshot.manifest
    if not manifest.transaction_file or manifest.transaction_bytes is not None:
        return
    path = transaction_key(manifest.transaction_file)
    if not has_object(snapshot.store, path):
        yield Problem(version=manifest.version, fragment_id=None, path=path, message="is missing")


def find_missing_branches(
    root: ObjectStore, tags: Mapping[str, TagRef], branches: Mapping[str, BranchRef], problems: Container[str]
) -> Iterator[tuple[str, str]]:
    """Yield the key of the file of each branch that is missing, and who needs it.

    A deletion is rejected while another branch or a tag refers to the branch, so that the file was lost. What was made
    with the branch, such as the tag of its fork, goes with it.

    Args:
        root: The store of the dataset.
        tags: Its valid tags, by name.
        branches: Its valid branches, by name.
        problems: The keys of files that are torn or invalid.
    """
    needs = [
        (tag.branch, f"the tag {name} names version {tag.version} of it; tags.delete({name!r}) gives that version up")
        for name, tag in tags.items()
        if not is_made_tag(name, tag)
    ]
    needs += [
        (ref.parent_branch, f"the branch {name} was forked from it; branches.discard({name!r}) gives that branch up")
        for name, ref in branches.items()
    ]
    for branch, reason in needs:
        key = "" if branch is None else branch_ref_key(branch)
        if branch is not None and branch not in branches and key not in problems:
            yield key, f"{root.root}/{key}: this file is missing, and {reason}"


_MANIFESTS_AHEAD: Final = 16
"""Manifests that are read in parallel."""

_WINDOW: Final = 128
"""Manifests that are held in memory at a time."""


def find_history_problems(store: ObjectStore) -> Iterator[tuple[int, str, str]]:
    """Yield the number, the manifest key and the fault of each version that is torn, named twice or not of the history.

    Versions that were cleaned up, and versions with unknown features, are skipped.

    Args:
        store: The store of the dataset, or of a branch.
    """
    located = list(list_version_locations(store))
    yield from find_naming_faults(store, located)
    versions = sorted({version for version, _ in located})
    with ThreadPool(_MANIFESTS_AHEAD) as pool:
        before: Manifest | None = None
        for start in range(0, len(versions), _WINDOW):
            for after in pool.map(lambda version: _load(store, version), versions[start : start + _WINDOW]):
                if isinstance(after, _Torn):
                    yield after.version, "", after.fault
                elif after is not None:
                    if before is not None and not _can_follow(store, before, after):
                        yield before.version, _key(before), _find_fault(before, after)
                    before = after


def _can_follow(store: ObjectStore, before: Manifest, after: Manifest) -> bool:
    if after.version > before.version + 1:
        return True  # what was in between is not known
    made_by = load_transaction(store, after)
    return made_by is None or carries_on(before, after, made_by)


@dataclass(frozen=True, slots=True)
class _Torn:
    """A version whose manifest cannot be read."""

    version: int
    fault: str


def _load(store: ObjectStore, version: int) -> Manifest | _Torn | None:
    try:
        return load_manifest(store, version)
    except CorruptFileError as error:
        return _Torn(version, f"{error}; cleanup_old_versions(versions=[{version}]) removes the version")
    except (VersionNotFoundError, UnsupportedError):
        return None  # removed by a cleanup, or of a later writer


def _key(manifest: Manifest) -> str:
    return "" if manifest.location is None else manifest.location.key


def _find_fault(before: Manifest, after: Manifest) -> str:
    return (
        f"version {after.version} was not made from it: it was committed under a number that cleanup had freed, and "
        f"its change was never part of the table; cleanup_old_versions(versions=[{before.version}]) removes it"
    )
