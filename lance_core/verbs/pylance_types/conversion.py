"""Convert public operations (`LanceOperation`) to records of the table layer and back.

A record has the fields of its public class, under other names where `_RENAMED` says so. Values are converted by their
types: fragments, files, indices, schemas and nested classes to their records, and lists to tuples. A public None means
the default of the record.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Schema, schema_from_arrow
from lance_core.schema.lance_schema import LanceSchema
from lance_core.table import operations as records
from lance_core.table.fragment import BasePath, DataFile, Fragment
from lance_core.table.index import IndexMetadata
from lance_core.verbs.context.bases import DatasetBasePath, numbered
from lance_core.verbs.pylance_types import fragments
from lance_core.verbs.pylance_types.indices import Index
from lance_core.verbs.pylance_types.operations import LanceOperation

_RECORDS: Final[Mapping[type, Callable[..., Any]]] = {
    LanceOperation.Overwrite: records.Overwrite,
    LanceOperation.Append: records.Append,
    LanceOperation.Delete: records.Delete,
    LanceOperation.Update: records.Update,
    LanceOperation.Merge: records.Merge,
    LanceOperation.Restore: records.Restore,
    LanceOperation.Rewrite: records.Rewrite,
    LanceOperation.RewriteGroup: records.RewriteGroup,
    LanceOperation.RewrittenIndex: records.RewrittenIndex,
    LanceOperation.CreateIndex: records.CreateIndex,
    LanceOperation.DataReplacement: records.DataReplacement,
    LanceOperation.DataReplacementGroup: lambda fragment_id, new_file: (fragment_id, new_file),
    LanceOperation.Project: records.Project,
    LanceOperation.UpdateMap: records.UpdateMap,
    LanceOperation.UpdateConfig: records.UpdateConfig,
}

_RENAMED: Final[Mapping[str, str]] = {
    "Overwrite.new_schema": "schema",
    "Update.updated_fragment_offsets": "updated_fragment_offset_bitmaps",
    "RewrittenIndex.new_details_type_url": "details_type_url",
    "RewrittenIndex.new_details_value": "details",
    "RewrittenIndex.new_index_version": "index_version",
    "UpdateMap.updates": "entries",
    "UpdateConfig.config_updates": "config",
    "UpdateConfig.table_metadata_updates": "table_metadata",
    "UpdateConfig.schema_metadata_updates": "schema_metadata",
    "UpdateConfig.field_metadata_updates": "field_metadata",
}

_MODES: Final = {
    "": records.UpdateMode.REWRITE_ROWS,
    "rewrite_rows": records.UpdateMode.REWRITE_ROWS,
    "rewrite_columns": records.UpdateMode.REWRITE_COLUMNS,
}


def _update_mode(name: str) -> records.UpdateMode:
    if name not in _MODES:
        raise InvalidInputError(f"update_mode must be one of {[mode for mode in _MODES if mode]}, not {name!r}")
    return _MODES[name]


def _from_data_replacement(record: records.DataReplacement) -> LanceOperation.DataReplacement:
    files = [(fragment_id, fragments.DataFile.from_record(file)) for fragment_id, file in record.replacements]
    return LanceOperation.DataReplacement([LanceOperation.DataReplacementGroup(*pair) for pair in files])


_TO_VALUE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "Overwrite.initial_bases": numbered,
    "Update.update_mode": _update_mode,
    "RewrittenIndex.old_id": uuid.UUID,
    "RewrittenIndex.new_id": uuid.UUID,
    "UpdateConfig.field_metadata_updates": lambda maps: {key: _to_value(part) for key, part in maps.items() if part},
}

_FROM_VALUE: Final[Mapping[type, Callable[[Any], Any]]] = {
    Fragment: fragments.FragmentMetadata.from_record,
    DataFile: fragments.DataFile.from_record,
    IndexMetadata: Index.from_record,
    BasePath: DatasetBasePath.from_record,
    Schema: LanceSchema,
    uuid.UUID: str,
    records.DataReplacement: _from_data_replacement,
    records.UpdateMode: {mode: name for name, mode in _MODES.items()}.__getitem__,
}

_PUBLIC: Final[Mapping[Any, type]] = {
    **{record: public for public, record in _RECORDS.items()},
    records.Clone: LanceOperation.Clone,
}


def to_record(operation: LanceOperation.BaseOperation) -> records.Operation:
    """The table layer's record of a public operation.

    Raises:
        UnsupportedError: The operation cannot be committed.
    """
    if type(operation) not in _RECORDS:
        raise UnsupportedError(f"LanceOperation.{operation.name} cannot be committed")
    record: records.Operation = _to_value(operation)
    return record


def from_record(record: records.Operation) -> LanceOperation.BaseOperation:
    """The public form of the table layer's record of an operation."""
    if type(record) not in _PUBLIC:
        return LanceOperation.Other(record)
    operation: LanceOperation.BaseOperation = _from_value(record)
    return operation


def _to_value(value: Any) -> Any:
    make, name = _RECORDS.get(type(value)), type(value).__name__
    if make is not None:
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        arguments = {
            _RENAMED.get(f"{name}.{key}", key): _TO_VALUE.get(f"{name}.{key}", _to_value)(part)
            for key, part in values.items()
            if part is not None
        }
        offsets = vars(value).get("updated_fragment_offsets") if isinstance(value, LanceOperation.Merge) else None
        if offsets is not None:
            arguments["updated_rows"] = {key: BitMap.deserialize(rows) for key, rows in offsets.items()}
        return make(**arguments)
    if isinstance(value, LanceSchema):
        return value.record
    if isinstance(value, pa.Schema):
        return schema_from_arrow(value)
    if isinstance(value, Mapping):
        return {key: _to_value(part) for key, part in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return tuple(map(_to_value, value))
    return value.to_record() if hasattr(value, "to_record") else value


def _from_value(value: Any) -> Any:
    make, public = _FROM_VALUE.get(type(value)), _PUBLIC.get(type(value))
    if make is not None:
        return make(value)
    if public is not None:
        arguments = {}
        for field in fields(public):
            part = getattr(value, _RENAMED.get(f"{public.__name__}.{field.name}", field.name))
            is_default = field.default is None and isinstance(part, tuple | Mapping) and not part
            arguments[field.name] = None if is_default else _from_value(part)
        return public(**arguments)
    if isinstance(value, Mapping):
        return {key: _from_value(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(map(_from_value, value))
    return value
