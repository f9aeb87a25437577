"""Fields and schemas of Lance: trees of named, typed nodes with ids.

Data files, manifests and transactions refer to columns by field id only, so that a column can be renamed or moved. Ids
are assigned depth-first, parents before children, from 0. An overwrite numbers the columns again, and a restore returns
to earlier ids: `verbs.delta.same_columns` follows columns through both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lance_core.errors import SchemaError
from lance_core.schema.key_marks import NO_MARK, KeyMark

__all__ = ["MOST_LEVELS", "UNASSIGNED", "Field", "Schema", "quote_path", "split_path"]

MOST_LEVELS: Final = 64
"""How deep structs, lists and maps can be nested in a column: functions that walk a column recurse to this depth."""

UNASSIGNED: Final = -1
"""The id of a field that has none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One node of a schema.

    Attributes:
        name: Name among its siblings.
        id: Field id, or `UNASSIGNED`.
        logical_type: The type as the format writes it, for example `timestamp:us:UTC` (see `schema.arrow`).
        nullable: Whether values can be null.
        children: Child fields; empty for everything but lists, structs and maps.
        metadata: Arrow field metadata.
        extension_name: Arrow extension name, repeated from the metadata.
        encoding: How 0.1 files store the field, as the number in the protobuf message.
        dictionary: Where a 0.1 file stores the dictionary of the field: position and number of values.
        dictionary_values: The values of this dictionary, as an Arrow array; None if they are not known.
        primary_key: Membership in the unenforced primary key.
        clustering_key: Membership in the unenforced clustering key.
    """

    name: str
    logical_type: str
    id: int = UNASSIGNED
    nullable: bool = True
    children: tuple[Field, ...] = ()
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    extension_name: str = ""
    encoding: int = 0
    dictionary: tuple[int, int] | None = None
    dictionary_values: Any = field(default=None, repr=False, compare=False)
    primary_key: KeyMark = NO_MARK
    clustering_key: KeyMark = NO_MARK

    def walk(self, parent_id: int = -1) -> Iterator[tuple[Field, int]]:
        """Yield this field and all below it, depth-first, each with the id of its parent."""
        yield self, parent_id
        for child in self.children:
            yield from child.walk(self.id)

    def child(self, name: str) -> Field:
        """The child with a name.

        Raises:
            SchemaError: The field has no child of that name.
        """
        for candidate in self.children:
            if candidate.name == name:
                return candidate
        raise SchemaError(f"field {self.name!r} has no child {name!r}; it has {[c.name for c in self.children]}")

    def with_ids(self, next_id: int) -> tuple[Field, int]:
        """This field with ids from `next_id` on where ids are unassigned, and the next free id."""
        own_id = self.id
        if own_id == UNASSIGNED:
            own_id, next_id = next_id, next_id + 1
        children = []
        for child in self.children:
            numbered, next_id = child.with_ids(next_id)
            children.append(numbered)
        return replace(self, id=own_id, children=tuple(children)), next_id

    def without_ids(self) -> Field:
        """This field and all fields below it, with unassigned ids."""
        return replace(self, id=UNASSIGNED, children=tuple(child.without_ids() for child in self.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The columns of a dataset or of a data file.

    Attributes:
        fields: Top-level fields.
        metadata: Arrow schema metadata.
        memo: Cached results that were derived from the schema, by name; they are not pickled.
    """

    fields: tuple[Field, ...]
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _schema, (self.fields, self.metadata)

    @property
    def names(self) -> list[str]:
        """Names of the top-level fields."""
        return [f.name for f in self.fields]

    @property
    def max_field_id(self) -> int:
        """Highest field id in use; -1 without fields."""
        return max((f.id for f, _ in self.walk()), default=-1)

    def walk(self) -> Iterator[tuple[Field, int]]:
        """Yield all fields depth-first, each with the id of its parent (-1 at the top)."""
        for top in self.fields:
            yield from top.walk()

    def by_id(self) -> dict[int, Field]:
        """All fields by id."""
        return {f.id: f for f, _ in self.walk()}

    def column(self, path: str) -> Field:
        """The field at a dotted path; a name that contains dots is quoted with back-ticks.

        Raises:
            SchemaError: The schema has no such column.
        """
        by_name = {f.name: f for f in self.fields}
        if path in by_name:
            return by_name[path]
        first, *rest = split_path(path)
        if first not in by_name:
            raise SchemaError(f"no column {path!r}; the columns are {self.names}")
        field = by_name[first]
        for name in rest:
            field = field.child(name)
        return field

    def project(self, columns: Sequence[str]) -> Schema:
        """The schema of only these columns, in this order.

        A dotted path keeps only that part of a struct. Paths into one struct are merged; the whole struct is kept if
        its own name is given as well.

        Raises:
            SchemaError: A column does not exist, or a top-level column is named twice.
        """
        fields: dict[str, Field] = {}
        by_name, mentions = {f.name: f for f in self.fields}, Counter(columns)
        for path in columns:
            if path in by_name:
                if mentions[path] > 1:
                    raise SchemaError(f"column {path!r} is requested twice")
                fields[path] = by_name[path]
                continue
            top, *rest = split_path(path)
            narrowed = _narrow(self.column(quote_path([top])), rest)
            fields[top] = _merge(fields[top], narrowed) if top in fields else narrowed
        return Schema(fields=tuple(fields.values()), metadata=self.metadata)

    def only_ids(self, ids: frozenset[int] | set[int]) -> Schema:
        """The part of the schema that a file with these field ids holds; the parents of a kept field are kept."""
        fields = (_keep_ids(f, ids) for f in self.fields)
        return Schema(fields=tuple(f for f in fields if f is not None), metadata=self.metadata)

    def with_ids(self, next_id: int = 0) -> Schema:
        """This schema, in which fields without an id get ids from `next_id` on."""
        fields = []
        for top in self.fields:
            numbered, next_id = top.with_ids(next_id)
            fields.append(numbered)
        return Schema(fields=tuple(fields), metadata=self.metadata)


def _schema(fields: tuple[Field, ...], metadata: Mapping[str, bytes]) -> Schema:
    return Schema(fields=fields, metadata=metadata)


def split_path(path: str) -> list[str]:
    """Split a dotted column path; a part in back-ticks may contain dots, and doubled back-ticks for single ones.

    Raises:
        SchemaError: A back-tick is not closed, a part is empty, or characters follow a closing back-tick.

    >>> split_path("a.`b.c`.d")
    ['a', 'b.c', 'd']
    """
    parts: list[str] = []
    rest = path
    while True:
        if rest.startswith("`"):
            part, rest = _quoted_part(path, rest)
        else:
            end = rest.find(".")
            part, rest = (rest, "") if end < 0 else (rest[:end], rest[end:])
        if not part:
            raise SchemaError(f"column path {path!r} has an empty part")
        parts.append(part)
        if not rest:
            return parts
        if not rest.startswith("."):
            raise SchemaError(f"column path {path!r} has characters after a closing back-tick")
        rest = rest[1:]


def quote_path(parts: Sequence[str]) -> str:
    """The dotted path of nested names: the inverse of `split_path`."""
    return ".".join("`" + p.replace("`", "``") + "`" if "." in p or p.startswith("`") else p for p in parts)


def _quoted_part(path: str, rest: str) -> tuple[str, str]:
    position = 1
    while True:
        end = rest.find("`", position)
        if end < 0:
            raise SchemaError(f"column path {path!r} has a back-tick that is not closed")
        if rest[end + 1 : end + 2] != "`":
            return rest[1:end].replace("``", "`"), rest[end + 1 :]
        position = end + 2


def _narrow(node: Field, rest: Sequence[str]) -> Field:
    if not rest:
        return node
    return replace(node, children=(_narrow(node.child(rest[0]), rest[1:]),))


def _merge(left: Field, right: Field) -> Field:
    children = {c.name: c for c in left.children}
    for child in right.children:
        children[child.name] = _merge(children[child.name], child) if child.name in children else child
    return replace(left, children=tuple(children.values()))


def _keep_ids(node: Field, ids: frozenset[int] | set[int]) -> Field | None:
    children = tuple(child for c in node.children if (child := _keep_ids(c, ids)) is not None)
    if children:
        return replace(node, children=children)
    # A packed struct is stored as a whole, under its own id.
    return node if node.id in ids else None
