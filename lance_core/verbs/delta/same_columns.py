"""Match the columns of one version to those of another.

Field ids alone do not identify columns: an overwrite renumbers them, a restore goes back to earlier numbers, and a
column gets the id of a dropped one that no data file has any more. An id stands for the same column in two versions if
these share a data file with this id or a higher one: ids that are used again are higher than those of all files.
A column of the later version is matched to one of these columns of the earlier version:

    columns of both versions                      matched by
    ------------------------------------------    -------------------------------------------------------------------
    all have the same ids, names and types        these, if the ids stand for the same columns
    some differ, the ids of the others stand      the ids, names and types of the others
    for the same columns, and none is left
    others                                        renames, casts, overwrites and restores of the versions in between

If there is none, the column was added later, whatever its name. An overwrite continues columns by their names. Children
of a column are followed in the same way, by their paths instead of their names. If one of the versions in between was
cleaned up, columns with the same id, name and type are taken for the same, and an error names the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from lance_core.errors import VersionNotFoundError
from lance_core.schema import Field, Schema
from lance_core.table.fragment import DataFile
from lance_core.table.fragment_list import FragmentList
from lance_core.table.operations import Clone, Merge, Operation, Overwrite, Project, Restore, UnknownOperation
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.delta.version_of_branch import BranchHistory, version_before

_Origins = dict[int, int]
"""Ids of fields of a version, each with the id of the same field in an earlier version."""


_MAX_OPENED: Final = 4
"""How many versions are kept open."""


@dataclass(frozen=True, slots=True)
class SameColumns:
    """The columns that two versions have in common.

    Attributes:
        names: Names of columns of the later version, each with the name of the same column in the earlier version.
        fields: Ids of fields of the later version, children included, each with the id of the same field in the
            earlier one; empty if no wanted column needed the history.
    """

    names: Mapping[str, str]
    fields: Mapping[int, int] = field(default_factory=dict)


def same_columns(history: FieldHistory, source: int, feed: int, names: Collection[str]) -> SameColumns:
    """Match the columns of two versions of a table.

    Args:
        history: The columns of the table's versions.
        source: The version that has the rows.
        feed: The version that has the wanted columns.
        names: Names of columns of `feed` that are wanted.

    Raises:
        VersionNotFoundError: A version in between was cleaned up, and columns were renamed, replaced or given other
            types.
    """
    source_schema, feed_schema = history.schema(source), history.schema(feed)
    names_by_shape = {_shape(field): field.name for field in source_schema.fields}
    same_names = {
        field.name: names_by_shape[_shape(field)] for field in feed_schema.fields if _shape(field) in names_by_shape
    }
    if source == feed:
        return SameColumns(same_names)
    missing = [field for field in feed_schema.fields if field.name not in same_names]
    left = [field for field in source_schema.fields if field.name not in same_names.values()]
    open_names = [field.name for field in missing if field.name in names]
    highest = history.highest_shared_id(source, feed)
    unsure = {
        field.name
        for field in feed_schema.fields
        if field.name in same_names and any(node.id > highest for node, _ in field.walk())
    }
    if unsure.isdisjoint(names) and not (open_names and (left or unsure)):
        return SameColumns(same_names)
    try:
        origins = history.origins(source, feed)
    except VersionNotFoundError as error:
        if not left or not open_names:
            return SameColumns(same_names)
        raise VersionNotFoundError(
            f"{history.uri}: it is not known which columns of version {source} became {open_names} of version {feed}: "
            f"{error}. Leave these columns out (columns=[...]), or compare later versions"
        ) from error
    by_id = {field.id: field.name for field in source_schema.fields}
    pairs = {field.name: by_id.get(origins.get(field.id, -1)) for field in feed_schema.fields}
    return SameColumns({now: then for now, then in pairs.items() if then is not None}, origins)


class FieldHistory:
    """Follows the columns of a table through its versions.

    Args:
        dataset: The table, at any version.
    """

    def __init__(self, dataset: Handle) -> None:
        self._dataset = dataset
        self._commits = BranchHistory(dataset)
        self._steps: dict[int, _Origins] = {}
        self._operations: dict[int, Operation | None] = {}
        self._shared_ids: dict[tuple[int, int], int] = {}
        self._opened: dict[int, Handle] = {}

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._dataset.uri

    def schema(self, version: int) -> Schema:
        """The columns of a version."""
        return self._open_version(version).snapshot.manifest.schema

    def highest_shared_id(self, version: int, other_version: int) -> int:
        """The highest field id of a data file that two versions share; -1 for none.

        The search ends at an id that no field of the other version exceeds.
        """
        pair = version, other_version
        if pair not in self._shared_ids:
            self._shared_ids[pair] = self._find_shared_id(version, other_version)
        return self._shared_ids[pair]

    def _find_shared_id(self, version: int, other_version: int) -> int:
        other = self._open_version(other_version).snapshot.manifest
        highest, enough = -1, other.schema.max_field_id
        for fragment in self._load_fragments(version):
            other_fragment = other.fragments.get(fragment.id)
            fields = {} if other_fragment is None else {_place(file): file.fields for file in other_fragment.files}
            for file in fragment.files:
                highest = max(highest, *{*file.fields} & {*fields.get(_place(file), ())}, -1)
            if highest >= enough:
                break
        return highest

    def origins(self, source: int, feed: int) -> _Origins:
        """The fields of a version by id, each with its id in another version that is earlier or later.

        Raises:
            VersionNotFoundError: A version in between was cleaned up, or how it was made is not known.
        """
        if source > feed:
            return {before: now for now, before in self.origins(feed, source).items()}
        ids, restored = self._trace_back(source, feed)
        if restored is None:
            return ids
        step = self.origins(source, restored)
        return {now: step[then] for now, then in ids.items() if then in step}

    def renewed_fragments(self, source: int, feed: int) -> list[int]:
        """The ids of fragments of a version whose rows have other values than in an earlier one, but were not updated.

        These are all fragments if a column has the name of another one of the earlier version, and those with values of
        restored columns that the earlier version lacks.
        """
        if self._has_taken_names(source, feed):
            return list(self._load_fragments(feed).ids)
        fields = self._find_regained(source, feed)
        if not fields:
            return []
        fragments = self._load_fragments(feed)
        return [f.id for f in fragments if any(not fields.isdisjoint(file.fields) for file in f.files)]

    def _has_taken_names(self, source: int, feed: int) -> bool:
        """Whether a column has the name of another one of an earlier version, or a field the path and id."""
        before = {path: node.id for path, node in self.schema(source).walk_paths()}
        after = [(path, node.id) for path, node in self.schema(feed).walk_paths()]
        pairs = [(now, before[path]) for path, now in after if path in before and (now == before[path] or not path[1:])]
        has_same_ids = all(now == then for now, then in pairs)
        if has_same_ids and max((now for now, _ in pairs), default=-1) <= self.highest_shared_id(source, feed):
            return False
        try:
            origins = self.origins(source, feed)
        except VersionNotFoundError:
            return not has_same_ids
        return any(origins.get(now) != then for now, then in pairs)

    def _find_regained(self, source: int, feed: int) -> frozenset[int]:
        """The fields of a version by id that an earlier one lacks, and that were restored since then.

        If a version in between was cleaned up, all fields whose ids the earlier version lacks.
        """
        before, fields = self.schema(source).by_id().keys(), self.schema(feed).by_id().keys()
        lacking = frozenset(fields - before)
        if not lacking and self.highest_shared_id(source, feed) >= max(fields, default=-1):
            return lacking
        try:
            ids, restored = self._trace_back(source, feed)
            step = {} if restored is None else self.origins(source, restored)
        except VersionNotFoundError:
            return lacking
        return frozenset() if restored is None else frozenset(now for now, then in ids.items() if then not in step)

    def _trace_back(self, source: int, feed: int) -> tuple[_Origins, int | None]:
        """Follow fields to an earlier version, or to one before that which was restored in between.

        Returns:
            The fields of `feed` by id, each with its id in the version that was reached; and that version if it is
            before `source`.
        """
        ids = {node.id: node.id for node, _ in self.schema(feed).walk()}
        version = feed
        while version > source:
            operation = self._load_operation(version)
            if isinstance(operation, Restore):
                version = operation.version
                continue
            if operation is None or isinstance(operation, Merge | Project | Overwrite | Clone | UnknownOperation):
                if version not in self._steps:
                    self._steps[version] = self._trace_operation(version, self._load_operation(version))
                step = self._steps[version]
                ids = {now: step[then] for now, then in ids.items() if then in step}
            version -= 1
        return ids, None if version == source else version

    def _load_fragments(self, version: int) -> FragmentList:
        return self._open_version(version).snapshot.manifest.fragments

    def _open_version(self, version: int) -> Handle:
        if version == self._dataset.version:
            return self._dataset
        if version not in self._opened:
            if len(self._opened) == _MAX_OPENED:
                del self._opened[next(iter(self._opened))]
            self._opened[version] = version_before(self._dataset, version)
        return self._opened[version]

    def _load_operation(self, version: int) -> Operation | None:
        if version not in self._operations:
            transaction = self._commits.transaction(version)
            self._operations[version] = None if transaction is None else transaction.operation
        return self._operations[version]

    def _trace_operation(self, version: int, operation: Operation | None) -> _Origins:
        before, after = self.schema(version - 1), self.schema(version)
        if isinstance(operation, Overwrite):
            before_ids = {path: field.id for path, field in before.walk_paths()}
            return {field.id: before_ids[path] for path, field in after.walk_paths() if path in before_ids}
        if operation is None or isinstance(operation, Clone | UnknownOperation):
            if list(map(_shape, before.fields)) != list(map(_shape, after.fields)):
                raise VersionNotFoundError(f"version {version} does not record what it did to the columns")
            return {node.id: node.id for node, _ in after.walk()}
        return _trace_altered(before, after)


def _trace_altered(before: Schema, after: Schema) -> _Origins:
    """The fields after an operation by id, each with its id before; only cast columns have other ids."""
    shared_ids = {node.id for node, _ in before.walk()} & {node.id for node, _ in after.walk()}
    by_path = {path: field.id for path, field in before.walk_paths() if field.id not in shared_ids}
    ids_before = {number: number for number in shared_ids}
    ids_before |= {
        field.id: by_path[path] for path, field in after.walk_paths() if field.id not in shared_ids and path in by_path
    }
    if len(before.fields) == len(after.fields):  # a column that is renamed and cast at once keeps its position
        pairs = zip(before.fields, after.fields, strict=True)
        ids_before |= {
            new.id: old.id for old, new in pairs if new.id not in ids_before and old.id not in ids_before.values()
        }
    return ids_before


def _place(file: DataFile) -> tuple[str, int | None]:
    return file.path, file.base_id


def _shape(field: Field) -> tuple[object, ...]:
    """The id, name and type of a field."""
    return field.id, field.name, field.logical_type, tuple(map(_shape, field.children))
