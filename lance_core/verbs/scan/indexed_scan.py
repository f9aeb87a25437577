"""Scans of the fragments that can match a filter according to indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap

from lance_core.index.selection.candidates import Selection
from lance_core.index.selection.exact_matches import certain
from lance_core.table.fragment import Fragment, FragmentList
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.scan.decided import Decided, decide
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.read_fragment import live_count, live_counts

__all__ = ["Chosen", "choose"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fragments that a scan has to look at.

    Attributes:
        source: The version.
        options: What to read.
        parts: The fragments in order, each with the offsets of rows that can match; None for all.
        selection: The answer of indices; None if they rule nothing out.
        whole: Ids of the fragments all of whose live rows match.
    """

    source: Snapshot
    options: ScanOptions
    parts: Sequence[tuple[Fragment, BitMap | None]]
    selection: Selection | None
    whole: frozenset[int] = frozenset()

    def scans(self, *, decided: bool = True) -> Iterator[FragmentScan]:
        """A scan of each.

        Args:
            decided: Whether to scan also the fragments all of whose rows match.
        """
        for fragment, rows in self.parts:
            if decided or fragment.id not in self.whole:
                known = self.selection if rows is not None else None
                claims = known.claims_of(fragment.id) if known is not None else ()
                yield FragmentScan(self.source, fragment, self.options, possible=rows, claims=claims)

    def counted(self) -> tuple[int, Chosen]:
        """How many rows match in fragments of which indices tell that, and the fragments that have to be read."""
        whole = [fragment for fragment, _ in self.parts if fragment.id in self.whole]
        total = sum(live_counts(self.source, whole))
        left = [(fragment, rows) for fragment, rows in self.parts if fragment.id not in self.whole]
        sure = self._certain() if left else None
        unknown = []
        for fragment, rows in left:
            count = None if sure is None else self._count(sure, fragment, rows)
            total += count or 0
            if count is None:
                unknown.append((fragment, rows))
        return total, replace(self, parts=unknown)

    def _certain(self) -> Selection | None:
        """The rows that match for certain."""
        source, expression = self.source, self.options.filter
        if expression is None or self.selection is None:
            return None
        found = certain(expression, source.manifest, source.indices)
        return None if found is None else replace(self.selection, candidates=found)

    def _count(self, sure: Selection, fragment: Fragment, possible: BitMap | None) -> int | None:
        """How many rows of a fragment match; None if that is not certain of each that can."""
        place = int(sure.view.places(np.array([fragment.id], np.int64))[0])
        if place < 0 or not _is_of(self.source.manifest.fragments, fragment):
            return None
        matching = sure.rows_of(place)
        if matching is None:
            return live_count(self.source, fragment)
        if not matching and possible is None:
            return None
        deletions = self.source.deletions(fragment)
        gone = BitMap() if deletions is None else deletions.bitmap
        every = BitMap(range(int(sure.view.physical_rows[place]))) if possible is None else possible
        return len(matching - gone) if (every - gone) <= matching else None


def choose(source: Snapshot, fragments: Sequence[Fragment], options: ScanOptions) -> Chosen:
    """The fragments that a scan has to look at.

    Args:
        source: The version.
        fragments: Fragments of it.
        options: What to read of them.
    """
    may_ask = options.filter is not None and options.use_scalar_index and not options.include_deleted_rows
    known = decide(source, options.filter) if may_ask and options.filter is not None else Decided(None)
    parts = selected(source, fragments, known.selection)
    own = source.manifest.fragments
    if fragments is own:
        return Chosen(source, options, parts, known.selection, known.whole)
    strange = frozenset(
        fragment.id for fragment, _ in parts if fragment.id in known.whole and not _is_of(own, fragment)
    )
    return Chosen(source, options, parts, known.selection, known.whole - strange)


def selected(
    source: Snapshot, fragments: Sequence[Fragment], selection: Selection | None
) -> Sequence[tuple[Fragment, BitMap | None]]:
    """The fragments out of some that can match, each with the offsets of the rows that can; None for all."""
    own = source.manifest.fragments
    if selection is None:
        places_read = own.places_with_rows() if fragments is own else range(len(fragments))
        return [(fragments[place], None) for place in places_read]
    if fragments is own:
        return [(fragments[place], rows) for place, rows in selection.parts()]
    places = selection.view.places(np.array([fragment.id for fragment in fragments], np.int64)).tolist()
    found = []
    for fragment, place in zip(fragments, places, strict=True):
        is_known = place >= 0 and _is_of(own, fragment)
        rows = selection.rows_of(place) if is_known else None
        if rows is None or rows:
            found.append((fragment, rows))
    return found


def _is_of(fragments: FragmentList, fragment: Fragment) -> bool:
    """Whether a fragment is one of a version: one that is not committed can have the same id."""
    own = fragments.get(fragment.id)
    return own is fragment or own == fragment
