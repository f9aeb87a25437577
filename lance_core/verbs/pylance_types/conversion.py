"""Convert public operations (`LanceOperation`) to records of the table layer and back, by two functions for each."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Schema, schema_from_arrow
from lance_core.schema.lance_schema import LanceSchema
from lance_core.table import operations as records
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.bases import DatasetBasePath, numbered
from lance_core.verbs.pylance_types.fragments import DataFile, FragmentMetadata
from lance_core.verbs.pylance_types.indices import Index
from lance_core.verbs.pylance_types.operations import LanceOperation

__all__ = ["from_record", "to_record"]

_MODES = {
    "": records.UpdateMode.REWRITE_ROWS,
    "rewrite_rows": records.UpdateMode.REWRITE_ROWS,
    "rewrite_columns": records.UpdateMode.REWRITE_COLUMNS,
}
_MODE_NAMES = {mode: name for name, mode in _MODES.items()}


def to_record(operation: LanceOperation.BaseOperation) -> records.Operation:
    """The table layer's record of a public operation.

    Raises:
        UnsupportedError: The operation cannot be committed.
    """
    make = _TO_RECORD.get(type(operation))
    if make is None:
        raise UnsupportedError(f"LanceOperation.{operation.name} cannot be committed")
    return make(operation)


def from_record(record: records.Operation) -> LanceOperation.BaseOperation:
    """The public form of the table layer's record of an operation."""
    make = _FROM_RECORD.get(type(record))
    return LanceOperation.Other(record) if make is None else make(record)


def _records(fragments: Iterable[FragmentMetadata]) -> tuple[Fragment, ...]:
    return tuple(fragment.to_record() for fragment in fragments)


def _metadata(fragments: Iterable[Fragment]) -> list[FragmentMetadata]:
    return [FragmentMetadata.from_record(fragment) for fragment in fragments]


def _schema(schema: LanceSchema | pa.Schema) -> Schema:
    return schema.record if isinstance(schema, LanceSchema) else schema_from_arrow(schema)


def _overwrite(operation: LanceOperation.Overwrite) -> records.Overwrite:
    return records.Overwrite(
        fragments=_records(operation.fragments),
        schema=_schema(operation.new_schema),
        initial_bases=numbered(operation.initial_bases or ()),
    )


def _from_overwrite(record: records.Overwrite) -> LanceOperation.Overwrite:
    bases = [DatasetBasePath.from_record(base) for base in record.initial_bases]
    return LanceOperation.Overwrite(LanceSchema(record.schema), _metadata(record.fragments), bases or None)


def _append(operation: LanceOperation.Append) -> records.Append:
    return records.Append(fragments=_records(operation.fragments))


def _from_append(record: records.Append) -> LanceOperation.Append:
    return LanceOperation.Append(_metadata(record.fragments))


def _delete(operation: LanceOperation.Delete) -> records.Delete:
    return records.Delete(
        updated_fragments=_records(operation.updated_fragments),
        deleted_fragment_ids=tuple(operation.deleted_fragment_ids),
        predicate=operation.predicate,
    )


def _from_delete(record: records.Delete) -> LanceOperation.Delete:
    return LanceOperation.Delete(
        _metadata(record.updated_fragments), list(record.deleted_fragment_ids), record.predicate
    )


def _update(operation: LanceOperation.Update) -> records.Update:
    if operation.update_mode not in _MODES:
        modes = [name for name in _MODES if name]
        raise InvalidInputError(f"update_mode must be one of {modes}, not {operation.update_mode!r}")
    return records.Update(
        removed_fragment_ids=tuple(operation.removed_fragment_ids),
        updated_fragments=_records(operation.updated_fragments),
        new_fragments=_records(operation.new_fragments),
        fields_modified=tuple(operation.fields_modified),
        fields_for_preserving_frag_bitmap=tuple(operation.fields_for_preserving_frag_bitmap),
        update_mode=_MODES[operation.update_mode],
        updated_fragment_offset_bitmaps=dict(operation.updated_fragment_offsets or {}),
        inserted_rows=operation.inserted_rows,
    )


def _from_update(record: records.Update) -> LanceOperation.Update:
    return LanceOperation.Update(
        removed_fragment_ids=list(record.removed_fragment_ids),
        updated_fragments=_metadata(record.updated_fragments),
        new_fragments=_metadata(record.new_fragments),
        fields_modified=list(record.fields_modified),
        fields_for_preserving_frag_bitmap=list(record.fields_for_preserving_frag_bitmap),
        update_mode=_MODE_NAMES[record.update_mode],
        updated_fragment_offsets=dict(record.updated_fragment_offset_bitmaps) or None,
        inserted_rows=record.inserted_rows,
    )


def _merge(operation: LanceOperation.Merge) -> records.Merge:
    marks: dict[int, bytes] | None = vars(operation).get("updated_fragment_offsets")
    return records.Merge(
        fragments=_records(operation.fragments),
        schema=_schema(operation.schema),
        preserves_nullability=operation.preserves_nullability,
        updated_rows=None if marks is None else {i: BitMap.deserialize(rows) for i, rows in marks.items()},
    )


def _from_merge(record: records.Merge) -> LanceOperation.Merge:
    return LanceOperation.Merge(_metadata(record.fragments), LanceSchema(record.schema), record.preserves_nullability)


def _restore(operation: LanceOperation.Restore) -> records.Restore:
    return records.Restore(version=operation.version)


def _from_restore(record: records.Restore) -> LanceOperation.Restore:
    return LanceOperation.Restore(record.version)


def _from_clone(record: records.Clone) -> LanceOperation.Clone:
    return LanceOperation.Clone(
        record.is_shallow, record.ref_name, record.ref_version, record.ref_path, record.branch_name
    )


def _rewrite(operation: LanceOperation.Rewrite) -> records.Rewrite:
    groups = [
        records.RewriteGroup(old_fragments=_records(group.old_fragments), new_fragments=_records(group.new_fragments))
        for group in operation.groups
    ]
    indices = [
        records.RewrittenIndex(
            old_id=uuid.UUID(index.old_id),
            new_id=uuid.UUID(index.new_id),
            details_type_url=index.new_details_type_url,
            details=index.new_details_value,
            index_version=index.new_index_version,
        )
        for index in operation.rewritten_indices
    ]
    return records.Rewrite(groups=tuple(groups), rewritten_indices=tuple(indices))


def _from_rewrite(record: records.Rewrite) -> LanceOperation.Rewrite:
    groups = [
        LanceOperation.RewriteGroup(_metadata(group.old_fragments), _metadata(group.new_fragments))
        for group in record.groups
    ]
    indices = [
        LanceOperation.RewrittenIndex(
            str(index.old_id), str(index.new_id), index.details_type_url, index.details, index.index_version
        )
        for index in record.rewritten_indices
    ]
    return LanceOperation.Rewrite(groups, indices)


def _create_index(operation: LanceOperation.CreateIndex) -> records.CreateIndex:
    return records.CreateIndex(
        new_indices=tuple(index.to_record() for index in operation.new_indices),
        removed_indices=tuple(index.to_record() for index in operation.removed_indices),
    )


def _from_create_index(record: records.CreateIndex) -> LanceOperation.CreateIndex:
    return LanceOperation.CreateIndex(
        [Index.from_record(index) for index in record.new_indices],
        [Index.from_record(index) for index in record.removed_indices],
    )


def _data_replacement(operation: LanceOperation.DataReplacement) -> records.DataReplacement:
    pairs = ((group.fragment_id, group.new_file.to_record()) for group in operation.replacements)
    return records.DataReplacement(replacements=tuple(pairs))


def _from_data_replacement(record: records.DataReplacement) -> LanceOperation.DataReplacement:
    return LanceOperation.DataReplacement(
        [LanceOperation.DataReplacementGroup(i, DataFile.from_record(file)) for i, file in record.replacements]
    )


def _project(operation: LanceOperation.Project) -> records.Project:
    return records.Project(schema=_schema(operation.schema), preserves_nullability=operation.preserves_nullability)


def _from_project(record: records.Project) -> LanceOperation.Project:
    return LanceOperation.Project(LanceSchema(record.schema), record.preserves_nullability)


def _map(change: LanceOperation.UpdateMap | None) -> records.UpdateMap | None:
    return None if change is None else records.UpdateMap(entries=dict(change.updates), replace=change.replace)


def _from_map(change: records.UpdateMap | None) -> LanceOperation.UpdateMap | None:
    return None if change is None else LanceOperation.UpdateMap(dict(change.entries), change.replace)


def _update_config(operation: LanceOperation.UpdateConfig) -> records.UpdateConfig:
    fields = {i: _map(change) for i, change in (operation.field_metadata_updates or {}).items()}
    return records.UpdateConfig(
        config=_map(operation.config_updates),
        table_metadata=_map(operation.table_metadata_updates),
        schema_metadata=_map(operation.schema_metadata_updates),
        field_metadata={i: change for i, change in fields.items() if change is not None},
    )


def _from_update_config(record: records.UpdateConfig) -> LanceOperation.UpdateConfig:
    fields = {i: _from_map(change) for i, change in record.field_metadata.items()}
    return LanceOperation.UpdateConfig(
        config_updates=_from_map(record.config),
        table_metadata_updates=_from_map(record.table_metadata),
        schema_metadata_updates=_from_map(record.schema_metadata),
        field_metadata_updates={i: change for i, change in fields.items() if change is not None} or None,
    )


_TO_RECORD: dict[type, Callable[[Any], records.Operation]] = {
    LanceOperation.Overwrite: _overwrite,
    LanceOperation.Append: _append,
    LanceOperation.Delete: _delete,
    LanceOperation.Update: _update,
    LanceOperation.Merge: _merge,
    LanceOperation.Restore: _restore,
    LanceOperation.Rewrite: _rewrite,
    LanceOperation.CreateIndex: _create_index,
    LanceOperation.DataReplacement: _data_replacement,
    LanceOperation.Project: _project,
    LanceOperation.UpdateConfig: _update_config,
}

_FROM_RECORD: dict[type, Callable[[Any], LanceOperation.BaseOperation]] = {
    records.Overwrite: _from_overwrite,
    records.Append: _from_append,
    records.Delete: _from_delete,
    records.Update: _from_update,
    records.Merge: _from_merge,
    records.Restore: _from_restore,
    records.Clone: _from_clone,
    records.Rewrite: _from_rewrite,
    records.CreateIndex: _from_create_index,
    records.DataReplacement: _from_data_replacement,
    records.Project: _from_project,
    records.UpdateConfig: _from_update_config,
}
