"""Files of a Spark job that its commit does not use."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import lance_core
from lance_core import FragmentMetadata
from lance_core.errors import LanceError

__all__ = ["delete_leftovers"]

_LOGGER = logging.getLogger("pyspark_lance")


def delete_leftovers(
    uri: str, job: str, keep: Iterable[FragmentMetadata], storage_options: Mapping[str, str] | None
) -> None:
    """Delete the data files of a job, for example of failed attempts, except those of some fragments.

    A failure is logged and not raised: such files harm nobody, and a later cleanup of the table removes them.

    Args:
        uri: The table.
        job: Id of the job, with which the names of its files begin.
        keep: Fragments that are committed, or may be.
        storage_options: Options of the storage.
    """
    names = {file.path for fragment in keep for file in fragment.files}
    try:
        lance_core.delete_uncommitted_files(uri, file_prefix=job, keep=names, storage_options=storage_options)
    except (LanceError, OSError) as error:
        _LOGGER.warning("files of job %s of %s could not be deleted: %s", job, uri, error)
