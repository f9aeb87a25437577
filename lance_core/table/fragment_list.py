"""The fragments of a manifest as a list that parses each fragment only when it is accessed.

A manifest can list a hundred thousand fragments. Their bytes are passed on unchanged when the next manifest is written
(see `table.fragment_run`), and the few fields that a commit needs of all of them are read with numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.table.fragment import Fragment, check_fragment_id
from lance_core.table.fragment_columns import FragmentColumns
from lance_core.table.fragment_run import FragmentRun

__all__ = ["FragmentList"]


class FragmentList(Sequence[Fragment]):
    """The fragments of a manifest: immutable, each parsed when it is accessed.

    Args:
        raw: The serialized fragments.
        has_deletions: Whether a fragment has a deletion file; None = not known yet.
    """

    __slots__ = (
        "_columns",
        "_fresh",
        "_has_deletions",
        "_ids",
        "_known_live",
        "_live",
        "_positions",
        "_records",
        "_run",
        "_totals",
    )

    def __init__(self, raw: Sequence[bytes], *, has_deletions: bool | None = None) -> None:
        self._run = raw if isinstance(raw, FragmentRun) else FragmentRun.of(raw)
        self._records: dict[int, Fragment] = {}
        self._ids: list[int] | None = None
        self._positions: dict[int, int] | None = None
        self._columns: FragmentColumns | None = None
        self._live: list[int | None] | None = None
        self._totals: tuple[int, int] | None = None
        self._known_live: dict[bytes, int | None] | None = None
        self._has_deletions = has_deletions
        self._fresh: tuple[Fragment, ...] = ()

    @classmethod
    def of(cls, fragments: Iterable[Fragment]) -> FragmentList:
        """Create a list from records."""
        records = list(fragments)
        result = cls([record.to_protobuf().SerializeToString() for record in records])
        result._records = dict(enumerate(records))
        result._fresh = tuple(records)
        return result

    def __len__(self) -> int:
        return len(self._run)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Fragment]: ...

    def __getitem__(self, index: int | slice) -> Fragment | list[Fragment]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        record = self._records.get(index)
        if record is None:
            record = Fragment.from_protobuf(_parse(self._run[index]))
            self._records[index] = record
        return record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FragmentList) and self._run == other._run

    def __hash__(self) -> int:
        return hash(self._run)

    def __repr__(self) -> str:
        return f"FragmentList({len(self)} fragments)"

    def __reduce__(self) -> tuple[type[FragmentList], tuple[FragmentRun]]:
        return FragmentList, (self._run,)

    @property
    def raw(self) -> FragmentRun:
        """The serialized fragments."""
        return self._run

    @property
    def ids(self) -> Sequence[int]:
        """The fragment ids, in order of the list."""
        if self._ids is None:
            self._ids = self._read_fields().ids.tolist()
        return self._ids

    @property
    def highest_id(self) -> int:
        """The highest fragment id; -1 if there is no fragment."""
        return int(self._read_fields().ids.max(initial=-1))

    @property
    def fresh(self) -> tuple[Fragment, ...]:
        """The records that the last change added or updated; none for a list that was read."""
        return self._fresh

    @property
    def has_deletions(self) -> bool:
        """Whether a fragment has a deletion file."""
        if self._has_deletions is None:
            self._has_deletions = bool(self._read_fields().deletions.any())
        return self._has_deletions

    def messages(self) -> Iterator[table_pb2.DataFragment]:
        """Yield the fragments as protobuf messages, which are parsed much faster than records are made."""
        return map(_parse, self._run)

    def sizes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The ids, and the physical rows of each; 0 where the manifest does not record them."""
        fields = self._read_fields()
        return fields.ids, fields.rows

    def _read_fields(self) -> FragmentColumns:
        if self._columns is None:
            columns = FragmentColumns.of(self._run)
            check_fragment_id(int(columns.ids.view(np.uint64).max(initial=0)))
            self._columns = columns
        return self._columns

    def places_with_rows(self) -> Sequence[int]:
        """The positions of fragments that can hold rows: all but those without files and without recorded rows."""
        places = np.flatnonzero(self._read_fields().rows == 0).tolist()
        empty = {place for place in places if not _parse(self._run[place]).files}
        return [place for place in range(len(self)) if place not in empty] if empty else range(len(self))

    def check_row_ids(self) -> None:
        """Reject fragments without row ids: in a dataset with stable row ids every fragment has them.

        Raises:
            CorruptFileError: A fragment has no row ids.
            UnsupportedError: A fragment keeps its row ids in another file.
        """
        for place in np.flatnonzero(~self._read_fields().row_ids).tolist():
            message = _parse(self._run[place])
            if not message.HasField("inline_row_ids"):
                Fragment.from_protobuf(message)
                raise CorruptFileError(
                    f"All fragments must have row ids in a dataset with stable row ids: fragment {message.id} has none"
                )

    def live_counts(self) -> list[int | None]:
        """The live rows of each fragment; None where the manifest does not record them."""
        if self._live is None and self._known_live is not None:
            counts = self._known_live
            counts.update({raw: _live_count(_parse(raw)) for raw in self._run if raw not in counts})
            self._live = [counts[raw] for raw in self._run]
        elif self._live is None:
            self._count_rows()
        return self._live or []

    def totals(self) -> tuple[int, int]:
        """The deleted rows and the bytes of the data files of all fragments, as far as the manifest records them."""
        if self._totals is None:
            self._count_rows()
        return self._totals or (0, 0)

    def _count_rows(self) -> None:
        """Compute all counts together, so that each fragment is parsed once."""
        live: list[int | None] = []
        deleted = num_bytes = 0
        for message in self.messages():
            live.append(_live_count(message))
            deleted += message.deletion_file.num_deleted_rows
            num_bytes += sum(file.file_size_bytes for file in message.files)
        self._live, self._totals = live, (deleted, num_bytes)

    def share_live_counts(self, counts: dict[bytes, int | None]) -> None:
        """Share the counts of live rows with other versions, so that a fragment of several versions is counted once.

        Args:
            counts: The counts by serialized fragment; missing ones are added when they are needed.
        """
        self._known_live = counts

    def get(self, fragment_id: int) -> Fragment | None:
        """Return the fragment of that id; None if there is none."""
        position = self._find_position(fragment_id)
        return None if position is None else self[position]

    def _find_position(self, fragment_id: int) -> int | None:
        if self._positions is None:
            self._positions = {existing_id: position for position, existing_id in enumerate(self.ids)}
        return self._positions.get(fragment_id)

    def changed(
        self,
        *,
        removed: Collection[int] = (),
        updated: Mapping[int, Fragment] | None = None,
        added: Sequence[Fragment] = (),
    ) -> FragmentList:
        """Return the list after a change, sorted by id.

        Args:
            removed: Ids of deleted fragments; unknown ones are ignored.
            updated: Records that take the place of those with the same id; removed and unknown ones are ignored.
            added: New fragments, with ids.

        Raises:
            InvalidInputError: Two fragments would have the same id.
        """
        places = {i: place for i in (*removed, *(updated or ())) if (place := self._find_position(i)) is not None}
        put = {i: record for i, record in (updated or {}).items() if i in places and i not in removed}
        fresh = (*put.values(), *added)
        raw = FragmentRun.of(record.to_protobuf().SerializeToString() for record in fresh)
        changes: dict[int, bytes | None] = dict.fromkeys(places)
        changes.update(zip(put, raw, strict=False))
        fields, new_ids = self._read_fields(), [record.id for record in added]
        if fields.are_ascending and _is_ascending([self.highest_id, *new_ids]):
            result = self._splice({places[i]: changes[i] for i in places}, raw, len(put))
        else:
            entries = [(i, changes.get(i, old)) for i, old in zip(self.ids, self._run, strict=True)]
            entries.extend(zip(new_ids, raw[len(put) :], strict=True))
            result = _sorted_list([(i, message) for i, message in entries if message is not None])
        result._fresh = fresh  # noqa: SLF001 - the same class
        if self._has_deletions is False and not any(record.deletion_file for record in fresh):
            result._has_deletions = False  # noqa: SLF001 - the same class
        return result

    def _splice(self, changes: Mapping[int, bytes | None], fresh: FragmentRun, updated: int) -> FragmentList:
        """The list after a change that leaves it sorted.

        Args:
            changes: The new fragments by the positions of those that they replace; None where one is removed.
            fresh: The replacing fragments, and then the added ones.
            updated: Number of replacing fragments.
        """
        replaced = [place for place, fragment in changes.items() if fragment is not None]
        removed = [place for place, fragment in changes.items() if fragment is None]
        result = FragmentList(self._run.spliced(changes, fresh[updated:]))
        result._columns = self._read_fields().spliced(replaced, removed, FragmentColumns.of(fresh))
        return result


def _is_ascending(ids: Sequence[int]) -> bool:
    return all(left < right for left, right in pairwise(ids))


def _sorted_list(pairs: Sequence[tuple[int, bytes]]) -> FragmentList:
    """Create a list from (id, serialized fragment) pairs in any order."""
    ordered = sorted(pairs, key=lambda pair: pair[0])
    for (left, _), (right, _) in pairwise(ordered):
        if left == right:
            raise InvalidInputError(f"the commit would produce two fragments with id {left}")
    return FragmentList([raw for _, raw in ordered])


def _parse(raw: bytes) -> table_pb2.DataFragment:
    try:
        message = table_pb2.DataFragment.FromString(raw)
    except DecodeError as error:
        raise CorruptFileError("a fragment of the manifest cannot be parsed") from error
    check_fragment_id(message.id)
    return message


def _live_count(message: table_pb2.DataFragment) -> int | None:
    deleted = message.deletion_file.num_deleted_rows
    if not message.files and not message.physical_rows:
        return 0
    if not message.physical_rows or (not deleted and message.HasField("deletion_file")):
        return None
    return message.physical_rows - deleted
