"""The proof of an erasure: a second survey of all versions, and a check of every file below the root.

_versions/      the survey has read the manifests; what a commit left that was not finished can have a predicate
data/           the survey has read the files of versions; other files are read by their own schema
data/<name>/    blobs must belong to a data file that a version refers to
_indices/       files must belong to an index of a version
_transactions/  the survey has read those of versions; others must have no predicate
_deletions/     files must belong to a version, or be readable: they hold row offsets and no values
_refs/          tags, branches, claims, and records of moves and computations hold no values of columns
tree/<branch>/  the same folders of a branch
base paths      files that no version refers to, and that may be of this table, must be readable, without rows
other files     cannot be checked, and are reported

A bucket with versioning keeps removed objects: noncurrent versions are reported without being read. So are uploads in
parts that nobody finished: they can hold rows, and no listing of objects shows them. Like a file that nothing refers
to, an upload may be about to become part of a version: it is aborted once it is seven days old, or at once where the
caller guarantees that nobody writes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.commit.versions import load_latest
from lance_core.errors import LanceError, ObjectNotFoundError
from lance_core.file.reader import DataFileReader
from lance_core.maintenance.cleanup.copies import data_file_of, read_records
from lance_core.maintenance.cleanup.plan import UNVERIFIED_AGE
from lance_core.maintenance.compaction.dictionary_values import find_dictionary_columns, has_unused_values
from lance_core.maintenance.erasure.report import ErasureFinding, ErasureReading, ErasureReport
from lance_core.maintenance.erasure.survey import ErasureCondition, ErasureSurvey, MatchCounts, survey_all_versions
from lance_core.store import ObjectMeta, ObjectStore, Upload, open_base
from lance_core.table.deletion import DeletionFileType, DeletionVector
from lance_core.table.operations import Delete
from lance_core.table.paths import (
    BRANCHES_PREFIX,
    CLAIMS_PREFIX,
    COMPUTATIONS_PREFIX,
    DATA_PREFIX,
    DELETIONS_PREFIX,
    HINT_KEY,
    INDICES_PREFIX,
    MOVES_PREFIX,
    TAGS_PREFIX,
    TRANSACTIONS_PREFIX,
    VERSIONS_PREFIX,
    branch_root,
    data_key,
    origin_of,
    parse_manifest_key,
)
from lance_core.table.transaction import Transaction
from lance_core.verbs.expressions.arrow import columns_of, matching
from lance_core.verbs.refs.clones import is_clone_of

_DELETIONS: Final = re.compile(r"_deletions/\d+-\d+-\d+\.(arrow|bin)")
_INDEX: Final = re.compile(r"_indices/([0-9a-f-]{36})/.*")
_BLOB: Final = re.compile(r"data/([^/]+)/[^/]+\.blob")
_REFERENCES: Final = (TAGS_PREFIX, BRANCHES_PREFIX, CLAIMS_PREFIX, MOVES_PREFIX, COMPUTATIONS_PREFIX)
_UNVERIFIED: Final = (
    "nothing refers to it, but a writer may be about to commit it: erase again when it is seven days old, or with "
    "delete_unverified while nobody writes"
)
_UNKNOWN: Final = "no table has a file of this name, so its content cannot be checked: look at it, and remove it"
_LINK: Final = "a link to a folder, or to nothing, which cannot be checked: look at it, and remove it"
_UPLOAD: Final = (
    "was not finished and can hold the rows: erase again when it is seven days old, or with delete_unverified while "
    "nobody writes, which aborts it; abort-multipart-upload of the AWS command line does as well"
)
_DICTIONARIES: Final = (
    "its manifest repeats dictionaries of 0.1 files, which keep values of erased rows: rewrite the table in a later "
    "version of the format"
)
_REASONS: Final = {
    "rows": "its files hold the rows: they were written meanwhile, or cleanup keeps the version for five minutes more "
    "(without delete_unverified): erase again",
    "columns": "the condition cannot be evaluated with its columns: erase by a column that it has",
    "files": "files of it are missing, as after a cleanup that was killed, and it was not removed: erase again",
    "record": "its transaction has the predicate by which rows were deleted, and it was not removed: erase again",
}


def prove(root: ObjectStore, condition: ErasureCondition, counts: MatchCounts, report: ErasureReport) -> ErasureReport:
    """Read all that is left of a dataset; returns the report with the places that can still hold rows.

    Args:
        root: The store of the dataset.
        condition: The erased rows.
        counts: What earlier surveys counted; files without a row are read again.
        report: The report so far, which names the clones and base paths to read as well.
    """
    # The columns by which a row was found can be known by versions alone that are removed now.
    facts = survey_all_versions(root, condition, {key: count for key, count in counts.items() if count})
    inner = tuple(f"{uri}/".removeprefix(f"{root.root}/") for uri in report.bases)  # base paths below the root
    files = {meta.key: meta for meta in root.list("") if not meta.key.startswith(inner)}
    remaining = [*_find_versions(facts), *_find_files(root, facts, files.values())]
    remaining += [
        _finding("unknown", meta.key, _LINK)
        for meta in root.list_owned("")
        if not (meta.key in files or meta.key.startswith(inner))
    ]
    remaining += _find_removed_objects(root)
    remaining += divide_uploads(root, aborts=False)[1]
    for kind, uris in (("clone", report.clones), ("base", report.bases)):
        for uri in uris:
            message = _find_elsewhere(root, facts, kind, uri)
            remaining += [_finding(kind, uri, message)] if message else []
    reading = ErasureReading(
        files=len(files),
        bytes=sum(meta.size for meta in files.values()),
        versions=len(facts.versions),
        branches=len(facts.latest()),
        rows=facts.rows,
    )
    return replace(report, remaining=tuple(remaining), read=reading, proven=not remaining)


def divide_uploads(
    root: ObjectStore, *, of_any_age: bool = False, aborts: bool = True
) -> tuple[list[Upload], list[ErasureFinding]]:
    """The unfinished uploads that an erasure aborts, and the findings about the others; or that they are not known.

    Args:
        root: The store of the dataset.
        of_any_age: Whether nobody writes, so that none of them will be finished.
        aborts: Whether any is aborted.
    """
    before = float("inf") if of_any_age else time.time() - UNVERIFIED_AGE.total_seconds()
    try:
        uploads = list(root.unfinished_uploads())
    except LanceError as error:
        message = f"whether there are unfinished uploads, which can hold the rows, is not known: {error}"
        return [], [_finding("upload", root.root, message)]
    aborted = [upload for upload in uploads if aborts and upload.begun < before]
    findings = []
    for upload in uploads:
        if upload not in aborted:
            begun = f"begun {datetime.fromtimestamp(upload.begun, UTC):%Y-%m-%d %H:%M} UTC"
            findings.append(_finding("upload", upload.key, f"the upload {upload.upload_id}, {begun}, {_UPLOAD}"))
    return aborted, findings


def _finding(kind: str, path: str, message: str) -> ErasureFinding:
    return ErasureFinding(kind=kind, path=path, message=message)


def _find_versions(facts: ErasureSurvey) -> Iterator[ErasureFinding]:
    """The versions that hold rows or traces of them, and the indices that can hold values."""
    indices: dict[str, str] = {}
    for version in facts.versions.values():
        path, manifest = f"{version.branch_label}:{version.number}", version.manifest
        for reason in sorted(version.reasons - {"index"}):
            yield _finding("version", path, _REASONS[reason])
        if manifest.data_storage_version == "0.1" and find_dictionary_columns(manifest.schema):
            yield _finding("version", path, _DICTIONARIES)
        for index in version.suspect:
            indices[f"{INDICES_PREFIX}{index.uuid}/"] = (
                f"the {index.kind} index {index.name!r} of version {path} can hold the rows: build it again with the "
                "library that made it, or drop it, then erase again"
            )
    yield from (_finding("index", path, message) for path, message in indices.items())


def _find_files(root: ObjectStore, facts: ErasureSurvey, files: Collection[ObjectMeta]) -> Iterator[ErasureFinding]:
    """The files below the root that can hold rows, and that no version refers to."""
    prefixes = [f"{branch_root(name)}/" for name in sorted(facts.refs, key=len, reverse=True)]
    referred = facts.referred()
    for meta in files:
        key = meta.key.removeprefix(next((prefix for prefix in prefixes if meta.key.startswith(prefix)), ""))
        index, blob = _INDEX.fullmatch(key), _BLOB.fullmatch(key)
        owner = f"{INDICES_PREFIX}{index[1]}/" if index else f"{DATA_PREFIX}{blob[1]}.lance" if blob else key
        if owner in referred or key == HINT_KEY or key.startswith(_REFERENCES) or parse_manifest_key(key):
            continue
        try:
            if index or blob or key.startswith(VERSIONS_PREFIX):
                yield _finding("index" if index else "data" if blob else "record", meta.key, _UNVERIFIED)
            elif key.startswith(DATA_PREFIX) and key.endswith(".lance"):
                if not _is_without_rows(root, facts.condition, meta.key):
                    yield _finding("data", meta.key, _UNVERIFIED)
            elif key.startswith(TRANSACTIONS_PREFIX):
                if not _is_without_predicate(root.get(meta.key)):
                    yield _finding("record", meta.key, _UNVERIFIED)
            elif not (name := _DELETIONS.fullmatch(key)) or not _is_deletion_file(root.get(meta.key), name[1]):
                yield _finding("unknown", meta.key, _UNKNOWN)
        except ObjectNotFoundError:
            continue  # removed since it was listed


def _is_without_rows(root: ObjectStore, condition: ErasureCondition, path: str) -> bool:
    """Whether a data file that nothing refers to can be read by its own schema, and cannot hold a row.

    No row of it matches, and no dictionary of it has a value that no row has, which may be one of an erased row.
    """
    try:
        reader = DataFileReader.open(root, path)
        expression = condition.build_over(reader.schema)
        columns = reader.schema.project(columns_of(expression))
        if any(pc.any(matching(batch, expression)).as_py() for batch in reader.read(columns)):
            return False
        dictionaries = find_dictionary_columns(reader.schema)
        return not (dictionaries and has_unused_values(reader.read(reader.schema.project(dictionaries))))
    except ObjectNotFoundError:
        raise
    except LanceError:
        return False


def _is_without_predicate(data: bytes | memoryview) -> bool:
    """Whether a transaction that no version refers to can be read, and deletes no rows by a predicate."""
    try:
        operation = Transaction.from_bytes(data).operation
    except LanceError:
        return False
    return not isinstance(operation, Delete) or not operation.predicate


def _is_deletion_file(data: bytes | memoryview, suffix: str) -> bool:
    """Whether a file that nothing refers to holds row offsets, and nothing else."""
    form = DeletionFileType.ARROW if suffix == "arrow" else DeletionFileType.BITMAP
    try:
        rows = DeletionVector.from_bytes(data, form)
    except LanceError:
        return False
    if form is DeletionFileType.BITMAP:
        return rows.to_bytes(form)[0] == bytes(data)
    return bool(pa.ipc.open_file(pa.py_buffer(data)).schema.names == ["row_id"])


def _find_removed_objects(root: ObjectStore) -> Iterator[ErasureFinding]:
    """The bucket if it keeps removed objects, or if the store does not say whether it does."""
    try:
        if not root.keeps_removed_objects():
            return
        message = "the bucket keeps noncurrent versions of removed and replaced objects, which can hold the rows"
    except LanceError as error:
        message = f"whether the bucket keeps noncurrent versions of removed objects is not known: {error}"
    remedy = "remove them (list-object-versions shows them, a lifecycle rule can expire them), then erase again"
    yield _finding("versioning", root.root, f"{message}: {remedy}")


def _find_elsewhere(root: ObjectStore, facts: ErasureSurvey, kind: str, uri: str) -> str:
    """What is wrong with another dataset that shares files with this one, or a base path; empty if it holds no rows."""
    try:
        store = open_base(uri, root.root, root.options)
        latest = load_latest(store)
        forget = f". See that nothing is left there; then clones.release({uri!r}) forgets it"
        if kind == "clone" and latest is not None and not is_clone_of(latest, root.root):
            return f"another dataset is there, and whether the clone is elsewhere is not known{forget}"
        if latest is None:
            if kind == "clone":
                return f"no dataset is there: whether its files hold the rows is not known{forget}"
            return _find_in_base(root, facts, store)
        if not survey_all_versions(store, facts.condition, {}).is_clean():
            return "it holds the rows, or can: erase there too"
        if divide_uploads(store, aborts=False)[1]:
            return "unfinished uploads of it can hold the rows: erase there too"
    except LanceError as error:
        return f"it cannot be read: {error}"
    return ""


def _find_in_base(root: ObjectStore, facts: ErasureSurvey, store: ObjectStore) -> str:
    """What can hold the rows in a base path that is no table; empty if nothing can.

    Files of versions were surveyed, and tables below the base path are other tables. So is the table that has made a
    copy of which this one has no record: `cleanup.copies` removes the record after the copy. Other files are read.
    """
    referred = facts.referred()
    copies = {new for record in read_records(root) for new in record.copies.values()}
    keys = [meta.key for meta in store.list_owned("")]
    tables = {key.partition(f"/{VERSIONS_PREFIX}")[0] for key in keys if f"/{VERSIONS_PREFIX}" in key}
    left = []
    for key in [*keys, *(upload.key for upload in store.unfinished_uploads())]:
        parts, name = key.split("/"), data_file_of(key.removeprefix(DATA_PREFIX))
        index = _INDEX.fullmatch(key)
        owners = {
            key,
            f"{DELETIONS_PREFIX}{key}",
            f"{INDICES_PREFIX}{index[1]}/" if index else "",
            data_key(name or key),
        }
        is_copy = name is not None and origin_of(name) != name and name not in copies
        if is_copy or any("/".join(parts[:end]) in tables for end in range(1, len(parts))):
            continue
        if "#" not in key and not owners.isdisjoint(referred):
            continue
        with suppress(ObjectNotFoundError):  # of an upload
            if key.endswith(".lance") and _is_without_rows(store, facts.condition, key):
                continue
        left.append(key)
    if left:
        names = ", ".join(sorted(left)[:3]) + (", ..." if len(left) > 3 else "")
        return (
            f"{len(left)} file{'s' * (len(left) > 1)} or uploads there can hold the rows, and no version of this table "
            f"refers to them ({names}): remove those that no other table has, then erase again; parts of moves that "
            "were killed are removed after seven days, or with delete_unverified while nobody writes"
        )
    return next((finding.message for finding in _find_removed_objects(store)), "")
