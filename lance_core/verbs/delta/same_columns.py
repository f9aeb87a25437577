"""Match the columns of one version to those of another.

Field ids alone do not identify columns: an overwrite renumbers them, and a restore goes back to earlier numbers, so
one id may stand for different columns. A column of the later version is matched to one of these columns of the
earlier version:

    columns of both versions                      matched by
    ------------------------------------------    -------------------------------------------------------------------
    all have the same ids, names and types        these
    some differ, data files are shared            the ids, names and types of the others, whose ids are in shared files
    some differ, and files do not suffice         renames, casts, overwrites and restores of the versions in between

If there is none, the column was added later, whatever its name. An overwrite continues columns by their names. Children
of a column are followed in the same way, by their paths instead of their names. If one of the versions in between was
cleaned up, an error names the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lance_core.errors import VersionNotFoundError
from lance_core.schema import Field, Schema
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.operations import Clone, Operation, Overwrite, Restore, UnknownOperation
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.delta.version_of_branch import BranchHistory, version_before

__all__ = ["SameColumns", "same_columns"]

_Origins = dict[int, int]
"""Ids of fields of a version, each with the id of the same field in an earlier version."""


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


def same_columns(dataset: Handle, source: int, feed: int, names: Collection[str]) -> SameColumns:
    """Match the columns of two versions of a table.

    Args:
        dataset: The table, at any version.
        source: The version that has the rows.
        feed: The version that has the wanted columns.
        names: Names of columns of `feed` that are wanted.

    Raises:
        VersionNotFoundError: A version in between was cleaned up, and columns were renamed, replaced or given other
            types.
    """
    history = _History(dataset)
    source_schema, feed_schema = history.schema(source), history.schema(feed)
    names_by_shape = {_shape(field): field.name for field in source_schema.fields}
    same_names = {
        field.name: names_by_shape[_shape(field)] for field in feed_schema.fields if _shape(field) in names_by_shape
    }
    missing = [field for field in feed_schema.fields if field.name not in same_names]
    left = [field for field in source_schema.fields if field.name not in same_names.values()]
    open_names = [field.name for field in missing if field.name in names]
    if not open_names:
        return SameColumns(same_names)
    shared = history.shared_fields(source, feed)
    if not left and all(field.id in shared for field in feed_schema.fields if field.name in same_names):
        return SameColumns(same_names)
    try:
        origins = history.origins(source, feed)
    except VersionNotFoundError as error:
        if not left:
            return SameColumns(same_names)
        raise VersionNotFoundError(
            f"{dataset.uri}: it is not known which columns of version {source} became {open_names} of version {feed}: "
            f"{error}. Leave these columns out (columns=[...]), or compare later versions"
        ) from error
    by_id = {field.id: field.name for field in source_schema.fields}
    pairs = {field.name: by_id.get(origins.get(field.id, -1)) for field in feed_schema.fields}
    return SameColumns({now: then for now, then in pairs.items() if then is not None}, origins)


class _History:
    """Follows the columns of a table through its versions.

    Args:
        dataset: The table.
    """

    def __init__(self, dataset: Handle) -> None:
        self._dataset = dataset
        self._commits = BranchHistory(dataset)
        self._steps: dict[int, _Origins] = {}
        self._operations: dict[int, Operation | None] = {}

    def schema(self, version: int) -> Schema:
        """The columns of a version."""
        return self._open_version(version).source.manifest.schema

    def shared_fields(self, version: int, other_version: int) -> set[int]:
        """The ids of fields in data files that two versions share: in both, such an id stands for the same column."""
        files = {_place(file): file.fields for fragment in self._load_fragments(version) for file in fragment.files}
        other_files = (file for fragment in self._load_fragments(other_version) for file in fragment.files)
        return {number for file in other_files for number in {*file.fields} & {*files.get(_place(file), ())}}

    def _load_fragments(self, version: int) -> Iterable[Fragment]:
        return self._open_version(version).source.manifest.fragments

    def origins(self, source: int, feed: int) -> _Origins:
        """The fields of a version by id, each with its id in another version that is earlier or later.

        Raises:
            VersionNotFoundError: A version in between was cleaned up, or how it was made is not known.
        """
        if source > feed:
            return {before: now for now, before in self.origins(feed, source).items()}
        ids = {node.id: node.id for node, _ in self.schema(feed).walk()}
        version = feed
        while version > source:
            restored = self._find_restored(version)
            if restored is not None and restored >= source:
                version = restored
                continue
            step = self._trace_step(version) if restored is None else self.origins(source, restored)
            ids = {now: step[then] for now, then in ids.items() if then in step}
            version = version - 1 if restored is None else source
        return ids

    def _open_version(self, version: int) -> Handle:
        return self._dataset if version == self._dataset.version else version_before(self._dataset, version)

    def _find_restored(self, version: int) -> int | None:
        """The version that another one restored; None for other versions."""
        operation = self._load_operation(version)
        return operation.version if isinstance(operation, Restore) else None

    def _load_operation(self, version: int) -> Operation | None:
        if version not in self._operations:
            transaction = self._commits.transaction(version)
            self._operations[version] = None if transaction is None else transaction.operation
        return self._operations[version]

    def _trace_step(self, version: int) -> _Origins:
        """The fields of a version by id, each with its id in the version before it."""
        if version not in self._steps:
            self._steps[version] = self._trace_operation(version, self._load_operation(version))
        return self._steps[version]

    def _trace_operation(self, version: int, operation: Operation | None) -> _Origins:
        before, after = self.schema(version - 1), self.schema(version)
        if isinstance(operation, Overwrite):
            before_ids = {path: field.id for path, field in _walk_paths(before.fields)}
            return {field.id: before_ids[path] for path, field in _walk_paths(after.fields) if path in before_ids}
        if operation is None or isinstance(operation, Clone | UnknownOperation):
            if list(map(_shape, before.fields)) != list(map(_shape, after.fields)):
                raise VersionNotFoundError(f"version {version} does not record what it did to the columns")
            return {node.id: node.id for node, _ in after.walk()}
        return _trace_altered(before, after)


def _trace_altered(before: Schema, after: Schema) -> _Origins:
    """The fields after an operation by id, each with its id before; only cast columns have other ids."""
    shared_ids = {node.id for node, _ in before.walk()} & {node.id for node, _ in after.walk()}
    by_path = {path: field.id for path, field in _walk_paths(before.fields) if field.id not in shared_ids}
    ids_before = {number: number for number in shared_ids}
    ids_before |= {
        field.id: by_path[path]
        for path, field in _walk_paths(after.fields)
        if field.id not in shared_ids and path in by_path
    }
    if len(before.fields) == len(after.fields):  # a column that is renamed and cast at once keeps its position
        pairs = zip(before.fields, after.fields, strict=True)
        ids_before |= {
            new.id: old.id for old, new in pairs if new.id not in ids_before and old.id not in ids_before.values()
        }
    return ids_before


def _walk_paths(fields: Sequence[Field], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Yield all fields, each with its path."""
    for node in fields:
        path = (*above, node.name)
        yield path, node
        yield from _walk_paths(node.children, path)


def _place(file: DataFile) -> tuple[str, int | None]:
    return file.path, file.base_id


def _shape(field: Field) -> tuple[object, ...]:
    """The id, name and type of a field."""
    return field.id, field.name, field.logical_type, tuple(map(_shape, field.children))
