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
    theirs, own = history.schema(source), history.schema(feed)
    known = {_shape(one): one.name for one in theirs.fields}
    found = {one.name: known[_shape(one)] for one in own.fields if _shape(one) in known}
    missing = [one for one in own.fields if one.name not in found]
    left = [one for one in theirs.fields if one.name not in found.values()]
    open_names = [one.name for one in missing if one.name in names]
    if not open_names:
        return SameColumns(found)
    shared = history.shared_fields(source, feed)
    if not left and all(one.id in shared for one in own.fields if one.name in found):
        return SameColumns(found)
    try:
        origins = history.origins(source, feed)
    except VersionNotFoundError as error:
        if not left:
            return SameColumns(found)
        raise VersionNotFoundError(
            f"{dataset.uri}: it is not known which columns of version {source} became {open_names} of version {feed}: "
            f"{error}. Leave these columns out (columns=[...]), or compare later versions"
        ) from error
    by_id = {one.id: one.name for one in theirs.fields}
    pairs = {one.name: by_id.get(origins.get(one.id, -1)) for one in own.fields}
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
        return self._at(version).source.manifest.schema

    def shared_fields(self, one: int, other: int) -> set[int]:
        """The ids of fields in data files that two versions share: in both, such an id stands for the same column."""
        files = {_place(file): file.fields for fragment in self._fragments(one) for file in fragment.files}
        others = (file for fragment in self._fragments(other) for file in fragment.files)
        return {number for file in others for number in {*file.fields} & {*files.get(_place(file), ())}}

    def _fragments(self, version: int) -> Iterable[Fragment]:
        return self._at(version).source.manifest.fragments

    def origins(self, source: int, feed: int) -> _Origins:
        """The fields of a version by id, each with its id in another version that is earlier or later.

        Raises:
            VersionNotFoundError: A version in between was cleaned up, or how it was made is not known.
        """
        if source > feed:
            return {before: now for now, before in self.origins(feed, source).items()}
        found = {one.id: one.id for one, _ in self.schema(feed).walk()}
        version = feed
        while version > source:
            restored = self._restored(version)
            if restored is not None and restored >= source:
                version = restored
                continue
            step = self._step(version) if restored is None else self.origins(source, restored)
            found = {now: step[then] for now, then in found.items() if then in step}
            version = version - 1 if restored is None else source
        return found

    def _at(self, version: int) -> Handle:
        return self._dataset if version == self._dataset.version else version_before(self._dataset, version)

    def _restored(self, version: int) -> int | None:
        """The version that another one restored; None for other versions."""
        operation = self._operation(version)
        return operation.version if isinstance(operation, Restore) else None

    def _operation(self, version: int) -> Operation | None:
        if version not in self._operations:
            transaction = self._commits.transaction(version)
            self._operations[version] = None if transaction is None else transaction.operation
        return self._operations[version]

    def _step(self, version: int) -> _Origins:
        """The fields of a version by id, each with its id in the version before it."""
        if version not in self._steps:
            self._steps[version] = self._continued(version, self._operation(version))
        return self._steps[version]

    def _continued(self, version: int, operation: Operation | None) -> _Origins:
        before, after = self.schema(version - 1), self.schema(version)
        if isinstance(operation, Overwrite):
            before_ids = {path: one.id for path, one in _paths(before.fields)}
            return {one.id: before_ids[path] for path, one in _paths(after.fields) if path in before_ids}
        if operation is None or isinstance(operation, Clone | UnknownOperation):
            if list(map(_shape, before.fields)) != list(map(_shape, after.fields)):
                raise VersionNotFoundError(f"version {version} does not record what it did to the columns")
            return {one.id: one.id for one, _ in after.walk()}
        return _altered(before, after)


def _altered(before: Schema, after: Schema) -> _Origins:
    """The fields after an operation by id, each with its id before; only cast columns have other ids."""
    kept = {one.id for one, _ in before.walk()} & {one.id for one, _ in after.walk()}
    by_path = {path: one.id for path, one in _paths(before.fields) if one.id not in kept}
    found = {number: number for number in kept}
    found |= {one.id: by_path[path] for path, one in _paths(after.fields) if one.id not in kept and path in by_path}
    if len(before.fields) == len(after.fields):  # a column that is renamed and cast at once keeps its position
        pairs = zip(before.fields, after.fields, strict=True)
        found |= {new.id: old.id for old, new in pairs if new.id not in found and old.id not in found.values()}
    return found


def _paths(fields: Sequence[Field], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Yield all fields, each with its path."""
    for one in fields:
        path = (*above, one.name)
        yield path, one
        yield from _paths(one.children, path)


def _place(file: DataFile) -> tuple[str, int | None]:
    return file.path, file.base_id


def _shape(one: Field) -> tuple[object, ...]:
    """The id, name and type of a field."""
    return one.id, one.name, one.logical_type, tuple(map(_shape, one.children))
