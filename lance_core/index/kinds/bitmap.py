"""BITMAP and LABEL_LIST: the rows of each value.

bitmap_page_lookup.lance, one row per distinct value, in any order:

    keys        the field's type; null for the rows without a value. LABEL_LIST: the type of the elements
    bitmaps     binary, a set of rows (see `row_sets`): by stable row id where the dataset has them, else by address

The schema's metadata has `lance:index_stats`, {"num_bitmaps": n}; that of a LABEL_LIST `lance:label_list_nulls`, the
number of a global buffer with the rows whose list is null. A segment is complete for the fragments that it covers;
small segments are still checked for missing rows, and missing rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.index.kinds.row_sets import (
    RowCollector,
    RowSet,
    build_row_set,
    build_row_sets,
    decode,
    encode,
    locate_rows,
    unite,
)
from lance_core.index.query.conditions import Contains, IsIn, Test
from lance_core.index.query.evaluate import evaluate_test, rank_values
from lance_core.index.query.rows import ALL, NONE, SOME, Bools, Candidates, IndexedRows, Ints, U64s, View
from lance_core.index.query.values import is_exact

FILE: Final = "bitmap_page_lookup.lance"
STATISTICS_KEY: Final = "lance:index_stats"
NULL_LISTS_KEY: Final = "lance:label_list_nulls"
_CHECKED_BYTES: Final = 4 * 1024 * 1024
_MANY_KEYS: Final = 1024


@dataclass(kw_only=True)
class BitmapIndex:
    """The values of a segment, and their rows.

    Attributes:
        keys: The values.
        load: (ascending numbers of keys) -> their stored sets; None if all sets are in memory.
        by_id: Whether the sets hold stable row ids rather than row addresses.
        size: Bytes of the file.
        null_lists: The rows whose list is null, if the values are elements of lists; None otherwise.
    """

    keys: pa.Array
    load: Callable[[Ints], Sequence[bytes]] | None
    by_id: bool
    size: int = 0
    null_lists: RowSet | None = None
    _sets: dict[int, RowSet] = field(default_factory=dict)
    _whole: dict[int, BitMap] | None = None

    @property
    def of_lists(self) -> bool:
        """Whether the values are elements of lists."""
        return self.null_lists is not None

    @property
    def nbytes(self) -> int:
        """Approximate memory size."""
        return int(self.keys.nbytes) + self.size

    @classmethod
    def of(
        cls, keys: pa.Array, sets: Sequence[RowSet], null_lists: RowSet | None = None, *, by_id: bool
    ) -> BitmapIndex:
        """An index over sets in memory."""
        return cls(keys=keys, load=None, by_id=by_id, null_lists=null_lists, _sets=dict(enumerate(sets)))

    def fits(self, kind: pa.DataType) -> bool:
        """Whether the values are of that type, or elements of such lists."""
        return bool(self.keys.type == (getattr(kind, "value_type", None) if self.of_lists else kind))

    def statistics(self) -> dict[str, object]:
        """Counters, under pylance's names."""
        return {"num_bitmaps": len(self.keys)}

    def parameters(self) -> dict[str, int]:
        """Indices of this kind have no parameters."""
        return {}

    def fragments(self) -> BitMap | None:
        """The fragments that have entries; None if the entries are by row id."""
        return None if self.by_id else BitMap(upper for upper, rows in self.all_rows().items() if rows)

    def sets(self, numbers: Ints) -> list[RowSet]:
        """The rows of some values.

        Raises:
            CorruptFileError: A set cannot be read.
        """
        missing = np.array([i for i in numbers.tolist() if i not in self._sets], np.int64)
        if self.load is not None and len(missing):
            for number, data in zip(missing.tolist(), self.load(missing), strict=True):
                self._sets[number] = decode(data)
        return [self._sets[i] for i in numbers.tolist()]

    def all_rows(self) -> dict[int, BitMap]:
        """The rows of all values."""
        if self._whole is None:
            self._whole = unite(self.sets(np.arange(len(self.keys))))
        return self._whole

    def answer(self, test: Test, truth: bool, view: View, covered: Bools) -> Candidates | None:
        """The rows for which a test is true, or false; see `kinds.Content`."""
        by_id = self.by_id and view.has_row_ids
        if isinstance(test, Contains):
            matches = self._find_lists_with(test) if truth and self.of_lists else None
        elif self.of_lists:
            return None
        else:
            chosen = evaluate_test(test, truth, self.keys)
            if chosen is None or (chosen.sum() > _MANY_KEYS and chosen.sum() > len(chosen) // 2):
                return None
            matches = unite(self.sets(np.flatnonzero(chosen))) if chosen.any() else {}
        if matches is None:
            return None
        result = locate_rows(matches, view, covered, by_id=by_id)
        if self.of_lists:
            return result | self._find_unlisted_fragments(view, covered, by_id=by_id)
        return result | self._find_unlisted_rows(view, covered, by_id=by_id) if self._is_checked else result

    def certain(self, test: Test, truth: bool, view: View, covered: Bools) -> Candidates | None:
        """The rows for which a test is certainly true, or false, in a segment without a row under two values.

        Raises:
            CorruptFileError: The rows contradict the fragments.
        """
        if not self._is_checked or isinstance(test, Contains) or not self._is_disjoint():
            return None
        if isinstance(test, IsIn) and not is_exact(self.keys.type, test.values.type):
            return None
        chosen = evaluate_test(test, truth, self.keys)
        if chosen is None or not chosen.any():
            return None
        by_id = self.by_id and view.has_row_ids
        matches = locate_rows(unite(self.sets(np.flatnonzero(chosen))), view, covered, by_id=by_id)
        return Candidates(np.where(covered, matches.state, NONE).astype(np.uint8), matches.rows)

    def _is_disjoint(self) -> bool:
        """Whether no row is under two values."""
        once = sum(len(rows) for key_rows in self.sets(np.arange(len(self.keys))) for rows in key_rows.values())
        return once == sum(map(len, self.all_rows().values()))

    @property
    def _is_checked(self) -> bool:
        # Rows with an empty list have no entry in a complete segment.
        return not self.of_lists and self.size <= _CHECKED_BYTES

    def _find_lists_with(self, test: Contains) -> dict[int, BitMap] | None:
        """The rows whose lists have some values: any of them, or all."""
        if test.values.type != self.keys.type:
            return None
        parts: list[RowSet] = []
        for value in test.values.unique():
            is_nan = pa.types.is_floating(value.type) and np.isnan(value.as_py())
            are_equal = pc.is_nan(self.keys).to_pylist() if is_nan else [key.equals(value) for key in self.keys]
            key_numbers = np.flatnonzero(are_equal)
            parts.append(unite(self.sets(key_numbers)) if len(key_numbers) else {})
        if not test.needs_all:
            return unite(parts)
        common_rows = parts[0]
        for other in parts[1:]:
            common_rows = _intersect(common_rows, other)
        return dict(common_rows)

    def _find_unlisted_fragments(self, view: View, covered: Bools, *, by_id: bool) -> Candidates:
        """The covered fragments without any entry: all their lists are empty, or the segment is wrong."""
        if self.size > _CHECKED_BYTES:
            return Candidates.no(view)
        entries = locate_rows(unite([self.all_rows(), self.null_lists or {}]), view, covered, by_id=by_id)
        return Candidates(np.where(covered & (entries.state == NONE), ALL, NONE).astype(np.uint8))

    def _find_unlisted_rows(self, view: View, covered: Bools, *, by_id: bool) -> Candidates:
        """The rows of covered fragments without an entry: deleted rows, or rows that a wrong segment lacks."""
        entries = locate_rows(self.all_rows(), view, covered, by_id=by_id)
        state = np.full(len(view.ids), NONE, np.uint8)
        rows: dict[int, BitMap] = {}
        for place in np.flatnonzero(covered).tolist():
            physical = int(view.physical_rows[place])
            listed_rows = entries.rows.get(place) if entries.state[place] == SOME else None
            if not physical or entries.state[place] == ALL:
                state[place] = ALL
            elif listed_rows is None or len(listed_rows) < physical:
                state[place] = SOME
                rows[place] = BitMap(range(physical)) - (listed_rows if listed_rows is not None else BitMap())
        return Candidates(state, rows)

    def of_fragments(self, view: View, chosen: Bools) -> BitmapIndex:
        """The part about some fragments."""
        if self.by_id and view.has_row_ids:
            ids = [view.ids_of(place) for place in np.flatnonzero(chosen).tolist()]
            selected_rows: RowSet = build_row_set(np.sort(np.concatenate(ids))) if ids else {}
        else:
            places = np.flatnonzero(chosen).tolist()
            selected_rows = {int(view.ids[i]): BitMap(range(max(int(view.physical_rows[i]), 0))) for i in places}
        sets = [_intersect(rows, selected_rows) for rows in self.sets(np.arange(len(self.keys)))]
        left = np.flatnonzero([bool(rows) for rows in sets])
        null_lists = None if self.null_lists is None else _intersect(self.null_lists, selected_rows)
        left_sets = [sets[i] for i in left.tolist()]
        return BitmapIndex.of(self.keys.take(pa.array(left)), left_sets, null_lists, by_id=self.by_id)

    @classmethod
    def concat(cls, parts: Sequence[BitmapIndex]) -> BitmapIndex:
        """The union of several indices."""
        keys = pa.concat_arrays([part.keys for part in parts])
        all_sets = [rows for part in parts for rows in part.sets(np.arange(len(part.keys)))]
        distinct, codes = rank_values(keys)
        gathered: list[list[RowSet]] = [[] for _ in range(len(distinct))]
        for code, rows in zip(codes.tolist(), all_sets, strict=True):
            gathered[code].append(rows)
        null_lists = [part.null_lists for part in parts if part.null_lists is not None]
        sets = [unite(same_key) for same_key in gathered]
        return cls.of(distinct, sets, unite(null_lists) if null_lists else None, by_id=parts[0].by_id)

    def to_table(self) -> pa.Table:
        """The rows of the file.

        Raises:
            CorruptFileError: A set cannot be read.
        """
        statistics = f'{{"num_bitmaps":{len(self.keys)}}}'
        schema = pa.schema(
            [pa.field("keys", self.keys.type), pa.field("bitmaps", pa.binary())], metadata={STATISTICS_KEY: statistics}
        )
        encoded = [encode(rows) for rows in self.sets(np.arange(len(self.keys)))]
        return pa.Table.from_arrays([self.keys, pa.array(encoded, pa.binary())], schema=schema)


class BitmapBuilder(RowCollector):
    """Builds a BITMAP segment from rows."""

    def finish(self) -> BitmapIndex:
        """The values and their rows."""
        values, numbers = self.collect()
        keys, codes = rank_values(values)
        return BitmapIndex.of(keys, build_row_sets(numbers, codes, len(keys)), by_id=self._by_id)


class LabelBuilder:
    """Builds a LABEL_LIST segment from rows.

    Args:
        kind: Type of the lists.
        by_id: Whether to record stable row ids rather than addresses.
    """

    def __init__(self, kind: pa.DataType, *, by_id: bool) -> None:
        self._elements = BitmapBuilder(kind.value_type, by_id=by_id)
        self._by_id = by_id
        self._null_lists: list[U64s] = []

    def add(self, fragment_id: int, num_rows: int, parts: Iterable[IndexedRows]) -> None:
        """Add the live rows of a fragment."""
        elements = []
        for part in parts:
            numbers = part.ids if self._by_id else part.addresses
            is_null = part.values.is_null().to_numpy(zero_copy_only=False)
            self._null_lists.append(numbers[is_null])
            owners = pc.list_parent_indices(part.values).to_numpy()
            elements.append(IndexedRows(pc.list_flatten(part.values), part.addresses[owners], part.ids[owners]))
        self._elements.add(fragment_id, num_rows, elements)

    def finish(self) -> BitmapIndex:
        """The elements and their rows."""
        numbers = np.concatenate(self._null_lists) if self._null_lists else np.zeros(0, np.uint64)
        return replace(self._elements.finish(), null_lists=build_row_set(numbers))


def _intersect(left: RowSet, right: RowSet) -> RowSet:
    """The intersection of two sets of rows."""
    return {upper: both for upper, rows in left.items() if upper in right and (both := rows & right[upper])}
