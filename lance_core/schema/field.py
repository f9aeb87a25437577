"""Fields and schemas of Lance: trees of named, typed nodes with ids, the keys of a schema, and its columns in files.

Data files, manifests and transactions refer to columns by field id only, so that a column can be renamed or moved. Ids
are assigned depth-first, parents before children, from 0. An overwrite numbers the columns again, and a restore returns
to earlier ids: `verbs.delta.same_columns` follows columns through both.

Members of the unenforced primary key and of the unenforced clustering key:

    Arrow field metadata                               wire, field of `Field`
    lance-schema:unenforced-primary-key                12  bool
    lance-schema:unenforced-primary-key:position       13  place in the key from 1 on, 0 = none
    -                                                  14  bool of the clustering key
    lance-schema:unenforced-clustering-key:position    15  place in it

pylance 14.0.2 writes 12 for every member of a primary key, and only 15 for members of a clustering key, of whose
metadata it reads only the position. Here either number makes a field a member, and both are written back as they were
read.

In files of 2.1 and later only leaves have columns; lists, structs and maps exist as layers of the repetition and
definition levels of the leaves below them:

    schema                      columns         layers of that column, from the leaf outwards
    a: int64                    a               item
    b: struct<x, y>             b.x, b.y        item (x or y), item (b)
    c: list<struct<x>>          c.item.x        item (x), item (struct), list
    m: map<key, value>          key, value      item (key or value), item (entries), list
    f: fixed_size_list<T, n>    f               item
    p: packed struct            p               item
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from lance_core.errors import SchemaError, UnsupportedError

PRIMARY_KEY: Final = "lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION: Final = f"{PRIMARY_KEY}:position"
CLUSTERING_KEY_POSITION: Final = "lance-schema:unenforced-clustering-key:position"

_TRUE = (b"1", b"true", b"on", b"yes", b"y")
_MAX_POSITION = (1 << 32) - 1


class KeyMark(NamedTuple):
    """A field's membership in a key, as the two numbers of the protobuf message."""

    flag: bool = False
    position: int = 0

    @property
    def is_member(self) -> bool:
        """Whether the field belongs to the key."""
        return self.flag or self.position > 0

    @property
    def order(self) -> tuple[bool, int]:
        """The sort key of members: those with a position come first, the others follow in order of their fields."""
        return not self.position, self.position


NO_MARK: Final = KeyMark()
"""The mark of a field that is not part of the key."""


def primary_key_mark(metadata: Mapping[str, bytes]) -> KeyMark:
    """Read the primary key's mark from the Arrow metadata of a field; any position, even 0, makes it a member."""
    position = _position(metadata.get(PRIMARY_KEY_POSITION))
    if position is not None:
        return KeyMark(flag=True, position=position)
    return KeyMark(flag=metadata.get(PRIMARY_KEY, b"").lower() in _TRUE)


def clustering_key_mark(metadata: Mapping[str, bytes]) -> KeyMark | None:
    """Read the clustering key's mark from the Arrow metadata of a field; None without a position."""
    position = _position(metadata.get(CLUSTERING_KEY_POSITION))
    return None if position is None else KeyMark(position=position)


def _position(string: bytes | None) -> int | None:
    """The number in a string of digits, which may begin with a plus; None for other strings, or above 32 bits."""
    digits = (string or b"").removeprefix(b"+")
    if not digits.isdigit():
        return None
    position = int(digits)
    return position if position <= _MAX_POSITION else None


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
        logical_type: The type as the format writes it, for example `timestamp:us:UTC` (see `schema.forms`).
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

    def walk_paths(self, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
        """Yield this field and all below it, depth-first, each after its path of names."""
        path = (*above, self.name)
        yield path, self
        for child in self.children:
            yield from child.walk_paths(path)

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

    def walk_paths(self) -> Iterator[tuple[tuple[str, ...], Field]]:
        """Yield all fields depth-first, each after its path of names."""
        for top in self.fields:
            yield from top.walk_paths()

    def with_ancestors(self, ids: Iterable[int]) -> set[int]:
        """Ids of fields with those of all fields above them: files name leaves alone, indices also the lists above."""
        related = set(ids)
        for node, parent_id in reversed(list(self.walk())):
            if node.id in related and parent_id >= 0:
                related.add(parent_id)
        return related

    def with_descendants(self, ids: Iterable[int]) -> set[int]:
        """Ids of fields with those of all fields below them."""
        related = set(ids)
        for node, parent_id in self.walk():
            if parent_id in related:
                related.add(node.id)
        return related

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


LIST_TYPES: Final = ("list", "list.struct", "large_list", "large_list.struct", "map")
"""Logical types that are a layer of lists."""

BLOB_KEY: Final = "lance-encoding:blob"
_PACKED: Final = ("lance-encoding:packed", "packed", BLOB_KEY)
BLOB_V2_NAME: Final = "lance.blob.v2"


def is_packed(field: Field) -> bool:
    """Whether the field is a struct that is stored row by row in one column, as descriptors of blobs are."""
    if field.logical_type != "struct":
        return False
    if is_blob_v2(field):
        return True
    return any(field.metadata.get(key, b"").lower() == b"true" for key in _PACKED)


def is_blob(field: Field) -> bool:
    """Whether the values of the field are stored as blobs of 2.0 and 2.1."""
    return field.logical_type == "large_binary" and field.metadata.get(BLOB_KEY, b"").lower() == b"true"


def is_blob_v2(field: Field) -> bool:
    """Whether the field holds blobs of 2.2: payloads, or their descriptors."""
    names = (field.extension_name.encode(), field.metadata.get("ARROW:extension:name", b""))
    return field.logical_type == "struct" and BLOB_V2_NAME.encode() in names


def is_blob_v2_payload(field: Field) -> bool:
    """Whether the field holds only the payloads of blobs of 2.2."""
    return field.logical_type == "large_binary" and field.extension_name == BLOB_V2_NAME


def is_any_blob(field: Field) -> bool:
    """Whether the values of the field are blobs of any version, in any form in which they are read."""
    is_described = field.logical_type == "struct" and BLOB_KEY in field.metadata
    return is_described or is_blob(field) or is_blob_v2(field) or is_blob_v2_payload(field)


def is_column(field: Field) -> bool:
    """Whether the field has a column of its own in 2.1 and later files."""
    return not field.children or is_packed(field)


def leaf_paths(field: Field) -> Iterator[tuple[Field, ...]]:
    """The columns below a field, depth-first, each as the fields from `field` down to the column."""
    if is_column(field):
        yield (field,)
        return
    for child in field.children:
        for path in leaf_paths(child):
            yield (field, *path)


def column_fields(schema: Schema) -> list[Field]:
    """The fields of a schema that have columns, in the order of their columns."""
    return [path[-1] for top in schema.fields for path in leaf_paths(top)]


def plain_columns(field: Field) -> Iterator[Field]:
    """The fields that have a column in 2.0 files: all but the fields of packed structs, depth-first."""
    yield field
    if not is_packed(field):
        for child in field.children:
            yield from plain_columns(child)


def layer_kind(field: Field) -> Literal["list", "item", "fixed_size_list"]:
    """The kind of layer that a field adds to the levels."""
    if field.logical_type in LIST_TYPES:
        return "list"
    if field.children and field.logical_type.startswith("fixed_size_list:"):
        return "fixed_size_list"
    return "item"


def items_per_row(path: Sequence[Field]) -> int:
    """How many items a page counts per row: fixed size lists of structs are counted by their items.

    Raises:
        UnsupportedError: A fixed size list of structs is inside a list. The format does not specify its levels, and
            pylance 14 cannot read the levels that it writes.
    """
    factor = 1
    in_list = False
    for node in path:
        kind = layer_kind(node)
        in_list |= kind == "list"
        if kind == "fixed_size_list":
            if in_list:
                raise UnsupportedError(
                    f"field {node.name!r}: fixed size lists of structs inside lists are not supported"
                )
            factor *= list_size(node)
    return factor


def list_size(field: Field) -> int:
    """Items per list of a fixed size list."""
    return int(field.logical_type.rsplit(":", 1)[-1])


def map_fields(schema: Schema, change: Callable[[Field], Field]) -> Schema:
    """The schema with every field changed, children before their parents."""

    def changed(field: Field) -> Field:
        children = tuple(changed(child) for child in field.children)
        return change(field if children == field.children else replace(field, children=children))

    return replace(schema, fields=tuple(changed(field) for field in schema.fields))
