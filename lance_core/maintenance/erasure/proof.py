"""The proof of an erasure: a second survey of all versions, and a check of every file below the root.

_versions/      the survey has read the manifests; no file may mention the condition
data/           the survey has read the files of versions; other files are read by their own schema; the schema in a
                file may not mention the condition
data/<name>/    blobs must belong to a data file that a version refers to
_indices/       files must belong to an index of a version
_transactions/  no file may mention the condition
_deletions/     files must belong to a version, or be readable: they hold row offsets and no values
_refs/          no file may mention the condition
tree/<branch>/  the same folders of a branch
other files     cannot be checked, and are reported

A bucket with versioning keeps removed objects: noncurrent versions are reported without being read. So are uploads in
parts that nobody finished.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.commit import load_latest
from lance_core.errors import LanceError, ObjectNotFoundError
from lance_core.file.reader import DataFileReader
from lance_core.maintenance.compaction.dictionary_values import dictionary_columns, has_unused_values
from lance_core.maintenance.erasure.condition import ErasureCondition
from lance_core.maintenance.erasure.names import Columns, Node
from lance_core.maintenance.erasure.report import ErasureFinding, ErasureReading, ErasureReport
from lance_core.maintenance.erasure.survey import ErasureSurvey, survey
from lance_core.maintenance.erasure.uploads import upload_findings
from lance_core.store import ObjectStore, open_base
from lance_core.table.deletion import DeletionFileType, DeletionVector
from lance_core.table.paths import (
    DATA_PREFIX,
    DELETIONS_PREFIX,
    HINT_KEY,
    INDICES_PREFIX,
    REFS_PREFIX,
    TRANSACTIONS_PREFIX,
    TREE_PREFIX,
    VERSIONS_PREFIX,
)
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.references import TableRefs, read_branches, reject_torn
from lance_core.verbs.expressions.arrow import columns_of, matching

__all__ = ["prove"]

_DELETIONS: Final = re.compile(r"_deletions/\d+-\d+-\d+\.(arrow|bin)")
_UUID: Final = re.compile(r"[0-9a-f-]{36}")
_BLOB: Final = re.compile(r"data/([^/]+)/[^/]+\.blob")
_RECORDS: Final = (VERSIONS_PREFIX, TRANSACTIONS_PREFIX, REFS_PREFIX)
_UNVERIFIED: Final = (
    "nothing refers to it, but a writer may be about to commit it: erase again when it is seven days old, or with "
    "delete_unverified while nobody writes"
)
_UNKNOWN: Final = "no table has a file of this name, so its content cannot be checked: look at it, and remove it"
_SCHEMA: Final = (
    "the metadata or a name in its schema mentions a value of the condition: change those of the columns and of the "
    "dataset, then erase again, which rewrites the file"
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
    "record": "its manifest, its transaction or the metadata in a data file mentions a value of the condition: change "
    "the configuration, the metadata or the names that contain it, then erase again",
}


def prove(
    table: TableRefs, condition: ErasureCondition, report: ErasureReport, columns: Mapping[Node, Columns]
) -> tuple[tuple[ErasureFinding, ...], ErasureReading]:
    """Read all that is left of a dataset; returns the places that can still hold rows, and the counts of what was read.

    Args:
        table: The references of the dataset.
        condition: The erased rows.
        report: The report so far, which names the clones and base paths to read as well.
        columns: The columns of the condition by version, from an earlier survey: its versions may be deleted now.
    """
    facts = _surveyed(table.root, condition, columns)
    proof = _PlaceCollector(root=table.root, condition=condition, facts=facts)
    proof.versions()
    proof.files()
    proof.removed_objects()
    proof.remaining += upload_findings(table.root)
    for kind, uris in (("clone", report.clones), ("base", report.bases)):
        for uri in uris:
            proof.elsewhere(kind, uri)
    reading = ErasureReading(
        files=proof.count,
        bytes=proof.size,
        versions=sum(len(line.versions) for line in facts.lines),
        branches=len(facts.lines),
        rows=facts.rows,
    )
    return tuple(proof.remaining), reading


def _surveyed(
    root: ObjectStore, condition: ErasureCondition, columns: Mapping[Node, Columns] | None = None
) -> ErasureSurvey:
    refs, torn = read_branches(root)
    reject_torn(torn.values())
    return survey(root, refs, condition, columns=columns)


@dataclass(slots=True)
class _PlaceCollector:
    """Collects the files and versions that can still hold rows."""

    root: ObjectStore
    condition: ErasureCondition
    facts: ErasureSurvey
    remaining: list[ErasureFinding] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def _add(self, kind: str, path: str, message: str) -> None:
        self.remaining.append(ErasureFinding(kind=kind, path=path, message=message))

    def versions(self) -> None:
        """Add the versions that hold rows or traces of them, and indices that can hold values."""
        indices: dict[str, str] = {}
        for line in self.facts.lines:
            for number, version in sorted(line.versions.items()):
                path = f"{line.name}:{number}"
                for reason in sorted(version.reasons - {"index"}):
                    self._add("version", path, _REASONS[reason])
                if version.has_dictionaries:
                    self._add("version", path, _DICTIONARIES)
                for index in version.suspect:
                    indices[f"{INDICES_PREFIX}{index.uuid}/"] = (
                        f"the {index.kind} index {index.name!r} of version {path} can hold the rows: build it again "
                        "with the library that made it, or drop it, then erase again"
                    )
        for path, message in indices.items():
            self._add("index", path, message)

    def files(self) -> None:
        """Account for every file below the root."""
        names = sorted((line.branch for line in self.facts.lines if line.branch is not None), key=len, reverse=True)
        prefixes = [f"{TREE_PREFIX}{name}/" for name in names]
        files = {meta.key: meta for meta in self.root.list("")}
        for meta in self.root.list_owned(""):
            if meta.key not in files:
                message = "a link to a folder, or to nothing, which cannot be checked: look at it, and remove it"
                self._add("unknown", meta.key, message)
        for meta in files.values():
            self.count += 1
            self.size += meta.size
            prefix = next((branch_prefix for branch_prefix in prefixes if meta.key.startswith(branch_prefix)), "")
            key = meta.key.removeprefix(prefix)
            try:
                problem = self._problem(meta.key, key)
            except ObjectNotFoundError:
                continue  # removed since it was listed
            if self.condition.is_in_bytes(meta.key.encode()):
                folder = meta.key.rpartition("/")[0]
                self._add("record", f"{folder}/…", "the name of a file holds a string of the condition")
            if problem is not None:
                self._add(problem[0], meta.key, problem[1])

    def _problem(self, path: str, key: str) -> tuple[str, str] | None:
        """The kind of a file, and why it can hold rows; None if it cannot.

        Args:
            path: Its key below the root.
            key: Its key below the root of its branch.
        """
        if key.startswith(DATA_PREFIX):
            blob = _BLOB.fullmatch(key)
            owner = f"{DATA_PREFIX}{blob[1]}.lance" if blob else key
            if owner in self.facts.read:  # read with its versions
                return ("record", _SCHEMA) if self.facts.mentions.get(key) else None
            if blob is None and not key.endswith(".lance"):
                return "unknown", _UNKNOWN
            return None if blob is None and self._is_without_rows(path) else ("data", _UNVERIFIED)
        if key.startswith(INDICES_PREFIX):
            index = key.split("/")[1]
            if index in self.facts.indices:
                return None
            return ("index", _UNVERIFIED) if _UUID.fullmatch(index) else ("unknown", _UNKNOWN)
        if key.startswith(DELETIONS_PREFIX):
            return None if key in self.facts.read or self._is_deletion_file(path, key) else ("unknown", _UNKNOWN)
        if key == HINT_KEY:
            return None
        if key.startswith(_RECORDS):
            data = self.root.get(path)
            transaction = self._transaction(data) if key.startswith(TRANSACTIONS_PREFIX) else None
            if self.condition.is_in_bytes(data) or self.condition.is_in_transaction(transaction):
                return "record", "it mentions a value of the condition"
            return None
        return "unknown", _UNKNOWN

    def _is_deletion_file(self, path: str, key: str) -> bool:
        """Whether a file that nothing refers to holds row offsets, and nothing else."""
        name = _DELETIONS.fullmatch(key)
        if name is None:
            return False
        form = DeletionFileType.ARROW if name[1] == "arrow" else DeletionFileType.BITMAP
        data = self.root.get(path)
        try:
            rows = DeletionVector.from_bytes(data, form)
        except LanceError:
            return False
        if form is DeletionFileType.BITMAP:
            return rows.to_bytes(form)[0] == bytes(data)
        return pa.ipc.open_file(pa.py_buffer(data)).schema.names == ["row_id"] and not self.condition.is_in_bytes(data)

    def _transaction(self, data: bytes | memoryview) -> Transaction | None:
        try:
            return Transaction.from_bytes(data)
        except LanceError:
            return None  # of another tool: its bytes were searched

    def _is_without_rows(self, path: str) -> bool:
        """Whether a data file that nothing refers to can be read by its own schema, and cannot hold a row.

        No row of it matches, and no dictionary of it has a value that no row has, which may be one of an erased row.
        """
        try:
            reader = DataFileReader.open(self.root, path)
            if self.condition.is_in_schema(reader.schema):
                return False
            expression = self.condition.of(reader.schema)
            columns = reader.schema.project(columns_of(expression))
            if any(pc.any(matching(batch, expression)).as_py() for batch in reader.read(columns)):
                return False
            dictionaries = dictionary_columns(reader.schema)
            return not (dictionaries and has_unused_values(reader.read(reader.schema.project(dictionaries))))
        except LanceError:
            return False

    def removed_objects(self) -> None:
        """Add the bucket if it keeps removed objects, or if the store does not say whether it does."""
        try:
            if not self.root.keeps_removed_objects():
                return
            message = "the bucket keeps noncurrent versions of removed and replaced objects, which can hold the rows"
        except LanceError as error:
            message = f"whether the bucket keeps noncurrent versions of removed objects is not known: {error}"
        remedy = "remove them (list-object-versions shows them, a lifecycle rule can expire them), then erase again"
        self._add("versioning", self.root.root, f"{message}: {remedy}")

    def elsewhere(self, kind: str, uri: str) -> None:
        """Add another dataset that shares files with this one, if it holds rows, or cannot be read."""
        try:
            store = open_base(uri, self.root.root, self.root.options)
            if load_latest(store) is None:
                message = "no dataset is there: whether its files hold the rows is not known"
                if kind == "clone":
                    message += f". See that nothing is left there; then clones.release({uri!r}) forgets it"
            elif not _surveyed(store, self.condition).is_clean():
                message = "it holds the rows, or can: erase there too"
            elif upload_findings(store):
                message = "unfinished uploads of it can hold the rows: erase there too"
            else:
                return
        except LanceError as error:
            message = f"it cannot be read: {error}"
        self._add(kind, uri, message)
