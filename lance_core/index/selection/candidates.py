"""Finds the fragments and rows that can match a filter according to indices.

    filter -> tree of tests -> answers of the segments of an index on each field -> combined by AND, OR, NOT

An index only saves work: rows that no trusted segment covers are candidates, and the reader of the rows applies the
filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.errors import LanceError
from lance_core.index.query.conditions import (
    All,
    AnyOf,
    CaseWhen,
    Condition,
    Constant,
    IsNan,
    IsNull,
    Not,
    Path,
    Test,
    UnknownCondition,
    list_tests,
    parse_condition,
)
from lance_core.index.query.rows import ALL, NONE, SOME, Bools, Candidates, View
from lance_core.index.selection.claims import Claim
from lance_core.index.selection.segments import IndexReader, Segment, find_usable_segments, names_of
from lance_core.schema import Field, Schema, arrow_type_of
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.rowids import decode_row_ids_of

_ORDER: Final = ("ZoneMap", "Bitmap", "LabelList", "BTree", "BloomFilter")
"""The kinds in the order in which they are used, the cheapest first."""

_FEW_ROWS: Final = 65_536

_EXACT: Final = ("Bitmap", "LabelList", "BTree")


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer of indices about a filter.

    Attributes:
        view: The fragments of the version.
        candidates: The rows that can match.
        indices: The names of the indices that answered.
        claims: The claims of indices that give exactly the matching rows.
    """

    view: View
    candidates: Candidates
    indices: tuple[str, ...]
    claims: tuple[Claim, ...] = ()

    @property
    def num_ruled_out(self) -> int:
        """Number of fragments without a row that can match."""
        return int((self.candidates.state == NONE).sum())

    def claims_of(self, fragment_id: int) -> tuple[Claim, ...]:
        """The claims about the candidates of a fragment."""
        return tuple(claim for claim in self.claims if fragment_id in claim.fragments)

    def parts(self) -> Iterator[tuple[int, BitMap | None]]:
        """The position of each fragment that can match, and its candidates; None for all rows."""
        state = self.candidates.state
        for place in np.flatnonzero(state != NONE).tolist():
            yield place, self.candidates.rows[place] if state[place] == SOME else None

    def rows_of(self, place: int) -> BitMap | None:
        """The candidates of a fragment; None for all rows."""
        state = self.candidates.state[place]
        return BitMap() if state == NONE else self.candidates.rows[place] if state == SOME else None


def select(expression: pc.Expression, manifest: Manifest, reader: IndexReader) -> Selection | None:
    """The rows that can match a filter.

    Args:
        expression: The filter.
        manifest: The version.
        reader: Reads its indices.

    Returns:
        The answer; None if no row is ruled out.
    """
    question = ask(expression, manifest, reader)
    if question is None:
        return None
    condition, answers = question
    parts, candidates, claims = list(_conjuncts(condition)), Candidates.every(answers.view), []
    for part in parts:
        answers.begin()
        part_rows = _find_possible(part, True, answers)
        candidates = candidates & part_rows
        claimed = frozenset(answers.view.ids[np.flatnonzero(answers.sure & (part_rows.state == SOME))].tolist())
        if claimed:
            claims.append(Claim(part if len(parts) > 1 else None, claimed, dict(answers.claiming), reader.cache))
    if not answers.names:
        return None
    return Selection(answers.view, candidates, tuple(sorted(answers.names)), tuple(claims))


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    """The operands of AND, or the condition itself."""
    if isinstance(condition, All):
        for part in condition.parts:
            yield from _conjuncts(part)
    else:
        yield condition


def ask(expression: pc.Expression, manifest: Manifest, reader: IndexReader) -> tuple[Condition, IndexAnswers] | None:
    """A filter as a condition, and the indices of a version; None if no index is on a column of the filter."""
    if all(index.is_system for index in manifest.indices) or not len(manifest.fragments):
        return None
    condition = parse_condition(expression)
    answers = IndexAnswers(manifest, reader)
    return (condition, answers) if any(map(answers.has_index, list_tests(condition))) else None


def view_of(manifest: Manifest) -> View:
    """The fragments of a version."""
    ids, physical_rows = manifest.fragments.sizes()
    fragments = manifest.fragments
    row_ids = (lambda i: decode_row_ids_of(fragments[i])) if manifest.uses_stable_row_ids else None
    return View(
        ids,
        physical_rows,
        row_ids,
        fragments.live_counts,
        max_fragment_id=manifest.max_fragment_id,
        next_row_id=manifest.next_row_id,
    )


def field_at(schema: Schema, path: Path) -> Field | None:
    """The field at a path, through structs only; None if there is none."""
    fields, node = schema.fields, None
    for part in path:
        if isinstance(part, int):
            node = fields[part] if part < len(fields) else None
        else:
            node = next((field for field in fields if field.name == part), None)
        if node is None:
            return None
        fields = node.children if node.logical_type == "struct" else ()
    return node


@dataclass(slots=True)
class IndexAnswers:
    """The indices of a version, while a filter is answered.

    Attributes:
        manifest: The version.
        reader: Reads its indices.
        names: The names of the indices that answered.
        claiming: The segments that gave exactly the matching rows of the current condition, by id.
    """

    manifest: Manifest
    reader: IndexReader
    names: set[str] = field(default_factory=set)
    claiming: dict[object, IndexMetadata] = field(default_factory=dict)
    _view: View | None = None
    _sure: Bools | None = None

    @property
    def view(self) -> View:
        """The fragments."""
        if self._view is None:
            self._view = view_of(self.manifest)
        return self._view

    @property
    def sure(self) -> Bools:
        """The fragments for which all answers so far gave exactly the matching rows."""
        if self._sure is None:
            self._sure = np.ones(len(self.view.ids), np.bool_)
        return self._sure

    def begin(self) -> None:
        """Start the next condition: forget which segments gave exact answers."""
        self._sure = None
        self.claiming = {}

    def has_index(self, test: Test) -> bool:
        """Whether there is an index on the field of a test."""
        return any(True for _ in self.indices(test))

    def answer(self, test: Test, truth: bool) -> Candidates:
        """The rows for which a test can be true, or false."""
        result = Candidates.every(self.view)
        node = field_at(self.manifest.schema, test.path)
        exact = np.zeros(len(self.view.ids), np.bool_)
        for segments in sorted(self.indices(test), key=lambda segments: _ORDER.index(segments[0].index.kind)):
            assert node is not None
            index_rows, covered = self._ask_index(segments, node, test, truth)
            result = result & index_rows
            is_exact = segments[0].index.kind in _EXACT and bool(covered.any())
            if is_exact:
                exact |= covered & (index_rows.state != ALL)
                self.claiming.update((segment.index.uuid, segment.index) for segment in segments)
            if is_exact or self.view.physical_rows[result.state != NONE].sum() <= _FEW_ROWS:
                break  # another index costs more than reading the rows
        self._sure = self.sure & exact
        return result

    def indices(self, test: Test) -> Iterator[list[Segment]]:
        """The indices on the field of a test, as their segments."""
        node = field_at(self.manifest.schema, test.path)
        # Writers disagree whether a field of a null struct is null.
        if node is None or (len(test.path) > 1 and isinstance(test, IsNull | IsNan)):
            return
        yield from find_usable_segments(self.manifest, node, self.reader.cache)

    def record_missing_index(self) -> None:
        """Record that a condition has no index."""
        self._sure = np.zeros(len(self.view.ids), np.bool_)

    def _ask_index(self, segments: list[Segment], node: Field, test: Test, truth: bool) -> tuple[Candidates, Bools]:
        """The combined answer of an index's segments, and the fragments that they cover."""
        everything = Candidates.every(self.view)
        result, answered_fragments = everything, np.zeros(len(self.view.ids), np.bool_)
        for segment in segments:
            covered = self.view.covered(segment.covered)
            if not covered.any():
                continue
            content = self.reader.try_read(segment.index, arrow_type_of(node))
            if content is None:
                continue
            try:
                segment_rows = content.answer(test, truth, self.view, covered)
            except (LanceError, pa.ArrowException) as error:
                if isinstance(error, LanceError):
                    self.reader.cache.warn(segment.index, str(error))
                continue  # values that cannot be compared: evaluating the filter raises
            if segment_rows is None:
                continue
            self.names.add(names_of(segments))
            first, again = covered & ~answered_fragments, covered & answered_fragments
            merged = segment_rows.where(first, result)
            result = (segment_rows | result).where(again, merged) if again.any() else merged
            answered_fragments |= covered
        return result, answered_fragments


def _find_possible(condition: Condition, truth: bool, answers: IndexAnswers) -> Candidates:
    """The rows for which a condition can be true, or false."""
    if isinstance(condition, Not):
        return _find_possible(condition.part, not truth, answers)
    if isinstance(condition, All | AnyOf):
        parts = (_find_possible(part, truth, answers) for part in condition.parts)
        if isinstance(condition, All) == truth:
            return reduce(Candidates.__and__, parts)
        return reduce(Candidates.__or__, parts)
    if isinstance(condition, CaseWhen):
        then, otherwise = (
            _find_possible(condition.test, chosen, answers) & _find_possible(part, truth, answers)
            for chosen, part in ((True, condition.then), (False, condition.otherwise))
        )
        return then | otherwise
    if isinstance(condition, Constant):
        return Candidates.every(answers.view) if condition.value is truth else Candidates.no(answers.view)
    if isinstance(condition, UnknownCondition):
        answers.record_missing_index()
        return Candidates.every(answers.view)
    return answers.answer(condition, truth)
