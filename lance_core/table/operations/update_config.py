"""UpdateConfig: change table configuration and the metadata of table, schema and fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError
from lance_core.schema import (
    CLUSTERING_KEY_POSITION,
    NO_MARK,
    PRIMARY_KEY,
    PRIMARY_KEY_POSITION,
    Field,
    Schema,
    check_primary_key,
    clustering_key,
    clustering_key_mark,
    primary_key,
    primary_key_mark,
)
from lance_core.schema.field import map_fields
from lance_core.table.fragment import WireRecord, wire_values
from lance_core.table.idempotency import is_of_commits
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, the_manifest

_Value = TypeVar("_Value", str, bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMap(WireRecord):
    """A change to a map of strings.

    Attributes:
        entries: New values; None removes a key.
        replace: Whether the entries are the whole new map.
    """

    entries: Mapping[str, str | None]
    replace: bool = False

    message = transaction_pb2.Transaction.UpdateMap

    def apply(self, current: Mapping[str, _Value], convert: Callable[[str], _Value]) -> dict[str, _Value]:
        """Return the changed map."""
        result = {} if self.replace else dict(current)
        for key, value in self.entries.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = convert(value)
        return result

    def to_protobuf(self) -> transaction_pb2.Transaction.UpdateMap:
        """Return the message of the wire."""
        message = transaction_pb2.Transaction.UpdateMap(replace=self.replace)
        for key, value in self.entries.items():
            message.update_entries.add(key=key, value=value)
        return message

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.UpdateMap) -> UpdateMap:
        """Build the record from its protobuf message."""
        entries = {entry.key: entry.value if entry.HasField("value") else None for entry in message.update_entries}
        return cls(entries=entries, replace=message.replace)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig(WireRecord):
    """Change configuration and metadata.

    Attributes:
        config: Change to the table configuration.
        table_metadata: Change to the table metadata.
        schema_metadata: Change to the schema metadata.
        field_metadata: Changes to the metadata of fields, by field id.
    """

    config: UpdateMap | None = None
    table_metadata: UpdateMap | None = None
    schema_metadata: UpdateMap | None = None
    field_metadata: Mapping[int, UpdateMap] = field(default_factory=dict)

    name: ClassVar[str] = "UpdateConfig"
    wire_name: ClassVar[str] = "update_config"
    message = transaction_pb2.Transaction.UpdateConfig
    renamed: ClassVar[Mapping[str, str]] = {
        name: f"{name}_updates" for name in ("config", "table_metadata", "schema_metadata", "field_metadata")
    }

    @property
    def changes_schema(self) -> bool:
        """Whether metadata of the schema or of a field changes."""
        return self.schema_metadata is not None or bool(self.field_metadata)

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.UpdateConfig) -> UpdateConfig:
        """Read the message of the wire, including the fields of early 2025."""
        values = wire_values(cls, message)
        if message.upsert_values or message.delete_keys:
            values["config"] = UpdateMap(entries={**dict.fromkeys(message.delete_keys), **message.upsert_values})
        if message.schema_metadata:
            values["schema_metadata"] = UpdateMap(entries=dict(message.schema_metadata), replace=True)
        for field_id, old in message.field_metadata.items():
            values["field_metadata"][field_id] = UpdateMap(entries=dict(old.metadata), replace=True)
        return cls(**values)

    def apply(self, manifest: Manifest | None, _context: ApplyContext) -> Manifest:
        """Change the maps."""
        result = the_manifest(manifest, self.name)
        if self.config is not None:
            config = self.config.apply(result.config, str)
            # Entries that commits maintain are not settings of the user: replacing the whole configuration keeps them.
            next_config = {key: value for key, value in result.config.items() if is_of_commits(key)} | config
            next_config = next_config if self.config.replace else config
            result = replace(result, config=next_config)
        if self.table_metadata is not None:
            result = replace(result, table_metadata=self.table_metadata.apply(result.table_metadata, str))
        schema = result.schema
        if self.schema_metadata is not None:
            schema = replace(schema, metadata=self.schema_metadata.apply(schema.metadata, str.encode))
        for field_id, change in self.field_metadata.items():
            schema = _change_field_metadata(schema, field_id, change)
        if self.field_metadata:
            self._check_keys(result.schema, schema)
        return replace(result, schema=schema)

    def _check_keys(self, before: Schema, after: Schema) -> None:
        """Reject a change of a primary or clustering key that is set, and metadata that declares no valid key."""
        by_id = after.by_id()
        for key in _KEYS:
            old, new = ([node.id for node in key.members(schema)] for schema in (before, after))
            writes = any(not key.metadata_keys.isdisjoint(change.entries) for change in self.field_metadata.values())
            if old and (writes or new != old):
                raise InvalidInputError(
                    f"the unenforced {key.name} key is a reserved key and cannot be changed once set"
                )
            if writes and not old and not any(key.declares(by_id[i].metadata) for i in self.field_metadata):
                raise InvalidInputError(
                    f"the unenforced {key.name} key is a reserved key and cannot be set to an invalid value"
                )
        check_primary_key(after.fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyKind:
    """A kind of key: its fields in a schema, the metadata keys that declare it, and whether metadata declares it."""

    name: str
    members: Callable[[Schema], Sequence[Field]]
    metadata_keys: frozenset[str]
    declares: Callable[[Mapping[str, bytes]], bool]


_KEYS = (
    _KeyKind(
        name="primary",
        members=primary_key,
        metadata_keys=frozenset((PRIMARY_KEY, PRIMARY_KEY_POSITION)),
        declares=lambda metadata: primary_key_mark(metadata).is_member,
    ),
    _KeyKind(
        name="clustering",
        members=clustering_key,
        metadata_keys=frozenset((CLUSTERING_KEY_POSITION,)),
        declares=lambda metadata: clustering_key_mark(metadata) is not None,
    ),
)


def _change_field_metadata(schema: Schema, field_id: int, change: UpdateMap) -> Schema:
    if field_id not in schema.by_id():
        raise InvalidInputError(f"Field with id {field_id} does not exist")

    def changed(node: Field) -> Field:
        if node.id != field_id:
            return node
        metadata = change.apply(node.metadata, str.encode)
        # A key that other libraries declared in the message alone stays unless the metadata of the key changes.
        primary, clustering = node.primary_key, node.clustering_key
        if change.replace or not {PRIMARY_KEY, PRIMARY_KEY_POSITION}.isdisjoint(change.entries):
            primary = primary_key_mark(metadata)
        if change.replace or CLUSTERING_KEY_POSITION in change.entries:
            clustering = clustering_key_mark(metadata) or NO_MARK
        return replace(node, metadata=metadata, primary_key=primary, clustering_key=clustering)

    return map_fields(schema, changed)
