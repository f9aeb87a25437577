"""`LanceSchema` and `LanceField`: the public read-only schemas with field ids, under pylance's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa

from lance_core.errors import SchemaError
from lance_core.schema.field import Field, Schema, clustering_key, primary_key, split_path
from lance_core.schema.forms import field_to_arrow, resolve_extensions, schema_from_arrow, schema_to_arrow


class LanceField:
    """A column, or a part of one, with its id.

    Args:
        record: The field.
    """

    __slots__ = ("_record",)

    def __init__(self, record: Field) -> None:
        self._record = record

    def name(self) -> str:
        """Name among its siblings."""
        return self._record.name

    def id(self) -> int:
        """Field id; -1 if it has none yet."""
        return self._record.id

    def children(self) -> list[LanceField]:
        """The child fields."""
        return [LanceField(child) for child in self._record.children]

    @property
    def metadata(self) -> dict[str, str]:
        """Arrow field metadata."""
        return {key: value.decode(errors="replace") for key, value in self._record.metadata.items()}

    def to_arrow(self) -> pa.Field:
        """The Arrow field."""
        return field_to_arrow(self._record)

    def is_unenforced_primary_key(self) -> bool:
        """Whether the field is part of the primary key."""
        return self._record.primary_key.is_member

    def unenforced_primary_key_position(self) -> int | None:
        """Its position in the primary key; None if it has none."""
        return self._record.primary_key.position or None

    def is_unenforced_clustering_key(self) -> bool:
        """Whether the field is part of the clustering key."""
        return self._record.clustering_key.is_member

    def unenforced_clustering_key_position(self) -> int | None:
        """Its position in the clustering key; None if it has none."""
        return self._record.clustering_key.position or None

    def __repr__(self) -> str:
        """Name, id and type."""
        record = self._record
        return f"Field(id={record.id}, name={record.name}, type={record.logical_type}, nullable={record.nullable})"

    def __eq__(self, other: object) -> bool:
        """Whether all attributes are equal."""
        return isinstance(other, LanceField) and self._record == other._record

    def __hash__(self) -> int:
        """A hash of the name and the id."""
        return hash((self._record.name, self._record.id))


class LanceSchema:
    """The columns of a dataset, with field ids. Schemas can be pickled.

    Args:
        record: The schema.
    """

    __slots__ = ("record",)

    def __init__(self, record: Schema) -> None:
        self.record = record

    @classmethod
    def from_pyarrow(cls, schema: pa.Schema) -> Self:
        """Number the fields of an Arrow schema, depth-first from 0.

        Raises:
            SchemaError: Two columns have the same name, or a column cannot be part of the primary key.
            UnsupportedError: A type cannot be stored.
        """
        return cls(schema_from_arrow(schema))

    def to_pyarrow(self) -> pa.Schema:
        """The Arrow schema, without ids."""
        return resolve_extensions(schema_to_arrow(self.record))

    def fields(self) -> list[LanceField]:
        """The columns."""
        return [LanceField(field) for field in self.record.fields]

    def field(self, name: str) -> LanceField | None:
        """The field at a dotted path; None if there is none."""
        try:
            return LanceField(self.record.column(name))
        except SchemaError:
            return None

    def field_case_insensitive(self, name: str) -> LanceField | None:
        """The field at a dotted path; if none matches exactly, one that matches regardless of case."""
        exact = self.field(name)
        if exact is not None:
            return exact
        field = _find_named(
            self.record.fields, name
        )  # as in an exact match, the whole path may be the name of a column
        if field is not None:
            return LanceField(field)
        try:
            first, *rest = split_path(name)
        except SchemaError:
            return None
        field = _find_named(self.record.fields, first)
        for part in rest:
            field = None if field is None else _find_named(field.children, part)
        return None if field is None else LanceField(field)

    def unenforced_primary_key(self) -> list[LanceField]:
        """The fields of the primary key, in its order."""
        return [LanceField(node) for node in primary_key(self.record)]

    def unenforced_clustering_key(self) -> list[LanceField]:
        """The fields of the clustering key, in its order."""
        return [LanceField(node) for node in clustering_key(self.record)]

    def __repr__(self) -> str:
        """The fields."""
        return f"Schema {{ fields: {self.fields()} }}"

    def __eq__(self, other: object) -> bool:
        """Whether all fields, ids and metadata are equal."""
        return isinstance(other, LanceSchema) and self.record == other.record

    def __hash__(self) -> int:
        """A hash of the names of the columns."""
        return hash(tuple(self.record.names))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the record."""
        return LanceSchema, (self.record,)


def _find_named(fields: Sequence[Field], name: str) -> Field | None:
    """The first field of that name regardless of case."""
    return next((field for field in fields if field.name.lower() == name.lower()), None)
