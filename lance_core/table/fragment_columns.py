"""Reads a few fields of many serialized fragments at once: ids, physical rows, and which optional fields they have.

Many fragments are parsed together with numpy, one field of every fragment at a time. Few fragments, and fragments with
unknown, unusually many or corrupt fields, are parsed with protobuf messages that have only the fields read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.fragment_run import FragmentRun
from lance_core.table.partial_message import partial_message

__all__ = ["FragmentColumns"]

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

    @property
    def are_ascending(self) -> bool:
        """Whether each id is above the one before it."""
        return bool((self.ids[1:] > self.ids[:-1]).all())

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
