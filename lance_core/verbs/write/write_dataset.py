"""`write_dataset`: rows into files, then one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

import pyarrow as pa

from lance_core.commit import explain_missing
from lance_core.errors import DatasetExistsError, InvalidInputError, LanceError, OutcomeUnknownError
from lance_core.store import PendingWrites, canonical_uri
from lance_core.store.memory import MemoryStore
from lance_core.verbs.context.table_target import TableTarget
from lance_core.verbs.files.fragment_writer import ReaderLike
from lance_core.verbs.write.commit_fragments import commit_request
from lance_core.verbs.write.prepare import WriteOptions, prepare
from lance_core.verbs.write.request import CommitRequest

__all__ = ["AutoCleanupConfig", "auto_cleanup_keys", "write_version"]


def write_version(data: ReaderLike, schema: pa.Schema | None, place: TableTarget, options: WriteOptions) -> TableTarget:
    """Write rows to a dataset, in one version; see `lance_core.write_dataset`.

    Args:
        data: The rows.
        schema: Their schema; needed only for an iterable of batches.
        place: Where to; with a base, the write is based on that version, else on the latest.
        options: How.

    Returns:
        The place, with the version that was made.

    Raises:
        DatasetExistsError: The mode is "create" and there is a dataset.
        SchemaError: The rows do not fit the dataset, or cannot be stored; nothing was written.
    """
    if options.mode == "create" and isinstance(place.store, MemoryStore):
        place.store.forget_unused()  # as in pylance, what is in memory lives as long as somebody holds it
    prepared = prepare(place, options)
    place, is_new = prepared.place, prepared.place.base is None
    if not is_new and options.mode == "create":
        raise DatasetExistsError(
            f"Dataset already exists: {canonical_uri(place.uri)}; mode 'append' adds to it, 'overwrite' replaces it"
        )
    table_config = auto_cleanup_keys(options.auto_cleanup_options if is_new else None)
    settling = PendingWrites()
    try:
        found, fragments = prepared.write_rows(data, schema, settling=settling)
    except LanceError as error:
        if place.base is not None:
            explain_missing(place.store, place.base, error)
        raise
    request = CommitRequest(
        fragments=fragments,
        schema=found,
        mode=options.mode,
        read_version=prepared.base_version,
        transaction_properties=options.transaction_properties,
        commit_message=options.commit_message,
        table_format=replace(
            options.table_format,
            data_storage_version=None if prepared.appended_to is not None else prepared.version.value,
        ),
        table_config=table_config,
        initial_bases=options.initial_bases or (),
        first_field_id=prepared.first_field_id,
    )
    may_be_committed = False

    def ready() -> None:
        nonlocal may_be_committed
        settling.wait()
        may_be_committed = True

    try:
        manifest, _ = commit_request(place, request, ready)
    except OutcomeUnknownError:
        raise  # the files may be in use
    except BaseException as error:
        if isinstance(error, LanceError) or not may_be_committed:
            settling.stop()
            prepared.discard(fragments)
        raise
    return replace(place, base=manifest)


class AutoCleanupConfig(TypedDict):
    """When commits remove old versions.

    Attributes:
        interval: After how many versions.
        older_than_seconds: Versions older than this.
    """

    interval: int
    older_than_seconds: int


def auto_cleanup_keys(options: Mapping[str, object] | None) -> dict[str, str]:
    """The entries of a table's configuration for automatic cleanup."""
    if options is None:
        return {}
    unknown = set(options) - {"interval", "older_than_seconds"}
    if unknown:
        raise InvalidInputError(f"auto_cleanup_options: unknown keys {sorted(unknown)}")
    names = {"interval": ("interval", ""), "older_than_seconds": ("older_than", "s")}
    return {f"lance.auto_cleanup.{names[key][0]}": f"{options[key]}{names[key][1]}" for key in names if key in options}
