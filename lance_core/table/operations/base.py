"""Operations: a record, its protobuf message, and a pure function from one manifest to the next.

Here are the protocol, what several operations share, and the two of plain writes:

    Append       adds fragments
    Overwrite    new content and schema; also creates datasets
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

from lance_core._proto import transaction_pb2
from lance_core.errors import CorruptFileError, DatasetNotFoundError, IncompatibleConflictError, InvalidInputError
from lance_core.schema import Schema
from lance_core.table import flags
from lance_core.table.fragment import BasePath, Fragment, WireRecord, data_file_version, data_files
from lance_core.table.fragment_list import FragmentList
from lance_core.table.idempotency import CommitProof
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import TableFormat
from lance_core.table.reuse import retain_relevant
from lance_core.table.rowids import assign_row_ids, with_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyContext:
    """Inputs of an operation besides the manifest that it changes.

    Attributes:
        version: Number of the new version.
        table_format: The requested format of the table.
        source: Manifest that Restore goes back to, or that Clone copies.
        proof: The proof of this commit that later versions keep; None for no proof.
    """

    version: int
    table_format: TableFormat = field(default_factory=TableFormat)
    source: Manifest | None = None
    proof: CommitProof | None = None


class Operation(Protocol):
    """One kind of change to a dataset.

    `name` is the name in conflicts and histories, `wire_name` the member of the message `Transaction`.
    """

    name: ClassVar[str]
    wire_name: ClassVar[str]

    def to_protobuf(self) -> Any:
        """Return the message of the wire."""
        ...

    @classmethod
    def from_protobuf(cls, message: Any) -> Self:
        """Build the record from its protobuf message."""
        ...

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Return the next manifest.

        Version, time, flags and transaction are filled in by `Transaction.apply`.

        Args:
            manifest: The latest manifest; None if there is no dataset yet.
            context: Further inputs.

        Raises:
            InvalidInputError: The operation does not fit the manifest.
            DatasetNotFoundError: The operation needs a dataset, and none exists.
        """
        ...


def the_manifest(manifest: Manifest | None, operation: str) -> Manifest:
    """Return the manifest that an operation needs.

    Raises:
        DatasetNotFoundError: The dataset does not exist.
    """
    if manifest is None:
        raise DatasetNotFoundError(f"Cannot apply operation {operation} to non-existent dataset")
    return manifest


def next_fragment_id(manifest: Manifest) -> int:
    """Return the lowest fragment id that was never used."""
    recorded = -1 if manifest.max_fragment_id is None else manifest.max_fragment_id
    return max(recorded, manifest.fragments.highest_id) + 1


def number_fragments(fragments: Iterable[Fragment], next_id: int) -> list[Fragment]:
    """Give ids to the fragments with id 0, which means no id yet; other ids were reserved and are kept."""
    result = []
    for fragment in fragments:
        if fragment.id == 0:
            result.append(replace(fragment, id=next_id))
            next_id += 1
        else:
            result.append(fragment)
    return result


def add_fragments(
    manifest: Manifest, fragments: Sequence[Fragment], context: ApplyContext
) -> tuple[list[Fragment], int]:
    """Number new fragments and, with stable row ids, their rows.

    Returns:
        The fragments, and the next free row id.
    """
    numbered = number_fragments(fragments, next_fragment_id(manifest))
    if not manifest.uses_stable_row_ids:
        return numbered, manifest.next_row_id
    numbered, next_row_id = assign_row_ids(numbered, manifest.next_row_id)
    return [with_versions(fragment, context.version) for fragment in numbered], next_row_id


def check_not_empty_files(fragments: Iterable[Fragment]) -> None:
    """Reject data files without fields, which no reader accepts.

    Raises:
        InvalidInputError: A data file has no fields.
    """
    for fragment in fragments:
        for file in fragment.files:
            if not file.fields:
                raise InvalidInputError(f"Datafile {file.path} does not contain any fields")


def check_same_fragments(manifest: Manifest, fragments: Iterable[Fragment], operation: str) -> None:
    """Reject fragments of another table: a table that was dropped and created again has fragments with the same ids.

    Args:
        manifest: The version that the operation is applied to.
        fragments: Fragments as they were read, or with another deletion file.
        operation: Name of the operation.

    Raises:
        IncompatibleConflictError: A fragment has lost all data files that it had when it was read.
        CorruptFileError: Two fragments of the version have one id.
    """
    for fragment in fragments:
        now = manifest.fragments.get(fragment.id)
        if now is None or not fragment.files or not now.files:
            continue
        if {(file.base_id, file.path) for file in fragment.files}.isdisjoint(
            (file.base_id, file.path) for file in now.files
        ):
            check_fragment_ids(manifest)
            raise IncompatibleConflictError(
                f"{operation}: fragment {fragment.id} has none of the data files that it had when it was read: the "
                "table was dropped and made again meanwhile, or all columns were written again. Open the table "
                "again and repeat the operation"
            )


def check_fragment_ids(manifest: Manifest) -> None:
    """Check that no two fragments of a version have one id, where a fragment is not what it was when it was read.

    Raises:
        CorruptFileError: Two fragments have one id.
    """
    ids = list(manifest.fragments.ids)
    if len(set(ids)) < len(ids):
        raise CorruptFileError(
            f"Fragment ids are not unique and ascending: {ids[:20]}; restore a version that validate() accepts"
        )


def check_new_fragments(manifest: Manifest, fragments: Sequence[Fragment]) -> None:
    """Reject new fragments that readers do not accept: in version 0.1 each fragment must have all columns.

    Raises:
        InvalidInputError: A data file has no fields, or a fragment of version 0.1 lacks a column.
    """
    check_not_empty_files(fragments)
    if manifest.data_storage_version != "0.1":
        return
    for fragment in fragments:
        stored = {field_id for file in fragment.files for field_id in file.fields}
        missing = [field.name for field, _ in manifest.schema.walk() if field.id not in stored]
        if missing:
            raise InvalidInputError(
                f"a new fragment lacks the columns {missing}, and version 0.1 fills in no nulls: write all columns"
            )


def retained_indices(manifest: Manifest) -> tuple[IndexMetadata, ...]:
    """Return the indices that queries on the manifest's schema and fragments can use."""
    if not manifest.indices:
        return ()
    field_ids = {node.id for node, _ in manifest.schema.walk()}
    return retain_relevant(manifest.indices, field_ids, manifest.fragments.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(WireRecord):
    """Add fragments to the dataset; an empty list makes a version without change.

    Attributes:
        fragments: The new fragments, with id 0.
    """

    fragments: tuple[Fragment, ...] = ()

    name: ClassVar[str] = "Append"
    wire_name: ClassVar[str] = "append"
    message = transaction_pb2.Transaction.Append

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Number the new fragments and put them after the others."""
        base = the_manifest(manifest, self.name)
        check_new_fragments(base, self.fragments)
        added, next_row_id = add_fragments(base, self.fragments, context)
        return replace(base, fragments=base.fragments.changed(added=added), next_row_id=next_row_id)


_DEFAULT_DATA_STORAGE_VERSION = "2.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite(WireRecord):
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
    message = transaction_pb2.Transaction.Overwrite
    renamed: ClassVar[Mapping[str, str]] = {"config_upserts": "config_upsert_values"}

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
