"""Field ids that are never used again, in datasets that keep track of the highest one.

Such a dataset has `max_allocated_field_id` in its manifests, with bit 15 among the writer's flags; one without the
other is no manifest. pylance 14.0.2 begins none by itself, but keeps to the rules in those that there are:

    overwrite        numbers its columns from the next id on
    new columns      have ids above the mark
    other columns    keep parent and type; another type is another id
    data files       bring no id above the mark that the schema lacks
    restore          goes back to no version from before the mark
    detached         leaves the schema alone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lance_core.errors import InvalidInputError
from lance_core.schema import Field, Schema
from lance_core.table.manifest import Manifest
from lance_core.table.operations import Merge, Operation, Overwrite, Project, Restore
from lance_core.table.operations.base import data_files
from lance_core.table.paths import is_detached

__all__ = ["check_field_ids"]


def check_field_ids(before: Manifest, after: Manifest, operation: Operation) -> None:
    """Refuse a change that would use a field id again.

    Args:
        before: The version that is followed.
        after: The new version, with its number.
        operation: What leads from one to the other.

    Raises:
        InvalidInputError: It would, in a dataset that does not allow it.
    """
    mark = before.max_allocated_field_id
    if mark is None:
        return
    if before.max_field_id > mark:
        raise InvalidInputError(
            f"max_allocated_field_id {mark} is below field id {before.max_field_id}, which is in use"
        )
    if is_detached(after.version) and isinstance(operation, Merge | Project | Overwrite | Restore):
        _check_detached(before.schema, after.schema)
    if not isinstance(operation, Restore):
        is_new = isinstance(operation, Overwrite)
        _check_schema({} if is_new else _by_id(before.schema), _by_id(after.schema), mark)
        _check_files(after, -1 if is_new else mark)


def _check_schema(known: Mapping[int, tuple[Field, int]], own: Mapping[int, tuple[Field, int]], mark: int) -> None:
    _check_new((field for i, (field, _) in own.items() if i not in known), mark)
    for field_id, (field, parent) in own.items():
        if field_id not in known:
            continue
        old, old_parent = known[field_id]
        if old_parent != parent:
            raise InvalidInputError(f"field {field.name!r}, id {field_id}, cannot move to another parent")
        if old.logical_type != field.logical_type:
            raise InvalidInputError(f"field {field.name!r}, id {field_id}: another type takes a new field id")


def _check_files(after: Manifest, highest_known: int) -> None:
    own = {field.id for field, _ in after.schema.walk()}
    for file in data_files(after.fragments.fresh):
        strange = [i for i in file.fields if i > highest_known and i not in own]
        if strange:
            raise InvalidInputError(f"data file {file.path} has field id {strange[0]}, which the schema lacks")


def _check_new(fields: Iterable[Field], mark: int) -> None:
    for field in fields:
        if field.id <= mark:
            raise InvalidInputError(
                f"new field {field.name!r} has id {field.id}, but ids up to {mark} were used before and are not used "
                "again in this dataset: number the columns of an overwrite and of its files from there on, as "
                "write_dataset and write_fragments do with mode 'overwrite'"
            )


def _check_detached(before: Schema, after: Schema) -> None:
    if before != after:
        raise InvalidInputError("detached commits cannot change the schema of a dataset that uses no field id again")


def _by_id(schema: Schema) -> dict[int, tuple[Field, int]]:
    return {field.id: (field, parent) for field, parent in schema.walk()}
