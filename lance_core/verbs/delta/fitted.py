"""Fit values of a column from one version to its type in another, where children were renamed, added or dropped."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.schema import Field


def fitted(values: pa.Array, source: Field, target: Field, kind: pa.DataType, fields: Mapping[int, int]) -> pa.Array:
    """Convert values of a column to the type that the column has in another version.

    Args:
        values: The values.
        source: The column, as a field of the version of the values.
        target: The column, as a field of the other version.
        kind: The column's type in the other version.
        fields: Ids of fields of the other version, each with the id of the same field in the version of `source`.

    Returns:
        The values, whose children are matched by field; a child that was added later is null.

    Raises:
        ArrowInvalid: A value does not fit the type of the other version.
        ArrowNotImplementedError: Values cannot be cast to the type of the other version.
    """
    if values.type == kind and _are_same(source, target, fields):
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        parts = [
            _fit_child(values, source, child, into.type, fields)
            for child, into in zip(target.children, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pc.is_null(values))
    if type(kind) is type(values.type) and isinstance(kind, pa.ListType | pa.LargeListType):
        whole = values.take(pa.array(range(len(values)))) if values.offset else values  # a slice takes no mask
        item = fitted(whole.values, source.children[0], target.children[0], kind.value_type, fields)
        return type(whole).from_arrays(whole.offsets, item, type=kind, mask=pc.is_null(whole))
    if pa.types.is_nested(kind) and _child_names(source) != _child_names(target):  # Arrow casts children by their names
        raise pa.ArrowNotImplementedError("its children have other names")
    return values.cast(kind)


def _are_same(source: Field, target: Field, fields: Mapping[int, int]) -> bool:
    """Whether the children of a column are those of the other version, as far as that is known."""
    before = [node.id for child in source.children for node, _ in child.walk()]
    return not fields or before == [fields.get(node.id) for child in target.children for node, _ in child.walk()]


def _child_names(column: Field) -> list[str]:
    return [node.name for child in column.children for node, _ in child.walk()]


def _fit_child(
    values: pa.StructArray, source: Field, target: Field, kind: pa.DataType, fields: Mapping[int, int]
) -> pa.Array:
    """A child of a struct, found by its field id, or by its name where the ids of children cannot be matched."""
    ids = [child.id for child in source.children]
    names = [child.name for child in source.children]
    position = next((ids.index(number) for number in [fields.get(target.id)] if number in ids), None)
    if position is None and not fields and target.name in names:
        position = names.index(target.name)
    if position is None:
        return pa.nulls(len(values), kind)
    return fitted(pc.struct_field(values, [position]), source.children[position], target, kind, fields)
