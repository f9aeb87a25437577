"""`write_fragments`: rows into files, to be committed later and perhaps elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.file import FileVersion
from lance_core.schema.lance_schema import LanceSchema
from lance_core.table.manifest import Manifest
from lance_core.verbs.files.fragment_writer import (
    MAX_BYTES_PER_FILE,
    MAX_ROWS_PER_FILE,
    FragmentWriter,
    ReaderLike,
    lance_schema,
    to_batches,
)
from lance_core.verbs.files.progress import FragmentWriteProgress
from lance_core.verbs.records.fragments import FragmentMetadata
from lance_core.verbs.records.operations import LanceOperation
from lance_core.verbs.records.transactions import Transaction
from lance_core.verbs.version.bases import DatasetBasePath, WriteTarget, numbered, write_targets
from lance_core.verbs.version.destination import Destination, opened_destination
from lance_core.verbs.version.handle import Handle
from lance_core.verbs.version.unsupported import refuse

__all__ = ["check_mode", "data_version", "targets_of", "write_fragments", "write_rows"]

MODES = ("create", "append", "overwrite")


def write_fragments(
    data: ReaderLike,
    dataset_uri: str | PathLike[str] | Handle,
    schema: pa.Schema | None = None,
    *,
    return_transaction: bool = False,
    mode: str = "append",
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_rows_per_group: int | None = None,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    progress: FragmentWriteProgress | None = None,
    data_storage_version: str | None = None,
    use_legacy_format: bool | None = None,
    storage_options: Mapping[str, str] | None = None,
    enable_stable_row_ids: bool = False,
    target_bases: Sequence[str] | None = None,
    target_all_bases: bool | None = None,
    initial_bases: Sequence[DatasetBasePath] | None = None,
    dataset_schema: bytes | None = None,
    **others: Any,
) -> list[FragmentMetadata] | Transaction:
    """Write rows into new fragments, to be committed later and perhaps elsewhere.

    Args:
        data: The rows.
        dataset_uri: The dataset's root, or a dataset.
        schema: Schema of the rows; needed only for an iterable of batches.
        return_transaction: Return a transaction to commit instead of the fragments.
        mode: "append" fits the rows to the dataset if there is one; "create" and "overwrite" take their schema as new.
        max_rows_per_file: Rows after which a new fragment is begun.
        max_rows_per_group: Rows of a group in 0.1 files; groups are not tuned here, so that it changes no result.
        max_bytes_per_file: Bytes after which a new fragment is begun, counted between batches.
        progress: Told when a file is begun and when it is complete.
        data_storage_version: Version of the files; None for the default, or the dataset's own.
        use_legacy_format: The older spelling of that.
        storage_options: Where and who, under object_store's names.
        enable_stable_row_ids: Given to the commit, which decides; fragments are the same either way.
        target_bases: Base paths, by name or URI, that files go to in turns.
        target_all_bases: All base paths; with True the dataset itself comes first.
        initial_bases: Base paths of a dataset that will be created.
        dataset_schema: `LanceDataset.lance_schema_bytes` of the dataset to append to, if it is not to be looked up.
        **others: Arguments of pylance's that are not offered.

    Raises:
        SchemaError: The data does not fit.
    """
    del max_rows_per_group, enable_stable_row_ids
    refuse("write_fragments", others)
    check_mode(mode)
    place = opened_destination(dataset_uri, storage_options)
    base = place.base if mode == "append" else None
    version = data_version(data_storage_version, use_legacy_format, place.base)
    found, fragments = write_rows(
        place,
        to_batches(data, schema),
        data_storage_version=version,
        max_rows_per_file=max_rows_per_file,
        max_bytes_per_file=max_bytes_per_file,
        dataset_schema=base.schema if base is not None and dataset_schema is None else dataset_schema,
        targets=targets_of(place, initial_bases or (), target_bases, target_all_bases),
        progress=progress,
    )
    if not return_transaction:
        return fragments
    if base is not None:
        return Transaction(read_version=base.version, operation=LanceOperation.Append(fragments))
    overwrite = LanceOperation.Overwrite(
        LanceSchema(lance_schema(found, None, FileVersion.from_string(version))),
        fragments,
        list(initial_bases) if initial_bases else None,
    )
    return Transaction(read_version=place.base.version if place.base is not None else 0, operation=overwrite)


def write_rows(
    place: Destination, rows: tuple[pa.Schema, Iterable[pa.RecordBatch | pa.Table]], **options: Any
) -> tuple[pa.Schema, list[FragmentMetadata]]:
    """Write rows into new fragments; nothing is left if that fails.

    Args:
        place: Where to.
        rows: Their schema, and the rows.
        **options: For `FragmentWriter`.

    Returns:
        The schema, and the fragments.
    """
    schema, batches = rows
    with FragmentWriter(place.uri, schema, storage_options=place.options, **options) as writer:
        for batch in batches:
            writer.write(batch)
        return schema, writer.finish()


def check_mode(mode: str) -> None:
    """Refuse a mode that there is not.

    Raises:
        InvalidInputError: It is none of the three.
    """
    if mode not in MODES:
        raise InvalidInputError(f'mode is "create", "append" or "overwrite", not {mode!r}')


def data_version(version: str | None, use_legacy_format: bool | None, base: Manifest | None) -> str | None:
    """Version of new data files: as asked for, or the dataset's; None for the default."""
    if use_legacy_format is not None:
        version = "legacy" if use_legacy_format else "stable"
    if version is None and base is not None:
        return base.data_storage_version
    return version


def targets_of(
    place: Destination,
    initial_bases: Sequence[DatasetBasePath],
    target_bases: Sequence[str] | None,
    target_all_bases: bool | None,
) -> list[WriteTarget]:
    """Where the files of a write go, in turns.

    Raises:
        InvalidInputError: A base is not known, or base paths are given for a dataset that exists.
    """
    if place.base is not None and initial_bases:
        raise InvalidInputError("initial_bases can be given only when a dataset is created")
    return write_targets(
        place.store,
        place.base.base_paths if place.base is not None else numbered(initial_bases),
        target_bases=target_bases,
        target_all_bases=target_all_bases,
        options=place.options or {},
    )
