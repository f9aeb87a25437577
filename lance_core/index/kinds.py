"""The kinds of indices that are understood, by the type of their details."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from lance_core.index import zonemap
from lance_core.index.conditions import Test
from lance_core.index.files import read_table
from lance_core.index.rows import Bools, Candidates, View
from lance_core.store import ObjectStore
from lance_core.table.index import IndexMetadata

__all__ = ["KINDS", "Content", "Kind"]


class Content(Protocol):
    """What a segment says."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, about."""
        ...

    def fits(self, kind: pa.DataType) -> bool:
        """Whether it is over values of that type."""
        ...

    def answer(self, test: Test, wanted: bool, view: View, covered: Bools) -> Candidates | None:
        """The rows for which a test can be true, or false; None if it does not tell.

        Args:
            test: A test of the field.
            wanted: Which.
            view: The fragments of a version.
            covered: For which of them the segment vouches; all rows of others can match.

        Raises:
            CorruptFileError: The content contradicts the fragments.
        """
        ...

    def statistics(self) -> dict[str, object]:
        """Counters, under pylance's names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of index.

    Attributes:
        versions: Versions of it that are read.
        read: Reads a segment: its store, the beginning of its keys, its record.
    """

    versions: frozenset[int]
    read: Callable[[ObjectStore, str, IndexMetadata], Content]


def _read_zone_map(store: ObjectStore, prefix: str, index: IndexMetadata) -> Content:
    return zonemap.ZoneMap.from_table(*read_table(store, prefix, zonemap.FILE, index))


KINDS: Final[Mapping[str, Kind]] = {
    "ZoneMap": Kind(versions=frozenset({0}), read=_read_zone_map),
}
