"""Delete files that a write left and that no version refers to."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection
from typing import Final

from lance_core.errors import StoreError
from lance_core.file.blob_files import blob_folder
from lance_core.store import ObjectStore, remove_leftovers

__all__ = ["remove_files"]

INTERRUPTED_S: Final = 2.0
"""Seconds that the removal of files may take while an interruption is handled."""

_logger = logging.getLogger(__name__)


def remove_files(files: Collection[tuple[ObjectStore, str]]) -> None:
    """Delete files, and the blob files of data files; what cannot be deleted is left to cleanup.

    While an interruption is handled (Ctrl-C, a terminated step), this stops after `INTERRUPTED_S`, so that the process
    ends soon; cleanup removes the files that are left.

    Args:
        files: The store and the key of each file.
    """
    error = sys.exception()
    hurried = error is not None and not isinstance(error, Exception)
    until = time.monotonic() + INTERRUPTED_S
    for number, (store, key) in enumerate(files):
        if hurried and time.monotonic() > until:
            _logger.warning("%s: %d files were left behind; cleanup removes them", store.root, len(files) - number)
            return
        remove_leftovers(store, [key])
        if key.endswith(".lance") and not key.startswith("_"):
            _remove_blobs(store, key)


def _remove_blobs(store: ObjectStore, key: str) -> None:
    try:
        blobs = [meta.key for meta in store.list_owned(blob_folder(key))]
        remove_leftovers(store, blobs)
        if blobs:
            store.remove_empty_folders(key.removesuffix(".lance"))
    except StoreError as error:
        _logger.info("%s/%s may have left blobs behind: %s", store.root, key, error)
