"""Surveys all versions of all branches: which hold the rows of an erasure, and for what reason.

rows      a data file of a fragment holds a row that matches, live or deleted, under the names that the columns have or
          had; or a dictionary value that no row has; or a column of the condition that no version reads. Fragments of
          any version that share a data file with such a fragment count as well
columns   the condition cannot be evaluated in the version, nor were its files read as part of other versions
files     files of an older version are missing, as after a cleanup that was killed: its other files are removed
index     an index can hold values of erased rows
record    the transaction deleted rows by a predicate, from a version that holds the rows or does not exist any more

A renamed column keeps its field id. So the column that the condition names in one version can have another name in a
later version, and that version can have a new column with the old name. The condition is evaluated on both:

    v1  email (id 1)                      v1 to v3 have a common history. `email` is field 1 in v1 and field 2 in v3:
    v2  email_raw (id 1)                  the condition is evaluated on field 1 and on field 2 in every version that
    v3  email_raw (id 1), email (id 2)    has the field

An overwrite begins a new history, and a restore continues the history of the restored version: both can assign field
ids again that other columns had before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit.versions import load_manifest, load_transaction
from lance_core.errors import InvalidInputError, LanceError, VersionNotFoundError
from lance_core.file.reader import DataFileReader
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.compaction.dictionary_values import find_dictionary_columns, has_unused_values
from lance_core.maintenance.compaction.rewrite import fragments_of
from lance_core.maintenance.verify.index_values import holds_only_stored_values, lists_values, open_stored_rows
from lance_core.schema import Schema
from lance_core.store import ObjectStore
from lance_core.table.fragment import Fragment
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import CreateIndex, Delete, Overwrite, Restore
from lance_core.table.paths import (
    DATA_PREFIX,
    DELETIONS_PREFIX,
    INDICES_PREFIX,
    TRANSACTIONS_PREFIX,
    VERSIONS_PREFIX,
    data_key,
    is_detached,
    parse_manifest_key,
)
from lance_core.table.refs import BranchRef, TagRef
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.references import read_branches, read_tags, reject_torn, store_of_branch
from lance_core.verbs.expressions.arrow import columns_of
from lance_core.verbs.rows.removal import each_matching, live_rows
from lance_core.verbs.scan.conditions import to_condition
from lance_core.verbs.scan.projection import described_columns, scanned_columns

_ROW_COLUMNS: Final = re.compile(r"_row(id|addr|offset|_created_at_version|_last_updated_at_version)")

Node: TypeAlias = tuple[str | None, int]
"""A version: its branch, None for main, and its number."""

FieldNames: TypeAlias = frozenset[tuple[int, str]]
"""Ids and names of the fields of the condition's columns."""

MatchCounts: TypeAlias = dict[tuple[frozenset[str], FieldNames], int]
"""Stored rows that match, deleted ones included, by the data files of a fragment and the fields of the columns."""


@dataclass(frozen=True, slots=True)
class ErasureCondition:
    """The condition that selects the rows to erase; no message shows it.

    Attributes:
        where: The condition, in SQL.
    """

    where: str = field(repr=False)

    def build_over(self, columns: Schema) -> pc.Expression:
        """The condition over the columns of a version, or of a file.

        Raises:
            InvalidInputError: The condition does not test values of columns.
            UnsupportedError: The SQL is not supported.
        """
        condition = to_condition(self.where, columns)
        names = columns_of(condition)
        if not names or any(_ROW_COLUMNS.match(name) for name in names):
            raise InvalidInputError(
                "an erasure needs a condition on values of columns, which identify rows in all versions; row ids and "
                "addresses do not"
            )
        return condition

    def columns(self, manifest: Manifest) -> Schema | None:
        """The top-level columns of the condition; None if it cannot be evaluated in a version."""
        try:
            return manifest.schema.project(columns_of(self.build_over(scanned_columns(manifest))))
        except LanceError:
            return None

    def find_matching_rows(self, snapshot: Snapshot) -> Iterator[tuple[Fragment, BitMap]]:
        """The fragments of a version with live rows that match, and the offsets of these rows."""
        expression = self.build_over(scanned_columns(snapshot.manifest))
        return each_matching(snapshot, expression, described_columns(snapshot.manifest))

    def count_live(self, snapshot: Snapshot) -> int:
        """The number of rows of a version that match; no index is used."""
        unindexed = snapshot.with_manifest(replace(snapshot.manifest, indices=()))
        return sum(len(rows) for _, rows in self.find_matching_rows(unindexed))


class SurveyedFragment(NamedTuple):
    """A fragment, which many versions share.

    Attributes:
        fragment: The fragment.
        files: The keys of its data files.
        keys: The keys of its data files and its deletion file, each with its base path; None for the version's root.
    """

    fragment: Fragment
    files: frozenset[str]
    keys: dict[str, int | None]

    @classmethod
    def of(cls, raw: bytes) -> SurveyedFragment:
        """Parse a serialized fragment."""
        (fragment,) = fragments_of([raw])
        keys = {data_key(file.path): file.base_id for file in fragment.files}
        files, deletion = frozenset(keys), fragment.deletion_file
        return cls(fragment, files, keys if deletion is None else keys | {deletion.key(fragment.id): deletion.base_id})


@dataclass(slots=True)
class SurveyedVersion:
    """What a survey found in a version.

    Attributes:
        branch: Its branch; None for main.
        snapshot: The version.
        made_by: Its transaction; None if that was deleted.
        pieces: Its fragments.
        is_latest: Whether it is the latest version of its branch.
        reasons: Why it cannot stay: "rows", "columns", "files", "index" or "record".
        columns: The columns of the condition in its history, in which it is evaluated.
        suspect: Its indices that can hold values of erased rows.
    """

    branch: str | None
    snapshot: Snapshot
    made_by: Transaction | None
    pieces: list[SurveyedFragment]
    is_latest: bool = False
    reasons: set[str] = field(default_factory=set)
    columns: dict[FieldNames, Schema] = field(default_factory=dict)
    suspect: list[IndexMetadata] = field(default_factory=list)

    @property
    def branch_label(self) -> str:
        """The name of its branch."""
        return self.branch or "main"

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        return self.snapshot.manifest

    @property
    def number(self) -> int:
        """Its number."""
        return self.manifest.version

    @property
    def holds_data(self) -> bool:
        """Whether its data files can hold a row."""
        return bool(self.reasons & {"rows", "columns", "files"})

    def is_removed(self, *, drops: bool) -> bool:
        """Whether an erasure removes it: the latest version if it makes another one.

        Args:
            drops: Whether indices that cannot be built here are dropped. Otherwise these indices stay.
        """
        is_index_replaced = any(drops or is_supported(index, self.manifest.schema) for index in self.suspect)
        return bool(self.reasons - {"index"}) or (is_index_replaced if self.is_latest else bool(self.suspect))

    def continues(self) -> int:
        """The number of the version that it continues; 0 if it begins a new history."""
        if self.made_by is None:
            return 0 if is_detached(self.number) else self.number - 1
        if isinstance(self.made_by.operation, Overwrite):
            return 0
        if isinstance(self.made_by.operation, Restore):
            return self.made_by.operation.version
        return self.made_by.read_version if is_detached(self.number) else self.number - 1


@dataclass(slots=True)
class ErasureSurvey:
    """The result of a survey: all versions, and the files that hold the rows of an erasure.

    Attributes:
        condition: The rows.
        tags: All tags.
        refs: All branches.
        counts: What was counted in this survey and earlier ones.
        pieces: The fragments of all versions, by their bytes.
        versions: The versions by branch and number: those of main first, those of a branch after those of its parent,
            detached ones last.
        rows: Stored rows for which the condition was evaluated.
        held: The data files that hold a row, or can.
    """

    condition: ErasureCondition
    tags: Mapping[str, TagRef]
    refs: Mapping[str, BranchRef]
    counts: MatchCounts
    pieces: dict[bytes, SurveyedFragment] = field(default_factory=dict)
    versions: dict[Node, SurveyedVersion] = field(default_factory=dict)
    rows: int = 0
    held: set[str] = field(default_factory=set)

    def latest(self) -> list[SurveyedVersion]:
        """The latest version of each branch."""
        return [version for version in self.versions.values() if version.is_latest]

    def removed(self, *, drops: bool | None = None) -> dict[str | None, list[int]]:
        """The versions that an erasure removes, by branch.

        Args:
            drops: As for `SurveyedVersion.is_removed`; None for versions that are not the latest alone.
        """
        removed: dict[str | None, list[int]] = {version.branch: [] for version in self.versions.values()}
        for version in self.versions.values():
            if version.is_removed(drops=bool(drops)) and not (version.is_latest and drops is None):
                removed[version.branch].append(version.number)
        return removed

    def held_fragments(self, version: SurveyedVersion) -> list[int]:
        """Ids of the fragments of a version with a data file that holds a row, or can."""
        return [piece.fragment.id for piece in version.pieces if not self.held.isdisjoint(piece.files)]

    def referred(self) -> set[str]:
        """The keys of all that versions refer to: files, and the folders of indices."""
        keys = {key for piece in self.pieces.values() for key in piece.keys}
        for version in self.versions.values():
            keys.add(f"{TRANSACTIONS_PREFIX}{version.manifest.transaction_file}")
            keys.update(f"{INDICES_PREFIX}{index.uuid}/" for index in version.manifest.indices)
        return keys

    def is_clean(self) -> bool:
        """Whether no version holds anything."""
        return not any(version.reasons for version in self.versions.values())


def survey_all_versions(root: ObjectStore, condition: ErasureCondition, counts: MatchCounts) -> ErasureSurvey:
    """Read all versions of all branches.

    Args:
        root: The store of the dataset.
        condition: The rows.
        counts: What is known of files, which never change, by an earlier survey; grows.

    Raises:
        CorruptFileError: The file of a tag or branch is torn, so that the versions it needs are not known.
    """
    tags, torn_tags = read_tags(root)
    refs, torn = read_branches(root)
    reject_torn([*torn_tags, *torn.values()])
    facts = ErasureSurvey(condition, tags, refs, counts)
    for branch in (None, *sorted(refs, key=lambda name: len(refs[name].identifier))):
        versions = _load_versions(store_of_branch(root, branch), branch, facts.pieces)
        facts.versions |= {(branch, version.number): version for version in versions}
    _find_columns(facts)
    for version in facts.versions.values():
        if "files" not in version.reasons:
            _count_matches(facts, version)
    _find_files(facts)
    _find_suspect_indices(facts)
    for version in facts.versions.values():
        operation = None if version.made_by is None else version.made_by.operation
        if isinstance(operation, Delete) and operation.predicate:
            before = facts.versions.get((version.branch, version.continues()))
            if before is None or before.holds_data:
                version.reasons.add("record")
    return facts


def _load_versions(
    store: ObjectStore, branch: str | None, pieces: dict[bytes, SurveyedFragment]
) -> list[SurveyedVersion]:
    """Read the manifests of a branch, and find older versions with missing files; none if it was deleted meanwhile."""
    versions = []
    names = [parse_manifest_key(meta.key) for meta in store.list(VERSIONS_PREFIX)]
    for number in sorted({name.version for name in names if name is not None}):
        with suppress(VersionNotFoundError):  # removed since it was listed
            manifest = load_manifest(store, number)
            pieces |= {raw: SurveyedFragment.of(raw) for raw in manifest.fragments.raw if raw not in pieces}
            snapshot = Snapshot(store, manifest, store.options)
            version_pieces = [pieces[raw] for raw in manifest.fragments.raw]
            versions.append(SurveyedVersion(branch, snapshot, load_transaction(store, manifest), version_pieces))
    numbered = [version for version in versions if not is_detached(version.number)]
    if not numbered:
        return []
    numbered[-1].is_latest = True
    present = {meta.key for prefix in (DATA_PREFIX, DELETIONS_PREFIX) for meta in store.list(prefix)}
    for version in versions:
        # Files of the latest version must exist: without them nothing can be erased.
        keys = (key for piece in version.pieces for key, base in piece.keys.items() if base is None)
        if not version.is_latest and not present.issuperset(keys):
            version.reasons.add("files")
    return versions


def _find_columns(facts: ErasureSurvey) -> None:
    """Find the columns of the condition in each version: those that it names in any version of the same history."""
    origins: dict[Node, dict[int, object]] = {}  # of each field: the version that first had it, and its type
    named: dict[frozenset[tuple[int, str, object]], Schema] = {}

    def origins_until(branch: str | None, number: int) -> dict[int, object]:
        """The origins in a version or the next older one that exists, on the branch or where that was forked from."""
        for older in range(number, 0, -1):
            if (branch, older) in origins:
                return origins[branch, older]
        fork = facts.refs.get(branch or "")
        return {} if fork is None else origins_until(fork.parent_branch, min(number, fork.parent_version))

    for node, version in facts.versions.items():
        earlier = origins_until(version.branch, version.continues())
        fields = version.manifest.schema.by_id()
        origins[node] = {key: earlier.get(key, (node, field.logical_type)) for key, field in fields.items()}
        columns = facts.condition.columns(version.manifest)
        if columns is not None:
            named[frozenset((field.id, field.name, origins[node][field.id]) for field, _ in columns.walk())] = columns
    for node, version in facts.versions.items():
        version.columns = {
            frozenset((key, name) for key, name, _ in fields): columns
            for fields, columns in named.items()
            if all(origins[node].get(key) == origin for key, _, origin in fields)
        }


def _count_matches(facts: ErasureSurvey, version: SurveyedVersion) -> None:
    """Count the rows of the fragments of a version that are not counted yet."""
    snapshot, manifest = version.snapshot, version.manifest
    # The 0.1 format repeats dictionaries in manifests: they cannot lose values.
    dictionaries = [] if manifest.data_storage_version == "0.1" else find_dictionary_columns(manifest.schema)
    for names, columns in version.columns.items():
        if not (new := [piece for piece in version.pieces if (piece.files, names) not in facts.counts]):
            continue
        projected = snapshot.with_manifest(replace(manifest, schema=columns))
        whole = open_stored_rows(projected, [piece.fragment for piece in new])
        matches = {fragment.id: len(rows) for fragment, rows in facts.condition.find_matching_rows(whole)}
        for piece in new:
            count = matches.get(piece.fragment.id, 0)
            if dictionaries and not count:
                stored = open_stored_rows(snapshot, [piece.fragment])
                rows = live_rows(stored, stored.manifest.fragments[0], dictionaries)
                count = int(has_unused_values(batch for batch, _ in rows))
            facts.counts[piece.files, names] = count
            facts.rows += piece.fragment.physical_rows or 0


def _find_files(facts: ErasureSurvey) -> None:
    """Find all data files of fragments with matching rows, and mark the versions that refer to such a file."""
    used = {piece.files for piece in facts.pieces.values()}
    more = {name for (files, _), count in facts.counts.items() if count and files in used for name in files}
    more |= _find_unread(facts)
    while more:
        facts.held |= more
        more = {name for files in used if not facts.held.isdisjoint(files) for name in files} - facts.held
    counted = {name for files, _ in facts.counts for name in files}
    for version in facts.versions.values():
        if facts.held_fragments(version):
            version.reasons.add("rows")
        elif "files" not in version.reasons and not all(piece.files <= counted for piece in version.pieces):
            version.reasons.add("columns")


def _find_unread(facts: ErasureSurvey) -> set[str]:
    """Find files with a column of the condition that no version reads, as its values were written again elsewhere."""
    unread: dict[str, set[int]] = {}
    places: dict[str, tuple[ObjectStore, str]] = {}
    names: set[str] = set()
    seen: dict[frozenset[int], set[int]] = {}  # fragments by the fields of a version that reads them
    for version in facts.versions.values():
        if "files" in version.reasons:
            continue
        names.update(*(columns.names for columns in version.columns.values()))
        field_ids = frozenset(version.manifest.schema.by_id())
        done = seen.setdefault(field_ids, set())
        new = [piece.fragment for piece in version.pieces if id(piece) not in done]
        done.update(map(id, version.pieces))
        for file in (file for fragment in new for file in fragment.files):
            key = data_key(file.path)
            read = {place for place, number in enumerate(file.fields) if number in field_ids}
            unread.setdefault(key, set(range(len(file.fields)))).difference_update(read)
            if key not in places:
                places[key] = version.snapshot.data_file(file)
    return {
        key
        for key, columns in unread.items()
        if columns and names & set(DataFileReader.open(*places[key]).schema.names)
    }


def _find_suspect_indices(facts: ErasureSurvey) -> None:
    """Find the indices that can hold values of erased rows, and mark the versions that have one."""
    clean: dict[tuple[str | None, UUID], list[tuple[SurveyedVersion, IndexMetadata]]] = {}
    for version in facts.versions.values():
        for index in () if version.holds_data else version.manifest.indices:
            if not index.is_system:  # which hold no values
                clean.setdefault((version.branch, index.uuid), []).append((version, index))
    # Files are immutable, so a proof for one version holds for all versions with the index.
    proven = {uuid for (_, uuid), pairs in clean.items() if any(_is_clean(*pair) for pair in (pairs[-1], pairs[0]))}
    for version in facts.versions.values():
        version.suspect = [
            index for index in version.manifest.indices if not index.is_system and index.uuid not in proven
        ]
        if version.suspect:
            version.reasons.add("index")


def _is_clean(version: SurveyedVersion, index: IndexMetadata) -> bool:
    """Whether an index has no values but those of a version without the rows."""
    if lists_values(index):
        return holds_only_stored_values(version.snapshot, index)
    is_built = version.made_by is not None and isinstance(version.made_by.operation, CreateIndex)
    return is_built and version.manifest.version == index.dataset_version + 1
