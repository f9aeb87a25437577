"""Stores: bytes by key, on disk, in memory or in object storage. A dataset's files are accessed through a store."""

from lance_core.store.base import (
    DEFAULT_READ_BYTES,
    ByteRange,
    BytesLike,
    ObjectMeta,
    ObjectStore,
    ObjectWriter,
    ReadableBuffer,
    Upload,
    bytes_read_counter,
    escaped_path,
    iops_counter,
    remove_leftovers,
)
from lance_core.store.copy_between import copy_object
from lance_core.store.durable import (
    PendingWrites,
    check_present,
    delete_durably,
    make_durable,
    naming_after,
    note_begun,
    put_durably,
    replace_durably,
    sync_names,
)
from lance_core.store.external import ManifestTable, gives_numbers_once, manifest_table
from lance_core.store.options import CommitLock, StorageOptions
from lance_core.store.resolve import canonical_uri, join_uri, open_base, open_object, open_store, split_uri, uri_above

__all__ = [
    "DEFAULT_READ_BYTES",
    "ByteRange",
    "BytesLike",
    "CommitLock",
    "ManifestTable",
    "ObjectMeta",
    "ObjectStore",
    "ObjectWriter",
    "PendingWrites",
    "ReadableBuffer",
    "StorageOptions",
    "Upload",
    "bytes_read_counter",
    "canonical_uri",
    "check_present",
    "copy_object",
    "delete_durably",
    "escaped_path",
    "gives_numbers_once",
    "iops_counter",
    "join_uri",
    "make_durable",
    "manifest_table",
    "naming_after",
    "note_begun",
    "open_base",
    "open_object",
    "open_store",
    "put_durably",
    "remove_leftovers",
    "replace_durably",
    "split_uri",
    "sync_names",
    "uri_above",
]
