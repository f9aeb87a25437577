"""The kinds of indices that are read and built, by the type of their details."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from pyroaring import BitMap

from lance_core._proto.table_pb2 import ZoneMapIndexDetails
from lance_core.index import zonemap
from lance_core.index.conditions import Test
from lance_core.index.files import read_table, write_table
from lance_core.index.rows import Bools, Candidates, Rows, View
from lance_core.index.values import is_ordered
from lance_core.store import ObjectStore
from lance_core.table.index import IndexFile, IndexMetadata

__all__ = ["BY_NAME", "KINDS", "Builder", "Content", "Kind", "Written"]


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

    def fragments(self) -> BitMap:
        """The fragments that there are entries of."""
        ...

    def parameters(self) -> dict[str, int]:
        """What it was built with."""
        ...


class Builder(Protocol):
    """Collects what a segment will say."""

    def add(self, fragment_id: int, num_rows: int, parts: Iterable[Rows]) -> None:
        """Add a fragment: its id, its physical rows, and those that are alive."""
        ...

    def finish(self) -> Any:
        """The content."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a manifest tells of the content of a segment.

    Attributes:
        files: Its files.
        details: Serialized details.
        index_version: Version of the index's own format.
    """

    files: tuple[IndexFile, ...]
    details: bytes = b""
    index_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of index.

    Attributes:
        name: What it is called when one is made.
        type_url: Type of the details of a record.
        versions: Versions of it that are read.
        parameters: What can be asked for, numbers from 1 on, and what holds if nothing is.
        accepts: Whether it can be over values of a type.
        read: Reads a segment: its store, the beginning of its keys, its record.
        build: Begins one: type of the values, parameters.
        only: The part of a content that is about some fragments.
        merge: Puts contents together, at least one, with parameters.
        write: Writes a content: store, beginning of the keys, data storage version, the details of a record before.
    """

    name: str
    type_url: str
    versions: frozenset[int]
    accepts: Callable[[pa.DataType], bool]
    read: Callable[[ObjectStore, str, IndexMetadata], Content]
    build: Callable[[pa.DataType, Mapping[str, int]], Builder]
    only: Callable[[Any, View, Bools], Any]
    merge: Callable[[Sequence[Any], Mapping[str, int]], Any]
    write: Callable[[Any, ObjectStore, str, str, bytes], Written]
    parameters: Mapping[str, int] = field(default_factory=dict)


def _read_zone_map(store: ObjectStore, prefix: str, index: IndexMetadata) -> Content:
    return zonemap.ZoneMap.from_table(*read_table(store, prefix, zonemap.FILE, index))


def _write_zone_map(zones: zonemap.ZoneMap, store: ObjectStore, prefix: str, version: str, before: bytes) -> Written:
    # Without a bitmap of nulls, pylance looks at the rows before it calls one null.
    details = ZoneMapIndexDetails(
        rows_per_zone=zones.rows_per_zone,
        use_seeds=ZoneMapIndexDetails.FromString(before).use_seeds,
        has_null_bitmap=False,
    )
    file = write_table(store, f"{prefix}{zonemap.FILE}", zones.to_table(), version)
    return Written(files=(file,), details=details.SerializeToString())


KINDS: Final[Mapping[str, Kind]] = {
    "ZoneMap": Kind(
        name="ZONEMAP",
        type_url="/lance.table.ZoneMapIndexDetails",
        versions=frozenset({0}),
        parameters={"rows_per_zone": zonemap.DEFAULT_ROWS_PER_ZONE},
        accepts=is_ordered,
        read=_read_zone_map,
        build=lambda kind, parameters: zonemap.ZoneBuilder(kind, parameters["rows_per_zone"]),
        only=lambda zones, view, covered: zones.of_fragments(view, covered),
        merge=lambda maps, parameters: zonemap.ZoneMap.concat(maps, parameters["rows_per_zone"]),
        write=_write_zone_map,
    ),
}

BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS.values()}
