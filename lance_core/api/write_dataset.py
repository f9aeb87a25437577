"""`write_dataset`: rows into files, then one commit."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import pyarrow as pa

from lance_core.api.commit import commit_fragments
from lance_core.api.dataset import LanceDataset
from lance_core.api.unsupported import refuse
from lance_core.api.write import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE, FragmentWriter, ReaderLike, to_batches
from lance_core.commit import load_latest
from lance_core.errors import DatasetExistsError, InvalidInputError
from lance_core.schema import schema_to_bytes
from lance_core.store import canonical_uri, open_store

__all__ = ["write_dataset"]


def write_dataset(
    data_obj: ReaderLike,
    uri: str | PathLike[str],
    schema: pa.Schema | None = None,
    mode: str = "create",
    *,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    storage_options: Mapping[str, str] | None = None,
    data_storage_version: str | None = None,
    enable_stable_row_ids: bool = False,
    commit_message: str | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    **others: Any,
) -> LanceDataset:
    """Write rows to a dataset, in one version.

    Args:
        data_obj: A table, batch, reader, frame, dataset, or an iterable of batches with `schema`.
        uri: The dataset's root.
        schema: Schema of the rows; needed only for an iterable of batches.
        mode: "create", "append" or "overwrite"; the latter two create a dataset that does not exist.
        max_rows_per_file: Rows after which a new fragment is begun.
        max_bytes_per_file: Bytes after which a new fragment is begun, counted between batches.
        storage_options: Where and who, under object_store's names.
        data_storage_version: Version of the files; None for the default, or the dataset's own.
        enable_stable_row_ids: Give rows ids that survive compaction; for a dataset that is created.
        commit_message: A text for the history.
        transaction_properties: Texts for the history, by key.
        **others: Arguments of pylance's that are not offered; None is ignored, as it means their default.

    Returns:
        The dataset at the version that was written.

    Raises:
        DatasetExistsError: `mode` is "create" and there is a dataset.
        SchemaError: The rows do not fit the dataset, or cannot be stored; nothing was written.
    """
    refuse("write_dataset", others)
    if mode not in ("create", "append", "overwrite"):
        raise InvalidInputError(f'mode is "create", "append" or "overwrite", not {mode!r}')
    base = load_latest(open_store(uri, storage_options))
    if base is not None and mode == "create":
        raise DatasetExistsError(f"Dataset already exists: {canonical_uri(uri)}")
    appends = base is not None and mode == "append"
    if base is not None and data_storage_version is None:
        data_storage_version = base.data_storage_version
    found, batches = to_batches(data_obj, schema)
    writer = FragmentWriter(
        uri,
        found,
        storage_options=storage_options,
        data_storage_version=data_storage_version,
        max_rows_per_file=max_rows_per_file,
        max_bytes_per_file=max_bytes_per_file,
        dataset_schema=schema_to_bytes(base.schema) if base is not None and appends else None,
    )
    with writer:
        for batch in batches:
            writer.write(batch)
        fragments = writer.finish()
    return commit_fragments(
        uri,
        fragments,
        found,
        mode=mode,
        read_version=base.version if base is not None else None,
        commit_message=commit_message,
        transaction_properties=transaction_properties,
        storage_options=storage_options,
        data_storage_version=data_storage_version,
        enable_stable_row_ids=enable_stable_row_ids,
    ).dataset
