"""The version of a table that a write is based on."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import lance_core
from lance_core import LanceDataset
from lance_core.errors import (
    DatasetNotFoundError,
    IncompatibleConflictError,
    InvalidInputError,
    VersionNotFoundError,
)

__all__ = ["opened"]


def opened(
    uri: str | PathLike[str],
    version: int | None,
    storage_options: Mapping[str, str] | None,
    identity: str | None = None,
) -> LanceDataset | None:
    """The version; None if there is no table.

    Args:
        uri: The table.
        version: The version; None for the latest, 0 if there was no table.
        storage_options: Options of the storage.
        identity: `LanceDataset.identity` of that version, if the caller has read it.

    Raises:
        IncompatibleConflictError: The table was dropped, or made again, since the caller read it.
    """
    if identity is not None and not version:
        raise InvalidInputError("identity says which version read_version is: give that, too")
    if version == 0:
        return None
    try:
        base = lance_core.dataset(uri, version, storage_options=storage_options)
    except (DatasetNotFoundError, VersionNotFoundError) as error:
        if identity is not None:
            raise _gone(uri, version) from error
        if isinstance(error, VersionNotFoundError):
            raise
        return None
    if identity not in (None, base.identity):
        raise _gone(uri, version)
    return base


def _gone(uri: str | PathLike[str], version: int | None) -> IncompatibleConflictError:
    return IncompatibleConflictError(
        f"{uri} was dropped, and perhaps made again, since version {version} was read; do the write again"
    )
