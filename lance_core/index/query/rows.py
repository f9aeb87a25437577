"""Rows that can match a filter: none, some or all rows of each fragment, combined by AND and OR.

An answer may have too many rows, but never too few: only its rows are read and filtered.
Fragments are numbered by their position in a `View` of a version, so that an answer about ten thousand of them is one
array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import CorruptFileError
from lance_core.row_addresses import offsets_of

NONE: Final = 0
"""No row of the fragment can match."""

SOME: Final = 1
"""Only the listed rows can match."""

ALL: Final = 2
"""Any row can match."""

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
U64s: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """Live rows of a fragment, from which an index is built.

    Attributes:
        values: The values of the field.
        addresses: The row addresses, ascending.
        ids: The stable row ids if the dataset has them, else the addresses.
    """

    values: pa.Array
    addresses: U64s
    ids: U64s


@dataclass(frozen=True)
class View:
    """The fragments of a version.

    Attributes:
        ids: Their ids, in the order of the version.
        physical_rows: Rows in the files of each fragment, deleted ones included; 0 if unknown.
        row_ids: (position of a fragment) -> the stable ids of all its rows; None in a dataset without them.
        live_counts: () -> the live rows of each fragment, None where they are unknown.
        max_fragment_id: The highest fragment id ever used; None if unknown.
        next_row_id: The stable row id of the next new row.
    """

    ids: Ints
    physical_rows: Ints
    row_ids: Callable[[int], U64s | None] | None = None
    live_counts: Callable[[], Sequence[int | None]] | None = None
    max_fragment_id: int | None = None
    next_row_id: int = 0

    @property
    def has_row_ids(self) -> bool:
        """Whether rows have stable ids."""
        return self.row_ids is not None

    def ids_of(self, place: int) -> U64s:
        """The stable ids of all rows of a fragment.

        Raises:
            CorruptFileError: The fragment has no row ids.
        """
        row_ids = self.row_ids(place) if self.row_ids is not None else None
        if row_ids is None:
            raise CorruptFileError(f"fragment {self.ids[place]} has no row ids")
        return row_ids

    def check_fragments(self, fragment_ids: Ints) -> None:
        """Make sure that an index refers only to fragments that exist or existed.

        Raises:
            CorruptFileError: A fragment never existed.
        """
        if self.max_fragment_id is not None and len(fragment_ids) and int(fragment_ids.max()) > self.max_fragment_id:
            raise CorruptFileError(
                f"it names fragment {fragment_ids.max()}, but the highest fragment id is {self.max_fragment_id}"
            )

    def check_row_ids(self, row_ids: U64s) -> None:
        """Make sure that an index refers only to rows that exist or existed.

        Raises:
            CorruptFileError: A row never existed.
        """
        if self.next_row_id and len(row_ids) and int(row_ids.max()) >= self.next_row_id:
            raise CorruptFileError(f"it names row id {row_ids.max()}, but the next new row id is {self.next_row_id}")

    def check_entries(self, chosen: Bools, num_entries: int) -> None:
        """Make sure that an index has at least one entry per live row of some fragments.

        Raises:
            CorruptFileError: The index has fewer entries than the fragments have live rows.
        """
        if num_entries >= int(self.physical_rows[chosen].sum()):
            return
        counts = self.live_counts() if self.live_counts is not None else []
        live = sum(count or 0 for count, is_chosen in zip(counts, chosen.tolist(), strict=False) if is_chosen)
        if num_entries < live:
            raise CorruptFileError(f"it has {num_entries} entries for {live} rows of the fragments that it covers")

    def check_each(self, chosen: Bools, entries: Mapping[int, int]) -> None:
        """Make sure that an index has at least one entry per live row in each of some fragments.

        Args:
            chosen: The fragments.
            entries: The number of entries by position of the fragment; others have none.

        Raises:
            CorruptFileError: The index has fewer entries than a fragment has live rows.
        """
        counts = np.zeros(len(self.ids), np.int64)
        counts[list(entries)] = list(entries.values())
        few = np.flatnonzero(chosen & (counts < self.physical_rows))
        if not len(few) or self.live_counts is None:
            return
        live = self.live_counts()
        for place in few.tolist():
            if int(counts[place]) < (live[place] or 0):
                raise CorruptFileError(
                    f"it has {counts[place]} entries for {live[place]} rows of fragment {self.ids[place]}"
                )

    @cached_property
    def _order(self) -> Ints | None:
        """The order that sorts the ids; None if they are sorted."""
        is_sorted = bool((self.ids[1:] > self.ids[:-1]).all())
        return None if is_sorted else np.argsort(self.ids, kind="stable")

    def places(self, fragment_ids: Ints) -> Ints:
        """The positions of fragments; -1 for one that the version lacks."""
        if not len(self.ids):
            return np.full(len(fragment_ids), -1, np.int64)
        order = self._order
        nearest = np.minimum(np.searchsorted(self.ids, fragment_ids, sorter=order), len(self.ids) - 1)
        places = nearest if order is None else order[nearest]
        return np.where(self.ids[places] == fragment_ids, places, -1)

    def covered(self, fragment_ids: BitMap) -> Bools:
        """For each fragment of the view, whether its id is among some ids."""
        places = self.places(offsets_of(fragment_ids))
        result = np.zeros(len(self.ids), np.bool_)
        result[places[places >= 0]] = True
        return result


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows that can match.

    Attributes:
        state: For each fragment of a view `NONE`, `SOME` or `ALL`.
        rows: Offsets of the rows, by the position of each fragment whose state is `SOME`; never empty.
    """

    state: npt.NDArray[np.uint8]
    rows: Mapping[int, BitMap] = field(default_factory=dict)

    @classmethod
    def every(cls, view: View) -> Candidates:
        """All rows."""
        return cls(np.full(len(view.ids), ALL, np.uint8))

    @classmethod
    def no(cls, view: View) -> Candidates:
        """No row."""
        return cls(np.zeros(len(view.ids), np.uint8))

    def __and__(self, other: Candidates) -> Candidates:
        """The rows of both."""
        state = np.minimum(self.state, other.state)
        rows = {}
        for place in np.flatnonzero(state == SOME).tolist():
            mine, its = self.rows.get(place), other.rows.get(place)
            both = mine & its if mine is not None and its is not None else mine if mine is not None else its
            assert both is not None
            if both:
                rows[place] = both
            else:
                state[place] = NONE
        return Candidates(state, rows)

    def __or__(self, other: Candidates) -> Candidates:
        """The rows of either."""
        state = np.maximum(self.state, other.state)
        rows = {}
        for place in np.flatnonzero(state == SOME).tolist():
            mine, its = self.rows.get(place), other.rows.get(place)
            rows[place] = mine | its if mine is not None and its is not None else mine if mine is not None else its
        return Candidates(state, rows)  # type: ignore[arg-type]  # one of the two lists the rows

    def where(self, ruled: Bools, otherwise: Candidates) -> Candidates:
        """These candidates in the fragments of `ruled`, and `otherwise` in all other fragments."""
        state = np.where(ruled, self.state, otherwise.state)
        rows = {place: rows for place, rows in self.rows.items() if ruled[place]}
        rows.update((place, rows) for place, rows in otherwise.rows.items() if not ruled[place])
        return Candidates(state, rows)
