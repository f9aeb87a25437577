"""Which column of one version is which column of another.

Field ids alone do not say it: an overwrite numbers its columns anew, and a restore goes back to an earlier number, so
that one id stands for different columns. In this order, a column of the later version is that of the earlier one

    1. of the same id, name and type
    2. that it was before renames, other types, overwrites and restores, as the versions in between show
    3. of the same name, unless that became another column

and otherwise came later. An overwrite continues columns by their names. The versions in between are read only where
both versions have columns that 1 leaves open; if one was cleaned up then, an error names the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lance_core.commit import load_transaction
from lance_core.errors import VersionNotFoundError
from lance_core.schema import Field, Schema
from lance_core.table.operations import Clone, Operation, Overwrite, Restore, UnknownOperation
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.delta.version_of_branch import version_before

__all__ = ["same_columns"]

_Origins = dict[int, int]
"""Ids of columns of a version, each with the id of the same column in an earlier version."""


def same_columns(dataset: Handle, source: int, feed: int, names: Collection[str]) -> Mapping[str, str]:
    """The columns that two versions both have.

    Args:
        dataset: The table, at any version.
        source: The version that has the rows.
        feed: The version that has the columns which are wanted.
        names: Names of columns of `feed` that are wanted.

    Returns:
        Names of wanted columns that `source` has, each with the name of the same column in `source`.

    Raises:
        VersionNotFoundError: A version in between was cleaned up, and columns were renamed, replaced or given other
            types.
    """
    history = _History(dataset)
    theirs, own = history.schema(source), history.schema(feed)
    known = {_shape(field): field.name for field in theirs.fields}
    found = {field.name: known[_shape(field)] for field in own.fields if _shape(field) in known}
    missing = [field for field in own.fields if field.name not in found]
    left = {field.id: field.name for field in theirs.fields if field.name not in found.values()}
    open_names = [field.name for field in missing if field.name in names]
    if not open_names or not left:
        return found
    try:
        origins = history.origins(source, feed)
    except VersionNotFoundError as error:
        raise VersionNotFoundError(
            f"{dataset.uri}: which columns of version {source} became {open_names} of version {feed} is not known: "
            f"{error}. Leave these columns out (columns=[...]), or compare later versions"
        ) from error
    by_history = {field.name: origins.get(field.id) for field in missing}
    found |= {name: left.pop(number) for name, number in by_history.items() if number in left}
    return found | {field.name: field.name for field in missing if field.name in left.values()}


class _History:
    """What happened to the columns of a table, version by version.

    Args:
        dataset: The table.
    """

    def __init__(self, dataset: Handle) -> None:
        self._dataset = dataset
        self._steps: dict[int, _Origins] = {}

    def schema(self, version: int) -> Schema:
        """The columns of a version."""
        return self._at(version).source.manifest.schema

    def origins(self, source: int, feed: int) -> _Origins:
        """The columns of a version by id, each with its id in another version that is earlier or later.

        Raises:
            VersionNotFoundError: A version in between was cleaned up, or how it was made is not known.
        """
        if source > feed:
            return {before: now for now, before in self.origins(feed, source).items()}
        found = {field.id: field.id for field in self.schema(feed).fields}
        for version in range(feed, source, -1):
            step = self._step(version)
            found = {now: step[then] for now, then in found.items() if then in step}
        return found

    def _at(self, version: int) -> Handle:
        return self._dataset if version == self._dataset.version else version_before(self._dataset, version)

    def _step(self, version: int) -> _Origins:
        """The columns of a version in the version before it."""
        if version not in self._steps:
            at = self._at(version).source
            transaction = load_transaction(at.store, at.manifest)
            operation = None if transaction is None else transaction.operation
            self._steps[version] = self._continued(version, operation)
        return self._steps[version]

    def _continued(self, version: int, operation: Operation | None) -> _Origins:
        if isinstance(operation, Restore):
            return self.origins(version - 1, operation.version)
        before, after = self.schema(version - 1), self.schema(version)
        by_name = {field.name: field.id for field in before.fields}
        if isinstance(operation, Overwrite):
            return {field.id: by_name[field.name] for field in after.fields if field.name in by_name}
        if operation is None or isinstance(operation, Clone | UnknownOperation):
            if list(map(_shape, before.fields)) != list(map(_shape, after.fields)):
                raise VersionNotFoundError(f"version {version} does not record what it did to the columns")
            return {field.id: field.id for field in after.fields}
        return _altered(before, after)


def _altered(before: Schema, after: Schema) -> _Origins:
    """The columns after an operation that keeps ids, except those of columns that get another type."""
    kept = {field.id for field in before.fields} & {field.id for field in after.fields}
    by_name = {field.name: field.id for field in before.fields if field.id not in kept}
    found = {number: number for number in kept}
    found |= {field.id: by_name[field.name] for field in after.fields if field.id not in kept and field.name in by_name}
    if len(before.fields) == len(after.fields):  # another name and another type at once: the column keeps its place
        pairs = zip(before.fields, after.fields, strict=True)
        found |= {new.id: old.id for old, new in pairs if new.id not in found and old.id not in found.values()}
    return found


def _shape(field: Field) -> tuple[object, ...]:
    """The id, name and type of a field."""
    return field.id, field.name, field.logical_type, tuple(map(_shape, field.children))
