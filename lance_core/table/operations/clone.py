"""Clone: create a dataset or a branch as a copy of a version of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.errors import DatasetExistsError, InvalidInputError
from lance_core.schema.field import is_blob_v2
from lance_core.table.fragment import BasePath, Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Copy a version of another dataset; the copy has the source's version number.

    Attributes:
        is_shallow: True if a base path refers to the files of the source; False if the files were copied.
        ref_version: Version of the source.
        ref_path: Root of the source.
        ref_name: Branch of the source; None for main.
        branch_name: Name of the new branch; None for a dataset.
    """

    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None

    name: ClassVar[str] = "Clone"
    wire_name: ClassVar[str] = "clone"

    def to_protobuf(self) -> transaction_pb2.Transaction.Clone:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.Clone(
            is_shallow=self.is_shallow,
            ref_name=self.ref_name,
            ref_version=self.ref_version,
            ref_path=self.ref_path,
            branch_name=self.branch_name,
        )

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Clone) -> Clone:
        """Build the record from its protobuf message."""
        return cls(
            is_shallow=message.is_shallow,
            ref_version=message.ref_version,
            ref_path=message.ref_path,
            ref_name=message.ref_name if message.HasField("ref_name") else None,
            branch_name=message.branch_name if message.HasField("branch_name") else None,
        )

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Copy the source's manifest, with references to all its files."""
        if manifest is not None:
            raise DatasetExistsError("Dataset already exists: Clone must be its first operation")
        source = context.source
        if source is None or source.version != self.ref_version:
            raise InvalidInputError(f"Clone needs the manifest of version {self.ref_version} of the source")
        if not self.is_shallow:
            return replace(_change_bases(source, lambda _: None), base_paths=_blob_bases(source), branch=None)
        base_id = max((base.id for base in source.base_paths), default=-1) + 1
        base = BasePath(id=base_id, path=self.ref_path, name=self.ref_name, is_dataset_root=True)
        return replace(
            _change_bases(source, lambda file_base: base_id if file_base is None else file_base),
            base_paths=(*source.base_paths, base),
            branch=self.branch_name,
        )


def _blob_bases(source: Manifest) -> tuple[BasePath, ...]:
    """The base paths of external blobs: a copy of a dataset still refers to these objects."""
    if not any(is_blob_v2(field) for field, _ in source.schema.walk()):
        return ()
    return tuple(base for base in source.base_paths if not base.is_dataset_root)


def _change_bases(source: Manifest, change: Callable[[int | None], int | None]) -> Manifest:
    def moved(fragment: Fragment) -> Fragment:
        deletion = fragment.deletion_file
        return replace(
            fragment,
            files=tuple(replace(file, base_id=change(file.base_id)) for file in fragment.files),
            deletion_file=None if deletion is None else replace(deletion, base_id=change(deletion.base_id)),
        )

    return replace(
        source,
        fragments=FragmentList.of(moved(fragment) for fragment in source.fragments),
        indices=tuple(replace(index, base_id=change(index.base_id)) for index in source.indices),
    )
