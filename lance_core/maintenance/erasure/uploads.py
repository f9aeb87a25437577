"""Uploads in parts that a writer began and never finished: they can hold rows, and no listing of objects shows them.

Like a file that nothing refers to, an upload may be about to become part of a version: it is aborted once it is seven
days old, or at once where the caller guarantees that nobody writes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from lance_core.errors import LanceError
from lance_core.maintenance.cleanup.plan import UNVERIFIED_AGE
from lance_core.maintenance.erasure.report import ErasureFinding
from lance_core.store import ObjectStore, Upload

__all__ = ["doomed_uploads", "upload_findings"]

_REMEDY: Final = (
    "erase again when it is seven days old, or with delete_unverified while nobody writes, which aborts it; "
    "abort-multipart-upload of the AWS command line does as well"
)


def doomed_uploads(store: ObjectStore, *, of_any_age: bool) -> Sequence[Upload]:
    """The unfinished uploads below a root that an erasure aborts.

    Args:
        store: The store of the root.
        of_any_age: Whether nobody writes, so that none of them will be finished.

    Raises:
        StoreError: The storage does not say which uploads there are.
    """
    before = time.time() - UNVERIFIED_AGE.total_seconds()
    return [upload for upload in store.unfinished_uploads() if of_any_age or upload.begun < before]


def upload_findings(store: ObjectStore, aborted: Sequence[Upload] = ()) -> list[ErasureFinding]:
    """Name the unfinished uploads below a root, or the root if the storage does not say which there are.

    Args:
        store: The store of the root.
        aborted: Uploads to leave out, as they are going to be aborted.
    """
    try:
        uploads = [upload for upload in store.unfinished_uploads() if upload not in aborted]
    except LanceError as error:
        message = f"whether there are unfinished uploads, which can hold the rows, is not known: {error}"
        return [ErasureFinding(kind="upload", path=store.root, message=message)]
    return [
        ErasureFinding(
            kind="upload",
            path=upload.key,
            message=f"the upload {upload.upload_id}, begun {datetime.fromtimestamp(upload.begun, UTC):%Y-%m-%d %H:%M} "
            f"UTC, was not finished and can hold the rows: {_REMEDY}",
        )
        for upload in uploads
    ]
