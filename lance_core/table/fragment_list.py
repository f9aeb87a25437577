"""The fragments of a manifest as a list that parses each fragment only when it is accessed.

A manifest can list a hundred thousand fragments. Their bytes are passed on unchanged when the next manifest is written
(see below), and the few fields that a commit needs of all of them are read with numpy.

The serialized fragments of a manifest, and the splice by which the next manifest takes them over.

    entry    0x12 = field 2 with bytes | their length, a varint | DataFragment message
    run      entry | entry | ...

A commit copies the bytes between the changed entries unchanged, without parsing them:

    before   0 1 2 | 3  | 4 5 6 | 7 | 8 9
    after    0 1 2 | 3' | 4 5 6 |   | 8 9 | 10       3 updated, 7 removed, 10 added

Reads a few fields of many serialized fragments at once: ids, physical rows, and which optional fields they have.

Many fragments are parsed together with numpy, one field of every fragment at a time. Few fragments, and fragments with
unknown, unusually many or corrupt fields, are parsed with protobuf messages that have only the fields read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.table.fragment import Fragment, check_fragment_id
from lance_core.table.partial_message import partial_message

_Entries: Final = partial_message(table_pb2.Manifest.DESCRIPTOR, {"fragments": None})


class FragmentRun(Sequence[bytes]):
    """Serialized fragments, as a sequence; the entries are parsed when a fragment is first needed.

    Args:
        data: The entries, one after the other.
        count: Number of entries.
    """

    __slots__ = ("_bounds", "_count", "_entries", "data")

    def __init__(self, data: bytes | memoryview, count: int) -> None:
        self.data = data
        self._count = count
        self._entries: Sequence[bytes] | None = None
        self._bounds: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, fragments: Iterable[bytes]) -> FragmentRun:
        """Create a run from serialized fragments."""
        message: Any = _Entries(fragments=fragments)
        result = cls(message.SerializeToString(), len(message.fragments))
        result._entries = message.fragments
        return result

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return self._parse()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parse())

    def __eq__(self, other: object) -> bool:
        # The same length can be written in several ways.
        return isinstance(other, FragmentRun) and (_is_equal(self.data, other.data) or list(self) == list(other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[FragmentRun], tuple[bytes, int]]:
        return FragmentRun, (bytes(self.data), self._count)

    def bounds(self) -> npt.NDArray[np.int64]:
        """Where each entry begins in `data`, and the end of the last one."""
        if self._bounds is None:
            self._bounds = _find_bounds(self._parse())
            if self._bounds[-1] != len(self.data):  # a length with more bytes than it needs
                self.data = FragmentRun.of(self).data
        return self._bounds

    def spliced(self, changes: Mapping[int, bytes | None], added: Sequence[bytes]) -> FragmentRun:
        """Return the run after a change.

        Args:
            changes: The new fragments by the positions of those that they replace; None where one is removed.
            added: Further fragments, for the end.
        """
        pieces: list[bytes | memoryview] = []
        start = 0
        if changes:
            bounds = self.bounds()
            view = memoryview(self.data)
            for place in sorted(changes):
                fragment = changes[place]
                pieces.append(view[start : bounds[place]])
                pieces.append(b"" if fragment is None else FragmentRun.of([fragment]).data)
                start = int(bounds[place + 1])
        pieces.append(memoryview(self.data)[start:])
        pieces.append(FragmentRun.of(added).data)
        removed = sum(fragment is None for fragment in changes.values())
        return FragmentRun(b"".join(pieces), len(self) - removed + len(added))

    def differing(self, other: FragmentRun) -> range:
        """The positions of this run's fragments between the beginning and the end that both runs share."""
        bounds, other_bounds = self.bounds(), other.bounds()
        data, other_data = np.frombuffer(self.data, np.uint8), np.frombuffer(other.data, np.uint8)
        shared = _count_equal(data, other_data)
        first = int(np.searchsorted(bounds, shared, "right")) - 1
        shared = _count_equal(data[bounds[first] :][::-1], other_data[bounds[first] :][::-1])
        last = int(np.searchsorted(bounds, len(data) - shared, "left"))
        is_aligned = len(other_data) - (len(data) - bounds[last]) in other_bounds if shared else True
        return range(first, last if is_aligned else len(self))

    def _parse(self) -> Sequence[bytes]:
        if self._entries is None:
            try:
                entries: Sequence[bytes] = _Entries.FromString(self.data).fragments
            except DecodeError as error:
                raise CorruptFileError("the fragments of the manifest cannot be parsed") from error
            if len(entries) != self._count:
                raise CorruptFileError(f"the manifest has {len(entries)} fragments instead of {self._count}")
            self._entries = entries
        return self._entries


def _is_equal(data: bytes | memoryview, other: bytes | memoryview) -> bool:
    return np.array_equal(np.frombuffer(data, np.uint8), np.frombuffer(other, np.uint8))


def _count_equal(data: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> int:
    """Number of bytes at the beginnings of two arrays that are the same."""
    count = min(len(data), len(other))
    unlike = data[:count] != other[:count]
    return int(unlike.argmax()) if unlike.any() else count


def _find_bounds(fragments: Sequence[bytes]) -> npt.NDArray[np.int64]:
    lengths = np.fromiter(map(len, fragments), np.int64, len(fragments))
    sizes = lengths + 2  # the tag, and a length of one byte
    for bits in range(7, 35, 7):  # each byte of a varint holds seven bits
        sizes += lengths >> bits > 0
    bounds = np.zeros(len(fragments) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


_I64s = npt.NDArray[np.int64]
_U64s = npt.NDArray[np.uint64]
_Bools = npt.NDArray[np.bool_]

_MOST_ROWS: Final = 2**32
_MANY: Final = 256
"""Number of fragments from which numpy takes less time than messages."""
_MOST_FIELDS: Final = 16
_LONGEST: Final = 9
"""Bytes of the longest varint that is read here: 63 bits."""
_ID: Final = 1 << 3
_ROWS: Final = 4 << 3
_DELETION_FILE, _ROW_IDS, _ROW_IDS_ELSEWHERE = (number << 3 | 2 for number in (3, 5, 6))
_IS_KNOWN: Final = np.zeros(256, np.bool_)
_HAS_BYTES: Final = np.zeros(256, np.bool_)
_HAS_BYTES[[number << 3 | 2 for number in (2, 3, 5, 6, 7, 8, 9, 10)]] = True  # files, deletions, row ids and versions
_IS_KNOWN[:] = _HAS_BYTES
_IS_KNOWN[[_ID, _ROWS]] = True

_NAMES: Final = ("id", "physical_rows", "deletion_file", "inline_row_ids", "external_row_ids", "spilled_row_ids")
_FragmentFields: Final = partial_message(table_pb2.Manifest.DESCRIPTOR, {"fragments": dict.fromkeys(_NAMES)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FragmentColumns:
    """Some fields of fragments, with an array for each.

    Attributes:
        ids: The fragment ids.
        rows: The physical rows; 0 where none are recorded, or more than offsets can count. Readers of the fragment
            report the latter.
        deletions: Whether a fragment has a deletion file.
        row_ids: Whether a fragment has inline row ids, and no row ids in another file.
    """

    ids: _I64s
    rows: _I64s
    deletions: _Bools
    row_ids: _Bools

    @classmethod
    def of(cls, run: FragmentRun) -> FragmentColumns:
        """Read the fields of serialized fragments.

        Raises:
            CorruptFileError: The bytes are not a fragment.
        """
        numbers = _walk(run) if len(run) >= _MANY else None
        if numbers is None:
            return _read_messages(run)
        return cls(
            ids=numbers[_ID].astype(np.int64),
            rows=_drop_implausible(numbers[_ROWS]),
            deletions=numbers[_DELETION_FILE] > 0,
            row_ids=(numbers[_ROW_IDS] > 0) & (numbers[_ROW_IDS_ELSEWHERE] == 0),
        )

    def spliced(self, updated: Sequence[int], removed: Sequence[int], put: FragmentColumns) -> FragmentColumns:
        """Return the columns after a change.

        Args:
            updated: Positions of replaced fragments.
            removed: Positions of removed fragments.
            put: The columns of the replacing fragments, in the order of `updated`, and then of the added fragments.
        """

        def column(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if len(updated):
                old = old.copy()
                old[updated] = new[: len(updated)]
            return np.concatenate((np.delete(old, removed) if len(removed) else old, new[len(updated) :]))

        return FragmentColumns(
            ids=column(self.ids, put.ids),
            rows=column(self.rows, put.rows),
            deletions=column(self.deletions, put.deletions),
            row_ids=column(self.row_ids, put.row_ids),
        )


def _read_messages(run: FragmentRun) -> FragmentColumns:
    try:
        messages = _FragmentFields.FromString(run.data).fragments
    except DecodeError as error:
        raise CorruptFileError("a fragment of the manifest cannot be parsed") from error
    elsewhere = [message.HasField("external_row_ids") or message.HasField("spilled_row_ids") for message in messages]
    return FragmentColumns(
        ids=np.fromiter(map(attrgetter("id"), messages), np.uint64, len(messages)).astype(np.int64),
        rows=_drop_implausible(np.fromiter(map(attrgetter("physical_rows"), messages), np.uint64, len(messages))),
        deletions=np.array([message.HasField("deletion_file") for message in messages], np.bool_),
        row_ids=np.array([message.HasField("inline_row_ids") for message in messages], np.bool_)
        & ~np.array(elsewhere, np.bool_),
    )


def _drop_implausible(rows: _U64s) -> _I64s:
    return np.where(rows <= _MOST_ROWS, rows, 0).astype(np.int64)


def _walk(run: FragmentRun) -> Mapping[int, npt.NDArray[Any]] | None:
    """The numbers of each fragment by their tags, and which tags it has; None if a fragment is unusual.

    A field is a tag of one byte (field number << 3 | 0 for a varint, 2 for a length and bytes), and its value. Each
    step reads the next field of all fragments.
    """
    count = len(run)
    bounds = run.bounds()
    ends = bounds[1:]
    data = np.frombuffer(b"".join((run.data, bytes(_LONGEST + 1))), np.uint8)
    columns: dict[int, npt.NDArray[Any]] = {_ID: np.zeros(count, np.uint64), _ROWS: np.zeros(count, np.uint64)}
    columns.update((tag, np.zeros(count, np.bool_)) for tag in (_DELETION_FILE, _ROW_IDS, _ROW_IDS_ELSEWHERE))
    _, at = _read_varints(data, bounds[:-1] + 1)
    left = np.flatnonzero(at < ends)
    at, ends = at[left], ends[left]
    for _ in range(_MOST_FIELDS):
        if not len(left):
            return columns
        tags = data[at]
        value, at = _read_varints(data, at + 1)
        for tag, column in columns.items():
            is_it = tags == tag
            if is_it.any():
                column[left[is_it]] = value[is_it] if column.dtype == np.uint64 else True
        more = np.where(_HAS_BYTES[tags], value, 0)
        if not _IS_KNOWN[tags].all() or more.max() > len(data):
            return None
        at = at + more.astype(np.int64)
        if (at > ends).any():
            return None
        going = at < ends
        if not going.all():
            left, at, ends = left[going], at[going], ends[going]
    return None


def _read_varints(data: npt.NDArray[np.uint8], at: _I64s) -> tuple[_U64s, _I64s]:
    """The varints at some positions, and their ends; the end of a varint that is too long is beyond all data."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    end = at + 1
    going = np.flatnonzero(byte >= 0x80)
    for i in range(1, _LONGEST):
        if not len(going):
            return value, end
        byte = data[at[going] + i]
        value[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * i)
        end[going] += 1
        going = going[byte >= 0x80]
    end[going] = len(data)
    return value, end


class FragmentList(Sequence[Fragment]):
    """The fragments of a manifest: immutable, each parsed when it is accessed.

    Args:
        raw: The serialized fragments.
        has_deletions: Whether a fragment has a deletion file; None = not known yet.
    """

    __slots__ = (
        "_columns",
        "_has_deletions",
        "_ids",
        "_known_live",
        "_live",
        "_positions",
        "_records",
        "_totals",
        "fresh",
        "raw",
    )

    def __init__(self, raw: Sequence[bytes], *, has_deletions: bool | None = None) -> None:
        self.raw = raw if isinstance(raw, FragmentRun) else FragmentRun.of(raw)
        self._records: dict[int, Fragment] = {}
        self._ids: list[int] | None = None
        self._positions: dict[int, int] | None = None
        self._columns: FragmentColumns | None = None
        self._live: list[int | None] | None = None
        self._totals: tuple[int, int] | None = None
        self._known_live: dict[bytes, int | None] | None = None
        self._has_deletions = has_deletions
        self.fresh: tuple[Fragment, ...] = ()  # what the last change added or updated

    @classmethod
    def of(cls, fragments: Iterable[Fragment]) -> FragmentList:
        """Create a list from records."""
        records = list(fragments)
        result = cls([record.to_protobuf().SerializeToString() for record in records])
        result._records = dict(enumerate(records))
        result.fresh = tuple(records)
        return result

    def __len__(self) -> int:
        return len(self.raw)

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
            record = Fragment.from_protobuf(_parse(self.raw[index]))
            self._records[index] = record
        return record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FragmentList) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"FragmentList({len(self)} fragments)"

    def __reduce__(self) -> tuple[type[FragmentList], tuple[FragmentRun]]:
        return FragmentList, (self.raw,)

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
    def has_deletions(self) -> bool:
        """Whether a fragment has a deletion file."""
        if self._has_deletions is None:
            self._has_deletions = bool(self._read_fields().deletions.any())
        return self._has_deletions

    def messages(self) -> Iterator[table_pb2.DataFragment]:
        """Yield the fragments as protobuf messages, which are parsed much faster than records are made."""
        return map(_parse, self.raw)

    def sizes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The ids, and the physical rows of each; 0 where the manifest does not record them."""
        fields = self._read_fields()
        return fields.ids, fields.rows

    def _read_fields(self) -> FragmentColumns:
        if self._columns is None:
            columns = FragmentColumns.of(self.raw)
            check_fragment_id(int(columns.ids.view(np.uint64).max(initial=0)))
            self._columns = columns
        return self._columns

    def places_with_rows(self) -> Sequence[int]:
        """The positions of fragments that can hold rows: all but those without files and without recorded rows."""
        places = np.flatnonzero(self._read_fields().rows == 0).tolist()
        empty = {place for place in places if not _parse(self.raw[place]).files}
        return [place for place in range(len(self)) if place not in empty] if empty else range(len(self))

    def check_row_ids(self) -> None:
        """Reject fragments without row ids: in a dataset with stable row ids every fragment has them.

        Raises:
            CorruptFileError: A fragment has no row ids.
            UnsupportedError: A fragment keeps its row ids in another file.
        """
        for place in np.flatnonzero(~self._read_fields().row_ids).tolist():
            message = _parse(self.raw[place])
            if not message.HasField("inline_row_ids"):
                Fragment.from_protobuf(message)
                raise CorruptFileError(
                    f"All fragments must have row ids in a dataset with stable row ids: fragment {message.id} has none"
                )

    def live_counts(self) -> list[int | None]:
        """The live rows of each fragment; None where the manifest does not record them."""
        if self._live is None and self._known_live is not None:
            counts = self._known_live
            counts.update({raw: _live_count(_parse(raw)) for raw in self.raw if raw not in counts})
            self._live = [counts[raw] for raw in self.raw]
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

    def by_id(self, fragment_id: int) -> Fragment:
        """Return the fragment of an id that the list has."""
        fragment = self.get(fragment_id)
        assert fragment is not None
        return fragment

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
        if (fields.ids[1:] > fields.ids[:-1]).all() and _is_ascending([self.highest_id, *new_ids]):
            result = self._splice({places[i]: changes[i] for i in places}, raw, len(put))
        else:
            entries = [(i, changes.get(i, old)) for i, old in zip(self.ids, self.raw, strict=True)]
            entries.extend(zip(new_ids, raw[len(put) :], strict=True))
            result = _sorted_list([(i, message) for i, message in entries if message is not None])
        result.fresh = fresh
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
        result = FragmentList(self.raw.spliced(changes, fresh[updated:]))
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
