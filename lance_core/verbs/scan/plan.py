"""Plan a scan: choose with indices the fragments that can match its filter, and the rows of each that can.

can match         `parts`         offsets of rows that indices do not exclude; None for all read and filtered
match for sure    `_find_certain` offsets of rows that an index answers exactly             counted without a read
all rows match    `whole`         fragments with one value in each column of the filter     counted without a read
                  `with_certain`  fragments all of whose rows an index answers exactly      deleted without a read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.index.query.rows import ALL, NONE, Candidates
from lance_core.index.selection.candidates import Selection, find_certain_matches, find_constant_columns, view_of
from lance_core.index.selection.claims import ContradictionError
from lance_core.table.fragment import Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.expressions.arrow import columns_of, matching
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.read_fragment import count_live, count_live_each

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The fragments that a scan reads.

    Attributes:
        snapshot: The version.
        options: What to read.
        parts: The fragments in order, each with the offsets of rows that can match; None for all.
        selection: The rows that can match according to indices; None if indices rule nothing out.
        whole: Ids of the fragments all of whose live rows match.
    """

    snapshot: Snapshot
    options: ScanOptions
    parts: Sequence[tuple[Fragment, BitMap | None]]
    selection: Selection | None = None
    whole: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        fragments: Sequence[Fragment],
        options: ScanOptions,
        condition: pc.Expression | None = None,
    ) -> ScanPlan:
        """Plan a scan.

        Args:
            snapshot: The version.
            fragments: Fragments of it.
            options: What to read of them.
            condition: The condition that indices evaluate; None for the filter, if the options allow indices.
        """
        if condition is None and options.use_scalar_index and not options.include_deleted_rows:
            condition = options.filter
        if condition is None or not snapshot.manifest.indices:
            return cls(snapshot, options, parts_of(snapshot, fragments, None))
        selection, whole = _query_indices(snapshot, condition)
        parts = parts_of(snapshot, fragments, selection)
        all_fragments = snapshot.manifest.fragments
        if fragments is not all_fragments:
            whole -= {
                fragment.id for fragment, _ in parts if fragment.id in whole and not _is_of(all_fragments, fragment)
            }
        return cls(snapshot, options, parts, selection, whole)

    def scans(self, *, with_whole: bool = True) -> Iterator[FragmentScan]:
        """Yield a scan of each fragment.

        Args:
            with_whole: Whether to also scan the fragments all of whose rows match.
        """
        for fragment, rows in self.parts:
            if with_whole or fragment.id not in self.whole:
                selection = self.selection if rows is not None else None
                claims = selection.claims_of(fragment.id) if selection is not None else ()
                yield FragmentScan(self.snapshot, fragment, self.options, possible=rows, claims=claims)

    def with_certain(self) -> ScanPlan:
        """This plan, where fragments all of whose rows match for certain according to indices are whole as well."""
        sure = self._find_certain()
        if sure is None:
            return self
        return replace(self, whole=self.whole.union(sure.view.ids[sure.candidates.state == ALL].tolist()))

    def counted(self) -> tuple[int, ScanPlan]:
        """Count matching rows of fragments for which indices suffice; return the number and a plan of the others."""
        whole = [fragment for fragment, _ in self.parts if fragment.id in self.whole]
        total = sum(count_live_each(self.snapshot, whole))
        left = [(fragment, rows) for fragment, rows in self.parts if fragment.id not in self.whole]
        sure = self._find_certain() if left else None
        unknown = []
        for fragment, rows in left:
            count = None if sure is None else self._count(sure, fragment, rows)
            total += count or 0
            if count is None:
                unknown.append((fragment, rows))
        return total, replace(self, parts=unknown)

    def _find_certain(self) -> Selection | None:
        """The rows that match for certain according to indices; None if indices are certain of no row."""
        snapshot, expression = self.snapshot, self.options.filter
        if expression is None or self.selection is None:
            return None
        candidates = find_certain_matches(expression, snapshot.manifest, snapshot.indices)
        return None if candidates is None else replace(self.selection, candidates=candidates)

    def _count(self, sure: Selection, fragment: Fragment, possible: BitMap | None) -> int | None:
        """The number of rows of a fragment that match; None if a row that can match is not certain."""
        position = int(sure.view.places(np.array([fragment.id], np.int64))[0])
        if position < 0 or not _is_of(self.snapshot.manifest.fragments, fragment):
            return None
        certain_rows = sure.rows_of(position)
        if certain_rows is None:
            return count_live(self.snapshot, fragment)
        if not certain_rows and possible is None:
            return None
        deleted = self.snapshot.deleted_rows(fragment)
        every = BitMap(range(int(sure.view.physical_rows[position]))) if possible is None else possible
        return len(certain_rows - deleted) if (every - deleted) <= certain_rows else None


def parts_of(
    snapshot: Snapshot, fragments: Sequence[Fragment], selection: Selection | None
) -> Sequence[tuple[Fragment, BitMap | None]]:
    """The fragments that can match, each with the offsets of the rows that can match; None for all rows."""
    all_fragments = snapshot.manifest.fragments
    if selection is None:
        places_read = all_fragments.places_with_rows() if fragments is all_fragments else range(len(fragments))
        return [(fragments[position], None) for position in places_read]
    if fragments is all_fragments:
        return [(fragments[position], rows) for position, rows in selection.parts()]
    positions = selection.view.places(np.array([fragment.id for fragment in fragments], np.int64)).tolist()
    parts = []
    for fragment, position in zip(fragments, positions, strict=True):
        is_known = position >= 0 and _is_of(all_fragments, fragment)
        rows = selection.rows_of(position) if is_known else None
        if rows is None or rows:
            parts.append((fragment, rows))
    return parts


def until_consistent(job: Callable[[], _Result]) -> _Result:
    """Run a job; if an index turns out to be wrong, repeat the job without that index."""
    while True:
        try:
            return job()
        except ContradictionError:
            continue  # each repetition uses fewer indices


def _query_indices(snapshot: Snapshot, condition: pc.Expression) -> tuple[Selection | None, frozenset[int]]:
    """The rows that can match according to indices, and the ids of the fragments all of whose live rows match.

    The last answer is cached, because scans of single fragments repeat the same condition.
    """
    manifest = snapshot.manifest
    key = (manifest.branch, manifest.version, manifest.timestamp_ns, condition.__reduce__()[1][0].to_pybytes())
    cached_answer = snapshot.index_cache.answers.get(key)
    if isinstance(cached_answer, tuple):
        selection, whole = cached_answer
    else:
        selection, whole = _decide_constant(snapshot, condition, snapshot.select(condition))
        snapshot.index_cache.answers = {key: (selection, whole)}
    return selection, whole


def _decide_constant(
    snapshot: Snapshot, condition: pc.Expression, selection: Selection | None
) -> tuple[Selection | None, frozenset[int]]:
    """Narrow the selection by fragments with one value in each column of the condition, where all or no rows match."""
    columns, undecided = columns_of(condition), frozenset[int]()
    try:
        constants = find_constant_columns(snapshot.manifest, columns, snapshot.indices) if columns else None
    except CorruptFileError:
        return selection, undecided  # a warning was logged when the index was used
    if constants is None:
        return selection, undecided
    is_constant, values = constants
    try:
        matches = matching(values.combine_chunks().to_batches()[0], condition).to_numpy(zero_copy_only=False)
    except InvalidInputError:
        return selection, undecided  # reading such rows raises the error
    if selection is None:
        view = view_of(snapshot.manifest)
        selection = Selection(view, Candidates.every(view), ())
    positions = np.flatnonzero(is_constant)
    state = np.full(len(is_constant), ALL, np.uint8)
    state[positions[~matches]] = NONE
    whole = frozenset(selection.view.ids[positions[matches]].tolist())
    return replace(selection, candidates=selection.candidates & Candidates(state)), whole


def _is_of(fragments: FragmentList, fragment: Fragment) -> bool:
    """Whether a fragment belongs to a version: a fragment that is not committed can have the same id."""
    namesake = fragments.get(fragment.id)
    return namesake is fragment or namesake == fragment
