"""Check that stable row ids are unique: no two live rows share an id, and no new row will be given an id in use.

A moved row has the same id as the deleted row in its old place, so ids of deleted rows are left out first. Only
fragments whose ids do not ascend, or span a range that overlaps another fragment's, are checked; for all others only
the manifest is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lance_core.errors import LanceError
from lance_core.table.fragment import Fragment
from lance_core.table.rowids import U64Array, decode_row_ids_of
from lance_core.verbs.context.handle import Snapshot

_Span = tuple[int, int, bool, Fragment]
"""The lowest and the highest row id of a fragment, whether its ids ascend, and the fragment."""


def row_id_problems(snapshot: Snapshot) -> Iterator[tuple[int, str]]:
    """Yield the id of each fragment with a row id that another row has or will be given, and a message.

    Fragments whose row ids or deletion files cannot be read are skipped.
    """
    spans = sorted(_find_spans(snapshot), key=lambda span: span[:2])
    free = snapshot.manifest.next_row_id
    group: list[_Span] = []
    highest = -1
    for span in spans:
        if span[1] >= free:
            yield span[3].id, f"row id {span[1]} is in use, and the manifest says that {free} and higher ids are free"
        if group and span[0] > highest:
            yield from _find_problems(snapshot, group)
            group = []
        group.append(span)
        highest = max(highest, span[1])
    yield from _find_problems(snapshot, group)


def _find_spans(snapshot: Snapshot) -> Iterator[_Span]:
    for fragment in snapshot.manifest.fragments:
        try:
            ids = decode_row_ids_of(fragment)
        except LanceError:
            continue
        if ids is not None and len(ids):
            yield int(ids.min()), int(ids.max()), bool((ids[1:] > ids[:-1]).all()), fragment


def _find_problems(snapshot: Snapshot, group: list[_Span]) -> Iterator[tuple[int, str]]:
    """The problems of fragments whose spans overlap."""
    if not group or (len(group) == 1 and group[0][2]):
        return
    fragments: list[int] = []
    parts: list[U64Array] = []
    for _, _, _, fragment in group:
        try:
            deletions = snapshot.deletions(fragment)
        except LanceError:
            continue
        ids = decode_row_ids_of(fragment)
        assert ids is not None
        parts.append(ids if deletions is None else ids[deletions.live_rows(len(ids))])
        fragments.append(fragment.id)
    if not parts:
        return
    ids = np.concatenate(parts)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    again = np.flatnonzero(ids[1:] == ids[:-1])
    owners = np.repeat(np.array(fragments, np.int64), [len(part) for part in parts])[order]
    # One problem for each fragment that repeats an id, with the first of these ids.
    _, firsts = np.unique(owners[again + 1], return_index=True)
    for place in again[firsts].tolist():
        first, second = int(owners[place]), int(owners[place + 1])
        count = int((owners[again + 1] == second).sum())
        where = "in this fragment twice" if first == second else f"in fragment {first} as well"
        yield second, f"row ids: {count} of its rows have ids of other rows; {int(ids[place])} is {where}"
