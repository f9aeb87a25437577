"""Progress of a write: called when a fragment's file begins and when it is complete."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from os import PathLike
from typing import Any, ClassVar

from lance_core.arguments import checked_methods
from lance_core.store import open_store
from lance_core.verbs.pylance_types.fragments import FragmentMetadata


class FragmentWriteProgress(ABC):
    """Base class of progress callbacks of a write: override both methods. An error in either method ends the write."""

    @abstractmethod
    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """A file is about to be written; the fragment's id is its number within the write."""

    @abstractmethod
    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """The file is written; the fragment has the same id as in `begin`."""


class NoopFragmentWriteProgress(FragmentWriteProgress):
    """Ignores progress."""

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Do nothing."""


@checked_methods
class FileSystemFragmentWriteProgress(FragmentWriteProgress):
    """Keeps two files per fragment: its description, and a marker that exists while the fragment is written.

    Args:
        base_uri: Folder of the files: `fragment_<id>.json` and `fragment_<id>.in_progress`.
        metadata: Strings for the marker, for example which worker writes.
    """

    PROGRESS_EXT: ClassVar[str] = ".in_progress"

    def __init__(self, base_uri: str | PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        self._store = open_store(base_uri)
        self._metadata = dict(metadata or {})

    def begin(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Write the description and the marker."""
        del kwargs
        marker = {"fragment_id": fragment.id, "metadata": self._metadata}
        self._store.put(f"fragment_{fragment.id}{self.PROGRESS_EXT}", json.dumps(marker).encode())
        self._store.put(f"fragment_{fragment.id}.json", json.dumps(fragment.to_json()).encode())

    def complete(self, fragment: FragmentMetadata, **kwargs: Any) -> None:
        """Remove the marker."""
        del kwargs
        self._store.delete(f"fragment_{fragment.id}{self.PROGRESS_EXT}")
