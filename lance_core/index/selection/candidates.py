"""Finds the fragments and rows that can match a filter according to indices.

    filter -> tree of tests -> answers of the segments of an index on each field -> combined by AND, OR, NOT

An index only saves work: rows that no trusted segment covers are candidates, and the reader of the rows applies the
filter.

Also finds rows that certainly match a filter by indices alone, so that a count reads few rows: such an answer may have
too few rows, never too many. A BITMAP is certain of the rows under a value, if no row of its
segment is under two values; a ZONEMAP of fragments each of whose zones holds one value, or values on one side of that
of the filter, without nulls. Only fragments that a single segment covers count.

Zone maps also show which fragments hold a single value in a column: a condition is true for all their rows or for none.
A fragment counts only if exactly one segment covers it, and the zones span all of its rows without overlapping, with
the same value, no null and no NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.errors import LanceError
from lance_core.index.kinds.bitmap import BitmapIndex
from lance_core.index.kinds.zonemap import ZoneMap
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

    def find(part: Test | UnknownCondition, truth: bool) -> Candidates:
        if isinstance(part, UnknownCondition):
            answers.record_missing_index()
            return Candidates.every(answers.view)
        return answers.answer(part, truth)

    return combine(condition, truth, answers, find)


def combine(
    condition: Condition,
    truth: bool,
    answers: IndexAnswers,
    find: Callable[[Test | UnknownCondition, bool], Candidates],
) -> Candidates:
    """The rows for which a condition is true, or false, from the rows for which its parts are.

    Args:
        condition: The condition.
        truth: The result of the condition.
        answers: The indices.
        find: (test, its result) -> the rows.
    """
    match condition:
        case Not():
            return combine(condition.part, not truth, answers, find)
        case All() | AnyOf():
            parts = (combine(part, truth, answers, find) for part in condition.parts)
            return reduce(Candidates.__and__ if isinstance(condition, All) == truth else Candidates.__or__, parts)
        case CaseWhen():
            then, otherwise = (
                combine(condition.test, chosen, answers, find) & combine(part, truth, answers, find)
                for chosen, part in ((True, condition.then), (False, condition.otherwise))
            )
            return then | otherwise
        case Constant():
            return Candidates.every(answers.view) if condition.value is truth else Candidates.no(answers.view)
    return find(condition, truth)


def find_certain_matches(expression: pc.Expression, manifest: Manifest, reader: IndexReader) -> Candidates | None:
    """The rows for which a filter is certainly true, deleted rows included; None if no index is on its columns.

    Args:
        expression: The filter.
        manifest: The version.
        reader: Reads its indices.
    """
    question = ask(expression, manifest, reader)
    if question is None:
        return None
    condition, answers = question
    return combine(condition, True, answers, lambda test, truth: _find_certain(test, truth, answers))


def _find_certain(test: Test | UnknownCondition, truth: bool, answers: IndexAnswers) -> Candidates:
    """The rows for which a test is certainly true, or false."""
    result = Candidates.no(answers.view)
    if isinstance(test, UnknownCondition):
        return result
    node = field_at(answers.manifest.schema, test.path)
    if node is not None and len(test.path) == 1:
        for segments in answers.indices(test):
            result = result | _ask_index(segments, node, test, truth, answers)
    return result


def _ask_index(segments: list[Segment], node: Field, test: Test, truth: bool, answers: IndexAnswers) -> Candidates:
    """The certain rows according to the segments of an index, in fragments that a single segment covers."""
    result = Candidates.no(answers.view)
    if segments[0].index.kind not in ("Bitmap", "ZoneMap"):
        return result
    covered = [answers.view.covered(segment.covered) for segment in segments]
    vouched = np.sum(covered, axis=0)
    for segment, covers in zip(segments, covered, strict=True):
        alone = covers & (vouched == 1)
        content = answers.reader.try_read(segment.index, arrow_type_of(node)) if alone.any() else None
        if not isinstance(content, BitmapIndex | ZoneMap):
            continue
        try:
            certain_rows = content.certain(test, truth, answers.view, alone)
        except (LanceError, pa.ArrowException) as error:
            if isinstance(error, LanceError):
                answers.reader.cache.warn(segment.index, str(error))
            continue
        result = result if certain_rows is None else result | certain_rows
    return result


def find_constant_columns(
    manifest: Manifest, columns: Sequence[str], reader: IndexReader
) -> tuple[Bools, pa.Table] | None:
    """The fragments that hold one value in each of some columns.

    Args:
        manifest: The version.
        columns: Names of columns, at least one.
        reader: Reads its indices.

    Returns:
        For each fragment whether it has single values, and these values, one row per fragment; None if no fragment has
        them.
    """
    fields = {field.name: field for field in manifest.schema.fields}
    nodes = [fields.get(name) for name in columns]
    groups = [
        [segments for segments in find_usable_segments(manifest, node) if segments[0].index.kind == "ZoneMap"]
        for node in nodes
        if node is not None
    ]
    if len(groups) < len(nodes) or not all(groups):
        return None
    view = view_of(manifest)
    is_constant = np.ones(len(view.ids), np.bool_)
    column_values: list[pa.Array] = []
    for node, indices in zip(nodes, groups, strict=True):
        assert node is not None
        has_one_value, values = _find_in_index(view, indices[0], reader, arrow_type_of(node))
        is_constant &= has_one_value
        column_values.append(values)
    if not is_constant.any():
        return None
    places = pa.array(np.flatnonzero(is_constant))
    return is_constant, pa.Table.from_arrays([values.take(places) for values in column_values], names=list(columns))


def _find_in_index(
    view: View, segments: Sequence[Segment], reader: IndexReader, kind: pa.DataType
) -> tuple[Bools, pa.Array]:
    """The fragments that hold one value, and the value of each."""
    is_constant, vouched = np.zeros(len(view.ids), np.bool_), np.zeros(len(view.ids), np.int64)
    values = pa.nulls(len(view.ids), kind)
    if pa.types.is_floating(kind):
        return is_constant, values
    for segment in segments:
        covered = view.covered(segment.covered)
        vouched += covered
        content = reader.try_read(segment.index, kind)
        if not isinstance(content, ZoneMap):
            continue
        has_one_value, first = _find_in_zones(content, view, covered)
        is_constant |= has_one_value
        values = pc.if_else(pa.array(has_one_value), content.lows.take(pa.array(first)), values)
    return is_constant & (vouched == 1), values


def _find_in_zones(
    zones: ZoneMap, view: View, covered: Bools
) -> tuple[Bools, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The fragments that hold one value, and a zone of each."""
    count = len(view.ids)
    first = np.zeros(count, np.int64)
    if not len(zones):
        return np.zeros(count, np.bool_), first
    where, order, is_whole = zones.layout(view, covered)
    same = pc.fill_null(pc.equal(zones.lows, zones.highs), False).to_numpy(zero_copy_only=False)
    same = same & (zones.nulls == 0) & (zones.nans == 0)
    first[where] = order
    lows = zones.lows.take(pa.array(order))
    like_first = pc.fill_null(pc.equal(lows, zones.lows.take(pa.array(first[where]))), False)
    differs = ~(same[order] & like_first.to_numpy(zero_copy_only=False))
    return covered & is_whole & (np.bincount(where, weights=differs, minlength=count) == 0), first
