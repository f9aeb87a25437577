"""Rejects new data files whose columns have been replaced since they were written.

Data files refer to columns by field id. A column that gets another type gets a new id, and so does a column that is
dropped and added again: files that were written before, and are committed after that, have values that nobody reads. If
no data file has the id of a dropped column any more, the next column gets that id and would show the old values. A
column that was only dropped is no conflict, because the rows could have been committed before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from lance_core.commit.versions import load_manifest
from lance_core.errors import RetryableConflictError, VersionNotFoundError
from lance_core.file import DataFileReader
from lance_core.schema import Field, Schema, quote_path
from lance_core.store import ObjectStore, open_base
from lance_core.table.field_ids import field_ids_of, files_with_others
from lance_core.table.fragment import DataFile
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge, Overwrite, Project
from lance_core.table.paths import DATA_PREFIX, data_key
from lance_core.table.transaction import Transaction

__all__ = ["reject_replaced_columns"]

_Path: TypeAlias = tuple[Field, ...]
"""A field with the fields above it, the top one first."""


def reject_replaced_columns(
    store: ObjectStore,
    transaction: Transaction,
    latest: Manifest,
    base: Manifest | None,
    committed: Mapping[int, Transaction],
) -> None:
    """Reject new data files with values of a column that has another field id now, or whose id another column has.

    Args:
        store: The dataset's store.
        transaction: The transaction as it was made.
        latest: The version that it would follow.
        base: A version that was read before.
        committed: The transactions since its read version, by version.

    Raises:
        RetryableConflictError: The column of such a file was replaced.
        ObjectNotFoundError: Such a file does not exist.
    """
    operation = transaction.operation
    changes = [committed[version].operation for version in sorted(committed)]
    schemas = [
        (change.schema, isinstance(change, Merge))
        for change in changes
        if isinstance(change, Merge | Project | Overwrite)
    ]
    schema = operation.schema if isinstance(operation, Merge) else latest.schema
    live = field_ids_of(schema)
    unbroken = live.intersection(*(field_ids_of(schema) for schema, _ in schemas))
    files = files_with_others(operation, latest, unbroken)
    if not files:
        return
    history = _ColumnHistory.of(store, transaction.read_version, (base, latest), schemas)
    names = {_names(path) for path in _paths(schema.fields)}
    for file in files:
        lost = set(file.fields) - unbroken - (live - history.dropped)
        paths_by_id = history.paths
        if not paths_by_id.keys() >= lost:
            paths_by_id = {**_paths_by_id((_schema_of(store, latest, file),)), **paths_by_id}
        for field_id in sorted(lost):
            paths = paths_by_id.get(field_id, ())
            if field_id in live | history.replaced or any(_has_successor(path, live, names) for path in paths):
                name = _names(paths[0 if field_id in live else -1]) if paths else ()
                column = repr(quote_path(name)) if paths else f"field id {field_id}"
                raise RetryableConflictError(
                    f"Retryable commit conflict: {store.root}: data file {file.path} has values of column {column}, "
                    "which got another type or was dropped and added again after the file was written, so that its "
                    "values would be lost or those of another column; write the rows again"
                )


class _ColumnHistory:
    """What the versions since the read version show of their columns.

    Attributes:
        paths: Each field by its id, as each version has it.
        replaced: Ids of fields that a Merge, which only adds or replaces columns, has taken away.
        dropped: Ids of fields that any version has taken away, or that one may have taken away, as the read version was
            cleaned up.
    """

    __slots__ = ("dropped", "paths", "replaced")

    def __init__(self, schemas: Sequence[tuple[Schema | None, bool]]) -> None:
        self.paths = _paths_by_id(schema for schema, _ in schemas if schema is not None)
        self.replaced, self.dropped = set[int](), set[int]()
        for (before, _), (after, merged) in itertools.pairwise(schemas):
            assert after is not None
            lost = (self.paths if before is None else before.by_id()).keys() - after.by_id().keys()
            self.dropped |= lost
            self.replaced |= lost if before is not None and merged else set()

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        read_version: int,
        manifests: Iterable[Manifest | None],
        schemas: Sequence[tuple[Schema, bool]],
    ) -> _ColumnHistory:
        """Read the version before the first change of columns, if it is not one of some manifests."""
        if not schemas:
            return cls([])
        read_manifest = next(
            (manifest for manifest in manifests if manifest is not None and manifest.version == read_version), None
        )
        try:
            first = (read_manifest or load_manifest(store, read_version)).schema
        except VersionNotFoundError:  # cleaned up; the files have the names of their columns, too
            first = None
        return cls([(first, False), *schemas])


def _has_successor(path: _Path, live: AbstractSet[int], names: AbstractSet[tuple[str, ...]]) -> bool:
    """Whether a field of a path has another id now."""
    return any(field.id not in live and _names(path[: depth + 1]) in names for depth, field in enumerate(path))


def _schema_of(store: ObjectStore, manifest: Manifest, file: DataFile) -> Schema:
    key = data_key(file.path)
    if file.base_id is not None:
        base = manifest.base_path(file.base_id)
        store = open_base(base.path, store.root, store.options)
        key = key if base.is_dataset_root else key.removeprefix(DATA_PREFIX)
    return DataFileReader.open(store, key, size=file.file_size_bytes or None).schema


def _paths_by_id(schemas: Iterable[Schema]) -> dict[int, list[_Path]]:
    paths_by_id: dict[int, list[_Path]] = {}
    for schema in schemas:
        for path in _paths(schema.fields):
            paths_by_id.setdefault(path[-1].id, []).append(path)
    return paths_by_id


def _paths(fields: Iterable[Field], above: _Path = ()) -> Iterator[_Path]:
    for field in fields:
        path = (*above, field)
        yield path
        yield from _paths(field.children, path)


def _names(path: _Path) -> tuple[str, ...]:
    return tuple(field.name for field in path)
