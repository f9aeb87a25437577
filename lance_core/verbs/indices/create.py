"""Create a scalar index: build its content, write its files, and commit its record."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap

from lance_core.arguments import reject
from lance_core.errors import InvalidInputError, LanceError, RetryableConflictError, SchemaError, UnsupportedError
from lance_core.index.kinds.registry import BY_NAME, Kind, SegmentTarget
from lance_core.table.fragment import Fragment
from lance_core.table.index import SYSTEM_PREFIX, IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import CreateIndex
from lance_core.table.paths import INDICES_PREFIX
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles, collecting_files, remove_files
from lance_core.verbs.indices.build import IndexedField, build, indexed_field

_ELSEWHERE: Final = ("NGRAM", "INVERTED", "FTS", "RTREE", "MINHASHLSH", "FM", "JSON")


@dataclass
class IndexConfig:
    """A kind of index, with its parameters.

    Attributes:
        index_type: The kind, such as "zonemap".
        parameters: The parameters of the kind, by name.
    """

    index_type: str
    parameters: Mapping[str, Any]


def kind_and_parameters(index_type: Any, arguments: Mapping[str, Any]) -> tuple[Kind, dict[str, int | float]]:
    """The requested kind of index, and its parameters, defaults included.

    Args:
        index_type: The name of a kind, or an `IndexConfig` of this library or of pylance.
        arguments: Further parameters.

    Raises:
        UnsupportedError: Indices of that kind are not built.
        InvalidInputError: The kind is unknown, or a parameter or its value is invalid for the kind.
    """
    options = {name: value for name, value in arguments.items() if value is not None}
    name = index_type
    if not isinstance(index_type, str):
        name = getattr(index_type, "index_type", None)
        more = getattr(index_type, "parameters", None) or {}
        if not isinstance(name, str) or not isinstance(more, Mapping):
            raise InvalidInputError(f"index_type must be a string or an IndexConfig, not {type(index_type).__name__}")
        options = {**more, **options}
    kind = BY_NAME.get(name.upper())
    if kind is None:
        offered = ", ".join(BY_NAME)
        if name.upper() in _ELSEWHERE or name.upper().startswith("IVF"):
            raise UnsupportedError(
                f"building an index of type {name.upper()} is not supported; the supported types are {offered}"
            )
        raise InvalidInputError(f"there is no index type {name!r}; the supported types are {offered}")
    if options.pop("use_seeds", False):
        raise UnsupportedError("use_seeds is not supported: data files do not carry zones")
    parameters = dict(kind.parameters)
    for key, value in options.items():
        if key not in parameters:
            parameter_names = ", ".join(parameters) or "none"
            raise InvalidInputError(f"{kind.name} has no parameter {key!r}; it has {parameter_names}")
        parameters[key] = _check_parameter(kind, key, value)
    return kind, parameters


def _check_parameter(kind: Kind, key: str, value: Any) -> int | float:
    """The checked value of a parameter: a positive integer, or a probability between 0 and 1."""
    if isinstance(kind.parameters[key], float):
        if isinstance(value, float) and 0 < value < 1:
            return value
        raise InvalidInputError(f"{kind.name}: {key} must be a number between 0 and 1, not {value!r}")
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InvalidInputError(f"{kind.name}: {key} must be a positive integer, not {value!r}")


def create_scalar_index(
    snapshot: Snapshot,
    column: str | Sequence[str],
    index_type: Any,
    name: str | None,
    *,
    replace: bool,
    train: bool,
    arguments: Mapping[str, Any],
    properties: Mapping[str, str] | None = None,
) -> Manifest:
    """Build an index and commit it; `properties` become properties of the transaction.

    Without `train` the index covers no fragment.

    Raises:
        SchemaError: There is no such column, or the kind does not fit it.
        InvalidInputError: A parameter is unknown or invalid for the kind, or the name is in use.
        UnsupportedError: Indices of that kind are not built.
        RetryableConflictError: Another writer created an index of that name, or moved rows, meanwhile.
    """
    if arguments.get("fragment_ids") is not None or arguments.get("index_uuid") is not None:
        raise UnsupportedError(
            "create_scalar_index takes no fragment_ids or index_uuid, as it builds and commits a whole index; build "
            "segments by create_index_uncommitted(..., fragment_ids=...), and commit them by "
            "commit_existing_index_segments"
        )
    reject("create_scalar_index", {key: arguments[key] for key in _NOT_OFFERED if key in arguments})
    options = {key: value for key, value in arguments.items() if key not in _NOT_OFFERED}
    kind, parameters = kind_and_parameters(index_type, options)
    field = target_field(snapshot, column, kind)
    name = index_name(snapshot.manifest, field, kind, name, replace=replace)
    removed = tuple(index for index in snapshot.manifest.indices if index.name == name)
    fragments: Sequence[Fragment] = snapshot.manifest.fragments if train else ()
    try:
        with collecting_files(snapshot) as files:
            content = build(snapshot, field, kind, parameters, fragments)
            index = write_segment(files, kind, content, name, field, BitMap(f.id for f in fragments))
            return files.commit(CreateIndex(new_indices=(index,), removed_indices=removed), properties=properties)
    except RetryableConflictError as error:
        raise RetryableConflictError(f"index {name!r}: {error}") from error


_NOT_OFFERED: Final = ("fragment_ids", "index_uuid", "progress_callback", "format_version", "document_granularity")


def write_segment(
    files: UncommittedFiles,
    kind: Kind,
    content: Any,
    name: str,
    field: IndexedField,
    covered: BitMap,
    before: bytes = b"",
    *,
    key: uuid.UUID | None = None,
    version: int | None = None,
) -> IndexMetadata:
    """Write the files of a segment, and return its record; nothing is committed.

    Args:
        files: Takes note of the files.
        kind: Kind of the index.
        content: Its content.
        name: Name of the index.
        field: The indexed field.
        covered: The fragments that it covers.
        before: Details of the segment that it replaces.
        key: The uuid of the segment, which names its folder; a new one by default.
        version: The version that the content was read from; by default the version of `files`.
    """
    snapshot, is_own, key = files.snapshot, key is None, key or uuid.uuid4()
    prefix = f"{INDICES_PREFIX}{key}/"
    target = SegmentTarget(
        store=snapshot.store,
        prefix=prefix,
        data_storage_version=snapshot.manifest.data_storage_version,
        stable_row_ids=snapshot.manifest.uses_stable_row_ids,
        before=before,
    )
    try:
        written = kind.write(content, target)
    except BaseException:
        with contextlib.suppress(LanceError):  # cleanup removes what is left, as of another attempt with the same key
            remove_files([(snapshot.store, each.key) for each in snapshot.store.list(prefix) if is_own])
        snapshot.store.remove_empty_folders(prefix.rstrip("/"))
        raise
    for file in written.files:
        files.add(snapshot.store, f"{prefix}{file.path}")
    covered.run_optimize()
    return IndexMetadata(
        uuid=key,
        name=name,
        fields=(field.node.id,),
        dataset_version=version or snapshot.manifest.version,
        fragment_bitmap=covered.serialize(),
        details_type_url=kind.type_url,
        details=written.details,
        index_version=written.index_version,
        created_at_ms=time.time_ns() // 1_000_000,
        files=written.files,
    )


def target_field(snapshot: Snapshot, column: str | Sequence[str], kind: Kind) -> IndexedField:
    """The field to index, if the kind fits it."""
    if not isinstance(column, str):
        if len(column) != 1:
            raise UnsupportedError(f"an index on several columns is not supported: {list(column)}")
        (column,) = column
    schema = snapshot.manifest.schema
    field = indexed_field(schema, schema.column(column).id)
    if not kind.accepts(field.type):
        sized = pa.types.is_fixed_size_binary(field.type) and not pa.types.is_decimal(field.type)
        remedy = ": a column of type binary can have one" if sized else ""
        raise SchemaError(f"a {kind.name} index on column {column!r} of type {field.type} is not possible{remedy}")
    return field


def reject_index_name(name: str) -> None:
    """Make sure that an index of a column can have a name.

    Raises:
        InvalidInputError: The name is empty, or one of Lance's own.
    """
    if not name:
        raise InvalidInputError("an index needs a name")
    if name.startswith(SYSTEM_PREFIX):
        raise InvalidInputError(
            f"an index cannot be named {name!r}: names that start with {SYSTEM_PREFIX!r} are those of Lance's own "
            "indices; give another name"
        )


def index_name(manifest: Manifest, field: IndexedField, kind: Kind, name: str | None, *, replace: bool) -> str:
    """The name of the index: the given name, or one made from the column's, after a check that it may be used."""
    by_name = {index.name: index for index in manifest.indices}
    if name is None:
        name, number = f"{field.path}_idx", 1
        # An index of another kind on the same column keeps its name.
        while name in by_name and (
            by_name[name].fields != (field.node.id,)
            or by_name[name].details_type_url.rpartition(".")[2] != kind.type_url.rpartition(".")[2]
        ):
            number += 1
            name = f"{field.path}_idx_{number}"
    reject_index_name(name)
    namesake = by_name.get(name)
    if namesake is None:
        return name
    if namesake.is_system or namesake.fields != (field.node.id,):
        raise InvalidInputError(f"there is an index {name!r} already, on other fields; give another name")
    if not replace:
        raise InvalidInputError(f"there is an index {name!r} already; replace=True replaces it")
    return name
