"""The public classes of a transaction's operations (`LanceOperation`), in pylance's shape.

`LanceOperation` holds one class per operation, for `LanceDataset.commit` and in the results of `read_transaction`.
`to_record` and `from_record` convert to the records of the table layer and back.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field

import pyarrow as pa

from lance_core.errors import ArgumentTypeError
from lance_core.schema.lance_schema import LanceSchema
from lance_core.table.operations import KeyExistenceFilter, Operation
from lance_core.verbs.context.bases import DatasetBasePath
from lance_core.verbs.pylance_types.fragments import DataFile, FragmentMetadata
from lance_core.verbs.pylance_types.indices import Index


def _check_fragments(fragments: object) -> None:
    if not isinstance(fragments, list):
        raise ArgumentTypeError(f"fragments must be list[FragmentMetadata], got {type(fragments)}")
    for fragment in fragments:
        if not isinstance(fragment, FragmentMetadata):
            raise ArgumentTypeError(f"fragments must be list[FragmentMetadata], got {type(fragment)}")


def _check_schema(schema: object) -> None:
    if not isinstance(schema, LanceSchema | pa.Schema):
        raise ArgumentTypeError(f"a schema must be a LanceSchema or pyarrow.Schema, got {type(schema)}")


class LanceOperation:
    """A namespace of the operations that can be committed."""

    class BaseOperation:
        """The base of all operations."""

        @property
        def name(self) -> str:
            """The name of the operation in conflicts and histories."""
            return type(self).__name__

    @dataclass
    class Overwrite(BaseOperation):
        """Replace all rows and columns, or create the dataset.

        Attributes:
            new_schema: The columns.
            fragments: New fragments; their ids are ignored.
            initial_bases: Base paths of a dataset that is created.
        """

        new_schema: LanceSchema | pa.Schema
        fragments: list[FragmentMetadata]
        initial_bases: list[DatasetBasePath] | None = None

        def __post_init__(self) -> None:
            """Check the fragments and the schema."""
            _check_fragments(self.fragments)
            _check_schema(self.new_schema)

    @dataclass
    class Append(BaseOperation):
        """Add rows.

        Attributes:
            fragments: New fragments.
        """

        fragments: list[FragmentMetadata]

        def __post_init__(self) -> None:
            """Check the fragments."""
            _check_fragments(self.fragments)

    @dataclass
    class Delete(BaseOperation):
        """Delete rows.

        Attributes:
            updated_fragments: Fragments with a new deletion file.
            deleted_fragment_ids: Fragments without a row left.
            predicate: The condition as a string, which the history shows.
        """

        updated_fragments: list[FragmentMetadata]
        deleted_fragment_ids: list[int]
        predicate: str

        def __post_init__(self) -> None:
            """Check the fragments."""
            _check_fragments(self.updated_fragments)

    @dataclass
    class Update(BaseOperation):
        """Remove rows or values, and add others.

        Attributes:
            removed_fragment_ids: Fragments without a row left.
            updated_fragments: Fragments with new deletion or column files.
            new_fragments: Fragments of new and moved rows.
            fields_modified: Fields whose values changed in `updated_fragments`.
            fields_for_preserving_frag_bitmap: Fields whose values changed in moved rows.
            update_mode: "rewrite_rows" or "rewrite_columns"; an empty string means "rewrite_rows".
            updated_fragment_offsets: Serialized roaring bitmaps of the rows whose values changed, per fragment.
            inserted_rows: Keys that were inserted; prevents concurrent inserts of the same keys (not in pylance).
        """

        removed_fragment_ids: list[int] = field(default_factory=list)
        updated_fragments: list[FragmentMetadata] = field(default_factory=list)
        new_fragments: list[FragmentMetadata] = field(default_factory=list)
        fields_modified: list[int] = field(default_factory=list)
        fields_for_preserving_frag_bitmap: list[int] = field(default_factory=list)
        update_mode: str = ""
        updated_fragment_offsets: dict[int, bytes] | None = None
        inserted_rows: KeyExistenceFilter | None = field(default=None, repr=False)

        def __post_init__(self) -> None:
            """Check the fragments."""
            _check_fragments(self.updated_fragments)
            _check_fragments(self.new_fragments)

    @dataclass
    class Merge(BaseOperation):
        """Add columns, by new files in all fragments.

        Attributes:
            fragments: All fragments of the new version.
            schema: All columns of the new version.
            preserves_nullability: Whether all new columns allow nulls, so that concurrent appends stay valid.
            updated_fragment_offsets: Serialized roaring bitmaps of the rows whose values changed, per fragment; None
                for all rows of fragments with other files. Not in pylance, and not recorded.
        """

        fragments: list[FragmentMetadata]
        schema: LanceSchema | pa.Schema
        preserves_nullability: bool = False
        updated_fragment_offsets: InitVar[dict[int, bytes] | None] = None

        def __post_init__(self, updated_fragment_offsets: dict[int, bytes] | None) -> None:
            """Check the schema and the fragments."""
            if updated_fragment_offsets is not None:
                vars(self)["updated_fragment_offsets"] = updated_fragment_offsets  # no field: pylance has none
            _check_schema(self.schema)
            if isinstance(self.schema, pa.Schema):
                warnings.warn(
                    "Passing a pyarrow.Schema to Merge is deprecated. Please use a LanceSchema instead.",
                    DeprecationWarning,
                    stacklevel=3,
                )
            _check_fragments(self.fragments)

    @dataclass
    class Restore(BaseOperation):
        """Make an earlier version the latest again.

        Attributes:
            version: The earlier version.
        """

        version: int

    @dataclass
    class Clone(BaseOperation):
        """Create a clone or a branch.

        Attributes:
            is_shallow: Whether files are shared with the source.
            ref_name: Branch of the source; None for main.
            ref_version: Version of the source.
            ref_path: Root of the source.
            branch_name: The branch that was created; None for a clone.
        """

        is_shallow: bool
        ref_name: str | None
        ref_version: int
        ref_path: str
        branch_name: str | None

    @dataclass
    class RewriteGroup:
        """Fragments, and the fragments with the same rows that replace them.

        Attributes:
            old_fragments: The fragments that are replaced.
            new_fragments: Their replacements.
        """

        old_fragments: list[FragmentMetadata]
        new_fragments: list[FragmentMetadata]

    @dataclass
    class RewrittenIndex:
        """An index that was rewritten along with the rows.

        Attributes:
            old_id: UUID of the index that is replaced.
            new_id: UUID of the rewritten index.
            new_details_type_url: Type of its details.
            new_details_value: Serialized details.
            new_index_version: Version of the index's format.
        """

        old_id: str
        new_id: str
        new_details_type_url: str
        new_details_value: bytes
        new_index_version: int

    @dataclass
    class Rewrite(BaseOperation):
        """Move rows to other files without changing them, as compaction does.

        Attributes:
            groups: The replaced fragments with their replacements.
            rewritten_indices: Indices that were rewritten along with the rows.
        """

        groups: list[LanceOperation.RewriteGroup]
        rewritten_indices: list[LanceOperation.RewrittenIndex]

        def __post_init__(self) -> None:
            """Check the fragments."""
            for group in self.groups:
                _check_fragments(list(group.old_fragments))
                _check_fragments(list(group.new_fragments))

    @dataclass
    class CreateIndex(BaseOperation):
        """Change the list of indices.

        Attributes:
            new_indices: Segments to add.
            removed_indices: Segments to remove.
        """

        new_indices: list[Index]
        removed_indices: list[Index]

    @dataclass
    class DataReplacementGroup:
        """A file that replaces columns of a fragment.

        Attributes:
            fragment_id: The fragment.
            new_file: The file.
        """

        fragment_id: int
        new_file: DataFile

    @dataclass
    class DataReplacement(BaseOperation):
        """Replace columns of fragments by those of other files.

        Attributes:
            replacements: A file per fragment, all with the same fields.
        """

        replacements: list[LanceOperation.DataReplacementGroup]

    @dataclass
    class Project(BaseOperation):
        """Drop, rename or reorder columns, or change whether they allow nulls.

        Attributes:
            schema: All columns of the new version; none of them is new.
            preserves_nullability: Whether no column was made non-nullable, so that concurrent writes stay valid.
        """

        schema: LanceSchema
        preserves_nullability: bool = False

        def __post_init__(self) -> None:
            """Check the schema."""
            _check_schema(self.schema)

    @dataclass
    class UpdateMap:
        """A change to a map of strings.

        Attributes:
            updates: New values; None removes a key.
            replace: Whether `updates` is the whole new map.
        """

        updates: Mapping[str, str | None]
        replace: bool = False

    @dataclass
    class UpdateConfig(BaseOperation):
        """Change configuration and metadata.

        Attributes:
            config_updates: Change to the configuration.
            table_metadata_updates: Change to the metadata of the table.
            schema_metadata_updates: Change to the metadata of the schema.
            field_metadata_updates: Changes to the metadata of fields, by field id.
        """

        config_updates: LanceOperation.UpdateMap | None = None
        table_metadata_updates: LanceOperation.UpdateMap | None = None
        schema_metadata_updates: LanceOperation.UpdateMap | None = None
        field_metadata_updates: dict[int, LanceOperation.UpdateMap] | None = None

    @dataclass
    class Other(BaseOperation):
        """An operation without a public form in pylance; it can be inspected, not committed.

        Attributes:
            record: The table layer's record.
        """

        record: Operation

        @property
        def name(self) -> str:
            """The name of the operation in conflicts and histories."""
            return self.record.name
