"""Changes the type of a column: its values are rewritten in one commit, and no other column is touched.

check     every live value is converted once, and nothing is written
convert   the column, in new data files, and drop its indices; the data files of other columns stay
rebuild   each index with its parameters, in a version of its own, again after conflicts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lance_core.commit.versions import reload_latest
from lance_core.errors import CommitConflictError, IncompatibleConflictError, LanceError, SchemaError, UnsupportedError
from lance_core.index.kinds.registry import KINDS
from lance_core.retry import retrying
from lance_core.schema import Field, arrow_type_of
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.columns.alter import Convert, retype_columns
from lance_core.verbs.context.handle import Handle, Snapshot
from lance_core.verbs.files.column_files import live_batches
from lance_core.verbs.indices.create import create_scalar_index

_REBUILT: Final = ("ZoneMap", "BTree", "Bitmap", "BloomFilter")
"""The kinds of indices that are built again."""


def change_type(
    dataset: Handle,
    column: str,
    data_type: pa.DataType,
    convert: Convert,
    *,
    transaction_properties: Mapping[str, str] | None = None,
) -> None:
    """Give a column another type; the handle moves to the last version that is made.

    Args:
        dataset: The handle, on the latest version of its branch.
        column: A column of the table itself, not of a struct.
        data_type: Its new type.
        convert: Converts values: is called, more than once, with the old values of some rows and with the new field,
            and returns values of the new type.
        transaction_properties: Transaction properties of the commits.

    Raises:
        SchemaError: The column does not exist, or `convert` raises this error; nothing was written.
        UnsupportedError: The column has an index that cannot be built here, or not for the new type; nothing was
            written.
        RetryableConflictError: Another writer changed the same rows at the same time; nothing was committed.
        IncompatibleConflictError: The column has its new type, but an index could not be built again; the message has
            the calls that build the indices.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> maintenance.change_type(table, "id", pa.int32(), lambda values, field: values.cast(pa.int32()))
        >>> str(lance.dataset("t.lance").schema.field("id").type)
        'int32'
    """
    schema = dataset.snapshot.manifest.schema
    if column not in (field.name for field in schema.fields):
        raise SchemaError(f"there is no column {column!r}; the columns are {[field.name for field in schema.fields]}")
    indices = _find_indices_on(dataset.snapshot, schema.column(column), data_type)
    _check(dataset, column, data_type, convert)
    dataset.move_to(retype_columns(dataset.snapshot, {column: data_type}, convert, transaction_properties))
    for number, index in enumerate(indices):
        try:
            _build(dataset, column, index, transaction_properties)
        except LanceError as error:
            calls = " and ".join(index.call(column) for index in indices[number:])
            raise IncompatibleConflictError(
                f"column {column!r} has the type {data_type} since version {dataset.version}, but not all its indices "
                f"were built again; do not change the type again, but call {calls}: {error}"
            ) from error


def _check(dataset: Handle, column: str, data_type: pa.DataType, convert: Convert) -> None:
    read = dataset.snapshot.manifest.schema.project([column])
    for fragment in dataset.snapshot.manifest.fragments:
        for rows, _ in live_batches(dataset.snapshot, fragment, read):
            convert(rows.column(0), pa.field(column, data_type))


@dataclass(frozen=True, slots=True)
class _DroppedIndex:
    """An index that is built again.

    Attributes:
        name: Its name.
        kind: Its kind, as `create_scalar_index` takes it.
        parameters: Its parameters.
    """

    name: str
    kind: str
    parameters: Mapping[str, int | float]

    def call(self, column: str) -> str:
        """The call in Python that builds it."""
        parameters = "".join(f", {key}={value!r}" for key, value in self.parameters.items())
        return f"create_scalar_index({column!r}, {self.kind!r}, name={self.name!r}{parameters})"


def _find_indices_on(snapshot: Snapshot, field: Field, data_type: pa.DataType) -> list[_DroppedIndex]:
    """The indices on a column, which can be built again for values of another type.

    Raises:
        UnsupportedError: An index cannot be built again.
    """
    ids, dropped = {node.id for node, _ in field.walk()}, dict[str, _DroppedIndex]()
    for index in snapshot.manifest.indices:
        if ids.isdisjoint({*index.fields, *index.covering_fields}):
            continue
        kind = KINDS.get(index.kind) if index.kind in _REBUILT else None
        if kind is None or index.fields != (field.id,) or index.covering_fields or not kind.accepts(data_type):
            raise UnsupportedError(
                f"column {field.name!r} has the {index.kind} index {index.name!r}, which cannot be rebuilt here for "
                f"values of type {data_type}; drop it, change the type, and build it again"
            )
        content = snapshot.indices.try_read(index, arrow_type_of(field))
        parameters = dropped[index.name].parameters if index.name in dropped else kind.parameters
        dropped[index.name] = _DroppedIndex(
            index.name, kind.name, parameters if content is None else {**parameters, **content.parameters()}
        )
    return list(dropped.values())


def _build(dataset: Handle, column: str, index: _DroppedIndex, properties: Mapping[str, str] | None) -> None:
    def attempt(snapshot: Snapshot, _: int) -> Manifest:
        return create_scalar_index(
            snapshot,
            [column],
            index.kind,
            index.name,
            replace=True,
            train=True,
            arguments=index.parameters,
            properties=properties,
        )

    def following(snapshot: Snapshot, _: CommitConflictError) -> Snapshot:
        return snapshot.with_manifest(reload_latest(snapshot.store, snapshot.manifest))

    dataset.move_to(retrying(dataset.snapshot, attempt, following))
