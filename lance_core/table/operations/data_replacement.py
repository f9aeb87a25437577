"""DataReplacement: replace the files of some columns of fragments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError
from lance_core.table.fragment import TOMBSTONE, DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, the_manifest
from lance_core.table.reuse import without_fragments
from lance_core.table.rowids import encode_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReplacement:
    """Replace columns of fragments; the new files hold as many rows as the fragments.

    Attributes:
        replacements: New file by fragment id; all files have the same fields.
    """

    replacements: tuple[tuple[int, DataFile], ...]

    name: ClassVar[str] = "DataReplacement"
    wire_name: ClassVar[str] = "data_replacement"

    @property
    def fields(self) -> frozenset[int]:
        """The fields that are replaced."""
        return frozenset(f for _, file in self.replacements for f in file.fields)

    def to_protobuf(self) -> transaction_pb2.Transaction.DataReplacement:
        """Return the message of the wire."""
        message = transaction_pb2.Transaction.DataReplacement()
        for fragment_id, file in self.replacements:
            message.replacements.add(fragment_id=fragment_id, new_file=file.to_protobuf())
        return message

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.DataReplacement) -> DataReplacement:
        """Build the record from its protobuf message."""
        return cls(
            replacements=tuple(
                (group.fragment_id, DataFile.from_protobuf(group.new_file)) for group in message.replacements
            )
        )

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Put the files into their fragments."""
        base = the_manifest(manifest, self.name)
        if len({file.fields for _, file in self.replacements}) > 1:
            raise InvalidInputError("All new data files must have the same fields")
        updated: dict[int, Fragment] = {}
        live = {node.id for node, _ in base.schema.walk()}
        for fragment_id, file in self.replacements:
            fragment = updated.get(fragment_id) or base.fragments.get(fragment_id)
            if fragment is None:
                raise InvalidInputError(f"DataReplacement: the dataset has no fragment {fragment_id}")
            changed = _replace_file(fragment, file, context.version)
            updated[fragment_id] = changed.without_dead_files(live)
        return replace(
            base,
            fragments=base.fragments.changed(updated=updated),
            indices=without_fragments(base.indices, base.schema.with_ancestors(self.fields), updated),
        )


def _replace_file(fragment: Fragment, new: DataFile, version: int) -> Fragment:
    """Replace the file that has exactly these fields and this version; without such a file, add the new one."""
    files, swapped = [], False
    for file in fragment.files:
        same_version = (file.file_major_version, file.file_minor_version) == (
            new.file_major_version,
            new.file_minor_version,
        )
        if file.fields == new.fields and same_version:
            files.append(new)
            swapped = True
        else:
            fields = tuple(TOMBSTONE if f in new.fields else f for f in file.fields)
            files.append(file if fields == file.fields else replace(file, fields=fields))
    if not swapped:
        files.append(new)
    changed = replace(fragment, files=tuple(files))
    if changed.last_updated_at_versions is None:
        return changed
    versions = encode_versions(np.full(fragment.physical_rows, version, np.uint64))
    return replace(changed, last_updated_at_versions=versions)
