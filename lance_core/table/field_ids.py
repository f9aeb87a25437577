"""Rules for field ids in datasets that never reuse a field id, and therefore record the highest one.

Such a dataset has `max_allocated_field_id` in its manifests, with bit 15 among the writer's flags; a manifest with only
one of the two is corrupt. pylance 14.0.2 creates no such datasets, but follows their rules:

    overwrite        the commit numbers its columns from the next id on, also in the records of its data files
    new columns      have ids above `max_allocated_field_id`
    other columns    keep their parent and type; a column of another type needs a new id
    data files       have no id above `max_allocated_field_id` that the schema lacks
    restore          goes back only to a version that has `max_allocated_field_id`
    detached         keeps the schema
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from lance_core.errors import InvalidInputError
from lance_core.schema import Field, Schema
from lance_core.table.fragment import DataFile, Fragment, data_files
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge, Operation, Overwrite, Project, Restore
from lance_core.table.paths import is_detached


def with_new_ids(operation: Overwrite, before: Manifest) -> Overwrite:
    """Number the columns of an Overwrite from the next free id on, in a dataset that never reuses a field id.

    Only the commit knows the next id, because the files can have been written long before. The manifest records the ids
    of a data file, so the file itself does not change.

    Args:
        operation: An overwrite whose fragments use the ids of its schema, or already the new ids.
        before: The version that the overwrite follows.

    Raises:
        InvalidInputError: A fragment uses ids that are in neither numbering, or ids that could be in either.
    """
    if before.max_allocated_field_id is None:
        return operation
    schema = _number_fields(operation.schema, before.first_new_field_id)
    new_ids = {old.id: new.id for (old, _), (new, _) in zip(operation.schema.walk(), schema.walk(), strict=True)}
    leaves = {field.id for field, _ in operation.schema.walk() if not field.children}
    fragments = tuple(_renumber(fragment, new_ids, leaves) for fragment in operation.fragments)
    return replace(operation, schema=schema, fragments=fragments)


def _number_fields(schema: Schema, first_id: int) -> Schema:
    fields = []
    for top in schema.fields:
        numbered, first_id = top.without_ids().with_ids(first_id)
        fields.append(numbered)
    return replace(schema, fields=tuple(fields))


def _renumber(fragment: Fragment, new_ids: Mapping[int, int], leaves: AbstractSet[int]) -> Fragment:
    """A fragment with the new ids."""
    used = {i for file in fragment.files for i in file.fields if i >= 0}
    has_schema_ids, has_dataset_ids = used <= set(new_ids), used <= set(new_ids.values())
    whole = used in (set(new_ids), leaves)
    if has_schema_ids and has_dataset_ids and not whole and any(new_ids[i] != i for i in used):
        raise InvalidInputError(
            f"data file {fragment.files[0].path} has field ids {sorted(used)}, which could be ids of the given schema "
            "or ids that the dataset gives its columns now: write all columns to the file"
        )
    if has_dataset_ids and not (has_schema_ids and whole):
        return fragment
    if not has_schema_ids:
        strange = min(used - set(new_ids))
        raise InvalidInputError(
            f"data file {fragment.files[0].path} has field id {strange}, which is neither in the given schema nor "
            "among the ids that the dataset gives its columns now: if the dataset has changed, write the file again"
        )
    return replace(fragment, files=tuple(_renumber_file(file, new_ids) for file in fragment.files))


def _renumber_file(file: DataFile, new_ids: Mapping[int, int]) -> DataFile:
    fields = tuple(new_ids.get(i, i) for i in file.fields)
    if file.version == "0.1" and len({new - old for new, old in zip(fields, file.fields, strict=True) if old >= 0}) > 1:
        raise InvalidInputError(
            f"data file {file.path} has gaps between its field ids {list(file.fields)}, and a file of version 0.1 "
            "keeps them, while the new ids have none: write the rows again"
        )
    return replace(file, fields=fields)


def check_field_ids(before: Manifest, mark: int, after: Manifest, operation: Operation) -> None:
    """Reject a change that would reuse a field id, in a dataset that never reuses one.

    Args:
        before: The version that the change follows.
        mark: Its highest allocated field id.
        after: The new version, with its number.
        operation: The operation between the two versions.

    Raises:
        InvalidInputError: The change breaks a rule of this module.
    """
    if before.max_field_id > mark:
        raise InvalidInputError(
            f"max_allocated_field_id {mark} is below field id {before.max_field_id}, which is in use"
        )
    if is_detached(after.version) and isinstance(operation, Merge | Project | Overwrite | Restore):
        _check_detached(before.schema, after.schema)
    if not isinstance(operation, Restore):
        is_new = isinstance(operation, Overwrite)
        _check_schema({} if is_new else _fields_by_id(before.schema), _fields_by_id(after.schema), mark)
        _check_files(after, -1 if is_new else mark)


def _check_schema(
    fields: Mapping[int, tuple[Field, int]], new_fields: Mapping[int, tuple[Field, int]], mark: int
) -> None:
    _check_new((field for i, (field, _) in new_fields.items() if i not in fields), mark)
    for field_id, (field, parent) in new_fields.items():
        if field_id not in fields:
            continue
        old, old_parent = fields[field_id]
        if old_parent != parent:
            raise InvalidInputError(f"field {field.name!r}, id {field_id}, cannot move to another parent")
        if old.logical_type != field.logical_type:
            raise InvalidInputError(
                f"field {field.name!r}, id {field_id}, has another type than in the dataset, so it needs a new id"
            )


def _check_files(after: Manifest, highest_known: int) -> None:
    field_ids = {field.id for field, _ in after.schema.walk()}
    for file in data_files(after.fragments.fresh):
        strange = [i for i in file.fields if i > highest_known and i not in field_ids]
        if strange:
            raise InvalidInputError(f"data file {file.path} has field id {strange[0]}, which the schema lacks")


def _check_new(fields: Iterable[Field], mark: int) -> None:
    for field in fields:
        if field.id <= mark:
            raise InvalidInputError(
                f"new field {field.name!r} has id {field.id}, but ids up to {mark} were used before, and this dataset "
                f"never reuses a field id: number new columns from {mark + 1} on"
            )


def _check_detached(before: Schema, after: Schema) -> None:
    if before != after:
        raise InvalidInputError("detached commits cannot change the schema of a dataset that never reuses a field id")


def _fields_by_id(schema: Schema) -> dict[int, tuple[Field, int]]:
    return {field.id: (field, parent) for field, parent in schema.walk()}
