"""Checks operations that users build by hand, so that no version is committed that readers cannot read.

    fragments that the base has     as many rows, and files; each field that must not be null
    new fragments                   files with a field of the schema, and each column that must not be null
    schema of a Merge or Project    each field id keeps its name and type, and in a Merge whether it is nullable, unless
                                    the Merge has written the field in every fragment again; in 0.1 all is stored
    Rewrite                         each fragment once, and as many live rows as before

Pylance rejects a part of these, and commits the rest to versions that it cannot read itself. The verbs of this library
do not need the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lance_core.errors import InvalidInputError
from lance_core.schema import Field, Schema, quote_path
from lance_core.table import operations
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest


def check_operation(operation: operations.Operation, base: Manifest | None) -> None:
    """Check an operation against the version that it is based on.

    Args:
        operation: The operation.
        base: The version; None if there is no dataset, or the version was cleaned up.

    Raises:
        InvalidInputError: The version that the operation makes could not be read, or would have other rows.
    """
    if isinstance(operation, operations.Overwrite):
        if base is not None and base.max_allocated_field_id is not None:
            return  # the commit numbers the fields of such a dataset again, and checks the ids of the files
        _check_new_fragments(operation.fragments, operation.schema, operation.name)
        return
    check = _CHECKS.get(type(operation))
    if check is not None and base is not None:
        check(operation, base)


def _check_append(operation: operations.Append, base: Manifest) -> None:
    _check_new_fragments(operation.fragments, base.schema, operation.name)


def _check_delete(operation: operations.Delete, base: Manifest) -> None:
    _check_existing_fragments(operation.updated_fragments, base, base.schema, operation.name)


def _check_update(operation: operations.Update, base: Manifest) -> None:
    _check_existing_fragments(operation.updated_fragments, base, base.schema, operation.name)
    _check_all_columns(operation.updated_fragments, base.schema, base, operation.name)
    _check_new_fragments(operation.new_fragments, base.schema, operation.name)


def _check_merge(operation: operations.Merge, base: Manifest) -> None:
    base_ids = set(base.fragments.ids)
    _check_existing_fragments(operation.fragments, base, operation.schema, operation.name)
    added = [fragment for fragment in operation.fragments if fragment.id not in base_ids]
    _check_new_fragments(added, operation.schema, operation.name)
    _check_all_columns(operation.fragments, operation.schema, base, operation.name)
    fragments_with_row_ids = [fragment.id for fragment in added if fragment.row_ids is not None]
    if fragments_with_row_ids:
        raise InvalidInputError(
            f"Merge: the new fragment {fragments_with_row_ids[0]} has row ids, which the commit gives to its rows"
        )
    new_fragments_by_id = {fragment.id: fragment for fragment in operation.fragments}
    for old, new in _pair_fields(operation.schema, base.schema, operation.name):
        change = _describe_type_change(old, new) or _describe_nullability_change(old, new)
        if change and not _is_written_again((old, new), base.fragments, new_fragments_by_id):
            raise InvalidInputError(
                f"Merge changes field {new.id} ({new.name!r}) without writing it again in every fragment: {change}"
            )


def _check_project(operation: operations.Project, base: Manifest) -> None:
    for old, new in _pair_fields(operation.schema, base.schema, operation.name):
        change = _describe_type_change(old, new) or (_describe_nullability_change(old, new) if old.nullable else None)
        if change:
            raise InvalidInputError(f"Project changes field {new.id} ({new.name!r}), and writes no values: {change}")
    _check_required_columns(base.fragments, operation.schema, operation.name)
    _check_all_columns(base.fragments, operation.schema, base, operation.name)


def _check_rewrite(operation: operations.Rewrite, base: Manifest) -> None:
    old_ids = [fragment.id for group in operation.groups for fragment in group.old_fragments]
    twice = sorted(key for key in set(old_ids) if old_ids.count(key) > 1)
    if twice:
        raise InvalidInputError(f"Rewrite replaces fragment {twice[0]} more than once")
    for group in operation.groups:
        if not group.old_fragments:
            raise InvalidInputError("Rewrite adds fragments without replacing any; use Append")
        _check_new_fragments(group.new_fragments, base.schema, operation.name)
        counts = [_count_live_rows(base.fragments.get(fragment.id) or fragment for fragment in group.old_fragments)]
        counts.append(_count_live_rows(group.new_fragments))
        if None not in counts and counts[0] != counts[1]:
            raise InvalidInputError(
                f"Rewrite puts the {counts[0]} rows of fragments {[f.id for f in group.old_fragments]} into "
                f"{counts[1]} rows: it must keep all rows"
            )


def _check_replacement(operation: operations.DataReplacement, _base: Manifest) -> None:
    for fragment_id, file in operation.replacements:
        if not file.fields:
            raise InvalidInputError(f"DataReplacement: the new file of fragment {fragment_id} has no fields")


_CHECKS: Final[Mapping[type, Callable[[Any, Manifest], None]]] = {
    operations.Append: _check_append,
    operations.Delete: _check_delete,
    operations.Update: _check_update,
    operations.Merge: _check_merge,
    operations.Project: _check_project,
    operations.Rewrite: _check_rewrite,
    operations.DataReplacement: _check_replacement,
}


def _check_existing_fragments(fragments: Iterable[Fragment], base: Manifest, schema: Schema, name: str) -> None:
    """Reject an existing fragment with another number of rows, without files, or without a required column."""
    changed = []
    for fragment in fragments:
        before = base.fragments.get(fragment.id)
        if before is None:
            continue
        if before.physical_rows and fragment.physical_rows != before.physical_rows:
            raise InvalidInputError(
                f"{name} changes the number of rows in the files of fragment {fragment.id} from "
                f"{before.physical_rows} to {fragment.physical_rows}"
            )
        if before.files and not fragment.files:
            raise InvalidInputError(f"{name} leaves fragment {fragment.id} without data files")
        changed.append(fragment)
    _check_required_columns(changed, schema, name)


def _check_new_fragments(fragments: Sequence[Fragment], schema: Schema, name: str) -> None:
    """Reject a new fragment whose files have no field of the schema, or that lacks a required column."""
    ids = {node.id for node, _ in schema.walk()}
    for fragment in fragments:
        if ids.isdisjoint(_stored_field_ids(fragment)):
            listed = ", ".join(map(str, sorted(_stored_field_ids(fragment))))
            what = f"the field ids {listed}, which the schema lacks" if fragment.files else "no data files"
            raise InvalidInputError(f"{name}: a new fragment has {what}")
    _check_required_columns(fragments, schema, name)


def _check_required_columns(fragments: Iterable[Fragment], schema: Schema, name: str) -> None:
    """Check that fragments store the columns that must not be null: readers fill in null for what is not stored."""
    needed = [(top, {node.id for node, _ in top.walk()}) for top in schema.fields if not top.nullable]
    for fragment in fragments if needed else ():
        stored = _stored_field_ids(fragment)
        for top, ids in needed:
            if ids.isdisjoint(stored):
                raise InvalidInputError(
                    f"{name}: fragment {fragment.id} lacks column {quote_path([top.name])}, which must not be null"
                )


def _check_all_columns(fragments: Iterable[Fragment], schema: Schema, base: Manifest, name: str) -> None:
    """Check that fragments of version 0.1, which fills in no nulls, store all columns."""
    for fragment in fragments if base.data_storage_version == "0.1" else ():
        missing = [node.name for node, _ in schema.walk() if node.id not in _stored_field_ids(fragment)]
        if missing:
            raise InvalidInputError(
                f"{name}: fragment {fragment.id} lacks the columns {missing}, and version 0.1 fills in no nulls"
            )


def _stored_field_ids(fragment: Fragment) -> set[int]:
    return {field_id for file in fragment.files for field_id in file.fields}


def _pair_fields(new: Schema, base: Schema, name: str) -> Iterator[tuple[Field, Field]]:
    """Yield each field that both schemas have, as it was and as it is to be; no id may take another one's name."""
    paths = [{field.id: path for path, field in schema.walk_paths()} for schema in (base, new)]
    ids = {path: key for key, path in paths[0].items()}
    before, after = base.by_id(), new.by_id()
    for key, path in paths[1].items():
        if key not in before:
            continue
        if path != paths[0][key] and ids.get(path, key) != key:
            raise InvalidInputError(
                f"{name} gives field id {key} of {quote_path(paths[0][key])} to {quote_path(path)}, which has id "
                f"{ids[path]}: take the schema of the dataset (lance_schema), whose ids a pyarrow.Schema does not have"
            )
        yield before[key], after[key]


def _describe_type_change(old: Field, new: Field) -> str | None:
    if old.logical_type == new.logical_type and bool(old.children) == bool(new.children):
        return None
    return f"type {old.logical_type} -> {new.logical_type}"


def _describe_nullability_change(old: Field, new: Field) -> str | None:
    return None if old.nullable == new.nullable else f"nullable {old.nullable} -> {new.nullable}"


def _is_written_again(fields: Iterable[Field], base: Iterable[Fragment], now: Mapping[int, Fragment]) -> bool:
    """Whether no fragment has the file any more that held the values of a field, as it was and as it is to be."""
    ids = {node.id for field in fields for node, _ in field.walk()}
    return all(
        fragment.id in now and _files_with_fields(fragment, ids).isdisjoint(_files_with_fields(now[fragment.id], ids))
        for fragment in base
    )


def _files_with_fields(fragment: Fragment, ids: set[int]) -> set[tuple[int | None, str]]:
    return {(file.base_id, file.path) for file in fragment.files if not ids.isdisjoint(file.fields)}


def _count_live_rows(fragments: Iterable[Fragment]) -> int | None:
    """The live rows of fragments; None if a count is not recorded."""
    total = 0
    for fragment in fragments:
        deleted = fragment.num_deleted_rows
        if not fragment.physical_rows or (fragment.deletion_file is not None and not deleted):
            return None
        total += fragment.physical_rows - deleted
    return total
