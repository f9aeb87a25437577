"""Filters decided for whole fragments, which hold a single value in each column of the filter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.index.query.rows import ALL, NONE, Bools, Candidates
from lance_core.index.selection.candidates import Selection, view_of
from lance_core.index.selection.constants import constants
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.expressions.arrow import columns_of, matching

__all__ = ["Decided", "constant_fragments", "decide"]


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision about fragments without reading their rows.

    Attributes:
        selection: The rows that can match; None for all.
        whole: Ids of the fragments all of whose live rows match.
    """

    selection: Selection | None
    whole: frozenset[int] = frozenset()


def decide(source: Snapshot, expression: pc.Expression) -> Decided:
    """The answer of indices about a filter, cached, as scans of single fragments ask for the same one repeatedly."""
    if not source.manifest.indices:
        return Decided(None)
    manifest = source.manifest
    key = (manifest.branch, manifest.version, manifest.timestamp_ns, expression.__reduce__()[1][0].to_pybytes())
    known = source.index_cache.answers.get(key)
    if not isinstance(known, Decided):
        known = _decide(source, expression)
        source.index_cache.answers = {key: known}
    return known


def _decide(source: Snapshot, expression: pc.Expression) -> Decided:
    selection = source.select(expression)
    columns = columns_of(expression)
    if not columns:
        return Decided(selection)
    found = constant_fragments(source, columns)
    if found is None:
        return Decided(selection)
    known, values = found
    try:
        matches = matching(values.combine_chunks().to_batches()[0], expression).to_numpy(zero_copy_only=False)
    except InvalidInputError:
        return Decided(selection)  # reading such rows raises the error
    if selection is None:
        view = view_of(source.manifest)
        selection = Selection(view, Candidates.every(view), ())
    places = np.flatnonzero(known)
    state = np.full(len(known), ALL, np.uint8)
    state[places[~matches]] = NONE
    ruled_out = selection.candidates & Candidates(state)
    whole = frozenset(selection.view.ids[places[matches]].tolist())
    return Decided(replace(selection, candidates=ruled_out), whole)


def constant_fragments(source: Snapshot, columns: list[str]) -> tuple[Bools, pa.Table] | None:
    """The fragments that hold one value in each of some columns, and these values; None if there are none."""
    try:
        return constants(source.manifest, columns, source.indices)
    except CorruptFileError:
        return None  # a warning was given when the index was used
