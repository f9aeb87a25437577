"""Orphan files of a Spark job: files that its commit does not use.

When a task fails, its Python worker may still write: if the JVM fails to feed a worker, the worker sees the end of its
rows and finishes its file. Only the files show when that worker is done. In a successful job, the same holds for an
attempt that was followed by another attempt of its task.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import lance_core
from lance_core import CommitResult, FragmentMetadata
from lance_core.errors import LanceError, StoreError

_LOGGER = logging.getLogger("pyspark_lance")


_POLL_SECONDS: Final = 0.2
_STILL_POLLS: Final = 15
"""Polls in a row without a new file after which the workers of failed tasks are assumed to have ended."""
_MOST_POLLS: Final = 150


@contextlib.contextmanager
def cleaning_up(clean: Callable[[], None]) -> Iterator[None]:
    """Delete the files of a commit that is rejected; they stay if the storage fails: the commit may take effect."""
    try:
        yield
    except StoreError:
        raise
    except LanceError:
        clean()
        raise


def committed_fragments(done: CommitResult, new_fragments: Iterable[FragmentMetadata]) -> list[FragmentMetadata]:
    """The fragments whose files stay after a commit.

    Args:
        done: The result of the commit. If it found a version that has made the same change, all fragments of this
            version stay: it may be the commit of this job, whose answer was lost.
        new_fragments: The fragments that the job has written.
    """
    return (
        [fragment.metadata for fragment in done.dataset.get_fragments()] if done.deduplicated else list(new_fragments)
    )


def delete_orphan_files(
    uri: str,
    job: str,
    keep: Iterable[FragmentMetadata],
    storage_options: Mapping[str, str] | None,
    *,
    failed: bool = False,
    index_segments: bool = False,
) -> None:
    """Delete the data files of a job, for example of failed attempts, except files of some fragments.

    A failure is logged and not raised: such files do no harm, and a later cleanup of the table deletes them.

    Args:
        uri: The table.
        job: Id of the job, with which the names of its files begin.
        keep: Fragments that are committed, or may be.
        storage_options: Options of the storage.
        failed: Whether tasks failed or were cancelled. Then, and if a second attempt wrote a file to keep, the folder
            is polled until no new file has appeared for three seconds, at most for 30 s.
        index_segments: Whether to delete index segments of the job, whose UUIDs begin with its id, instead of data
            files.
    """
    names = {file.path for fragment in keep for file in fragment.files}
    failed = failed or any(map(re.compile(rf"{job}-\d+-[1-9]\d*-").match, names))
    still = 0
    try:
        for _ in range(_MOST_POLLS):
            deleted_files = lance_core.delete_uncommitted_files(
                uri, file_prefix=job, keep=names, index_segments=index_segments, storage_options=storage_options
            )
            still = 0 if deleted_files else still + 1
            if not failed or still == _STILL_POLLS:
                break
            time.sleep(_POLL_SECONDS)
    except (LanceError, OSError) as error:
        _LOGGER.warning("files of job %s of %s could not be deleted: %s", job, uri, error)
