"""Surveys all versions of all branches: which hold the rows of an erasure, and for what reason.

rows      a data file of a fragment holds a row that matches, live or deleted, under the names that the columns have or
          had; or a dictionary value that no row has; or a column of the condition that no version reads. Fragments of
          any version that share a data file with such a fragment count as well
columns   the condition cannot be evaluated in the version, nor were its files read as part of other versions
files     files of an older version are missing, as after a cleanup that was killed: its other files are removed
index     an index can hold values of erased rows
record    the transaction, the manifest, or the metadata of a data file mentions a value of the condition: a data file
          keeps the metadata of the schema that it was written with
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from lance_core.commit import load_manifest, load_transaction
from lance_core.errors import ObjectNotFoundError, VersionNotFoundError
from lance_core.file.reader import DataFileReader
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.compaction.dictionary_values import dictionary_columns, has_unused_values
from lance_core.maintenance.erasure.condition import ErasureCondition, stored_rows, strings_of
from lance_core.maintenance.erasure.indices import holds_only_stored_values, lists_values
from lance_core.maintenance.erasure.missing_files import FolderFiles
from lance_core.maintenance.erasure.names import (
    Columns,
    FieldNames,
    Node,
    continued_version,
    field_names,
    is_within,
    related,
    renamed,
)
from lance_core.maintenance.erasure.row_values import named_values
from lance_core.schema import Schema
from lance_core.store import ObjectStore
from lance_core.table.fragment import Fragment
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import CreateIndex
from lance_core.table.paths import VERSIONS_PREFIX, data_key, is_detached, parse_manifest_key
from lance_core.table.refs import BranchRef
from lance_core.verbs.context.branch_roots import store_of_branch
from lance_core.verbs.context.session import Session
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.rows.removal import live_rows

__all__ = ["ErasureSurvey", "Line", "SurveyedVersion", "survey"]


@dataclass(slots=True)
class SurveyedVersion:
    """What a survey found in a version.

    Attributes:
        number: Its number.
        schema: Its columns.
        pieces: The names of the data files of each fragment, by fragment id.
        indices: Its indices except system indices, which hold no values.
        is_fresh: Whether its transaction built indices.
        reasons: Why it cannot stay: "rows", "columns", "files", "index" or "record".
        fragments: Ids of its fragments with a data file that holds a matching row, or can hold one.
        suspect: Its indices that can hold values of erased rows.
        base_paths: Base paths of its manifest, where files that it refers to can lie.
        has_dictionaries: Whether its manifest repeats the dictionaries of its files.
        continues: The version that it continues; None if it begins a new history.
        columns: The columns of the condition; none if it cannot be evaluated.
        renamed: Only in the latest version: columns of the condition that have other names now, and by which live rows
            match.
    """

    number: int
    schema: Schema
    pieces: dict[int, frozenset[str]]
    indices: tuple[IndexMetadata, ...]
    is_fresh: bool = False
    reasons: set[str] = field(default_factory=set)
    fragments: list[int] = field(default_factory=list)
    suspect: list[IndexMetadata] = field(default_factory=list)
    base_paths: tuple[str, ...] = ()
    has_dictionaries: bool = False
    continues: int | None = None
    columns: Columns = field(default_factory=dict)
    renamed: tuple[str, ...] = ()

    @property
    def holds_data(self) -> bool:
        """Whether its data files can hold a row."""
        return bool(self.reasons & {"rows", "columns", "files"})


@dataclass(slots=True)
class Line:
    """The versions of one branch.

    Attributes:
        branch: The branch; None for main.
        ref: Its origin; None for main.
        store: Its store.
        versions: Its versions by number.
    """

    branch: str | None
    ref: BranchRef | None
    store: ObjectStore
    versions: dict[int, SurveyedVersion] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the branch."""
        return self.branch or "main"

    @property
    def latest(self) -> SurveyedVersion:
        """The latest version."""
        return self.versions[max(number for number in self.versions if not is_detached(number))]

    def doomed(self) -> list[int]:
        """The older and the detached versions that an erasure has to remove."""
        latest = self.latest.number
        return sorted(number for number, version in self.versions.items() if version.reasons and number != latest)

    def is_replaced(self, *, drops: bool) -> bool:
        """Whether an erasure makes a version after the latest one.

        Args:
            drops: Whether indices that cannot be built here are dropped. Otherwise these indices stay.
        """
        indices = any(drops or is_supported(index, self.latest.schema) for index in self.latest.suspect)
        return indices or bool(self.latest.reasons - {"index"})

    def going(self, *, drops: bool) -> list[int]:
        """The versions that an erasure removes; `drops` has the meaning that it has in `is_replaced`."""
        return self.doomed() + ([self.latest.number] if self.is_replaced(drops=drops) else [])


@dataclass(slots=True)
class ErasureSurvey:
    """The result of a survey: the branches, their versions, and the files that hold the rows of an erasure.

    Attributes:
        condition: The rows.
        lines: The branches, main first.
        counts: Stored rows that match, by the files of a fragment and the fields of the condition's columns.
        columns: The columns of the condition in the history of each version, deleted versions included.
        rows: Stored rows for which the condition was evaluated.
        files: Names of the data files that hold a row, or can.
        mentions: Whether the schema that a data file stores mentions a value of the condition, by its name.
        read: Names of all data and deletion files of versions.
        indices: Folders of all indices of versions.
    """

    condition: ErasureCondition
    lines: list[Line] = field(default_factory=list)
    counts: dict[tuple[frozenset[str], FieldNames], int] = field(default_factory=dict)
    columns: dict[Node, Columns] = field(default_factory=dict)
    rows: int = 0
    files: set[str] = field(default_factory=set)
    mentions: dict[str, bool] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    indices: set[str] = field(default_factory=set)

    def fragments_to_rewrite(self, line: Line) -> list[int]:
        """Ids of the fragments of the latest version of a branch that an erasure writes again."""
        files = self.files_to_rewrite(line.latest.schema)
        return [key for key, names in line.latest.pieces.items() if not files.isdisjoint(names)]

    def files_to_rewrite(self, schema: Schema) -> set[str]:
        """Names of the data files that hold a row, or can, or that mention a value which a present schema does not."""
        if self.condition.is_in_schema(schema):
            return self.files  # a rewrite would store the value again
        return self.files | {key for key, mentions in self.mentions.items() if mentions}

    def is_clean(self) -> bool:
        """Whether no version holds anything."""
        return not any(version.reasons for line in self.lines for version in line.versions.values())


def survey(
    root: ObjectStore,
    refs: Mapping[str, BranchRef],
    condition: ErasureCondition,
    earlier_survey: ErasureSurvey | None = None,
    columns: Mapping[Node, Columns] | None = None,
) -> ErasureSurvey:
    """Read all versions of all branches.

    Args:
        root: The store of the dataset.
        refs: Its branches.
        condition: The rows.
        earlier_survey: An earlier survey, whose counts are reused, as files never change; None reads all files.
        columns: The columns of the condition by version, from an earlier survey: its versions may be deleted now.
    """
    facts = ErasureSurvey(
        condition=condition,
        counts={} if earlier_survey is None else earlier_survey.counts,
        mentions={} if earlier_survey is None else earlier_survey.mentions,
        columns=dict((earlier_survey.columns if earlier_survey is not None else columns) or {}),
    )
    reader = _VersionSurveyor(facts)
    for branch, ref in [(None, None), *refs.items()]:
        line = Line(branch=branch, ref=ref, store=store_of_branch(root, branch))
        files = FolderFiles(line.store)
        for manifest in _manifests(line.store):
            # Files of the latest version must exist: without them nothing can be erased.
            is_older = any(not is_detached(number) for number in line.versions)
            lacks_files = (is_older or is_detached(manifest.version)) and files.lack(manifest)
            line.versions[manifest.version] = reader.version(line.store, manifest, lacks_files=lacks_files)
        if any(not is_detached(number) for number in line.versions):  # else it was deleted meanwhile
            facts.lines.append(line)
    reader.count_renamed()
    named = reader.named_values() - condition.row_values
    if named:
        also = replace(condition, row_values=condition.row_values | named)
        return survey(root, refs, also, facts, columns)
    reader.spread()
    for line in facts.lines:
        _judge_indices(facts, line)
    return facts


def _manifests(store: ObjectStore) -> Iterator[Manifest]:
    """The versions of a branch, newest first."""
    names = [parse_manifest_key(meta.key) for meta in store.list(VERSIONS_PREFIX)]
    for number in sorted({name.version for name in names if name is not None}, reverse=True):
        try:
            yield load_manifest(store, number)
        except VersionNotFoundError:
            continue  # removed since it was listed


@dataclass(slots=True)
class _VersionSurveyor:
    """Reads versions one after the other."""

    facts: ErasureSurvey
    unread: dict[str, set[int]] = field(default_factory=dict)
    stores: dict[str, tuple[ObjectStore, str]] = field(default_factory=dict)
    strings: set[str] = field(default_factory=set)

    def version(self, store: ObjectStore, manifest: Manifest, *, lacks_files: bool) -> SurveyedVersion:
        """Read one version: count the rows of fragments that are not counted yet, unless files of it are missing."""
        source = Snapshot(store, manifest, store.options, Session())
        fragments = list(manifest.fragments)
        pieces = {fragment.id: frozenset(data_key(file.path) for file in fragment.files) for fragment in fragments}
        self.facts.read.update(*pieces.values())
        self.facts.read.update(
            fragment.deletion_file.key(fragment.id) for fragment in fragments if fragment.deletion_file is not None
        )
        self.facts.indices.update(str(index.uuid) for index in manifest.indices)
        made_by = load_transaction(store, manifest)
        version = SurveyedVersion(
            number=manifest.version,
            schema=manifest.schema,
            pieces=pieces,
            indices=tuple(index for index in manifest.indices if not index.is_system),
            is_fresh=made_by is not None and isinstance(made_by.operation, CreateIndex),
            base_paths=tuple(base.path for base in manifest.base_paths),
            has_dictionaries=_is_legacy(manifest) and bool(dictionary_columns(manifest.schema)),
            continues=continued_version(manifest.version, made_by),
        )
        self.strings.update(strings_of(made_by))
        if self.facts.condition.is_in_transaction(made_by) or self._is_mentioned(store, manifest):
            version.reasons.add("record")
        if lacks_files:
            version.reasons.add("files")
        else:
            self._note_columns(source, fragments)
            self._search_schemas(source, fragments)
        if any(self.facts.mentions.get(key) for keys in pieces.values() for key in keys):
            version.reasons.add("record")
        names = self.facts.condition.columns(source)
        if names is None:
            version.reasons.add("columns")
            return version
        columns = manifest.schema.project(names)
        version.columns = {field_names(columns): columns}
        if not lacks_files:
            self._count(source, field_names(columns), pieces)
        return version

    def count_renamed(self) -> None:
        """Count rows that match by columns that the condition names in other versions of the same history."""
        before = _histories(self.facts)
        version_columns = {
            (line.name, number): line.versions[number].columns for line in self.facts.lines for number in line.versions
        }
        if len({frozenset(columns) for columns in (*version_columns.values(), *self.facts.columns.values())}) <= 1:
            return  # the columns are the same in all versions
        columns_by_node = self.facts.columns
        newest = {name: columns for (name, _), columns in sorted(columns_by_node.items())}
        for node, columns in related(before, version_columns).items():
            columns_by_node[node] = columns | columns_by_node.get(node, newest.get(node[0], {}))
        for line in self.facts.lines:
            for number, version in line.versions.items():
                history_columns = self.facts.columns[line.name, number]
                if history_columns.keys() - version.columns.keys() and "files" not in version.reasons:
                    self._count_other_names(line, version, history_columns)

    def _count_other_names(self, line: Line, version: SurveyedVersion, history_columns: Columns) -> None:
        manifest = load_manifest(line.store, version.number)
        for names, columns in history_columns.items():
            if names in version.columns or not is_within(columns, manifest.schema):
                continue
            source = Snapshot(line.store, replace(manifest, schema=columns, indices=()), line.store.options, Session())
            self._count(source, names, version.pieces)
            held = any(self.facts.counts[files, names] for files in version.pieces.values())
            if held and version is line.latest and self.facts.condition.count_live(source):
                version.renamed += (renamed(columns, manifest.schema),)

    def named_values(self) -> frozenset[str]:
        """Strings of predicates in the history that are values of rows to erase."""
        row_strings: set[str] = set()
        read: set[frozenset[str]] = set()
        for line in self.facts.lines if self.strings else ():
            for version in line.versions.values():
                if "files" in version.reasons:
                    continue  # a cleanup that was killed has removed files that it needs
                held = {
                    key
                    for key, files in version.pieces.items()
                    if files not in read and any(self.facts.counts.get((files, names)) for names in version.columns)
                }
                if held:
                    source = Snapshot(line.store, load_manifest(line.store, version.number), line.store.options)
                    fragments = [fragment for fragment in source.manifest.fragments if fragment.id in held]
                    row_strings |= named_values(stored_rows(source, fragments), self.facts.condition, self.strings)
                    read.update(version.pieces[key] for key in held)
        return frozenset(row_strings)

    def _is_mentioned(self, store: ObjectStore, manifest: Manifest) -> bool:
        keys = [manifest.location.key] if manifest.location is not None else []
        if manifest.transaction_file:
            keys.append(f"_transactions/{manifest.transaction_file}")
        for key in keys:
            try:
                if self.facts.condition.is_in_bytes(store.get(key)):
                    return True
            except ObjectNotFoundError:
                continue
        return False

    def _count(self, source: Snapshot, fields: FieldNames, pieces: Mapping[int, frozenset[str]]) -> None:
        counts = self.facts.counts
        new = [fragment for fragment in source.manifest.fragments if (pieces[fragment.id], fields) not in counts]
        if not new:
            return
        matches = self.facts.condition.stored(source, new)
        # The 0.1 format repeats dictionaries in manifests: they cannot lose values.
        dictionaries = [] if _is_legacy(source.manifest) else dictionary_columns(source.manifest.schema)
        for fragment in new:
            count = matches.get(fragment.id, 0)
            if dictionaries and not count:
                count = int(_has_unused_values(source, fragment, dictionaries))
            counts[pieces[fragment.id], fields] = count
            self.facts.rows += fragment.physical_rows or 0

    def _note_columns(self, source: Snapshot, fragments: list[Fragment]) -> None:
        """Record which columns of its files a version reads."""
        field_ids = source.manifest.schema.by_id().keys()
        for fragment in fragments:
            for file in fragment.files:
                key = data_key(file.path)
                read = {place for place, number in enumerate(file.fields) if number in field_ids}
                self.unread.setdefault(key, set(range(len(file.fields)))).difference_update(read)
                if key not in self.stores:
                    self.stores[key] = source.data_file(file)

    def _search_schemas(self, source: Snapshot, fragments: list[Fragment]) -> None:
        """Record which data files store a schema that mentions a value of the condition."""
        for file in (file for fragment in fragments for file in fragment.files):
            key = data_key(file.path)
            if key not in self.facts.mentions:
                store, path = source.data_file(file)
                size = file.file_size_bytes or None
                reader = DataFileReader.open(store, path, size=size, cache=source.session.files)
                self.facts.mentions[key] = self.facts.condition.is_in_schema(reader.schema)

    def spread(self) -> None:
        """Find all data files of fragments with matching rows, and mark the versions that refer to such a file."""
        facts = self.facts
        present = [line_version for line in facts.lines for line_version in line.versions.values()]
        used = {files for version in present for files in version.pieces.values()}
        facts.files = {name for (files, _), count in facts.counts.items() if count and files in used for name in files}
        facts.files |= {key for key, places in self.unread.items() if places and self._has_column(key)}
        grown = True
        while grown:
            before = len(facts.files)
            for files in used:
                if not facts.files.isdisjoint(files):
                    facts.files |= files
            grown = len(facts.files) > before
        for version in present:
            version.fragments = [key for key, files in version.pieces.items() if not facts.files.isdisjoint(files)]
            if version.fragments:
                version.reasons.add("rows")
            elif "columns" in version.reasons and self._are_counted(version):
                version.reasons.discard("columns")

    def _are_counted(self, version: SurveyedVersion) -> bool:
        """Whether all files of a version were evaluated as part of other versions."""
        counted = {name for (files, _) in self.facts.counts for name in files}
        return all(files <= counted for files in version.pieces.values())

    def _has_column(self, key: str) -> bool:
        """Whether a file with columns that no version reads has a column with a name of the condition."""
        store, path = self.stores[key]
        names = {name for line in self.facts.lines for name in self._names(line)}
        return bool(names & set(DataFileReader.open(store, path).schema.names))

    def _names(self, line: Line) -> tuple[str, ...]:
        manifest = load_manifest(line.store, line.latest.number)
        return self.facts.condition.columns(Snapshot(line.store, manifest, line.store.options)) or ()


def _has_unused_values(source: Snapshot, fragment: Fragment, columns: list[str]) -> bool:
    """Whether dictionaries of a fragment have values that no row of it has, which may be values of erased rows."""
    whole = stored_rows(source, [fragment])
    rows = live_rows(whole, whole.manifest.fragments[0], columns)
    return has_unused_values(batch for batch, _ in rows)


def _is_legacy(manifest: Manifest) -> bool:
    return manifest.data_storage_version == "0.1"


def _histories(facts: ErasureSurvey) -> dict[Node, Node | None]:
    """Each version with the version that it continues, or the next older existing version; older versions first."""
    lines = {line.branch: line for line in facts.lines}
    numbers = {
        line.branch: sorted(number for number in line.versions if not is_detached(number)) for line in facts.lines
    }
    before: dict[Node, Node | None] = {}
    for line in sorted(facts.lines, key=lambda line: len(line.ref.identifier) if line.ref else 0):
        for number, version in sorted(line.versions.items()):
            at: Line | None = line
            latest = version.continues
            before[line.name, number] = None
            while at is not None and latest is not None:
                place = bisect_right(numbers[at.branch], latest)
                if place:
                    before[line.name, number] = (at.name, numbers[at.branch][place - 1])
                    break
                latest = min(latest, at.ref.parent_version) if at.ref is not None else None
                at = lines.get(at.ref.parent_branch) if at.ref is not None else None
    return before


def _judge_indices(facts: ErasureSurvey, line: Line) -> None:
    """Find the indices of a branch that can hold values of erased rows, and the versions that have one."""
    clean: dict[UUID, list[int]] = {}
    for number, version in sorted(line.versions.items()):
        for index in version.indices:
            if lists_values(index) and not version.holds_data:
                clean.setdefault(index.uuid, []).append(number)
    proven = {
        key
        for key, numbers in clean.items()
        if any(_is_stored(line, key, number) for number in {numbers[-1], numbers[0]})
    }
    for number, version in line.versions.items():
        for index in version.indices:
            if index.uuid in proven or (not lists_values(index) and _is_fresh(facts, line, number, index)):
                continue
            version.suspect.append(index)
            version.reasons.add("index")


def _is_stored(line: Line, key: UUID, number: int) -> bool:
    """Whether all values of an index are values of rows that a version without the erased rows stores.

    Index files and data files are immutable, so a proof for one version holds for all versions with the index.
    """
    manifest = load_manifest(line.store, number)
    source = Snapshot(line.store, manifest, line.store.options)
    return all(holds_only_stored_values(source, index) for index in manifest.indices if index.uuid == key)


def _is_fresh(facts: ErasureSurvey, line: Line, number: int, index: IndexMetadata) -> bool:
    """Whether the version that built an index from scratch exists, and this and all later versions hold no row."""
    built = _at(facts, line, index.dataset_version + 1)
    if built is None or not built.is_fresh or all(built_index.uuid != index.uuid for built_index in built.indices):
        return False
    between = (_at(facts, line, version_number) for version_number in range(index.dataset_version + 1, number + 1))
    return all(version is not None and not version.holds_data for version in between)


def _at(facts: ErasureSurvey, line: Line, number: int) -> SurveyedVersion | None:
    """A version of a branch, or of its parent if it is older than the fork; None if it was deleted."""
    version = line.versions.get(number)
    if version is not None or line.ref is None or number > line.ref.parent_version:
        return version
    parent = next((candidate for candidate in facts.lines if candidate.branch == line.ref.parent_branch), None)
    return None if parent is None else _at(facts, parent, number)
