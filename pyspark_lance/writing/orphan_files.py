"""Files of a Spark job that its commit does not use.

A task that failed is over for Spark while its Python worker may still be at work: if what feeds a worker fails, the
worker sees the end of its rows, and writes its file to the end. Nothing tells when it is done but its files. The same
holds for an attempt that another one of its task came after, though the job as a whole went well.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

import lance_core
from lance_core import FragmentMetadata
from lance_core.errors import LanceError

__all__ = ["delete_orphan_files"]

_LOGGER = logging.getLogger("pyspark_lance")


_POLL_SECONDS: Final = 0.2
_STILL_POLLS: Final = 15
"""So many looks in a row must find no file before the workers of failed tasks are taken to have ended."""
_MOST_POLLS: Final = 150


def delete_orphan_files(
    uri: str,
    job: str,
    keep: Iterable[FragmentMetadata],
    storage_options: Mapping[str, str] | None,
    *,
    failed: bool = False,
    index_segments: bool = False,
) -> None:
    """Delete the data files of a job, for example of failed attempts, except those of some fragments.

    A failure is logged and not raised: such files harm nobody, and a later cleanup of the table removes them.

    Args:
        uri: The table.
        job: Id of the job, with which the names of its files begin.
        keep: Fragments that are committed, or may be.
        storage_options: Options of the storage.
        failed: Whether tasks failed or were cancelled. Then, and if a second attempt wrote a file to keep, this looks
            again until no more files come, for three seconds after the last one, and 30 s at most.
        index_segments: Delete its index segments, whose UUIDs begin with the id, in place of data files.
    """
    names = {file.path for fragment in keep for file in fragment.files}
    failed = failed or any(map(re.compile(rf"{job}-\d+-[1-9]\d*-").match, names))
    still = 0
    try:
        for _ in range(_MOST_POLLS):
            found = lance_core.delete_uncommitted_files(
                uri, file_prefix=job, keep=names, index_segments=index_segments, storage_options=storage_options
            )
            still = 0 if found else still + 1
            if not failed or still == _STILL_POLLS:
                break
            time.sleep(_POLL_SECONDS)
    except (LanceError, OSError) as error:
        _LOGGER.warning("files of job %s of %s could not be deleted: %s", job, uri, error)
