"""`write_fragments`: write rows into data files, for a later commit, perhaps by another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import pyarrow as pa

from lance_core.arguments import checked, reject
from lance_core.schema.lance_schema import LanceSchema
from lance_core.verbs.context.bases import DatasetBasePath
from lance_core.verbs.context.handle import Handle, resolve_target
from lance_core.verbs.files.fragment_writer import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE, ReaderLike, resolve_field_ids
from lance_core.verbs.files.progress import FragmentWriteProgress
from lance_core.verbs.pylance_types.fragments import FragmentMetadata
from lance_core.verbs.pylance_types.operations import LanceOperation
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.write.write_version import WriteOptions, prepare


@checked
def write_fragments(
    data: ReaderLike,
    dataset_uri: str | PathLike[str] | Handle,
    schema: pa.Schema | None = None,
    *,
    return_transaction: bool = False,
    mode: str | None = "append",
    max_rows_per_file: int | None = MAX_ROWS_PER_FILE,
    max_rows_per_group: int | None = None,
    max_bytes_per_file: int | None = MAX_BYTES_PER_FILE,
    progress: FragmentWriteProgress | None = None,
    data_storage_version: str | None = None,
    use_legacy_format: bool | None = None,
    storage_options: Mapping[str, str] | None = None,
    enable_stable_row_ids: bool = False,
    target_bases: Sequence[str] | None = None,
    target_all_bases: bool | None = None,
    initial_bases: Sequence[DatasetBasePath] | None = None,
    dataset_schema: bytes | None = None,
    allow_external_blob_outside_bases: bool = False,
    **unsupported: Any,
) -> list[FragmentMetadata] | Transaction:
    """Write rows into new fragments, for a later commit, perhaps by another process.

    Args:
        data: The rows.
        dataset_uri: The dataset's root, or a dataset.
        schema: Schema of the rows; needed only for an iterable of batches.
        return_transaction: Return a transaction to commit instead of the fragments.
        mode: "append" converts the rows to the types of the dataset if there is one; with "create" (also None) and
            "overwrite", the rows define the schema.
        max_rows_per_file: The most rows of a fragment; None for the default.
        max_rows_per_group: Accepted without effect: rows of a group in 0.1 files.
        max_bytes_per_file: Bytes after which a new fragment begins, checked after each batch; None for the default.
        progress: Called when a file begins and when it is complete.
        data_storage_version: Version of the files; None for the default, or the dataset's own.
        use_legacy_format: The older form of `data_storage_version`: True for "legacy", False for "stable".
        storage_options: Credentials and options of the storage, under object_store's names.
        enable_stable_row_ids: Accepted without effect: the commit decides, and fragments are the same with and without.
        target_bases: Names or URIs of the base paths to which files are written, round-robin.
        target_all_bases: If given, files are written to all base paths; True puts the dataset's root before them.
        initial_bases: Base paths of the new dataset.
        dataset_schema: `LanceDataset.lance_schema_bytes` of the dataset to append to, so that it is not read.
        allow_external_blob_outside_bases: Accept any URI of an external blob, not only URIs below base paths that are
            not dataset roots.
        **unsupported: Arguments of pylance that are not offered.

    Raises:
        SchemaError: The data does not fit the schema.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> fragments = lance.write_fragments(pa.table({"id": [4]}), "t.lance")
        >>> append = lance.LanceOperation.Append(fragments)
        >>> lance.LanceDataset.commit("t.lance", append, read_version=table.version).count_rows()
        4
    """
    options = WriteOptions.of(mode, locals())
    del max_rows_per_group, enable_stable_row_ids
    reject("write_fragments", unsupported)
    prepared = prepare(resolve_target(dataset_uri, storage_options), options)
    row_schema, records = prepared.write_rows(data, schema, dataset_schema)
    fragments = [FragmentMetadata.from_record(record) for record in records]
    if not return_transaction:
        return fragments
    written = LanceSchema(resolve_field_ids(row_schema, None, prepared.version, prepared.first_field_id))
    is_append = prepared.appended_to is not None
    bases = list(initial_bases) if initial_bases else None
    operation = LanceOperation.Append(fragments) if is_append else LanceOperation.Overwrite(written, fragments, bases)
    return Transaction(read_version=prepared.base_version, operation=operation)
