"""Files that a verb wrote before its commit: deleted again if the commit does not land."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lance_core.api.source import Source
from lance_core.errors import OutcomeUnknownError
from lance_core.store import ObjectStore
from lance_core.table.fragment import DataFile, Fragment

__all__ = ["Staged", "staged"]


@dataclass(slots=True)
class Staged:
    """Files that nothing refers to yet.

    Attributes:
        source: The version that they will be added to.
    """

    source: Source
    _files: list[tuple[ObjectStore, str]] = field(default_factory=list)

    def add(self, store: ObjectStore, key: str) -> None:
        """Remember a file."""
        self._files.append((store, key))

    def add_data_file(self, file: DataFile) -> None:
        """Remember a data file."""
        self.add(*self.source.data_file(file))

    def add_fragments(self, fragments: Iterable[Fragment]) -> None:
        """Remember the data files of new fragments."""
        for fragment in fragments:
            for file in fragment.files:
                self.add_data_file(file)

    def discard(self) -> None:
        """Delete the files."""
        for store, key in self._files:
            store.delete(key)
        self._files.clear()


@contextmanager
def staged(source: Source) -> Iterator[Staged]:
    """Collect the files that the body writes, and delete them if it raises.

    They stay if it is not known whether the commit landed: a version may refer to them.
    """
    files = Staged(source)
    try:
        yield files
    except OutcomeUnknownError:
        raise
    except BaseException:
        files.discard()
        raise
