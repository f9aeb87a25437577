"""The unenforced keys of a schema: their fields, and the rules for a primary key."""

from __future__ import annotations

from lance_core.errors import SchemaError
from lance_core.schema.field import Field, Schema

__all__ = ["check_primary_key", "clustering_key", "primary_key"]


def primary_key(schema: Schema) -> tuple[Field, ...]:
    """The fields of the primary key, in its order."""
    members = [node for node, _ in schema.walk() if node.primary_key.is_member]
    return tuple(sorted(members, key=lambda node: node.primary_key.order))


def clustering_key(schema: Schema) -> tuple[Field, ...]:
    """The fields of the clustering key, in its order."""
    members = [node for node, _ in schema.walk() if node.clustering_key.is_member]
    return tuple(sorted(members, key=lambda node: node.clustering_key.order))


def check_primary_key(fields: tuple[Field, ...]) -> None:
    """Reject a primary key that cannot identify rows.

    Raises:
        SchemaError: A member is nullable, has a nullable ancestor, is not a leaf, or is inside a list.
    """
    for top in fields:
        _check(top, top.name, nullable=False, listed=False)


def _check(node: Field, path: str, *, nullable: bool, listed: bool) -> None:
    nullable = nullable or node.nullable
    if node.primary_key.is_member:
        if node.children:
            raise SchemaError(f"Primary key column must be a leaf: {path!r} is of type {node.logical_type}")
        if nullable:
            raise SchemaError(
                f"Primary key column and all its ancestors must not be nullable: {path!r}; "
                "declare it with nullable=False"
            )
        if listed:
            raise SchemaError(f"Primary key column must not be in a list type: {path!r}")
    listed = listed or node.logical_type.split(":")[0].split(".")[0] in ("list", "large_list", "fixed_size_list", "map")
    for child in node.children:
        _check(child, f"{path}.{child.name}", nullable=nullable, listed=listed)
