"""Changes the type of a column: its values are rewritten in one commit, and no other column is touched.

check     every live value is converted once, and nothing is written
drop      each index on the column, in a version of its own
convert   the column, in new data files; the data files of other columns stay
rebuild   each index, in a version of its own
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from lance_core.commit import commit
from lance_core.errors import SchemaError, UnsupportedError
from lance_core.maintenance.zone_maps import ROWS_PER_ZONE
from lance_core.table.operations import CreateIndex
from lance_core.table.transaction import Transaction
from lance_core.verbs.columns.alter import Convert, retype_columns
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.files.column_files import live_batches
from lance_core.verbs.indices.create import create_scalar_index
from lance_core.verbs.inspect.indices import IndexDescription, describe_indices

__all__ = ["change_type"]

_REBUILT: Final[Mapping[str, str]] = {
    "ZoneMap": "ZONEMAP",
    "BTree": "BTREE",
    "Bitmap": "BITMAP",
    "BloomFilter": "BLOOMFILTER",
}
"""The `index_type` that builds each kind of index again."""


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
        UnsupportedError: The column has an index that cannot be built here; nothing was written.
        RetryableConflictError: Another writer changed the same rows at the same time. Indices that were dropped before
            the conflict have to be built again by the caller.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> maintenance.change_type(table, "id", pa.int32(), lambda values, field: values.cast(pa.int32()))
        >>> str(lance.dataset("t.lance").schema.field("id").type)
        'int32'
    """
    schema = dataset.source.manifest.schema
    if column not in (field.name for field in schema.fields):
        raise SchemaError(f"there is no column {column!r}; the columns are {[field.name for field in schema.fields]}")
    indices = [one for one in describe_indices(dataset.source) if column in one.field_names]
    for index in indices:
        if index.index_type not in _REBUILT or len(index.field_names) > 1:
            raise UnsupportedError(
                f"column {column!r} has the {index.index_type} index {index.name!r}, which cannot be rebuilt here; "
                "drop it, change the type, and build it again"
            )
    _check(dataset, column, data_type, convert)
    for index in indices:
        _drop(dataset, index, transaction_properties)
    dataset.move_to(retype_columns(dataset.source, {column: data_type}, convert, transaction_properties))
    for index in indices:
        _build(dataset, column, index, transaction_properties)


def _check(dataset: Handle, column: str, data_type: pa.DataType, convert: Convert) -> None:
    read = dataset.source.manifest.schema.project([column])
    for fragment in dataset.source.manifest.fragments:
        for rows, _ in live_batches(dataset.source, fragment, read):
            convert(rows.column(0), pa.field(column, data_type))


def _drop(dataset: Handle, index: IndexDescription, properties: Mapping[str, str] | None) -> None:
    base = dataset.source.manifest
    removed = tuple(one for one in base.indices if one.name == index.name)
    transaction = Transaction(
        read_version=base.version,
        operation=CreateIndex(removed_indices=removed),
        properties=dict(properties or {}),
    )
    dataset.move_to(commit(dataset.source.store, transaction, base=base).manifest)


def _build(dataset: Handle, column: str, index: IndexDescription, properties: Mapping[str, str] | None) -> None:
    kind = _REBUILT[index.index_type]
    arguments = {"rows_per_zone": ROWS_PER_ZONE} if kind == "ZONEMAP" else {}
    made = create_scalar_index(
        dataset.source,
        [column],
        kind,
        index.name,
        replace=True,
        train=True,
        arguments=arguments,
        properties=properties,
    )
    dataset.move_to(made)
