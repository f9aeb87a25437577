"""Finds rows that certainly match a filter by indices alone, so that a count reads few rows.

An answer may have too few rows, never too many. A BITMAP is certain of the rows under a value, if no row of its
segment is under two values; a ZONEMAP of fragments each of whose zones holds one value, without nulls. Only fragments
that a single segment covers count.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import LanceError
from lance_core.index.kinds.bitmap import BitmapIndex
from lance_core.index.kinds.zonemap import ZoneMap
from lance_core.index.query.conditions import All, AnyOf, CaseWhen, Condition, Constant, Not, Test
from lance_core.index.query.rows import Candidates
from lance_core.index.selection.candidates import IndexAnswers, ask, field_at
from lance_core.index.selection.segments import IndexReader, Segment
from lance_core.schema import Field, arrow_type_of
from lance_core.table.manifest.manifest import Manifest


def find_certain_matches(expression: pc.Expression, manifest: Manifest, reader: IndexReader) -> Candidates | None:
    """The rows for which a filter is certainly true, deleted rows included; None if no index is on its columns.

    Args:
        expression: The filter.
        manifest: The version.
        reader: Reads its indices.
    """
    question = ask(expression, manifest, reader)
    return None if question is None else _find_certain(question[0], True, question[1])


def _find_certain(condition: Condition, truth: bool, answers: IndexAnswers) -> Candidates:
    """The rows for which a condition is certainly true, or false."""
    if isinstance(condition, Not):
        return _find_certain(condition.part, not truth, answers)
    if isinstance(condition, All | AnyOf):
        parts = (_find_certain(part, truth, answers) for part in condition.parts)
        return reduce(Candidates.__and__ if isinstance(condition, All) == truth else Candidates.__or__, parts)
    if isinstance(condition, CaseWhen):
        then, otherwise = (
            _find_certain(condition.test, chosen, answers) & _find_certain(part, truth, answers)
            for chosen, part in ((True, condition.then), (False, condition.otherwise))
        )
        return then | otherwise
    if isinstance(condition, Constant) and condition.value is truth:
        return Candidates.every(answers.view)
    if not isinstance(condition, Test):
        return Candidates.no(answers.view)
    node = field_at(answers.manifest.schema, condition.path)
    result = Candidates.no(answers.view)
    if node is not None and len(condition.path) == 1:
        for segments in answers.indices(condition):
            result = result | _ask_index(segments, node, condition, truth, answers)
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
