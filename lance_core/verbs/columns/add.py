"""Add columns to a dataset: columns of nulls write no file, columns of values a new file per fragment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import InvalidInputError, LanceError, SchemaError, UnsupportedError
from lance_core.extension_types import empty_table
from lance_core.file.metadata import FileVersion
from lance_core.schema import Field, Schema, check_names, check_primary_key, field_from_arrow, schema_from_arrow
from lance_core.schema.field import is_packed
from lance_core.store import has_object
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge
from lance_core.verbs.columns.batch_udf import BatchUDF
from lance_core.verbs.columns.makers import ColumnMaker, column_maker, null_fields
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files
from lance_core.verbs.files.column_files import live_batches, spread, with_column_file, write_at_once, write_column_file
from lance_core.verbs.files.conform import check_blobs, check_column_name
from lance_core.verbs.files.null_rows import check_null_is_stored
from lance_core.verbs.pylance_types.fragments import FragmentMetadata
from lance_core.verbs.scan.projection import ROW_ADDRESS, ROW_ID


def add_columns(
    snapshot: Snapshot,
    transforms: Any,
    read_columns: Sequence[str] | None = None,
    reader_schema: pa.Schema | None = None,
    batch_size: int | None = None,
) -> Manifest:
    """Commit a version with new columns, with the arguments of `LanceDataset.add_columns`.

    Raises:
        SchemaError: A column exists already, or values do not fit their column.
        InvalidInputError: The transforms are of an unsupported kind.
    """
    fields = fields_of(transforms)
    if fields is None and isinstance(transforms, Mapping) and snapshot.manifest.data_storage_version != "0.1":
        fields = null_fields(transforms, snapshot)
    if fields is not None:
        return add_null_columns(snapshot, fields)
    with collecting_files(snapshot):  # calls a function on one row; reports if the dataset was dropped
        maker = column_maker(transforms, snapshot, read_columns, reader_schema)
    manifest = commit_made(snapshot, maker, batch_size)
    if isinstance(transforms, BatchUDF) and transforms.cache is not None:
        transforms.cache.cleanup()
    return manifest


def fields_of(transforms: Any) -> list[pa.Field] | None:
    """The fields of null columns that an argument of `add_columns` names; None if it gives columns with values.

    Raises:
        InvalidInputError: The argument is an empty list.
    """
    if isinstance(transforms, pa.Field):
        return [transforms]
    if isinstance(transforms, pa.Schema):
        return list(transforms)
    if isinstance(transforms, list | tuple) and not transforms:
        raise InvalidInputError("add_columns: no column was given")
    if isinstance(transforms, list | tuple) and all(isinstance(field, pa.Field) for field in transforms):
        return list(transforms)
    return None


def add_null_columns(snapshot: Snapshot, fields: Iterable[pa.Field]) -> Manifest:
    """Commit new columns that are null in all rows; no file is written.

    A struct that exists gets the children that it lacks.

    Args:
        snapshot: The version that the columns are added to.
        fields: The columns.

    Raises:
        SchemaError: A column exists already, or does not allow nulls.
        UnsupportedError: The dataset has the file version 0.1, in which each fragment must store every column.
    """
    fields = list(fields)
    check_names(fields)
    for name in null_columns(snapshot.manifest.schema) & {field.name for field in fields}:
        raise SchemaError(f"column {name!r} exists already")
    schema = with_null_columns(snapshot.manifest, fields)
    fragments = tuple(snapshot.manifest.fragments)
    return commit_merge(UncommittedFiles(snapshot), fragments, schema, preserves_nullability=True)


def with_null_columns(base: Manifest, fields: Iterable[pa.Field]) -> Schema:
    """The dataset's schema with new columns, new fields of structs, and types for columns of the type null.

    A column that gets a type also gets a new field id: files refer to the old one, so its rows stay null.

    Raises:
        SchemaError: A column exists already, or does not allow nulls.
        UnsupportedError: The dataset has the file version 0.1, or a column that would get a type has an index.
    """
    if base.data_storage_version == "0.1":
        raise UnsupportedError("Cannot add all-null columns to a dataset of the file version 0.1")
    fields = list(fields)
    check_blobs(pa.schema(fields), FileVersion.from_string(base.data_storage_version))
    added = [field_from_arrow(field) for field in fields]
    check_primary_key(tuple(added))
    result = list(base.schema.fields)
    untyped = null_columns(base.schema)
    for field in added:
        _check_nullable(field, field.name)
        at = base.schema.names.index(field.name) if field.name in base.schema.names else None
        if at is None:
            check_column_name(field.name)
            check_null_is_stored(field, field.name, base.data_storage_version)
            result.append(field)
        elif field.name in untyped:
            _check_no_index(base, result[at])
            check_null_is_stored(field, field.name, base.data_storage_version)
            result[at] = replace(field, metadata={**result[at].metadata, **field.metadata})
        else:
            result[at] = _extend_struct(result[at], field, field.name, base.data_storage_version)
    return replace(base.schema, fields=tuple(result)).with_ids(base.max_field_id + 1)


def lacking_fields(schema: Schema, columns: pa.Schema) -> list[pa.Field]:
    """The columns of an Arrow schema that a dataset lacks, or has without their type or some of their fields."""
    fields_by_name = {field.name: field for field in schema.fields}
    untyped = null_columns(schema) - {field.name for field in columns if pa.types.is_null(field.type)}
    return [
        field
        for field in columns
        if field.name not in fields_by_name or field.name in untyped or _lacks(fields_by_name[field.name], field.type)
    ]


def null_columns(schema: Schema) -> set[str]:
    """The columns of the type null, which have no value in any row."""
    return {field.name for field in schema.fields if field.logical_type == "null"}


def _check_no_index(base: Manifest, field: Field) -> None:
    for index in base.indices:
        if field.id in (*index.fields, *index.covering_fields):
            raise UnsupportedError(
                f"column {field.name!r} has an index and cannot get a type: drop the index {index.name!r} first"
            )


def _lacks(field: Field, kind: pa.DataType) -> bool:
    if field.logical_type != "struct" or not pa.types.is_struct(kind):
        return False
    children = {child.name: child for child in field.children}
    return any(child.name not in children or _lacks(children[child.name], child.type) for child in kind)


def with_new_columns(manifest: Manifest, columns: pa.Schema) -> tuple[Schema, Schema]:
    """The dataset's schema with new columns, and the schema of the new columns alone, both with field ids.

    Raises:
        InvalidInputError: There is no new column.
        SchemaError: A column exists already, or cannot be stored.
        UnsupportedError: A column of blobs cannot be stored, or a column is a dictionary and the file version is 0.1,
            in which the values of a dictionary would have to be in the manifest.
    """
    if not len(columns):
        raise InvalidInputError("no new column was given")
    check_names(columns)
    check_blobs(columns, FileVersion.from_string(manifest.data_storage_version))
    existing_names = set(manifest.schema.names)
    for name in columns.names:
        if name in existing_names:
            raise SchemaError(
                f"Column {name} already exists in the dataset; drop_columns drops it, update changes its values"
            )
        check_column_name(name)
        if manifest.data_storage_version == "0.1" and pa.types.is_dictionary(columns.field(name).type):
            raise UnsupportedError(f"Column {name}: a dictionary cannot be added to a dataset of the file version 0.1")
    new = replace(schema_from_arrow(columns), metadata={})
    bare = replace(new, fields=tuple(field.without_ids() for field in new.fields)).with_ids(manifest.max_field_id + 1)
    return replace(manifest.schema, fields=(*manifest.schema.fields, *bare.fields)), bare


def commit_merge(
    files: UncommittedFiles,
    fragments: Sequence[Fragment],
    schema: Schema,
    *,
    preserves_nullability: bool,
    properties: Mapping[str, str] | None = None,
) -> Manifest:
    """Commit a Merge: fragments with new column files, and the schema with their columns."""
    operation = Merge(fragments=tuple(fragments), schema=schema, preserves_nullability=preserves_nullability)
    return files.commit(operation, properties=properties)


def made_fragment(
    snapshot: Snapshot,
    fragment: Fragment,
    maker: ColumnMaker,
    columns: Schema,
    batch_size: int | None,
    files: UncommittedFiles,
) -> Fragment:
    """Write a file with a maker's columns for a fragment, and return the fragment with it."""
    tables = _make_parts(snapshot, fragment, maker, batch_size)
    return with_column_file(fragment, write_column_file(snapshot, fragment, columns, tables, files))


def commit_made(snapshot: Snapshot, maker: ColumnMaker, batch_size: int | None = None) -> Manifest:
    """Write a maker's columns for all fragments, or take them from its checkpoint, and commit them."""
    schema, columns = with_new_columns(snapshot.manifest, maker.makes)
    with collecting_files(snapshot) as files:

        def make(fragment: Fragment) -> Fragment:
            kept_file = _find_kept_file(snapshot, fragment, maker, columns, batch_size)
            if kept_file is not None:
                return with_column_file(fragment, kept_file)
            # Files that a checkpoint refers to must outlive a failure of this run.
            fragment_files = files if maker.cache is None else UncommittedFiles(snapshot)
            record = made_fragment(snapshot, fragment, maker, columns, batch_size, fragment_files)
            if maker.cache is not None:
                maker.cache.insert_fragment(fragment.id, json.dumps(FragmentMetadata.from_record(record).to_json()))
            return record

        everything = snapshot.manifest.fragments
        fragments = list(write_at_once(make, everything, snapshot.store) if maker.is_pure else map(make, everything))
        maker.finish()
        return commit_merge(
            files, fragments, schema, preserves_nullability=all(field.nullable for field in columns.fields)
        )


def _find_kept_file(
    snapshot: Snapshot, fragment: Fragment, maker: ColumnMaker, columns: Schema, batch_size: int | None
) -> DataFile | None:
    """The file that a failed run wrote for a fragment, if it is still right; None otherwise.

    Raises:
        InvalidInputError: The checkpoint has something else in it.
    """
    cache = maker.cache
    if cache is None:
        return None
    reads = snapshot.manifest.schema.project([name for name in maker.reads if name not in (ROW_ID, ROW_ADDRESS)])
    state = [
        fragment.files,
        fragment.physical_rows,
        list(maker.reads),
        _describe_shape(reads),
        _describe_shape(columns),
    ]
    deletions = snapshot.deletions(fragment)
    cache.begin_fragment(fragment.id, repr(state), BitMap() if deletions is None else deletions.bitmap, batch_size)
    cached_json = cache.get_fragment(fragment.id)
    if cached_json is None:
        return None
    try:
        file = FragmentMetadata.from_json(cached_json).to_record().files[-1]
    except (LanceError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            f"{cache.path} cannot be used as a checkpoint: {error!r}; delete it to start again"
        ) from error
    store, key = snapshot.data_file(file)
    return file if has_object(store, key) else None  # a cleanup removes files that no version has


def _describe_shape(schema: Schema) -> list[tuple[int, str, str, bool]]:
    return [(field.id, field.name, field.logical_type, field.nullable) for field, _ in schema.walk()]


def _make_parts(
    snapshot: Snapshot, fragment: Fragment, maker: ColumnMaker, batch_size: int | None
) -> Iterator[pa.Table]:
    """Yield a maker's columns for all physical rows of a fragment, in batches."""
    names = [name for name in maker.reads if name not in (ROW_ID, ROW_ADDRESS)]
    columns = snapshot.manifest.schema.project(names)
    has_ids, has_addresses = ROW_ID in maker.reads, ROW_ADDRESS in maker.reads
    batches = live_batches(
        snapshot, fragment, columns, batch_rows=batch_size, with_row_id=has_ids, with_row_address=has_addresses
    )
    for index, (rows, mask) in enumerate(batches):
        values = maker.make(rows.select(list(maker.reads)), fragment.id, index) if rows.num_rows else None
        yield spread(empty_table(maker.makes) if values is None else values, mask)


def _check_nullable(field: Field, path: str) -> None:
    if not field.nullable:
        raise SchemaError(f"column {path!r} must allow nulls: existing rows have no value for it")


def _extend_struct(old: Field, new: Field, path: str, version: str) -> Field:
    """An existing struct with the new children that it lacks, also in nested structs.

    Raises:
        SchemaError: The column is no struct, or has all these children.
    """
    extended = _add_children(old, new, path, version)
    if extended == old:
        raise SchemaError(f"column {path!r} exists already")
    return extended


def _add_children(old: Field, new: Field, path: str, version: str) -> Field:
    if old.logical_type != "struct" or new.logical_type != "struct":
        raise SchemaError(f"column {path!r} exists already")
    children = {child.name: child for child in old.children}
    for child in new.children:
        inner = f"{path}.{child.name}"
        if child.name not in children:
            _check_nullable(child, inner)
            if is_packed(old):
                raise UnsupportedError(
                    f"column {path!r} is a packed struct, whose fields cannot be null: {inner!r} would be"
                )
            check_null_is_stored(child, inner, version)
            children[child.name] = child
        elif child.logical_type == "struct":
            children[child.name] = _add_children(children[child.name], child, inner, version)
    return replace(old, children=tuple(children.values()))
