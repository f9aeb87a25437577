"""Overwrite: new content and schema; also creates datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError
from lance_core.schema import Schema, schema_from_protobuf, schema_to_protobuf
from lance_core.table import flags
from lance_core.table.fragment import BasePath, Fragment, data_file_version
from lance_core.table.fragment_list import FragmentList
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import (
    ApplyContext,
    add_fragments,
    check_not_empty_files,
    data_files,
)

__all__ = ["Overwrite"]

_DEFAULT_DATA_STORAGE_VERSION = "2.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """Replace all fragments and the schema, or create the dataset.

    Attributes:
        fragments: The new fragments; their ids are ignored.
        schema: The new schema, with field ids.
        config_upserts: Table configuration to set on top of the existing one.
        initial_bases: Base paths, with ids; only for a new dataset.
    """

    fragments: tuple[Fragment, ...]
    schema: Schema
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    initial_bases: tuple[BasePath, ...] = ()

    name: ClassVar[str] = "Overwrite"
    wire_name: ClassVar[str] = "overwrite"

    def to_protobuf(self) -> transaction_pb2.Transaction.Overwrite:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.Overwrite(
            fragments=[fragment.to_protobuf() for fragment in self.fragments],
            schema=schema_to_protobuf(self.schema),
            schema_metadata=dict(self.schema.metadata),
            config_upsert_values=dict(self.config_upserts),
            initial_bases=[base.to_protobuf() for base in self.initial_bases],
        )

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Overwrite) -> Overwrite:
        """Build the record from its protobuf message."""
        return cls(
            fragments=tuple(Fragment.from_protobuf(fragment) for fragment in message.fragments),
            schema=schema_from_protobuf(message.schema, message.schema_metadata),
            config_upserts=dict(message.config_upsert_values),
            initial_bases=tuple(BasePath.from_protobuf(base) for base in message.initial_bases),
        )

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Replace schema and fragments; ids continue, and configuration and base paths are kept."""
        check_not_empty_files(self.fragments)
        if any(fragment.deletion_file is not None for fragment in self.fragments):
            raise InvalidInputError("Overwrite cannot take fragments with deletion files")
        base = self._create_manifest(context) if manifest is None else manifest
        if manifest is not None and self.initial_bases:
            raise InvalidInputError(
                "base paths can be given only when a dataset is created; UpdateBases adds them later"
            )
        fresh = [replace(fragment, id=0) for fragment in self.fragments]
        added, next_row_id = add_fragments(base, fresh, context)
        return replace(
            base,
            schema=self.schema,
            fragments=FragmentList.of(added),
            indices=(),
            next_row_id=next_row_id,
            config={**base.config, **self.config_upserts},
            data_storage_version=self._file_version(context) or base.data_storage_version,
            # No file of another format version is left.
            reader_flags=base.reader_flags & ~flags.MIXED_DATA_FILES,
            writer_flags=base.writer_flags & ~flags.MIXED_DATA_FILES,
        )

    def _file_version(self, context: ApplyContext) -> str | None:
        """The requested version, or else the one version of all data files; None if they have no version in common."""
        if context.table_format.data_storage_version is not None:
            return context.table_format.data_storage_version
        used = {data_file_version(f.file_major_version, f.file_minor_version) for f in data_files(self.fragments)}
        return used.pop() if len(used) == 1 else None

    def _create_manifest(self, context: ApplyContext) -> Manifest:
        if len({base.id for base in self.initial_bases}) < len(self.initial_bases):
            raise InvalidInputError("two base paths have the same id")
        version = self._file_version(context) or _DEFAULT_DATA_STORAGE_VERSION
        stable = flags.STABLE_ROW_IDS if context.table_format.stable_row_ids else 0
        return Manifest(
            version=0,
            schema=self.schema,
            fragments=FragmentList([], has_deletions=False),
            reader_flags=stable,
            writer_flags=stable,
            data_storage_version=version,
            base_paths=self.initial_bases,
        )
